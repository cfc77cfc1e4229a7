"""Transfer of the state of a running training to ranks that join it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.elastic.training import RankTraining
from cavs.distributed.strategy import Strategy
from cavs.errors import CommunicationError
from cavs.train import saving
from cavs.train.checkpoint import Checkpoint
from cavs.train.coordination import BEST

Array = NDArray[Any]
Memory = Mapping[str, Array]


def describe(training: RankTraining, progress: Mapping[str, Any], extra: Memory) -> dict[str, Any]:
    """Return all of a training but its arrays, and the forms of these, as JSON values.

    extra: arrays besides parameters and optimiser states.
    """
    state, requested = training.state, training.requested
    return {
        **({} if isinstance(requested, Strategy) else {"strategy": requested}),
        "progress": {**progress, **saving.settings_of(state, training.session)},
        "edge_types": dict(getattr(state.model, "_feature_types", {})),
        "states": [[_form(array) for array in arrays] for arrays in state.states],
        "extra": {name: _form(array) for name, array in extra.items()},
    }


def _form(array: Array) -> tuple[str, tuple[int, ...]]:
    return array.dtype.name, array.shape


def transfer(
    training: RankTraining, described: dict[str, Any] | None, extra: Memory, *, joining: bool
) -> Checkpoint | None:
    """Send all arrays but parameters to ranks that join; return the state for these.

    All ranks call it, again after a death. described, extra: a result of `describe` and its arrays,
    on ranks that have trained before. Raises `CommunicationError` if all of these have died.
    """
    session, state = training.session, training.state
    c = session.communicator
    has_state = c.share(described is not None)
    if not any(has_state):
        if c.rank == 0:  # the command line shows errors of the first process alone
            print("cavs: all ranks that had the state have died", file=sys.stderr, flush=True)
        raise CommunicationError(
            "all ranks that have trained before have died, and with them the state of the run",
            hint="resume from the last checkpoint",
        )
    root = has_state.index(True)
    known = c.share(described if c.rank == root else None)[root]
    session.keep_dtype()
    for arrays, forms in zip(state.states, known["states"], strict=True):
        if joining:
            arrays[:] = [np.empty(shape, dtype) for dtype, shape in forms]
        for array in arrays:
            c.broadcast(array, root)
    received = {}
    for name, (dtype, shape) in known["extra"].items():
        received[name] = np.array(extra[name]) if name in extra else np.empty(shape, dtype)
        c.broadcast(received[name], root)
    if not joining:
        return None
    if "strategy" in known:
        training.requested = known["strategy"]
    types = {
        name: (dtype, tuple(shape), of) for name, (dtype, shape, of) in known["edge_types"].items()
    }
    stored = Checkpoint({}, progress=known["progress"], extra=received, feature_types=types)
    saving.take_settings(state, session, stored)
    session.invalidate()
    session.take_memory({n: a for n, a in received.items() if not n.startswith(BEST)})
    return stored
