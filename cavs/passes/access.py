"""Row maps and columns through which a value is read out of a stored one.

Slices, gathers, lookups and sums over children are row maps and column offsets on a buffer. They
cost no pass over memory: the kernel that needs them reads through the map. `insert_copies` inserts
a copy where two maps cannot be composed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cavs.data.vertex_types import row_feature
from cavs.ir import (
    INT,
    ONE,
    BatchRule,
    Domain,
    Graph,
    Link,
    Node,
    Reads,
    Slot,
    toposort,
)

# Row maps that stay inside a chunk of rows (a vertex range and its edges).
LOCAL_ARRAYS = frozenset(
    {"none", "parent", "edges", "nth_edge", "parent_if_nth", "pairs", "pair_target"}
)
# Row maps from a vertex to its children, and from a child to its parents.
TO_CHILDREN = frozenset({"child", "children", "nth_child", "nth_leaf"})
TO_PARENTS = frozenset({"out", "nth_parents", "parents"})
# Row maps along links, which may lead to any row.
LINKS = frozenset({"linked", "linked_rows", "link_readers", "pair_source", "source_pairs"})
# Row maps from a graph to vertices of one structure.
OF_GRAPHS = frozenset({"graph_rows", "graph_roots", "graph_leaves"})

_COMPOSED: dict[tuple[str, str], tuple[str, str]] = {
    ("sum_children", "none"): ("segment_sum", "edges"),
    ("sum_children", "child"): ("segment_sum", "children"),
    ("max_children", "none"): ("segment_sum", "edges"),
    ("max_children", "child"): ("segment_sum", "children"),
    ("product_children", "none"): ("segment_sum", "edges"),
    ("product_children", "child"): ("segment_sum", "children"),
    ("nth_child", "none"): ("index", "nth_edge"),
    ("nth_child", "child"): ("index", "nth_child"),
    ("nth_child", "leaf_child"): ("index", "nth_leaf"),
    ("to_nth_child", "none"): ("index", "parent_if_nth"),
    ("max_vertices", "none"): ("segment_sum", "graph_rows"),
    ("sum_vertices", "none"): ("segment_sum", "graph_rows"),
    ("sum_members.roots", "none"): ("segment_sum", "graph_roots"),
    ("sum_members.vertices", "none"): ("segment_sum", "graph_rows"),
    ("sum_members.leaves", "none"): ("segment_sum", "graph_leaves"),
    ("to_members.leaves", "none"): ("segment_sum", "leaf_graphs"),
    ("to_members.roots", "none"): ("segment_sum", "root_graphs"),
    ("to_members.vertices", "none"): ("segment_sum", "row_graphs"),
    ("take", "none"): ("index", "present"),
    ("place", "none"): ("index", "place"),
    ("take_distinct", "none"): ("index", "distinct"),
    ("take_linked", "none"): ("index", "linked"),
    ("sum_linked", "none"): ("segment_sum", "linked_rows"),
    ("sum_readers", "none"): ("segment_sum", "link_readers"),
    ("max_readers", "none"): ("segment_sum", "link_readers"),
    ("take_pairs", "none"): ("index", "pair_source"),
    ("sum_pairs", "none"): ("segment_sum", "source_pairs"),
    ("sum_children.pair", "none"): ("segment_sum", "pairs"),
    ("sum_children.pair", "pair_source"): ("segment_sum", "linked_rows"),
    ("max_children.pair", "none"): ("segment_sum", "pairs"),
    ("max_children.pair", "pair_source"): ("segment_sum", "linked_rows"),
    ("product_children.pair", "none"): ("segment_sum", "pairs"),
    ("product_children.pair", "pair_source"): ("segment_sum", "linked_rows"),
}
_ORDER = {
    "vertex": "order",
    "edge": "edge_order",
    "present": "present_order",
    "pair": "pair_order",
}
_ACROSS = {
    ("vertex", "edge"): "parent",
    ("vertex", "pair"): "pair_target",
    ("graph", "vertex"): "graph_of",
}
# Row maps of a kernel that sums over the edges to parents, by the domain of the slot.
_OUTWARD = {"vertex": "parents", "edge": "out"}


class Piece(NamedTuple):
    """Columns [column, column + width) of the buffer of ``source``, rows by ``map`` and ``array``.

    source is a computed node, a merge, or an input of the program. argument: of the array; a name
    is that of a feature.
    """

    source: Node
    column: int
    width: int
    map: str = "self"
    array: str = "none"
    argument: int | str | Link = 0


class NoAccessError(Exception):
    """``node`` must be stored before it can be read through this row map."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.node = node


def is_view(node: Node) -> bool:
    """True if ``node`` is read where its inputs are stored, without a kernel."""
    if is_outward(node):
        return True
    if node.op.view and node.op.rearranges:  # columns of rows, not of matrices
        return len(node.shape) == 1 and dict(node.attrs).get("axis", -1) == -1
    if node.op.name == "broadcast":
        return restricts(node)
    return node.op.view


def is_outward(node: Node) -> bool:
    """True for values of edges to parents, which no buffer stores; see `outward`."""
    return node.type.domain.base == "out"


def outward(total: Node) -> list[Node]:
    """Return the nodes that the kernel of a ``sum_out`` computes for each edge, inputs first."""
    found = dict.fromkeys(total.inputs)
    waiting = list(found)
    while waiting:
        inputs = waiting.pop().inputs
        new = [x for x in inputs if is_outward(x) and x not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    border = {x for n in found for x in n.inputs if x not in found}
    return [n for n in toposort(total.inputs, border) if n in found]


def restricts(node: Node) -> bool:
    """True if a broadcast only restricts rows to one kind of vertex."""
    (x,) = node.inputs
    same = x.shape == node.shape and x.type.domain.base == node.type.domain.base
    return same and x.type.domain != node.type.domain


class Accesses:
    """Resolve the nodes of one graph to pieces."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._memo: dict[Node, list[Piece]] = {}
        self._operands: dict[Node, list[tuple[Node, list[Piece]]]] = {}
        self._asked: set[Slot] = set()  # slots being resolved

    def pieces(self, node: Node) -> list[Piece]:
        """Return the stored columns that a row of ``node`` consists of, over its own domain."""
        found = self._memo.get(node)
        if found is None:
            found = self._memo[node] = self._resolve(node)
        return found

    def _resolve(self, node: Node) -> list[Piece]:
        name, width = node.op.name, node.type.width
        if not is_view(node) or name == "merge":
            return [Piece(node, 0, width)]
        if node.op.program_input and node.type.domain == ONE:
            return [Piece(node, 0, width, "one")]
        if name == "feature":
            domain = node.type.domain
            if of := dict(node.attrs).get("vertex_type"):
                rows = row_feature(of, domain.structure)
                return [Piece(node, 0, width, "index", "index_feature", rows)]
            array = _ORDER.get(domain.base, "none")
            argument = domain.link or _feature_of(domain)
            return [Piece(node, 0, width, _map_of(array), array, argument)]
        if name == "num_children":
            return [Piece(node, 0, 1, "segment_sum", "edges")]
        if name == "gather_grad" and node.attr("slot").base == "vertex":
            slot, value = node.attr("slot"), self.graph.slots[node.attr("slot")]
            direct: list[Piece] = []
            if slot not in self._asked:  # else its value is a view of itself
                self._asked.add(slot)
                direct = self.direct_pieces(value)
                self._asked.remove(slot)
            direct = direct or [Piece(value, 0, width)]
            array, argument = ("parents", 0) if slot.alike else ("nth_parents", slot.child)
            return [p._replace(map="segment_sum", array=array, argument=argument) for p in direct]
        if name == "gather_out":
            slot = node.attr("slot")
            return [Piece(self.graph.slots[slot], 0, width, "index", _OUTWARD[slot.base])]
        if node.op.reads_slot:
            slot = node.attr("slot")
            source = self.graph.slots[slot]
            row_map, array = ("index", "child") if name == "gather" else ("segment_sum", "out")
            if name == "gather" and slot.leaf:
                array = "leaf_child"  # composed in _COMPOSED only
            return [Piece(source, 0, width, row_map, array)]
        if name == "lookup":
            table, index = node.inputs
            return [Piece(table, 0, width, "index", "index_feature", index.attr("name"))]
        if name == "concat":
            return [p for x in node.inputs for p in self.at(x, node)]
        if name == "slice":
            return _columns(self.pieces(node.inputs[0]), node.attr("start"), node.attr("stop"))
        if node.op.same_row or name == "broadcast":
            return self.pieces(node.inputs[0])
        return self._compose(node)

    def direct_pieces(self, node: Node) -> list[Piece]:
        """Return the stored columns of a value read in order of its rows; empty if it needs a
        copy."""
        try:
            found = self.pieces(node)
        except NoAccessError:
            return []
        return found if all(p.map == "self" for p in found) else []

    def _compose(self, node: Node) -> list[Piece]:
        (x,) = node.inputs
        taken = node if node.op.name == "take" else x
        attrs = dict(node.attrs)
        link = x.type.domain.link or node.type.domain.link or _feature_of(taken.type.domain)
        argument = attrs.get("k", attrs.get("link", link))
        name = f"{node.op.name}.{attrs['members']}" if "members" in attrs else node.op.name
        if x.type.domain.base == "pair" and name != "sum_pairs":
            name += ".pair"
        result = []
        for p in self.pieces(x):
            if (name, p.array) not in _COMPOSED or p.map == "one":
                raise NoAccessError(x)
            row_map, array = _COMPOSED[name, p.array]
            result.append(p._replace(map=row_map, array=array, argument=argument))
        return result

    def at(self, node: Node, reader: Node) -> list[Piece]:
        """Return the pieces of ``node`` as read by a kernel over the rows of ``reader``."""
        source, target = node.type.domain.base, reader.type.domain.base
        if target == "out" and source != "out":
            target = "vertex"  # the child, which runs the kernel
        pieces = self.pieces(node)
        if source == target:
            return pieces
        if source == "one":
            return [p._replace(map="one") for p in pieces]
        array = _ACROSS[source, target]
        if any(p.map not in ("self", "one") for p in pieces):
            raise NoAccessError(node)
        argument = reader.type.domain.link or 0
        return [
            p if p.map == "one" else p._replace(map="index", array=array, argument=argument)
            for p in pieces
        ]

    def operands(self, node: Node) -> list[tuple[Node, list[Piece]]]:
        """Return the float values that the kernel of ``node`` reads, with their pieces."""
        found = self._operands.get(node)
        if found is None:
            found = self._operands[node] = self._find_operands(node)
        return found

    def _find_operands(self, node: Node) -> list[tuple[Node, list[Piece]]]:
        inputs = [x for x in node.inputs if x.type.dtype != INT and x.op.name != "constant"]
        if node.op.takes_weights:
            inputs = inputs[:1]
        if node.op.name == "sum_out":
            return [(x, self.at(x, y)) for y in outward(node) for x in self._read_outward(y)]
        if node.op.reduces_segments and not node.op.view:  # a kernel of its own, as for maxima
            return [(node.inputs[0], self._compose(node))]
        reader = max(inputs, key=lambda x: x.type.domain.rank) if reduces(node) else node
        return [(x, self.at(x, reader)) for x in inputs]

    def _read_outward(self, node: Node) -> list[Node]:
        """Return the inputs of a value of edges to parents that its kernel loads."""
        if node.op.name == "gather_out":
            return [node]
        return [x for x in node.inputs if not is_outward(x) and x.op.name != "constant"]

    def check(self, node: Node) -> None:
        """Raise NoAccessError with the input of ``node`` that must be stored first."""
        if is_outward(node):
            for x in self._read_outward(node):
                if [p.map for p in self.at(x, node)] not in (["self"], ["one"], ["index"]):
                    raise NoAccessError(x)
            return
        if is_view(node):
            if node.op.name != "merge" and not node.op.reads_slot:
                self.pieces(node)
            return
        reads = node.op.reads
        for x, pieces in self.operands(node):
            # A copy stores pieces side by side once; an operand that it repeats is stored first.
            repeats = node.op.name == "broadcast" and x.type.width != node.type.width
            if len(pieces) > 1 and (reads is not Reads.PIECES or repeats):
                raise NoAccessError(x)
            if reads is Reads.IN_ORDER and pieces[0].map != "self":
                raise NoAccessError(x)
            if reads is Reads.ONE_ROW_EACH and any(p.map == "segment_sum" for p in pieces):
                raise NoAccessError(x)
        if node.op.name == "cross_entropy_grad":  # an absent slope is 1
            slope = node.inputs[2]
            if slope.op.name == "constant" and slope.attr("value") != 1.0:
                raise NoAccessError(slope)

    def storage(self, node: Node) -> Iterator[Node]:
        """Yield the computed nodes that ``node`` reads from, looking through merges."""
        for _, pieces in self.operands(node):
            for p in pieces:
                yield from behind(p.source)


def _map_of(array: str) -> str:
    return "self" if array == "none" else "index"


def _feature_of(domain: Domain) -> int | str:
    """Return the feature that selects the rows of ``domain``; 0 if there is none."""
    return str(domain.kind) if domain.selected else 0


def reduces(node: Node) -> bool:
    """True if ``node`` reads all rows at once."""
    return node.op.rule is BatchRule.REDUCE


def behind(source: Node) -> Iterator[Node]:
    """Yield the computed nodes that are stored in ``source``."""
    if source.op.name == "merge":
        for x in source.inputs:
            yield from behind(x)
    elif not source.op.program_input:
        yield source


def _columns(pieces: list[Piece], start: int, stop: int) -> list[Piece]:
    result, at = [], 0
    for p in pieces:
        low, high = max(start - at, 0), min(stop - at, p.width)
        if low < high:
            result.append(p._replace(column=p.column + low, width=high - low))
        at += p.width
    return result
