"""Strategies as JSON: written and read without loss, refused where they make no sense."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from cavs.data.whole_file import write_whole
from cavs.distributed.cluster.text import read_text
from cavs.distributed.strategy.expression import (
    FORMAT,
    REGISTRY,
    GraphConfig,
    NodeConfig,
    Strategy,
    Synchroniser,
)
from cavs.errors import ConfigError

_WANTED: dict[type, str] = {str: "a string", list: "a list", Mapping: "an object with named fields"}


def from_dict(content: Any) -> Strategy:
    """Return the strategy of a `Strategy.to_dict`; ConfigError that names the field."""
    fields = _fields(content, "strategy", ("format", "graph", "nodes"), ("builder",))
    if fields["format"] != FORMAT:
        raise ConfigError(
            f"strategy: format is {fields['format']!r}, this version reads {FORMAT}",
            hint="build it again with cavs strategy show",
        )
    graph = _fields(fields["graph"], "graph", ("replicas",), ("servers", "gradients"))
    nodes = _typed(fields["nodes"], "nodes", list)
    return Strategy(
        graph=GraphConfig(
            replicas=_strings(graph["replicas"], "graph.replicas"),
            servers=_strings(graph.get("servers", []), "graph.servers"),
            gradients=_typed(graph.get("gradients", "mean"), "graph.gradients", str),
        ),
        nodes=tuple(_node(node, f"nodes[{i}]") for i, node in enumerate(nodes)),
        builder=_typed(fields.get("builder", ""), "builder", str),
    )


def _node(content: Any, where: str) -> NodeConfig:
    optional = ("partition", "placement", "synchroniser", "compressor", "shards")
    fields = _fields(content, where, ("name",), optional)
    synchroniser = None
    if fields.get("synchroniser") is not None:
        synchroniser = _synchroniser(fields["synchroniser"], f"{where}.synchroniser")
    shards = _typed(fields.get("shards", []), f"{where}.shards", list)
    return NodeConfig(
        name=_typed(fields["name"], f"{where}.name", str),
        synchroniser=synchroniser,
        partition=tuple(_typed(fields.get("partition", []), f"{where}.partition", list)),
        placement=_strings(fields.get("placement", []), f"{where}.placement"),
        compressor=_typed(fields.get("compressor", "none"), f"{where}.compressor", str),
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
    fields = dict(_typed(content, where, Mapping))
    missing = [name for name in required if name not in fields]
    unknown = [name for name in fields if name not in (*required, *optional)]
    if missing or unknown:
        what = f"misses {missing[0]!r}" if missing else f"has an unknown field {unknown[0]!r}"
        known = ", ".join(dict.fromkeys((*required, *optional)))
        raise ConfigError(f"{where} {what}", hint=f"its fields are {known}")
    return fields


def _typed(value: Any, where: str, cls: type) -> Any:
    if not isinstance(value, cls):
        raise ConfigError(f"{where} is {value!r}", hint=f"give {_WANTED[cls]}")
    return value


def _strings(value: Any, where: str) -> tuple[str, ...]:
    items = enumerate(_typed(value, where, list))
    return tuple(_typed(item, f"{where}[{i}]", str) for i, item in items)


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
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ConfigError(f"the field {name!r} stands twice in one object", hint="keep one")
        fields[name] = value
    return fields


def save(strategy: Strategy, path: str | os.PathLike[str]) -> None:
    """Write the strategy to a file, whole or not at all."""
    write_whole(path, to_text(strategy))


def load(path: str | os.PathLike[str]) -> Strategy:
    """Read a strategy that `save` wrote. Raises `ConfigError`."""
    return from_text(read_text(path), str(path))
