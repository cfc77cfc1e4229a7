"""The search for libraries, and NVRTC as a compiler."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tomllib
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from cavs.cuda import libraries
from cavs.cuda.nvrtc import Nvrtc, resources
from cavs.errors import DeviceError
from tests.cuda.driver_stand_ins import strip

ROOT = Path(__file__).resolve().parents[3]
NVRTC = libraries.find("nvrtc")
SM_90 = "--gpu-architecture=sm_90"
KERNEL = '#include "one.cuh"\nextern "C" __global__ void f(REAL* x) { x[0] = one(); }\n'
HEADERS = {"one.cuh": "__device__ REAL one() { return 1; }\n"}


# ---- libraries -----------------------------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch, tmp_path):
    strip(monkeypatch, tmp_path / "prefix")
    return tmp_path


def put(folder: Path, *names: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"")
    return str(folder)


def packages(monkeypatch: Any, **folders: Path) -> None:
    found = {name: [str(folder)] for name, folder in folders.items()}
    monkeypatch.setattr(libraries, "_package_folders", lambda name: found.get(name, []))


def test_nothing_is_found_on_a_bare_machine(bare):
    assert [libraries.find(name) for name in ("nvrtc", "cublasLt", "cudnn", "nccl")] == [None] * 4


def test_a_library_is_found_in_its_wheel_by_its_exact_name(bare, monkeypatch):
    others = ("libnvrtc-builtins.so.12.9", "libnvrtc.alt.so.12", "libnvrtc.so.12.old")
    put(bare / "nvidia/cuda_nvrtc/lib", *others, "libnvrtc.so.12")
    put(bare / "nvidia/cudnn/lib", "libcudnn.so.9", "libcudnn_ops.so.9")
    packages(monkeypatch, nvidia=bare / "nvidia")
    assert libraries.find("nvrtc") == libraries.Library(
        str(bare / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"), "NVIDIA's wheels", 12
    )
    assert libraries.find("cudnn").path.endswith("libcudnn.so.9")
    assert libraries.find("cublasLt") is None


def test_the_newest_that_the_driver_runs_is_taken(bare, monkeypatch):
    put(bare / "nvidia/cuda_nvrtc/lib", "libnvrtc.so.12")
    put(bare / "nvidia/cu13/lib", "libnvrtc.so.13")
    put(bare / "nvidia/cu14/lib", "libnvrtc.so.14")
    packages(monkeypatch, nvidia=bare / "nvidia")
    # The folder of a CUDA major comes before older layouts.
    assert [libraries.find("nvrtc", newest).major for newest in (None, 14, 13, 12)] == [
        14,
        14,
        13,
        12,
    ]
    assert libraries.find("nvrtc", 11) is None


def test_search_order(bare, monkeypatch):
    put(bare / "torch/lib", "libnvrtc-1234abcd.so.12", "libnvrtc-builtins-1234abcd.so.12.1")
    packages(monkeypatch, torch=bare / "torch")
    assert libraries.find("nvrtc").path == str(bare / "torch/lib/libnvrtc-1234abcd.so.12")
    monkeypatch.setattr("ctypes.util.find_library", lambda name: f"lib{name}.so.12")
    assert libraries.find("nvrtc") == libraries.Library("libnvrtc.so.12", "the loader's path", 12)
    for variable, folder in (("CUDA_HOME", "home"), ("CUDA_PATH", "path")):
        put(bare / folder / "lib64", "libnvrtc.so", "libnvrtc.so.12")
        monkeypatch.setenv(variable, str(bare / folder))
        assert libraries.find("nvrtc").path == str(bare / folder / "lib64/libnvrtc.so.12")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{bare}/absent:{put(bare / 'ld', 'libnvrtc.so.12')}")
    assert libraries.find("nvrtc").path == str(bare / "ld/libnvrtc.so.12")
    put(bare / "nvidia/cuda_nvrtc/lib", "libnvrtc.so.12")
    packages(monkeypatch, torch=bare / "torch", nvidia=bare / "nvidia")
    assert libraries.find("nvrtc").found_by == "NVIDIA's wheels"
    pathfinder = types.ModuleType("cuda.pathfinder")
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)

    def load(name):
        return types.SimpleNamespace(abs_path=f"/of/pathfinder/lib{name}.so.13")

    pathfinder.load_nvidia_dynamic_lib = load
    assert libraries.find("nvrtc") == libraries.Library(
        "/of/pathfinder/libnvrtc.so.13", "cuda.pathfinder", 13
    )
    assert libraries.find("nvrtc", 12).found_by == "NVIDIA's wheels"  # too new for the driver

    def fails(name):
        raise RuntimeError("Failure finding " + name)

    pathfinder.load_nvidia_dynamic_lib = fails
    assert libraries.find("nvrtc").found_by == "NVIDIA's wheels"


def test_a_search_without_a_path_goes_on(bare, monkeypatch):
    put(bare / "nvidia/cuda_nvrtc/lib", "libnvrtc.so.12")
    packages(monkeypatch, nvidia=bare / "nvidia")
    pathfinder = types.ModuleType("cuda.pathfinder")
    nothing = types.SimpleNamespace(abs_path=None)
    pathfinder.load_nvidia_dynamic_lib = lambda name: nothing
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    assert libraries.find("nvrtc").found_by == "NVIDIA's wheels"


def test_cudnn_is_found_with_a_broken_cublas_or_none(bare, monkeypatch):
    """A library that it lacks is reported when it is opened."""
    put(bare / "nvidia/cudnn/lib", "libcudnn.so.9")
    packages(monkeypatch, nvidia=bare / "nvidia")
    found = libraries.find_cudnn()
    assert found.path == str(bare / "nvidia/cudnn/lib/libcudnn.so.9")
    put(bare / "nvidia/cublas/lib", "libcublas.so.12")  # an empty file
    assert libraries.find_cudnn(12) == found


def test_a_package_is_found_without_being_imported(monkeypatch, tmp_path):
    put(tmp_path / "spacename" / "cuda_x" / "lib", "libx.so.1")
    monkeypatch.syspath_prepend(tmp_path)
    assert libraries._package_folders("spacename") == [str(tmp_path / "spacename")]
    assert "spacename" not in sys.modules
    assert libraries._package_folders("no_such_package") == []


def test_a_module_that_stands_for_a_package_has_no_folder(monkeypatch):
    monkeypatch.setitem(sys.modules, "stand_in", types.ModuleType("stand_in"))
    assert libraries._package_folders("stand_in") == []  # its __spec__ is None
    assert libraries._package_folders("stand_in.part") == []


def test_the_driver_is_found_by_its_name(monkeypatch, tmp_path):
    assert libraries.find_driver() in (None, libraries.DRIVER)
    monkeypatch.setattr(libraries, "DRIVER", ctypes.util.find_library("c"))
    assert libraries.find_driver() == libraries.DRIVER
    monkeypatch.setattr(libraries, "DRIVER", str(tmp_path / "libcuda.so.1"))
    assert libraries.find_driver() is None


@pytest.mark.parametrize("names", ["no package", None, ["docs", "test"]])
def test_without_known_extras_no_major_is_proposed(monkeypatch, names):
    """As from a folder of sources, which is no installed package."""

    def described(package):
        if names == "no package":
            raise metadata.PackageNotFoundError(package)
        return types.SimpleNamespace(get_all=lambda field: names)

    monkeypatch.setattr(metadata, "metadata", described)
    libraries.extras.cache_clear()
    try:
        assert libraries.extras() == {}
        assert libraries.fitting_major() is None
        assert libraries.install_line(12) == "install cavs by pip to make its extras known"
    finally:
        libraries.extras.cache_clear()


@pytest.mark.parametrize("installed", [True, False])
def test_an_installed_cupy_decides_the_major(monkeypatch, installed):
    def version(distribution):
        if not installed or distribution != "cupy-cuda13x":
            raise metadata.PackageNotFoundError(distribution)
        return "13.6"

    monkeypatch.setattr(libraries, "extras", lambda: {12: "cuda12", 13: "cuda13"})
    monkeypatch.setattr(metadata, "version", version)
    assert libraries.fitting_major() == (13 if installed else 12)


def test_a_missing_library_is_reported_with_the_search_path(bare, monkeypatch):
    with pytest.raises(DeviceError) as error:
        libraries.require("nvrtc", "this test")
    assert "libnvrtc.so was not found, but this test needs it\n  searched: " in error.value.what
    assert error.value.hint == libraries.install_line()
    put(bare / "nvidia/cu13/lib", "libnvrtc.so.13")
    packages(monkeypatch, nvidia=bare / "nvidia")
    with pytest.raises(DeviceError, match=r"libnvrtc.so.13 is too new for a driver of CUDA 12\n"):
        libraries.require("nvrtc", "this test", 12)
    assert libraries.require("nvrtc", "this test", 13).major == 13


@pytest.mark.parametrize(
    ("newest", "installed", "line"),
    [
        (None, [], 'pip install "cavs[cuda12]"'),  # the oldest runs on every driver
        (12, [], 'pip install "cavs[cuda12]"'),
        (13, [], 'pip install "cavs[cuda13]"'),
        (14, [], 'pip install "cavs[cuda13]"'),
        (11, [], 'pip install "cavs[cuda12]"'),
        (13, [12], 'pip install "cavs[cuda12]"'),  # the installed CuPy takes precedence
        (None, [13], 'pip uninstall cupy-cuda13x; pip install "cavs[cuda12]"'),
        (12, [13], 'pip uninstall cupy-cuda13x; pip install "cavs[cuda12]"'),
        (12, [12, 13], 'pip uninstall cupy-cuda13x; pip install "cavs[cuda12]"'),
    ],
)
def test_the_install_command_fits_driver_and_environment(monkeypatch, newest, installed, line):
    monkeypatch.setattr(libraries, "extras", lambda: {12: "cuda12", 13: "cuda13"})
    have = {f"cupy-cuda{major}x" for major in installed}
    monkeypatch.setattr(libraries, "_is_installed", have.__contains__)
    if (newest, installed) == (None, [13]):  # no known driver is too old
        line = 'pip install "cavs[cuda13]"'
    assert libraries.install_line(newest) == line


def test_extras_of_all_majors_bring_the_same_libraries():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = {extra: set() for extra in extras if extra.startswith("cuda")}
    for extra, found in names.items():
        major = extra.removeprefix("cuda")
        for requirement in extras[extra]:
            name = re.match(r"[\w-]+", requirement)[0]
            found.add(re.sub(rf"(-cu{major}|-cuda{major}x)$", "", name))
    assert len(names) >= 2
    assert len({frozenset(found) for found in names.values()}) == 1, names
    assert set(libraries.extras().values()) <= set(names)


def test_no_code_names_a_cuda_major():
    code = [
        path
        for folder in ("cavs", "cuda", "csrc")
        for suffix in ("py", "pyi", "cc", "h", "cu", "cuh")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
    ]
    assert {"device_array.py", "cublaslt.cc", "driver.h", "rows.cu"} <= {path.name for path in code}
    for path in code:
        text = path.read_text(encoding="utf-8")
        named = re.findall(r"(?i)\bcu(?:da)?[- ]?1\d\w*|-cu1\d|cuda1\d|\.so\.1\d", text)
        assert named == [], path


# ---- NVRTC ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nvrtc():
    if NVRTC is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    return Nvrtc(NVRTC.path)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("real", ["float", "double"])
def test_nvrtc_compiles_cubins(nvrtc, architecture, real):
    options = [f"--gpu-architecture={architecture}", f"-DREAL={real}"]
    cubin = nvrtc.compile("f.cu", KERNEL, HEADERS, options)
    assert cubin[:4] == b"\x7fELF"
    assert b"\0f\0" in cubin
    assert cubin == nvrtc.compile("f.cu", KERNEL, HEADERS, options)


def test_nvrtc_reports_its_version(nvrtc):
    major, minor = nvrtc.version()
    assert major == NVRTC.major
    assert minor >= 0
    assert {80, 90} <= set(nvrtc.architectures())


def test_ptxas_reports_registers_and_spills(nvrtc):
    many = "\n".join(f"float a{i} = x[{i} + i];" for i in range(64))
    use = " + ".join(f"a{i} * a{(i * 7) % 64}" for i in range(64))
    source = f"""
    __device__ __noinline__ float g(const float* x, int i) {{
      {many} __syncthreads(); return {use};
    }}
    extern "C" __global__ void f(float* x) {{ x[0] = g(x, blockIdx.x); }}
    extern "C" __global__ void plain(float* x) {{ x[0] = 1; }}"""
    options = [SM_90, "--ptxas-options=-v"]
    _, log = nvrtc.compile_with_log("f.cu", source, {}, [*options, "--maxrregcount=24"])
    few = {r.name: r for r in resources(log)}
    assert {"f", "plain"} < few.keys()
    assert few["plain"].spill_loads == few["plain"].spill_stores == few["plain"].stack == 0
    assert sum(r.spill_stores for r in few.values()) > 0
    assert sum(r.spill_loads for r in few.values()) > 0
    assert 0 < few["plain"].registers <= few["f"].registers <= 24
    _, log = nvrtc.compile_with_log("f.cu", source, {}, options)
    assert sum(r.spill_stores for r in resources(log)) == 0
    assert max(r.registers for r in resources(log)) > 24
    assert resources("") == []


def test_an_error_shows_its_source_lines(nvrtc):
    source = "// 1\n// 2\n// 3\n// 4\n" + KERNEL.replace("one()", "unknown")
    with pytest.raises(DeviceError) as error:
        nvrtc.compile("f.cu", source, HEADERS, [SM_90, "-DREAL=float"])
    text = error.value.what
    assert text.startswith("NVRTC cannot compile f.cu (--gpu-architecture=sm_90 -DREAL=float): ")
    assert 'f.cu(6): error: identifier "unknown" is undefined' in text
    assert "f.cu:\n     4 | // 4\n     5 | #include" in text
    assert '\n>    6 | extern "C" __global__ void f(REAL* x) { x[0] = unknown; }' in text
    assert "report" in error.value.hint


def test_nvrtc_outside_of_the_loaders_path(nvrtc, tmp_path):
    """In a folder that the loader does not search, through a symbolic link."""
    link = tmp_path / "elsewhere"
    link.symlink_to(Path(nvrtc.path).resolve().parent)
    moved = str(link / Path(nvrtc.path).name)
    script = (
        "import sys; from cavs.cuda.nvrtc import Nvrtc; "
        "print(Nvrtc(sys.argv[1]).compile('f.cu', '__device__ int f;', {}, sys.argv[2:])[:4])"
    )
    command = [sys.executable, "-c", script, moved, SM_90]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr(b"\x7fELF")


def test_an_error_in_a_header_shows_the_header(nvrtc):
    with pytest.raises(DeviceError, match=r"(?s)one.cuh\(1\): error.*\n>    1 \| int one\(\{"):
        nvrtc.compile("f.cu", KERNEL, {"one.cuh": "int one({"}, [SM_90, "-DREAL=float"])


@pytest.mark.parametrize(
    ("source", "options", "found"),
    [
        ("int f;", ["--no-such-option"], "unrecognized option --no-such-option"),
        ("int f;", ["--gpu-architecture=sm_1"], "invalid value for --gpu-architecture"),
        ('#include "absent.cuh"', [SM_90], "absent.cuh"),
        ("__device__ int f;", ["--gpu-architecture=compute_90"], "returned no cubin"),
        ("__device__ int f;", [], "returned no cubin"),
    ],
)
def test_refusals_of_nvrtc_are_device_errors(nvrtc, source, options, found):
    with pytest.raises(DeviceError, match=found):
        nvrtc.compile("f.cu", source, {}, options)


def test_a_file_that_is_not_nvrtc_is_refused(tmp_path):
    broken = tmp_path / "libnvrtc.so.12"
    broken.write_bytes(b"no library")
    for path in (str(broken), str(tmp_path / "absent.so"), ctypes.util.find_library("c")):
        with pytest.raises(DeviceError, match="is no usable NVRTC") as error:
            Nvrtc(path)
        assert path in error.value.what
