"""The engine of a training on many ranks: a session whose steps reduce gradients on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cavs.data import GraphBatch, SampleBatch
from cavs.distributed.balance.shards import GlobalBatch, ShardedBatch, WholeBatch
from cavs.distributed.comm.agreement import Agreement, closed
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.step.asynchronous_step import AsynchronousStep
from cavs.distributed.step.context import Array, StepContext, Update
from cavs.distributed.step.replicas import Replicas
from cavs.distributed.step.report import StepReport
from cavs.distributed.step.synchronous_step import SynchronousStep
from cavs.distributed.strategy import Strategy
from cavs.errors import ProcessLocal
from cavs.runtime import EvalResult
from cavs.train.carry import CARRIED
from cavs.train.engine import Engine


class DistributedSession(ProcessLocal, StepContext, Engine):
    """A `Session` of one rank and its exchanges with the others; an engine of a `Trainer`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.predicted = ""  # on rank 0: the prediction of `auto`
        self.writes = 0  # count of writes from outside
        self.replicas = Replicas(self)
        self.synchronous_step = SynchronousStep(self)
        self.asynchronous_step = AsynchronousStep(self)

    def step(
        self,
        batch: GlobalBatch,
        hyper: dict[str, Any],
        states: Sequence[Sequence[Array]],
        *,
        seed: int = 0,
        step: int = 0,
        max_norm: float | None = None,
    ) -> StepReport:
        """As `Session.step`, on the global `batch`; raises on all ranks if one of them fails."""
        make = self.asynchronous_step if self.asynchronous else self.synchronous_step
        outcome = make(batch, Update(hyper, states, max_norm, seed, step))
        self.replicas.forget()
        return outcome

    # ---- state from step to step ---------------------------------------------------------------

    def memory(self) -> dict[str, Array]:
        """Return the state of compressors on all ranks, [ranks, ...] each; for a checkpoint."""
        if not self.exchanges:  # nothing has run, and roles may not have been taken
            return self.kept_memory
        found, names = dict[str, Array](), list(self.session.parameters)
        for exchange in self.exchanges:
            for name, array in exchange.memory_of().items():
                every = self.roles.replicas.all_gather(array[None])
                found[f"{names[exchange.parameters[0]]}.{name}"] = np.concatenate(every)
        return found

    def take_memory(self, kept: dict[str, Array], updates: int | None = None) -> None:
        """Continue from the results of `memory` and `updates` of any number of ranks."""
        own = {name: array for name, array in kept.items() if not name.startswith(CARRIED)}
        self.kept_memory = self.replicas.keep(own)
        if updates is not None:
            self.stale.resume(updates)
        for exchange in self.exchanges:
            self.restore_memory(exchange)

    def collect(self, states: Sequence[Sequence[Array]], phase: str = "save") -> None:
        """Bring every optimiser state to all ranks, before a checkpoint; they agree on `phase`."""
        with self.agreement.guard(phase):
            self.session.download()
        for exchange in self.exchanges:
            exchange.collect(states, self.communicator)
        if self.servers is not None and self.servers.phase:  # also states from before a load
            self.servers.collect(states, self.communicator)

    # ---- ranks that come to an end -------------------------------------------------------------

    def leave(self) -> None:
        """Abort what other ranks wait for, because one of them has died."""
        self.count_all()
        if self.servers is not None:
            self.servers.leave()
        if self._roles is not None:
            self._roles.leave()
        if self.group is not None:
            self.group.abort()

    def move_to(self, communicator: Communicator, strategy: Strategy | None) -> None:
        """Go on with the ranks of `communicator`, the survivors, under their strategy.

        The state of this rank's compressors keeps its weight; where ranks own parameters,
        `take_memory` is to restore the state of all ranks.
        """
        before = self._roles
        self.communicator, self.agreement = communicator, Agreement(communicator)
        self.strategy = strategy
        self.take_roles()
        self.exchanging = self.group = self.servers = None  # owners may be others now
        self.count_all()
        self.stale.wrote()
        if self.owns:
            self.exchanges = []
        elif before is not None and self.average:
            for exchange in self.exchanges:
                exchange.weigh(self.roles.count / before.count)

    def finish(self) -> None:
        """Commit the step that this rank could not finish, because other ranks have."""
        for exchange in self.exchanges:
            exchange.commit()
        self.stale.applied()

    def close(self) -> None:
        """End servers and device groups; all ranks have come to an end."""
        closed(self.communicator)
        self.count_all()
        if self.servers is not None:
            self.servers.close()
        if self.group is not None:
            self.group.close()

    # ---- the rest of an engine -----------------------------------------------------------------

    def prepare(self, batch: GlobalBatch, training: bool = True) -> None:
        if isinstance(batch, ShardedBatch):
            self.session.prepare(batch.local, training)
        elif not training and not isinstance(batch, WholeBatch):  # a step divides it first
            self.session.prepare(batch, training)

    def keep_dtype(self) -> None:
        self.session.keep_dtype()

    def invalidate(self) -> None:
        """See `Session.invalidate`. ConfigError while gradients of stale parameters travel."""
        self.stale.wrote()
        self.writes += 1
        for exchange in self.exchanges:
            exchange.forget()
        self.session.invalidate()

    def evaluate(self, batch: GraphBatch | SampleBatch) -> EvalResult:
        """See `Session.evaluate`; on this rank alone."""
        return self.session.evaluate(batch)

    def predict(self, batch: GraphBatch | SampleBatch) -> dict[str, Array]:
        """See `Session.predict`; on this rank alone."""
        return self.session.predict(batch)

    def state_dict(self) -> dict[str, Any]:
        """See `Session.state_dict`; the same on all ranks."""
        return {**self.session.state_dict(), "updates": self.stale.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.session.load_state_dict(state)
        updates = state.get("updates")
        self.stale.resume(updates if isinstance(updates, int) else None, written=True)
