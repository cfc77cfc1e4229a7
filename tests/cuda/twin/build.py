"""Shared libraries made by g++, kept by what they are made from."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("CAVS_TWIN_CACHE", HERE.parents[2] / "build" / "twin"))
COMPILER = os.environ.get("CXX", "g++")
LIBRARY = ".twin.so"  # how the driver knows the path of a module
DRIVER_FLAGS = ["-std=c++20", "-O2", "-ftree-vectorize", "-march=native", "-g1", "-fPIC"]
DRIVER_FLAGS += ["-fvisibility=hidden", "-U_FORTIFY_SOURCE", "-Wall", "-Wextra", "-Werror"]


class CompileError(Exception):
    """What the compiler said of a source."""


def missing() -> str:
    """Why no twin can be built here; empty if it can."""
    if shutil.which(COMPILER) is None:
        return f"the host twin needs a C++ compiler; {COMPILER} was not found"
    if os.uname().machine not in ("x86_64", "aarch64"):
        return f"the host twin runs on x86-64 and aarch64, not on {os.uname().machine}"
    return ""


@functools.cache
def compiler_identity() -> bytes:
    """The compiler's version and the instruction set that -march=native stands for."""
    return subprocess.run(
        [COMPILER, "-march=native", "-dM", "-E", "-x", "c++", os.devnull],
        check=True,
        capture_output=True,
    ).stdout


def run(command: list[str], directory: Path) -> None:
    """Runs a compiler; CompileError with its messages if it has any."""
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(done.stderr)


def kept(key: Iterable[str | bytes], suffix: str, make: Callable[[Path, Path], None]) -> Path:
    """The file for a key; ``make(directory, file)`` makes it where it is not kept yet.

    Several processes may do so at once: each works in a directory of its own, and a file appears
    whole or not at all.
    """
    digest = hashlib.sha256(compiler_identity())
    for part in key:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    file = CACHE / f"{digest.hexdigest()[:32]}{suffix}"
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as directory:
            made = Path(directory) / f"made{suffix}"
            make(Path(directory), made)
            os.replace(made, file)
    return file


def driver(without: tuple[str, ...] = ()) -> Path:
    """The library that stands for libcuda and cuBLASLt, less the entry points named."""
    headers = b"".join(path.read_bytes() for path in sorted(HERE.glob("*.h")))

    def compiled(source: Path) -> Path:
        return kept(
            [source.read_bytes(), headers, *DRIVER_FLAGS],
            ".o",
            lambda directory, file: run(
                [COMPILER, *DRIVER_FLAGS, "-c", "-o", str(file), str(source)], directory
            ),
        )

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, sorted(HERE.glob("*.cc"))))

    def link(directory: Path, file: Path) -> None:
        exports = "".join(f"{name}; " for name in (*without, "*"))
        script = directory / "exports"
        script.write_text(f"{{ global: cu*; twin_*; local: {exports} }};\n")
        command = [COMPILER, "-shared", f"-Wl,--version-script={script}", "-o", str(file)]
        run([*command, *map(str, objects), "-ldl", "-lpthread"], directory)

    return kept([*without, *(path.name for path in objects)], LIBRARY, link)
