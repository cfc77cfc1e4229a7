"""A synchronous step: at its end all ranks update, or none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cavs.data import GraphBatch
from cavs.distributed.balance.shards import ShardedBatch
from cavs.distributed.comm.agreement import Consensus
from cavs.distributed.step.consensus import end_of_step
from cavs.distributed.step.context import StepContext
from cavs.distributed.step.program import prepare_together, receive_program
from cavs.distributed.step.run import Run, StepReport, Update
from cavs.distributed.step.stale_parameters import StaleParameters
from cavs.distributed.sync.parameter_server import SparseServers


class SynchronousStep:
    """Steps of one rank, as a replica or as a server: fetch, prepare, compute, agree, update."""

    def __init__(self, context: StepContext, stale: StaleParameters) -> None:
        self.context, self.stale = context, stale

    def __call__(
        self, batch: GraphBatch | ShardedBatch, update: Update, seed: int, step: int
    ) -> StepReport:
        """Make one step on this rank's part of the global `batch`."""
        context = self.context
        sent, computes = context.sent_bytes, context.roles.computes
        waited = self.stale.fetch(update.hyper, update.states, step)
        if not computes:
            return self.finish(self._serve(), None, 0.0, None, update, sent)
        part, executor, inputs = prepare_together(context, batch)
        totals = self._totals(part)
        run = Run(executor, context.exchanges, context.roles, context.wait_free, context.group)
        words = context.session.readable_errors(part.local)
        numbers = context.own_seed(seed), step, context.scale(part), totals
        loss, error = run.go(words, (*inputs, *numbers))
        run.expose(waited)
        return self.finish(run, part, loss, error, update, sent)

    def _totals(self, part: ShardedBatch) -> list[float]:
        """Return graphs, vertices, edges and present values of index features of the batch.

        They are those of this rank's part where gradients are added, not averaged.
        """
        totals = part.counts(self.context.int_features)
        if self.context.average:
            totals *= not part.empty
            self.context.communicator.all_reduce(totals)
        result: list[float] = totals.tolist()
        return result

    def _serve(self) -> Run:
        """Receive the gradients of a step on a rank that only owns parameters."""
        context = self.context
        found = context.agreement.consensus("step", found=Consensus(stop=context.wants_stop))
        context.stopping |= found.stop
        if found.new:
            receive_program(context)
        if context.average:
            context.communicator.all_reduce(np.zeros(3 + len(context.int_features)))
        run = Run(context.exchanging, context.exchanges, context.roles, context.wait_free)
        run.serve()
        return run

    def finish(
        self,
        run: Run,
        part: ShardedBatch | None,
        loss: float,
        error: Exception | None,
        update: Update,
        sent: int,
    ) -> StepReport:
        """Agree on loss and norm, then update on all ranks or on none.

        sent: bytes that this rank had sent before the step.
        """
        context = self.context
        replicas = context.roles.count
        over = float(replicas if context.average else 1)  # gradients are sums over so many
        squares = 0.0 if error is not None else self._squares(run, over)
        ends = end_of_step(context, run, part, update.hyper, (loss, squares), error)
        loss, norm = ends.loss / replicas, math.sqrt(ends.squares) / over
        if math.isfinite(loss) and math.isfinite(norm):
            self._update(run, update, ends.hyper, update.clip(norm), over)
        return StepReport(
            float(loss),
            norm,
            run.compute_seconds,
            run.communication_seconds,
            run.exposed_seconds,
            context.sent_bytes - sent,
            ends.seconds,
            ends.reports,
        )

    def _squares(self, run: Run, over: float) -> float:
        """Return this rank's share of the square of the norm of all gradients."""
        context, roles = self.context, self.context.roles
        rank, replicas = context.communicator.rank, roles.count
        counted = [p for p in run.pieces if p.owned]
        if roles.computes:  # every replica has the other pieces
            counted += [p.share(rank, replicas) for p in run.pieces if not p.owned]
        squares: float = run.executor.squared_norm([p.as_tuple() for p in counted])
        # Stale gradients are applied one by one: each counts as the mean of all.
        weight = over**2 / (replicas * len(roles.team)) if roles.computes else 0.0
        return squares + float(run.executor.squared_norm(context.own_pieces())) * weight

    def _update(
        self, run: Run, update: Update, hyper: dict[str, Any], clip: float, over: float
    ) -> None:
        context = self.context
        parameters = context.session.parameters.values()
        run.executor.apply(
            [p.as_tuple() for p in run.pieces],
            hyper,
            [list(s) for s in update.states],
            [p.trainable for p in parameters],
            clip / over,
        )
        run.distribute(context.communicator)
        if context.servers is not None and context.roles.computes:
            context.servers.commit(clip, hyper["lr"])
        if context.distributes:
            tables = [e for e in context.exchanges if isinstance(e, SparseServers)]
            rows = {e.parameter: e.written for e in tables}
            context.session.write([p for p in context.served if p not in rows], rows)
        context.session.moved(run.executor)
