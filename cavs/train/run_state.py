"""Progress of a `fit`: the part that checkpoints store and that a resumed run continues from."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cavs.errors import CheckpointError
from cavs.train import safetensors
from cavs.train.checkpoint import (
    Checkpoint,
    ParameterizedModel,
    check_fit,
    model_name,
    read_checkpoint,
)
from cavs.train.optimizer import TrainableParameter

Array = NDArray[Any]
_FIT_KEYS = ("fit", "monitor", "dev", "loader", "policies", "monitors", "saved")


@dataclass
class RunState:
    """Progress of a run between two steps, as a checkpoint stores it.

    Attributes:
        epoch: Number of finished epochs.
        trained: True if epoch ``epoch + 1`` has been trained, but not evaluated.
        loss_sum, loss_count: Sum and number of the losses of the current epoch.
        best, best_epoch: Best monitored value and its epoch.
        bad_epochs: Number of epochs since then.
        step: Number of updates when the last step of the run was counted.
        opened: True if policies have been called before epoch ``epoch + 1``.
    """

    epoch: int = 0
    trained: bool = False
    loss_sum: float = 0.0
    loss_count: int = 0
    best: float | None = None
    best_epoch: int | None = None
    bad_epochs: int = 0
    step: int = 0
    opened: bool = False

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> RunState:
        """Return the inverse of `asdict`. Raises `CheckpointError`."""
        try:
            best, epoch = values["best"], values["best_epoch"]
            run = RunState(
                int(values["epoch"]),
                bool(values["trained"]),
                float(values["loss_sum"]),
                int(values["loss_count"]),
                None if best is None else float(best),
                None if epoch is None else int(epoch),
                int(values["bad_epochs"]),
                int(values.get("step", 0)),
                bool(values.get("opened", False)),
            )
            if min(run.epoch, run.loss_count, run.bad_epochs, run.step) < 0:
                raise ValueError("a count below 0")
            return run
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint has an invalid run state: {values!r}",
                hint="take an older checkpoint",
            ) from error


@dataclass(frozen=True)
class ResumePoint:
    """The file that `Trainer.resume` has read, and progress and arrays of the run stored in it."""

    path: Path
    progress: Mapping[str, Any]
    arrays: Mapping[str, Array] = field(default_factory=dict)


def fit_progress(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a checkpoint's `progress` that a `fit` has written, possibly empty."""
    known = isinstance(progress.get("fit"), dict)
    return {key: progress[key] for key in _FIT_KEYS if key in progress} if known else {}


def read_resumable(
    path: str | os.PathLike[str],
    model: ParameterizedModel,
    states: Sequence[Sequence[Array]],
    optimizer: str,
    names: Sequence[str],
) -> Checkpoint:
    """Read a checkpoint from which a training of `model` can be resumed.

    states: The optimiser's arrays in the order of ``model.parameters()``. optimizer: Its name.
    names: Names of its states.
    Raises `CheckpointError` if the file does not fit.
    """
    stored = read_checkpoint(path)
    own = _values(model)
    if stored.model != model_name(model):
        raise CheckpointError(
            f"{path} holds a {stored.model}, not a {model_name(model)}",
            hint="build the model it was trained with, or use load() for the arrays alone",
        )
    check_fit(path, "parameters", stored.parameters, own)
    kept = stored.progress.get("optimizer")
    step, seed = stored.progress.get("step"), stored.progress.get("seed")
    if not isinstance(kept, dict) or not isinstance(step, int) or not isinstance(seed, int):
        raise CheckpointError(
            f"{path} has no optimiser settings, step and seed to resume from",
            hint="load() takes over the parameters alone; save() of a Trainer writes all",
        )
    scale = stored.progress.get("lr_scale", 1.0)
    if not isinstance(scale, float) or not 0 < scale < math.inf:
        raise CheckpointError(
            f"{path} has lr_scale {scale!r}, but lr_scale must be a number above 0",
            hint="the file was changed; take an older checkpoint",
        )
    for name, value, limit in (("step", step, 2**63), ("seed", seed, 2**64)):
        if not 0 <= value < limit:
            raise CheckpointError(
                f"{path} has {name} {value}, but {name} must be a whole number from 0 to "
                f"{limit - 1}",
                hint="the file was changed; take an older checkpoint",
            )
    if isinstance(stored.progress.get("fit"), dict):
        RunState.from_json(stored.progress["fit"])
    if kept.get("kind") != optimizer:
        raise CheckpointError(
            f"{path} was trained with {kept.get('kind')!r}, not {optimizer!r}",
            hint="resume with the same optimiser, or use load() for the parameters alone",
        )
    before = kept.get("states")
    if before is not None and list(before) != list(names):
        raise CheckpointError(
            f"{path} has the states {before} of {optimizer}, which has {list(names)} now",
            hint="resume with the same optimiser, or use load() for the parameters alone",
        )
    _check_states(path, stored, dict(zip(own, states, strict=True)))
    return stored


def _values(model: ParameterizedModel) -> dict[str, Array]:
    return {name: p.current() for name, p in model.parameters().items()}


def _stored_run(stored: Checkpoint) -> RunState:
    fit = fit_progress(stored.progress).get("fit")
    return RunState() if fit is None else RunState.from_json(fit)


def read_best(
    path: Path, run: RunState, model: ParameterizedModel
) -> tuple[Mapping[str, Array], RunState]:
    """Read the best parameters of a resumed run from `path`.

    Also returns the progress at which they were written, which is an epoch later than `run` if the
    process was killed between writing the two files. Raises `CheckpointError` if `path` does not
    hold the parameters of the best epoch.
    """
    found = f"restore_best=True: the best epoch of the resumed run is {run.best_epoch}"
    hint = (
        "put the file of that run there; without it, restore_best=False continues in Python, and "
        "on the command line --overwrite starts a new run"
    )
    try:
        stored = read_checkpoint(path)
    except CheckpointError as error:
        raise CheckpointError(f"{found}, but {error.what}", where=error.where, hint=hint) from error
    kept = _stored_run(stored)
    same = (kept.best_epoch, kept.best) == (run.best_epoch, run.best)
    # A run killed between its two files has replaced this one by that of its next epoch.
    if not (same or kept.best_epoch == run.epoch + 1):
        raise CheckpointError(
            f"{found}, of value {run.best}, but {path} holds epoch {kept.best_epoch}, of value "
            f"{kept.best}",
            hint=hint,
        )
    check_fit(path, "parameters", stored.parameters, _values(model))
    return stored.parameters, kept


def check_best(path: Path, run: RunState) -> None:
    """Raise `CheckpointError` unless `path` holds the best parameters of this run."""
    kept = _stored_run(read_checkpoint(path))
    if (kept.best_epoch, kept.best) != (run.best_epoch, run.best):
        raise CheckpointError(
            f"restore_best=True: the best epoch is {run.best_epoch}, of value "
            f"{run.best}, but {path} holds epoch {kept.best_epoch}, of value {kept.best}",
            hint="another program has written it; the model has the parameters of the last epoch",
        )


def check_replaceable(path: Path, model: ParameterizedModel) -> None:
    """Raise `CheckpointError` if the file at `path` exists and is no checkpoint of `model`."""
    if not path.exists() or path.stat().st_size == 0:
        return
    hint = "pass another checkpoint=, or move that file away first"
    try:
        shapes, metadata = safetensors.read_header(path)
        names = json.loads(metadata["parameters"])
        stored = {str(name): shapes[name] for name in names}
    except (CheckpointError, KeyError, TypeError, ValueError) as error:
        found = error.what if isinstance(error, CheckpointError) else f"{path} is none of cavs"
        raise CheckpointError(
            f"fit would replace a file that is no checkpoint of cavs: {found}", hint=hint
        ) from error
    own = {name: list(_shape(p)) for name, p in model.parameters().items()}
    name_of_model = metadata.get("model", "")
    if name_of_model == model_name(model) and stored == own:
        return
    other = ""
    for name in sorted(stored.keys() | own.keys()):
        if stored.get(name) != own.get(name):
            shown = (of.get(name, "absent") for of in (stored, own))
            other = ": {!r} is {} there and {} in this model".format(name, *shown)
            break
    raise CheckpointError(
        f"fit of a {model_name(model)} would replace {path} of another model, a "
        f"{name_of_model}{other}",
        hint=hint,
    )


def _shape(parameter: TrainableParameter) -> tuple[int, ...]:
    """Return the shape without reading the values, which may be on a device."""
    known = getattr(parameter, "shape", None)
    return parameter.current().shape if known is None else known


def _check_states(path: object, stored: Checkpoint, states: Mapping[str, Sequence[Array]]) -> None:
    if any(states.values()) and not any(stored.states.values()):
        raise CheckpointError(
            f"{path} has no optimiser states",
            hint="resume from the last checkpoint, not from the best; load() takes it",
        )
    # A parameter that was frozen has no states; the frozen ones may be others now.
    both = [name for name, arrays in states.items() if arrays and stored.states[name]]

    def flat(of: Mapping[str, Iterable[Array]]) -> dict[str, Array]:
        return {f"{name}.{i}": array for name in both for i, array in enumerate(of[name])}

    check_fit(path, "optimiser states", flat(stored.states), flat(states))
