"""Forward and backward of a step on one rank, while its exchanges run in the background."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from cavs.distributed.balance.shards import ShardedBatch
from cavs.distributed.comm.interfaces import Handle
from cavs.distributed.step.context import StepContext
from cavs.distributed.sync import Exchange, Piece
from cavs.errors import CommunicationError, DeviceError


@dataclass(frozen=True)
class Update:
    """Arguments of the update of a step: hyperparameters, optimiser states, and largest norm."""

    hyper: dict[str, Any]
    states: Sequence[Sequence[NDArray[Any]]]
    max_norm: float | None

    def clip(self, norm: float) -> float:
        """Return the factor that clips a gradient of this norm."""
        return 1.0 if self.max_norm is None or norm <= self.max_norm else self.max_norm / norm


@dataclass(frozen=True)
class StepReport:
    """Result of a step.

    loss, grad_norm: of the global batch; in an asynchronous step their estimate from this rank's
    part. compute_seconds: of this rank's forward and backward. communication_seconds: of reducing
    gradients and of waiting for new values from their owners; exposed_seconds: the part of it
    outside of backward, with all of the latter. sent_bytes: by this rank. rank_seconds:
    compute_seconds of every rank, where known. rank_reports: what the split of every rank reports
    to the others (`Balancer.report`).
    """

    loss: float
    grad_norm: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    sent_bytes: int
    rank_seconds: tuple[float, ...] = ()
    rank_reports: tuple[tuple[float, ...], ...] = ()

    @property
    def overlap(self) -> float:
        """Share of communication time hidden behind computation; 1 without communication."""
        if self.communication_seconds <= 0:
            return 1.0
        return 1.0 - min(1.0, self.exposed_seconds / self.communication_seconds)


class Run:
    """Forward and backward on the calling thread, exchanges in the background.

    part: what this rank computes; None on a server. loss, error: of `part`, once computed. sent:
    bytes that this rank had sent before the step.
    """

    def __init__(
        self, executor: Any, context: StepContext, part: ShardedBatch | None = None, sent: int = 0
    ) -> None:
        self.executor, self.context = executor, context
        self.exchanges, self.roles = context.exchanges, context.roles
        self.wait_free, self.group = context.wait_free, context.group
        self.part, self.sent = part, sent
        self.loss = 0.0
        self.error: Exception | None = None
        self.pieces: list[Piece] = []
        self.compute_seconds = self.communication_seconds = self.exposed_seconds = 0.0

    def compute(self, inputs: Sequence[Any], totals: NDArray[Any], seed: int, step: int) -> None:
        """Compute loss and gradients of the part, and reduce the gradients.

        inputs: of the schedule. totals: graphs, vertices, edges and present values of index
        features of the batch. seed: of dropout masks; rank 0 draws those of `Session`.
        """
        context, part = self.context, self.part
        assert part is not None
        own_seed = (seed + (context.communicator.rank << 32)) % 2**64
        # With this factor of sums over rows, the mean over ranks is that of the batch.
        scale = 0.0 if part.empty else float(self.roles.count if context.average else 1)
        words = context.session.readable_errors(part.local)
        arguments = (*inputs, own_seed, step, scale, totals.tolist())
        self.loss, self.error = self.go(words, arguments)

    def go(
        self, words: AbstractContextManager[None], inputs: tuple[Any, ...]
    ) -> tuple[float, Exception | None]:
        """Return the loss of this rank's part, and its error; exchanges take place in any case.

        words: turns messages of the engine into readable errors. inputs: of ``Executor.run``.
        """
        self.executor.arm_gradients()
        handles = self._start() if self.wait_free else []
        loss, failed = 0.0, None
        begun = time.perf_counter()
        try:
            with words:
                loss = self.executor.run(*inputs)
        except Exception as error:  # raised on all ranks at the end of the step
            self.executor.give_up_gradients()
            failed = error
        ended = time.perf_counter()
        self.compute_seconds = ended - begun
        if not self.wait_free:
            handles = self._start()
        lost: CommunicationError | None = None
        broken: DeviceError | None = None
        for handle in handles:  # all of them, so that none runs into what comes after
            try:
                self.pieces += handle.wait()
            except CommunicationError as error:
                lost = lost or error
            except DeviceError as error:  # raised on all ranks at the end of the step
                broken = broken or error
        if lost is not None:
            raise lost
        if self.group is not None:
            self.group.finish(self.executor, broken)
            if not self.group.lost:
                self.communication_seconds += self.executor.collective_seconds()
        self.exposed_seconds = time.perf_counter() - ended
        return loss, failed or broken

    def serve(self) -> None:
        """Take part in the exchanges of the replicas on a rank that computes nothing."""
        begun = time.perf_counter()
        for exchange in self.exchanges:
            self.pieces += exchange.reduce(self.executor, True, self.roles.everyone)
        self.communication_seconds = self.exposed_seconds = time.perf_counter() - begun

    def distribute(self) -> None:
        """Send new values from their owners to all ranks after the update; nothing hides that."""
        begun = time.perf_counter()
        for exchange in self.exchanges:
            exchange.distribute(self.roles.everyone)
            exchange.commit()
        self.expose(time.perf_counter() - begun)

    def expose(self, seconds: float) -> None:
        """Add seconds of communication that nothing hides."""
        self.communication_seconds += seconds
        self.exposed_seconds += seconds

    def _start(self) -> list[Handle[list[Piece]]]:
        return [self.roles.everyone.start(self._reduce, exchange) for exchange in self.exchanges]

    def _reduce(self, exchange: Exchange) -> list[Piece]:
        """Wait for the gradients of an exchange, then reduce them with the other ranks."""
        usable = exchange.wait(self.executor)
        begun = time.perf_counter()
        group = self.roles.everyone if exchange.everyone else self.roles.replicas
        pieces = exchange.reduce(self.executor, usable, group)
        self.communication_seconds += time.perf_counter() - begun
        return pieces
