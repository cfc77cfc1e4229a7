"""How long after its computing the gradients of each rank reach their owners.

The rank of a slow link lets all others wait in a synchronous step, so that the seconds that ranks
wait say nothing about whose link it is. An owner of parameters knows better: it sees when the part
of each rank arrives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.strategy import Strategy
from cavs.distributed.sync.synchroniser import Exchange, OwnerExchange

Floats = NDArray[np.float64]

_SLACK = 2e-3  # seconds; what arrives so soon after a look may have been there
_RISE, _FALL = 0.5, 0.9  # part of a rise that counts at once; what is left of a delay not seen
_LEAST = 0.1  # a smaller difference, in parts of the slowest computing, is none


def delivers_alone(strategy: Strategy | None, hosts: int) -> bool:
    """True if the gradients of a rank leave without waiting for other ranks, on so many hosts.

    In all-reduces, rings and trees they do not: all ranks end at once, and a rank that is early
    gains nothing.
    """
    return strategy is not None and all(
        leaf.sync.owner is not None
        and not leaf.sync.is_stale
        and not (leaf.sync.sums_on_hosts and hosts > 1)
        for leaf in strategy.leaves
    )


class OwnerDelays:
    """The delays that this owner sees, by replica, in seconds.

    A delay is the time from the end of a rank's computing to the arrival of its last gradient. A
    gradient that had arrived when the owner looked sets no more than an upper limit; until the
    owner waits for the rank again, its delay is taken to become shorter, step by step.
    """

    def __init__(self, replicas: int) -> None:
        self.seconds: Floats = np.zeros(replicas)

    def learn(self, exchanges: Sequence[Exchange], begun: float, ends: Sequence[float]) -> None:
        """Learn from a step.

        begun: time at which it began here. ends: seconds from its beginning to the end of each
        replica's computing.
        """
        for rank, end in enumerate(ends):
            seen = [
                arrival
                for x in exchanges
                if isinstance(x, OwnerExchange)
                for arrival in x.deliveries.get(rank, ())
            ]
            if not seen:
                continue
            awaited = [came for looked, came in seen if came > looked + _SLACK]
            least = max(max(awaited, default=0.0) - begun - end, 0.0)
            most = max(max(came for _, came in seen) - begun - end, 0.0)
            before = self.seconds[rank]
            now = max(before * _FALL, before + _RISE * (least - before))
            self.seconds[rank] = min(now, most)


def unequal_delays(computed: Sequence[float], delays: Sequence[float]) -> tuple[float, ...]:
    """Return how much longer each rank's gradients travel than those of the rank with the shortest.

    Zeros for all if the largest is less than a tenth of the longest computing: links that are alike
    change nothing.
    """
    least = min(delays, default=0.0)
    excess = tuple(delay - least for delay in delays)
    if max(excess, default=0.0) <= _LEAST * max(computed, default=0.0):
        return (0.0,) * len(delays)
    return excess
