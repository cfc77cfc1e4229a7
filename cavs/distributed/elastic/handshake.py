"""What all ranks do before the first step: see that they train the same, and agree on how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cavs.compiler.pipeline import default_passes
from cavs.data import GraphBatch
from cavs.distributed.balance.shards import ShardedBatch, contiguous, make_of, shard
from cavs.distributed.comm.agreement import agreed
from cavs.distributed.comm.exit_hooks import attend
from cavs.distributed.planning.choice import agreed_strategy, possible_variables
from cavs.distributed.step.digest import cluster, facts, guesses, same_trace
from cavs.distributed.strategy.hosts import check_places, devices_of, hosts_of
from cavs.distributed.strategy.measure import trace_of
from cavs.distributed.strategy.verify import verify, verify_optimizer
from cavs.errors import ConfigError
from cavs.runtime import Session
from cavs.train.loader import DataLoader

if TYPE_CHECKING:
    from cavs.distributed.trainer import Trainer

_ENDS = ("epochs", "patience", "monitor", "restore_best", "checkpoint_every")


def start(trainer: Trainer, batch: Any) -> None:
    """All ranks of `trainer` call it; ConfigError on all if they do not go together.

    They hold the parameters of rank 0 afterwards, and one strategy. batch: the first global one;
    None if that is not known yet.
    """
    session = trainer.session
    alike(trainer)
    with _refused_alike():
        if trainer.asked is not None:
            _choose(trainer, batch)
        if session.free and getattr(session.split, "needs_times", False):
            raise _without_times(trainer)
        if not session.free and not session.average and hasattr(session.split, "update"):
            raise _by_the_clock(trainer)
    if session.free:  # ranks meet in no step, where they would compare programs
        _same_trace(trainer, batch)
    session.take_roles()
    attend(trainer.communicator, begun=True, free=session.free)


def alike(trainer: Trainer) -> None:
    """All ranks hold the parameters of rank 0; ConfigError on all if they do not go together."""
    trainer.agreement.same(_facts(trainer))
    for parameter in trainer.parameters.values():
        trainer.communicator.broadcast(parameter.value, 0)
    trainer.session.invalidate()


def _choose(trainer: Trainer, batch: Any) -> None:
    """The strategy is one that these ranks can run, where they are, with this optimiser."""
    session, c = trainer.session, trainer.communicator
    gpus = bool(c.share(session.session.device is not None)[0])  # rank 0 computes, others may not
    if isinstance(trainer.asked, str):
        example, failed = None, None
        try:
            example = _example(trainer, batch)
        except Exception as error:  # the other ranks must learn of it, whatever it is
            failed = error
        trainer.agreement.meet("start", failed)
        session.strategy = agreed_strategy(
            trainer.asked,
            trainer.model,
            example,
            trainer.resources,
            trainer.agreement,
            None if example is None else lambda: _ran(session.session, example),
            _gone(trainer) if trainer.resources is not None else (),
            gpus=gpus,
            passes=session.session.passes,
            tell=lambda text: setattr(session, "predicted", text),
        )
        trainer.strategy_made()
    elif session.strategy is not None and c.size == trainer.first_place[1]:
        hosts = hosts_of(c)
        check_places(session.strategy, hosts, gpus=gpus)
        if trainer.resources is None:
            variables = possible_variables(trainer.model, str(session.session.dtype))
            verify(session.strategy, variables, devices_of(hosts, gpus=gpus))
    if session.strategy is not None:
        verify_optimizer(session.strategy, trainer.optimizer)


def same_loader(trainer: Trainer) -> None:
    """ConfigError on all ranks unless a further `fit` is the same on all: batches and end."""
    trainer.session.stale.settle()
    trainer.agreement.meet("fit")
    facts = {"loader": trainer.loader, **trainer.ends}
    trainer.agreement.same({name: str(value) for name, value in facts.items()})


def compared(options: Mapping[str, Any]) -> dict[str, Any]:
    """What ranks compare of the options of `fit`: when it ends, and with what."""
    return {name: options.get(name) for name in _ENDS} | {"dev": _judges(options.get("dev"))}


def _judges(dev: Any) -> Any:
    """What ranks compare of the data that a `fit` judges by: each takes some of its batches."""
    if isinstance(dev, DataLoader):
        state = dev.state_dict() | {"structure and integers": dev.digest()}
        return {name: state[name] for name in sorted(state.keys() - {"epoch", "position"})}
    return len(dev) if isinstance(dev, Sized) else type(dev).__name__


def _gone(trainer: Trainer) -> set[int]:
    """The ranks that died before there was a strategy, by the numbers that all had then."""
    rank, count = trainer.first_place
    if trainer.communicator.size == count:
        return set()
    return set(range(count)) - {int(r) for r in trainer.communicator.share(rank)}


def _facts(trainer: Trainer) -> dict[str, str]:
    session = trainer.session
    split, passes = session.split, session.session.passes
    on = "cpu" if session.session.device is None else "cuda"
    return facts(
        trainer.model,
        trainer.parameters,
        trainer.optimizer,
        trainer.seed,
        str(trainer.asked) if session.strategy is None else session.strategy.digest,
        steps=trainer.steps,
        max_norm=trainer.max_norm,
        options={k: v for k, v in trainer.config.items() if k != "data"},
        precision=trainer.precision,
        deterministic=trainer.deterministic,
        # A rank without a device, which only owns parameters, has other defaults.
        passes="the default" if passes is default_passes(on) else passes,
        collectives=session.collectives,
        resources=cluster(trainer.resources),
        split=getattr(split, "__qualname__", type(split).__name__),
        elastic=trainer.elastic,
        loader=trainer.loader,
        **trainer.ends,
    )


def _example(trainer: Trainer, batch: Any) -> GraphBatch | None:
    """About what a rank computes of `batch`."""
    if batch is None or isinstance(batch, ShardedBatch):
        return None if batch is None else batch.local
    c = trainer.communicator
    return shard(batch.graphs, batch.ids, c.rank, c.size, contiguous, make_of(batch)).local


def _ran(session: Session, batch: GraphBatch) -> list[str]:
    """Forward and backward; the parameters in the order in which their gradients are done."""
    session.gradients(batch)
    executor, names = session.ready(batch)[0], list(session.parameters)
    return [names[i] for i in executor.gradient_order()]


def _same_trace(trainer: Trainer, batch: Any) -> None:
    model: Any = trainer.model
    traced, failed = None, None
    try:
        example = _example(trainer, batch)
        if example is not None and not guesses(example):
            traced = trace_of(model, example)
    except Exception as error:  # the other ranks must learn of it, whatever it is
        failed = error
    same_trace(trainer.agreement, traced, failed)


def _refused(trainer: Trainer) -> str:
    asked = trainer.asked if isinstance(trainer.asked, str) else "given"
    return f"{type(trainer.session.split).__name__} with the strategy {asked}"


def _by_the_clock(trainer: Trainer) -> ConfigError:
    return ConfigError(
        f'{_refused(trainer)}: its graph.gradients is "sum", so that each rank counts as much as '
        "another, however many graphs it has, and the result would depend on the times of ranks",
        hint='take graph.gradients "mean", or a split that learns from no times',
    )


def _without_times(trainer: Trainer) -> ConfigError:
    return ConfigError(
        f"{_refused(trainer)}: all parameters are stale, so ranks meet in no step and do not know "
        "each other's times",
        hint="balance by structure or not at all, or keep a parameter synchronous",
    )


@contextmanager
def _refused_alike() -> Iterator[None]:
    """What is refused inside is refused on all ranks: all look at the same."""
    try:
        yield
    except ConfigError as error:
        agreed(error)
        raise
