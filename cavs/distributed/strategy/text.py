"""Strategies as JSON: written and read without loss, refused where they make no sense."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cavs.data.whole_file import write_whole
from cavs.distributed.strategy.expression import (
    FORMAT,
    REGISTRY,
    GraphConfig,
    NodeConfig,
    Strategy,
    Synchroniser,
)
from cavs.errors import ConfigError


def from_dict(content: Any) -> Strategy:
    """Return the strategy of a `Strategy.to_dict`; ConfigError that names the field."""
    fields = _fields(content, "strategy", ("format", "graph", "nodes"), ("builder",))
    if fields["format"] != FORMAT:
        raise ConfigError(
            f"strategy: format is {fields['format']!r}, this version reads {FORMAT}",
            hint="build it again with cavs strategy show",
        )
    graph = _fields(fields["graph"], "graph", ("replicas",), ("servers", "gradients"))
    nodes = _list(fields["nodes"], "nodes")
    return Strategy(
        graph=GraphConfig(
            replicas=_strings(graph["replicas"], "graph.replicas"),
            servers=_strings(graph.get("servers", []), "graph.servers"),
            gradients=_string(graph.get("gradients", "mean"), "graph.gradients"),
        ),
        nodes=tuple(_node(node, f"nodes[{i}]") for i, node in enumerate(nodes)),
        builder=_string(fields.get("builder", ""), "builder"),
    )


def _node(content: Any, where: str) -> NodeConfig:
    optional = ("partition", "placement", "synchroniser", "compressor", "shards")
    fields = _fields(content, where, ("name",), optional)
    synchroniser = None
    if fields.get("synchroniser") is not None:
        synchroniser = _synchroniser(fields["synchroniser"], f"{where}.synchroniser")
    shards = _list(fields.get("shards", []), f"{where}.shards")
    return NodeConfig(
        name=_string(fields["name"], f"{where}.name"),
        synchroniser=synchroniser,
        partition=tuple(_list(fields.get("partition", []), f"{where}.partition")),
        placement=_strings(fields.get("placement", []), f"{where}.placement"),
        compressor=_string(fields.get("compressor", "none"), f"{where}.compressor"),
        shards=tuple(_node(shard, f"{where}.shards[{i}]") for i, shard in enumerate(shards)),
    )


def _synchroniser(content: Any, where: str) -> Synchroniser:
    if not isinstance(content, Mapping) or content.get("type") not in list(REGISTRY):
        raise ConfigError(f"{where} is {content!r}", hint=f"give a type of {', '.join(REGISTRY)}")
    cls = REGISTRY[content["type"]]
    known = dataclasses.fields(cls)
    required = tuple(f.name for f in known if f.default is dataclasses.MISSING)
    fields = _fields(content, where, ("type", *required), tuple(f.name for f in known))
    return cls(**{name: value for name, value in fields.items() if name != "type"})


def _fields(
    content: Any, where: str, required: tuple[str, ...], optional: tuple[str, ...]
) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where} is {content!r}", hint="give an object with named fields")
    missing = [name for name in required if name not in content]
    unknown = [name for name in content if name not in (*required, *optional)]
    if missing or unknown:
        what = f"misses {missing[0]!r}" if missing else f"has an unknown field {unknown[0]!r}"
        known = ", ".join(dict.fromkeys((*required, *optional)))
        raise ConfigError(f"{where} {what}", hint=f"its fields are {known}")
    return dict(content)


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{where} is {value!r}", hint="give a list")
    return value


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where} is {value!r}", hint="give a string")
    return value


def _strings(value: Any, where: str) -> tuple[str, ...]:
    return tuple(_string(item, f"{where}[{i}]") for i, item in enumerate(_list(value, where)))


def to_text(strategy: Strategy) -> str:
    """The strategy as JSON text."""
    return json.dumps(strategy.to_dict(), indent=2, ensure_ascii=True) + "\n"


def from_text(text: str, source: str = "strategy") -> Strategy:
    """The strategy in JSON text; `source` names it in errors. Raises `ConfigError`."""
    try:
        return from_dict(json.loads(text, object_pairs_hook=_once))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{source} is no JSON: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error.what}", where=error.where, hint=error.hint) from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, which would else take the last value of a repeated name."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"the field {twice!r} stands twice in one object", hint="keep one")
    return fields


def save(strategy: Strategy, path: str | os.PathLike[str]) -> None:
    """Writes the strategy to a file, whole or not at all."""
    write_whole(path, to_text(strategy))


def load(path: str | os.PathLike[str]) -> Strategy:
    """Reads a strategy that `save` wrote. Raises `ConfigError`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", hint="check the path") from None
    return from_text(text, str(path))
