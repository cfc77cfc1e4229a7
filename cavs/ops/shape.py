"""Operators that move elements inside a row."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cavs.config import is_whole
from cavs.errors import FAULT, ShapeError, TraceError, user_line
from cavs.ir import (
    FLOAT,
    Node,
    Operand,
    TensorType,
    apply,
    as_node,
    defop,
    join_domains,
    need_floats,
)

_INTEGERS = (
    "integers are read as they were given: make each a separate feature, one integer per row"
)


def _slice_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    (t,) = types
    need_floats(types, _INTEGERS)
    size = t.shape[-1] if t.shape else 0
    start, stop = attrs["start"], attrs["stop"]
    if not 0 <= start < stop <= size:
        raise ValueError(f"slice {start}:{stop} of {size} elements")
    return TensorType(t.dtype, (*t.shape[:-1], stop - start), t.domain)


defop(
    "slice",
    infer=_slice_infer,
    vjp=lambda n, d: (apply("pad", d, start=n.attr("start"), size=n.inputs[0].shape[-1]),),
    evaluate=lambda n, x: x[..., n.attr("start") : n.attr("stop")],
    cost=0,
    view=True,
    rearranges=True,
    linear_in=(0,),
)


def _pad_evaluate(node: Node, x: Any) -> Any:
    result = np.zeros(node.shape, dtype=x.dtype)
    result[..., node.attr("start") : node.attr("start") + x.shape[-1]] = x
    return result


# The transpose of slice: zeros around the input on the last axis.
defop(
    "pad",
    infer=lambda types, attrs: TensorType(
        FLOAT, (*types[0].shape[:-1], attrs["size"]), types[0].domain
    ),
    vjp=lambda n, d: (d[n.attr("start") : n.attr("start") + n.inputs[0].shape[-1]],),
    evaluate=_pad_evaluate,
    cost=0,
    rearranges=True,
    linear_in=(0,),
)


def _concat_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    if any(not t.shape for t in types):
        raise ValueError("scalars cannot be concatenated", "give each an axis: ops.reshape(x, 1)")
    need_floats(types, _INTEGERS)
    axis = attrs["axis"]
    heads = {(*t.shape[:-2], t.shape[-1]) if axis == -2 else t.shape[:-1] for t in types}
    if len(heads) > 1:
        raise ValueError("sizes differ outside the concatenated axis")
    total = sum(t.shape[axis] for t in types)
    first = types[0].shape
    shape = (*first[:-1], total) if axis == -1 else (*first[:-2], total, first[-1])
    return TensorType(FLOAT, shape, join_domains([t.domain for t in types]))


def _concat_vjp(node: Node, d: Node) -> list[Node]:
    if node.attr("axis") != -1:
        raise ShapeError("the gradient of a concatenation of rows is not defined", hint=FAULT)
    result, start = [], 0
    for x in node.inputs:
        result.append(d[start : start + x.shape[-1]])
        start += x.shape[-1]
    return result


defop(
    "concat",
    infer=_concat_infer,
    vjp=_concat_vjp,
    evaluate=lambda n, *xs: np.concatenate(xs, n.attr("axis")),
    cost=0,
    view=True,
    rearranges=True,
    jointly_linear=True,
)


def _reshape_infer(types: Sequence[TensorType], attrs: dict[str, Any]) -> TensorType:
    need_floats(types, _INTEGERS)
    result = TensorType(FLOAT, attrs["shape"], types[0].domain)
    if result.width != types[0].width:
        raise ValueError(f"{types[0].width} elements do not fill {list(attrs['shape'])}")
    if min(attrs["shape"], default=1) < 1:
        raise ValueError(f"every size of {list(attrs['shape'])} must be at least 1")
    return result


defop(
    "reshape",
    infer=_reshape_infer,
    vjp=lambda n, d: (apply("reshape", d, shape=n.inputs[0].shape),),
    evaluate=lambda n, x: np.reshape(x, n.shape),
    cost=0,
    view=True,
    same_row=True,
    linear_in=(0,),
)
# (...,) -> (..., 1), so that a reduced axis broadcasts again.
defop(
    "keep_axis",
    infer=lambda types, attrs: TensorType(types[0].dtype, (*types[0].shape, 1), types[0].domain),
    vjp=lambda n, d: (apply("reshape", d, shape=n.inputs[0].shape),),
    evaluate=lambda n, x: np.reshape(x, n.shape),
    cost=0,
    view=True,
    same_row=True,
    linear_in=(0,),
)


def _is_list(values: Any) -> bool:
    return isinstance(values, Sequence) or (isinstance(values, np.ndarray) and values.ndim > 0)


def _whole_numbers(values: Any, name: str, what: str) -> list[int]:
    """Return one number or several as ints; whole floats are accepted, as sizes are often
    quotients.

    ShapeError for anything else.
    """
    found = list(values) if _is_list(values) else [values]
    if not all(
        is_whole(s) or (isinstance(s, float | np.floating) and float(s).is_integer()) for s in found
    ):
        raise ShapeError(
            f"[{name}] takes {what}, as whole numbers, not {values!r:.60}",
            where=user_line(),
            hint=f"write ops.{name}(x, 4) or ops.{name}(x, [2, 2])",
        )
    return [int(s) for s in found]


def concat(values: Sequence[Any], *more: object) -> Node:
    """Concatenate rows on their last axis: shapes (..., a), (..., b) give (..., a + b)."""
    if isinstance(values, Operand) or more or not isinstance(values, Iterable):
        found = f", found {values!r:.60}" if not more else ""
        raise TraceError(
            f"concat takes one list{found}", where=user_line(), hint="write ops.concat([a, b])"
        )
    nodes = [as_node(v) for v in values]
    if not nodes:
        raise ShapeError("concat of no values", where=user_line(), hint="pass at least one value")
    return nodes[0] if len(nodes) == 1 else apply("concat", *nodes, axis=-1)


def split(value: Any, n: int | Sequence[int]) -> list[Node]:
    """Split the last axis into ``n`` equal parts, or into parts of the sizes ``n``."""
    x = as_node(value)
    if not x.shape:
        raise ShapeError(
            f"[split] a scalar has no axis to cut: {x.type}",
            where=user_line(),
            hint="use it as it is: every row of it is one number",
        )
    size = x.shape[-1]
    parts = _whole_numbers(n, "split", "a number of parts, or the sizes of all")
    if not _is_list(n):
        (count,) = parts
        if count < 1 or size % count:
            fitting = ", ".join(str(k) for k in range(1, size + 1) if size % k == 0)
            raise ShapeError(
                f"[split] {size} elements do not divide by {n}: {x.type}",
                where=user_line(),
                hint=f"there can be {fitting} equal parts; a list of sizes cuts unequal ones",
            )
        parts = [size // count] * count
    if min(parts, default=0) < 1:
        raise ShapeError(
            f"[split] sizes {parts} of {size} elements: {x.type}",
            where=user_line(),
            hint="every size is at least 1",
        )
    if sum(parts) != size:
        raise ShapeError(
            f"[split] sizes {parts} add up to {sum(parts)}, not {size}: {x.type}",
            where=user_line(),
            hint="the sum of the sizes is that of the last axis",
        )
    ends = [0, *itertools.accumulate(parts)]
    return [x[begin:end] for begin, end in itertools.pairwise(ends)]


def reshape(value: Any, shape: int | Sequence[int]) -> Node:
    """Return the same elements of a row in another shape (row-major); one axis may be -1, the rest.

    ShapeError where the elements do not fill it.
    """
    x = as_node(value)
    sizes = _whole_numbers(shape, "reshape", "the sizes of all axes")
    if sizes.count(-1) == 1:
        others = -math.prod(sizes)
        sizes[sizes.index(-1)] = x.type.width // others if others > 0 else 0
    return apply("reshape", x, shape=tuple(sizes))
