"""The resource specification: the machines of a cluster, and the network between them.

It is read from YAML (the extra ``cluster`` brings PyYAML; fields and units are listed in
docs/strategies.md), or made by `ResourceSpec.local`. Devices are called ``ADDRESS:CPU:I`` and
``ADDRESS:GPU:I``.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property

from cavs.errors import ConfigError

GIGABIT = 1e9 / 8  # bytes


def node_of(device: str) -> str:
    """The address in a device name."""
    return device.rsplit(":", 2)[0]


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine. bandwidth: of its network card in bytes a second, each way.

    chief: for the reader, as in AutoDist: rank 0 makes the strategy, wherever it runs.
    """

    address: str
    cpus: tuple[int, ...] = (0,)
    gpus: tuple[int, ...] = ()
    bandwidth: float | None = None
    chief: bool = False

    @property
    def cpu_devices(self) -> tuple[str, ...]:
        """Names of its CPU devices."""
        return tuple(f"{self.address}:CPU:{i}" for i in self.cpus)

    @property
    def gpu_devices(self) -> tuple[str, ...]:
        """Names of its GPUs."""
        return tuple(f"{self.address}:GPU:{i}" for i in self.gpus)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Costs of messages: bandwidths in bytes a second, latencies in seconds.

    flow_bandwidth: the most one connection between two nodes reaches. reduce_bandwidth: at which a
    process sums what it receives. common_bandwidth: at which the processes of one node sum dense
    gradients in memory that all of them see; 0 where there is none. memcpy_latency: to start a copy
    or kernel on a device (delta of the cost model).
    """

    bandwidth: float = 10 * GIGABIT
    latency: float = 50 * 1e-6
    flow_bandwidth: float = math.inf
    local_bandwidth: float = 40 * GIGABIT
    local_latency: float = 10 * 1e-6
    reduce_bandwidth: float = math.inf
    common_bandwidth: float = 0.0
    memcpy_latency: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ResourceSpec:
    """The nodes, in order, and the network between them.

    ranks: the devices that run replicas, in the order of ranks; () takes them node by node.
    """

    nodes: tuple[Node, ...]
    network: Network = Network()
    ranks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ConfigError("a resource specification without nodes", hint="name at least one")
        addresses = [node.address for node in self.nodes]
        if twice := [a for a in addresses if addresses.count(a) > 1]:
            raise ConfigError(
                f"address {twice[0]} stands twice in the resource specification",
                hint="write one node with all its devices",
            )
        chiefs = [node.address for node in self.nodes if node.chief]
        if not chiefs and len(self.nodes) == 1:
            object.__setattr__(self, "nodes", (dataclasses.replace(self.nodes[0], chief=True),))
        elif len(chiefs) != 1:
            raise ConfigError(
                f"{len(chiefs)} of {len(self.nodes)} nodes are chief: {', '.join(chiefs) or '-'}",
                hint="set chief: true at exactly one node",
            )
        if self.ranks and sorted(self.ranks) != sorted(self._by_node):
            raise ConfigError(
                f"ranks on {', '.join(self.ranks)}, but replicas run on {', '.join(self._by_node)}",
                hint="name each of these once, in the order of ranks",
            )

    @staticmethod
    def local(workers: int, network: Network | None = None) -> ResourceSpec:
        """Return `workers` processes on this machine."""
        if workers < 1:
            raise ConfigError(f"{workers} workers", hint="give at least 1")
        node = Node(address="localhost", cpus=tuple(range(workers)), chief=True)
        return ResourceSpec(nodes=(node,), network=network or Network())

    @property
    def chief(self) -> Node:
        """The chief node, for the reader; work of a single rank is done by rank 0."""
        return next(node for node in self.nodes if node.chief)

    @cached_property
    def devices(self) -> frozenset[str]:
        """The names of all devices."""
        return frozenset(d for node in self.nodes for d in (*node.cpu_devices, *node.gpu_devices))

    @property
    def replicas(self) -> tuple[str, ...]:
        """Where a replica can run: every GPU, and the CPUs of nodes without GPUs."""
        return self.ranks or self._by_node

    @property
    def _by_node(self) -> tuple[str, ...]:
        return tuple(d for node in self.nodes for d in (node.gpu_devices or node.cpu_devices))

    @property
    def cpu_devices(self) -> tuple[str, ...]:
        """The CPU devices of all nodes: where parameter servers can be."""
        return tuple(d for node in self.nodes for d in node.cpu_devices)

    @cached_property
    def _by_address(self) -> dict[str, Node]:
        return {node.address: node for node in self.nodes}

    def node(self, address: str) -> Node:
        """Return the node at `address`. Raises `ConfigError` if there is none."""
        if address not in self._by_address:
            hint = f"the resource specification has {', '.join(self._by_address)}"
            raise ConfigError(f"there is no node {address}", hint=hint)
        return self._by_address[address]

    def bandwidth(self, address: str) -> float:
        """Bytes a second of the node's network card, each way."""
        own = self.node(address).bandwidth
        return self.network.bandwidth if own is None else own

    def link(self, a: str, b: str) -> tuple[float, float]:
        """Bytes a second and seconds a message between two devices."""
        first, second = node_of(a), node_of(b)
        if first == second:
            return self.network.local_bandwidth, self.network.local_latency
        limit = min(self.bandwidth(first), self.bandwidth(second), self.network.flow_bandwidth)
        return limit, self.network.latency
