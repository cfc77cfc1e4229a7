"""Interned immutable nodes, and the operands that Python expressions compute with."""

from __future__ import annotations

import itertools
import math
import operator
import threading
from collections.abc import Iterable
from numbers import Real
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from cavs.config import is_whole
from cavs.errors import DTypeError, NumericsError, ShapeError, TraceError, user_line
from cavs.ir.interned import Interned
from cavs.ir.op import REGISTRY, Op, defop
from cavs.ir.order import toposort
from cavs.ir.refusals import Refusals, folding
from cavs.ir.slices import OF_CHILDREN, last_slice
from cavs.ir.types import ONE, Domain, StructureMismatch, TensorType

Array = npt.NDArray[Any]


_interned: Interned[Node] = Interned()  # several threads may trace at once
_serial = itertools.count()


class Operand(Refusals):
    """An operand of Python's operators: a value of the trace, or a parameter.

    Operators are looked up by name, so that this file imports none. ``==`` is identity, because
    equal nodes are one object; `cavs.ops.equal` compares values.
    """

    __slots__ = ()

    def __add__(self, other: Any) -> Node:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> Node:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> Node:
        return apply("sub", self, other)

    def __rsub__(self, other: Any) -> Node:
        return apply("sub", other, self)

    def __mul__(self, other: Any) -> Node:
        return apply("mul", self, other)

    def __rmul__(self, other: Any) -> Node:
        return apply("mul", other, self)

    def __truediv__(self, other: Any) -> Node:
        return apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Node:
        return apply("div", other, self)

    def __neg__(self) -> Node:
        return apply("neg", self)

    def __matmul__(self, other: Any) -> Node:
        return apply("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Node:
        return apply("matmul", other, self)

    def __pow__(self, exponent: float) -> Node:
        x = as_node(self)
        if not isinstance(exponent, Real) or isinstance(exponent, bool):
            raise TraceError(
                f"an exponent is a number, not {exponent!r:.60}",
                where=user_line(),
                hint="for a ** b with a above 0 write ops.exp(b * ops.log(a))",
            )
        if not -math.inf < exponent < math.inf:
            raise TraceError(
                f"an exponent is a finite number, not {exponent}",
                where=user_line(),
                hint="look where it is computed",
            )
        if exponent < 0:
            return 1.0 / x**-exponent
        if exponent == 0.5:
            return apply("sqrt", x)
        if exponent != int(exponent):
            return apply("power", x, exponent=float(exponent))
        result, factor, left = None, x, int(exponent)
        while left:  # by squaring
            if left & 1:
                result = factor if result is None else result * factor
            factor, left = factor * factor, left >> 1
        return x * 0.0 + 1.0 if result is None else result

    def __abs__(self) -> Node:
        return apply("abs", self)

    def __gt__(self, other: Any) -> Node:
        return apply("greater", self, other)

    def __lt__(self, other: Any) -> Node:
        return apply("greater", other, self)

    def __le__(self, other: Any) -> Node:
        return apply("greater_equal", other, self)

    def __ge__(self, other: Any) -> Node:
        return apply("greater_equal", self, other)

    def __iter__(self) -> NoReturn:
        if as_node(self).type.domain.base == "edge":
            raise TraceError(
                "values of the children cannot be iterated", where=user_line(), hint=OF_CHILDREN
            )
        super().__iter__()
        raise AssertionError

    def __getitem__(self, key: Any) -> Node:
        x = as_node(self)
        key = last_slice(x.type, key)
        if not x.shape:
            raise ShapeError(
                f"a scalar cannot be sliced: {x.type}",
                where=user_line(),
                hint="use it as it is: every row of it is one number",
            )
        size, ends = x.shape[-1], (key.start, key.stop)
        for end in ends:
            if isinstance(end, Refusals):
                operator.index(end)  # raises with the cure
            if end is not None and not is_whole(end):
                raise TraceError(
                    f"the bounds of a slice are whole numbers, not {end!r:.60}",
                    where=user_line(),
                    hint="sizes are known when a model is traced: write value[a:b], a and b ints",
                )
        start, stop, _ = key.indices(size)
        # Shapes are static, so an end outside is a mistake; Python would clip it.
        if start >= stop or any(b is not None and not -size <= b <= size for b in ends):
            shown = ":".join("" if b is None else str(b) for b in ends)
            raise ShapeError(
                f"[slice] {shown} of {size} elements "
                f"{'is empty' if start >= stop else 'reaches outside'}: {x.type}",
                where=user_line(),
                hint=f"bounds are 0 to {size}, or count from the end: -{size} to -1",
            )
        return apply("slice", x, start=start, stop=stop)

    @property
    def T(self) -> Node:
        """The transpose of a parameter matrix."""
        return apply("transpose", self)

    @folding
    def sum(self, axis: int | None = None, keepdims: bool = False) -> Node:
        """Return the sum over the children for edge values without ``axis``, else over a row.

        axis: of a row, counted from the last, -1. keepdims: keep the axis, with size 1.
        """
        x = as_node(self)
        if axis is None and x.type.domain.related:
            return _kept(apply("sum_children", x), axis, keepdims)
        if is_whole(axis) and -len(x.shape) <= axis < -1:
            total = sum_of_axis(x, len(x.shape) + axis)
            shape = (*x.shape[:axis], *x.shape[axis + 1 :])
            return total if keepdims else apply("reshape", total, shape=shape)
        return _kept(apply("sum_axis", x if axis == -1 else _flat(x, axis)), axis, keepdims)

    @folding
    def mean(self, axis: int | None = None, keepdims: bool = False) -> Node:
        """Return the sum divided by the number of children or elements; 0 without children."""
        x = as_node(self)
        if axis is None and x.type.domain.related:
            count = apply("maximum", count_children(x.type.domain), 1.0)
            return _kept(x.sum() / count, axis, keepdims)
        total = x.sum(axis, keepdims)
        return total / float(x.type.width if axis is None else x.shape[axis])

    @folding
    def max(self, axis: int | None = None, keepdims: bool = False) -> Node:
        """Return the maximum over the children (0 without any), the row or its last axis."""
        x = as_node(self)
        if axis is None and x.type.domain.related:
            return _kept(apply("max_children", x), axis, keepdims)
        return _kept(apply("max_axis", x if axis == -1 else _flat(x, axis)), axis, keepdims)

    @folding
    def min(self, axis: int | None = None, keepdims: bool = False) -> Node:
        """Return the minimum, otherwise like `max`."""
        return -(-self).max(axis, keepdims)

    @folding
    def prod(self, axis: int | None = None) -> Node:
        """Return the product over the children of a value of edges; 1 without children."""
        x = as_node(self)
        if axis is not None or not x.type.domain.related:
            raise ShapeError(
                f"[prod] is over the children of a vertex, not inside a row: {x.type}",
                where=user_line(),
                hint="multiply columns of a row, x[..., 0:1] * x[..., 1:2]; of positive numbers "
                "ops.exp(ops.log(x).sum(-1)) is the product",
            )
        return apply("product_children", x)

    @folding
    def softmax(self, axis: int | None = None) -> Node:
        """Return the softmax over the children for edge values, else over the last axis.

        axis: -1 for the last axis of edge values.
        """
        x = as_node(self)
        if axis not in (None, -1):
            _flat(x, axis)
        if axis is not None or not x.type.domain.related:
            shifted = apply("exp", x - apply("stop_gradient", x.max(-1, keepdims=True)))
            return shifted / shifted.sum(-1, keepdims=True)
        weight = apply("exp", x - apply("stop_gradient", x.max()))
        return weight / weight.sum()


class Node(Operand):
    """A value: an operator applied to inputs. Equal nodes are one object.

    Python's operators create further nodes, so user code computes with nodes.
    """

    __slots__ = (
        "__weakref__",
        "attrs",
        "checked",
        "inputs",
        "op",
        "placed",
        "serial",
        "settled",
        "type",
        "where",
    )

    op: Op
    inputs: tuple[Node, ...]
    attrs: tuple[tuple[str, Any], ...]
    type: TensorType
    where: str
    serial: int
    checked: bool  # verified by itself
    settled: object  # the rules, if any, of which none fits
    placed: int | None  # number of terms of a sum that are columns among zeros, once counted

    def attr(self, name: str) -> Any:
        """Return the value of attribute ``name``."""
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(name)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.type.shape

    def at(self, domain: Domain) -> Node:
        """Return the value at the vertices of ``domain``, each of which reads it as it is."""
        if self.type.domain.base == "vertex":
            return self
        return apply("broadcast", self, shape=self.shape, domain=domain)

    def __repr__(self) -> str:
        return f"<{self.op.name} {self.type}>"


def _kept(reduced: Node, axis: int | None, keepdims: bool) -> Node:
    if not keepdims:
        return reduced
    if axis != -1:
        raise ShapeError(
            f"keepdims with axis {axis}", where=user_line(), hint="it is for the last axis: axis=-1"
        )
    return apply("keep_axis", reduced)


def _flat(x: Node, axis: int | None) -> Node:
    if axis is not None:
        without = "the children" if x.type.domain.base == "edge" else "all of them"
        raise ShapeError(
            f"axis {axis} of a value of shape {list(x.shape)} cannot be reduced",
            where=user_line(),
            hint=f"reduce the last axis with axis=-1, or {without} without axis; .sum() and "
            ".mean() take other axes of a row, too, counted from its last: axis=-2",
        )
    return x if len(x.shape) == 1 else apply("reshape", x, shape=(x.type.width,))


def sum_of_axis(x: Node, axis: int) -> Node:
    """Return the sum over an axis before the last, which becomes 1, by adding slices of the row."""
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    inner, outer = math.prod(after), math.prod(before)
    shape = (size * inner,) if outer == 1 else (outer, size * inner)
    flat = apply("reshape", x, shape=shape)
    total = flat[0:inner]
    for i in range(1, size):
        total = total + flat[i * inner : (i + 1) * inner]
    return apply("reshape", total, shape=(*before, 1, *after))


def names_of(nodes: Iterable[Node]) -> dict[Node, str]:
    """Return a name for every node: %0, %1, ... in order; parameters have their own."""
    names: dict[Node, str] = {}
    for node in nodes:
        own = node.attr("parameter").name if node.op.name == "parameter" else ""
        names[node] = own or f"%{len(names)}"
    return names


def apply(name: str, /, *inputs: Any, **attrs: Any) -> Node:
    """Apply the operator ``name``; numbers become constants.

    Raises ShapeError, DTypeError or TraceError with the equation and the user's line.
    """
    op = REGISTRY[name]
    nodes = tuple(as_node(x) for x in inputs)
    try:
        tensor_type = op.infer([n.type for n in nodes], attrs)
    except (TypeError, ValueError) as error:
        kind: type[TraceError] = DTypeError if isinstance(error, TypeError) else ShapeError
        if isinstance(error, StructureMismatch):
            kind = TraceError
        reason, *cures = error.args or ("",)
        what, operands = _mismatch(name, nodes, reason)
        hint = "; ".join(filter(None, (operands, *cures)))
        raise kind(what, where=user_line(), hint=hint) from None
    return make(op, nodes, attrs, tensor_type)


def _mismatch(name: str, nodes: tuple[Node, ...], reason: str) -> tuple[str, str]:
    """Return the types and equation of a refused operator, and the origin of its operands."""
    names = names_of(toposort(nodes))
    domains = {n.type.domain for n in nodes if n.op.name not in ("parameter", "constant")}
    rows = len(domains) > 1  # name domains only where they differ
    types = [str(n.type) if rows else str(n.type).split("@")[0] for n in nodes]
    head, _, sizes = reason.partition(" (")
    symbol = REGISTRY[name].symbol
    equation = (f" {symbol} " if symbol else ", ").join(types) + (f" ({sizes}" if sizes else "")
    what = f"[{name}] {head}: {equation}\n"
    what += f"  in %{len(names)} = {name} {', '.join(names[n] for n in nodes)}"
    told = []
    for n in dict.fromkeys(nodes):
        shape = list(n.shape)
        if n.op.name == "parameter":
            told.append(f"{names[n]} is a parameter of shape {shape}")
        elif n.op.name == "feature":
            told.append(f"{names[n]} is feature {n.attr('name')!r}, {shape} of {n.type.dtype}")
        elif n.op.name != "constant":
            told.append(
                f"{names[n]} is {n.op.name} {shape}" + (f" from {n.where}" if n.where else "")
            )
    return what, "; ".join(told)


def make(
    op: Op,
    inputs: tuple[Node, ...],
    attrs: dict[str, Any] | tuple[tuple[str, Any], ...],
    tensor_type: TensorType,
    where: str | None = None,
) -> Node:
    """Return the interned node, without inference. attrs: those of a node, or by name."""
    named = tuple(sorted(attrs.items())) if isinstance(attrs, dict) else attrs  # names are unique
    key = op.name, inputs, named, tensor_type
    with _interned.lock:
        found = _interned.get(key)
        if found is not None:
            return found
        node = Node.__new__(Node)
        node.op, node.inputs, node.attrs, node.type = op, inputs, named, tensor_type
        if where is None:
            where = _origin.lines[-1] if _origin.lines else user_line()
        node.where = where
        node.serial = next(_serial)
        node.checked, node.settled, node.placed = False, None, None
        _interned.put(key, node)
        return node


def next_serial() -> int:
    """Return a number below those of all nodes created from now on."""
    return next(_serial)


class _Origin(threading.local):
    """The user's lines that passes create nodes for on this thread, innermost last."""

    def __init__(self) -> None:
        self.lines: list[str] = []


_origin = _Origin()


class origin:
    """Attribute the nodes created inside to the user's line ``where``. The context gives the list
    of lines, whose last one may be changed."""

    __slots__ = ("where",)

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> list[str]:
        _origin.lines.append(self.where)
        return _origin.lines

    def __exit__(self, *error: object) -> None:
        _origin.lines.pop()


def as_node(value: Any) -> Node:
    """Return a Node as it is, and a Python or NumPy number as a constant.

    Raises TraceError for anything else.
    """
    if isinstance(value, Node):
        return value
    as_value = getattr(value, "as_node", None)
    if as_value is not None:
        return as_value()  # type: ignore[no-any-return]
    if isinstance(value, (bool, np.bool_)):
        raise TraceError(
            f"a traced value is combined with {value}, which no traced comparison returns",
            where=user_line(),
            hint="compare by <, <=, >, >= or cavs.ops.equal(a, b); == asks if both are one object",
        )
    number = isinstance(value, (int, float, np.integer, np.floating))
    if number or (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iuf"):
        try:
            found = float(value)
        except OverflowError:  # an int of any length
            found = math.nan
        if math.isnan(found):  # infinities are valid: they mask
            raise NumericsError(
                f"a traced value is combined with {value!r:.60}, so every result is NaN",
                where=user_line(),
                hint="look where the number is computed",
            )
        return constant(found)
    array = isinstance(value, (np.ndarray, list, tuple))
    raise TraceError(
        f"a {type(value).__name__} cannot take part in a vertex function: {value!r:.60}",
        where=user_line(),
        hint="hold an array as cavs.Parameter(shape, init=array, trainable=False)"
        if array
        else "use numbers, parameters, features and what operators return",
    )


def count_children(domain: Domain) -> Node:
    """Return the number of children of each vertex of the structure of ``domain``.

    For the pairs of a link: the number of vertices that each vertex reads.
    """
    at = domain.of_vertices
    if domain.base == "pair":
        return apply("sum_children", apply("broadcast", 1.0, shape=(), domain=domain))
    return apply("num_children", domain=at) if at.structure else apply("num_children")


def constant(value: float, shape: tuple[int, ...] = ()) -> Node:
    """Return the same number everywhere; ``shape`` is that of a row."""
    return make(REGISTRY["constant"], (), {"value": value}, TensorType("f32", shape, ONE))


defop(
    "constant",
    infer=lambda types, attrs: TensorType("f32", (), ONE),
    evaluate=lambda node: np.full(node.shape, node.attr("value")),
    expr=lambda e, *, value: e.constant(value),
    cost=0,
    total=True,
    view=True,
    program_input=True,
)
