"""Every kernel source compiles for sm_80 and sm_90, keeps its registers and is what it promises."""

from __future__ import annotations

import re

import pytest

from .kernels import KERNELS, SIGNATURES, compile_options, headers
from .nvrtc import compile_source, find_library

LIBRARY = find_library()
needs_nvrtc = pytest.mark.skipif(
    LIBRARY is None, reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12"
)
# Registers a thread of a block of 256 may have for so many blocks a multiprocessor (65,536).
BLOCKS = {"matmul_16": 1, "matmul": 1, "matmul_tn": 1}


def functions(log: str) -> dict[str, dict[str, int]]:
    """What ptxas says of each kernel."""
    found: dict[str, dict[str, int]] = {}
    name = ""
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name = match[1]
            found[name] = {}
        if match := re.search(r"(\d+) bytes stack frame, (\d+) .*stores, (\d+) .*loads", line):
            stack, stores, loads = map(int, match.groups())
            # Of the kernel itself or of a function it calls; the kernel's line comes first.
            found[name].setdefault("stack", stack)
            found[name]["spills"] = found[name].get("spills", 0) + stores + loads
        if match := re.search(r"Used (\d+) registers", line):
            found[name]["registers"] = int(match[1])
    return found
