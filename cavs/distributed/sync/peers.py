"""Selection of the peer that a rank averages its model with.

Random and round robin (section 3.4.3 of the thesis before KungFu) depend on a number alone, so that
a run can be repeated; selection by latency (its algorithm 5) depends on what requests took.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

_NEWEST = 0.3  # weight of a new latency in the moving average
_SPREAD = 1.0  # weight of how often a peer was asked


def draw(seed: int, rank: int, number: int, count: int) -> int:
    """Return the draw of a rank in [0, count), uniform; the same on all ranks that ask for it."""
    return int(np.random.default_rng([seed, rank, number]).integers(count))


class PeerSelector(ABC):
    """Selects the peers of one of `size` ranks, two or more."""

    def __init__(self, rank: int, size: int, seed: int) -> None:
        self.rank, self.size, self.seed = rank, size, seed

    @abstractmethod
    def peer(self, number: int) -> int:
        """Return the peer of the request of this number, another rank."""

    def took(self, peer: int, seconds: float) -> None:  # noqa: B027
        """Note the latency of a request."""

    def missed(self, peer: int, seconds: float) -> None:  # noqa: B027
        """Note that a peer did not answer within so many seconds."""


class RandomPeers(PeerSelector):
    """A uniform draw from all ranks; the next rank in place of this one."""

    def peer(self, number: int) -> int:
        drawn = draw(self.seed, self.rank, number, self.size)
        return drawn if drawn != self.rank else (drawn + 1) % self.size


class PeersInTurn(PeerSelector):
    """The other ranks one after the other; no rank is the peer of two at once."""

    def peer(self, number: int) -> int:
        return (self.rank + 1 + number % (self.size - 1)) % self.size


class FastPeers(PeerSelector):
    """The peer with the least latency, unless it was asked much more often than others.

    A peer scores its latency over the largest one, plus its requests over those of an even share;
    the least score is chosen, then the next rank. Every peer is asked once first, and each, however
    slow, gets about one in (K - 1)^2 of the requests at least, so that no group of ranks keeps to
    itself. The paper has a heap; here every request changes all scores.

    latency: moving average in seconds, by rank. asked: number of requests, by rank.
    """

    def __init__(self, rank: int, size: int, seed: int) -> None:
        super().__init__(rank, size, seed)
        self.latency, self.asked = np.zeros(size), np.zeros(size, np.int64)

    def peer(self, number: int) -> int:
        others = (self.rank + 1 + np.arange(self.size - 1)) % self.size
        latency, asked = self.latency[others], self.asked[others]
        share = max(asked.sum() / len(others), 1.0)
        score = latency / max(latency.max(), 1e-12) + _SPREAD * asked / share
        return int(others[np.argmin(np.where(asked == 0, -1.0, score))])

    def took(self, peer: int, seconds: float) -> None:
        before = self.latency[peer] if self.asked[peer] else seconds
        self.latency[peer] = (1 - _NEWEST) * before + _NEWEST * seconds
        self.asked[peer] += 1

    def missed(self, peer: int, seconds: float) -> None:
        self.latency[peer] = seconds
        self.asked[peer] += 1


SELECTORS: dict[str, type[PeerSelector]] = {
    "random": RandomPeers,
    "round_robin": PeersInTurn,
    "latency": FastPeers,
}
