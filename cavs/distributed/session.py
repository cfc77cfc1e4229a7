"""The engine of a training on many ranks: a session whose steps reduce gradients on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.data import GraphBatch
from cavs.distributed.agreement import Agreement
from cavs.distributed.communicator.protocol import Communicator, Handle
from cavs.distributed.shards import ShardedBatch, Split, contiguous, shard
from cavs.distributed.strategy import Strategy
from cavs.distributed.synchronisers import Exchange, Piece, exchanges_of
from cavs.errors import CommunicationError, ConfigError
from cavs.runtime import Session
from cavs.runtime.variant import EvalResult

Array = NDArray[Any]


@dataclass(frozen=True)
class StepReport:
    """A step on all ranks.

    loss, grad_norm: of the global batch. compute_seconds: this rank's forward and backward.
    communication_seconds: spent in reducing gradients; exposed_seconds: the part of it after
    backward had ended. sent_bytes: by this rank. rank_seconds: compute_seconds of every rank.
    """

    loss: float
    grad_norm: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    sent_bytes: int
    rank_seconds: tuple[float, ...] = ()

    @property
    def overlap(self) -> float:
        """The share of communication time hidden behind computation; 1 without communication."""
        if self.communication_seconds <= 0:
            return 1.0
        return 1.0 - min(1.0, self.exposed_seconds / self.communication_seconds)


class DistributedSession:
    """A `Session` of one rank, and the exchanges with the others; an engine of a `Trainer`.

    strategy: None reduces all gradients to all ranks, in buckets, as they become ready. split:
    which rank takes which graphs of a batch. wait_free: False starts to communicate after
    backward; for comparison.
    """

    def __init__(
        self,
        session: Session,
        communicator: Communicator,
        strategy: Strategy | None = None,
        *,
        split: Split = contiguous,
        wait_free: bool = True,
    ) -> None:
        self.session, self.communicator, self.strategy = session, communicator, strategy
        self.split, self.wait_free = split, wait_free
        self.agreement = Agreement(communicator)
        self._int_features: list[str] = []
        self._exchanges: list[Exchange] = []
        self.wants_stop = self.stopping = False  # this rank's wish; what all know of
        self._trainable = [p.trainable for p in session.parameters.values()]

    # ---- a step --------------------------------------------------------------------------------

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
        sent = self.communicator.sent_bytes
        part, executor, inputs = self._prepare(batch)
        totals = self._totals(part)
        scale = 0.0 if part.empty else float(self.communicator.size)
        # Every rank draws its own dropout masks; one rank alone draws those of `Session`.
        own_seed = seed + (self.communicator.rank << 32)
        run = _Run(executor, self._exchanges, self.communicator, self.wait_free)
        words = self.session.readable_errors(part.local)
        loss, error = run.go(words, (*inputs, own_seed, step, scale, totals))
        return self._finish(run, loss, error, (hyper, states, max_norm), sent)

    def _prepare(self, batch: GraphBatch | ShardedBatch) -> tuple[ShardedBatch, Any, Any]:
        """This rank's part, the executor that all ranks have alike, and its inputs."""
        part: ShardedBatch | None = None
        failed: Exception | None = None
        new = True
        try:
            part = self.shard(batch)
            new = self.session.is_new(part.local)
            if not new:
                executor, inputs, _ = self.session.ready(part.local)
        except Exception as error:  # the other ranks must learn of it, whatever it is
            failed = error
        meeting = self.agreement.meet("step", failed, new=new, stop=self.wants_stop)
        self.stopping |= meeting.stop
        assert part is not None
        if meeting.new:
            executor, inputs = self._compile(part)
        return part, executor, inputs

    def _compile(self, part: ShardedBatch) -> tuple[Any, Any]:
        """One program on all ranks, and its exchanges."""
        failed: Exception | None = None

        def union(values: Sequence[Any]) -> list[Any]:
            return sorted({v for other in self.communicator.share(list(values)) for v in other})

        try:
            self.session.compile_for(part.local, union)
            executor, inputs, compiled = self.session.ready(part.local)
            kinds = compiled.program.gradients
            fresh = exchanges_of(self.strategy, executor, self.session.parameters, kinds)
            for exchange in fresh:
                exchange.inherit(self._exchanges)
            self._int_features, self._exchanges = compiled.program.int_features, fresh
        except CommunicationError:
            raise
        except Exception as error:  # as above
            failed = error
        self.agreement.meet("step", failed)
        return executor, inputs

    def _totals(self, part: ShardedBatch) -> list[float]:
        """Graphs, vertices, edges and present values of index features, of the global batch."""
        local = part.local
        counts = [local.num_graphs, local.num_vertices, local.num_edges]
        counts += [int(np.count_nonzero(local[name] >= 0)) for name in self._int_features]
        totals = np.array(counts, np.float64) * (not part.empty)
        self.communicator.all_reduce(totals)
        result: list[float] = totals.tolist()
        return result

    def _finish(
        self,
        run: _Run,
        loss: float,
        error: Exception | None,
        update: tuple[dict[str, Any], Sequence[Sequence[Array]], float | None],
        sent: int,
    ) -> StepReport:
        """Agree on loss and norm, then update: on all ranks or on none."""
        c, (hyper, states, max_norm) = self.communicator, update
        counted = [p.as_tuple() for p in run.pieces if p.owned or c.rank == 0]
        squares = run.executor.squared_norm(counted) if error is None else 0.0
        ends = np.zeros(3 + c.size)
        ends[:3] = loss, squares, error is not None
        ends[3 + c.rank] = run.compute_seconds
        c.all_reduce(ends)
        if ends[2]:
            self.agreement.meet("end of step", error)
        loss, norm = ends[0] / c.size, math.sqrt(ends[1]) / c.size
        if math.isfinite(loss) and math.isfinite(norm):
            scale = 1.0 / c.size
            if max_norm is not None and norm > max_norm:
                scale *= max_norm / norm
            lists = [list(s) for s in states]
            pieces = [p.as_tuple() for p in run.pieces]
            run.executor.apply(pieces, hyper, lists, self._trainable, scale)
            for exchange in self._exchanges:
                exchange.distribute(c)
                exchange.commit()
            if self._serves:
                self.session.invalidate()
            self.session.moved(run.executor)
        return StepReport(
            float(loss),
            norm,
            run.compute_seconds,
            run.communication_seconds,
            run.exposed_seconds,
            c.sent_bytes - sent,
            tuple(ends[3:].tolist()),
        )

    @property
    def _serves(self) -> bool:
        """Whether values come from other ranks after an update."""
        return any(type(e).distribute is not Exchange.distribute for e in self._exchanges)

    def move_to(self, communicator: Communicator) -> None:
        """Goes on with other ranks. ConfigError if the old ones held what is lost with them."""
        if self._serves:
            raise ConfigError(
                "a rank is gone, and with it the optimiser states of parameters that it owned",
                hint="resume from the last checkpoint; a strategy of all-reduce survives",
            )
        self.communicator, self.agreement = communicator, Agreement(communicator)
        if hasattr(self.split, "update"):  # it has learned of ranks that are gone
            self.split = contiguous

    # ---- the rest of an engine -----------------------------------------------------------------

    def shard(self, batch: GraphBatch | ShardedBatch) -> ShardedBatch:
        """This rank's part of a global batch."""
        c = self.communicator
        if isinstance(batch, ShardedBatch) and batch.place == (c.rank, c.size):
            return batch
        return shard(batch.graphs, batch.ids, c.rank, c.size, self.split)

    def prepare(self, batch: GraphBatch | ShardedBatch) -> None:
        """See `Session.prepare`."""
        self.session.prepare(batch.local if isinstance(batch, ShardedBatch) else batch)

    def invalidate(self) -> None:
        """See `Session.invalidate`."""
        self.session.invalidate()

    def evaluate(self, batch: GraphBatch) -> EvalResult:
        """See `Session.evaluate`; this rank alone."""
        return self.session.evaluate(batch)

    def predict(self, batch: GraphBatch) -> dict[str, Array]:
        """See `Session.predict`; this rank alone."""
        return self.session.predict(batch)

    def state_dict(self) -> dict[str, Any]:
        """See `Session.state_dict`; the same on all ranks."""
        return self.session.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Session.load_state_dict`."""
        self.session.load_state_dict(state)

    def collect(self, states: Sequence[Sequence[Array]]) -> None:
        """Brings all ranks every optimiser state, before a checkpoint."""
        for exchange in self._exchanges:
            exchange.collect(states, self.communicator)


class _Run:
    """Forward and backward on the calling thread, exchanges in the background."""

    def __init__(
        self, executor: Any, exchanges: Sequence[Exchange], c: Communicator, wait_free: bool
    ) -> None:
        self.executor, self.exchanges, self.communicator = executor, exchanges, c
        self.wait_free = wait_free
        self.pieces: list[Piece] = []
        self.compute_seconds = self.communication_seconds = self.exposed_seconds = 0.0

    def go(
        self, words: AbstractContextManager[None], inputs: tuple[Any, ...]
    ) -> tuple[float, Exception | None]:
        """Loss of this rank's part, and what went wrong; the others are served all the same.

        words: turns what the engine says into errors for people. inputs: of ``Executor.run``.
        """
        self.executor.arm_gradients()
        start = self.communicator.start
        handles: list[Handle[list[Piece]]] = []
        if self.wait_free:
            handles = [start(self._reduce, exchange) for exchange in self.exchanges]
        loss, failed = 0.0, None
        begun = time.perf_counter()
        try:
            with words:
                loss = self.executor.run(*inputs)
        except Exception as error:  # the other ranks must learn of it, whatever it is
            self.executor.give_up_gradients()
            failed = error
        ended = time.perf_counter()
        self.compute_seconds = ended - begun
        if not self.wait_free:
            handles = [start(self._reduce, exchange) for exchange in self.exchanges]
        lost: CommunicationError | None = None
        for handle in handles:  # all of them: none may run into what comes after
            try:
                self.pieces += handle.wait()
            except CommunicationError as error:
                lost = lost or error
        if lost is not None:
            raise lost
        self.exposed_seconds = time.perf_counter() - ended
        return loss, failed

    def _reduce(self, exchange: Exchange) -> list[Piece]:
        """In the background: waits for the gradients, then for the other ranks."""
        usable = all([self.executor.wait_gradient(p) for p in exchange.parameters])
        begun = time.perf_counter()
        pieces = exchange.reduce(self.executor, usable, self.communicator)
        self.communication_seconds += time.perf_counter() - begun
        return pieces
