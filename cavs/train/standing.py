"""Where a run stands: what checkpoints keep of it, and what a resumed run takes from them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from cavs.train.optim import TrainableParameter

Array = NDArray[Any]
_KEPT = ("fit", "monitor", "dev", "loader")


@dataclass
class Standing:
    """Where a run stands between two steps; what a checkpoint keeps of it."""

    epoch: int = 0  # epochs finished
    trained: bool = False  # the training half of epoch + 1 is finished too
    loss_sum: float = 0.0
    loss_count: int = 0
    best: float | None = None
    best_epoch: int | None = None
    bad_epochs: int = 0
    step: int = 0  # of the trainer, when the last step of the run was counted

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Standing:
        """The inverse of `asdict`. Raises `CheckpointError`."""
        try:
            best, epoch = values["best"], values["best_epoch"]
            standing = Standing(
                int(values["epoch"]),
                bool(values["trained"]),
                float(values["loss_sum"]),
                int(values["loss_count"]),
                None if best is None else float(best),
                None if epoch is None else int(epoch),
                int(values["bad_epochs"]),
                int(values.get("step", 0)),
            )
            counts = (standing.epoch, standing.loss_count, standing.bad_epochs, standing.step)
            if min(counts) < 0:
                raise ValueError("a count below 0")
            return standing
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the standing of the run is {values!r}", hint="take an older checkpoint"
            ) from error


@dataclass(frozen=True)
class Resumed:
    """What `Trainer.resume` leaves to the next `fit`: the file, and what that says of the run."""

    path: Path
    progress: Mapping[str, Any]


def standing_in(progress: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a checkpoint's `progress` that is of a `fit`; empty if there was none."""
    known = isinstance(progress.get("fit"), dict)
    return {key: progress[key] for key in _KEPT if key in progress} if known else {}


def read_resumable(
    path: str | os.PathLike[str],
    model: ParameterizedModel,
    states: Sequence[Sequence[Array]],
    kind: str,
) -> Checkpoint:
    """The checkpoint at `path`, which a training of `model` can be resumed from.

    states: the optimiser's arrays in the order of ``model.parameters()``. kind: of the optimiser.
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
            f"{path} does not say where the training stood",
            hint="load() takes over the parameters alone; save() of a Trainer writes all",
        )
    for name, value, most in (("step", step, 2**63), ("seed", seed, 2**64)):
        if not 0 <= value < most:
            raise CheckpointError(
                f"{path} says {name} {value}, but must say a whole number of at least 0",
                hint="it was changed; take an older checkpoint",
            )
    if isinstance(stored.progress.get("fit"), dict):
        Standing.from_json(stored.progress["fit"])
    if kept.get("kind") != kind:
        raise CheckpointError(
            f"{path} was trained with {kept.get('kind')!r}, not {kind!r}",
            hint="resume with the same optimiser, or use load() for the parameters alone",
        )
    _check_states(path, stored, dict(zip(own, states, strict=True)))
    return stored


def _values(model: ParameterizedModel) -> dict[str, Array]:
    return {name: p.current() for name, p in model.parameters().items()}


def read_best(
    path: Path, standing: Standing, model: ParameterizedModel
) -> tuple[Mapping[str, Array], Standing]:
    """The best parameters of the run that stands at `standing`, which it wrote to `path`; and
    where it stood then, which may be an epoch later.

    Raises `CheckpointError` if the file does not hold them.
    """
    what = f"restore_best=True: the best epoch of the resumed run is {standing.best_epoch}"
    hint = (
        "put the file of that run there; without it, restore_best=False goes on in Python, and on "
        "the command line --overwrite starts anew"
    )
    try:
        stored = read_checkpoint(path)
    except CheckpointError as error:
        raise CheckpointError(f"{what}, but {error.what}", where=error.where, hint=hint) from error
    fit = standing_in(stored.progress).get("fit")
    kept = Standing() if fit is None else Standing.from_json(fit)
    same = (kept.best_epoch, kept.best) == (standing.best_epoch, standing.best)
    # A run that was killed while it wrote has written those of its next epoch, and nothing else.
    if not (same or kept.best_epoch == standing.epoch + 1):
        raise CheckpointError(
            f"{what}, of value {standing.best}, but {path} holds epoch {kept.best_epoch}, of value "
            f"{kept.best}",
            hint=hint,
        )
    check_fit(path, "parameters", stored.parameters, _values(model))
    return stored.parameters, kept


def check_best(path: Path, standing: Standing) -> None:
    """Raise `CheckpointError` unless `path` holds the best parameters of this run."""
    fit = standing_in(read_checkpoint(path).progress).get("fit")
    kept = Standing() if fit is None else Standing.from_json(fit)
    if (kept.best_epoch, kept.best) != (standing.best_epoch, standing.best):
        raise CheckpointError(
            f"restore_best=True: the best epoch is {standing.best_epoch}, of value "
            f"{standing.best}, but {path} holds epoch {kept.best_epoch}, of value {kept.best}",
            hint="another program has written it; the model has the parameters of the last epoch",
        )


def check_replaceable(path: Path, model: ParameterizedModel) -> None:
    """Raise `CheckpointError` if there is a file at `path` that is no checkpoint of `model`."""
    if not path.exists() or path.stat().st_size == 0:
        return
    hint = "pass another checkpoint=, or move that file away first"
    try:
        shapes, metadata = safetensors.read_header(path)
        names = json.loads(metadata["parameters"])
        stored = {str(name): shapes[name] for name in names}
    except (CheckpointError, KeyError, TypeError, ValueError) as error:
        what = error.what if isinstance(error, CheckpointError) else f"{path} is none of cavs"
        raise CheckpointError(
            f"fit would replace a file that is no checkpoint of cavs: {what}", hint=hint
        ) from error
    own = {name: list(_shape(p)) for name, p in model.parameters().items()}
    kind = metadata.get("model", "")
    if kind == model_name(model) and stored == own:
        return
    other = ""
    for name in sorted(stored.keys() | own.keys()):
        if stored.get(name) != own.get(name):
            shown = (of.get(name, "nowhere") for of in (stored, own))
            other = ": {!r} is {} there and {} in this one".format(name, *shown)
            break
    raise CheckpointError(
        f"fit of a {model_name(model)} would replace {path} of another model, a {kind}{other}",
        hint=hint,
    )


def _shape(parameter: TrainableParameter) -> tuple[int, ...]:
    """Without its values, which would be fetched from a device."""
    known = getattr(parameter, "shape", None)
    return parameter.current().shape if known is None else known


def _check_states(path: object, stored: Checkpoint, states: Mapping[str, Sequence[Array]]) -> None:
    if any(states.values()) and not any(stored.states.values()):
        raise CheckpointError(
            f"{path} has no optimiser states",
            hint="resume from the last checkpoint, not from the best; load() takes it",
        )
    # One that was frozen has none; it need not be the same ones as now.
    both = [name for name, arrays in states.items() if arrays and stored.states[name]]

    def flat(of: Mapping[str, Iterable[Array]]) -> dict[str, Array]:
        return {f"{name}.{i}": array for name in both for i, array in enumerate(of[name])}

    check_fit(path, "optimiser states", flat(stored.states), flat(states))
