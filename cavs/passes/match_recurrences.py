"""Find vertex functions that are LSTMs, which a library can compute as a whole on chains.

The traced vertex function decides, not its name: states c and h,

    c = sigmoid(f) * c_before + sigmoid(i) * tanh(g);    h = sigmoid(o) * tanh(c)

where c_before and h_before are those of the first child, nothing but h is pushed, and each of
i, f, g, o is the sum of a product of one input x, a product of h_before, and possibly a bias. Gates
may be columns of one matrix in any order, or of matrices of their own; x and h_before may be
multiplied as one. Other vertex functions are unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cavs.ir import FLOAT, VERTEX, Graph, Node, Slot, Structure, rewrite
from cavs.ops.recurrence import lstm


@dataclass(frozen=True)
class _Term:
    """A term of a gate: ``left`` (None: a bias) times rows and columns of a parameter."""

    left: Node | None
    parameter: Node
    row: int
    column: int
    rows: int

    def overlaps(self, other: _Term, columns: int) -> bool:
        """True if the two share an element of a parameter."""
        return (
            self.parameter is other.parameter
            and self.row < other.row + other.rows
            and other.row < self.row + self.rows
            and abs(self.column - other.column) < columns
        )


def match_recurrences(graph: Graph) -> Graph:
    """Replace every LSTM of a traced ``graph`` by the operator "lstm".

    The result equals ``graph`` on chains: graphs whose vertices have at most one child and one
    parent.
    """
    structures = list(dict.fromkeys(s.structure for s in graph.slots))
    for number, structure in enumerate(structures):
        graph = _replaced(graph, structure, number) or graph
    return graph


def count_recurrences(graph: Graph) -> int:
    """Return the number of vertex functions of a traced graph that are LSTMs."""
    return sum(n.op.name == "lstm" for n in match_recurrences(graph).nodes())


def _replaced(graph: Graph, structure: Structure, number: int) -> Graph | None:
    """Return ``graph`` with one operator for ``structure``; None if that is no LSTM."""
    slots = [s for s in graph.slots if s.structure is structure]
    if len(slots) != 2 or slots[0].shape != slots[1].shape or len(slots[0].shape) != 1:
        return None
    for c, h in (slots, slots[::-1]):
        terms = _gates(graph, c, h)
        if terms is None:
            continue
        kept = {s: n for s, n in graph.slots.items() if s not in slots}
        with_operator = _operator(terms, graph.slots[h], number, Graph(graph.outputs, kept))
        nodes = with_operator.nodes()
        if any(n.op.name == "gather" and n.attr("slot") in slots for n in nodes):
            return None  # other values of it are read
        return with_operator
    return None


def _gates(graph: Graph, c: Slot, h: Slot) -> list[list[_Term]] | None:
    """Return the terms of gates i, f, g, o."""
    new_c, new_h = graph.slots[c], graph.slots[h]
    for o, tanh_c in _pairs(new_h, "mul", "sigmoid", "tanh"):
        if tanh_c is not new_c:
            continue
        for gated, kept in _orders(new_c, "add"):
            for i, g in _pairs(gated, "mul", "sigmoid", "tanh"):
                for gate, before in _orders(kept, "mul"):
                    if gate.op.name == "sigmoid" and _is_first_child(before, c):
                        found = [_terms(x, 0, h) for x in (i, gate.inputs[0], g, o)]
                        return _checked(found, h)
    return None


def _orders(n: Node, name: str) -> Iterator[tuple[Node, Node]]:
    """Yield the two operands of a commutative operator, in both orders."""
    if n.op.name == name:
        a, b = n.inputs
        yield a, b
        yield b, a


def _pairs(n: Node, name: str, first: str, second: str) -> Iterator[tuple[Node, Node]]:
    """Yield (a, b) if ``n`` is ``name`` of ``first(a)`` and ``second(b)``, in any order."""
    for a, b in _orders(n, name):
        if a.op.name == first and b.op.name == second:
            yield a.inputs[0], b.inputs[0]


def _is_first_child(n: Node, slot: Slot) -> bool:
    if n.op.name != "nth_child" or n.attr("k") != 0:
        return False
    return n.inputs[0].op.name == "gather" and n.inputs[0].attr("slot") is slot


def _terms(n: Node, start: int, h: Slot) -> list[_Term] | None:
    """Return columns [start, start + hidden) of ``n`` as a sum of terms, or None."""
    if n.op.name == "slice":
        return _terms(n.inputs[0], start + n.attr("start"), h)
    if n.op.name == "add" and all(x.shape == n.shape for x in n.inputs):
        parts = [_terms(x, start, h) for x in n.inputs]
        return None if None in parts else [t for part in parts for t in part or ()]
    if n.op.name == "matmul":
        window = _window(n.inputs[1])
        return None if window is None else _products(n.inputs[0], *window, start, h)
    window = _window(n)
    return [_Term(None, window[0], 0, window[2] + start, 1)] if window else None


def _window(w: Node) -> tuple[Node, int, int] | None:
    """Return the parameter that ``w`` is a window of, and its first row and column."""
    row = column = 0
    while w.op.name != "parameter":
        if w.op.name == "rows":
            row += w.attr("start")
        elif w.op.name == "slice":
            column += w.attr("start")
        else:
            return None
        w = w.inputs[0]
    return w, row, column


def _products(
    left: Node, parameter: Node, row: int, column: int, start: int, h: Slot
) -> list[_Term] | None:
    joined = left.op.name == "concat" and any(_is_first_child(x, h) for x in left.inputs)
    if joined and len(left.inputs) != 2:
        return None
    found = []
    for x in left.inputs if joined else (left,):
        found.append(_Term(x, parameter, row, column + start, x.shape[0]))
        row += x.shape[0]
    return found


def _checked(gates: list[list[_Term] | None], h: Slot) -> list[list[_Term]] | None:
    """Return the terms of each gate in the order x, h, bias, if they are those of an LSTM."""
    result: list[list[_Term]] = []
    inputs: set[Node | None] = set()
    seen: list[_Term] = []
    for terms in gates:
        if terms is None:
            return None
        of_h = [t for t in terms if t.left is not None and _is_first_child(t.left, h)]
        of_x = [t for t in terms if t.left is not None and t not in of_h]
        bias = [t for t in terms if t.left is None]
        if len(of_h) != 1 or len(of_x) != 1 or len(bias) > 1:
            return None
        inputs.add(of_x[0].left)
        result.append([*of_x, *of_h, *bias])
        for t in terms:
            if any(t.overlaps(other, h.shape[0]) for other in seen):
                return None  # two terms share weights
            seen.append(t)
    (x, *others) = inputs
    if others or x is None or x.type.domain != VERTEX or x.type.dtype != FLOAT:
        return None
    return result


def _operator(gates: list[list[_Term]], h: Node, number: int, graph: Graph) -> Graph:
    """Return ``graph`` with the operator instead of the pushed ``h``."""
    x = gates[0][0].left
    assert x is not None
    (hidden,), (width,) = h.shape, x.shape
    parameters = list(dict.fromkeys(t.parameter for terms in gates for t in terms))
    pieces = []
    for gate, terms in enumerate(gates):
        for k0, t in zip((0, width, width + hidden), terms, strict=False):
            stride = t.parameter.shape[-1]
            pieces.append(
                (
                    parameters.index(t.parameter) + 1,
                    t.row * stride + t.column,
                    stride,
                    t.rows,
                    hidden,
                    k0,
                    gate * hidden,
                )
            )

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node | None:
        if n.op.name != "push" or n.inputs[0] is not h:
            return None
        return lstm(x, parameters, hidden, number, tuple(pieces))

    return rewrite(graph, rule)
