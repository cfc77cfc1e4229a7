"""The ranks of a strategy: their hosts, their roles, and what is left when some are gone."""

from __future__ import annotations

import math
import socket
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from cavs.distributed.cluster.resources import Node, ResourceSpec, node_of
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.strategy.expression import NodeConfig, Strategy
from cavs.distributed.strategy.partition import shards_of
from cavs.errors import ConfigError


def hosts_of(c: Communicator) -> list[str]:
    """Return the host of every rank, "localhost" if all are on one; all ranks call it."""
    names = [str(name) for name in c.share(socket.gethostname())]
    return ["localhost"] * len(names) if len(set(names)) == 1 else names


def cluster_of(hosts: Sequence[str], *, gpus: bool = False) -> ResourceSpec:
    """Return a node for each host, with a device for each rank on it, in the order of ranks.

    gpus: ranks compute on these; they are numbered as the ranks of their host are.
    """
    device = "GPU" if gpus else "CPU"
    ranks = tuple(f"{host}:{device}:{hosts[:i].count(host)}" for i, host in enumerate(hosts))
    nodes = []
    for host in dict.fromkeys(hosts):
        numbers = tuple(range(hosts.count(host)))
        cpus, own = ((), numbers) if gpus else (numbers, ())
        nodes.append(Node(address=host, cpus=cpus, gpus=own, chief=host == hosts[0]))
    return ResourceSpec(nodes=tuple(nodes), ranks=ranks)


def devices_of(hosts: Sequence[str], *, gpus: bool = False) -> ResourceSpec:
    """Return the devices that a strategy may name without resources: a CPU (and GPU) a rank."""
    cluster = cluster_of(hosts)
    if not gpus:
        return cluster
    return ResourceSpec(nodes=tuple(replace(node, gpus=node.cpus) for node in cluster.nodes))


def in_rank_order(resources: ResourceSpec, hosts: Sequence[str]) -> ResourceSpec:
    """Return `resources` with its devices in the order of the ranks, where it names their hosts.

    It is left as it is where it does not: it may name several hosts on one machine.
    """
    names = [node_of(device) for device in resources.replicas]
    if Counter(names) != Counter(hosts) or names == list(hosts):
        return resources
    left = {name: [d for d in resources.replicas if node_of(d) == name] for name in names}
    return replace(resources, ranks=tuple(left[host].pop(0) for host in hosts))


def fits(strategy: Strategy, size: int) -> None:
    """Raise `ConfigError` if the strategy is not one that `size` ranks can run."""
    replicas, servers = len(strategy.graph.replicas), len(strategy.graph.servers)
    if replicas + servers != size:
        raise ConfigError(
            f"the strategy has {replicas} replicas and {servers} servers, but there are "
            f"{size} ranks",
            hint="start one rank for each replica and each server",
        )


def check_hosts(strategy: Strategy, hosts: Sequence[str], *, gpus: bool) -> None:
    """Raise `ConfigError` if ranks do not compute where the strategy says.

    hosts: of every rank. If the strategy has others, its addresses are names that a resource
    specification gave. gpus: True if ranks compute on GPUs; ranks that only own need none.
    """
    for rank, device in enumerate(strategy.graph.replicas):
        if (":GPU:" in device) != gpus:
            here = "a GPU (device='cuda')" if gpus else "the CPU (device='cpu')"
            raise ConfigError(
                f"rank {rank}: the strategy has it on {device}, but it computes on {here}",
                hint="pass the device that the strategy names, or a strategy for this device",
            )
    named = [node_of(device) for device in strategy.graph.ranks]
    if set(named) != set(hosts):
        return
    for rank, (name, host) in enumerate(zip(named, hosts, strict=True)):
        if name != host:
            raise ConfigError(
                f"rank {rank} runs on {host}, the strategy has it on {strategy.graph.ranks[rank]}",
                hint=f"start the ranks on {', '.join(named)}, in this order, or name devices in "
                f"the order of the ranks, which are on {', '.join(hosts)}",
            )


class Roles:
    """Roles of the ranks of `everyone` under a strategy; all ranks create it together.

    Ranks that only own parameters come after the `count` replicas, as in `GraphConfig.ranks`.
    hosts: the replicas of each host. replicas: the group of ranks that compute (on others, the
    group of those). local: those of the replicas that share a host with this rank; the same group
    where nothing distinguishes hosts. teams: replicas that go through stale steps together; those
    of a host where these sum first.
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
        groups = {id(c): c for c in (self.replicas, self.local) if c is not everyone}
        self._parts = list(groups.values())
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
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent in all its groups, and by services of the whole."""
        own = self.everyone.sent_bytes + self.everyone.service_bytes
        return own + sum(c.sent_bytes for c in self._parts)

    def leave(self) -> None:
        """End all waits in the groups that are parts of the whole."""
        for c in self._parts:
            c.leave()
            c.close()


def leader_of(owner: int, ranks: Sequence[int]) -> int:
    """Return the one of `ranks` that exchanges messages with an owner: itself, if among them."""
    return owner if owner in ranks else ranks[0]


def without(
    strategy: Strategy, lost: Collection[int], shapes: Mapping[str, tuple[int, ...]]
) -> Strategy:
    """Return the strategy of the ranks that are left when those of numbers `lost` are gone.

    Parameters of lost owners go to the rank that owns the fewest bytes; servers are preferred to
    replicas. shapes: of the parameters, by name. Raises `ConfigError` if no replica is left.
    """
    graph = strategy.graph
    gone = {graph.ranks[rank] for rank in lost}
    replicas = tuple(d for d in graph.replicas if d not in gone)
    servers = tuple(d for d in graph.servers if d not in gone)
    if not replicas:
        raise ConfigError(
            f"all {len(graph.replicas)} ranks that compute are gone",
            hint="resume from the last checkpoint",
        )
    sizes = {
        leaf.name: math.prod(shard.shape)
        for node in strategy.nodes
        for leaf, shard in zip(node.leaves, shards_of(node, shapes[node.name]), strict=True)
    }
    loads = dict.fromkeys(servers or replicas, 0)
    for leaf in strategy.leaves:
        if leaf.sync.owner is not None:
            owner = graph.ranks[graph.rank_of(leaf.sync.owner)]
            if owner in loads:
                loads[owner] += sizes[leaf.name]

    def moved(leaf: NodeConfig) -> NodeConfig:
        sync = leaf.sync
        placement = tuple(d for d in leaf.placement if d not in gone)
        if sync.owner is not None and graph.rank_of(sync.owner) in lost:
            heir = min(loads, key=lambda device: loads[device])
            loads[heir] += sizes[leaf.name]
            sync = sync.moved_to(heir)
            placement = (heir,) if leaf.placement else ()
        return replace(leaf, synchroniser=sync, placement=placement)

    nodes = tuple(
        replace(node, shards=tuple(map(moved, node.shards))) if node.shards else moved(node)
        for node in strategy.nodes
    )
    left = replace(graph, replicas=replicas, servers=servers)
    return replace(strategy, graph=left, nodes=nodes)
