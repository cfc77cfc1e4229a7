"""Asynchronous steps: a rank computes, pushes its gradients and waits for no other."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from cavs.distributed.balance.shards import GlobalBatch
from cavs.distributed.comm.interfaces import LostPeerError
from cavs.distributed.step.context import StepContext, Update
from cavs.distributed.step.program import ProgramFacts, make_exchanges, prepare_together
from cavs.distributed.step.report import StepReport
from cavs.distributed.step.synchronous_step import Run
from cavs.errors import CommunicationError


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

    def __call__(self, batch: GlobalBatch, update: Update) -> StepReport:
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
                make_exchanges(context, executor, ProgramFacts.of(compiled.program))
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
