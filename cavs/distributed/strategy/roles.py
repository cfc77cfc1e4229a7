"""Roles of ranks: replicas, servers that only own parameters, and their hosts."""

from __future__ import annotations

from collections.abc import Sequence

from cavs.distributed.cluster.resources import node_of
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.strategy import Strategy


class Roles:
    """Roles of the ranks of `everyone` under a strategy; all ranks create it together.

    Ranks that only own parameters come after those that compute, as in `GraphConfig.ranks`.
    replicas: the group of ranks that compute (on others, the group of those). local: those of the
    replicas that share a host with this rank; the same group where nothing distinguishes hosts.
    teams: replicas that go through stale steps together; those of a host where these sum first.
    """

    def __init__(self, everyone: Communicator, strategy: Strategy | None = None) -> None:
        self.everyone = everyone
        devices = [""] * everyone.size if strategy is None else strategy.graph.replicas
        syncs = [] if strategy is None else [leaf.sync for leaf in strategy.leaves]
        self.count = len(devices)
        hosts: dict[str, list[int]] = {}
        for rank, device in enumerate(devices):
            hosts.setdefault(node_of(device), []).append(rank)
        self.hosts = list(hosts.values())
        self.replicas = everyone
        if self.count < everyone.size:
            self.replicas = everyone.split(int(self.computes))
        self.local = self.replicas
        if len(self.hosts) > 1 and any(s.sums_on_hosts or s.replicates_on_hosts for s in syncs):
            self.local = everyone.split(self.host if self.computes else len(self.hosts))
        self.teamed = len(self.hosts) > 1 and any(s.sums_on_hosts and s.is_stale for s in syncs)
        self.teams = self.hosts if self.teamed else [[r] for r in range(self.count)]

    @property
    def rank(self) -> int:
        """Number of this process among all ranks."""
        return self.everyone.rank

    @property
    def computes(self) -> bool:
        """True if this rank runs a replica."""
        return self.rank < self.count

    @property
    def host(self) -> int:
        """Index of this replica's host in `hosts`."""
        return next(h for h, ranks in enumerate(self.hosts) if self.rank in ranks)

    def leader(self, owner: int, host: int) -> int:
        """Return the replica of a host that exchanges messages with an owner, see `leader_of`."""
        return leader_of(owner, self.hosts[host])

    @property
    def team(self) -> list[int]:
        """The team of this replica."""
        return next(team for team in self.teams if self.rank in team)

    @property
    def _groups(self) -> list[Communicator]:
        return list({id(c): c for c in (self.everyone, self.replicas, self.local)}.values())

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent in all its groups."""
        return sum(c.sent_bytes for c in self._groups)

    def leave(self) -> None:
        """End all waits in the groups that are parts of the whole."""
        for c in self._groups:
            if c is not self.everyone:
                c.leave()
                c.close()


def leader_of(owner: int, ranks: Sequence[int]) -> int:
    """Return the one of `ranks` that exchanges messages with an owner: itself, if among them."""
    return owner if owner in ranks else ranks[0]
