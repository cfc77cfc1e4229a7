"""Compute products of looked-up rows once for each distinct index of a batch.

Many vertices of a batch have the same word, and `lookup(table, word) @ W` is then the same row. It
is computed over the distinct indices, and each vertex reads the row of its own index. Unlike equal
vertices, which `merge_vertices` computes once, these need not have equal children.

The pass runs when products are merged and trimmed, so that it moves just those that would run over
vertices: every element is the same sum of the same terms in the same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from cavs.data.features import column_name
from cavs.ir import ONE, BatchRule, Domain, Graph, Node, apply, rebuild, rewrite
from cavs.passes.trim_products import Range, columns, joined, size

LEAST_ROWS = 16  # rows of a weight whose product costs more than to store and read its result
LEAST_REPEATED = 2.0  # products over vertices for each one over distinct indices, for it to pay


class RepeatedIndex(NamedTuple):
    """An index feature of vertices that has few distinct values.

    lookups: how many vertices of each kind, by its key in the schedule, have one, for each of its
    distinct values.
    """

    name: str
    lookups: tuple[tuple[int, float], ...]

    @property
    def total(self) -> float:
        """The number of vertices that have an index, for each of its distinct values."""
        return sum(number for _, number in self.lookups)

    def to_json(self) -> list[Any]:
        """Return it as JSON values."""
        return [self.name, [list(pair) for pair in self.lookups]]

    @staticmethod
    def from_json(entry: Sequence[Any]) -> RepeatedIndex:
        """Return what gave ``entry``; TypeError or ValueError for anything else."""
        name, lookups = entry
        return RepeatedIndex(str(name), tuple((int(kind), float(n)) for kind, n in lookups))

    def of(self, kind: int | None) -> float:
        """Return the number of lookups of a kind; None stands for all kinds."""
        return self.total if kind is None else dict(self.lookups).get(kind, 0.0)


class _Columns(NamedTuple):
    """Columns [start, stop) of a weight."""

    weight: Node
    start: int
    stop: int


def _columns_of(weight: Node) -> list[_Columns]:
    """Return the columns of which a packed weight consists, side by side."""
    name = weight.op.name
    if name == "concat" and weight.attr("axis") == -1:
        return [part for x in weight.inputs for part in _columns_of(x)]
    if name == "slice":
        (x,), start = weight.inputs, weight.attr("start")
        return [_Columns(x, start, weight.attr("stop"))]
    return [_Columns(weight, 0, weight.shape[-1])]


def _at_distinct(graph: Graph, features: Collection[str]) -> dict[Node, Node]:
    """Return the vertex values that are functions of the rows of one of the index ``features``.

    Each comes with the same function of the distinct values of the feature.
    """
    found: dict[Node, Node] = {}
    for n in graph.nodes():
        if n.type.domain.base != "vertex" or n.op.rule is not BatchRule.ROWWISE:
            continue
        if n.op.name == "lookup":
            table, index = n.inputs
            if index.op.name == "feature" and index.attr("name") in features and not index.shape:
                domain = Domain("distinct", index.attr("name"), index.type.domain.structure)
                found[n] = rebuild(n, (table, rebuild(index, (), domain)), domain)
            continue
        rows = [x for x in n.inputs if x.type.domain != ONE]
        if rows and all(x in found for x in rows):
            domain = found[rows[0]].type.domain
            if all(found[x].type.domain == domain for x in rows):
                found[n] = rebuild(n, tuple(found.get(x, x) for x in n.inputs), domain)
    return found


class _Group:
    """Products of one value of the distinct indices, all columns of which become one product."""

    def __init__(self, x: Node) -> None:
        self.x = x
        self.products: list[Node] = []

    def pays(self, index: RepeatedIndex, kinds: Sequence[int]) -> bool:
        """True if the products over vertices compute so many times as many elements.

        Kinds may read different columns, as the forget gate of a leaf is not read.
        """

        def lookups(n: Node) -> float:
            kind = n.type.domain.kind
            return index.of(kinds[kind] if isinstance(kind, int) else None)

        before = sum(lookups(n) * n.shape[-1] for n in self.products)
        return before >= LEAST_REPEATED * sum(map(size, self.ranges.values()))

    @property
    def ranges(self) -> dict[Node, list[Range]]:
        """The columns of each weight that any product reads."""
        found: dict[Node, list[Range]] = defaultdict(list)
        for n in self.products:
            for weight, start, stop in _columns_of(n.inputs[1]):
                found[weight].append((start, stop))
        return {weight: joined(ranges) for weight, ranges in found.items()}

    def values(self) -> dict[Node, Node]:
        """Return what replaces each product: columns of the rows of the vertices' indices."""
        ranges = self.ranges
        parts = [columns(weight, of) for weight, of in ranges.items()]
        weight = parts[0] if len(parts) == 1 else apply("concat", *parts, axis=-1)
        whole = apply("matmul", self.x, weight)
        first: dict[_Columns, int] = {}
        at = 0
        for weight, of in ranges.items():
            for start, stop in of:
                first[_Columns(weight, start, stop)] = at
                at += stop - start

        def part_of(taken: Node, part: _Columns) -> Node:
            for (weight, start, stop), column in first.items():
                if weight is part.weight and start <= part.start and part.stop <= stop:
                    begin = column + part.start - start
                    return taken[begin : begin + part.stop - part.start]
            raise AssertionError(part)

        def value(product: Node) -> Node:
            taken = apply("take_distinct", whole, domain=product.type.domain)
            pieces = [part_of(taken, part) for part in _columns_of(product.inputs[1])]
            return pieces[0] if len(pieces) == 1 else apply("concat", *pieces, axis=-1)

        return {n: value(n) for n in self.products}


def looked_up(graph: Graph) -> dict[str, str]:
    """Return the index features of vertices by which rows of tables are looked up.

    Each has the structure of the vertices. Those of several columns are called as `split_lookups`
    calls them.
    """
    found: dict[str, str] = {}
    for n in graph.nodes():
        if n.op.name != "lookup" or n.inputs[1].op.name != "feature":
            continue
        if n.type.domain.base == "vertex":
            name, shape = n.inputs[1].attr("name"), n.inputs[1].shape
            names = [column_name(name, j) for j in range(shape[0])] if shape else [name]
            found.update(dict.fromkeys(names, n.type.domain.structure))
    return found


def deduplicate_lookups(
    graph: Graph, *, repeated: Collection[RepeatedIndex], kinds: Sequence[int]
) -> Graph:
    """Move products of looked-up rows to the distinct values of the ``repeated`` index features.

    kinds: the keys of the kinds of vertices.
    """
    features = {index.name: index for index in repeated}
    found = _at_distinct(graph, features)
    groups: dict[Node, _Group] = {}
    for n in graph.nodes():
        if n.op.name == "matmul" and n.inputs[0] in found and n.inputs[1].type.domain == ONE:
            there = found[n.inputs[0]]
            if n.inputs[1].shape[0] >= LEAST_ROWS:
                groups.setdefault(there, _Group(there)).products.append(n)
    values: dict[Node, Node] = {}
    for there, group in groups.items():
        if group.pays(features[str(there.type.domain.kind)], kinds):
            values |= group.values()
    return rewrite(graph, lambda n, inputs: values.get(n))
