"""A step in which no rank waits for another: all parameters are on servers that do not either.

Ranks have clocks of their own. What fails on one of them is told to the others by letter, and ends
the training on all.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from cavs.data import GraphBatch
from cavs.distributed.balance.shards import ShardedBatch
from cavs.distributed.step.run import Run, StepReport
from cavs.distributed.sync.stale_server import StaleServers

if TYPE_CHECKING:
    from cavs.distributed.step.session import DistributedSession


def free_step(
    session: DistributedSession,
    servers: StaleServers,
    batch: GraphBatch | ShardedBatch,
    hyper: dict[str, Any],
    options: tuple[int, int, float | None],
    waited: float,
    failed: Exception | None = None,
) -> StepReport:
    """One step of this rank on its part of the global `batch`.

    options: seed, step and largest norm. waited: seconds for the values that the step begins with,
    or what `failed` in that, which the replicas of the host are told of.
    The gradient of a rank is clipped by its own norm; nothing leaves for good if it or the loss is
    not finite. The replicas of a host that sum first go through the step together, with the mean
    of their losses and the norm of the mean of their gradients.
    """
    try:
        seed, step, max_norm = options
        roles = session.roles
        if roles.teamed:
            part, executor, inputs = session.prepare_together(batch, failed)
            exchanges = session.exchanges
        else:
            part = session.shard(batch)
            executor, inputs, compiled = session.ready(part)
            exchanges = session.exchanges_for(executor, compiled.program.gradients)
            session.int_features = compiled.program.int_features
        features = session.int_features
        totals = part.global_counts(features) if session.average else part.counts(features)
        run = Run(executor, exchanges, roles, session.wait_free)
        words = session.session.readable_errors(part.local)
        numbers = session.own_seed(seed), step, session.scale(part), totals.tolist()
        loss, error = run.go(words, (*inputs, *numbers))
        begun = time.perf_counter()
        squares = 0.0 if error is not None else executor.squared_norm(session.own_pieces())
        if roles.teamed:
            ends = np.array([loss / len(roles.team), squares, error is not None])
            roles.local.all_reduce(ends)
            if ends[2]:
                session.team_agreement.meet("end of step", error)
            loss, squares = float(ends[0]), float(ends[1]) / len(roles.team) ** 2
        elif error is not None:
            raise error
        norm = math.sqrt(squares)
        if math.isfinite(loss) and math.isfinite(norm):
            clip = 1.0 if max_norm is None or norm <= max_norm else max_norm / norm
            servers.commit(clip, hyper["lr"])
        exposed = run.exposed_seconds + waited + time.perf_counter() - begun
        return StepReport(
            float(loss),
            norm,
            run.compute_seconds,
            run.communication_seconds + waited,
            exposed,
            servers.newly_sent(),  # as owner, too, since the step before
        )
    except BaseException as error:
        servers.fail(error)
        raise
