"""Partition a graph into loops over tasks and stages over the whole batch (Cavs, section 3.5).

A node is in a loop iff it depends on a gather of the structure and the scatter depends on it. Eager
nodes (no gather before them) and lazy nodes (no scatter after them), such as every parameter
gradient, run once over all rows. Elementwise nodes then move into the loop that reads them, or are
recomputed by it, where that saves memory traffic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from cavs.errors import FAULT, CompileError
from cavs.ir import ONE, BatchRule, Domain, Graph, Node
from cavs.passes.access import LINKS, LOCAL_ARRAYS, Accesses, behind, is_view
from cavs.passes.differentiate import INPUT, after_cotangents
from cavs.passes.loops import Loop, loops_of
from cavs.passes.sink_into_loops import SinkIntoLoops

CHEAP = 3  # operators up to this cost are recomputed rather than read again
FEW = 3  # at most so many of them, from no more than two stored values
NARROW = 4  # a value of so many times fewer operands is recomputed for a sum


@dataclass(eq=False)
class Body:
    """Nodes that run together: whole-batch rows of one space, one kind of a loop, or a reduction.

    space: of "one", "graph", "present" (vertices that have the feature ``kind``), "distinct" (its
    different values) or "rows" (vertices of ``kind`` and the edges to their children).
    """

    space: Domain
    loop: Loop | None = None
    reduction: bool = False
    stage: int = 0
    nodes: list[Node] = field(default_factory=list)
    repeated: set[Node] = field(default_factory=set)  # computed here for this body alone

    @property
    def kind(self) -> int | str | None:
        """The kind of its rows; None for all."""
        return self.space.kind


@dataclass
class Partition:
    """Bodies by stage. kept: nodes stored for other bodies than their own."""

    graph: Graph
    accesses: Accesses
    bodies: list[Body]
    kept: set[Node]


def is_elementwise(node: Node) -> bool:
    """True if a fused kernel computes it: elementwise, or a reduction of the last axis."""
    return node.op.elementwise or node.op.reduces_axis


def _space(node: Node) -> Domain:
    """Return the rows that ``node`` runs over: its own, or those that it sums."""
    domain = node.type.domain
    if node.op.rule is BatchRule.REDUCE:
        found = [x.type.domain for x in node.inputs]
        domain = max(found, key=lambda d: (d.rank, d.kind is not None))
    return domain.at("rows") if domain.by_structure else domain


def _has_rows(node: Node) -> bool:
    """True if a vertex, or edge, reads a row of its own, or that of its index."""
    return node.type.domain.by_structure or node.type.domain.base == "distinct"


class _Partitioner:
    def __init__(self, graph: Graph, recompute: bool) -> None:
        self.graph, self.recompute = graph, recompute
        self.accesses = Accesses(graph)
        self.loop = loops_of(graph)
        self.compute = [n for n in graph.nodes() if not is_view(n) and not n.op.program_input]
        self.reads = {n: list(dict.fromkeys(self.accesses.storage(n))) for n in self.compute}
        self.readers: dict[Node, list[Node]] = defaultdict(list)
        for n in self.compute:
            for x in self.reads[n]:
                self.readers[x].append(n)
        # Readers of a merge find its inputs in memory, and readers along a link any row.
        self.merged = {x for n in graph.nodes() if n.op.name == "merge" for x in behind(n)}
        self.merged |= {x for n in self.compute for x in self._linked(n)}
        # A maximum is found by its bits, and a recomputed value may round differently.
        masks = [n for n in self.compute if n.op.comparison]
        self.compared = {x for n in masks if self._finds_maximum(n) for x in self.reads[n]}
        self.late: dict[Node, Body] = {}
        self.roots = {x for r in graph.roots() for x in self._stored_in(r)}

    def _linked(self, n: Node) -> Iterable[Node]:
        """Return the computed nodes that ``n`` reads along links."""
        pieces = (p for _, found in self.accesses.operands(n) for p in found)
        return [x for p in pieces if p.array in LINKS for x in behind(p.source)]

    def _finds_maximum(self, mask: Node) -> bool:
        """True if it may find the element that is the maximum, or by negation the minimum."""
        found = list(self.reads[mask])
        for x in self.reads[mask]:
            found += self.reads.get(x, ()) if x.op.name == "neg" else ()
        return mask.op.name == "equal" or any(x.op.reduction == "max" for x in found)

    def _stored_in(self, root: Node) -> Iterable[Node]:
        """Return the computed nodes that store an output or a slot, or of which it is columns."""
        if not is_view(root) or root.op.name == "merge":
            return behind(root)
        return [x for p in self.accesses.pieces(root) for x in behind(p.source)]

    def sinker(self) -> SinkIntoLoops:
        """Return what moves nodes that could run once over all rows into loops."""
        movable = {n for n in self.compute if is_elementwise(n) or n.op.name == "matmul"}
        state = (self.graph, self.accesses, self.loop, self.reads, self.readers)
        return SinkIntoLoops(*state, _space, movable, self.roots)

    def sink(self, edges: bool = False) -> None:
        """Move eager elementwise nodes into the only loop that reads them. edges: also values of
        edges with several stored operands."""
        for n in reversed(self.compute):
            if n in self.loop or not is_elementwise(n) or not n.type.domain.by_structure:
                continue
            if n in self.roots or n in self.merged or not self.readers[n]:
                continue
            loops = {self.loop.get(r) for r in self.readers[n]}
            if len(loops) != 1 or None in loops:
                continue
            if any(
                _space(r) != _space(n) and n.type.domain.kind is not None for r in self.readers[n]
            ):
                continue
            stored = [x for x in self.reads[n] if x.type.width > 1 and _has_rows(x)]
            few = len(stored) <= 1 or (edges and n.type.domain.base == "edge")
            if not few or n.type.domain.kind != self.readers[n][0].type.domain.kind:
                continue
            loop = loops.pop()
            assert loop is not None
            self.loop[n] = loop

    def partition(self) -> Partition:
        """Return bodies with their stages, and the values that are stored rather than
        recomputed."""
        home = self._homes()
        self._delay(home)
        clones: dict[Body, list[Node]] = defaultdict(list)
        kept = self.roots | self.merged
        self.late = self._postpone(home)
        for n, body in self.late.items():
            kept.update([n, *self.reads[n]])
            body.repeated.add(n)
        for n in self.compute:
            if any(r.op.rule is BatchRule.REDUCE and r in self.loop for r in self.readers[n]):
                kept.add(n)  # read after all chunks of the task
            for body in dict.fromkeys(home[r] for r in self.readers[n] if home[r] is not home[n]):
                if n in body.repeated:
                    continue
                readers = [r for r in self.readers[n] if home[r] is body]
                plan = self._recompute(n, body, home, kept) if not body.reduction else None
                if (
                    plan is None
                    or not self._pays(plan)
                    or any(not is_elementwise(r) and r.op.name != "matmul" for r in readers)
                ):
                    kept.add(n)
                else:
                    clones[body] += plan
        bodies = sorted(dict.fromkeys(home.values()), key=lambda b: b.stage)
        position = {n: i for i, n in enumerate(self.compute)}
        own: dict[Body, list[Node]] = defaultdict(list)
        for n in self.compute:
            own[home[n]].append(n)
        for body in bodies:
            body.repeated.update(n for n in clones[body] if n not in kept)
            body.nodes = sorted({*own[body], *body.repeated}, key=position.__getitem__)
        self._drop_unread(bodies, home, kept)
        return Partition(self.graph, self.accesses, [b for b in bodies if b.nodes], kept)

    def _delay(self, home: dict[Node, Body]) -> None:
        """Move values that only backward reads into the body that reads them."""
        for n in reversed(self.compute):
            bodies = {home[r] for r in self.readers[n]}
            if len(bodies) != 1 or n in self.loop or not n.op.elementwise:
                continue
            if n in self.roots or n in self.merged:
                continue
            (body,) = bodies
            stored = [x for x in self.reads[n] if x.type.width > 1 and _has_rows(x)]
            same = body.space == _space(n) and not body.reduction
            if same and len(stored) <= 1 and n.type.domain.by_structure:
                home[n] = body

    def _postpone(self, home: dict[Node, Body]) -> dict[Node, Body]:
        """Recompute values of a loop for a later sum, if they are computed from few stored values.
        Return them, each with the body of the loop that computes them too."""
        found: dict[Node, Body] = {}
        for n in self.compute:
            own, reduced = home[n], [r for r in self.readers[n] if home[r].reduction]
            others = [r for r in self.readers[n] if not home[r].reduction]
            cheap = self.recompute and n.op.elementwise and n.op.cost <= CHEAP
            if own.loop is None or not cheap or not reduced or not others:
                continue
            if n in self.roots or n in self.merged or any(home[r] is not own for r in others):
                continue
            if any(not is_elementwise(r) and r.op.name != "matmul" for r in others):
                continue
            read = [x for x in self.reads[n] if _has_rows(x)]
            wide = NARROW * sum(x.type.width for x in read) > n.type.width
            if wide or any(x in found for x in read):
                continue
            stage = min(home[r].stage for r in reduced) - 1
            space = _space(n)
            same = (b for b in home.values() if (b.stage, b.space) == (stage, space))
            found[n] = own
            home[n] = next(same, None) or Body(space, stage=stage)
        return found

    def _recompute(
        self, n: Node, body: Body, home: dict[Node, Body], kept: set[Node]
    ) -> list[Node] | None:
        """Return the nodes to recompute in ``body`` for ``n``; None if it must be read, or if
        many."""
        plan: dict[Node, None] = {}
        todo = [n] if self.recompute and n not in kept else []
        while todo:
            x = todo.pop()
            if x in plan:
                continue
            if not x.op.elementwise or x.op.cost > CHEAP or x in self.compared:
                return None
            if _space(x) != body.space or len(plan) == FEW:
                return None
            plan[x] = None
            for y in self.reads[x]:
                if y in self.late and home[y] is not body and home[y].stage >= body.stage:
                    return None  # it is not there yet
                if y not in kept and home[y] is not body:
                    todo.append(y)
        return list(plan) or None

    def _pays(self, plan: list[Node]) -> bool:
        nodes = set(plan)
        stored = {x for n in nodes for x in self.reads[n] if x not in nodes}
        return len(stored) <= 2

    def _drop_unread(self, bodies: list[Body], home: dict[Node, Body], kept: set[Node]) -> None:
        """Remove nodes that all their readers recompute from their own body."""
        for body in reversed(bodies):
            inside = set(body.nodes)
            for n in reversed(body.nodes):
                if n in self.roots or n in kept or n.op.rule is BatchRule.REDUCE:
                    continue
                if inside.isdisjoint(self.readers[n]):
                    inside.remove(n)
            body.nodes = [n for n in body.nodes if n in inside]

    def _after_cotangents(self) -> set[Node]:
        """Return the nodes that run when the caller has given cotangents; none if it gives none."""
        after = after_cotangents(self.graph)
        if after:
            outputs = self.graph.outputs.items()
            before = {n for key, n in outputs if not key.startswith(("grad:", INPUT))}
            sums = {n for key, n in outputs if key.startswith("grad:") and not self.readers[n]}
            after |= sums - before
        return after

    def _homes(self) -> dict[Node, Body]:
        """Return a body for every computed node, with stages numbered by longest path."""
        stage: dict[object, int] = {}
        members: dict[Loop, list[Node]] = defaultdict(list)
        for n, loop in self.loop.items():
            members[loop].append(n)

        def needs(item: Node | Loop) -> Iterable[Node | Loop]:
            nodes = members[item] if isinstance(item, Loop) else [item]
            found = dict.fromkeys(self.loop.get(x, x) for n in nodes for x in self.reads[n])
            return [x for x in found if x is not item]

        def number(item: Node | Loop) -> int:
            if isinstance(item, Loop):
                return 1 + max((max(stage[x], 0) for x in needs(item)), default=-1)
            # Values of distinct indices come first: those of vertices fuse as they do without them.
            distinct = item.type.domain.base == "distinct"
            level = -len(self.compute) if distinct else 0
            for _, pieces in self.accesses.operands(item):
                for p in pieces:
                    for x in behind(p.source):
                        where = self.loop.get(x, x)
                        same = (
                            isinstance(where, Node)
                            and item.op.rule is not BatchRule.REDUCE
                            and x.op.rule is not BatchRule.REDUCE
                            and p.array in LOCAL_ARRAYS
                            and p.source.op.name != "merge"
                            and _space(x) == _space(item)
                        )
                        level = max(level, stage[where] + (0 if same else 1))
            return level

        order: list[Node | Loop] = []
        seen: set[Node | Loop] = set()
        for root in self.compute:
            stack: list[tuple[Node | Loop, bool]] = [(self.loop.get(root, root), False)]
            while stack:
                item, ready = stack.pop()
                if ready:
                    order.append(item)
                elif item not in seen:
                    seen.add(item)
                    stack.append((item, True))
                    stack += [(x, False) for x in needs(item) if x not in seen]
        # Stages after the caller's cotangents come after all others, and with them gradients.
        after = self._after_cotangents()
        late: set[object] = set()
        for item in order if after else ():
            inside = members[item] if isinstance(item, Loop) else [item]
            if not (after.isdisjoint(inside) and late.isdisjoint(needs(item))):
                late.add(item)
        for item in order:
            if item not in late:
                stage[item] = number(item)
        first = 1 + max(stage.values(), default=-1) if late else 0
        for item in order:
            if item in late:
                stage[item] = max(first, number(item))
        home: dict[Node, Body] = {}
        bodies: dict[object, Body] = {}
        for n in self.compute:
            own = self.loop.get(n)
            space = _space(n)
            if own is not None and space.selected:
                raise CompileError(
                    f"{n.op.name} of {n.type} is in a loop, which runs whole levels",
                    where=n.where,
                    hint=FAULT,
                )
            if own is not None:
                key: object = (own, space)
                body = Body(space, loop=own, stage=2 * stage[own])
            elif n.op.rule is BatchRule.REDUCE:
                key, body = n, Body(ONE, reduction=True, stage=2 * stage[n] + 1)
            else:
                key = (stage[n], space)
                body = Body(space, stage=2 * stage[n])
            home[n] = bodies.setdefault(key, body)
        return home


def partition(
    graph: Graph,
    *,
    eager: bool = True,
    lazy: bool = True,
    sink: bool = True,
    recompute: bool = True,
    sums_in_loops: bool = False,
    edges_in_loops: bool = False,
) -> Partition:
    """Partition ``graph`` (with copies inserted) into bodies by stage.

    eager, lazy: eager nodes, lazy ones run once over all rows where possible. sink: eager
    elementwise nodes move into the loop that reads them. recompute: cheap values are recomputed
    instead of stored. sums_in_loops: loops sum the gradients of values that they compute, task by
    task. edges_in_loops: values of edges move into the loop that reads them, whatever their
    operands.
    """
    p = _Partitioner(graph, recompute)
    if not eager:
        p.sinker().sink_eager()
    elif sink:
        p.sink(edges_in_loops)
    if not lazy:
        p.sinker().sink_lazy()
    elif sums_in_loops:
        p.sinker().sink_sums()
    return p.partition()
