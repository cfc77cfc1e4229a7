"""`RankTraining`: the training of one rank, and the handshake by which all ranks train the same."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from cavs.compiler.pipeline import default_passes
from cavs.data import GraphBatch, SampleBatch
from cavs.distributed.balance.shards import (
    Collate,
    LoaderSplit,
    ShardedBatch,
    compare_batches,
    contiguous,
    shard,
)
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm.agreement import agreed, attend, is_agreed
from cavs.distributed.comm.launcher_pipe import is_stopping
from cavs.distributed.planning.choice import agreed_strategy, possible_variables
from cavs.distributed.step.program import cluster, facts, guesses, same_trace
from cavs.distributed.step.session import DistributedSession
from cavs.distributed.strategy import Strategy
from cavs.distributed.strategy.ranks import check_hosts, devices_of, hosts_of
from cavs.distributed.strategy.variable import trace_of
from cavs.distributed.strategy.verify import verify, verify_optimizer
from cavs.errors import CommunicationError, ConfigError
from cavs.train.batches import Loader
from cavs.train.fit_options import FitOptions
from cavs.train.stepping import TrainingState

_PATIENCE = 30.0  # seconds that a failing rank waits for the others to hear of its error
_SHORT_PATIENCE = 3.0  # the same if it has also sent them a message
_PROGRESS = ("epoch", "position", "batch_sizes")  # state of a loader
_COMPARED = ("epochs", "patience", "monitor", "restore_best", "checkpoint_every", "carry")


@dataclass(eq=False)
class RankTraining:
    """State and session of one rank, and the settings that all ranks must have alike."""

    state: TrainingState
    session: DistributedSession
    requested: Strategy | str | None  # strategy that the user asked for, or its name
    resources: ResourceSpec | None  # cluster for which a strategy is built
    elastic: bool  # survivors go on after a death
    precision: str  # as for `cavs.Session`, and so are the next two
    deterministic: bool
    scheduling: str
    begun: bool = False  # the handshake has been made
    loader_facts: dict[str, Any] = field(default_factory=dict)  # about the loader of a `fit`
    fit_facts: dict[str, Any] = field(default_factory=dict)  # about its other arguments
    collate: Collate | None = None  # function of that loader

    def __post_init__(self) -> None:
        c = self.session.communicator
        self.first_rank, self.first_size = c.rank, c.size
        self.first_requested = self.requested

    # ---- handshake -----------------------------------------------------------------------------

    def handshake(self, batch: Any) -> None:
        """Check that all ranks train the same, and agree on the strategy; all ranks call it.

        They hold the parameters of rank 0 afterwards. Raises `ConfigError` on all if they differ.
        batch: The first global batch; None if that is not known yet.
        """
        session = self.session
        self.share_parameters()
        try:
            if self.requested is not None:
                self._choose_strategy(batch)
            self._check_split()
        except ConfigError as error:
            agreed(error)  # all ranks check the same
            raise
        if session.asynchronous:  # there is no consensus in a step to compare programs in
            self._compare_traces(batch)
            known = batch if isinstance(batch, GraphBatch | SampleBatch) else None
            compare_batches(session.agreement, known, self.state.steps + 1)
        session.take_roles()
        session.replicas.restore(self.state.states)
        attend(session.communicator, begun=True, asynchronous=session.asynchronous)

    def share_parameters(self) -> None:
        """Send all ranks the parameters of rank 0; `ConfigError` on all if they train otherwise."""
        session = self.session
        session.agreement.same(self._facts())
        for parameter in self.state.parameters.values():
            session.communicator.broadcast(parameter.value, 0)
        session.invalidate()

    def compare_parameters(self, phase: str) -> None:
        """Raise `ConfigError` on all ranks unless all replicas hold the same bits of parameters.

        They are equal after every step, unless they were written on some ranks only, or the
        strategy lets them differ: then nothing is compared. phase: what the ranks are about to do.
        """
        session, c = self.session, self.session.communicator
        if session.is_divergent:
            return
        rank, replicas = session.position
        digests = dict[str, int]()
        with session.agreement.guard(phase):
            session.session.download()
            if rank < replicas:  # others hold no current values of what they do not own
                own = self.state.parameters.items()
                digests = {name: zlib.crc32(p.current().data) for name, p in own}
        marks = np.zeros(c.size)
        marks[rank] = zlib.crc32(np.array([*digests.values()], np.uint32).data)
        c.all_reduce(marks)
        if (marks[:replicas] != marks[0]).any():
            session.agreement.same(
                {f"parameter {name}": f"crc32 {x:08x}" for name, x in digests.items()} or None,
                found=f"the ranks hold different parameters after step {self.state.steps}",
                hint="write parameters on all ranks alike, or load a checkpoint on all of them",
            )

    def _facts(self) -> dict[str, str]:
        session, split = self.session, self.session.split
        passes = session.session.passes
        on = "cpu" if session.session.device is None else "cuda"
        return facts(
            self.state,
            str(self.requested) if session.strategy is None else session.strategy.digest,
            precision=self.precision,
            deterministic=self.deterministic,
            scheduling=self.scheduling,
            # A server without a device has other defaults.
            passes="the default" if passes is default_passes(on) else passes,
            collectives=session.collectives,
            resources=cluster(self.resources),
            split=getattr(split, "__qualname__", type(split).__name__),
            elastic=self.elastic,
            loader=self.loader_facts,
            **self.fit_facts,
        )

    def program_facts(self) -> str:
        """Return a text that ranks which may join a running training have alike."""
        known = self._facts()
        loader = {k: v for k, v in self.loader_facts.items() if k not in _PROGRESS}
        known |= {"loader": str(loader), "strategy": str(self.first_requested)}
        return "\n".join(f"{name}: {known[name]}" for name in sorted(known.keys() - {"steps"}))

    def _choose_strategy(self, batch: Any) -> None:
        """Build or check the strategy: these ranks, hosts and this optimiser can run it."""
        session, model, c = self.session, self.state.model, self.session.communicator
        local = session.session
        gpus = bool(c.share(local.device is not None)[0])  # rank 0 computes, others may not
        if isinstance(self.requested, str):
            example = None
            with session.agreement.guard("start"):
                example = self._example(batch)
            dead = set[int]()  # before there was a strategy
            if self.resources is not None and c.size < self.first_size:
                dead = set(range(self.first_size)) - {int(r) for r in c.share(self.first_rank)}
            session.strategy = agreed_strategy(
                self.requested,
                model,
                example,
                self.resources,
                session.agreement,
                None if example is None else partial(self._gradient_order, example),
                dead,
                gpus=gpus,
                passes=local.passes,
                tell=lambda text: setattr(session, "predicted", text),
            )
        elif session.strategy is not None and c.size == self.first_size:
            hosts = hosts_of(c)
            check_hosts(session.strategy, hosts, gpus=gpus)
            if self.resources is None:
                variables = possible_variables(model, str(local.dtype))
                verify(session.strategy, variables, devices_of(hosts, gpus=gpus))
        if session.strategy is not None:
            verify_optimizer(session.strategy, self.state.optimizer)

    def _gradient_order(self, batch: GraphBatch | SampleBatch) -> list[str]:
        """Run forward and backward; return the parameters in the order of finished gradients."""
        local = self.session.session
        local.gradients(batch)
        executor, names = local.ready(batch)[0], list(local.parameters)
        return [names[i] for i in executor.gradient_order()]

    def _check_split(self) -> None:
        """Raise `ConfigError` if the split of batches does not suit the strategy."""
        session, split = self.session, self.session.split
        requested = self.requested if isinstance(self.requested, str) else "given"
        both = f"{type(split).__name__} with the strategy {requested}"
        if session.asynchronous and getattr(split, "needs_times", False):
            raise ConfigError(
                f"{both}: all parameters are stale, so ranks make asynchronous steps and do not "
                "know each other's times",
                hint="balance by structure or not at all, or keep a parameter synchronous",
            )
        if not session.asynchronous and not session.average and hasattr(split, "update"):
            raise ConfigError(
                f'{both}: its graph.gradients is "sum", so that each rank counts as much as '
                "another, however many graphs it has, and the result would depend on the times of "
                "ranks",
                hint='take graph.gradients "mean", or a split that learns from no times',
            )

    def _compare_traces(self, batch: Any) -> None:
        model: Any = self.state.model
        traced, failed = None, None
        try:
            example = self._example(batch)
            if example is not None and not guesses(example):
                traced = trace_of(model, example)
        except Exception as error:  # the other ranks must learn of it, whatever it is
            failed = error
        same_trace(self.session.agreement, traced, failed)

    def _example(self, batch: Any) -> GraphBatch | SampleBatch | None:
        """Return a shard of the size of this rank's; None if there is no batch."""
        if batch is not None and not isinstance(batch, ShardedBatch):
            c = self.session.communicator
            batch = shard(batch, (c.rank, c.size), contiguous)
        return None if batch is None else batch.local

    # ---- fit -----------------------------------------------------------------------------------

    def note_options(self, options: FitOptions) -> None:
        """Note the options of a `fit` that ranks compare."""
        dev: Any = options.dev  # each rank evaluates some of its batches
        if isinstance(dev, Loader):
            known = _facts_of(dev)
            dev = {name: known[name] for name in sorted(known.keys() - {"epoch", "position"})}
        else:
            dev = len(dev) if isinstance(dev, Sized) else type(dev).__name__
        self.fit_facts = {name: getattr(options, name) for name in _COMPARED} | {"dev": dev}
        self.fit_facts["policies"] = [policy.name for policy in options.policies]
        self.fit_facts["monitors"] = list(map(str, options.monitors))

    def note_loader(self, train: Loader) -> None:
        """Note the facts about the loader of a `fit` that ranks compare."""
        self.loader_facts = _facts_of(train)

    def compare_fits(self) -> None:
        """Raise `ConfigError` on all ranks unless a further `fit` has the same batches and end."""
        self.compare_parameters("fit")
        agreement = self.session.agreement
        known = {"loader": self.loader_facts, **self.fit_facts}
        agreement.same({name: str(value) for name, value in known.items()})

    def reshard_loader(self, *, in_steps: bool = False) -> None:
        """Let the loader shard its next batches over the present replicas.

        in_steps: True if a split that learns is to divide them when their steps begin.
        """
        if self.collate is not None:
            before, split = self.collate.division, self.session.split
            # A new split is asked by steps only: the loaders of the ranks are at different batches.
            ahead = before.ahead if before.split is split and not in_steps else math.inf
            self.collate.division = LoaderSplit(self.session.position, split, ahead)

    # ---- errors --------------------------------------------------------------------------------

    @contextmanager
    def guard(self, phase: str) -> Iterator[None]:
        """Report an error in the block to the other ranks, which are in `phase`."""
        try:
            yield
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt) and self.session.stopping
            if not (stopped or isinstance(error, CommunicationError)):
                self.report_error(phase, error)
            raise

    def report_error(self, phase: str, error: BaseException) -> None:
        """Report `error` to the other ranks, which are in `phase`; once, and if they lack it."""
        if is_agreed(error) or getattr(error, "reported", False):
            return
        if isinstance(error, KeyboardInterrupt) and is_stopping():  # as on the other ranks
            return
        error.reported = True  # type: ignore[attr-defined]  # even if no rank listens
        session, patience = self.session, _PATIENCE
        if session.asynchronous and session.servers is not None:
            session.servers.fail(error)  # ranks may be in any step, where none awaits a consensus
            if not session.servers.settled:
                return
            patience = _SHORT_PATIENCE
        # Ranks that have not begun are about to compare what they train.
        begun = self.begun or phase == "evaluation"
        session.agreement.announce(phase if begun else None, error, patience)


def _facts_of(loader: Loader) -> dict[str, Any]:
    return loader.state_dict() | {"structure and integers": loader.digest()}
