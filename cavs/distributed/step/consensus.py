"""The end of a step: what all ranks learn of it, in one all-reduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cavs.distributed.balance import Balancer
from cavs.distributed.balance.shards import ShardedBatch
from cavs.distributed.step.run import Run

if TYPE_CHECKING:
    from cavs.distributed.step.session import DistributedSession


@dataclass(frozen=True)
class Ends:
    """The same on all ranks, in every bit.

    loss, squares: sums over the ranks. hyper: the numbers of the update, as rank 0 has them.
    seconds, reports: of the ranks that compute; see `StepReport`.
    """

    loss: float
    squares: float
    hyper: dict[str, Any]
    seconds: tuple[float, ...]
    reports: tuple[tuple[float, ...], ...]


def ends_of(
    session: DistributedSession,
    run: Run,
    part: ShardedBatch | None,
    hyper: dict[str, Any],
    sums: tuple[float, float],
    error: Exception | None,
) -> Ends:
    """What became of the step; raises on all ranks if one brings an `error`, or split otherwise.

    part: what this rank computed, if it did. sums: its loss and squares.
    """
    c, split = session.communicator, session.split
    told = [0.0] * getattr(split, "reports", 0)
    if told and part is not None and error is None:
        try:
            if isinstance(split, Balancer):
                split.on(session.session.device)
            told = list(split.report(c.rank, run.compute_seconds))  # type: ignore[attr-defined]
        except Exception as failed:  # the other ranks must learn of it, whatever it is
            error = failed
    # A schedule may end in another bit on another processor: rank 0's numbers are those of all.
    numbers = {name: value for name, value in hyper.items() if isinstance(value, float)}
    head = np.array([*sums, error is not None, *numbers.values()], np.float64)
    if c.rank != 0:
        head[3:] = 0
    row = [run.compute_seconds, *((0, 0) if part is None else (part.mark, part.computed)), *told]
    ends = np.zeros(len(head) + c.size * len(row))
    ends[: len(head)] = head
    ranks = ends[len(head) :].reshape(c.size, -1)
    ranks[c.rank] = row
    c.all_reduce(ends)
    every = ranks[: session.roles.count]
    alike = (every[:, 1] == every[0, 1]).all()
    if ends[2] or not alike:
        if part is not None and not alike:
            error = error or part.divided_differently(every[:, 1:3].astype(int).tolist())
        session.agreement.meet("end of step", error)
    same = dict(zip(numbers, ends[3 : len(head)].tolist(), strict=True))
    return Ends(
        float(ends[0]),
        float(ends[1]),
        {**hyper, **same},
        tuple(every[:, 0].tolist()),
        tuple(map(tuple, every[:, 3:].tolist())) if told else (),
    )
