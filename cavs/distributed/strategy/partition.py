"""Shards of a parameter, cut by a partition vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cavs.distributed.strategy.expression import NodeConfig
from cavs.errors import ConfigError


@dataclass(frozen=True)
class Shard:
    """Elements ``start <= i < stop`` of one axis of a parameter; the whole of it has axis 0."""

    axis: int
    start: int
    stop: int
    shape: tuple[int, ...]

    @staticmethod
    def whole(shape: tuple[int, ...]) -> Shard:
        """Return the shard that is a whole parameter."""
        return Shard(0, 0, shape[0] if shape else 1, shape)

    @property
    def index(self) -> tuple[slice, ...]:
        """``parameter[shard.index]`` is a view of the shard."""
        return (slice(None),) * self.axis + (slice(self.start, self.stop),)


def shard_ranges(size: int, parts: int) -> list[tuple[int, int]]:
    """Cut ``size`` elements into `parts` ranges; the first ``size % parts`` hold one more."""
    least, more = divmod(size, parts)
    return list(pairwise(i * least + min(i, more) for i in range(parts + 1)))


def partition_of(shape: Sequence[int], axis: int, parts: int) -> tuple[int, ...]:
    """Return the partition vector that cuts `axis` into `parts`; () if that is one part."""
    if parts <= 1:
        return ()
    return tuple(parts if i == axis else 1 for i in range(len(shape)))


def shards_of(node: NodeConfig, shape: Sequence[int]) -> list[Shard]:
    """Return the shards of a parameter of `shape`, one for each of ``node.leaves``.

    Raises `ConfigError` where the partition vector does not fit the shape or cuts two axes.
    """
    shape = tuple(shape)
    cut = [axis for axis, parts in enumerate(node.partition) if parts > 1]
    if not cut:
        return [Shard.whole(shape)]
    if len(node.partition) != len(shape) or len(cut) > 1:
        raise ConfigError(
            f"{node.name}: partition {list(node.partition)} of a parameter of shape {list(shape)}",
            hint="give one number an axis, only one of them greater than 1",
        )
    axis, parts = cut[0], node.partition[cut[0]]
    if parts > shape[axis]:
        raise ConfigError(
            f"{node.name}: {parts} parts of axis {axis}, which has {shape[axis]} elements",
            hint=f"use at most {shape[axis]} parts",
        )
    return [
        Shard(axis, start, stop, (*shape[:axis], stop - start, *shape[axis + 1 :]))
        for start, stop in shard_ranges(shape[axis], parts)
    ]
