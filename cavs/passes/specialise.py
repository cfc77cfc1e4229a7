"""Specialise F for every kind of vertex in the data, by partial evaluation.

A kind is (type, has children or not, which optional features are present). Values that depend on
the kind are computed per kind, where gathered zeros and absent inputs fold away: leaves do not
multiply by U, and vertices without input not by W. A kind computes the function of its own type
alone. Other values stay whole. The paper has no such pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cavs.data.features import feature_name, types_in
from cavs.data.merge import LEAF
from cavs.data.vertex_types import number_of_bits
from cavs.ir import BatchRule, Graph, Node, Slot, TensorType, apply, make, rebuild, users
from cavs.passes.rules import as_type, constant_of, full, zeros
from cavs.passes.simplify import simplify_node

STRUCTURE_SHIFT = 33  # kStructureShift of csrc/schedule/kinds.h


@dataclass(frozen=True)
class Kind:
    """A kind of vertices. key: its number in the schedule, 2 * (presence bits, type) + inner, above
    which are the bits of the number of the structure."""

    key: int
    inner: bool
    present: frozenset[str]
    vertex_type: str | None = None
    structure: str = ""

    @staticmethod
    def of(
        key: int,
        optional: Sequence[str],
        types: Sequence[str] = (),
        structures: Sequence[str] = ("",),
    ) -> Kind:
        """Return the kind with number ``key``.

        Its lowest bit says that it has children; then come the number of its type in ``types``, and
        the presence bits, of which bit i is ``optional[i]``.
        """
        bits = number_of_bits(types)
        number, presence = (key >> 1) & ((1 << bits) - 1), key >> 1 >> bits
        present = frozenset(n for i, n in enumerate(optional) if presence >> i & 1)
        structure = structures[key >> STRUCTURE_SHIFT]
        of_type: str | None = types[number] if types else None
        if structure and of_type is not None:  # None if it is of another structure
            of_type = types_in(types, structure)[number] or None
        return Kind(key, bool(key & 1), present, of_type, structure)

    def text(self, optional: Sequence[str]) -> str:
        """Return the kind in words: ``join with children, without token``."""
        of = "" if self.vertex_type is None else f"{self.vertex_type} "
        words = [f"{of}with children" if self.inner else f"{of}without children"]
        for name in optional:
            if self.structure and not name.startswith(f"{self.structure}."):
                continue  # a feature of another structure
            own = name in self.present
            if not name.startswith(LEAF):
                words.append(f"{'with' if own else 'without'} {name}")
            elif self.inner:
                words.append(f"child {name.removeprefix(LEAF)} {'a' if own else 'no'} leaf")
            elif own:
                words.append(f"child {name.removeprefix(LEAF)} of others")
        return ", ".join(words)


def types_of(graph: Graph) -> tuple[str, ...]:
    """Return the types of vertices that every vertex function with types has, sorted.

    Those of samples are called "structure.type", and every function over the structure has them.
    """
    found: dict[str, set[str]] = {}
    for structure in {s.structure for s in graph.slots if s.structure.of_types}:
        own = set(structure.of_types)
        found[structure.of] = found.get(structure.of, own) & own
    named = [feature_name(of, t) if of else t for of, own in found.items() for t in own]
    return tuple(sorted(named))


def optional_features(graph: Graph) -> tuple[str, ...]:
    """Return the names of features whose presence distinguishes kinds of vertices.

    These are index features that may be absent and that a lookup reads, and the numbers of leaves
    as children that `hoist_products_to_leaves` asks for.
    """
    used = {s.child for s in graph.slots if s.child is not None and not s.backward}
    names = {
        n.inputs[1].attr("name")
        for n in graph.nodes()
        if n.op.name == "lookup"
        and n.inputs[1].op.name == "feature"
        and n.inputs[1].attr("optional")
        and not n.inputs[1].shape
        and n.type.domain.base == "vertex"
    }
    return (*(f"{LEAF}{k}" for k in sorted(used)), *sorted(names))


class _Specialiser:
    def __init__(self, graph: Graph, kinds: Sequence[Kind], products: bool) -> None:
        self.graph, self.kinds = graph, kinds
        self.products = products
        # The numbers of the kinds of each structure.
        self.kinds_of = {
            name: [k for k, kind in enumerate(kinds) if kind.structure == name]
            for name in {kind.structure for kind in kinds}
        }
        self.optional = set(optional_features(graph))
        self.dependent: set[Node] = set()
        self.order = graph.nodes()
        for n in self.order:
            if n.type.domain.by_structure and self._depends(n):
                self.dependent.add(n)
        self.needed = self._needed_kinds() if types_of(graph) else {}
        self.only_by_kind = self._only_by_kind()
        sources = Counter(n for s, n in graph.slots.items() if s.backward)
        self.of_many = {n for n, slots in sources.items() if slots > 1}
        self.whole: dict[Node, Node] = {}
        self.kinded: dict[tuple[Node, int], Node | None] = {}

    def _depends(self, n: Node) -> bool:
        if n.type.domain.base in ("edge", "out", "pair") or n.op.reads_slot:
            return True
        if n.type.domain.vertex_type is not None or n.op.name == "merge_types":
            return True
        if n.op.any_kind:
            return False
        if n.op.zero_at_leaves or n.op.one_at_leaves:
            return True
        if n.op.name == "lookup" and dict(n.inputs[1].attrs).get("name") in self.optional:
            return True
        return any(x in self.dependent for x in n.inputs)

    def _needed_kinds(self) -> dict[Node, set[int]]:
        """Return the kinds for which values that depend on them are read."""
        every = set(range(len(self.kinds)))
        found = {n: set(every) for n in self.graph.roots()}
        for n in reversed(self.order):
            kinds = found.setdefault(n, set()) if n in self.dependent else every
            if n in self.dependent and n.type.domain.structure:
                kinds &= set(self.kinds_of.get(n.type.domain.structure, ()))
            of = n.type.domain.vertex_type
            if of is not None:
                kinds &= {k for k in every if self.kinds[k].vertex_type == of}
            for i, x in enumerate(n.inputs):
                read = every if n.op.any_kind else kinds  # along links from any vertex
                if n.op.name == "merge_types":
                    of = n.attr("types")[i]
                    read = {k for k in kinds if self.kinds[k].vertex_type == of}
                found.setdefault(x, set()).update(read)
        return found

    def _only_by_kind(self) -> set[Node]:
        """Return elementwise values (and products) equal for all kinds that only kinds read."""
        readers, roots = users(self.order), set(self.graph.roots())
        found: set[Node] = set()
        for n in reversed(self.order):
            repeated = n.op.elementwise or n.op.name == "slice"
            repeated |= self.products and n.op.name == "matmul"
            if n in self.dependent or n in roots or not repeated:
                continue
            if n.type.domain.by_structure and all(
                r in found or (r in self.dependent and not r.op.any_kind) for r in readers[n]
            ):
                found.add(n)
        return found

    def run(self) -> Graph:
        for n in self.order:  # inputs first, so no recursion is deep
            self._whole(n) if n not in self.dependent else self._each_kind(n)
        outputs = {k: self._merged(n) for k, n in self.graph.outputs.items()}
        slots = {s: self._slot(s, n) for s, n in self.graph.slots.items()}
        return Graph(outputs, slots)

    def _slot(self, slot: Slot, n: Node) -> Node:
        """Return the value of ``slot``. A cotangent for a child is needed at vertices with
        children, whose type reads that child, and a value of a child at vertices that are
        children."""
        if (slot.child is None and not slot.alike) or n not in self.dependent:
            return self._merged(n)
        if not slot.backward:
            held = [k for k, kind in self._kinds_of(slot) if self._is_child(slot, kind)]
            return self._merged(n, held, "leaves" if slot.leaf else "all")
        # A product at the child serves several numbers of a child: one value.
        whole = slot.leaf or slot.alike or n in self.of_many
        parents = [
            k
            for k, kind in self._kinds_of(slot)
            if kind.inner and (whole or self._is_parent(slot, kind))
        ]
        values = [x for x in (self.kinded[n, k] for k in parents) if x is not None]
        return self._of_parents(parents, values) if values else zeros(n.type)

    def _kinds_of(self, slot: Slot) -> list[tuple[int, Kind]]:
        """Return the kinds of the slot's structure with their numbers."""
        return [(k, self.kinds[k]) for k in self.kinds_of.get(slot.structure.of, ())]

    def _is_child(self, slot: Slot, kind: Kind) -> bool:
        """True if vertices of ``kind`` may be the child that ``slot`` is for."""
        if kind.inner:
            return not slot.leaf
        name = f"{LEAF}{slot.child}"
        return slot.leaf is not False and (name not in self.optional or name in kind.present)

    def _is_parent(self, slot: Slot, kind: Kind) -> bool:
        """True if vertices of ``kind`` may have the child that ``slot`` is for."""
        name = f"{LEAF}{slot.child}"
        arity = slot.structure.arity_of(kind.vertex_type)
        if arity is not None and slot.child is not None and slot.child >= arity:
            return False
        return kind.inner and slot.leaf in (None, name in kind.present)

    def _of_parents(self, kinds: Sequence[int], values: Sequence[Node]) -> Node:
        """Merge the values of ``kinds``, which have children.

        Values side by side are merged separately, so that each can reuse the buffer of an operand.
        """
        first = values[0]
        alike = self.kinds_of[first.type.domain.structure]
        inner = sum(self.kinds[k].inner for k in alike)
        if inner == 1:
            return first
        shapes = [[x.shape for x in v.inputs] if v.op is first.op else [] for v in values]
        joined = first.op.name == "concat" and len(first.shape) == 1
        if joined and all(s == shapes[0] for s in shapes):
            columns = zip(*(v.inputs for v in values), strict=True)
            return apply("concat", *(self._of_parents(kinds, c) for c in columns), axis=-1)
        domain = first.type.domain.of_kind(None)
        attrs: dict[str, Any] = {"kinds": tuple(kinds), "shape": first.shape, "domain": domain}
        if inner < len(alike):
            attrs["held"] = "inner"
        return apply("merge", *values, **attrs)

    def _each_kind(self, n: Node) -> None:
        own = self.kinds_of.get(n.type.domain.structure, ())
        for k in self.needed[n] if self.needed else own:
            self.kinded[n, k] = self._of_kind(n, k)

    def _of_kind(self, n: Node, k: int) -> Node | None:
        """Return ``n`` for kind ``k``; None if it has no rows (edges of leaves, other types)."""
        kind = self.kinds[k]
        domain = n.type.domain.of_kind(k)
        if n.type.domain.base == "edge" and not kind.inner:
            return None
        if n.type.domain.vertex_type not in (None, kind.vertex_type):
            return None
        t = type(n.type)(n.type.dtype, n.shape, domain)
        if n.op.any_kind and n.type.domain.base == "pair":  # reads rows of another structure
            source = self._merged(n.inputs[0])
            return make(n.op, (source,), {**dict(n.attrs), "domain": domain}, t, n.where)
        pairs = bool(n.inputs) and n.inputs[0].type.domain.base == "pair"
        if n.op.zero_at_leaves and not kind.inner and not pairs:
            return zeros(t)
        if n.op.one_at_leaves and not kind.inner and not pairs:
            return full(1.0, t)
        if self._reads_nothing(n, kind) or (kind.inner and _is_leaf(n)):
            return zeros(t)
        if n.op.reads_slot or n.op.name == "num_children":
            return make(n.op, (), {**dict(n.attrs), "domain": domain}, t, n.where)
        if n.op.name == "lookup" and self._absent(n.inputs[1], kind):
            return zeros(t)
        if n.op.name == "merge_types":
            return self._of_own_type(n, k, t)
        new = rebuild(n, tuple(self._in_kind(x, k) for x in n.inputs), domain)
        if new.type.domain != domain:  # no input has a kind: the value is equal for all kinds
            new = apply("broadcast", new, shape=n.shape, domain=domain)
        return simplify_node(new)

    def _of_own_type(self, n: Node, k: int, t: TensorType) -> Node:
        """Return the input of a merged value for the type of kind ``k``; zeros if it has none."""
        for name, x in zip(n.attr("types"), n.inputs, strict=True):
            if name == self.kinds[k].vertex_type:
                found = self._in_kind(x, k)
                return as_type(found, t)
        return zeros(t)

    def _in_kind(self, x: Node, k: int) -> Node:
        """Return an input of a value of kind ``k``."""
        found = self.kinded[x, k] if x in self.dependent else self._restricted(self.whole[x], k)
        assert found is not None, x
        return found

    def _reads_nothing(self, n: Node, kind: Kind) -> bool:
        """True if no vertex of ``kind`` has the child, or parent, whose slot ``n`` reads."""
        if n.op.name == "gather_grad":
            slot = n.attr("slot")
            parents = any(self._is_parent(slot, other) for _, other in self._kinds_of(slot))
            return slot.child is not None and not (parents and self._is_child(slot, kind))
        if n.op.name != "nth_child" or n.inputs[0].op.name != "gather":
            return False
        slot = replace(n.inputs[0].attr("slot"), child=n.attr("k"))
        return not self._is_parent(slot, kind)

    def _restricted(self, x: Node, k: int, inside: bool = False) -> Node:
        """Return a value that is equal for all kinds, typed for kind ``k`` where that is free:
        features, numbers, dropout masks, and elementwise values that only kinds read. Other values
        are returned as they are."""
        if not x.type.domain.by_structure:
            return x
        if not self._free(x):
            at = x.type.domain.of_kind(k)
            return apply("broadcast", x, shape=x.shape, domain=at) if inside else x
        inputs = tuple(self._restricted(y, k, inside=True) for y in x.inputs)
        domain = x.type.domain.of_kind(k)
        attrs = dict(x.attrs)
        if "domain" in attrs:
            attrs["domain"] = domain
        return make(x.op, inputs, attrs, x.type._replace(domain=domain), x.where)

    def _free(self, x: Node) -> bool:
        if x.op.name == "feature":
            return True
        return x in self.only_by_kind or (
            x.op.elementwise
            and all(
                y.op.name == "constant" or (y.type.domain.by_structure and self._free(y))
                for y in x.inputs
            )
        )

    def _absent(self, index: Node, kind: Kind) -> bool:
        return (
            index.op.name == "feature"
            and index.attr("name") in self.optional
            and index.attr("name") not in kind.present
        )

    def _whole(self, n: Node) -> None:
        if n.op.name == "push":
            self.whole[n] = self._merged(n.inputs[0])
        elif n.op.name == "count_present":  # counts all kinds
            self.whole[n] = n
        elif not any(x in self.dependent for x in n.inputs):
            self.whole[n] = simplify_node(rebuild(n, tuple(self.whole[x] for x in n.inputs)))
        elif n.op.rule is BatchRule.REDUCE:
            self.whole[n] = self._reduced(n)
        else:  # sum_vertices, take_linked
            self.whole[n] = rebuild(n, tuple(self._merged(x) for x in n.inputs))

    def _reduced(self, n: Node) -> Node:
        """Return a sum over rows as the sum over the kinds."""
        total: Node | None = None
        structure = next(x.type.domain.structure for x in n.inputs if x in self.dependent)
        for k in self.kinds_of.get(structure, ()):
            kind = self.kinds[k]
            inputs = [
                self.kinded.get((x, k))
                if x in self.dependent
                else self._restricted(self.whole[x], k)
                for x in n.inputs
            ]
            if any(x is None for x in inputs):
                continue
            if n.op.name == "lookup_grad" and self._absent(n.inputs[1], kind):
                continue
            part = simplify_node(rebuild(n, tuple(x for x in inputs if x is not None)))
            total = part if total is None else simplify_node(total + part)
        return zeros(n.type) if total is None else total

    def _merged(self, n: Node, kinds: Sequence[int] | None = None, held: str = "all") -> Node:
        """Merge the values of all kinds, or of ``kinds`` if no other rows are read.

        held: "leaves" if ``kinds`` have no children.
        """
        if n not in self.dependent:
            return self.whole[n]
        own = self.kinds_of.get(n.type.domain.structure, ())
        parts = [(k, self.kinded.get((n, k))) for k in (own if kinds is None else kinds)]
        found = [(k, x) for k, x in parts if x is not None]
        if not found:
            return zeros(n.type)
        kept = tuple(k for k, _ in found)
        attrs: dict[str, Any] = {"kinds": kept, "shape": n.shape, "domain": n.type.domain}
        if held != "all":
            attrs["held"] = held
        return apply("merge", *(x for _, x in found), **attrs)


def _is_leaf(n: Node) -> bool:
    """True for the condition that a vertex has no children."""
    if n.op.name != "equal" or constant_of(n.inputs[1]) != 0.0:
        return False
    return n.inputs[0].op.name == "num_children"


def specialise(graph: Graph, kinds: Sequence[Kind], products: bool = False) -> Graph:
    """Clone the values that depend on the kind of vertex for each of ``kinds``.

    products: also clone products that only kinds read, so that each can run in its task.
    """
    return _Specialiser(graph, kinds, products).run()
