"""Peak rates of a device: bytes per second of a copy, operations per second of products."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.ratios import summary
from benchmarks.rivals.device import set_up, synchronize
from benchmarks.workloads import Case

ROUNDS = 10
COPY_BYTES = 2**30
SIDE = 8192  # rows and columns of the operands


def _median_seconds(work: Callable[[], Any], device: torch.device) -> float:
    work()
    synchronize(device)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return summary(times)["median"]


def device_name(device: str) -> str:
    """Return the name of the device, with its memory; empty for the CPU."""
    if device == "cpu":
        return ""
    found = torch.cuda.get_device_properties(torch.device(device))
    memory = found.total_memory / 2**30
    return (
        f"{found.name}, sm_{found.major}{found.minor}, {memory:.0f} GiB, CUDA {torch.version.cuda}"
    )


def ceilings(device: str, precisions: list[str], tiny: bool = False) -> dict[str, float]:
    """Return ``bytes`` per second of a copy, read and written, and operations by precision.

    The inputs are random: on some devices products of zeros run faster.
    """
    place = set_up(Case("tree-fc", 1, 1, device=device))
    source = torch.rand(COPY_BYTES // 4 if not tiny else 2**16, device=place)
    target = torch.empty_like(source)
    seconds = _median_seconds(lambda: target.copy_(source), place)
    found = {"bytes": 2 * source.nbytes / seconds}
    side = 64 if tiny else SIDE
    for precision in precisions:
        set_up(Case("tree-fc", 1, 1, device=device, precision=precision))
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        a, b = (torch.rand(side, side, device=place).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        seconds = _median_seconds(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), place)  # type: ignore[misc]
        found[precision] = 2 * side**3 / seconds
    return found
