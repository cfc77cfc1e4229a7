"""Shared libraries made by g++, and other files, kept by what they are made from."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from cavs.cuda.cache import default_folder

HERE = Path(__file__).resolve().parent
# Names are hashes of contents and compiler, so clones and runs of CI share the folder.
CACHE = Path(os.environ.setdefault("CAVS_TWIN_CACHE", str(default_folder() / "tests")))
COMPILER = os.environ.get("CAVS_TWIN_CXX", "g++")
LIBRARY = ".twin.so"  # how the driver knows the path of a module
DRIVER_FLAGS = ["-std=c++20", "-O2", "-march=native", "-g1", "-fPIC"]
DRIVER_FLAGS += ["-fvisibility=hidden", "-U_FORTIFY_SOURCE", "-Wall", "-Wextra", "-Werror"]


class CompileError(Exception):
    """What the compiler said of a source."""


def missing() -> str:
    """Why no twin can be built here; empty if it can."""
    if shutil.which(COMPILER) is None:
        return f"the host twin needs g++; {COMPILER} was not found"
    if (sys.platform, platform.machine()) not in (("linux", "x86_64"), ("linux", "aarch64")):
        found = f"{platform.system()} on {platform.machine()}"
        return f"the host twin needs Linux on x86-64 or aarch64; this is {found}"
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
    # A sanitizer's library that is loaded into Python would make the compiler slow.
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise CompileError(done.stderr)


def kept(
    key: Iterable[str | bytes],
    suffix: str,
    make: Callable[[Path, Path], None],
    compiler: bytes | None = None,
) -> Path:
    """The file for a key; ``make(directory, file)`` makes it where it is not kept yet.

    compiler: what identifies the one that makes it; g++, unless given.

    Several processes may do so at once: each works in a directory of its own, and a file appears
    whole or not at all.
    """
    digest = hashlib.sha256(compiler_identity() if compiler is None else compiler)
    for part in key:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    file = CACHE / f"{digest.hexdigest()[:32]}{suffix}"
    if file.exists():
        os.utime(file)
    else:
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as directory:
            made = Path(directory) / f"made{suffix}"
            make(Path(directory), made)
            os.replace(made, file)
    return file


def forget_old(days: float = 7) -> None:
    """Removes files that nobody asked for in so many days: random tests make many."""
    for file in CACHE.glob("*.*"):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if time.time() - file.stat().st_mtime > days * 86400:
                file.unlink()


forget_old_once = functools.cache(forget_old)  # looking through thousands of files takes 20 ms


def driver(without: tuple[str, ...] = ()) -> Path:
    """The library that stands for libcuda, cuBLASLt and cuDNN, less the entry points named."""
    forget_old_once()
    sources = sorted(HERE.glob("*.cc"))

    def compile_all(directory: Path, file: Path) -> None:
        whole = directory / "twin.cc"  # one unit: the standard headers cost more than the code
        whole.write_text("".join(f'#include "{source}"\n' for source in sources))
        run([COMPILER, *DRIVER_FLAGS, "-c", "-o", str(file), str(whole)], directory)

    contents = [path.read_bytes() for path in (*sources, *sorted(HERE.glob("*.h")))]
    compiled = kept([*contents, *DRIVER_FLAGS], ".o", compile_all)

    def link(directory: Path, file: Path) -> None:
        exports = "".join(f"{name}; " for name in (*without, "*"))
        script = directory / "exports"
        script.write_text(f"{{ global: cu*; twin_*; local: {exports} }};\n")
        command = [COMPILER, "-shared", f"-Wl,--version-script={script}", "-o", str(file)]
        run([*command, str(compiled), "-ldl", "-lpthread"], directory)

    return kept([*without, compiled.name], LIBRARY, link)
