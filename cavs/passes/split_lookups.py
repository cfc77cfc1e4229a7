"""Look up each index of a row by itself.

A lookup by an index feature of several columns becomes one lookup for each column, side by side.
Each is a row map, so the kernel that reads the rows reads them in the table, and a row is zeros
where an index is absent. An absent index of several makes no kind of vertices, as there would be
one for each combination.
"""

from __future__ import annotations

from cavs.data.features import column_name
from cavs.ir import INT, Graph, Node, apply, rewrite
from cavs.ops.leaves import feature


def _each_column(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    if node.op.name != "lookup" or not node.inputs[1].shape:
        return None
    table, index = inputs
    (count,) = index.shape
    names = [column_name(index.attr("name"), j) for j in range(count)]
    columns = [feature(name, index.type.domain, INT) for name in names]
    rows = [apply("lookup", table, column) for column in columns]
    return apply("reshape", apply("concat", *rows, axis=-1), shape=node.shape)


def split_lookups(graph: Graph) -> Graph:
    """Split each lookup of several indices per row into one lookup for each of them."""
    return rewrite(graph, _each_column)
