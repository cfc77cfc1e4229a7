"""Opening a GPU, with an error for each missing requirement; memory through CuPy."""

from __future__ import annotations

import re
import sys
import types
import warnings

import numpy as np
import pytest

import cavs
from cavs import _cuda, ops
from cavs.cuda import Device, describe, libraries, open_device
from cavs.cuda import device as device_module
from cavs.cuda.cache import CachedCompiler
from cavs.cuda.driver import Driver
from cavs.cuda.memory import CupyMemory
from cavs.cuda.nvrtc import Nvrtc
from cavs.errors import DeviceError, DeviceWarning
from tests.cuda.driver_stand_ins import MISSING, build_driver, fake_cupy, strip

NVRTC = libraries.find("nvrtc")
needs_nvrtc = pytest.mark.skipif(
    NVRTC is None, reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12"
)
needs_compiler = pytest.mark.skipif(bool(MISSING), reason=MISSING)
KERNEL = '#include "one.cuh"\nextern "C" __global__ void f(REAL* x) { x[0] = one(); }\n'
HEADERS = {"one.cuh": "__device__ REAL one() { return 1; }\n"}


@pytest.fixture
def bare(monkeypatch, tmp_path):
    strip(monkeypatch, tmp_path / "prefix")
    return tmp_path


# ---- memory --------------------------------------------------------------------------------------


@pytest.fixture
def cupy(monkeypatch):
    module = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_memory_is_counted_and_released(cupy):
    cupy.expected = 1
    memory = CupyMemory(1)
    blocks = [memory.allocate(size) for size in (0, 1, 512, 513)]
    assert len(set(blocks)) == 4
    assert memory.used() == 512 + 512 + 512 + 1024 == 10_000 - cupy.free
    assert cupy.pending == 0  # the engine's streams do not wait for CuPy's stream
    memory.release(blocks[1])
    assert memory.used() == 2048 == 10_000 - cupy.free
    with pytest.raises(DeviceError, match=f"no block at {blocks[1]:#x} to release"):
        memory.release(blocks[1])
    assert memory.free_and_total() == (10_000 - 2048, 10_000)
    cupy.pooled = 1536
    assert memory.kept() == 1536
    streams = [memory.stream(), memory.stream()]
    assert len(set(streams)) == 2
    assert [stream.device for stream in memory._streams] == [1, 1]
    assert cupy.current == [1], "a thread without a GPU has another one than that which it uses"


def test_out_of_memory_reports_requested_free_and_total_bytes(cupy):
    memory = CupyMemory(0)
    kept = memory.allocate(4096)
    with pytest.raises(DeviceError) as error:
        memory.allocate(8000)
    assert "8,000 bytes requested, 5,904 free of 10,000; cavs holds 4,096" in error.value.what
    assert "batch_size" in error.value.hint
    memory.release(kept)
    assert memory.used() == 0
    memory.allocate(8000)


def test_a_gpu_that_fails_is_a_device_error(cupy):
    memory = CupyMemory(0)
    cupy.fails = "cudaErrorIllegalAddress: an illegal memory access was encountered"
    for use in (lambda: memory.allocate(1), memory.stream, memory.free_and_total):
        with pytest.raises(DeviceError, match="cudaErrorIllegalAddress"):
            use()
    with pytest.raises(DeviceError, match=r"CuPy 99.0 finds no GPU: cudaErrorIllegal") as error:
        CupyMemory(0)
    assert error.value.hint.endswith('pip install "cavs[cuda12]"')
    assert memory.used() == 0


def test_a_gpu_that_cupy_does_not_see_is_a_device_error(cupy):
    with pytest.raises(DeviceError, match="sees 2 GPUs, but the device is cuda:2"):
        CupyMemory(2)


def test_a_missing_or_broken_cupy_names_the_install_command(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match="CuPy cannot be imported") as error:
        CupyMemory(0, 12)
    assert error.value.hint == libraries.install_line(12)
    monkeypatch.delitem(sys.modules, "cupy")
    (tmp_path / "cupy.py").write_text("raise AttributeError('built for another numpy')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DeviceError, match="built for another numpy"):
        CupyMemory(0)


def test_the_real_cupy_without_a_gpu_is_a_device_error():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed: pip install cupy-cuda12x")
    if cupy.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match=rf"CuPy {cupy.__version__} finds no GPU: cudaError"):
        CupyMemory(0)


# ---- driver and device ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver_library(tmp_path_factory):
    if MISSING:
        pytest.skip(MISSING)
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def facts(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CAVS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libcublasLt.so").write_bytes(b"found, not opened")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))

    def change(**values):
        for name, value in values.items():
            monkeypatch.setenv(f"FAKE_{name.upper()}", str(value))

    return change


@needs_nvrtc
def test_a_device_is_opened_and_compiles_through_the_cache(driver_library, facts, cupy, tmp_path):
    facts(version=1000 * NVRTC.major + 80, devices=2)
    cupy.expected = 1
    device = open_device("cuda:1", driver_library)
    assert (device.driver_library, device.ordinal, device.architecture) == (
        driver_library,
        1,
        "sm_90",
    )
    assert isinstance(device.compiler, CachedCompiler)
    assert isinstance(device.memory, CupyMemory)
    cubin = device.compile("f.cu", KERNEL, HEADERS, "float")
    assert cubin[:4] == b"\x7fELF"
    (entry,) = (tmp_path / "cache").iterdir()
    made = entry.stat().st_ino
    assert open_device("cuda:1", driver_library).compile("f.cu", KERNEL, HEADERS, "float") == cubin
    assert device.compile("f.cu", KERNEL, HEADERS, "double") != cubin
    assert entry.stat().st_ino == made
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert open_device("cuda", driver_library).ordinal == 0


@needs_nvrtc
def test_the_architecture_is_the_best_of_its_major(driver_library, facts, cupy):
    facts(version=99000, capability=88)
    assert open_device("cuda", driver_library).architecture in ("sm_87", "sm_88")
    facts(capability=990)
    with pytest.raises(DeviceError, match=r"capability 99.0, but NVRTC .* compiles for .*9.0"):
        open_device("cuda", driver_library)


def test_a_device_can_be_built_by_hand(driver_library):
    class Names:
        def compile(self, name, source, headers, options):
            return "\n".join([name, source, *headers, *options]).encode()

    device = Device(driver_library, 3, "sm_80", Names(), None)
    assert device.compile("f.cu", "source", {"h": ""}, "double").decode().split("\n") == [
        "f.cu",
        "source",
        "h",
        "--gpu-architecture=sm_80",
        "--std=c++17",
        "-DREAL=double",
    ]


@pytest.mark.parametrize(
    "name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1 ", "CUDA", "gpu:0", ""]
)
def test_a_device_of_another_name_is_refused(name):
    needed = re.escape(f"device is {name!r}, but must be 'cpu', 'cuda'")
    with pytest.raises(DeviceError, match=needed):
        open_device(name)


def test_no_driver(monkeypatch, tmp_path):
    monkeypatch.setattr(libraries, "DRIVER", "libcuda_that_is_not_there.so.1")
    assert libraries.find_driver() is None
    with pytest.raises(DeviceError) as error:
        open_device()
    assert "there is no NVIDIA driver: libcuda.so.1 was not found" in error.value.what
    assert "compute capability 8.0" in error.value.what
    assert 'pip install "cavs[cuda' in error.value.hint
    broken = tmp_path / "libcuda.so.1"
    broken.write_bytes(b"no library")
    with pytest.raises(DeviceError, match=re.escape(f"driver {broken} cannot be opened")):
        open_device("cuda", str(broken))
    assert describe("cuda", str(broken)).startswith("none: the NVIDIA driver ")


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"version": 11080}, r"supports CUDA 11.8, but cavs needs one for CUDA 12.0 or newer"),
        ({"devices": 0}, r"device is 'cuda', but the NVIDIA driver shows no GPU"),
        ({"capability": 75}, r"compute capability 7.5, but cavs needs 8.0 or newer"),
        ({"init": 999}, r"cuInit of the NVIDIA driver .* failed: CUDA_ERROR_UNKNOWN"),
        ({"init": 803}, r"cuInit of the NVIDIA driver .* failed: error 803"),
        ({"get": 999}, r"cuDeviceGet of .* failed: CUDA_ERROR_UNKNOWN"),
        ({"fails": 999}, r"cuDriverGetVersion of .* failed: CUDA_ERROR_UNKNOWN"),
    ],
)
def test_missing_requirements_of_the_driver_are_reported_first(
    driver_library, facts, bare, monkeypatch, values, found
):
    monkeypatch.setitem(sys.modules, "cupy", None)
    facts(**values)
    with pytest.raises(DeviceError, match=found) as error:
        open_device("cuda", driver_library)
    assert "cpu" in error.value.hint
    line = describe("cuda", driver_library)
    assert re.match(rf"none: .*{found}", line)
    assert "\n" not in line


def test_a_gpu_that_is_not_shown_is_named(driver_library, facts, monkeypatch):
    facts(devices=2)
    with pytest.raises(
        DeviceError, match=r"'cuda:2', but the NVIDIA driver shows cuda:0 to cuda:1\n"
    ):
        open_device("cuda:2", driver_library)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    facts(devices=0)
    with pytest.raises(DeviceError, match=r"shows no GPU \(CUDA_VISIBLE_DEVICES is ''\)"):
        open_device("cuda", driver_library)


def test_nvrtc_is_reported_before_cupy(driver_library, facts, bare, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    facts(version=13000)
    with pytest.raises(DeviceError, match=r"libnvrtc.so was not found, but device='cuda'") as error:
        open_device("cuda", driver_library)
    assert error.value.hint == libraries.install_line(13)


@needs_nvrtc
def test_cupy_is_reported_last(driver_library, facts, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    facts(version=99000)
    with pytest.raises(DeviceError, match="CuPy cannot be imported") as error:
        open_device("cuda", driver_library)
    assert error.value.hint == libraries.install_line(99)


@needs_nvrtc
def test_a_device_is_described_in_one_line(driver_library, facts, cupy):
    facts(version=99050)
    version = "{}.{}".format(*Nvrtc(NVRTC.path).version())
    said = f"Stand-in 9000, sm_90, 1.5 GiB, driver of CUDA 99.5, NVRTC {version}, "
    assert re.fullmatch(
        re.escape(said) + r"cuBLASLt \S+libcublasLt.so\S*", describe("cuda", driver_library)
    )


@needs_nvrtc
def test_a_missing_cublas_is_a_warning_once(driver_library, facts, cupy, monkeypatch):
    facts(version=99050)
    found = device_module.find
    monkeypatch.setattr(
        device_module, "find", lambda name, newest: name != "cublasLt" and found(name, newest)
    )
    device_module._warn_of_products.cache_clear()
    line = libraries.install_line(99)
    assert describe("cuda", driver_library).endswith(
        f", no cuBLASLt: kernels of cavs compute all products ({line})"
    )
    with pytest.warns(DeviceWarning, match="cuBLASLt was not found") as warned:
        assert open_device("cuda", driver_library).cublas_lt is None
    assert [(str(w.message.hint), w.filename) for w in warned] == [(line, __file__)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_device("cuda", driver_library)
    device_module._warn_of_products.cache_clear()


@needs_compiler
def test_a_driver_without_an_entry_point_is_named(tmp_path):
    old = build_driver(tmp_path, "-DOLD")
    driver = Driver(old)
    assert driver.count() == 1
    with pytest.raises(DeviceError, match=re.escape(f"{old} has no cuDeviceGetName")):
        driver.name(0)


def test_the_engine_uses_the_memory_of_the_device_or_of_the_driver(monkeypatch):
    calls = []
    monkeypatch.setattr(_cuda, "Device", lambda *arguments: calls.append(arguments) or len(calls))
    memory = types.SimpleNamespace(allocate=len, release=repr)
    device = Device("driver", 1, "sm_80", None, memory)
    assert device.native == device.native == 1
    assert Device("driver", 0, "sm_80", None, None).native == 2
    line = libraries.install_line()  # this driver does not report its version
    switches = (True, device.few_rows, device.blas_rows, False, device.narrow_rows)
    assert calls == [
        ("driver", 1, len, repr, *switches, line),
        ("driver", 0, None, None, *switches, line),
    ]


def test_the_cpu_works_when_a_gpu_cannot_be_opened(driver_library, facts):
    class Model(cavs.Model):
        def __init__(self):
            self.cell = cavs.nn.ChildSumTreeLSTM(2, 3)

        def loss(self, batch):
            return ops.mean_squared_error(self.cell(batch.graph, x=batch["x"]), 1.0)

    facts(devices=0)
    with pytest.raises(DeviceError):
        open_device("cuda", driver_library)
    x = [[0.5, 1.0], [1.0, 0.25], [0.0, 0.0]]
    loss, gradients = cavs.Session(Model()).gradients(
        cavs.batch([cavs.Graph([[], [], [0, 1]], {"x": x})])
    )
    assert 0 < loss < 10
    assert all(np.isfinite(g).all() for g in gradients.values())
