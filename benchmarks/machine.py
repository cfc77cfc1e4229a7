"""The surroundings of a measurement: machine, versions, commit, command."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.samples import ROOT

_FEATURES = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve")


def _cpu() -> tuple[str, set[str]]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine(), set()

    def field(name: str) -> str:
        found = re.search(rf"^{name}\s*: (.*)$", text, re.MULTILINE)
        return found.group(1) if found else ""

    model = f"{field('model name')} (family {field('cpu family')}, model {field('model')})"
    return model, set((field("flags") or field("Features")).split())


def _quota() -> float | None:
    """Return the cores that the control group allows; None without a limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) / int(period)


def forget_peak() -> None:
    """Reset `peak_memory`, if the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def peak_memory() -> int:
    """Return the peak of the bytes of this process since `forget_peak`, or since its start."""
    try:
        text = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^VmHWM:\s*(\d+) kB$", text, re.MULTILINE)
    kibibytes = int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024 * kibibytes


def busy(seconds: float = 0.2) -> float | None:
    """Return the share of all cores that other work uses now; None if unknown.

    Above a few hundredths, times of several threads mean little: threads that wait for each other
    wait for the other work too.
    """

    def ticks() -> tuple[int, int]:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]
        values = [int(field) for field in fields]
        return sum(values), values[3] + values[4]

    try:
        total, idle = ticks()
        time.sleep(seconds)
        later_total, later_idle = ticks()
    except (OSError, ValueError, IndexError):
        return None
    passed = later_total - total
    return round(1 - (later_idle - idle) / passed, 3) if passed else None


def machine() -> dict[str, Any]:
    """Return CPU model, vector extensions, cores this process may use, memory, load."""
    model, flags = _cpu()
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": model,
        "isa": [name for name in _FEATURES if name in flags],
        "cores": len(affinity) if affinity is not None else os.cpu_count(),
        "quota": _quota(),
        "memory_gib": round(pages / 2**30, 1),
        "load": round(os.getloadavg()[0], 2),
        "busy": busy(),
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter, if installed."""
    found = {"python": platform.python_version()}
    for package in ("cavs", "numpy", "torch", "dgl", "dyNET", "dyNET38"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def surroundings() -> dict[str, Any]:
    """Return the surroundings of a measurement at this time."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "sources": sources(),
        "command": command(),
        "machine": machine(),
        "versions": versions(),
    }


def commit() -> str:
    """Return the commit of the working tree, marked if it has changes; empty outside a checkout.

    Results do not count as changes.
    """

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-c", "safe.directory=*", *arguments],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    name = git("rev-parse", "HEAD")
    changes = ("status", "--porcelain", "--", ".", ":!benchmarks/results")
    return name + (" with changes" if name and git(*changes) else "")


# Documents and tests change no figure: an interrupted run can be resumed after they have changed.
MEASURED = ("pyproject.toml", "cavs", "csrc", "cuda", "models", "benchmarks")


def sources() -> str:
    """Return a hash of the files that decide on results: package, engine, models, benchmarks."""
    found = hashlib.sha256()
    for name in MEASURED:
        for file in sorted([ROOT / name, *(ROOT / name).rglob("*")]):
            path = file.relative_to(ROOT)
            if file.is_file() and not {"results", "__pycache__"} & set(path.parts):
                text = file.read_bytes()
                found.update(f"{path} {len(text)} ".encode() + text)
    return found.hexdigest()


def command() -> str:
    """Return the command line that repeats this run, without folders of this machine."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec else ""
    program = ["python", "-m", name] if name else ["python", Path(sys.argv[0]).name]
    shown, arguments = [], iter(sys.argv[1:])
    for argument in arguments:
        option = argument.partition("=")[0]
        if option not in ("--data", "--out"):
            shown.append(argument)
            continue
        if option == argument:
            next(arguments, None)
        if option == "--data":
            shown += ["--data", "DIR"]
    return shlex.join([*program, *shown])
