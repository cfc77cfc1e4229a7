"""The engine of a training on many ranks: a session whose steps reduce gradients on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from cavs.data import GraphBatch
from cavs.distributed.balance.shards import ShardedBatch, WholeBatch
from cavs.distributed.comm.agreement import Agreement, closed
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.step.context import Array, StepContext, Update
from cavs.distributed.step.run import StepReport
from cavs.distributed.step.steps import AsynchronousStep, SynchronousStep
from cavs.distributed.strategy import Strategy
from cavs.errors import ProcessLocal
from cavs.runtime import EvalResult
from cavs.train.engine import Engine

_REPLICA = "replica."  # prefix of arrays of all replicas in a checkpoint


class DistributedSession(ProcessLocal, StepContext, Engine):
    """A `Session` of one rank and its exchanges with the others; an engine of a `Trainer`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.predicted = ""  # on rank 0: the prediction of `auto`
        self.writes = 0  # count of writes from outside
        self.evaluated: int | None = None  # rank of the replica that is evaluated; None: the mean
        self.saves_replicas = False  # checkpoints hold every replica, besides the mean
        self.synchronous_step = SynchronousStep(self)
        self.asynchronous_step = AsynchronousStep(self)

    def step(
        self,
        batch: GraphBatch | ShardedBatch,
        hyper: dict[str, Any],
        states: Sequence[Sequence[Array]],
        *,
        seed: int = 0,
        step: int = 0,
        max_norm: float | None = None,
    ) -> StepReport:
        """As `Session.step`, on the global `batch`; raises on all ranks if one of them fails."""
        make = self.asynchronous_step if self.asynchronous else self.synchronous_step
        return make(batch, Update(hyper, states, max_norm, seed, step))

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
        self.kept_memory = kept
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

    # ---- replicas that differ ------------------------------------------------------------------

    def average_replicas(self, states: Sequence[Sequence[Array]] = ()) -> list[Array]:
        """Set parameters, and optimiser `states`, to their mean over the ranks where these differ.

        Returns the arrays that were changed, as they were. All ranks call it.
        """
        if not self.is_divergent or self.roles.count == 1:
            return []
        arrays = self._replicated(states)
        before = [array.copy() for array in arrays]
        for dtype in sorted({array.dtype for array in arrays}, key=str):
            alike = [array for array in arrays if array.dtype == dtype]
            joined = np.concatenate([array.reshape(-1) for array in alike])
            if self.evaluated is None:
                self.communicator.all_reduce(joined, "mean")
            else:
                self.communicator.broadcast(joined, self.evaluated)
            ends = np.cumsum([array.size for array in alike])
            for array, part in zip(alike, np.split(joined, ends[:-1]), strict=True):
                array[...] = part.reshape(array.shape)
        self.session.invalidate()
        return before

    @contextmanager
    def mean_replicas(self, states: Sequence[Sequence[Array]] = ()) -> Iterator[None]:
        """Hold the mean of the replicas in the block, as `average_replicas` does, but not after."""
        before = self.average_replicas(states)
        try:
            yield
        finally:
            if before:
                for array, own in zip(self._replicated(states), before, strict=True):
                    array[...] = own
                self.session.invalidate()

    def gather_replicas(self, states: Sequence[Sequence[Array]]) -> dict[str, Array]:
        """Return parameters and optimiser states of all replicas, [ranks, ...], to be saved.

        Empty unless they differ and are to be saved.
        """
        if not (self.saves_replicas and self.is_divergent):
            return {}
        c, arrays = self.communicator, self._replicated(states)
        every = [c.all_gather(np.ascontiguousarray(array[None])) for array in arrays]
        return {f"{_REPLICA}{i}": np.concatenate(parts) for i, parts in enumerate(every)}

    def restore_replicas(self, states: Sequence[Sequence[Array]]) -> None:
        """Go on with this rank's replica, from a checkpoint that as many ranks wrote with all."""
        kept = {name: a for name, a in self.kept_memory.items() if name.startswith(_REPLICA)}
        for name in kept:
            del self.kept_memory[name]
        if not (kept and self.is_divergent):
            return
        arrays, rank = self._replicated(states), self.communicator.rank
        form = [(self.communicator.size, *array.shape) for array in arrays]
        if [kept[f"{_REPLICA}{i}"].shape for i in range(len(kept))] != form:
            return
        for i, array in enumerate(arrays):
            array[...] = kept[f"{_REPLICA}{i}"][rank]
        self.session.invalidate()

    def _replicated(self, states: Sequence[Sequence[Array]]) -> list[Array]:
        """Return the arrays of floats that a rank updates: parameters, and optimiser `states`."""
        self.session.download()
        values = [p.current() for p in self.session.parameters.values() if p.trainable]
        return values + [a for own in states for a in own if a.dtype.kind == "f"]

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

    def close(self) -> None:
        """End servers and device groups; all ranks have come to an end."""
        closed(self.communicator)
        self.count_all()
        if self.servers is not None:
            self.servers.close()
        if self.group is not None:
            self.group.close()

    # ---- the rest of an engine -----------------------------------------------------------------

    def prepare(self, batch: GraphBatch | WholeBatch, training: bool = True) -> None:
        local = batch.local if isinstance(batch, ShardedBatch) else batch
        if not isinstance(local, WholeBatch):
            self.session.prepare(local, training)

    def keep_dtype(self) -> None:
        self.session.keep_dtype()

    def invalidate(self) -> None:
        """See `Session.invalidate`. ConfigError while gradients of stale parameters travel."""
        self.stale.wrote()
        self.writes += 1
        for exchange in self.exchanges:
            exchange.forget()
        self.session.invalidate()

    def evaluate(self, batch: GraphBatch) -> EvalResult:
        """See `Session.evaluate`; on this rank alone."""
        return self.session.evaluate(batch)

    def predict(self, batch: GraphBatch) -> dict[str, Array]:
        """See `Session.predict`; on this rank alone."""
        return self.session.predict(batch)

    def state_dict(self) -> dict[str, Any]:
        """See `Session.state_dict`; the same on all ranks."""
        return {**self.session.state_dict(), "updates": self.stale.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.session.load_state_dict(state)
        updates = state.get("updates")
        self.stale.resume(updates if isinstance(updates, int) else None, written=True)
