"""Every DeviceError has a cure: the install command where that helps, or another one."""

from __future__ import annotations

import ctypes.util
from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import _cuda
from cavs.cuda import Device, libraries, open_device
from cavs.cuda.nvrtc import Nvrtc
from cavs.errors import DeviceError
from tests.cuda.driver_stand_ins import MISSING, build_driver
from tests.cuda.tagger import single, tagger
from tests.cuda.twin import Twin

LINE = 'pip install "cavs[cuda'


def cure(make, *arguments):
    """Return the hint of the DeviceError that `make` raises."""
    with pytest.raises(DeviceError) as error:
        make(*arguments)
    assert "cavs[cuda" not in error.value.what
    return error.value.hint


@pytest.fixture(scope="module")
def driver_library(tmp_path_factory):
    if MISSING:
        pytest.skip(MISSING)
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"INIT": 2}, "nvidia-smi lists the processes"),
        ({"INIT": 3}, "start processes by spawn"),
        ({"INIT": 800}, "ask the administrator for access to the GPU"),
        ({"INIT": 802}, "Fabric Manager"),
        ({"INIT": 803}, "restart the machine"),
        ({"INIT": 804}, "LD_LIBRARY_PATH"),
        ({"INIT": 999}, "nvidia-modprobe -u"),
        ({"INIT": 12345}, "nvidia-smi"),
        ({"DEVICES": 0}, "CUDA_VISIBLE_DEVICES hides them"),
        ({"CAPABILITY": 75}, "Ampere generation or a later one"),
        ({"VERSION": 11080}, f"update the driver, then {LINE}"),
    ],
)
def test_drivers_and_gpus(driver_library, monkeypatch, facts, words):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in facts.items():
        monkeypatch.setenv(f"FAKE_{name}", str(value))
    hint = cure(open_device, "cuda", driver_library)
    assert words in hint
    assert "device='cpu'" in hint
    assert ("pip" in hint) == ("VERSION" in facts), "what pip cannot fix"


def test_a_driver_that_cannot_be_loaded_or_is_too_old(twin, tmp_path):
    broken = tmp_path / "libcuda.so.1"
    broken.write_bytes(b"no library")
    assert "not by pip" in cure(open_device, "cuda", str(broken))
    assert "install NVIDIA's driver" in cure(_cuda.Device, str(broken))
    old = Twin(without=("cuEventQuery",))
    with pytest.raises(DeviceError, match=r"has no cuEventQuery") as error:
        _cuda.Device(old.library, install="THE LINE")
    assert error.value.hint == "update NVIDIA's driver, then THE LINE; without it: device='cpu'"


def test_the_install_command_fits_the_driver(twin, twin_device, monkeypatch):
    seen = []
    monkeypatch.setattr(libraries, "extras", lambda: {12: "cuda12", 13: "cuda13"})
    monkeypatch.setattr(libraries, "_is_installed", lambda name: False)
    monkeypatch.setattr(_cuda, "Device", lambda *arguments: seen.append(arguments[-1]))
    for version in (12080, 13000):
        twin.driver_version(version)
        assert replace(twin_device).native is None
    assert seen == ['pip install "cavs[cuda12]"', 'pip install "cavs[cuda13]"']


class Spoiled:
    """A compiler whose files are not images."""

    def compile(self, name, source, headers, options):
        return b"/no/such/image"


def test_images_that_do_not_load(twin, twin_device):
    session = cavs.Session(
        tagger(), dtype=np.float64, device=replace(twin_device, compiler=Spoiled())
    )
    hint = cure(session.evaluate, single(2))
    assert "cache of compiled kernels, which cavs info names" in hint
    assert f"{LINE}" in hint and hint.endswith("--upgrade")


def test_a_cublas_that_is_broken(twin, twin_device, tmp_path):
    def session(path):
        device = replace(twin_device, cublas_lt=str(path))
        return cavs.Session(tagger(), dtype=np.float64, device=device)

    broken = tmp_path / "libcublasLt.so"
    broken.write_bytes(b"no library")
    with pytest.raises(DeviceError, match=r"cuBLASLt cannot be loaded: .*libcublasLt") as error:
        session(broken).evaluate(single(2))
    assert LINE in error.value.hint and "cublas_lt=None" in error.value.hint
    other = ctypes.util.find_library("m")
    with pytest.raises(DeviceError, match=f"{other} has no cublasLtCreate") as error:
        session(other).evaluate(single(2))
    assert LINE in error.value.hint and error.value.hint.endswith("--upgrade")


def test_a_broken_nvrtc(tmp_path):
    broken = tmp_path / "libnvrtc.so"
    broken.write_bytes(b"no library")
    hint = cure(Nvrtc, str(broken))
    assert LINE in hint and hint.endswith("--force-reinstall")
    other = ctypes.util.find_library("m")
    with pytest.raises(DeviceError, match="is no usable NVRTC"):
        Nvrtc(other)


def test_faults_and_memory(twin, twin_device):
    device = Device(twin.library, 0, "sm_90", twin.compiler, None)
    twin.memory(twin.used() + 1000)
    session = cavs.Session(tagger(), dtype=np.float64, device=device)
    assert "smaller batches" in cure(session.evaluate, single(2))
    twin.reset()
    for code in (700, 716, 719):
        session = cavs.Session(tagger(), dtype=np.float64, device=device)
        twin.fail_launch(1, code)
        hint = cure(session.evaluate, single(2))
        assert "device='cpu' goes on working, the GPU in a new process" in hint
        assert "pip" not in hint
        twin.reset()


def test_information_names_the_cache(capsys, monkeypatch):
    from cavs.cli import main

    monkeypatch.setenv("CAVS_CACHE", "/somewhere/else")
    assert main(["info"]) == 0
    assert "kept in /somewhere/else\n" in capsys.readouterr().out
