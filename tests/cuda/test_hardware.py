"""Tests of a GPU are skipped for want of one alone: one that is there has to work."""

from __future__ import annotations

import numpy as np
import pytest

from cavs.codegen.cuda import Load, Store, kernel_text
from cavs.errors import DeviceError
from tests.codegen.device import Runner
from tests.cuda import hardware
from tests.cuda.device import host_twin


def test_a_gpu_that_cannot_be_used_is_a_failure(twin):
    assert hardware.absent(twin.library) == ""
    twin.capability(75)
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"compute capability 7\.5"):
            hardware.gpu(twin.library)


def test_a_machine_without_a_gpu_skips_unless_it_must_have_one(twin, monkeypatch):
    monkeypatch.delenv(hardware.REQUIRED, raising=False)
    twin.no_device()
    with pytest.raises(pytest.skip.Exception, match="cuInit gives error 100"):
        hardware.gpu(twin.library)
    monkeypatch.setenv(hardware.REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="is set, but there is no NVIDIA GPU"):
        hardware.gpu(twin.library)
    monkeypatch.setattr(hardware, "find_driver", lambda: None)
    assert hardware.absent() == "no NVIDIA driver"


def test_generated_kernels_are_launched_without_the_twins_help(twin):
    """As on a GPU, which does not tell what a kernel takes."""
    device = host_twin()
    assert not isinstance(device, str)
    runner = Runner(device, None)
    loads = [Load(8), Load(8, rows="index")]
    text = kernel_text("k", loads, [("sub", 2, 0, 1, 0, 0.0)], [Store(2, 8)], 1, 8)
    a = np.arange(24, dtype="f4").reshape(3, 8)
    index = np.array([2, -1, 0], "i4")
    (out,) = runner.run(runner.module(text), "k", 2, 1, 3, [a, a, index], [np.zeros_like(a)])
    np.testing.assert_array_equal(out, [np.zeros(8), a[1], a[2] - a[0]])
