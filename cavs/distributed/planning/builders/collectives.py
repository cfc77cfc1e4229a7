"""Builders for all-reduce."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.compression import parse
from cavs.distributed.planning.builders.builder import Builder, at_least, register
from cavs.distributed.planning.builders.rules import (
    MAX_SHARDS,
    all_replicas,
    cut,
    few_shards,
    smallest_divisor,
    whole,
)
from cavs.distributed.strategy import Strategy, Variable
from cavs.distributed.sync import AllReduce as AllReduceSynchroniser


@dataclass(frozen=True, kw_only=True)
class CollectiveBuilder(Builder):
    """chunk: how many parameters, or shards, travel in one group. compressor: of dense ones.

    spec: of all, but "nccl" of dense ones alone.
    """

    chunk: int = 128
    spec: str = "auto"
    compressor: str = "none"

    def __post_init__(self) -> None:
        at_least(self, "chunk", 1)
        parse(self.compressor)

    def synchroniser(self, index: int, variable: Variable) -> AllReduceSynchroniser:
        """That of the `index`-th parameter or shard of the strategy, which is of `variable`."""
        spec = "auto" if variable.sparse and self.spec == "nccl" else self.spec
        return AllReduceSynchroniser(spec=spec, group=index // self.chunk)


@register
@dataclass(frozen=True, kw_only=True)
class AllReduce(CollectiveBuilder):
    """Every parameter whole; `chunk` of them, in the order of the model, in a group."""

    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        nodes = tuple(
            whole(v, self.synchroniser(i, v), self.compressor) for i, v in enumerate(variables)
        )
        return Strategy(graph=all_replicas(resources), nodes=nodes)


@register
@dataclass(frozen=True, kw_only=True)
class Buckets(Builder):
    """All-reduce as without a strategy: in the order in which gradients are done, 4 MB together."""

    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        nodes = tuple(whole(v, AllReduceSynchroniser(group=None)) for v in variables)
        return Strategy(graph=all_replicas(resources), nodes=nodes)


@dataclass(frozen=True, kw_only=True)
class _Partitioned(CollectiveBuilder):
    """max_shards: an axis that would need more, because its size is a large prime, stays whole."""

    max_shards: int = MAX_SHARDS

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "max_shards", 1)

    def axis(self, variable: Variable, rng: random.Random) -> int:
        """The axis to cut."""
        raise NotImplementedError

    def seeded(self) -> random.Random:
        """Seed of the axes."""
        return random.Random(0)

    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        rng, nodes, begun = self.seeded(), [], 0
        for variable in variables:
            axis = self.axis(variable, rng)
            size = variable.shape[axis] if variable.shape else 1
            parts = few_shards(smallest_divisor(size), self.max_shards)
            synchronisers = [self.synchroniser(begun + i, variable) for i in range(parts)]
            nodes.append(cut(variable, axis, synchronisers, self.compressor))
            begun += parts
        return Strategy(graph=all_replicas(resources), nodes=tuple(nodes))


@register
@dataclass(frozen=True, kw_only=True)
class PartitionedAR(_Partitioned):
    """Axis 0 in as many equal shards as its smallest divisor; `chunk` shards in a group."""

    def axis(self, variable: Variable, rng: random.Random) -> int:
        return 0


@register
@dataclass(frozen=True, kw_only=True)
class RandomAxisPartitionAR(_Partitioned):
    """As `PartitionedAR`, along an axis drawn by `seed`; sparse parameters along axis 0."""

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "seed", 0)

    def seeded(self) -> random.Random:
        return random.Random(self.seed)

    def axis(self, variable: Variable, rng: random.Random) -> int:
        long = [axis for axis, size in enumerate(variable.shape) if size > 1]
        if variable.sparse or not long:
            return 0
        return rng.choice(long)


@register
@dataclass(frozen=True, kw_only=True)
class Horovod(Builder):
    """Ring all-reduce of everything, fused into buffers of a fixed size (Sergeev et al. 2018).

    fusion: bytes a buffer holds at most; a larger parameter has one of its own.
    """

    fusion: int = 64 * 1024 * 1024
    compressor: str = "none"

    def __post_init__(self) -> None:
        at_least(self, "fusion", 1)
        parse(self.compressor)

    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        nodes, group, used = [], 0, 0
        for variable in variables:
            if used and not variable.sparse and used + variable.nbytes > self.fusion:
                group, used = group + 1, 0
            synchroniser = AllReduceSynchroniser(spec="ring", group=group)
            nodes.append(whole(variable, synchroniser, self.compressor))
            used += 0 if variable.sparse else variable.nbytes
        return Strategy(graph=all_replicas(resources), nodes=tuple(nodes))
