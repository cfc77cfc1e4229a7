"""Shared libraries made by g++, kept by what they are made from."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("CAVS_TWIN_CACHE", HERE.parents[2] / "build" / "twin"))
COMPILER = os.environ.get("CXX", "g++")


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


def kept(key: Iterable[str | bytes], make: Callable[[Path, Path], None]) -> Path:
    """The library for a key; ``make(directory, library)`` makes it where it is not kept yet.

    Several processes may do so at once: each works in a directory of its own, and a library
    appears whole or not at all.
    """
    digest = hashlib.sha256(compiler_identity())
    for part in key:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    library = CACHE / f"{digest.hexdigest()[:32]}.twin.so"
    if not library.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as directory:
            made = Path(directory) / "made.so"
            make(Path(directory), made)
            os.replace(made, library)
    return library


def driver(without: tuple[str, ...] = ()) -> Path:
    """The library that stands for libcuda and cuBLASLt, less the entry points named."""
    sources = sorted(HERE.glob("*.cc"))
    headers = sorted(HERE.glob("*.h"))

    def make(directory: Path, library: Path) -> None:
        hidden = "".join(f"local: {name};" for name in without)
        # A name that is hidden must be named before the pattern that shows the rest.
        script = directory / "exports"
        script.write_text(f"{{ {hidden} global: cu*; twin_*; local: *; }};\n")
        run(
            [COMPILER, "-std=c++20", "-O2", "-g1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
            + ["-fvisibility=hidden", "-U_FORTIFY_SOURCE", f"-Wl,--version-script={script}"]
            + ["-o", str(library), *map(str, sources), "-ldl", "-lpthread"],
            directory,
        )

    contents = [path.read_bytes() for path in (*sources, *headers, Path(__file__))]
    with contextlib.suppress(FileNotFoundError):
        CACHE.mkdir(parents=True, exist_ok=True)
    return kept([*without, *contents], make)
