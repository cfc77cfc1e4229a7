"""Strategies as JSON: written and read without loss, refused where they make no sense."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from cavs.data.whole_file import write_whole
from cavs.distributed.cluster.resources import read_text
from cavs.distributed.strategy.expression import (
    FORMAT,
    GraphConfig,
    NodeConfig,
    Strategy,
    synchronisers,
)
from cavs.errors import ConfigError

_WANTED: dict[type, str] = {str: "a string", list: "a list", Mapping: "an object with named fields"}


def from_dict(content: Any) -> Strategy:
    """Return the strategy of a `Strategy.to_dict`; ConfigError that names the field."""
    fields = _fields(content, "strategy", Strategy, "format")
    if (version := fields.pop("format")) != FORMAT:
        raise ConfigError(
            f"strategy: format is {version!r}, this version reads {FORMAT}",
            hint="build it again with cavs strategy show",
        )
    return Strategy(**{name: _value(name, value, name) for name, value in fields.items()})


def _values(content: Any, where: str, cls: type) -> dict[str, Any]:
    """Return the values of the fields of `cls` in an object that stands at `where`."""
    fields = _fields(content, where, cls)
    return {name: _value(name, value, f"{where}.{name}") for name, value in fields.items()}


def _value(field: str, value: Any, where: str) -> Any:
    match field:
        case "graph":
            return GraphConfig(**_values(value, where, GraphConfig))
        case "nodes" | "shards":
            return tuple(NodeConfig(**_values(x, at, NodeConfig)) for x, at in _items(value, where))
        case "replicas" | "servers" | "placement":
            return tuple(_typed(x, at, str) for x, at in _items(value, where))
        case "partition":
            return tuple(_typed(value, where, list))
        case "synchroniser" if value is None:
            return None
        case "synchroniser":
            known = synchronisers()
            if not isinstance(value, Mapping) or value.get("type") not in list(known):
                hint = f"give a type of {', '.join(known)}"
                raise ConfigError(f"{where} is {value!r}", hint=hint)
            cls = known[value["type"]]
            options = _fields(value, where, cls, "type")
            return cls(**{name: option for name, option in options.items() if name != "type"})
    return _typed(value, where, str)


def _fields(content: Any, where: str, cls: type, *tags: str) -> dict[str, Any]:
    """Return the fields of an object: `tags`, and some of `cls` with all that it needs."""
    given, own = dict(_typed(content, where, Mapping)), dataclasses.fields(cls)
    known = [*tags, *(x.name for x in own)]
    needed = [*tags, *(x.name for x in own if x.default is dataclasses.MISSING)]
    missing = [name for name in needed if name not in given]
    unknown = [name for name in given if name not in known]
    if missing or unknown:
        what = f"misses {missing[0]!r}" if missing else f"has an unknown field {unknown[0]!r}"
        raise ConfigError(f"{where} {what}", hint=f"its fields are {', '.join(known)}")
    return given


def _items(value: Any, where: str) -> list[tuple[Any, str]]:
    """Return the items of a list, and where each stands."""
    return [(item, f"{where}[{i}]") for i, item in enumerate(_typed(value, where, list))]


def _typed(value: Any, where: str, cls: type) -> Any:
    if not isinstance(value, cls):
        raise ConfigError(f"{where} is {value!r}", hint=f"give {_WANTED[cls]}")
    return value


def to_text(strategy: Strategy) -> str:
    """Return the strategy as JSON text."""
    return json.dumps(strategy.to_dict(), indent=2, ensure_ascii=True) + "\n"


def from_text(text: str, source: str = "strategy") -> Strategy:
    """Return the strategy in JSON text; `source` names it in errors. Raises `ConfigError`."""
    try:
        return from_dict(json.loads(text, object_pairs_hook=_once))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{source} is no JSON: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error.what}", where=error.where, hint=error.hint) from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, which would else take the last value of a repeated name."""
    names = [name for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"the field {twice[0]!r} stands twice in one object", hint="keep one")
    return dict(pairs)


def save(strategy: Strategy, path: str | os.PathLike[str]) -> None:
    """Write the strategy to a file, whole or not at all."""
    write_whole(path, to_text(strategy))


def load(path: str | os.PathLike[str]) -> Strategy:
    """Read a strategy that `save` wrote. Raises `ConfigError`."""
    return from_text(read_text(path), str(path))
