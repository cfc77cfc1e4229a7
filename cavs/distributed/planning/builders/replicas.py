"""Builders whose replicas differ: partial exchange of gradients, and averages of models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from functools import partial
from typing import ClassVar

from cavs.distributed.planning.builders.builder import (
    Loads,
    RuleBuilder,
    axis_size,
    cut,
    option,
    register,
    whole,
)
from cavs.distributed.strategy import NodeConfig, Variable
from cavs.distributed.strategy.expression import check_number
from cavs.distributed.sync import ADPSGD as ADPSGDSynchroniser
from cavs.distributed.sync import SMA as SMASynchroniser
from cavs.distributed.sync import Crossbow as CrossbowSynchroniser
from cavs.distributed.sync import Lookahead as LookaheadSynchroniser
from cavs.distributed.sync import PartialAllReduce
from cavs.distributed.sync import PeerAverage as PeerAverageSynchroniser
from cavs.distributed.sync.model_average import ModelAverage
from cavs.distributed.sync.operation import row_bytes


def pack_bins(sizes: Mapping[str, float], budget: float) -> dict[str, int]:
    """Return the bin of every name, by first-fit decreasing; ties are ordered by name.

    sizes: bytes by name. budget: what fits into a bin, as a part of all bytes; a larger one has a
    bin of its own.
    """
    capacity = budget * sum(sizes.values())
    filled: list[float] = []
    found: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        size = sizes[name]
        fits = (i for i, used in enumerate(filled) if used + size <= capacity * (1 + 1e-12))
        found[name] = next(fits, len(filled))
        if found[name] == len(filled):
            filled.append(0.0)
        filled[found[name]] += size
    return found


def gradient_bytes(variable: Variable) -> float:
    """Return the bytes of a gradient: of the rows that a step touches, where they are known."""
    if variable.sparse and variable.rows is not None:
        return variable.rows * row_bytes(variable)
    return float(variable.nbytes)


@register
@dataclass(frozen=True, kw_only=True)
class PartialExchange(RuleBuilder):
    """Gradients in bins, one of which is reduced in each step (the thesis before KungFu, 3.2).

    budget: bytes of a bin as a part of those of all gradients; 1 is all-reduce, to the bit. cut:
    True cuts dense parameters that exceed a bin along axis 0; False gives each a bin of its own.
    accumulate, resync: see `cavs.distributed.sync.PartialAllReduce`. compressor: of dense
    gradients.
    """

    diverges = True
    budget: float = 0.1
    cut: bool = option(True, values=(False, True))
    accumulate: bool = option(False, values=(False, True))
    resync: int = option(0, least=0)
    compressor: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(type(self).__name__, "budget", self.budget, least=1e-6, most=1)

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        sizes = {v.name: gradient_bytes(v) for v in variables}
        capacity = self.budget * sum(sizes.values())
        parts = {v.name: self.parts(v, capacity) for v in variables}
        shards = {n: [f"{n}/{i:05}" for i in range(parts[n])] for n in sizes}
        bins = pack_bins({s: sizes[n] / parts[n] for n in sizes for s in shards[n]}, self.budget)
        made = partial(PartialAllReduce, bins=max(bins.values()) + 1, resync=self.resync)
        for variable in variables:
            adds = self.accumulate and not variable.sparse
            own = [made(bin=bins[s], accumulate=adds) for s in shards[variable.name]]
            yield cut(variable, 0, own, self.compressor)

    def parts(self, variable: Variable, capacity: float) -> int:
        """Return the number of shards of a parameter, so that each fits into `capacity` bytes."""
        if variable.sparse or not self.cut:
            return 1
        return min(math.ceil(variable.nbytes / capacity - 1e-9), axis_size(variable))


class AverageBuilder(RuleBuilder):
    """Gives every parameter the synchroniser `made`, whose options are those of the builder."""

    diverges = True
    made: ClassVar[type[ModelAverage]]

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        synchroniser = self.made(**vars(self))
        return (whole(variable, synchroniser) for variable in variables)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.made(**vars(self))  # checks the options


def builder_of(made: type[ModelAverage]) -> type[AverageBuilder]:
    """Return the builder of a synchroniser, registered, with its name, options and defaults."""
    options = [(x.name, x.type, field(default=x.default)) for x in fields(made)]
    text = f"Gives every parameter the synchroniser `cavs.distributed.sync.{made.__name__}`."
    namespace = {"made": made, "__module__": __name__, "__doc__": text}
    bases = (AverageBuilder,)
    builder = make_dataclass(
        made.__name__, options, bases=bases, namespace=namespace, frozen=True, kw_only=True
    )
    return register(builder)


SMA = builder_of(SMASynchroniser)
Crossbow = builder_of(CrossbowSynchroniser)
Lookahead = builder_of(LookaheadSynchroniser)
PeerAverage = builder_of(PeerAverageSynchroniser)
ADPSGD = builder_of(ADPSGDSynchroniser)
