"""Tests of a GPU are skipped only if there is none: one that is there must work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cavs.codegen.cuda import Load, Store, kernel_text
from cavs.codegen.map import MapOp
from cavs.cuda.device import Device
from cavs.errors import DeviceError
from tests.codegen.device import Runner
from tests.cuda import hardware
from tests.cuda.device import host_twin


def test_an_unusable_gpu_is_a_failure(twin):
    assert hardware.absent(twin.library) == ""
    twin.capability(75)
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"compute capability 7\.5"):
            hardware.gpu(twin.library)


def test_a_machine_without_a_gpu_skips_unless_required(twin, monkeypatch):
    monkeypatch.delenv(hardware.REQUIRED, raising=False)
    twin.no_device()
    with pytest.raises(pytest.skip.Exception, match="cuInit gives error 100"):
        hardware.gpu(twin.library)
    monkeypatch.setenv(hardware.REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="is set, but there is no NVIDIA GPU"):
        hardware.gpu(twin.library)
    monkeypatch.setattr(hardware, "find_driver", lambda: None)
    assert hardware.absent() == "no NVIDIA driver"


def test_a_gpu_without_cudnn_skips_unless_required(twin, monkeypatch):
    device = Device(twin.library, 0, "sm_90", twin.compiler, None)
    monkeypatch.setattr(hardware, "_opened", lambda library: device)
    monkeypatch.delenv(hardware.REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no cuDNN"):
        hardware.gpu_with_cudnn(twin.library)
    monkeypatch.setenv(hardware.REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="is set, but there is no cuDNN"):
        hardware.gpu_with_cudnn(twin.library)
    device = replace(device, cudnn=twin.cudnn)
    assert hardware.gpu_with_cudnn(twin.library) is device


def test_memcheck_sees_every_allocation(twin, monkeypatch):
    pooled = Device(twin.library, 0, "sm_90", twin.compiler, object())
    monkeypatch.setattr(hardware, "open_device", lambda name, library: pooled)
    monkeypatch.delenv(hardware.UNPOOLED, raising=False)
    opened = hardware._opened.__wrapped__
    assert opened(twin.library) is pooled
    monkeypatch.setenv(hardware.UNPOOLED, "1")
    assert opened(twin.library).memory is None


def test_a_single_gpu_skips_tests_of_several(twin, monkeypatch):
    monkeypatch.setattr(hardware, "_opened", lambda library: None)
    monkeypatch.setenv(hardware.REQUIRED, "1")
    with pytest.raises(pytest.skip.Exception, match="only one NVIDIA GPU"):
        hardware.several_gpus(4, twin.library)
    twin.set("devices", 3)
    assert [hardware.several_gpus(most, twin.library) for most in (2, 4)] == [2, 3]


def test_generated_kernels_need_no_parameter_sizes(twin):
    """As on a GPU, which does not report the parameters of a kernel."""
    device = host_twin()
    assert not isinstance(device, str)
    runner = Runner(device, None)
    loads = [Load(8), Load(8, rows="index")]
    text = kernel_text("k", loads, [MapOp("sub", 2, 0, 1, 0, 0.0)], [Store(2, 8)], 1, 8)
    a = np.arange(24, dtype="f4").reshape(3, 8)
    index = np.array([2, -1, 0], "i4")
    (out,) = runner.run(runner.module(text), "k", 2, 1, 3, [a, a, index], [np.zeros_like(a)])
    np.testing.assert_array_equal(out, [np.zeros(8), a[1], a[2] - a[0]])
