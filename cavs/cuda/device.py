"""A GPU with all that the engine needs of it, or a `DeviceError` that says what is missing."""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from cavs import _cuda
from cavs.config import require as require_option
from cavs.config import require_count
from cavs.cuda.cache import CachedCompiler, CubinCache
from cavs.cuda.driver import Driver, newest_cuda
from cavs.cuda.libraries import (
    DRIVER,
    extras,
    find,
    find_cudnn,
    find_driver,
    install_line,
    require,
)
from cavs.cuda.memory import CupyMemory, Memory
from cavs.cuda.nvrtc import Nvrtc
from cavs.errors import DeviceError, DeviceWarning

LOOK_UP = "look up"
REPLAYS = ("auto", "always", "never")
PERSISTENT = ("always", "never")
OLDEST = 80  # compute capability times ten: asynchronous copies, bfloat16 and tf32 start there


class Compiler(Protocol):
    """What makes device code of source text: NVRTC, or the twin of the tests."""

    def compile(self, name: str, source: str, headers: dict[str, str], options: list[str]) -> bytes:
        """What cuModuleLoadData loads."""
        ...


@dataclass(frozen=True, eq=False)
class Device:
    """A GPU, and with what it is used. `open_device` looks all this up; a test may pass its own.

    driver_library: for dlopen. architecture: as compilers name it, "sm_90". memory: None takes
    that of the driver. cublas_lt, cudnn: the paths of cuBLASLt and cuDNN; None if there is none;
    cuDNN may be looked up (LOOK_UP) when it is wanted, for most programs never do. beside: with a
    second stream; off to see what it is worth. few_rows: products of up to so many rows are done
    by kernels of their own (0: none). blas_rows: those of as many and more by cuBLASLt. replay:
    which commands that come again with the same batch run as a CUDA graph, one of REPLAYS: those
    that measure faster so, or all, or none. guards: for tests; values stand apart in memory, and a
    run waits and is a DeviceError if something was written between them. persistent: whether one
    kernel walks tasks that follow each other in a loop and have up to narrow_rows rows (edges too,
    where it makes something for each), one of PERSISTENT: "always" where it can.
    """

    driver_library: str
    ordinal: int
    architecture: str
    compiler: Compiler
    memory: Memory | None
    cublas_lt: str | None = None
    cudnn: str | None = None
    beside: bool = True
    few_rows: int = 127
    blas_rows: int = 128
    replay: str = "auto"
    guards: bool = False
    persistent: str = "never"
    narrow_rows: int = 128

    def __post_init__(self) -> None:
        known = ", ".join(REPLAYS)
        require_option(self.replay in REPLAYS, "replay", self.replay, f"one of {known}")
        known = ", ".join(PERSISTENT)
        require_option(
            self.persistent in PERSISTENT, "persistent", self.persistent, f"one of {known}"
        )
        for name in ("few_rows", "blas_rows", "narrow_rows"):
            require_count(name, getattr(self, name), 0, 2**31 - 1)

    @cached_property
    def cudnn_library(self) -> str | None:
        """The path of cuDNN."""
        if self.cudnn != LOOK_UP:
            return self.cudnn
        library = find_cudnn(newest_cuda(self.driver_library))
        return library.path if library else None

    @cached_property
    def native(self) -> _cuda.Device:
        """The engine's own device, one for all who share this object."""
        memory = self.memory
        allocate, release = (memory.allocate, memory.release) if memory else (None, None)
        switches = self.beside, self.few_rows, self.blas_rows, self.guards, self.narrow_rows
        line = install_line(newest_cuda(self.driver_library))
        return _cuda.Device(self.driver_library, self.ordinal, allocate, release, *switches, line)

    def uuid(self) -> str:
        """What tells this GPU from all others; DeviceError if the driver does not say it."""
        return Driver(self.driver_library).uuid(self.ordinal)

    def compile(
        self,
        name: str,
        source: str,
        headers: Mapping[str, str],
        real: str,
        half: bool = False,
    ) -> bytes:
        """Device code of `source` for this architecture; DeviceError if it does not compile.

        real: what REAL stands for, "float" or "double". half: values may be stored in bfloat16.
        """
        options = compile_options(self.architecture, real, half)
        return self.compiler.compile(name, source, dict(headers), options)


def compile_options(architecture: str, real: str, half: bool = False) -> list[str]:
    """The options that every kernel of the engine is compiled with."""
    options = [f"--gpu-architecture={architecture}", "--std=c++17", f"-DREAL={real}"]
    if os.environ.get("CAVS_LINE_INFO") == "1":  # for tools that name lines of kernels
        options.append("--generate-line-info")
    return [*options, "-DCAVS_HALF"] if half else options


def open_device(name: str = "cuda", driver_library: str | None = None) -> Device:
    """The GPU "cuda" (the first), "cuda:1", ..., ready for use.

    driver_library: the driver, if it is not to be looked up. DeviceError with what was found, what
    is needed and the cure for the first that is missing: a driver, one of an age that the CUDA of
    an extra runs on, the GPU, compute capability 8.0, NVRTC, CuPy. A DeviceWarning, once a process,
    where cuBLASLt is missing.
    """
    device, driver, _ = _open(name, driver_library)
    if device.cublas_lt is None:
        _warn_of_products(install_line(driver.version() // 1000))
    return device


@functools.cache
def _warn_of_products(line: str) -> None:
    found = (
        "cuBLASLt was not found: all products are done by kernels of cavs, the large ones slower"
    )
    warnings.warn(DeviceWarning(found, hint=line), stacklevel=3)


def count_devices(driver_library: str | None = None) -> int:
    """How many GPUs this process sees: "cuda:0" and so on. DeviceError without a driver."""
    return _driver(driver_library).count()


def describe(name: str = "cuda", driver_library: str | None = None) -> str:
    """One line on a GPU: what it is, or why it cannot be used. Raises nothing."""
    try:
        device, driver, compiler = _open(name, driver_library)
        gpu, memory = driver.name(device.ordinal), driver.memory(device.ordinal)
        runs, made_by = _cuda_of(driver.version()), "{}.{}".format(*compiler.version())
    except DeviceError as error:
        cure = f" ({error.hint})" if error.hint else ""
        return f"none: {error.what.splitlines()[0]}{cure}"
    size = f"{memory / 2**30:.1f} GiB"
    blas = f"cuBLASLt {device.cublas_lt}"
    if device.cublas_lt is None:
        line = install_line(driver.version() // 1000)
        blas = f"no cuBLASLt: all products are done by kernels of cavs ({line})"
    return f"{gpu}, {device.architecture}, {size}, driver of {runs}, NVRTC {made_by}, {blas}"


def _open(name: str, driver_library: str | None) -> tuple[Device, Driver, Nvrtc]:
    ordinal = _ordinal(name)
    driver = _driver(driver_library)
    version = driver.version()
    newest = version // 1000
    capability = _capability(name, ordinal, driver)
    compiler = Nvrtc(require("nvrtc", "device='cuda' to compile its kernels", newest).path)
    architecture = _architecture(name, capability, compiler, newest)
    memory = CupyMemory(ordinal, newest)
    blas = find("cublasLt", newest)
    device = Device(
        driver_library=driver.path,
        ordinal=ordinal,
        architecture=architecture,
        compiler=CachedCompiler(compiler, CubinCache()),
        memory=memory,
        cublas_lt=blas.path if blas else None,
        cudnn=LOOK_UP,
    )
    return device, driver, compiler


def _ordinal(name: str) -> int:
    match = re.fullmatch(r"cuda(?::(\d{1,4}))?", name)
    if not match:
        raise DeviceError(
            f"device is {name!r}, but must be 'cpu', 'cuda' (the first GPU), 'cuda:1', ...",
            hint="device='cuda'",
        )
    return int(match[1] or 0)


def _driver(path: str | None) -> Driver:
    path = path or find_driver()
    if path is None:
        raise DeviceError(
            f"there is no NVIDIA driver: {DRIVER} was not found, but device='cuda' needs it and a "
            f"GPU of compute capability {_dotted(OLDEST)} or newer",
            hint=f"install the driver, then {install_line()}; without a GPU: device='cpu'",
        )
    driver = Driver(path)
    oldest = min(extras(), default=0)
    version = driver.version()
    if version < 1000 * oldest:
        raise DeviceError(
            f"the NVIDIA driver {path} is of {_cuda_of(version)}, but cavs needs one of CUDA "
            f"{oldest}.0 or newer",
            hint=f"update the driver, then {install_line()}; without it: device='cpu'",
        )
    return driver


def _capability(name: str, ordinal: int, driver: Driver) -> int:
    count = driver.count()
    if ordinal >= count:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        shown = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
        has = f"cuda:0 to cuda:{count - 1}" if count else "no GPU"
        needs = "" if count else f"; cavs needs one of capability {_dotted(OLDEST)} or newer"
        none = "device='cpu'; nvidia-smi lists GPUs, CUDA_VISIBLE_DEVICES hides them"
        raise DeviceError(
            f"device is {name!r}, but the NVIDIA driver shows {has}{shown}{needs}",
            hint="device='cuda'" if count else none,
        )
    capability = driver.capability(ordinal)
    if capability < OLDEST:
        raise DeviceError(
            f"{name} is a GPU of compute capability {_dotted(capability)}, but cavs needs "
            f"{_dotted(OLDEST)} or newer",
            hint="a GPU of NVIDIA's Ampere generation or a later one; without it: device='cpu'",
        )
    return capability


def _architecture(name: str, capability: int, compiler: Nvrtc, newest: int) -> str:
    # A cubin runs on its own and later capabilities of one major.
    fitting = [
        a for a in compiler.architectures() if a <= capability and a // 10 == capability // 10
    ]
    if not fitting:
        made = ", ".join(_dotted(a) for a in compiler.architectures())
        version = "{}.{}".format(*compiler.version())
        raise DeviceError(
            f"{name} is a GPU of compute capability {_dotted(capability)}, but NVRTC {version} "
            f"compiles for {made}",
            hint=f"a newer NVRTC: {install_line(newest)} --upgrade",
        )
    return f"sm_{max(fitting)}"


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


def _cuda_of(version: int) -> str:
    return f"CUDA {version // 1000}.{version % 1000 // 10}"
