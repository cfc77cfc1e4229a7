"""Builders that choose for each parameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cavs.distributed.planning.builders.builder import register
from cavs.distributed.planning.builders.rules import Loads, option, whole
from cavs.distributed.planning.builders.servers import ServerBuilder
from cavs.distributed.strategy import NodeConfig, Variable
from cavs.distributed.sync import AllReduce, SufficientFactors


@register
@dataclass(frozen=True, kw_only=True)
class Parallax(ServerBuilder):
    """Dense parameters by all-reduce, sparse ones to servers (Kim et al. 2019)."""

    chunk: int = option(128, least=1)
    compressor: str = "none"

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        for i, variable in enumerate(variables):
            if variable.sparse:
                yield self.owned(variable, loads)
            else:
                yield whole(variable, AllReduce(group=i // self.chunk), self.compressor)


def factors_pay(shape: Sequence[int], pairs: float, workers: int, servers: int) -> bool:
    """Poseidon's rule for a gradient of a matrix of `shape` that is a sum of `pairs` products.

    True if a worker that is also a server moves fewer numbers by broadcasting its factors than
    through the servers (Zhang et al. 2017, Table 1). One worker moves nothing either way: no.
    """
    rows, columns = shape
    by_factors = 2 * pairs * (workers - 1) * (rows + columns)
    by_servers = 2 * rows * columns * (workers + servers - 2) / servers
    return workers > 1 and by_factors <= by_servers


@register
@dataclass(frozen=True, kw_only=True)
class Poseidon(ServerBuilder):
    """Sufficient factors where they are fewer numbers, load-balanced servers elsewhere.

    batch_size: pairs of factors that a replica has in a step; 0 takes what the model says of each
    parameter. otherwise: "all_reduce" sums other dense gradients so, in buckets: that moves as many
    numbers as the rule counts for servers, which hold large matrices whole, not evenly.
    """

    batch_size: int = option(0, least=0)
    otherwise: str = option("servers", values=("servers", "all_reduce"))

    def nodes(self, variables: Sequence[Variable], loads: Loads) -> Iterable[NodeConfig]:
        workers, servers = len(loads.graph.replicas), len(loads.bytes)
        for variable in variables:
            is_product = variable.factors is not None and len(variable.shape) == 2
            pairs = (self.batch_size or variable.factors) if is_product else None
            if variable.sparse:
                yield self.owned(variable, loads)
            elif pairs and factors_pay(variable.shape, pairs, workers, servers):
                yield whole(variable, SufficientFactors())
            elif self.otherwise == "all_reduce":
                yield whole(variable, AllReduce(group=None))
            else:
                yield self.owned(variable, loads)
