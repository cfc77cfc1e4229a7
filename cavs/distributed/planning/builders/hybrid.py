"""Builders that choose for each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.compression import parse
from cavs.distributed.planning.builders.builder import at_least, one_of, register
from cavs.distributed.planning.builders.rules import Loads, whole
from cavs.distributed.planning.builders.servers import ServerBuilder
from cavs.distributed.strategy import NodeConfig, Strategy, Variable
from cavs.distributed.sync import AllReduce, SufficientFactors


@register
@dataclass(frozen=True, kw_only=True)
class Parallax(ServerBuilder):
    """Dense parameters by all-reduce, sparse ones to servers (Kim et al. 2019)."""

    chunk: int = 128
    compressor: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "chunk", 1)
        parse(self.compressor)

    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        graph, servers = self.graph_and_servers(resources)
        loads, nodes = Loads(servers), list[NodeConfig]()
        for i, variable in enumerate(variables):
            if variable.sparse:
                server = self.server(loads.assign(variable.nbytes), variable, graph)
                nodes.append(whole(variable, server))
            else:
                synchroniser = AllReduce(group=i // self.chunk)
                nodes.append(whole(variable, synchroniser, self.compressor))
        return Strategy(graph=graph, nodes=tuple(nodes))


def factors_pay(shape: Sequence[int], pairs: float, workers: int, servers: int) -> bool:
    """Poseidon's rule for a gradient of a matrix of `shape` that is a sum of `pairs` products.

    True if a worker that is also a server moves fewer numbers by broadcasting its factors than
    through the servers (Zhang et al. 2017, Table 1). One worker moves nothing either way: no.
    """
    if workers <= 1:
        return False
    rows, columns = shape
    by_factors = 2 * pairs * (workers - 1) * (rows + columns)
    by_servers = 2 * rows * columns * (workers + servers - 2) / servers
    return by_factors <= by_servers


@register
@dataclass(frozen=True, kw_only=True)
class Poseidon(ServerBuilder):
    """Sufficient factors where they are fewer numbers, load-balanced servers elsewhere.

    batch_size: pairs of factors that a replica has in a step; 0 takes what the model says of each
    parameter. otherwise: "all_reduce" sums other dense gradients so, in buckets: that moves as many
    numbers as the rule counts for servers, which hold large matrices whole, not evenly.
    """

    batch_size: int = 0
    otherwise: str = "servers"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "batch_size", 0)
        one_of(self, "otherwise", ("servers", "all_reduce"))

    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        graph, servers = self.graph_and_servers(resources)
        loads, nodes = Loads(servers), list[NodeConfig]()
        for variable in variables:
            pairs = self.batch_size or variable.factors
            is_product = variable.factors is not None and len(variable.shape) == 2
            if (
                is_product
                and pairs
                and not variable.sparse
                and factors_pay(variable.shape, pairs, len(graph.replicas), len(servers))
            ):
                nodes.append(whole(variable, SufficientFactors()))
            elif self.otherwise == "all_reduce" and not variable.sparse:
                nodes.append(whole(variable, AllReduce(group=None)))
            else:
                destination = loads.assign(variable.nbytes)
                nodes.append(whole(variable, self.server(destination, variable, graph)))
        return Strategy(graph=graph, nodes=tuple(nodes))
