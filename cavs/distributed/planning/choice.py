"""The strategy that a name asks for: built on rank 0, run on all."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from cavs.compiler.pipeline import Passes
from cavs.config import num_threads
from cavs.data import GraphBatch, SampleBatch
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm.agreement import Agreement
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.planning.auto import is_file, make_strategy, measures
from cavs.distributed.planning.compute import Compute
from cavs.distributed.planning.cost import calibrate, cards, simulate
from cavs.distributed.strategy import Strategy, Variable, in_order, ranks, variables_of
from cavs.distributed.strategy.text import from_text, load, to_text
from cavs.distributed.strategy.variable import measured_variables

_RUNS = 3  # the first compiles
_FORWARD = 1 / 3  # part of a step's computation


def agreed_strategy(
    name: str,
    model: Any,
    batch: GraphBatch | SampleBatch | None,
    resources: ResourceSpec | None,
    agreement: Agreement,
    run: Callable[[], Sequence[str]] | None = None,
    gone: Collection[int] = (),
    *,
    gpus: bool = False,
    passes: Passes | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Strategy:
    """Return the strategy ``name`` for the model and rank 0's part of a batch; errors on all ranks.

    run: forward and backward of this rank, which ``auto`` times: as long as that, messages cost
    nothing. It gives the names of parameters in the order in which their gradients are done. Where
    no `resources` are given, ``auto`` measures the speed of messages, too. gone: ranks of
    `resources` that have died since; the others have the numbers that are left. gpus: True if ranks
    compute on GPUs. passes: of the compiler. tell: gets the predicted time of ``auto``, on rank 0.
    """
    c = agreement.communicator
    hosts = ranks.hosts_of(c)
    compute, order = Compute(), list[str]()
    if measures(name) and run is not None:
        compute, order = _measured(run, agreement)
    if resources is not None:
        cluster = ranks.in_rank_order(resources, hosts)
    elif measures(name):
        cluster = measured_cluster(c, gpus=gpus)
    else:
        cluster = (ranks.devices_of if is_file(name) else ranks.cluster_of)(hosts, gpus=gpus)
    text = ""
    with agreement.guard("step"):
        if c.rank == 0:
            dtype = str(next(iter(model.parameters().values())).value.dtype)
            measured = measured_variables(model, batch, dtype=dtype, passes=passes)
            variables = in_order(measured, order)
            made = make_strategy(name, variables, cluster, compute)
            if measures(name):
                besides = "" if compute.seconds else " besides what it computes"
                milliseconds = simulate(made, variables, cluster, compute).seconds * 1e3
                tell(f"predicted {milliseconds:.3g} ms a step{besides}")
            ranks.fits(made, c.size + len(gone))
            if gone:
                made = ranks.without(made, gone, {v.name: v.shape for v in variables})
            text = to_text(made)
    strategy = from_text(str(c.share(text)[0]))
    if not gone:
        ranks.check_hosts(strategy, hosts, gpus=gpus)
    return strategy


def measured_cluster(c: Communicator, *, gpus: bool = False) -> ResourceSpec:
    """Return the hosts of the ranks and the measured network between them; all ranks call it."""
    hosts = ranks.hosts_of(c)
    cluster = ranks.cluster_of(hosts, gpus=gpus)
    network = calibrate(c, hosts, cluster.network)
    if gpus:  # gradients are on devices
        network = replace(network, common_bandwidth=0.0)
    own = cards(c, hosts)
    nodes = tuple(replace(node, bandwidth=own.get(node.address)) for node in cluster.nodes)
    return replace(cluster, nodes=nodes, network=network)


def number_of_replicas(
    strategy: Strategy | str | None, model: Any, c: Communicator, resources: ResourceSpec | None
) -> int:
    """Return how many ranks compute, the first ones, if devices are GPUs; all ranks call it.

    Before the first step, rank 0 builds the strategy without a batch, on which the number does not
    depend. With ``auto`` all ranks compute.
    """
    if isinstance(strategy, Strategy):
        return len(strategy.graph.replicas)
    if strategy is None or measures(strategy):
        return c.size
    hosts, count = ranks.hosts_of(c), 0
    with Agreement(c).guard("start"):
        if c.rank == 0:
            if is_file(strategy):  # it may fit some batches alone
                made = load(strategy)
            else:
                cluster = resources or ranks.cluster_of(hosts, gpus=True)
                made = make_strategy(strategy, possible_variables(model), cluster)
            count = len(made.graph.replicas)
    return int(c.share(count)[0])


def possible_variables(model: Any, dtype: str = "float32") -> tuple[Variable, ...]:
    """Return the trained parameters as they may be: a compiled batch shows which gradients are
    products, and which tables have more than rows of one.
    """
    maybe = {name: 0.0 for name, p in model.parameters().items() if len(p.shape) == 2}
    return variables_of(model, dtype=dtype, factors=maybe)


def _measured(run: Callable[[], Sequence[str]], agreement: Agreement) -> tuple[Compute, list[str]]:
    """Return a rank's computation in a step, the same on all ranks, and the result of `run`.

    No work where the ranks of one host leave no core free: a rank that sends does not compute.
    """
    c = agreement.communicator
    seconds, order = math.inf, list[str]()
    if c.size == 1 or not all(c.share(_has_free_core(c))):
        return Compute(), order
    with agreement.guard("step"):
        for _ in range(_RUNS):
            begun = time.perf_counter()
            order = list(run())
            seconds = min(seconds, time.perf_counter() - begun)
    every = [float(s) for s in c.share(seconds)]
    mean = sum(every) / c.size
    return Compute(mean * _FORWARD, mean * (1 - _FORWARD), slowest=max(every) / mean), order


def _has_free_core(c: Communicator) -> bool:
    names = c.share(socket.gethostname())
    count = names.count(names[c.rank])
    return count == 1 or count * num_threads() < len(os.sched_getaffinity(0))
