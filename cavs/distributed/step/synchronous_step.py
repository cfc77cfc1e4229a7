"""Synchronous steps: a run of a rank's part with its exchanges, and an update on all ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavs._engine import Abandoned
from cavs.distributed.balance import Balancer
from cavs.distributed.balance.shards import GlobalBatch, ShardedBatch, compare_batches
from cavs.distributed.comm.agreement import Consensus
from cavs.distributed.comm.interfaces import Handle
from cavs.distributed.step.context import Array, StepContext, Update
from cavs.distributed.step.counted import Counted, CountedRanks
from cavs.distributed.step.delays import OwnerDelays, delivers_alone, unequal_delays
from cavs.distributed.step.observer import Observer
from cavs.distributed.step.program import prepare_together, receive_program
from cavs.distributed.step.report import StepReport
from cavs.distributed.strategy.ranks import Roles
from cavs.distributed.sync import Exchange, Piece, Scope, SparseServers
from cavs.errors import CommunicationError, DeviceError

_ROW = 8  # numbers of a rank's row at the end of a step, before the report of its split


class Run:
    """Forward and backward on the calling thread, exchanges in the background.

    part: what this rank computes; None on a server. counting: decides which ranks are counted; None
    if all are. loss, aux, error: of `part`, once computed. begun, ended: when the run began, and
    when it had computed, by `time.perf_counter`. counted: what `counting` has decided.
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
        self.aux: dict[str, Array] = {}
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
        if self.error is None and self.counts(self.roles.rank):
            self._read_aux(part)

    def _read_aux(self, part: ShardedBatch) -> None:
        """Keep the values that the loss came with; where a rank has no graph, another stands in."""
        try:
            aux = self.context.session.aux(part.local)
            self.aux = {name: rows[:0] if part.empty else rows for name, rows in aux.items()}
        except DeviceError as error:  # raised on all ranks at the end of the step
            self.error = error

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
        return StepReport(loss, norm, *seconds, sent_bytes, aux=self.aux, **known)

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


def by_scope(pieces: Iterable[Piece]) -> dict[Scope, list[Piece]]:
    """Return the pieces of each scope, in order."""
    found: dict[Scope, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.scope, []).append(piece)
    return found


@dataclass(eq=False)
class SynchronousStep:
    """Steps of one rank, as a replica or as a server: fetch, prepare, compute, agree, update.

    ended: Time at which the last step had its results; 0 before the first. delays: `rank_delays`
    of the last step.
    """

    context: StepContext
    ended: float = 0.0
    delays: tuple[float, ...] = ()
    _seen: OwnerDelays | None = None  # by this rank, as an owner
    _roles: Roles | None = None  # roles to which the delays belong

    def __call__(self, batch: GlobalBatch, update: Update) -> StepReport:
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
            run = Run(context, update, executor, part, context.counting_ranks())
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
            context.communicator.all_reduce(np.zeros(context.num_counts))
        run = Run(context, update, context.exchanging, None, context.counting_ranks())
        run.serve()
        return run

    def finish(self, run: Run, sent: int) -> StepReport:
        """Agree on loss and norm, then update on all ranks or on none.

        sent: bytes that this rank had sent before the step.
        """
        context, replicas = self.context, self.context.roles.count
        over = float(replicas if context.average else 1)  # gradients are sums over so many
        restriction = 1.0 if run.counted is None else run.counted.restriction
        over /= restriction
        squares = self._squares(run, over) if run.error is None else dict.fromkeys(Scope, 0.0)
        sums, hyper, rows = self._agree(run, squares)
        seconds = hyper.pop("seconds")
        loss, reduced = sums[0] / replicas * restriction, math.sqrt(sums[1]) / over
        norm, norms = reduced, np.full(len(rows), reduced)
        if context.is_divergent:
            norms = np.sqrt(reduced**2 + rows[:, 6] + rows[:, 7] / over**2)
            norm = float(np.sqrt(np.mean(norms**2)))
        if math.isfinite(loss) and math.isfinite(norm):
            run.observer.show(run.pieces, over)
            rank = context.communicator.rank
            own = float(norms[rank]) if context.roles.computes else norm
            self._update(run, hyper, run.update.clip(norm), run.update.clip(own), over)
        own, graphs = 1.0, rows[:, 2]
        if context.average:  # gradients are scaled for the mean over replicas, not over graphs
            own = graphs.sum() / (replicas * np.maximum(graphs, 1)) * restriction
        ranks: dict[str, Any] = {
            "rank_seconds": tuple(rows[:, 0].tolist()),
            "rank_reports": tuple(map(tuple, rows[:, _ROW:].tolist())) * (rows.shape[1] > _ROW),
            "rank_delays": self.delays,
            "dropped": tuple(r for r in range(replicas) if not run.counts(r)),
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
        norm of its gradients, the content of the batch, the time until it had computed, squares of
        the scopes OWN and SHARE, and reports of its split. Owners add the delays of all replicas
        where these are known. Raises on all ranks if one failed, if they split the batch
        differently, or if they got different ones.
        """
        context, c, split = self.context, self.context.communicator, self.context.split
        part, error = run.part, run.error
        report = [0.0] * getattr(split, "reports", 0)
        seen = self._delays()
        if report and part is not None and error is None:
            try:
                if isinstance(split, Balancer):
                    split.on(context.session.device)
                spent = run.compute_seconds + (self.delays[c.rank] if self.delays else 0.0)
                report = list(split.report(c.rank, spent))  # type: ignore[attr-defined]
            except Exception as failed:  # raised at the consensus below
                error = failed
        hyper, now = run.update.hyper, time.perf_counter()
        numbers = {name: value for name, value in hyper.items() if isinstance(value, float)}
        numbers["seconds"], self.ended = now - (self.ended or run.begun), now
        head = [run.loss, squares[Scope.SUM], float(error is not None), *numbers.values()]
        share = (0, 0) if part is None else (part.mark, part.computed * run.counts(c.rank))
        facts = (0 if part is None else part.content, run.ended - run.begun)
        local = squares[Scope.OWN], squares[Scope.SHARE]
        row = [run.compute_seconds, *share, run.observer.square, *facts, *local, *report]
        own_delays = [] if seen is None else seen.seconds.tolist()
        ends = np.zeros(len(head) + c.size * (len(row) + len(own_delays)))
        ends[: len(head)] = head
        if c.rank != 0:
            ends[3 : len(head)] = 0
        rows = ends[len(head) :].reshape(c.size, -1)
        rows[c.rank] = [*row, *own_delays]
        c.all_reduce(ends)
        delays, rows = rows[:, len(row) :], rows[: context.roles.count, : len(row)]
        self.delays = ()
        if seen is not None:
            self.delays = unequal_delays(rows[:, 0].tolist(), delays.max(axis=0).tolist())
            seen.learn(context.exchanges, run.begun, rows[:, 5].tolist())
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

    def _delays(self) -> OwnerDelays | None:
        """Return the delays that this rank has seen; None where gradients do not travel alone."""
        context = self.context
        if self._roles is not context.roles:  # the ranks are others
            self._roles, self.delays = context.roles, ()
            self._seen = OwnerDelays(context.roles.count)
        alone = delivers_alone(context.strategy, len(context.roles.hosts))
        # With backup ranks all gradients leave at once.
        return self._seen if alone and not context.backup else None

    def _update(
        self, run: Run, hyper: dict[str, Any], clip: float, own_clip: float, over: float
    ) -> None:
        """Apply the pieces of a step.

        clip: of sums and shares, equal on all ranks; own_clip: of gradients that stay on this one.
        """
        context, states = self.context, [list(s) for s in run.update.states]
        trainable = [p.trainable for p in context.session.parameters.values()]
        for exchange in context.exchanges:
            exchange.mix(hyper["lr"])
            exchange.clip_shares(clip)
        for scope, pieces in (by_scope(run.pieces) or {Scope.SUM: []}).items():
            scale = own_clip if scope is Scope.OWN else clip / over
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
        context.stale.applied()
