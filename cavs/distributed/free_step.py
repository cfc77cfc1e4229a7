"""A step in which no rank waits for another: all parameters are on servers that do not either.

Ranks have clocks of their own. What fails on one of them is told to the others by letter, and ends
the training on all.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from cavs.data import GraphBatch
from cavs.distributed.run import Run, StepReport
from cavs.distributed.shards import ShardedBatch
from cavs.distributed.synchronisers.stale import StaleServers

if TYPE_CHECKING:
    from cavs.distributed.session import DistributedSession


def free_step(
    session: DistributedSession,
    servers: StaleServers,
    batch: GraphBatch | ShardedBatch,
    hyper: dict[str, Any],
    options: tuple[int, int, float | None],
    waited: float,
) -> StepReport:
    """One step of this rank on its part of the global `batch`.

    options: seed, step and largest norm. waited: seconds for the values that the step begins with.
    The gradient of a rank is clipped by its own norm; nothing leaves for good if it or the loss is
    not finite.
    """
    try:
        seed, step, max_norm = options
        part = session.shard(batch)
        executor, inputs, compiled = session.session.ready(part.local)
        program = compiled.program
        exchanges = session.exchanges_for(executor, program.gradients)
        features = program.int_features
        totals = part.global_counts(features) if session.average else part.counts(features)
        run = Run(executor, exchanges, session.roles, session.wait_free)
        words = session.session.readable_errors(part.local)
        numbers = session.own_seed(seed), step, session.scale(part), totals.tolist()
        loss, error = run.go(words, (*inputs, *numbers))
        if error is not None:
            raise error
        begun = time.perf_counter()
        norm = math.sqrt(executor.squared_norm(session.own_pieces()))
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
