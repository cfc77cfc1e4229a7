"""An asynchronous step: it waits for no other rank, because all parameters are on stale servers.

Ranks have clocks of their own. An error on one of them reaches the others by letter, and ends the
training on all.
"""

from __future__ import annotations

import math
import time

import numpy as np

from cavs.data import GraphBatch
from cavs.distributed.balance.shards import ShardedBatch
from cavs.distributed.comm.interfaces import LostPeerError
from cavs.distributed.step.context import StepContext
from cavs.distributed.step.program import prepare_together
from cavs.distributed.step.run import Run, StepReport, Update
from cavs.distributed.step.stale_parameters import StaleParameters
from cavs.errors import CommunicationError


class AsynchronousStep:
    """Steps of one rank, or of the replicas of a host: fetch, prepare, compute, push.

    A gradient is clipped by its own norm; servers apply nothing if it or the loss is not finite.
    The replicas of a host that sum first go through the step together, with the mean of their
    losses and the norm of the mean of their gradients.
    """

    def __init__(self, context: StepContext, stale: StaleParameters) -> None:
        self.context, self.stale = context, stale

    def __call__(
        self, batch: GraphBatch | ShardedBatch, update: Update, seed: int, step: int
    ) -> StepReport:
        """Make one step on this rank's part of the global `batch`."""
        context, failed, waited = self.context, None, 0.0
        roles = context.roles
        try:
            waited = self.stale.fetch(update, step)
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
                context.exchanges_for(executor, program.gradients, program.int_features)
            features = context.int_features
            totals = part.global_counts(features) if context.average else part.counts(features)
            run = Run(executor, context)
            loss, error = run.compute(part, inputs, totals, seed, step)
            begun = time.perf_counter()
            squares = 0.0 if error is not None else executor.squared_norm(context.own_pieces())
            loss, squares = self._agree(loss, squares, error)
            norm = math.sqrt(squares)
            if math.isfinite(loss) and math.isfinite(norm):
                servers.commit(update.clip(norm), update.hyper["lr"])
            return StepReport(
                float(loss),
                norm,
                run.compute_seconds,
                run.communication_seconds + waited,
                run.exposed_seconds + waited + time.perf_counter() - begun,
                servers.newly_sent(),  # as a server, too, since the step before
            )
        except BaseException as raised:
            servers.fail(raised)
            raise

    def _agree(self, loss: float, squares: float, error: Exception | None) -> tuple[float, float]:
        """Return the mean loss of the team and the squared norm of its mean gradient."""
        roles = self.context.roles
        if not roles.teamed:
            if error is not None:
                raise error
            return loss, squares
        sums = np.array([loss / len(roles.team), squares, error is not None])
        roles.local.all_reduce(sums)
        if sums[2]:
            self.context.team_agreement.consensus("end of step", error)
        return float(sums[0]), float(sums[1]) / len(roles.team) ** 2
