"""The end of a step: what all ranks learn of it, in one all-reduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cavs.distributed.run import Run
from cavs.distributed.shards import ShardedBatch

if TYPE_CHECKING:
    from cavs.distributed.session import DistributedSession


@dataclass(frozen=True)
class Ends:
    """The same on all ranks, in every bit.

    loss, squares: sums over the ranks.
    seconds, reports: of the ranks that compute; see `StepReport`.
    """

    loss: float
    squares: float
    seconds: tuple[float, ...]
    reports: tuple[tuple[float, ...], ...]


def ends_of(
    session: DistributedSession,
    run: Run,
    part: ShardedBatch | None,
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
            told = list(split.report(c.rank, run.compute_seconds))  # type: ignore[attr-defined]
        except Exception as failed:  # the other ranks must learn of it, whatever it is
            error = failed
    head = [*sums, error is not None]
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
    return Ends(
        float(ends[0]),
        float(ends[1]),
        tuple(every[:, 0].tolist()),
        tuple(map(tuple, every[:, 3:].tolist())) if told else (),
    )
