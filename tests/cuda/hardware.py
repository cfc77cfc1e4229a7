"""This machine's GPU for tests: where there is none they are skipped, where it fails they fail."""

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
REQUIRED = "CAVS_TEST_GPU"  # if set: a machine without a GPU fails too
# If set: each allocation is one of the driver's, so that memcheck sees its ends; CuPy's pool hands
# out parts of large ones.
UNPOOLED = "CAVS_TEST_UNPOOLED"


def absent(library: str | None = None) -> str:
    """Why there is no GPU to test on; empty where the driver counts one, which has to work then.

    library: the driver, if it is not to be looked up.
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
    """Skips the running test for want of a GPU, or fails it where there must be one."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{REQUIRED} is set, but there is {reason}")
    pytest.skip(reason)


def gpu(library: str | None = None) -> Device:
    """The GPU, opened; what it fails with is raised."""
    if reason := absent(library):
        skip(reason)
    return _opened(library)


def gpu_with_cudnn(library: str | None = None) -> Device:
    """The GPU; cuDNN, which comes by pip, is to be where a GPU is to be."""
    found = gpu(library)
    if found.cudnn_library is None:
        skip("no cuDNN")
    return found


def several_gpus(most: int, library: str | None = None) -> int:
    """How many GPUs there are, up to `most`; a machine with one is as good as any, and skips."""
    gpu(library)
    if (found := min(count_devices(library), most)) < 2:
        pytest.skip("only one NVIDIA GPU")
    return found


@functools.cache
def _opened(library: str | None) -> Device:
    with warnings.catch_warnings():  # CuPy may warn when it is imported: that is no failure of ours
        warnings.simplefilter("ignore")
        found = open_device("cuda", library)
    return replace(found, memory=None) if os.environ.get(UNPOOLED) else found
