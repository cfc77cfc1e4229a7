"""Writes a `TrainingState` to a checkpoint and reads it back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.config import require_flag
from cavs.errors import NumericsError
from cavs.frontend.model import require_same_parameters
from cavs.train.checkpoint import (
    Checkpoint,
    load_parameters,
    recall_feature_types,
    save_checkpoint,
)
from cavs.train.checkpoint_lock import CheckpointLock, locked
from cavs.train.coordination import Coordinator
from cavs.train.engine import Engine
from cavs.train.run_state import read_resumable
from cavs.train.settings import check_settings
from cavs.train.stepping import TrainingState

Array = NDArray[Any]


def save(
    path: str | os.PathLike[str],
    state: TrainingState,
    engine: Engine,
    *,
    progress: Mapping[str, Any],
    overrides: Mapping[str, Any] | None,
    states: bool,
    extra: Mapping[str, Array],
    held: tuple[CheckpointLock | None, ...],
) -> None:
    """Write `state` to the checkpoint `path`, atomically.

    Args:
        path: The file.
        state: The state to write.
        engine: The engine, whose state is written too.
        progress: Progress of the `fit`.
        overrides: Entries that replace those of `progress` and of `state`.
        states: True to write the optimiser's arrays.
        extra: Further arrays of the engine.
        held: Locks that this process holds.
    """
    for name, parameter in state.parameters.items():
        if not np.isfinite(parameter.current()).all():
            raise NumericsError(
                f"step {state.steps}: parameter {name!r} is not finite, no checkpoint written\n"
                f"  {state.last_checkpoint_line}",
                hint="lower lr, or set max_norm",
            )
    own = settings_of(state, engine)
    engine.keep_dtype()
    require_same_parameters(state.model, state.parameters)
    with locked(path, *held):
        save_checkpoint(
            path,
            state.model,
            states=state.states if states else (),
            config=state.config,
            progress={**progress, **own, **(overrides or {})},
            extra=extra,
        )


def load(
    path: str | os.PathLike[str],
    state: TrainingState,
    engine: Engine,
    coordinator: Coordinator,
    *,
    strict: bool = True,
) -> list[str]:
    """Copy the parameters in `path` into the model and nothing else; see `load_parameters`."""

    def read() -> list[str]:
        engine.keep_dtype()
        others = load_parameters(state.model, path, strict=strict)
        engine.invalidate()
        return others

    return coordinator.load(read)


def restore(
    path: str | os.PathLike[str], state: TrainingState, engine: Engine, *, strict: bool
) -> Checkpoint:
    """Set `state` and `engine` to those in the checkpoint `path`; see `Trainer.resume`."""
    engine.keep_dtype()
    optimizer, names = state.optimizer.name, state.optimizer.state_names()
    require_flag("strict", strict)
    stored = read_resumable(path, state.model, state.states, optimizer, names)
    if strict:
        check_settings(path, stored.progress, state.settings())
    own = {name: p.value for name, p in state.parameters.items()}
    for name, arrays in zip(own, state.states, strict=True):
        if not arrays:  # trained when the file was written, frozen now
            arrays.extend(np.empty_like(saved) for saved in stored.states[name])
    take_settings(state, engine, stored)
    for (name, array), arrays in zip(own.items(), state.states, strict=True):
        np.copyto(array, stored.parameters[name])
        if not stored.states[name]:
            arrays.clear()  # frozen when the file was written; the next step allocates them
        for target, saved in zip(arrays, stored.states[name], strict=True):
            np.copyto(target, saved)
    engine.invalidate()
    return stored


def settings_of(state: TrainingState, engine: Engine) -> dict[str, Any]:
    """Return the entries of a checkpoint's progress that `take_settings` reads, as JSON values."""
    return {
        "step": state.steps,
        "seed": state.seed,
        **state.settings(),
        "lr_scale": state.lr_scale,
        "session": engine.state_dict(),
    }


def take_settings(state: TrainingState, engine: Engine, stored: Checkpoint) -> None:
    """Set all of `state` and `engine` but the arrays to those of a checkpoint that fits."""
    progress = stored.progress
    engine.load_state_dict(progress.get("session") or {})
    state.optimizer.load_state_dict(progress["optimizer"])
    recall_feature_types(state.model, stored)
    state.steps, state.seed = progress["step"], progress["seed"]
    state.lr_scale = progress.get("lr_scale", 1.0)
