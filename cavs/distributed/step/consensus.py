"""Consensus at the end of a step: all ranks learn its result in one all-reduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cavs.distributed.balance import Balancer
from cavs.distributed.balance.shards import ShardedBatch
from cavs.distributed.step.context import StepContext
from cavs.distributed.step.run import Run


@dataclass(frozen=True)
class EndOfStep:
    """Result of a step, the same bits on all ranks.

    loss, squares: sums over the ranks. hyper: numbers of the update, as rank 0 has them.
    seconds, reports: of every replica; see `StepReport`.
    """

    loss: float
    squares: float
    hyper: dict[str, Any]
    seconds: tuple[float, ...]
    reports: tuple[tuple[float, ...], ...]


def end_of_step(
    context: StepContext,
    run: Run,
    part: ShardedBatch | None,
    hyper: dict[str, Any],
    sums: tuple[float, float],
    error: Exception | None,
) -> EndOfStep:
    """Return the result of a step; raise on all ranks if one failed, or split differently.

    part: what this rank computed, if it did. sums: its loss and squares.
    """
    c, split = context.communicator, context.split
    report = [0.0] * getattr(split, "reports", 0)
    if report and part is not None and error is None:
        try:
            if isinstance(split, Balancer):
                split.on(context.session.device)
            report = list(split.report(c.rank, run.compute_seconds))  # type: ignore[attr-defined]
        except Exception as failed:  # raised at the consensus below
            error = failed
    # A schedule may differ in its last bit on another processor: all ranks use rank 0's numbers.
    numbers = {name: value for name, value in hyper.items() if isinstance(value, float)}
    head = np.array([*sums, error is not None, *numbers.values()], np.float64)
    if c.rank != 0:
        head[3:] = 0
    row = [run.compute_seconds, *((0, 0) if part is None else (part.mark, part.computed)), *report]
    ends = np.zeros(len(head) + c.size * len(row))
    ends[: len(head)] = head
    ranks = ends[len(head) :].reshape(c.size, -1)
    ranks[c.rank] = row
    c.all_reduce(ends)
    replicas = ranks[: context.roles.count]
    alike = (replicas[:, 1] == replicas[0, 1]).all()
    if ends[2] or not alike:
        if part is not None and not alike:
            error = error or part.divided_differently(replicas[:, 1:3].astype(int).tolist())
        context.agreement.consensus("end of step", error)
    of_rank_0 = dict(zip(numbers, ends[3 : len(head)].tolist(), strict=True))
    return EndOfStep(
        float(ends[0]),
        float(ends[1]),
        {**hyper, **of_rank_0},
        tuple(replicas[:, 0].tolist()),
        tuple(map(tuple, replicas[:, 3:].tolist())) if report else (),
    )
