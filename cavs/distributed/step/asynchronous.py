"""An asynchronous step: it waits for no other rank, because all parameters are on stale servers.

Ranks have clocks of their own. An error on one of them reaches the others by letter, and ends the
training on all.
"""

from __future__ import annotations

import math
import time
from typing import Any

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
            waited = self.stale.fetch(update.hyper, update.states, step)
        except LostPeerError:
            raise  # the ranks that step with this one find that out as well
        except CommunicationError as unheard:
            if not (roles.computes and roles.teamed):
                raise
            failed = unheard  # the ranks that step with this one may not have heard of it
        servers = context.servers
        assert servers is not None
        if not roles.computes:
            return StepReport(0.0, 0.0, 0.0, 0.0, 0.0, servers.newly_sent())
        try:
            part, executor, inputs = self._prepare(batch, failed)
            features = context.int_features
            totals = part.global_counts(features) if context.average else part.counts(features)
            run = Run(executor, context)
            words = context.session.readable_errors(part.local)
            numbers = context.own_seed(seed), step, context.scale(part), totals.tolist()
            loss, error = run.go(words, (*inputs, *numbers))
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

    def _prepare(
        self, batch: GraphBatch | ShardedBatch, failed: Exception | None
    ) -> tuple[ShardedBatch, Any, Any]:
        context = self.context
        if context.roles.teamed:
            return prepare_together(context, batch, failed)
        part = context.shard(batch)
        executor, inputs, compiled = context.ready(part)
        context.exchanges_for(executor, compiled.program.gradients)
        context.int_features = compiled.program.int_features
        return part, executor, inputs

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
