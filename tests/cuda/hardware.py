"""This machine's GPU for tests: without one they are skipped; one that does not work fails them."""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from dataclasses import replace
from typing import NoReturn

import pytest

from cavs.cuda.device import Device, count_devices, open_device
from cavs.cuda.libraries import find_driver

INVALID_DEVICE = 101
REQUIRED = "CAVS_TEST_GPU"  # if set, a machine without a GPU fails the tests
# If set, each allocation is one of the driver's, so that memcheck knows its bounds; CuPy's pool
# returns parts of larger ones.
UNPOOLED = "CAVS_TEST_UNPOOLED"


def absent(library: str | None = None) -> str:
    """Return why there is no GPU to test on; "" if the driver counts one, which then must work.

    library: the driver, instead of searching for it.
    """
    path = library or find_driver()
    if path is None:
        return "no NVIDIA driver"
    driver = ctypes.CDLL(path)
    if status := driver.cuInit(0):
        return f"no NVIDIA GPU: cuInit gives error {status}"
    status = driver.cuDeviceGet(ctypes.byref(ctypes.c_int()), 0)
    return "no NVIDIA GPU: the driver counts none" if status == INVALID_DEVICE else ""


def skip(reason: str) -> NoReturn:
    """Skip the running test for lack of a GPU, or fail it if one is required."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{REQUIRED} is set, but there is {reason}")
    pytest.skip(reason)


def gpu(library: str | None = None) -> Device:
    """Return the opened GPU; its errors are raised."""
    if reason := absent(library):
        skip(reason)
    return _opened(library)


def gpu_with_cudnn(library: str | None = None) -> Device:
    """Return the GPU with cuDNN, which comes by pip and is required where a GPU is."""
    found = gpu(library)
    if found.cudnn_library is None:
        skip("no cuDNN")
    return found


def several_gpus(most: int, library: str | None = None) -> int:
    """Return the number of GPUs, up to `most`; skip the test on a machine with a single one."""
    gpu(library)
    if (found := min(count_devices(library), most)) < 2:
        pytest.skip("only one NVIDIA GPU")
    return found


@functools.cache
def _opened(library: str | None) -> Device:
    with warnings.catch_warnings():  # CuPy may warn when it is imported
        warnings.simplefilter("ignore")
        found = open_device("cuda", library)
    return replace(found, memory=None) if os.environ.get(UNPOOLED) else found
