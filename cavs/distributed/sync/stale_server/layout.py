"""Shards with servers that do not wait for all replicas, and the owner of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cavs.distributed.strategy import Strategy, shards_of
from cavs.distributed.sync.part import Part, part_of
from cavs.errors import ConfigError


@dataclass(frozen=True)
class Unit:
    """A shard with one owner. rows: of a table, the rows [begin, end) that it is; else None."""

    number: int
    part: Part
    rows: tuple[int, int] | None
    group: int
    owner: int

    @property
    def width(self) -> int:
        """Elements of a row of a table."""
        assert self.rows is not None
        return self.part.size // max(self.rows[1] - self.rows[0], 1)


@dataclass(frozen=True)
class Group:
    """Units of one owner and one staleness (None: no bound): their clocks are the same."""

    number: int
    owner: int
    staleness: int | None
    units: tuple[Unit, ...]

    @property
    def dense(self) -> list[Part]:
        """The parts that are no tables."""
        return [unit.part for unit in self.units if unit.rows is None]

    @property
    def tables(self) -> list[Unit]:
        """The units whose gradients are rows."""
        return [unit for unit in self.units if unit.rows is not None]


@dataclass(frozen=True)
class Layout:
    """All units and groups, the same on every rank."""

    units: tuple[Unit, ...]
    groups: tuple[Group, ...]

    @property
    def owners(self) -> list[int]:
        """The ranks that own something, ascending."""
        return sorted({group.owner for group in self.groups})


def layout_of(strategy: Strategy, parameters: Mapping[str, Any]) -> Layout:
    """Return the layout of the stale ones of `parameters`, by name and in order."""
    units: list[Unit] = []
    groups: dict[tuple[int, int | None], list[Unit]] = {}  # by owner and staleness
    for number, (name, parameter) in enumerate(parameters.items()):
        if not parameter.trainable:
            continue
        node, shape = strategy.node(name), parameter.shape
        stale = [leaf.sync.is_stale for leaf in node.leaves]
        if parameter.sparse and any(stale) and not all(stale):
            raise ConfigError(
                f"{name}: some shards of a sparse parameter are stale, others are synchronous",
                hint="give all shards staleness 0 and sync=True, or none",
            )
        for leaf, shard in zip(node.leaves, shards_of(node, shape), strict=True):
            if leaf.sync.owner is None or not leaf.sync.is_stale:
                continue
            if parameter.sparse and shard.axis != 0:
                raise ConfigError(
                    f"{leaf.name}: rows of a sparse gradient cannot be cut along axis {shard.axis}",
                    hint="cut axis 0",
                )
            if math.prod(shard.shape):
                owner = strategy.graph.rank_of(leaf.sync.owner)
                group = groups.setdefault((owner, leaf.sync.lag), [])
                at = list(groups).index((owner, leaf.sync.lag))
                rows = (shard.start, shard.stop) if parameter.sparse else None
                group.append(Unit(len(units), part_of(number, shape, shard), rows, at, owner))
                units.append(group[-1])
    return Layout(
        tuple(units),
        tuple(Group(i, *key, tuple(own)) for i, (key, own) in enumerate(groups.items())),
    )
