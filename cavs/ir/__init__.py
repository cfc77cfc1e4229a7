"""The intermediate representation: typed, interned, immutable nodes."""

from cavs.ir.graph import Graph, Slot, Structure, rebuild, rewrite, toposort, users
from cavs.ir.node import REGISTRY, BatchRule, Node, Op, apply, as_node, constant, defop, make
from cavs.ir.types import (
    EDGE,
    FLOAT,
    GRAPH,
    INT,
    ONE,
    VERTEX,
    Domain,
    TensorType,
    broadcast_shapes,
    join_domains,
)

__all__ = [
    "EDGE",
    "FLOAT",
    "GRAPH",
    "INT",
    "ONE",
    "REGISTRY",
    "VERTEX",
    "BatchRule",
    "Domain",
    "Graph",
    "Node",
    "Op",
    "Slot",
    "Structure",
    "TensorType",
    "apply",
    "as_node",
    "broadcast_shapes",
    "constant",
    "defop",
    "join_domains",
    "make",
    "rebuild",
    "rewrite",
    "toposort",
    "users",
]
