"""NVRTC by ctypes, as far as the tests need it: source text to a cubin and the compiler's log."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

MISSING = "NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12"


def find_library() -> Path | None:
    """The library of the wheel nvidia-cuda-nvrtc-cu12, or None where it is not installed."""
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("lib/libnvrtc.so.*")):
            return path
    return None


class CompileError(Exception):
    pass


def compile_source(
    library: Path, name: str, source: str, headers: dict[str, str], options: list[str]
) -> tuple[bytes, str]:
    """The cubin and the log of ptxas."""
    nvrtc = ctypes.CDLL(str(library))
    program = ctypes.c_void_p()
    count = len(headers)
    texts = (ctypes.c_char_p * count)(*(text.encode() for text in headers.values()))
    names = (ctypes.c_char_p * count)(*(name.encode() for name in headers))
    _check(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), name.encode(), count, texts, names
        )
    )
    try:
        flags = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        failed = nvrtc.nvrtcCompileProgram(program, len(options), flags)
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        text = log.rstrip(b"\0").decode()
        if failed:
            raise CompileError(f"{name} {' '.join(options)}:\n{text}")
        return _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program), text
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _read(size_of: ctypes._NamedFuncPointer, read: ctypes._NamedFuncPointer, program: object) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(read(program, buffer))
    return buffer.raw


def _check(status: int) -> None:
    if status:
        raise CompileError(f"NVRTC error {status}")
