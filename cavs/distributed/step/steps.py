"""The steps of a rank: synchronous, at whose end all ranks update or none, and asynchronous."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavs.data import GraphBatch
from cavs.distributed.balance import Balancer
from cavs.distributed.balance.shards import ShardedBatch, compare_batches
from cavs.distributed.comm.agreement import Consensus
from cavs.distributed.comm.interfaces import LostPeerError
from cavs.distributed.step.context import Array, StepContext, Update
from cavs.distributed.step.delays import OwnerDelays, delivers_alone, unequal_delays
from cavs.distributed.step.program import make_exchanges, prepare_together, receive_program
from cavs.distributed.step.run import Run, StepReport
from cavs.distributed.strategy.ranks import Roles
from cavs.distributed.sync import Exchange, Piece, Scope, SparseServers
from cavs.errors import CommunicationError

_ROW = 8  # numbers of a rank's row at the end of a step, before the report of its split


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
            context.communicator.all_reduce(np.zeros(3 + len(context.int_features)))
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
        """Apply the pieces of a step. clip: of sums, equal on all ranks; own_clip: of others."""
        context, states = self.context, [list(s) for s in run.update.states]
        trainable = [p.trainable for p in context.session.parameters.values()]
        for exchange in context.exchanges:
            exchange.mix(hyper["lr"])
        for scope, pieces in (by_scope(run.pieces) or {Scope.SUM: []}).items():
            scale = clip if scope is Scope.SUM else own_clip
            scale = scale if scope is Scope.OWN else scale / over
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
