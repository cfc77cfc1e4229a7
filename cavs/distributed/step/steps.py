"""The steps of a rank: synchronous, at whose end all ranks update or none, and asynchronous."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavs.data import GraphBatch
from cavs.distributed.balance import Balancer
from cavs.distributed.balance.shards import ShardedBatch, compare_batches
from cavs.distributed.comm.agreement import Consensus
from cavs.distributed.comm.interfaces import Handle, LostPeerError
from cavs.distributed.step.context import Array, StepContext, Update
from cavs.distributed.step.observer import Observer
from cavs.distributed.step.program import make_exchanges, prepare_together, receive_program
from cavs.distributed.sync import Exchange, Piece, Scope, SparseServers
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
    the split of every rank reports to the others (`Balancer.report`).
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
    seconds: float = 0.0
    reduced_norm: float = 0.0

    @property
    def overlap(self) -> float:
        """Share of communication time hidden behind computation; 1 without communication."""
        if self.communication_seconds <= 0:
            return 1.0
        return 1.0 - min(1.0, self.exposed_seconds / self.communication_seconds)


class Run:
    """Forward and backward on the calling thread, exchanges in the background.

    part: what this rank computes; None on a server. loss, error: of `part`, once computed.
    """

    def __init__(
        self, context: StepContext, update: Update, executor: Any, part: ShardedBatch | None = None
    ) -> None:
        for exchange in context.exchanges:
            exchange.begin(update.step, update.hyper["lr"])
        self.context, self.roles, self.executor = context, context.roles, executor
        self.update, self.part = update, part
        self.loss, self.begun = 0.0, time.perf_counter()
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
        context, executor = self.context, self.executor
        executor.arm_gradients()
        handles = self._start() if context.wait_free else []
        begun = time.perf_counter()
        try:
            with words:
                self.loss = executor.run(*inputs)
        except Exception as error:  # raised on all ranks at the end of the step
            executor.give_up_gradients()
            self.error = error
        ended = time.perf_counter()
        self.compute_seconds = ended - begun
        handles = handles if context.wait_free else self._start()
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

    def serve(self) -> None:
        """Take part in the exchanges of the replicas on a rank that computes nothing."""
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
        usable = exchange.wait(self.executor)
        if self.observer.takes and usable:
            self.observer.take(exchange, self.executor)
        begun = time.perf_counter()
        pieces = exchange.reduce(self.executor, usable, group)
        self.communication_seconds += time.perf_counter() - begun
        return pieces


def by_scope(pieces: Iterable[Piece]) -> dict[Scope, list[Piece]]:
    """Return the pieces of each scope, in order."""
    found: dict[Scope, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.scope, []).append(piece)
    return found


@dataclass(eq=False)
class SynchronousStep:
    """Steps of one rank, as a replica or as a server: fetch, prepare, compute, agree, update.

    ended: Time at which the last step had its results; 0 before the first.
    """

    context: StepContext
    ended: float = 0.0

    def __call__(self, batch: GraphBatch | ShardedBatch, update: Update) -> StepReport:
        """Make one step on this rank's part of the global `batch`."""
        context = self.context
        sent, waited = context.sent_bytes, context.stale.fetch(update)
        if context.roles.computes:
            part, executor, inputs = prepare_together(context, batch)
            # Totals are those of this rank's part where gradients are added, not averaged.
            totals = part.counts(context.int_features)
            if context.average:
                totals *= not part.empty
                context.communicator.all_reduce(totals)
            run = Run(context, update, executor, part)
            run.compute(inputs, totals)
            run.expose(waited)
        else:
            run = self._serve(update)
        return self.finish(run, sent)

    def _serve(self, update: Update) -> Run:
        """Receive the gradients of a step on a rank that only owns parameters."""
        context = self.context
        found = context.agreement.consensus("step", found=Consensus(stop=context.wants_stop))
        context.stopping |= found.stop
        if found.new:
            receive_program(context)
        if context.average:
            context.communicator.all_reduce(np.zeros(3 + len(context.int_features)))
        run = Run(context, update, context.exchanging)
        run.serve()
        return run

    def finish(self, run: Run, sent: int) -> StepReport:
        """Agree on loss and norm, then update on all ranks or on none.

        sent: bytes that this rank had sent before the step.
        """
        context, replicas = self.context, self.context.roles.count
        over = float(replicas if context.average else 1)  # gradients are sums over so many
        squares = self._squares(run, over) if run.error is None else dict.fromkeys(Scope, 0.0)
        sums, hyper, rows = self._agree(run, squares)
        seconds = hyper.pop("seconds")
        loss, reduced = sums[0] / replicas, math.sqrt(sums[1]) / over
        norm, norms = reduced, np.full(len(rows), reduced)
        if context.is_divergent:
            norms = np.sqrt(reduced**2 + rows[:, 5] + rows[:, 6] / over**2)
            norm = float(np.sqrt(np.mean(norms**2)))
        if math.isfinite(loss) and math.isfinite(norm):
            run.observer.show(run.pieces, over)
            rank = context.communicator.rank
            own_norm = float(norms[rank]) if context.roles.computes else norm
            self._update(run, hyper, run.update.clip(own_norm), over)
        own, graphs = 1.0, rows[:, 2]
        if context.average:  # gradients are scaled for the mean over replicas, not over graphs
            own = graphs.sum() / (replicas * np.maximum(graphs, 1))
        ranks: dict[str, Any] = {
            "rank_seconds": tuple(rows[:, 0].tolist()),
            "rank_reports": tuple(map(tuple, rows[:, 7:].tolist())) if rows.shape[1] > 7 else (),
            "rank_graphs": tuple(graphs.astype(int).tolist()),
            "rank_squares": tuple((rows[:, 3] * own**2).tolist()) if run.observer.norms else (),
        }
        ranks |= {"seconds": seconds, "reduced_norm": reduced}
        return run.report(loss, norm, context.sent_bytes - sent, **ranks)

    def _squares(self, run: Run, over: float) -> dict[Scope, float]:
        """Return the squared norms of the pieces of each scope.

        Those of sums add up over the ranks to the squared norm of all sums.
        """
        context, roles = self.context, self.context.roles
        rank, replicas = context.communicator.rank, roles.count
        pieces = by_scope(run.pieces)
        sums = pieces.pop(Scope.SUM, [])
        counted = [p for p in sums if p.owned]
        if roles.computes:  # every replica has the other pieces
            counted += [p.share(rank, replicas) for p in sums if not p.owned]
        found = dict.fromkeys(Scope, 0.0)
        squares: float = run.executor.squared_norm([p.as_tuple() for p in counted])
        for scope, own in pieces.items():
            found[scope] = float(run.executor.squared_norm([p.as_tuple() for p in own]))
        # Stale gradients are applied one by one: each counts as the mean of all.
        weight = over**2 / (replicas * len(roles.team)) if roles.computes else 0.0
        found[Scope.SUM] = squares + run.executor.squared_norm(context.own_pieces()) * weight
        return found

    def _agree(
        self, run: Run, squares: Mapping[Scope, float]
    ) -> tuple[list[float], dict[str, Any], Array]:
        """Return the results of a step, the same bits on all ranks, from one all-reduce.

        They are: loss and squares of `Scope.SUM`, summed over the ranks; hyperparameters of rank 0,
        since a schedule may differ in its last bit on another processor, and its seconds since the
        step before; a row per replica, its seconds, the mark and the size of its part, the squared
        norm of its gradients, the content of the batch, squares of the scopes OWN and SHARE, and
        reports of its split. Raises on all ranks if one failed, if they split the batch
        differently, or if they got different ones.
        """
        context, c, split = self.context, self.context.communicator, self.context.split
        part, error = run.part, run.error
        report = [0.0] * getattr(split, "reports", 0)
        if report and part is not None and error is None:
            try:
                if isinstance(split, Balancer):
                    split.on(context.session.device)
                report = list(split.report(c.rank, run.compute_seconds))  # type: ignore[attr-defined]
            except Exception as failed:  # raised at the consensus below
                error = failed
        hyper, now = run.update.hyper, time.perf_counter()
        numbers = {name: value for name, value in hyper.items() if isinstance(value, float)}
        numbers["seconds"], self.ended = now - (self.ended or run.begun), now
        head = [run.loss, squares[Scope.SUM], float(error is not None), *numbers.values()]
        share = (0, 0) if part is None else (part.mark, part.computed)
        content = 0 if part is None else part.content
        local = squares[Scope.OWN], squares[Scope.SHARE]
        row = [run.compute_seconds, *share, run.observer.square, content, *local, *report]
        ends = np.zeros(len(head) + c.size * len(row))
        ends[: len(head)] = head
        if c.rank != 0:
            ends[3 : len(head)] = 0
        rows = ends[len(head) :].reshape(c.size, -1)
        rows[c.rank] = row
        c.all_reduce(ends)
        rows = rows[: context.roles.count]
        alike = (rows[:, 1] == rows[0, 1]).all()
        if ends[2] or not alike:
            if part is not None and not alike:
                error = error or part.divided_differently(rows[:, 1:3].astype(int).tolist())
            context.agreement.consensus("end of step", error)
        if (rows[:, 4] != rows[0, 4]).any():
            known = None if part is None or part.content == 0 else part
            compare_batches(context.agreement, known, run.update.step + 1)
        of_rank_0 = dict(zip(numbers, ends[3 : len(head)].tolist(), strict=True))
        return ends[:2].tolist(), {**hyper, **of_rank_0}, rows

    def _update(self, run: Run, hyper: dict[str, Any], clip: float, over: float) -> None:
        context, states = self.context, [list(s) for s in run.update.states]
        trainable = [p.trainable for p in context.session.parameters.values()]
        for exchange in context.exchanges:
            exchange.mix()
        for scope, pieces in (by_scope(run.pieces) or {Scope.SUM: []}).items():
            scale = clip if scope is Scope.OWN else clip / over
            run.executor.apply([p.as_tuple() for p in pieces], hyper, states, trainable, scale)
        run.distribute()
        if mixed := {p for e in context.exchanges if e.mixes_values for p in e.parameters}:
            context.session.write(sorted(mixed))
        if context.servers is not None and context.roles.computes:
            context.servers.commit(clip, hyper["lr"])
        if any(type(e).distribute is not Exchange.distribute for e in context.exchanges):
            # Values have come from other ranks.
            tables = [e for e in context.exchanges if isinstance(e, SparseServers)]
            rows = {e.parameter: e.written for e in tables}
            context.session.write([p for p in context.served if p not in rows], rows)
        context.session.moved(run.executor)


@dataclass(eq=False)
class AsynchronousStep:
    """Steps of one rank, or of the replicas of a host: fetch, prepare, compute, push.

    They wait for no other rank, because all parameters are on stale servers.

    A gradient is clipped by its own norm; servers apply nothing if it or the loss is not finite.
    The replicas of a host that sum first go through the step together, with the mean of their
    losses and the norm of the mean of their gradients. Ranks have clocks of their own: an error on
    one of them reaches the others by letter, and ends the training on all.
    """

    context: StepContext

    def __call__(self, batch: GraphBatch | ShardedBatch, update: Update) -> StepReport:
        """Make one step on this rank's part of the global `batch`."""
        context, roles = self.context, self.context.roles
        failed, waited = None, 0.0
        try:
            waited = context.stale.fetch(update)
        except CommunicationError as unheard:
            # The ranks that step with this one find out that a rank is gone, but nothing else.
            if isinstance(unheard, LostPeerError) or not (roles.computes and roles.teamed):
                raise
            failed = unheard
        servers = context.servers
        assert servers is not None
        if not roles.computes:
            return StepReport(0.0, 0.0, 0.0, 0.0, 0.0, servers.newly_sent())
        try:
            if roles.teamed:
                part, executor, inputs = prepare_together(context, batch, failed)
            else:
                part = context.shard(batch)
                executor, inputs, compiled = context.ready(part)
                program = compiled.program
                make_exchanges(context, executor, program.gradients, program.int_features)
            features = context.int_features
            totals = part.global_counts(features) if context.average else part.counts(features)
            run = Run(context, update, executor, part)
            run.compute(inputs, totals)
            run.expose(waited)
            begun = time.perf_counter()
            squares = executor.squared_norm(context.own_pieces()) if run.error is None else 0.0
            loss, squares = self._agree(run, squares)
            norm = math.sqrt(squares)
            if math.isfinite(loss) and math.isfinite(norm):
                servers.commit(update.clip(norm), update.hyper["lr"])
            run.exposed_seconds += time.perf_counter() - begun
            # The bytes count those of this rank as a server, too, since the step before.
            return run.report(float(loss), norm, servers.newly_sent())
        except BaseException as raised:
            servers.fail(raised)
            raise

    def _agree(self, run: Run, squares: float) -> tuple[float, float]:
        """Return the mean loss of the team and the squared norm of its mean gradient."""
        roles = self.context.roles
        if not roles.teamed:
            if run.error is not None:
                raise run.error
            return run.loss, squares
        sums = np.array([run.loss / len(roles.team), squares, run.error is not None])
        roles.local.all_reduce(sums)
        if sums[2]:
            self.context.team_agreement.consensus("end of step", run.error)
        return float(sums[0]), float(sums[1]) / len(roles.team) ** 2
