"""A run: forward and backward of a rank's part of a batch, and its exchanges with the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from cavs._engine import Abandoned
from cavs.distributed.balance.shards import ShardedBatch
from cavs.distributed.comm.interfaces import Handle
from cavs.distributed.step.context import Array, StepContext, Update
from cavs.distributed.step.counted import Counted, CountedRanks
from cavs.distributed.step.observer import Observer
from cavs.distributed.sync import Exchange, Piece
from cavs.errors import CommunicationError, DeviceError


@dataclass(frozen=True)
class StepReport:
    """Result of a step.

    loss, grad_norm: of the global batch; in an asynchronous step their estimate from this rank's
    part. Where replicas differ, grad_norm is the root mean square over them, and reduced_norm the
    norm of the gradients that were reduced in this step. compute_seconds: of this rank's forward
    and backward. communication_seconds: of reducing gradients and of waiting for new values from
    their owners; exposed_seconds: the part of it outside of backward, with all of the latter.
    sent_bytes: by this rank. rank_seconds: compute_seconds of every rank, where known. rank_graphs:
    the graphs of the batch that each computed. rank_squares: squared norm of the mean gradient over
    these, where a monitor reads it. seconds: since the step before, on rank 0. rank_reports: what
    the split of every rank reports to the others (`Balancer.report`). rank_delays: seconds by which
    the gradients of every rank travel longer than those of the rank with the best link, as far as
    that is known of the steps before (`unequal_delays`); empty where no gradients travel alone.
    dropped: the ranks that the step did not wait for, whose graphs are not in loss and gradients
    (`CountedRanks`).
    """

    loss: float
    grad_norm: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    sent_bytes: int
    rank_seconds: tuple[float, ...] = ()
    rank_reports: tuple[tuple[float, ...], ...] = ()
    rank_graphs: tuple[int, ...] = ()
    rank_squares: tuple[float, ...] = ()
    rank_delays: tuple[float, ...] = ()
    dropped: tuple[int, ...] = ()
    seconds: float = 0.0
    reduced_norm: float = 0.0

    @property
    def rank_loads(self) -> tuple[float, ...]:
        """Seconds from the beginning of a step until each rank's part of it is done, by itself."""
        delays = self.rank_delays or (0.0,) * len(self.rank_seconds)
        return tuple(a + b for a, b in zip(self.rank_seconds, delays, strict=True))

    @property
    def overlap(self) -> float:
        """Share of communication time hidden behind computation; 1 without communication."""
        if self.communication_seconds <= 0:
            return 1.0
        return 1.0 - min(1.0, self.exposed_seconds / self.communication_seconds)


class Run:
    """Forward and backward on the calling thread, exchanges in the background.

    part: what this rank computes; None on a server. counting: decides which ranks are counted; None
    if all are. loss, error: of `part`, once computed. begun, ended: when the run began, and when it
    had computed, by `time.perf_counter`. counted: what `counting` has decided.
    """

    def __init__(
        self,
        context: StepContext,
        update: Update,
        executor: Any,
        part: ShardedBatch | None = None,
        counting: CountedRanks | None = None,
    ) -> None:
        for exchange in context.exchanges:
            exchange.begin(update.step)
        self.context, self.roles, self.executor = context, context.roles, executor
        self.update, self.part, self.counting = update, part, counting
        self.counted: Counted | None = None
        self.loss, self.begun, self.ended = 0.0, time.perf_counter(), 0.0
        self.error: Exception | None = None
        self.pieces: list[Piece] = []
        self.observer = Observer(context.monitors, context.session.parameters)
        self.compute_seconds = self.communication_seconds = self.exposed_seconds = 0.0

    def compute(self, inputs: Sequence[Any], totals: Array) -> None:
        """Compute loss and gradients of the part, and reduce the gradients.

        inputs: of the schedule. totals: graphs, vertices, edges and present values of index
        features of the batch.
        """
        context, update, part = self.context, self.update, self.part
        assert part is not None
        own_seed = (update.seed + (context.communicator.rank << 32)) % 2**64
        # With this factor of sums over rows, the mean over ranks is that of the batch.
        scale = 0.0 if part.empty else float(self.roles.count if context.average else 1)
        words = context.session.readable_errors(part.local)
        self.go(words, (*inputs, own_seed, update.step, scale, totals.tolist()))

    def go(self, words: AbstractContextManager[None], inputs: tuple[Any, ...]) -> None:
        """Run the part and keep its loss or its error; exchanges take place in any case.

        words: turns messages of the engine into readable errors. inputs: of ``Executor.run``.
        """
        context, executor, counting = self.context, self.executor, self.counting
        executor.arm_gradients()
        wait_free = context.wait_free and counting is None
        handles = self._start() if wait_free else []
        begun = time.perf_counter()
        try:
            if counting is not None and not self._begin_counting(inputs[-1], executor.abandon):
                raise Abandoned("the step does not count this rank")
            with words:
                self.loss = executor.run(*inputs)
        except Exception as error:  # raised on all ranks at the end of the step
            executor.give_up_gradients()
            self.error = error
        self.ended = ended = time.perf_counter()
        self.compute_seconds = ended - begun
        if counting is not None:
            self._end_counting()
        handles = handles if wait_free else self._start()
        errors: list[CommunicationError | DeviceError] = []
        for handle in handles:  # all of them, so that none runs into what comes after
            try:
                self.pieces += handle.wait()
            except (CommunicationError, DeviceError) as error:
                errors.append(error)
        for lost in errors:
            if isinstance(lost, CommunicationError):
                raise lost
        broken = errors[0] if errors else None  # raised on all ranks at the end of the step
        if context.group is not None:
            context.group.finish(executor, broken)
            if not context.group.lost:
                self.communication_seconds += executor.collective_seconds()
        self.exposed_seconds = time.perf_counter() - ended
        self.error = self.error or broken

    def _begin_counting(self, totals: Sequence[float], abandon: Callable[[], None] | None) -> bool:
        context, number = self.context, self.context.count_of_loss
        assert self.counting is not None
        whole = 1.0 if number is None or not totals else totals[number]
        return self.counting.begin(context.backup, self.roles.count, whole, abandon)

    def _end_counting(self) -> None:
        """Wait until it is decided which ranks are counted; those that are not add zeros."""
        part, number, graphs, count = self.part, self.context.count_of_loss, 0, 0.0
        assert self.counting is not None
        computed = part is not None and not isinstance(self.error, Abandoned)
        if part is not None:
            graphs = part.computed
            if number is not None and graphs:
                count = float(part.counts(self.context.int_features)[number])
        self.counted = self.counting.end(graphs, count, computed=computed)
        if part is not None and not self.counts(self.roles.rank):
            if isinstance(self.error, Abandoned):
                self.error = None
            self.loss = 0.0
            self.executor.gradient_block().fill(0)

    def counts(self, rank: int) -> bool:
        """False if the step goes on without what `rank` computes."""
        return self.counted is None or rank in self.counted.ranks

    def serve(self) -> None:
        """Take part in the exchanges of the replicas on a rank that computes nothing."""
        if self.counting is not None:
            self._begin_counting((), None)
            self._end_counting()
        begun = time.perf_counter()
        for exchange in self.context.exchanges:
            self.pieces += exchange.reduce(self.executor, True, self.roles.everyone)
        self.communication_seconds = self.exposed_seconds = time.perf_counter() - begun

    def distribute(self) -> None:
        """Exchange new values between ranks after the update; nothing hides that."""
        begun = time.perf_counter()
        for exchange in self.context.exchanges:
            exchange.mix_updated(self.roles.everyone)
            exchange.distribute(self.roles.everyone)
            exchange.commit()
        self.expose(time.perf_counter() - begun)

    def expose(self, seconds: float) -> None:
        """Add seconds of communication that nothing hides."""
        self.communication_seconds += seconds
        self.exposed_seconds += seconds

    def report(self, loss: float, norm: float, sent_bytes: int, **known: Any) -> StepReport:
        """Return the result of the step. known: further fields of it."""
        seconds = self.compute_seconds, self.communication_seconds, self.exposed_seconds
        return StepReport(loss, norm, *seconds, sent_bytes, **known)

    def _start(self) -> list[Handle[list[Piece]]]:
        start = self.roles.everyone.start
        return [start(self._reduce, exchange) for exchange in self.context.exchanges]

    def _reduce(self, exchange: Exchange) -> list[Piece]:
        """Wait for the gradients of an exchange, then reduce them with the other ranks."""
        group = self.roles.everyone if exchange.everyone else self.roles.replicas
        begun = time.perf_counter()
        exchange.exchange_values(group)
        self.communication_seconds += time.perf_counter() - begun
        usable = exchange.wait(self.executor) and self.counts(self.roles.rank)
        if self.observer.takes and usable:
            self.observer.take(exchange, self.executor)
        begun = time.perf_counter()
        pieces = exchange.reduce(self.executor, usable, group)
        self.communication_seconds += time.perf_counter() - begun
        return pieces
