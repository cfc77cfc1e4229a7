"""Builders for all-reduce."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cavs.distributed.planning.builders.builder import register
from cavs.distributed.planning.builders.rules import (
    MAX_SHARDS,
    Loads,
    RuleBuilder,
    axis_size,
    cut,
    equal_shards,
    option,
    whole,
)
from cavs.distributed.strategy import NodeConfig, Variable
from cavs.distributed.sync import AllReduce as AllReduceSynchroniser


@dataclass(frozen=True, kw_only=True)
class CollectiveBuilder(RuleBuilder):
    """chunk: how many parameters, or shards, travel in one group. spec: of all, but "nccl" of dense
    ones alone.
    """

    chunk: int = option(128, least=1)
    spec: str = "auto"
    compressor: str = "none"

    def synchroniser(self, index: int, variable: Variable) -> AllReduceSynchroniser:
        """Return that of the `index`-th parameter or shard of the strategy, of `variable`."""
        spec = "auto" if variable.sparse and self.spec == "nccl" else self.spec
        return AllReduceSynchroniser(spec=spec, group=index // self.chunk)


@register
@dataclass(frozen=True, kw_only=True)
class AllReduce(CollectiveBuilder):
    """Every parameter whole; `chunk` of them, in the order of the model, in a group."""

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        for i, variable in enumerate(variables):
            yield whole(variable, self.synchroniser(i, variable), self.compressor)


@register
@dataclass(frozen=True, kw_only=True)
class Buckets(RuleBuilder):
    """All-reduce as without a strategy: in the order in which gradients are done, 4 MB together."""

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        return (whole(variable, AllReduceSynchroniser(group=None)) for variable in variables)


@register
@dataclass(frozen=True, kw_only=True)
class PartitionedAR(CollectiveBuilder):
    """Axis 0 in as many equal shards as its smallest divisor; `chunk` shards in a group.

    max_shards: an axis that would need more, because its size is a large prime, stays whole.
    """

    max_shards: int = option(MAX_SHARDS, least=1)

    def axes(self, variables: Sequence[Variable]) -> Iterable[int]:
        """Return the axis to cut of every variable."""
        return [0] * len(variables)

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        begun = 0
        for variable, axis in zip(variables, self.axes(variables), strict=True):
            parts = equal_shards(axis_size(variable, axis), self.max_shards)
            synchronisers = [self.synchroniser(begun + i, variable) for i in range(parts)]
            yield cut(variable, axis, synchronisers, self.compressor)
            begun += parts


@register
@dataclass(frozen=True, kw_only=True)
class RandomAxisPartitionAR(PartitionedAR):
    """As `PartitionedAR`, along an axis drawn by `seed`; sparse parameters along axis 0."""

    seed: int = option(0, least=0)

    def axes(self, variables: Sequence[Variable]) -> Iterable[int]:
        rng = random.Random(self.seed)
        for variable in variables:
            long = [axis for axis, size in enumerate(variable.shape) if size > 1]
            yield 0 if variable.sparse or not long else rng.choice(long)


@register
@dataclass(frozen=True, kw_only=True)
class Horovod(RuleBuilder):
    """Ring all-reduce of everything, fused into buffers of a fixed size (Sergeev et al. 2018).

    fusion: bytes a buffer holds at most; a larger parameter has one of its own.
    """

    fusion: int = option(64 * 1024 * 1024, least=1)
    compressor: str = "none"

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        group, used = 0, 0
        for variable in variables:
            nbytes = 0 if variable.sparse else variable.nbytes
            if used and not variable.sparse and used + nbytes > self.fusion:
                group, used = group + 1, 0
            used += nbytes
            yield whole(variable, AllReduceSynchroniser(spec="ring", group=group), self.compressor)
