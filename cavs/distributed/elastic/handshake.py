"""Handshake before the first step: all ranks train the same, by one strategy."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from cavs.compiler.pipeline import default_passes
from cavs.data import GraphBatch
from cavs.distributed.balance.shards import ShardedBatch, contiguous, make_of, shard
from cavs.distributed.comm.agreement import agreed, attend
from cavs.distributed.elastic.training import RankTraining
from cavs.distributed.planning.choice import agreed_strategy, possible_variables
from cavs.distributed.step.digest import cluster, facts, guesses, same_trace
from cavs.distributed.strategy.hosts import check_hosts, devices_of, hosts_of
from cavs.distributed.strategy.variable import trace_of
from cavs.distributed.strategy.verify import verify, verify_optimizer
from cavs.errors import ConfigError
from cavs.runtime import Session
from cavs.train.fit_options import FitOptions
from cavs.train.loader import DataLoader

_COMPARED = ("epochs", "patience", "monitor", "restore_best", "checkpoint_every")


def handshake(training: RankTraining, batch: Any) -> None:
    """Check that all ranks train the same, and agree on the strategy; all ranks call it.

    They hold the parameters of rank 0 afterwards. Raises `ConfigError` on all if they differ.
    batch: The first global batch; None if that is not known yet.
    """
    session = training.session
    same_training(training)
    try:
        if training.requested is not None:
            _choose_strategy(training, batch)
        _check_split(training)
    except ConfigError as error:
        agreed(error)  # all ranks check the same
        raise
    if session.asynchronous:  # there is no consensus in a step to compare programs in
        _same_trace(training, batch)
    session.take_roles()
    attend(training.communicator, begun=True, asynchronous=session.asynchronous)


def same_training(training: RankTraining) -> None:
    """Send all ranks the parameters of rank 0; `ConfigError` on all if they train differently."""
    training.agreement.same(_facts(training))
    for parameter in training.state.parameters.values():
        training.communicator.broadcast(parameter.value, 0)
    training.session.invalidate()


def _choose_strategy(training: RankTraining, batch: Any) -> None:
    """Build or check the strategy: these ranks, hosts and this optimiser can run it."""
    session, c, state = training.session, training.communicator, training.state
    gpus = bool(c.share(session.session.device is not None)[0])  # rank 0 computes, others may not
    if isinstance(training.requested, str):
        example = None
        with training.agreement.guard("start"):
            example = _example(training, batch)
        session.strategy = agreed_strategy(
            training.requested,
            state.model,
            example,
            training.resources,
            training.agreement,
            None if example is None else lambda: _run(session.session, example),
            _dead_ranks(training) if training.resources is not None else (),
            gpus=gpus,
            passes=session.session.passes,
            tell=lambda text: setattr(session, "predicted", text),
        )
    elif session.strategy is not None and c.size == training.first_size:
        hosts = hosts_of(c)
        check_hosts(session.strategy, hosts, gpus=gpus)
        if training.resources is None:
            variables = possible_variables(state.model, str(session.session.dtype))
            verify(session.strategy, variables, devices_of(hosts, gpus=gpus))
    if session.strategy is not None:
        verify_optimizer(session.strategy, state.optimizer)


def compare_fits(training: RankTraining) -> None:
    """Raise `ConfigError` on all ranks unless a further `fit` has the same batches and end."""
    training.session.stale.settle()
    training.agreement.consensus("fit")
    facts = {"loader": training.loader_facts, **training.fit_facts}
    training.agreement.same({name: str(value) for name, value in facts.items()})


def compared(options: FitOptions) -> dict[str, Any]:
    """Return the facts about the options of a `fit` that ranks compare."""
    dev: Any = options.dev  # each rank evaluates some of its batches
    if isinstance(dev, DataLoader):
        state = dev.state_dict() | {"structure and integers": dev.digest()}
        dev = {name: state[name] for name in sorted(state.keys() - {"epoch", "position"})}
    else:
        dev = len(dev) if isinstance(dev, Sized) else type(dev).__name__
    return {name: getattr(options, name) for name in _COMPARED} | {"dev": dev}


def _dead_ranks(training: RankTraining) -> set[int]:
    """Return the ranks that died before there was a strategy, by their first numbers."""
    if training.communicator.size == training.first_size:
        return set()
    alive = {int(r) for r in training.communicator.share(training.first_rank)}
    return set(range(training.first_size)) - alive


def _facts(training: RankTraining) -> dict[str, str]:
    session, state = training.session, training.state
    split, passes = session.split, session.session.passes
    on = "cpu" if session.session.device is None else "cuda"
    return facts(
        state.model,
        state.parameters,
        state.optimizer,
        state.seed,
        str(training.requested) if session.strategy is None else session.strategy.digest,
        steps=state.steps,
        max_norm=state.max_norm,
        options={k: v for k, v in state.config.items() if k != "data"},
        precision=training.precision,
        deterministic=training.deterministic,
        # A server without a device has other defaults.
        passes="the default" if passes is default_passes(on) else passes,
        collectives=session.collectives,
        resources=cluster(training.resources),
        split=getattr(split, "__qualname__", type(split).__name__),
        elastic=training.elastic,
        loader=training.loader_facts,
        **training.fit_facts,
    )


def _example(training: RankTraining, batch: Any) -> GraphBatch | None:
    """Return a shard of the size of this rank's; None if there is no batch."""
    if batch is not None and not isinstance(batch, ShardedBatch):
        c = training.communicator
        batch = shard(batch.graphs, batch.ids, c.rank, c.size, contiguous, make_of(batch))
    return None if batch is None else batch.local


def _run(session: Session, batch: GraphBatch) -> list[str]:
    """Run forward and backward; return the parameters in the order in which gradients finish."""
    session.gradients(batch)
    executor, names = session.ready(batch)[0], list(session.parameters)
    return [names[i] for i in executor.gradient_order()]


def _same_trace(training: RankTraining, batch: Any) -> None:
    model: Any = training.state.model
    traced, failed = None, None
    try:
        example = _example(training, batch)
        if example is not None and not guesses(example):
            traced = trace_of(model, example)
    except Exception as error:  # the other ranks must learn of it, whatever it is
        failed = error
    same_trace(training.agreement, traced, failed)


def _check_split(training: RankTraining) -> None:
    """Raise `ConfigError` if the split of batches does not suit the strategy."""
    session, split = training.session, training.session.split
    requested = training.requested if isinstance(training.requested, str) else "given"
    both = f"{type(split).__name__} with the strategy {requested}"
    if session.asynchronous and getattr(split, "needs_times", False):
        raise ConfigError(
            f"{both}: all parameters are stale, so ranks make asynchronous steps and do not know "
            "each other's times",
            hint="balance by structure or not at all, or keep a parameter synchronous",
        )
    if not session.asynchronous and not session.average and hasattr(split, "update"):
        raise ConfigError(
            f'{both}: its graph.gradients is "sum", so that each rank counts as much as another, '
            "however many graphs it has, and the result would depend on the times of ranks",
            hint='take graph.gradients "mean", or a split that learns from no times',
        )
