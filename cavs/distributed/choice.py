"""The strategy that a name asks for: made on rank 0, run on all."""

from __future__ import annotations

import dataclasses
import math
import os
import socket
import time
from collections.abc import Callable, Collection
from typing import Any

from cavs.config import num_threads
from cavs.data import GraphBatch
from cavs.distributed.agreement import Agreement
from cavs.distributed.communicator.protocol import Communicator
from cavs.distributed.cost import Compute, calibrate, make_strategy
from cavs.distributed.resources import Node, ResourceSpec
from cavs.distributed.strategy import Strategy, to_text
from cavs.distributed.strategy.lose import without
from cavs.distributed.strategy.measure import measured_variables
from cavs.distributed.strategy.text import from_text
from cavs.errors import ConfigError

_RUNS = 3  # the first compiles
_FORWARD = 1 / 3  # of a step's computation


def agreed_strategy(
    name: str,
    model: Any,
    batch: GraphBatch | None,
    resources: ResourceSpec | None,
    agreement: Agreement,
    run: Callable[[], object] | None = None,
    gone: Collection[int] = (),
) -> Strategy:
    """What ``name`` makes of the model and rank 0's part of a batch; `ConfigError` on all ranks.

    gone: ranks of `resources` that have died since; the others have the numbers that are left.
    Where no `resources` are given, ``auto`` measures the speed of messages first, and how long
    `run` takes, forward and backward of this rank: as long as that, messages cost nothing.
    """
    c = agreement.communicator
    cluster, compute = resources, Compute()
    if name == "auto" and run is not None:
        compute = _measured(run, agreement)
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
            variables = measured_variables(model, batch, dtype=dtype)
            made = make_strategy(name, variables, cluster, compute)
            fits(made, c.size + len(gone))
            made = without(made, gone, variables) if gone else made
            text = to_text(made)
        except Exception as error:  # the other ranks must learn of it, whatever it is
            failed = error
    agreement.meet("step", failed)
    return from_text(str(c.share(text)[0]))


def _measured(run: Callable[[], object], agreement: Agreement) -> Compute:
    """A rank's work in a step beside which messages travel; the same on all ranks.

    None where the ranks of one host leave no core free: then who sends does not compute.
    """
    c = agreement.communicator
    if c.size == 1 or not all(c.share(_has_free_core(c))):
        return Compute()
    seconds, failed = math.inf, None
    try:
        for _ in range(_RUNS):
            begun = time.perf_counter()
            run()
            seconds = min(seconds, time.perf_counter() - begun)
    except Exception as error:  # the other ranks must learn of it, whatever it is
        failed = error
    agreement.meet("step", failed)
    every = [float(s) for s in c.share(seconds)]
    mean = sum(every) / c.size
    return Compute(mean * _FORWARD, mean * (1 - _FORWARD), slowest=max(every) / mean)


def _has_free_core(c: Communicator) -> bool:
    names = c.share(socket.gethostname())
    ranks = names.count(names[c.rank])
    return ranks == 1 or ranks * num_threads() < len(os.sched_getaffinity(0))


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
