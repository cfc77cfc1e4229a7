"""Settings of an optimiser that a resumed training must have in common with the stored run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any

from cavs.errors import CheckpointError
from cavs.train.schedules import Constant


def to_json(value: object) -> Any:
    """Return `value` as JSON: numbers, and dataclasses as their arguments; None for others."""
    if isinstance(value, Constant):
        return float(value.lr)
    if isinstance(value, bool | str):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(part) for key, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: to_json(getattr(value, f.name)) for f in fields(value) if f.init}
        return {"class": type(value).__name__, **{k: v for k, v in own.items() if v is not None}}
    return None


def check_settings(
    path: str | os.PathLike[str], progress: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Raise `CheckpointError`, naming both values, if `settings` differ from those in `progress`.

    settings: Those of this trainer, as a checkpoint stores them. A setting that only one of them
    has, such as a schedule that is a function, is not compared.
    """
    _check_rule(path, progress["optimizer"], settings["optimizer"])
    stored, own = _settings(progress), _settings(settings)
    found = [part for name in stored.keys() & own.keys() for part in _differ(name, stored, own)]
    if not found:
        return
    found.sort()
    then = ", ".join(f"{name}={_shown(old)}" for name, old, _ in found)
    now = ", ".join(f"{name}={_shown(new)}" for name, _, new in found)
    raise CheckpointError(
        f"{path} was trained with {then}, but this trainer has {now}",
        hint=f"build it with {then}; resume(path, strict=False) goes on with other settings",
    )


def _check_rule(
    path: str | os.PathLike[str], stored: Mapping[str, Any], own: Mapping[str, Any]
) -> None:
    """Raise `CheckpointError` if the rule of an optimiser with the same options has changed."""
    old, new = (of.get("rule", "").splitlines() for of in (stored, own))
    if old == new or not old or stored.get("settings") != own.get("settings"):
        return
    at = next((i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), -1)
    raise CheckpointError(
        f"{path} was trained with another rule of {own['kind']}: {old[at]!r}, which is {new[at]!r} "
        "now",
        hint="restore the rule; resume(path, strict=False) goes on with the new one",
    )


def _settings(progress: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(progress["optimizer"].get("settings") or {})
    return found | {key: progress[key] for key in ("max_norm",) if key in progress}


def _differ(
    name: str, stored: Mapping[str, Any], own: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    old, new = stored[name], own[name]
    classes = [part.get("class") if isinstance(part, dict) else None for part in (old, new)]
    if classes[0] is None or classes[0] != classes[1]:
        if old != new:
            yield name, old, new
        return
    if any(_differ_any(key, old, new) for key in old.keys() & new.keys()):
        yield name, old, new


def _differ_any(name: str, stored: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    return any(True for _ in _differ(name, stored, own))


def _shown(value: Any) -> str:
    if isinstance(value, dict) and "class" in value:
        parts = [f"{name}={_shown(part)}" for name, part in value.items() if name != "class"]
        return f"{value['class']}({', '.join(parts)})"
    return f"{value!r:.200}"
