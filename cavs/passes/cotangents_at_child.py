"""What parents scatter to their children in backward is multiplied at the child, where that is less
to keep.

``d(children) = d @ W^T`` at the parent has a row an edge, which lives until the task of the child
runs; ``d`` itself is kept anyway, for the gradient of W. So ``d`` is scattered if it is no wider,
and a child multiplies the sum over its parents by its own rows of W. Rows of a task are sorted by
which child they are (csrc/schedule), so that no number of a child costs more than the rows it has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from cavs.ir import (
    ONE,
    OUT,
    VERTEX,
    Graph,
    Node,
    Slot,
    Structure,
    apply,
    rebuild,
    rewrite,
    toposort,
    users,
)
from cavs.passes.partition import COMPARISONS
from cavs.passes.rules import constant_of, full

NUMBERS = 8  # of a child by which the schedule sorts rows, kNumbers in csrc/graph/graph.h
# What they make is one of their operands or its negative, or 0 or 1: none of them rounds.
EXACT = (*COMPARISONS, "broadcast", "maximum", "minimum", "relu", "neg", "abs", "where")
NARROW = 4  # a value is scattered instead of its multiple if that is so many times wider


def alike_at_child(graph: Graph) -> Graph:
    """What a parent scatters to all children alike is a row a parent, which the children read."""
    alike = {
        slot: replace(slot, alike=True)
        for slot, n in graph.slots.items()
        if slot.base == "edge" and n.op.name == "broadcast" and n.inputs[0].type.domain == VERTEX
        if n.inputs[0].shape == n.shape
    }

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        if n.op.name != "gather_grad" or n.attr("slot") not in alike:
            return None
        return apply("gather_grad", slot=alike[n.attr("slot")], domain=VERTEX)

    if not alike:
        return graph
    slots = {alike.get(s, s): n.inputs[0] if s in alike else n for s, n in graph.slots.items()}
    return rewrite(Graph(dict(graph.outputs), slots), rule)


SlotKey = tuple[Structure, str, tuple[int, ...]]


def slots_of_edges(graph: Graph) -> set[SlotKey]:
    """The slots that hold a cotangent for each edge."""
    return {_key(s) for s in graph.slots if _is_cotangent_of_edges(s)}


def _is_cotangent_of_edges(slot: Slot) -> bool:
    return slot.backward and slot.base == "edge" and not slot.structure.top_down


def _key(slot: Slot) -> SlotKey:
    return slot.structure, slot.name, slot.shape


def sums_at_child(graph: Graph, wanted: Collection[SlotKey]) -> Graph:
    """What a parent scatters to each child apart is made by the child, of what is of the parent, of
    the child, or narrow: so no row is kept for each edge. wanted: of which slots."""
    held: dict[tuple[Structure, Node], Slot] = {}
    found: dict[Slot, Node] = {}
    for slot, source in graph.slots.items():
        if _is_cotangent_of_edges(slot) and _key(slot) in wanted:
            made = _made_at_child(graph, slot, source, held)
            if made is not None:
                found[slot] = apply("sum_out", made)
    _drop_dependent(found)

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        return found.get(n.attr("slot")) if n.op.name == "gather_grad" else None

    if not found:
        return graph
    slots = graph.slots | {s: n for (_, n), s in held.items()}
    new = rewrite(Graph(dict(graph.outputs), slots), rule)
    return Graph(new.outputs, {s: n for s, n in new.slots.items() if s not in found})


def _drop_dependent(found: dict[Slot, Node]) -> None:
    """A value of a child may itself be made of sums over its parents, as in a cell that reads one
    that runs top-down: these stay as they are."""
    while True:
        read = {
            s: {n.attr("slot") for n in toposort([total]) if n.op.name == "gather_grad"}
            for s, total in found.items()
        }
        dependent = next((s for s, slots in read.items() if not slots.isdisjoint(found)), None)
        if dependent is None:
            return
        del found[dependent]


def _made_at_child(
    graph: Graph, slot: Slot, source: Node, held: dict[tuple[Structure, Node], Slot]
) -> Node | None:
    """``source``, over the edges that lead to a parent, where all it reads is there. held: slots of
    what it reads at the parent, or at the edge."""
    new: dict[Node, Node] = {}
    rounded: set[Node] = set()  # of which the child may find other bits than the parent did
    slots = dict(held)

    def read(x: Node, alike: bool) -> Node:
        name, key = f"{slot.name} {len(slots)}", (slot.structure, x)
        slots.setdefault(key, Slot(name, slot.structure, x.shape, backward=True, alike=alike))
        return apply("gather_out", slot=slots[key], domain=OUT)

    def narrow(x: Node) -> bool:
        return NARROW * x.type.width <= source.type.width

    def moved(x: Node) -> bool:
        wide = x.type.domain.base == "edge" and not narrow(x)
        return wide and x.op.elementwise and bool(x.inputs)

    border = {x for x in toposort([source]) if not moved(x)}
    for x in toposort([source], border):
        base = x.type.domain.base
        if moved(x):
            again = not rounded.isdisjoint(x.inputs)
            if again and x.op.name in COMPARISONS:
                return None
            if again or x.op.name not in EXACT:
                rounded.add(x)
            new[x] = rebuild(x, tuple(new[y] for y in x.inputs), OUT)
        elif base == "one":
            new[x] = x
        elif x.op.name == "gather" and _of_any_child(x.attr("slot")):
            new[x] = graph.slots[x.attr("slot")]
        elif base == "edge" and not narrow(x):
            return None
        elif base == "graph":
            at = apply("broadcast", x, shape=x.shape, domain=VERTEX)
            new[x] = read(at, alike=True)
        else:
            new[x] = read(x, alike=base == "vertex")
    if new[source].type.domain != OUT:
        return None
    held.update(slots)
    return new[source]


def known_at_child(graph: Graph) -> Graph:
    """What a slot holds that is one number at all parents, as what they do not pull is, need not be
    read, nor held. After specialisation, which finds out."""
    known = {s: constant_of(n) for s, n in graph.slots.items()}

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        value = known[n.attr("slot")] if n.op.name == "gather_out" else None
        return None if value is None else full(value, n.type)

    return rewrite(graph, rule)


def _of_any_child(slot: Slot) -> bool:
    return slot.child is None and slot.leaf is None


def _product(source: Node) -> Node:
    return source.inputs[0] if source.op.name == "slice" else source


def _movable(graph: Graph, alike: bool) -> dict[Slot, Node]:
    """The slots that hold columns of a product that is read by nothing else, and no narrower than
    what it is made from."""
    slots: dict[Node, list[Slot]] = defaultdict(list)
    for slot, source in graph.slots.items():
        p = _product(source)
        if slot.backward and p.op.name == "matmul":
            left, right = p.inputs
            if left.type.domain == p.type.domain and right.op.name == "transpose":
                slots[p].append(slot)
    readers = users(graph.nodes())
    found: dict[Slot, Node] = {}
    for p, held in slots.items():
        sources = {graph.slots[s] for s in held}
        others = [n for s in {p, *sources} for n in readers.get(s, ()) if n not in sources]
        outputs = sources.intersection(graph.outputs.values()) or p in graph.outputs.values()
        fits = all(_fits(s, alike) for s in held)
        wide = sum(n.shape[0] for n in sources) >= p.inputs[0].shape[0]
        if fits and wide and not others and not outputs:
            found.update((s, graph.slots[s]) for s in held)
    return found


def _fits(slot: Slot, alike: bool) -> bool:
    """Whether no more rows are multiplied at the children than at the parents."""
    if slot.base == "edge":
        return True
    return alike if slot.alike else slot.child is not None and slot.child < NUMBERS


def products_at_child(graph: Graph, alike: bool) -> Graph:
    """Moves the products of a differentiated graph; with ``alike`` those that are the same for all
    children of a parent too, which are not fewer where vertices without children are few."""
    held = _movable(graph, alike)
    if not held:
        return graph
    moved = {slot: replace(slot, shape=_product(n).inputs[0].shape) for slot, n in held.items()}

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        if n.op.name != "gather_grad" or n.attr("slot") not in moved:
            return None
        slot = n.attr("slot")
        source = held[slot]
        (weight,) = _product(source).inputs[1].inputs
        assert weight.type.domain == ONE
        if source.op.name == "slice":
            start, stop = source.attr("start"), source.attr("stop")
            weight = apply("rows", weight, start=start, stop=stop)
        gathered = apply("gather_grad", slot=moved[slot], domain=VERTEX)
        return apply("matmul", gathered, apply("transpose", weight))

    new = rewrite(graph, rule)
    slots: dict[Slot, Node] = {}
    for slot, n in new.slots.items():
        slots[moved.get(slot, slot)] = _product(n).inputs[0] if slot in moved else n
    return Graph(dict(new.outputs), slots)


def multiples_at_child(graph: Graph) -> Graph:
    """The same of ``d * w`` with a ``w`` of one row, such as a query that is a parameter, after
    specialisation, which finds out: ``d`` is scattered where it is much narrower."""
    moved: dict[Slot, tuple[Slot, Node]] = {}
    narrow: dict[Slot, Node] = {}
    apart = {n.attr("slot") for n in graph.nodes() if n.op.name == "gather_out"}
    for slot, source in graph.slots.items():
        parts = list(source.inputs) if source.op.name == "merge" else [source]
        factors = [_multiple(x) for x in parts] if slot.backward and slot not in apart else [None]
        weights = {f[1] for f in factors if f is not None}
        if None in factors or len(weights) != 1:
            continue
        rows = [f[0] for f in factors if f is not None]
        new = replace(slot, shape=rows[0].shape)
        moved[slot] = new, weights.pop()
        narrow[new] = rows[0]
        if source.op.name == "merge":
            narrow[new] = apply("merge", *rows, **{**dict(source.attrs), "shape": new.shape})

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        if n.op.name != "gather_grad" or n.attr("slot") not in moved:
            return None
        slot, w = moved[n.attr("slot")]
        return apply("gather_grad", slot=slot, domain=n.type.domain) * w

    if not moved:
        return graph
    slots = {s: n for s, n in graph.slots.items() if s not in moved}
    return rewrite(Graph(dict(graph.outputs), {**slots, **narrow}), rule)


def _multiple(x: Node) -> tuple[Node, Node] | None:
    """A value and the one row that it is multiplied by to be ``x``."""
    if x.op.name != "mul":
        return None
    w, d = sorted(x.inputs, key=lambda y: y.type.domain.rank)
    fits = w.type.domain == ONE and d.type.domain == x.type.domain and w.shape == x.shape
    return (d, w) if fits and len(d.shape) == 1 and NARROW * d.shape[0] <= x.shape[0] else None
