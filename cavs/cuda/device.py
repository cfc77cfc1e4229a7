"""Opening a GPU with everything that the engine needs, or a `DeviceError` with what is missing."""

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
from cavs.errors import ConfigError, DeviceError, DeviceWarning

LOOK_UP = "look up"
REPLAYS = ("auto", "always", "never")
PERSISTENT = ("always", "never")
RENAMED = {"beside": "second_stream"}  # former names of options of a Device
OLDEST = 80  # compute capability times ten: the first with asynchronous copies, bfloat16 and tf32


class Compiler(Protocol):
    """A compiler of device code: NVRTC, or the twin of the tests."""

    def compile(self, name: str, source: str, headers: dict[str, str], options: list[str]) -> bytes:
        """Return an image for cuModuleLoadData."""
        ...


@dataclass(frozen=True, eq=False)
class Device:
    """A GPU, its libraries, and switches of the engine; `open_device` returns one with defaults.

    driver_library: the driver's name for dlopen. architecture: the compiler's name, such as
    "sm_90". memory: the allocator; None is the driver's. cublas_lt, cudnn: paths of cuBLASLt and
    cuDNN, or None; LOOK_UP searches for cuDNN on first use, since most programs never need it.

    second_stream: run independent sums concurrently with a loop. few_rows: products of up to so
    many rows use kernels for few rows (0: none do). blas_rows: products of as many rows and more
    use cuBLASLt. replay: which repeated commands run as a CUDA graph, one of REPLAYS: those for
    which it measures faster, all, or none. persistent: "always" runs consecutive tasks of a loop
    with up to narrow_rows rows (and edges, if a kernel writes one row per edge) in one kernel where
    that is possible; one of PERSISTENT. guards: for tests; surround values with guard bytes, and
    check after each run that they did not change (DeviceError).
    """

    driver_library: str
    ordinal: int
    architecture: str
    compiler: Compiler
    memory: Memory | None
    cublas_lt: str | None = None
    cudnn: str | None = None
    second_stream: bool = True
    few_rows: int = 127
    blas_rows: int = 128
    replay: str = "auto"
    guards: bool = False
    persistent: str = "never"
    narrow_rows: int = 128

    def __new__(cls, *positional: object, **options: object) -> Device:
        """Refuse an option under a former name."""
        for old in RENAMED.keys() & options:
            raise ConfigError(f"{old}: the option was renamed", hint=f"write {RENAMED[old]}")
        return super().__new__(cls)

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
        """Path of cuDNN, or None."""
        if self.cudnn != LOOK_UP:
            return self.cudnn
        library = find_cudnn(newest_cuda(self.driver_library))
        return library.path if library else None

    @cached_property
    def native(self) -> _cuda.Device:
        """The engine's device, one per Device object."""
        memory = self.memory
        allocate, release = (memory.allocate, memory.release) if memory else (None, None)
        switches = self.second_stream, self.few_rows, self.blas_rows, self.guards, self.narrow_rows
        line = install_line(newest_cuda(self.driver_library))
        return _cuda.Device(self.driver_library, self.ordinal, allocate, release, *switches, line)

    def uuid(self) -> str:
        """Return the UUID of the GPU; DeviceError if the driver does not provide it."""
        return Driver(self.driver_library).uuid(self.ordinal)

    def compile(
        self,
        name: str,
        source: str,
        headers: Mapping[str, str],
        real: str,
        half: bool = False,
    ) -> bytes:
        """Compile `source` for this architecture; DeviceError if it does not compile.

        real: the type REAL, "float" or "double". half: values may be stored in bfloat16.
        """
        options = compile_options(self.architecture, real, half)
        return self.compiler.compile(name, source, dict(headers), options)


def compile_options(architecture: str, real: str, half: bool = False) -> list[str]:
    """Return the compiler options of every kernel of the engine."""
    options = [f"--gpu-architecture={architecture}", "--std=c++17", f"-DREAL={real}"]
    if os.environ.get("CAVS_LINE_INFO") == "1":  # for tools that report lines of kernels
        options.append("--generate-line-info")
    return [*options, "-DCAVS_HALF"] if half else options


def open_device(name: str = "cuda", driver_library: str | None = None) -> Device:
    """Open the GPU "cuda" (the first), "cuda:1", ....

    driver_library: the driver, instead of searching for it. DeviceError with what was found, what
    was expected and the cure for the first requirement that is not met: a driver, one that runs the
    CUDA of an extra, the GPU, compute capability 8.0, NVRTC, CuPy. DeviceWarning, once per process,
    if cuBLASLt is missing.
    """
    device, driver, _ = _open(name, driver_library)
    if device.cublas_lt is None:
        _warn_of_products(install_line(driver.version() // 1000))
    return device


@functools.cache
def _warn_of_products(line: str) -> None:
    found = "cuBLASLt was not found: kernels of cavs compute all products, large ones more slowly"
    warnings.warn(DeviceWarning(found, hint=line), stacklevel=3)


def count_devices(driver_library: str | None = None) -> int:
    """Return the number of GPUs that this process sees. DeviceError without a driver."""
    return _driver(driver_library).count()


def describe(name: str = "cuda", driver_library: str | None = None) -> str:
    """Return one line on a GPU: what it is, or why it cannot be used. Never raises."""
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
        blas = f"no cuBLASLt: kernels of cavs compute all products ({line})"
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
            f"the NVIDIA driver {path} supports {_cuda_of(version)}, but cavs needs one for CUDA "
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
    # A cubin runs on its own and on later capabilities of the same major.
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
