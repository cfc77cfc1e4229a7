"""The oracle: evaluate a graph in float64 NumPy, one row at a time, by definition.

Nothing is batched, scheduled or fused, and no operator knows of the engine. Slow on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cavs.ir.graph import Graph, Slot
from cavs.ir.node import Node
from cavs.ir.op import BatchRule
from cavs.ir.random import uniform
from cavs.ir.types import INT, ONE, Domain

Float = npt.NDArray[np.float64]


@dataclass
class Inputs:
    """The batch that a graph is evaluated on: children as CSR, graph of each vertex, features.

    offsets, children: child lists of all vertices of the batch, as global vertex ids.
    graph_of: graph of each vertex. features: by name, in vertex, edge or graph order; of a type, in
    the order of its vertices, but integers for all vertices, -1 at other types. positions: of each
    edge among the children of its parent, if some are empty. types: of each vertex, if they have
    any. structures: of samples that have several, by name, which then have all vertices. links: by
    name, for each vertex of the target the vertices of the source that it reads, counted in their
    structures.

    A row of the vertices of a type, or of their edges, has the number that it has among all.
    """

    offsets: Sequence[int]
    children: Sequence[int]
    graph_of: Sequence[int]
    features: Mapping[str, npt.NDArray[Any]]
    seed: int = 0
    step: int = 0
    positions: Sequence[int] = ()
    types: Sequence[str] = ()
    structures: Mapping[str, Inputs] = field(default_factory=dict)
    links: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.offsets = [int(x) for x in self.offsets]
        self.children = [int(x) for x in self.children]
        self.graph_of = [int(x) for x in self.graph_of]
        self.num_vertices = len(self.offsets) - 1
        self.num_graphs = max(self.graph_of, default=-1) + 1
        self.num_graphs = max([self.num_graphs, *(x.num_graphs for x in self.structures.values())])
        self.parent = [
            v for v in range(self.num_vertices) for _ in range(self.offsets[v], self.offsets[v + 1])
        ]
        if not self.positions:
            first = self.offsets
            self.positions = [e - first[v] for e, v in enumerate(self.parent)]
        self.out: list[list[int]] = [[] for _ in range(self.num_vertices)]
        for e, child in enumerate(self.children):
            self.out[child].append(e)
        self.members: list[list[int]] = [[] for _ in range(self.num_graphs)]
        for v, g in enumerate(self.graph_of):
            self.members[g].append(v)
        for own in self.structures.values():  # the last samples may have no vertex of one
            own.members += [[] for _ in range(self.num_graphs - own.num_graphs)]
            own.num_graphs = self.num_graphs
        self._present: dict[Domain, list[int]] = {}
        self.rank: list[int] = []  # number of each vertex among those of its type
        seen: dict[str, int] = {}
        for of in self.types:
            self.rank.append(seen.get(of, 0))
            seen[of] = self.rank[-1] + 1

    def ids(self, domain: Domain) -> Sequence[int]:
        """Return the numbers of the rows of a domain."""
        of = domain.vertex_type
        if domain.base == "pair":
            types = self.of(domain).types
            return [
                row for row, (t, _) in enumerate(self.pairs(domain)) if of is None or types[t] == of
            ]
        if domain.structure:
            return self.of(domain).ids(domain._replace(structure=""))
        if of is None:
            return range(self.rows(domain))
        ends = self.parent if domain.base == "edge" else range(self.num_vertices)
        return [row for row, v in enumerate(ends) if self.types[v] == of]

    def of(self, domain: Domain) -> Inputs:
        """Return the inputs of the structure that the rows of ``domain`` belong to."""
        return self.structures[domain.structure] if domain.structure else self

    def readers(self, name: str, v: int) -> list[int]:
        """Return the vertices that read vertex ``v`` along the link ``name``, ascending."""
        return [t for t, read in enumerate(self.links[name]) for s in read if s == v]

    def pairs(self, domain: Domain) -> list[tuple[int, int]]:
        """Return the rows of a domain of pairs: a vertex, and one that it reads along the link."""
        assert domain.link is not None
        return [(t, s) for t, read in enumerate(self.links[domain.link.name]) for s in read]

    def rows(self, domain: Domain) -> int:
        """Number of rows of a domain."""
        if domain.base == "pair":
            return len(self.ids(domain))
        if domain.structure:
            return self.of(domain).rows(domain._replace(structure=""))
        if domain.vertex_type is not None:
            return len(self.ids(domain))
        if domain.selected:
            return len(self.present(domain))
        return {
            "one": 1,
            "graph": self.num_graphs,
            "vertex": self.num_vertices,
            "edge": len(self.children),
            "out": len(self.children),
        }[domain.base]

    def present(self, domain: Domain) -> list[int]:
        """Return the vertices with the feature of a domain, which are its rows.

        The row of a distinct value is the first vertex that has it.
        """
        if domain.structure:
            domain = domain._replace(structure="")
        if domain not in self._present:
            feature = self.features[str(domain.kind)]
            found = [v for v, i in enumerate(feature) if i >= 0]
            if domain.base == "distinct":
                found = list({int(feature[v]): v for v in reversed(found)}.values())
            self._present[domain] = found
        return self._present[domain]

    def edges(self, v: int) -> range:
        """Edges to the children of vertex ``v``."""
        return range(self.offsets[v], self.offsets[v + 1])

    def holds(self, slot: Slot, v: int) -> bool:
        """True if the value of ``slot`` at vertex ``v`` is read; see Slot."""
        return slot.leaf is None or slot.leaf == (len(self.edges(v)) == 0)


def _row(source: str, target: str, row: int, inputs: Inputs) -> int:
    """Return the row of domain ``source`` that row ``row`` of domain ``target`` reads."""
    if source == target:
        return row
    if source == "one":
        return 0
    end = {"edge": inputs.parent, "out": inputs.children}.get(target)
    vertex = row if end is None else end[row]
    return vertex if source == "vertex" else inputs.graph_of[vertex]


def _is_member(node: Node, v: int, inputs: Inputs) -> bool:
    ends = {"roots": not inputs.out[v], "leaves": not inputs.edges(v), "vertices": True}
    return ends[node.attr("members")]


def _own_row(node: Node) -> list[tuple[Node, int]] | None:
    """Return the inputs of ``node``, each with 1 if a row reads the row of the same number and 0 if
    it reads the only one; None if it reads others."""
    base = node.type.domain.base
    if node.op.rule is not BatchRule.ROWWISE:
        return None
    if any(x.type.domain.base not in (base, "one") for x in node.inputs):
        return None
    return [(x, int(x.type.domain.base != "one")) for x in node.inputs]


def _needs(node: Node, row: int, graph: Graph, whole: Inputs) -> list[tuple[Node, int]]:
    """Return the (node, row) pairs that row ``row`` of ``node`` is computed from."""
    name = node.op.name
    if name in ("take_linked", "sum_linked"):
        return [(node.inputs[0], v) for v in whole.links[node.attr("link").name][row]]
    if name == "take_pairs":
        return [(node.inputs[0], whole.pairs(node.type.domain)[row][1])]
    if node.type.domain.base == "pair":
        target = whole.pairs(node.type.domain)[row][0]
        at = whole.of(node.type.domain)
        if name == "merge_types":
            of = zip(node.attr("types"), node.inputs, strict=True)
            return [(x, row) for name, x in of if name == at.types[target]]
        return [
            (
                x,
                row
                if x.type.domain.base == "pair"
                else _row(x.type.domain.base, "vertex", target, at),
            )
            for x in node.inputs
        ]
    of_pairs = bool(node.inputs) and node.inputs[0].type.domain.base == "pair"
    if of_pairs and node.op.rule is BatchRule.GRAPH:
        end = 1 if name == "sum_pairs" else 0
        pairs = whole.pairs(node.inputs[0].type.domain)
        return [(node.inputs[0], i) for i, pair in enumerate(pairs) if pair[end] == row]
    if name in ("sum_readers", "max_readers"):
        return [(node.inputs[0], v) for v in whole.readers(node.attr("link").name, row)]
    if node.op.rule is BatchRule.REDUCE:
        top = max((x.type.domain for x in node.inputs), key=lambda d: (d.rank, d.kind is not None))
        inputs = whole.of(top)
        if top.base == "pair":
            ends = whole.pairs(top)
            return [
                (
                    x,
                    r
                    if x.type.domain.base == "pair"
                    else _row(x.type.domain.base, "vertex", ends[r][0], inputs),
                )
                for r in whole.ids(top)
                for x in node.inputs
            ]
        return [
            (x, _row(x.type.domain.base, top.base, r, inputs))
            for r in whole.ids(top)
            for x in node.inputs
        ]
    inputs = whole.of(node.type.domain)
    if node.type.domain.base == "graph" and node.inputs:
        inputs = whole.of(node.inputs[0].type.domain)
    if name == "gather":
        slot, child = node.attr("slot"), inputs.children[row]
        return [(graph.slots[slot], child)] if inputs.holds(slot, child) else []
    if name == "gather_grad":
        slot = node.attr("slot")
        if not inputs.holds(slot, row):
            return []
        if slot.base == "edge":
            return [(graph.slots[slot], e) for e in inputs.out[row]]
        parents = [(e, inputs.parent[e]) for e in inputs.out[row]]
        return [
            (graph.slots[slot], p)
            for e, p in parents
            if slot.alike or inputs.positions[e] == slot.child
        ]
    if name == "gather_out":
        slot = node.attr("slot")
        return [(graph.slots[slot], row if slot.base == "edge" else inputs.parent[row])]
    if name == "sum_out":
        return [(node.inputs[0], e) for e in inputs.out[row]]
    if node.op.reduces_segments and node.inputs[0].type.domain.base == "edge":
        return [(node.inputs[0], e) for e in inputs.edges(row)]
    if name == "nth_child":
        k = node.attr("k")
        return [(node.inputs[0], e) for e in inputs.edges(row) if inputs.positions[e] == k]
    if name == "to_nth_child":
        v = inputs.parent[row]
        return [(node.inputs[0], v)] if inputs.positions[row] == node.attr("k") else []
    if name == "take":
        return [(node.inputs[0], inputs.present(node.type.domain)[row])]
    if name == "place":
        vertices = inputs.present(node.inputs[0].type.domain)
        return [(node.inputs[0], vertices.index(row))] if row in vertices else []
    if name == "take_distinct":
        domain = node.inputs[0].type.domain
        values = inputs.features[str(domain.kind)]
        first = [r for r, v in enumerate(inputs.present(domain)) if values[v] == values[row]]
        return [(node.inputs[0], r) for r in first]
    if name == "sum_members":
        return [(node.inputs[0], v) for v in inputs.members[row] if _is_member(node, v, inputs)]
    if node.op.reduces_segments:
        return [(node.inputs[0], v) for v in inputs.members[row]]
    if name == "to_members":
        return [(node.inputs[0], inputs.graph_of[row])] if _is_member(node, row, inputs) else []
    if name == "merge_types":
        v = inputs.parent[row] if node.type.domain.base == "edge" else row
        of = zip(node.attr("types"), node.inputs, strict=True)
        return [(x, row) for name, x in of if name == inputs.types[v]]
    base = node.type.domain.base
    return [(x, _row(x.type.domain.base, base, row, inputs)) for x in node.inputs]


def _combine(node: Node, row: int, values: list[Any], inputs: Inputs) -> Any:
    name = node.op.name
    if node.inputs and node.op.rule is BatchRule.ROWWISE:
        assert node.op.evaluate is not None, name
        return node.op.evaluate(node, *values)
    if name == "parameter":
        return np.asarray(node.attr("parameter").current(), dtype=np.float64)
    if node.type.domain.selected and not node.inputs:
        row = inputs.of(node.type.domain).present(node.type.domain)[row]
    if name == "feature":
        if node.type.dtype != INT and "vertex_type" in dict(node.attrs):
            row = inputs.of(node.type.domain).rank[row]
        value = inputs.features[node.attr("name")][row]
        return value if node.type.dtype == INT else np.asarray(value, dtype=np.float64)
    if name == "uniform":
        return uniform(inputs.seed, inputs.step, node.attr("stream"), row, node.type.width).reshape(
            node.shape
        )
    if name == "num_children":
        return float(len(inputs.of(node.type.domain).edges(row)))
    if name == "count_rows":
        structure = dict(node.attrs).get("structure", "")
        return float(inputs.rows(Domain(node.attr("base"), None, structure)))
    if name == "replica_scale":
        return 1.0
    if node.op.reduces_segments and node.op.reduction == "max":
        return np.max(values, axis=0) if values else np.zeros(node.shape)
    if node.op.reduces_segments and node.op.reduction == "product":
        return np.prod(values, axis=0) if values else np.ones(node.shape)
    if node.op.rule is BatchRule.GRAPH:
        return np.sum(values, axis=0) if values else np.zeros(node.shape)
    if node.op.rule is BatchRule.REDUCE:
        assert node.op.evaluate is not None
        n = len(node.inputs)
        total: Any = np.zeros(node.shape)
        for i in range(0, len(values), n):
            total = total + node.op.evaluate(node, *values[i : i + n])
        return total
    assert node.op.evaluate is not None, name
    return node.op.evaluate(node, *values)


def interpret(graph: Graph, inputs: Inputs) -> dict[str, Float]:
    """Return every output of ``graph`` in float64: the rows of its domain, or one value."""
    memo: dict[tuple[Node, int], Any] = {}
    own_rows: dict[Node, list[tuple[Node, int]] | None] = {}
    result: dict[str, Float] = {}
    for key, output in graph.outputs.items():
        rows = []
        for row in inputs.ids(output.type.domain):
            stack: list[tuple[Node, int, list[tuple[Node, int]] | None]] = [(output, row, None)]
            while stack:
                node, r, needs = stack.pop()
                if (node, r) in memo:
                    continue
                if needs is None:
                    if node not in own_rows:
                        own_rows[node] = _own_row(node)
                    own = own_rows[node]
                    if own is None:
                        needs = _needs(node, r, graph, inputs)
                    else:
                        needs = [(x, r * k) for x, k in own]
                    if missing := [(*x, None) for x in needs if x not in memo]:
                        stack += [(node, r, needs), *missing]
                        continue
                memo[node, r] = _combine(node, r, [memo[x] for x in needs], inputs)
            rows.append(np.asarray(memo[output, row], dtype=np.float64))
        if output.type.domain == ONE:
            result[key] = rows[0]
        else:
            result[key] = np.stack(rows) if rows else np.zeros((0, *output.shape))
    return result
