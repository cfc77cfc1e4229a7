"""The strategy that a name asks for: made on rank 0, run on all."""

from __future__ import annotations

import dataclasses
import socket
from typing import Any

from cavs.data import GraphBatch
from cavs.distributed.agreement import Agreement
from cavs.distributed.communicator.protocol import Communicator
from cavs.distributed.cost import calibrate, make_strategy
from cavs.distributed.resources import Node, ResourceSpec
from cavs.distributed.strategy import Strategy, to_text
from cavs.distributed.strategy.measure import measured_variables
from cavs.distributed.strategy.text import from_text
from cavs.errors import ConfigError


def agreed_strategy(
    name: str,
    model: Any,
    batch: GraphBatch | None,
    resources: ResourceSpec | None,
    agreement: Agreement,
) -> Strategy:
    """What ``name`` makes of the model and rank 0's part of a batch; `ConfigError` on all ranks.

    Where no `resources` are given, ``auto`` measures the speed of messages first.
    """
    c = agreement.communicator
    cluster = resources
    if cluster is None:
        cluster = hosts(c)
        if name == "auto":
            addresses = [a for node in cluster.nodes for a in [node.address] * len(node.cpus)]
            network = calibrate(c, addresses, cluster.network)
            cluster = dataclasses.replace(cluster, network=network)
    text, failed = "", None
    if c.rank == 0:
        try:
            dtype = str(next(iter(model.parameters().values())).value.dtype)
            made = make_strategy(name, measured_variables(model, batch, dtype=dtype), cluster)
            fits(made, c.size)
            text = to_text(made)
        except Exception as error:  # the other ranks must learn of it, whatever it is
            failed = error
    agreement.meet("step", failed)
    return from_text(str(c.share(text)[0]))


def hosts(c: Communicator) -> ResourceSpec:
    """A node for each host, in the order of ranks, with a CPU for each rank that runs on it."""
    names = [str(name) for name in c.share(socket.gethostname())]
    if len(set(names)) == 1:
        return ResourceSpec.local(c.size)
    return ResourceSpec(
        nodes=tuple(
            Node(address=name, cpus=tuple(range(names.count(name))), chief=name == names[0])
            for name in dict.fromkeys(names)
        )
    )


def fits(strategy: Strategy, size: int) -> None:
    """Raises `ConfigError` if the strategy is not one that `size` ranks can run."""
    replicas, servers = len(strategy.graph.replicas), len(strategy.graph.servers)
    if replicas + servers != size:
        raise ConfigError(
            f"the strategy has {replicas} replicas and {servers} servers, but there are "
            f"{size} ranks",
            hint="start one rank for each replica and each server",
        )
