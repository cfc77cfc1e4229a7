"""`StepReport`: the result of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class StepReport:
    """Result of a step.

    loss, grad_norm: of the global batch; in an asynchronous step their estimate from this rank's
    part. Where replicas differ, grad_norm is the root mean square over them, and reduced_norm the
    norm of the gradients that were reduced in this step. compute_seconds: of this rank's forward
    and backward. communication_seconds: of reducing gradients and of waiting for new values from
    their owners; exposed_seconds: the part of it outside of backward, with all of the latter.
    sent_bytes: by this rank. rank_seconds: compute_seconds of every rank, where known. rank_graphs:
    the graphs of the batch that each computed. rank_squares: squared norm of the mean gradient over
    these, where a monitor reads it. seconds: since the step before, on rank 0. rank_reports: what
    the split of every rank reports to the others (`Balancer.report`). rank_delays: seconds by which
    the gradients of every rank travel longer than those of the rank with the best link, as far as
    that is known of the steps before (`unequal_delays`); empty where no gradients travel alone.
    dropped: the ranks that the step did not wait for, whose graphs are not in loss and gradients
    (`CountedRanks`). aux: values that ``Model.loss`` returned with the loss, of this rank's part;
    empty on a rank that computes nothing, or that was dropped.
    """

    loss: float
    grad_norm: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    sent_bytes: int
    rank_seconds: tuple[float, ...] = ()
    rank_reports: tuple[tuple[float, ...], ...] = ()
    rank_graphs: tuple[int, ...] = ()
    rank_squares: tuple[float, ...] = ()
    rank_delays: tuple[float, ...] = ()
    dropped: tuple[int, ...] = ()
    seconds: float = 0.0
    reduced_norm: float = 0.0
    aux: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rank_loads(self) -> tuple[float, ...]:
        """Seconds from the beginning of a step until each rank's part of it is done, by itself."""
        delays = self.rank_delays or (0.0,) * len(self.rank_seconds)
        return tuple(a + b for a, b in zip(self.rank_seconds, delays, strict=True))

    @property
    def overlap(self) -> float:
        """Share of communication time hidden behind computation; 1 without communication."""
        if self.communication_seconds <= 0:
            return 1.0
        return 1.0 - min(1.0, self.exposed_seconds / self.communication_seconds)
