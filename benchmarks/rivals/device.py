"""Where the PyTorch programs run, in which precision, and their steps captured as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.workloads import Case

ON_HOST = {"batch_sizes"}  # a PackedSequence needs them on the host


def set_up(case: Case) -> torch.device:
    """Set threads and precision of this process; return the device of the case.

    Raises RuntimeError where PyTorch sees no GPU, ValueError for an unknown precision.
    """
    torch.set_num_threads(case.threads)
    if case.precision not in ("fp32", "tf32", "bf16"):
        raise ValueError(f"precision {case.precision!r}; there are fp32, tf32 and bf16")
    if case.device == "cpu":
        if case.precision != "fp32":
            raise ValueError(f"{case.precision} on the CPU; there is fp32 only")
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(f"PyTorch {torch.__version__} sees no GPU")
    reduced = case.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = reduced
    torch.backends.cudnn.allow_tf32 = reduced
    return torch.device(case.device)


def autocast(case: Case) -> AbstractContextManager[Any]:
    """Compute products in bfloat16 inside, if the case has this precision."""
    return torch.autocast(
        torch.device(case.device).type, torch.bfloat16, enabled=case.precision == "bf16"
    )


def placed(plan: Any, device: torch.device) -> Any:
    """Return a plan with its tensors on the device."""
    if device.type == "cpu":
        return plan
    if isinstance(plan, Tensor):
        return plan.to(device)
    if isinstance(plan, list):
        return [placed(x, device) for x in plan]
    if not is_dataclass(plan) or isinstance(plan, type):
        return plan
    moved = {
        f.name: placed(getattr(plan, f.name), device) for f in fields(plan) if f.name not in ON_HOST
    }
    return replace(plan, **moved)


def synchronize(device: torch.device) -> None:
    """Wait for all work on the device."""
    if device.type != "cpu":
        torch.cuda.synchronize(device)


class Graphs:
    """Work on plans, captured once each and replayed; all captures share their memory.

    ``work(plan)`` must have run on every plan before, so that all memory is allocated.
    """

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()  # type: ignore[no-untyped-call]
        self.captured: dict[int, tuple[torch.cuda.CUDAGraph, Any, Any]] = {}

    def capture(self, work: Callable[[Any], Any], plans: SequenceOf[Any]) -> None:
        """Capture ``work`` on every plan, after a round on another stream."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for plan in plans:
                work(plan)
        torch.cuda.current_stream().wait_stream(stream)
        for plan in plans:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool):
                result = work(plan)
            self.captured[id(plan)] = (
                graph,
                result,
                plan,
            )  # keeps the id unique

    def __contains__(self, plan: Any) -> bool:
        return id(plan) in self.captured

    def replay(self, plan: Any) -> Any:
        """Return the result of ``work`` with new contents; the next replay overwrites it."""
        graph, result, _ = self.captured[id(plan)]
        graph.replay()
        return result
