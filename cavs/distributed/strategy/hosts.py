"""The hosts of the ranks, and the check that a strategy puts ranks there."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from cavs.distributed.cluster.resources import Node, ResourceSpec, node_of
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.strategy import Strategy
from cavs.errors import ConfigError

LOCAL = "localhost"  # the address of the host where all ranks are on one


def hosts_of(c: Communicator) -> list[str]:
    """Return the host of every rank; all ranks call it."""
    names = [str(name) for name in c.share(socket.gethostname())]
    return [LOCAL] * len(names) if len(set(names)) == 1 else names


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

    hosts: of every rank. Those of the strategy are compared with them if it names the same ones;
    else its addresses are names that a resource specification gave. gpus: True if ranks compute on
    GPUs; those that only own parameters need none.
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
