"""Compute products of looked-up rows once for each distinct index of a batch.

Many vertices of a batch have the same word, and `lookup(table, word) @ W` is then the same row. It
is computed over the distinct indices, and each vertex reads the row of its own index. Unlike equal
vertices, which `merge_vertices` computes once, these need not have equal children.

The pass runs when products are merged and trimmed, so that it moves just those that would run over
vertices: every element is the same sum of the same terms in the same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from cavs.data.features import column_name
from cavs.ir import ONE, BatchRule, Domain, Graph, Node, apply, origin, rebuild, rewrite, toposort
from cavs.passes.trim_products import Range, joined, size

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


def _domains(nodes: Sequence[Node], features: Collection[str]) -> dict[Node, Domain]:
    """Return the vertex values that are functions of the rows of one of the index ``features``.

    Each comes with the domain of the distinct values of that feature.
    """
    found: dict[Node, Domain] = {}
    for n in nodes:
        if n.type.domain.base != "vertex" or n.op.rule is not BatchRule.ROWWISE:
            continue
        if n.op.name == "lookup":
            index = n.inputs[1]
            if index.op.name == "feature" and index.attr("name") in features and not index.shape:
                found[n] = Domain("distinct", index.attr("name"), index.type.domain.structure)
            continue
        of = {found.get(x) for x in n.inputs if x.type.domain != ONE}
        if len(of) == 1 and (domain := of.pop()) is not None:
            found[n] = domain
    return found


def _at_distinct(x: Node, domains: dict[Node, Domain], known: dict[Node, Node]) -> Node:
    """Return the same function of distinct values as ``x`` is of those of vertices."""
    domain = domains[x]
    for n in toposort([x], known):
        if n in domains and n not in known:
            inputs = tuple(known.get(y, y) for y in n.inputs)
            if n.op.name == "lookup":
                inputs = inputs[0], rebuild(inputs[1], (), domain)
            known[n] = rebuild(n, inputs, domain)
    return known[x]


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

    def values(self) -> dict[Node, _Taken]:
        """Return what replaces each product."""
        ranges = self.ranges
        parts = [part for weight, of in ranges.items() for part in _parts(weight, of)]
        weight = parts[0] if len(parts) == 1 else apply("concat", *parts, axis=-1)
        whole = apply("matmul", self.x, weight)
        first: dict[_Columns, int] = {}
        at = 0
        for weight, of in ranges.items():
            for start, stop in of:
                first[_Columns(weight, start, stop)] = at
                at += stop - start

        def found(part: _Columns) -> Range:
            for (weight, start, stop), column in first.items():
                if weight is part.weight and start <= part.start and part.stop <= stop:
                    return column + part.start - start, column + part.stop - start
            raise AssertionError(part)

        return {
            n: _Taken(
                apply("take_distinct", whole, domain=n.type.domain),
                _joined_in_order(found(part) for part in _columns_of(n.inputs[1])),
            )
            for n in self.products
        }


class _Taken(NamedTuple):
    """The rows of the vertices' indices, and the ranges of columns that are a product."""

    rows: Node
    ranges: list[Range]

    def columns(self, start: int, stop: int) -> Node:
        """Return columns [start, stop) of the product."""
        parts, at = [], 0
        for low, high in self.ranges:
            begin, end = max(start - at, 0), min(stop - at, high - low)
            if begin < end:
                whole = end - begin == self.rows.shape[-1]
                parts.append(self.rows if whole else self.rows[low + begin : low + end])
            at += high - low
        return parts[0] if len(parts) == 1 else apply("concat", *parts, axis=-1)


def _joined_in_order(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges side by side, of which none begins where the one before it ends."""
    found: list[Range] = []
    for low, high in ranges:
        follows = found and found[-1][1] == low
        found.append((found.pop()[0] if follows else low, high))
    return found


def _parts(weight: Node, ranges: list[Range]) -> list[Node]:
    """Return the columns of ``weight`` in ``ranges``."""
    if size(ranges) == weight.shape[-1]:
        return [weight]
    return [weight[low:high] for low, high in ranges]


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
    nodes, known = graph.nodes(), dict[Node, Node]()
    domains = _domains(nodes, features)
    groups: dict[Node, _Group] = {}
    for n in nodes:
        if n.op.name != "matmul" or n.inputs[0] not in domains:
            continue
        x, weight = n.inputs
        if weight.type.domain == ONE and weight.shape[0] >= LEAST_ROWS:
            x = _at_distinct(x, domains, known)
            groups.setdefault(x, _Group(x)).products.append(n)
    values: dict[Node, _Taken] = {}
    for x, group in groups.items():
        if group.pays(features[str(x.type.domain.kind)], kinds):
            with origin(group.products[0].where):
                values |= group.values()

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        if n in values:
            return values[n].columns(0, n.shape[-1])
        if n.op.name == "slice" and n.inputs[0] in values:
            return values[n.inputs[0]].columns(n.attr("start"), n.attr("stop"))
        return None

    return rewrite(graph, rule) if values else graph
