"""Which shards of which parameters have servers that do not wait for all, and where."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
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
    """All of them, the same on every rank."""

    units: tuple[Unit, ...]
    groups: tuple[Group, ...]

    @cached_property
    def _by_parameter(self) -> dict[int, list[Unit]]:
        found: dict[int, list[Unit]] = {}
        for unit in self.units:
            found.setdefault(unit.part.parameter, []).append(unit)
        return found

    def of(self, parameter: int) -> list[Unit]:
        """The units of a parameter."""
        return self._by_parameter.get(parameter, [])

    @property
    def owners(self) -> list[int]:
        """The ranks that own something, ascending."""
        return sorted({group.owner for group in self.groups})


def layout_of(strategy: Strategy | None, parameters: Mapping[str, Any]) -> Layout:
    """The layout of `parameters`, by name and in order; empty where all is synchronous."""
    found = [] if strategy is None else list(_shards(strategy, parameters))
    clocks = list(dict.fromkeys((owner, staleness) for _, _, owner, staleness in found))
    units = tuple(
        Unit(i, part, rows, clocks.index((owner, staleness)), owner)
        for i, (part, rows, owner, staleness) in enumerate(found)
    )
    groups = tuple(
        Group(i, owner, staleness, tuple(u for u in units if u.group == i))
        for i, (owner, staleness) in enumerate(clocks)
    )
    return Layout(units, groups)


def _shards(
    strategy: Strategy, parameters: Mapping[str, Any]
) -> Iterator[tuple[Part, tuple[int, int] | None, int, int | None]]:
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
            rows = (shard.start, shard.stop) if parameter.sparse else None
            if rows is not None and shard.axis != 0:
                raise ConfigError(
                    f"{leaf.name}: rows of a sparse gradient cannot be cut along axis {shard.axis}",
                    hint="cut axis 0",
                )
            owner = strategy.graph.rank_of(leaf.sync.owner)
            if math.prod(shard.shape):
                yield part_of(number, shape, shard), rows, owner, leaf.sync.lag
