"""A synchronous step: at its end all ranks update, or none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cavs.data import GraphBatch
from cavs.distributed.balance import Balancer
from cavs.distributed.balance.shards import ShardedBatch
from cavs.distributed.comm.agreement import Consensus
from cavs.distributed.step.context import Array, StepContext
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
        waited = self.stale.fetch(update, step)
        if not computes:
            return self.finish(self._serve(), None, 0.0, None, update, sent)
        part, executor, inputs = prepare_together(context, batch)
        # Totals are those of this rank's part where gradients are added, not averaged.
        totals = part.counts(context.int_features)
        if context.average:
            totals *= not part.empty
            context.communicator.all_reduce(totals)
        run = Run(executor, context)
        loss, error = run.compute(part, inputs, totals, seed, step)
        run.expose(waited)
        return self.finish(run, part, loss, error, update, sent)

    def _serve(self) -> Run:
        """Receive the gradients of a step on a rank that only owns parameters."""
        context = self.context
        found = context.agreement.consensus("step", found=Consensus(stop=context.wants_stop))
        context.stopping |= found.stop
        if found.new:
            receive_program(context)
        if context.average:
            context.communicator.all_reduce(np.zeros(3 + len(context.int_features)))
        run = Run(context.exchanging, context)
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
        sums, hyper, rows = self._agree(run, part, update.hyper, (loss, squares), error)
        loss, norm = sums[0] / replicas, math.sqrt(sums[1]) / over
        if math.isfinite(loss) and math.isfinite(norm):
            self._update(run, update, hyper, update.clip(norm), over)
        return StepReport(
            loss,
            norm,
            run.compute_seconds,
            run.communication_seconds,
            run.exposed_seconds,
            context.sent_bytes - sent,
            tuple(rows[:, 0].tolist()),
            tuple(map(tuple, rows[:, 3:].tolist())) if rows.shape[1] > 3 else (),
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

    def _agree(
        self,
        run: Run,
        part: ShardedBatch | None,
        hyper: dict[str, Any],
        sums: tuple[float, float],
        error: Exception | None,
    ) -> tuple[list[float], dict[str, Any], Array]:
        """Return the results of a step, the same bits on all ranks, from one all-reduce.

        They are: `sums`, loss and squares, over the ranks; `hyper` of rank 0, since a schedule may
        differ in its last bit on another processor; a row per replica, its seconds, the mark and
        the size of its part, and reports of its split. Raises on all ranks if one failed, or if
        they split the batch differently.
        """
        context, c, split = self.context, self.context.communicator, self.context.split
        report = [0.0] * getattr(split, "reports", 0)
        if report and part is not None and error is None:
            try:
                if isinstance(split, Balancer):
                    split.on(context.session.device)
                report = list(split.report(c.rank, run.compute_seconds))  # type: ignore[attr-defined]
            except Exception as failed:  # raised at the consensus below
                error = failed
        numbers = {name: value for name, value in hyper.items() if isinstance(value, float)}
        head = np.array([*sums, error is not None, *numbers.values()], np.float64)
        if c.rank != 0:
            head[3:] = 0
        share = (0, 0) if part is None else (part.mark, part.computed)
        row = [run.compute_seconds, *share, *report]
        ends = np.zeros(len(head) + c.size * len(row))
        ends[: len(head)] = head
        rows = ends[len(head) :].reshape(c.size, -1)
        rows[c.rank] = row
        c.all_reduce(ends)
        rows = rows[: context.roles.count]
        alike = (rows[:, 1] == rows[0, 1]).all()
        if ends[2] or not alike:
            if part is not None and not alike:
                error = error or part.divided_differently(rows[:, 1:3].astype(int).tolist())
            context.agreement.consensus("end of step", error)
        of_rank_0 = dict(zip(numbers, ends[3 : len(head)].tolist(), strict=True))
        return ends[:2].tolist(), {**hyper, **of_rank_0}, rows

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
        run.distribute()
        if context.servers is not None and context.roles.computes:
            context.servers.commit(clip, hyper["lr"])
        if context.distributes:
            tables = [e for e in context.exchanges if isinstance(e, SparseServers)]
            rows = {e.parameter: e.written for e in tables}
            context.session.write([p for p in context.served if p not in rows], rows)
        context.session.moved(run.executor)
