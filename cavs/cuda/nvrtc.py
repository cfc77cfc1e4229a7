"""NVRTC, NVIDIA's compiler library, by ctypes: from source text to a cubin. It needs no GPU."""

from __future__ import annotations

import ctypes
import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cavs.cuda.driver import newest_cuda
from cavs.cuda.libraries import find_driver, install_line
from cavs.errors import DeviceError

_COMPILATION = 6  # NVRTC_ERROR_COMPILATION in nvrtc.h
_SHOWN_ERRORS = 5  # errors that are shown with their source lines
_AROUND = 2  # lines shown before and after each


@dataclass(frozen=True)
class Resources:
    """Resources of a kernel, or of a function that was not inlined, reported by ptxas.

    registers: 0 for a function, whose registers are counted in its callers. Other fields are in
    bytes.
    """

    name: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int


class Nvrtc:
    """The compiler in the library at `path`; DeviceError if it cannot be opened."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            # NVRTC opens its builtins by name while compiling; a library that is already open is
            # found.
            pattern = os.path.join(glob.escape(os.path.dirname(path)), "libnvrtc-builtins.so.*")
            for builtins in sorted(glob.glob(pattern)) if os.path.dirname(path) else ():
                ctypes.CDLL(builtins)
            self._library = ctypes.CDLL(path)
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        except (OSError, AttributeError) as error:
            raise DeviceError(f"{path} is no usable NVRTC: {error}", hint=_reinstall()) from error

    def version(self) -> tuple[int, int]:
        """Return the major and minor version, those of its CUDA."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def architectures(self) -> list[int]:
        """Return the compute capabilities that it compiles for, times ten: 80, 86, ..."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", found)
        return list(found)

    def compile(
        self, name: str, source: str, headers: Mapping[str, str], options: Sequence[str]
    ) -> bytes:
        """Compile `source` to a cubin for the architecture in `options`.

        name: of the source in errors. headers: the text of each file that it may include. options:
        those of NVRTC, with ``--gpu-architecture=sm_90`` or the like. DeviceError with the
        compiler's messages and their source lines if it does not compile.
        """
        return self.compile_with_log(name, source, headers, options)[0]

    def compile_with_log(
        self, name: str, source: str, headers: Mapping[str, str], options: Sequence[str]
    ) -> tuple[bytes, str]:
        """Return the result of `compile`, and the compiler's log; see `resources`."""
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            source.encode(),
            name.encode(),
            len(headers),
            _texts(headers.values()),
            _texts(headers),
        )
        try:
            status = self._library.nvrtcCompileProgram(program, len(options), _texts(options))
            log = self._read("nvrtcGetProgramLog", program).rstrip(b"\0").decode(errors="replace")
            if status:
                found = f"NVRTC cannot compile {name} ({' '.join(options)}): {self._name(status)}"
                shown = excerpts(log, {**headers, name: source})
                ours = "a kernel of cavs that does not compile is a bug of cavs; please report it"
                raise DeviceError(
                    "\n".join([found, log.strip(), *shown]).rstrip(),
                    hint=ours if status == _COMPILATION else _reinstall(),
                )
            cubin = self._read("nvrtcGetCUBIN", program)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))
        if not cubin:
            raise DeviceError(
                f"NVRTC returned no cubin for {name} ({' '.join(options)})",
                hint="name a real architecture: --gpu-architecture=sm_90, not compute_90",
            )
        return cubin, log

    def _name(self, status: int) -> str:
        return str((self._library.nvrtcGetErrorString(status) or b"?").decode())

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            status = getattr(self._library, function)(*arguments)
        except AttributeError as error:
            raise DeviceError(
                f"{self.path} has no {function}, but cavs needs it", hint=_reinstall()
            ) from error
        if status:
            found = f"{function} of {self.path} failed: {self._name(status)}"
            raise DeviceError(found, hint=_reinstall())

    def _read(self, function: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{function}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(function, program, buffer)
        return buffer.raw


def _reinstall() -> str:
    return f"{install_line(newest_cuda(find_driver()))} --force-reinstall"


def _texts(values: Any) -> Any:
    encoded = [value.encode() for value in values]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def excerpts(log: str, files: Mapping[str, str]) -> list[str]:
    """Return the numbered source lines of each error in `log`, one block per error."""
    blocks: list[str] = []
    positions = dict.fromkeys(re.findall(r"^(.+?)\((\d+)\): (?:\w+ )?error", log, re.MULTILINE))
    for file, number in list(positions)[:_SHOWN_ERRORS]:
        lines, at = files.get(file, "").splitlines(), int(number)
        if not 1 <= at <= len(lines):
            continue
        span = range(max(1, at - _AROUND), min(len(lines), at + _AROUND) + 1)
        shown = [f"{'>' if n == at else ' '}{n:5} | {lines[n - 1]}" for n in span]
        blocks.append("\n".join([f"{file}:", *shown]))
    return blocks


def resources(log: str) -> list[Resources]:
    """Return what ptxas reports of each function, in a log made with ``--ptxas-options=-v``."""
    used = re.compile(
        r"Function properties for (\S+)\n[^\d\n]*"
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
        r"(?:\nptxas info +: Used (\d+) registers)?"
    )
    return [
        Resources(name, int(registers or 0), int(stack), int(stores), int(loads))
        for name, stack, stores, loads, registers in used.findall(log)
    ]
