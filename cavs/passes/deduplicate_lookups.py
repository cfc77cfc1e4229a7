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
from typing import NamedTuple

from cavs.data.features import column_name
from cavs.ir import ONE, BatchRule, Domain, Graph, Node, apply, rebuild, rewrite
from cavs.passes.specialise import Kind
from cavs.passes.trim_products import Range, columns, joined, size

LEAST_ROWS = 16  # of the weight, for a product to cost more than to store and to read its result


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


class _Distinct(NamedTuple):
    """A vertex value that is a function of the rows of one index feature.

    index: the feature. value: the same function of the distinct values of the feature.
    """

    index: Node
    value: Node


def _at_distinct(graph: Graph, features: Collection[str]) -> dict[Node, _Distinct]:
    """Return the vertex values that are functions of the rows of one of ``features``."""
    found: dict[Node, _Distinct] = {}
    for n in graph.nodes():
        if n.type.domain.base != "vertex" or n.op.rule is not BatchRule.ROWWISE:
            continue
        if n.op.name == "lookup":
            table, index = n.inputs
            if index.op.name == "feature" and index.attr("name") in features and not index.shape:
                domain = Domain("distinct", index.attr("name"), index.type.domain.structure)
                inputs = table, rebuild(index, (), domain)
                found[n] = _Distinct(index, rebuild(n, inputs, domain))
            continue
        rows = [x for x in n.inputs if x.type.domain != ONE]
        if rows and all(x in found for x in rows):
            index, domain = found[rows[0]].index, found[rows[0]].value.type.domain
            if all(found[x].value.type.domain == domain for x in rows):
                inputs = tuple(found[x].value if x in found else x for x in n.inputs)
                found[n] = _Distinct(index, rebuild(n, inputs, domain))
    return found


class _Group:
    """Products of one value of the distinct indices, all columns of which become one product."""

    def __init__(self, of: _Distinct) -> None:
        self.index, self.x = of
        self.products: list[Node] = []

    def pays(self, kinds: Collection[int | None]) -> bool:
        """True if products over vertices, of all ``kinds``, would compute at least as much.

        Kinds may read different columns, as the forget gate of a leaf is not read.
        """
        whole = size_of(self.ranges)
        covered = {n.type.domain.kind for n in self.products}
        wide = all(2 * n.shape[-1] >= whole for n in self.products)
        return wide and (covered == {None} or covered.issuperset(kinds))

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

        def place(part: _Columns) -> int:
            for (weight, start, stop), begin in first.items():
                if weight is part.weight and start <= part.start and part.stop <= stop:
                    return begin + part.start - start
            raise AssertionError(part)

        def value(product: Node) -> Node:
            taken = apply("take_distinct", whole, domain=product.type.domain)
            wanted = [
                (begin, begin + part.stop - part.start)
                for part in _columns_of(product.inputs[1])
                for begin in (place(part),)
            ]
            pieces = [taken[a:b] for a, b in wanted]
            return pieces[0] if len(pieces) == 1 else apply("concat", *pieces, axis=-1)

        return {n: value(n) for n in self.products}


def size_of(ranges: dict[Node, list[Range]]) -> int:
    """Return the number of columns of all weights."""
    return sum(map(size, ranges.values()))


def looked_up(graph: Graph) -> list[str]:
    """Return the index features of vertices by which rows of tables are looked up.

    Those of several columns are called as `split_lookups` calls them.
    """
    found: dict[str, None] = {}
    for n in graph.nodes():
        if n.op.name != "lookup" or n.inputs[1].op.name != "feature":
            continue
        if n.type.domain.base != "vertex":
            continue
        name, shape = n.inputs[1].attr("name"), n.inputs[1].shape
        names = [column_name(name, j) for j in range(shape[0])] if shape else [name]
        found.update(dict.fromkeys(names))
    return list(found)


def _kinds_with(index: Node, kinds: Sequence[Kind], optional: Collection[str]) -> list[int]:
    """Return the numbers of the kinds of vertices at which an index feature may be present."""
    attrs, structure = dict(index.attrs), index.type.domain.structure
    name, vertex_type = attrs["name"], attrs.get("vertex_type")
    return [
        number
        for number, kind in enumerate(kinds)
        if kind.structure == structure
        and vertex_type in (None, kind.vertex_type)
        and (name not in optional or name in kind.present)
    ]


def deduplicate_lookups(
    graph: Graph, *, features: Collection[str], kinds: Sequence[Kind], optional: Collection[str]
) -> Graph:
    """Move products of looked-up rows to the distinct values of the index ``features``.

    kinds: of vertices, which the presence of ``optional`` features distinguishes.
    """
    found = _at_distinct(graph, features)
    groups: dict[Node, _Group] = {}
    for n in graph.nodes():
        if n.op.name == "matmul" and n.inputs[0] in found and n.inputs[1].type.domain == ONE:
            there = found[n.inputs[0]]
            if n.inputs[1].shape[0] >= LEAST_ROWS:
                groups.setdefault(there.value, _Group(there)).products.append(n)
    values: dict[Node, Node] = {}
    for group in groups.values():
        if group.pays(_kinds_with(group.index, kinds, optional)):
            values |= group.values()
    return rewrite(graph, lambda n, inputs: values.get(n))
