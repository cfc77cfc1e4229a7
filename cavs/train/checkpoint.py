"""Checkpoints: parameters, optimiser states, and the progress of a training in one file.

Parameters are stored under their own names, so that any safetensors reader finds them; optimiser
states under ``optimizer.<parameter>.<state>``; arrays of the engine under ``session.<name>``. The
rest is JSON in the metadata, with the types of edge features, which a graph without edges lacks.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cavs.config import require
from cavs.errors import CheckpointError, renamed
from cavs.frontend.model import Model
from cavs.train import safetensors
from cavs.train.optimizer import TrainableParameter
from cavs.train.version import version

Array = NDArray[Any]
_FORMAT = "1"
_OLDER = "another program wrote or changed it: take an older checkpoint"


class ParameterizedModel(Protocol):
    """An object with named parameters."""

    def parameters(self) -> Mapping[str, TrainableParameter]:
        """Return the parameters by dotted name, in a stable order."""
        ...


def best_path(checkpoint: str | os.PathLike[str]) -> Path:
    """Return the path for the best parameters: ``a.best.safetensors`` for ``a.safetensors``."""
    path = Path(checkpoint)
    return path.with_name(f"{path.stem}.best{path.suffix}")


def check_writable(path: Path) -> None:
    """Raise `CheckpointError` if a checkpoint could not be written to `path`; make its folder."""
    try:
        final = Path(os.path.realpath(path))  # the file that a link to it names is replaced
        probe = final.parent / f".{final.name}.{os.getpid()}.{time.monotonic_ns()}.probe"
        final.parent.mkdir(parents=True, exist_ok=True)
        probe.touch(exist_ok=False)
        probe.unlink()
        if final.exists() and not (final.is_file() and os.access(final, os.W_OK)):
            raise PermissionError("it exists and is not a file that may be written")
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {getattr(error, 'strerror', None) or error}",
            hint="choose a folder and file that you may write to",
        ) from error


@renamed({"edge_types": "feature_types"})
@dataclass
class Checkpoint:
    """The content of a checkpoint file.

    Attributes:
        parameters: Values by name.
        states: Optimiser states of each parameter.
        model: Class of the model.
        config: JSON object from `Trainer`.
        progress: JSON object with the progress of the run and the settings of its steps.
        version: Version of cavs that wrote the file.
        extra: Further arrays of the engine, such as the residuals of compressors.
        feature_types: Dtype, row shape and type of vertices of the features of types, and of edges,
            whose type is "", that the model was trained with.
    """

    parameters: dict[str, Array]
    states: dict[str, list[Array]] = field(default_factory=dict)
    model: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)
    version: str = ""
    extra: dict[str, Array] = field(default_factory=dict)
    feature_types: dict[str, tuple[str, tuple[int, ...], str]] = field(default_factory=dict)


def model_name(model: object) -> str:
    """Return the name of the class of `model`, as checkpoints store it."""
    return type(model).__qualname__


def save_checkpoint(
    path: str | os.PathLike[str],
    model: ParameterizedModel,
    *,
    states: Sequence[Sequence[Array]] = (),
    config: Mapping[str, Any] | None = None,
    progress: Mapping[str, Any] | None = None,
    extra: Mapping[str, Array] | None = None,
) -> None:
    """Write the parameters of `model` and the other arguments to `path`, atomically.

    `states` holds the optimiser's arrays in the order of ``model.parameters()``, or nothing. For
    the other arguments see `Checkpoint`.
    Raises `CheckpointError` if the path cannot be written; a file there before is untouched.
    """
    parameters = model.parameters()
    tensors: dict[str, Array] = {name: p.current() for name, p in parameters.items()}
    for name, arrays in zip(parameters, states, strict=bool(states)):
        for state, array in zip(state_names(progress or {}, len(arrays)), arrays, strict=True):
            _add(tensors, "optimizer", f"{name}.{state}", array)
    for name, array in (extra or {}).items():
        _add(tensors, "session", name, array)
    try:
        texts = {
            k: json.dumps(v or {}, default=_plain)
            for k, v in (("config", config), ("progress", progress))
        }
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"config or progress is not JSON: {error}", hint="use strings, numbers and lists only"
        ) from error
    metadata = {
        "format": "cavs",
        "cavs_format": _FORMAT,
        "cavs_version": version(),
        "model": model_name(model),
        "parameters": json.dumps(list(parameters)),
        "edge_types": json.dumps(dict(getattr(model, "_feature_types", {}))),
        **texts,
    }
    safetensors.write(path, tensors, metadata)


def state_names(progress: Mapping[str, Any], most: int) -> list[str]:
    """Return the names of the optimiser's states in a checkpoint, of which there are `most`.

    They are numbers in files that no `Trainer` wrote, and in those of old versions.
    """
    optimizer = progress.get("optimizer")
    named = optimizer.get("states") if isinstance(optimizer, dict) else None
    return [str(i) for i in range(most)] if named is None else list(named)[:most]


def require_json(name: str, value: object) -> None:
    """Raise `ConfigError`, naming the part, unless JSON can represent `value`; tuples are lists."""
    if isinstance(value, dict):
        for key, part in value.items():
            require(isinstance(key, str), f"a key of {name}", key, "a string, as in JSON")
            require_json(f"{name}[{key!r}]", part)
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            require_json(f"{name}[{i}]", part)
    else:
        types = str | int | float | np.bool_ | np.integer | np.floating | None
        need = "a JSON value: a string, a number, None, or a list or dict of these"
        require(isinstance(value, types), name, value, need)


def _plain(value: object) -> object:
    """Return a number of NumPy as one of Python, which JSON can represent."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r:.80} is of type {type(value).__name__}")


def _add(tensors: dict[str, Array], prefix: str, name: str, array: Array) -> None:
    key = f"{prefix}.{name}"
    if key in tensors:
        state = "an optimiser state" if prefix == "optimizer" else "a state of the engine"
        raise CheckpointError(
            f"the parameter {key!r} has the name of {state}",
            hint=f"give the attribute of the model another name than {prefix!r}",
        )
    tensors[key] = array


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read `path`. Raises `CheckpointError` if it is truncated or was not written by cavs."""
    tensors, metadata = safetensors.read(path)
    if metadata.get("cavs_format") != _FORMAT:
        raise CheckpointError(
            f"{path} has cavs_format {metadata.get('cavs_format')!r}, not {_FORMAT!r}",
            hint="it was not written by this version of cavs; "
            "cavs.train.load_parameters reads the arrays of any safetensors file",
        )
    try:
        names = json.loads(metadata["parameters"])
        config, progress = json.loads(metadata["config"]), json.loads(metadata["progress"])
        types = json.loads(metadata.get("edge_types", "{}")).items()
        feature_types = {
            str(n): (str(d), tuple(int(x) for x in shape), str(*of))  # former files have no types
            for n, (d, shape, *of) in types
        }
        parameters = {name: tensors.pop(name) for name in names}
        states: dict[str, list[Array]] = {name: [] for name in names}
        for name in names:
            for state in state_names(progress, len(tensors)):
                if (key := f"optimizer.{name}.{state}") not in tensors:
                    break
                states[name].append(tensors.pop(key))
        kept = [name for name in tensors if name.startswith("session.")]
        extra = {name.removeprefix("session."): tensors.pop(name) for name in kept}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its metadata is damaged ({error})", hint=_OLDER) from error
    if tensors:
        orphan = min(tensors)
        raise CheckpointError(f"{path}: tensor {orphan!r} belongs to no parameter", hint=_OLDER)
    if not isinstance(config, dict) or not isinstance(progress, dict):
        raise CheckpointError(f"{path}: its config or progress is not a JSON object", hint=_OLDER)
    return Checkpoint(
        parameters,
        states,
        metadata.get("model", ""),
        config,
        progress,
        metadata.get("cavs_version", ""),
        extra,
        feature_types,
    )


def check_fit(
    path: object, what: str, stored: Mapping[str, Array], own: Mapping[str, Array]
) -> None:
    """Raise `CheckpointError` unless both have the same names, shapes and dtypes.

    The stored values must also be finite. what: Name of the arrays in errors.
    """
    missing, extra = sorted(set(own) - set(stored)), sorted(set(stored) - set(own))
    if missing or extra:
        parts = [f"{len(missing)} missing, such as {missing[0]!r}"] if missing else []
        parts += [f"{len(extra)} unknown, such as {extra[0]!r}"] if extra else []
        raise CheckpointError(
            f"{path} has other {what} than the model: {'; '.join(parts)}",
            hint="build the model with the options it was trained with",
        )
    for name, array in own.items():
        found = stored[name]
        if found.shape != array.shape or found.dtype != array.dtype:
            raise CheckpointError(
                f"{path}: {what} {name!r} is {found.dtype}{list(found.shape)}, "
                f"but the model has {array.dtype}{list(array.shape)}",
                hint="build the model with the options it was trained with",
            )
        if not np.isfinite(found).all():
            raise CheckpointError(
                f"{path}: {what} {name!r} holds {found[~np.isfinite(found)].flat[0]}",
                hint="take a file with finite numbers, such as an older checkpoint",
            )


def recall_feature_types(model: ParameterizedModel, stored: Checkpoint) -> None:
    """Set the types of features of edges and types that `model` was trained with."""
    if isinstance(model, Model):
        model._feature_types = {**model._feature_types, **stored.feature_types}


def load_parameters(
    model: ParameterizedModel, path: str | os.PathLike[str], *, strict: bool = True
) -> list[str]:
    """Copy the parameters in `path` into those of `model`, in place; optimiser states are left.

    Takes any safetensors file with the same names, shapes and dtypes.

    strict: Require the same names in file and model; if False, copy those that both have. A
        parameter of another shape does not fit in either case, as in PyTorch: a new output layer
        needs a new name, such as ``self.output2``.

    Returns the names that only the file or only the model has. Raises `CheckpointError`, with the
    model untouched, if the file is damaged, does not fit, has no parameter of the model, or holds
    NaN or infinity. A checkpoint also sets the types of edge features of the model, for graphs
    without edges.
    """
    tensors, metadata = safetensors.read(path)
    stored = read_checkpoint(path) if "cavs_format" in metadata else Checkpoint(tensors)
    tensors = stored.parameters
    own = {name: p.value for name, p in model.parameters().items()}
    others = sorted(own.keys() ^ tensors.keys())
    if not strict and len(others) < len(own.keys() | tensors.keys()):
        own, tensors = ({k: v for k, v in of.items() if k not in others} for of in (own, tensors))
    check_fit(path, "parameters", tensors, own)
    recall_feature_types(model, stored)
    for name, array in own.items():
        np.copyto(array, tensors[name])
    return others
