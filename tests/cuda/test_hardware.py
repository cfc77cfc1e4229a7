"""Tests of a GPU are skipped for want of one alone: one that is there has to work."""

from __future__ import annotations

import pytest

from cavs.errors import DeviceError
from tests.cuda import hardware


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
