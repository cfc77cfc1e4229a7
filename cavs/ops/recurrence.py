"""A whole LSTM over chains as one operator, which a device library computes in few calls.

`cavs.passes.match_recurrences` replaces vertex functions by it; only devices run it. Its weights
are pieces of parameters in the matrix M of

    [x, h_before, 1] @ M = [i, f, g, o]        M: (input + hidden + 1, 4 * hidden)

    c = sigmoid(f) * c_before + sigmoid(i) * tanh(g);    h = sigmoid(o) * tanh(c)

Attributes: ``number`` identifies the LSTM in its graph; ``pieces`` are (input, offset, row_stride,
rows, cols, k0, n0): rows of input number ``input`` from element ``offset`` on, at (k0, n0) of M.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cavs.ir import FLOAT, ONE, VERTEX, BatchRule, Node, Reads, TensorType, apply, defop

Piece = tuple[int, int, int, int, int, int, int]


def _of_vertices(t: TensorType) -> TensorType:
    if t.domain != VERTEX or t.dtype != FLOAT or len(t.shape) != 1:
        raise ValueError("needs one row of floats for every vertex")
    return t


def _infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    return TensorType(FLOAT, (attrs["hidden"],), _of_vertices(types[0]).domain)


def _vjp(n: Node, d: Node) -> list[Node]:
    width, number = n.inputs[0].shape[0], n.attr("number")
    dx = apply("lstm_grad", n, apply("push", d), width=width, number=number)
    return [
        dx,
        *(
            apply("lstm_weight_grad", dx, of=i, shape=p.shape, number=number)
            for i, p in enumerate(n.inputs[1:], 1)
        ),
    ]


# (x, parameters...): h at every vertex.
defop(
    "lstm",
    infer=_infer,
    vjp=_vjp,
    rule=BatchRule.REDUCE,
    cost=100,
    reads=Reads.IN_ORDER,
    takes_weights=True,
)
# (h, cotangent of h): the cotangent of x. Those of the weights stay in its workspace.
defop(
    "lstm_grad",
    infer=lambda types, attrs: TensorType(FLOAT, (attrs["width"],), _of_vertices(types[1]).domain),
    rule=BatchRule.REDUCE,
    cost=100,
    reads=Reads.IN_ORDER,
)
# (cotangent of x): that of parameter ``of``, once lstm_grad has run.
defop(
    "lstm_weight_grad",
    infer=lambda types, attrs: TensorType(FLOAT, attrs["shape"], ONE),
    rule=BatchRule.REDUCE,
)


def lstm(
    x: Node, parameters: Sequence[Node], hidden: int, number: int, pieces: tuple[Piece, ...]
) -> Node:
    """h (hidden,) at every vertex of chains, from rows ``x`` of all vertices."""
    attrs = {"hidden": hidden, "number": number, "pieces": pieces}
    return apply("lstm", apply("push", x), *parameters, **attrs)
