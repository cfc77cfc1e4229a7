"""Search for CUDA libraries of any major: the driver, NVRTC, cuBLASLt, cuDNN and NCCL.

Functions return paths; the caller opens the library. The search order is NVIDIA's
``cuda.pathfinder``, the folders of NVIDIA's wheels, the loader's path, the folder of torch. The
extras of the package say which majors exist, so that no code names one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cavs.errors import DeviceError

DRIVER = "libcuda.so.1"  # the ABI of the driver, the same for every CUDA


@dataclass(frozen=True)
class Library:
    """A library that was found: its path, and the search that found it.

    major: the first number of its file name, which is the CUDA major for NVRTC and cuBLASLt; None
    if it has none.
    """

    path: str
    found_by: str
    major: int | None


def find_driver() -> str | None:
    """Return the driver's name for dlopen, or None if no driver is installed."""
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return None
    return DRIVER


def find(name: str, newest: int | None = None) -> Library | None:
    """Return the first library named "nvrtc", "cublas", "cublasLt", "cudnn" or "nccl", or None.

    newest: libraries of a higher major are skipped, because the driver does not run them.
    Pathfinder loads what it finds.
    """
    for library in _candidates(name):
        if newest is None or library.major is None or library.major <= newest:
            return library
    return None


def find_cudnn(newest: int | None = None) -> Library | None:
    """Return cuDNN or None, after loading cuBLAS, which it finds only if it is already loaded.

    newest: the CUDA major of the driver, for cuBLAS; cuDNN has majors of its own and checks the
    driver itself.
    """
    library = find("cudnn")
    for name in ("cublasLt", "cublas") if library is not None else ():
        needed = find(name, newest)
        if needed is not None:
            with contextlib.suppress(OSError):  # cuDNN reports it when it is opened
                ctypes.CDLL(needed.path)
    return library


def require(name: str, what_for: str, newest: int | None = None) -> Library:
    """`find`, or DeviceError with the search path and the install command if there is none.

    newest: the CUDA major of the driver, if known.
    """
    library = find(name, newest)
    if library is None:
        other = find(name)
        found = f"; {other.path} is too new for a driver of CUDA {newest}" if other else ""
        raise DeviceError(
            f"lib{name}.so was not found, but {what_for} needs it{found}\n"
            "  searched: cuda.pathfinder, NVIDIA's wheels, LD_LIBRARY_PATH, CUDA_PATH, CUDA_HOME, "
            "the system's libraries, torch",
            hint=install_line(newest),
        )
    return library


def fitting_major(newest: int | None = None) -> int | None:
    """Return the CUDA major of the extra that fits this environment; None if no extra is known.

    newest: see `install_line`.
    """
    majors = sorted(extras())
    fitting = [major for major in majors if newest is None or major <= newest] or majors[:1]
    installed = _installed(majors)
    keep = [major for major in installed if major in fitting]
    if not majors:
        return None
    # The oldest runs on most drivers; for a known driver, the newest that it runs is best.
    return keep[-1] if keep else fitting[0] if newest is None else fitting[-1]


def install_line(newest: int | None = None) -> str:
    """Return the command that installs the CUDA libraries, everything but the driver.

    newest: the CUDA major of the driver, if known. An installed CuPy takes precedence, because two
    of them in one environment break each other.
    """
    choice = fitting_major(newest)
    if choice is None:
        return "install cavs by pip to make its extras known"
    wrong = [f"cupy-cuda{major}x" for major in _installed(extras()) if major != choice]
    remove = f"pip uninstall {' '.join(wrong)}; " if wrong else ""
    return f'{remove}pip install "cavs[{extras()[choice]}]"'


@functools.cache
def extras() -> dict[int, str]:
    """Return the extras of the package that bring CUDA, by CUDA major."""
    from importlib import metadata  # slow to import and rarely needed

    try:
        names = metadata.metadata("cavs").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return {}
    found = (re.fullmatch(r"cuda(\d+)", name) for name in names)
    return {int(match[1]): match[0] for match in found if match}


def _installed(majors: Iterable[int]) -> list[int]:
    """Return the CUDA majors for which CuPy is installed."""
    return [major for major in sorted(majors) if _is_installed(f"cupy-cuda{major}x")]


def _is_installed(distribution: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _candidates(name: str) -> Iterator[Library]:
    yield from _of_pathfinder(name)
    for folder in _wheel_folders():
        yield from _in_folder(folder, name, "NVIDIA's wheels")
    for folder in _loader_folders():
        yield from _in_folder(folder, name, "the loader's path")
    from ctypes.util import find_library  # slow to import

    soname = find_library(name)
    if soname is not None:
        yield Library(soname, "the loader's path", _major(soname))
    for folder in _package_folders("torch"):
        yield from _in_folder(os.path.join(folder, "lib"), name, "torch")


def _of_pathfinder(name: str) -> Iterator[Library]:
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
    except ImportError:
        return
    try:
        path = pathfinder.load_nvidia_dynamic_lib(name).abs_path
    except (RuntimeError, OSError):  # its "not found" is a RuntimeError
        return
    if path:
        yield Library(path, "cuda.pathfinder", _major(path))


def _in_folder(folder: str, name: str, found_by: str) -> Iterator[Library]:
    # torch appends a hash to the name; libnvrtc-builtins and libnvrtc.alt are other libraries.
    pattern = re.compile(rf"lib{re.escape(name)}(-[0-9a-f]{{8}})?\.so(\.\d+)*")
    try:
        files = [file for file in os.listdir(folder) if pattern.fullmatch(file)]
    except OSError:  # no such folder
        return
    for file in sorted(files, key=lambda file: (_major(file) or 0, file), reverse=True):
        yield Library(os.path.join(folder, file), found_by, _major(file))


def _major(path: str) -> int | None:
    match = re.search(r"\.so\.(\d+)", os.path.basename(path))
    return int(match[1]) if match else None


def _package_folders(package: str) -> list[str]:
    """Return the folders of a package that may be missing, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # ValueError: a stand-in for the module
        return []
    return list(spec.submodule_search_locations or ()) if spec else []


def _wheel_folders() -> list[str]:
    """Return nvidia/<library>/lib and nvidia/cu<major>/lib, the newest major first."""
    found = []
    for root in _package_folders("nvidia"):
        found += glob.glob(os.path.join(glob.escape(root), "*", "lib"))

    def order(folder: str) -> int:
        match = re.fullmatch(r"cu(\d+)", os.path.basename(os.path.dirname(folder)))
        return -int(match[1]) if match else 0

    return sorted(found, key=order)


def _loader_folders() -> list[str]:
    folders = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if f]
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        root = os.environ.get(variable)
        folders += [os.path.join(root, "lib64"), os.path.join(root, "lib")] if root else []
    return [*folders, os.path.join(sys.prefix, "lib")]  # the last one is conda's
