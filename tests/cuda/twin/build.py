"""Shared libraries built by g++, and other files, kept under a hash of their sources."""

from __future__ import annotations

import contextlib
import fcntl
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
LIBRARY = ".twin.so"  # by which the driver recognises the path of a module
DRIVER_FLAGS = ["-std=c++20", "-O2", "-march=native", "-g1", "-fPIC"]
DRIVER_FLAGS += ["-fvisibility=hidden", "-U_FORTIFY_SOURCE", "-Wall", "-Wextra", "-Werror"]


class CompileError(Exception):
    """Messages of the compiler about a source."""


def missing() -> str:
    """Return why no twin can be built here, or ""."""
    if shutil.which(COMPILER) is None:
        return f"the host twin needs g++; {COMPILER} was not found"
    if (sys.platform, platform.machine()) not in (("linux", "x86_64"), ("linux", "aarch64")):
        found = f"{platform.system()} on {platform.machine()}"
        return f"the host twin needs Linux on x86-64 or aarch64; this is {found}"
    return ""


@functools.cache
def compiler_identity() -> bytes:
    """Return the compiler's version and the instruction set of -march=native."""
    return subprocess.run(
        [COMPILER, "-march=native", "-dM", "-E", "-x", "c++", os.devnull],
        check=True,
        capture_output=True,
    ).stdout


def run(command: list[str], directory: Path) -> None:
    """Run a compiler; CompileError with its messages, if any."""
    # The library of a sanitizer that is loaded into Python would slow down the compiler.
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
    """Return the file for a key; ``make(directory, file)`` creates it if it does not exist yet.

    compiler: identity of the compiler; that of g++ by default.

    Several processes may do so at once: a file appears atomically, and a process that needs it
    waits for another one that makes it.
    """
    digest = hashlib.sha256(compiler_identity() if compiler is None else compiler)
    for part in key:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    file = CACHE / f"{digest.hexdigest()[:32]}{suffix}"
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        # One of 256 locks, so that few files wait for another one than their own.
        with (CACHE / f"{file.name[:2]}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                with tempfile.TemporaryDirectory(dir=CACHE) as directory:
                    made = Path(directory) / f"made{suffix}"
                    make(Path(directory), made)
                    os.replace(made, file)
    os.utime(file)
    return file


def forget_old(days: float = 7) -> None:
    """Remove files that were not used for so many days, since random tests create many."""
    for file in CACHE.glob("*.*"):
        with contextlib.suppress(FileNotFoundError):  # removed by another process
            if time.time() - file.stat().st_mtime > days * 86400:
                file.unlink()


forget_old_once = functools.cache(forget_old)  # scanning thousands of files takes 20 ms


def driver(without: tuple[str, ...] = ()) -> Path:
    """Build the library for libcuda, cuBLASLt and cuDNN, without the named entry points."""
    forget_old_once()
    sources = sorted(HERE.glob("*.cc"))

    def compile_all(directory: Path, file: Path) -> None:
        whole = (
            directory / "twin.cc"
        )  # one unit, since standard headers compile longer than the code
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
