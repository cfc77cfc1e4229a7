"""Matrices assembled from parameters, packed once per update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cavs.compiler.program import Weight, WeightPiece
from cavs.errors import CompileError
from cavs.ir import Node


class _Part(NamedTuple):
    param: int
    offset: int
    row_stride: int
    col_stride: int
    rows: int
    cols: int
    k0: int
    n0: int


def _transposed(parts: list[_Part]) -> list[_Part]:
    return [
        p._replace(
            row_stride=p.col_stride,
            col_stride=p.row_stride,
            rows=p.cols,
            cols=p.rows,
            k0=p.n0,
            n0=p.k0,
        )
        for p in parts
    ]


def _columns(parts: list[_Part], start: int, stop: int) -> list[_Part]:
    result = []
    for p in parts:
        low, high = max(start - p.n0, 0), min(stop - p.n0, p.cols)
        if low < high:
            offset, n0 = p.offset + low * p.col_stride, p.n0 + low - start
            result.append(p._replace(offset=offset, cols=high - low, n0=n0))
    return result


def _parts(w: Node, parameters: Sequence[str]) -> list[_Part]:
    name = w.op.name
    if name == "parameter":
        rows, cols = w.shape
        index = list(parameters).index(w.attr("parameter").name)
        return [_Part(index, 0, cols, 1, rows, cols, 0, 0)]
    if name == "transpose":
        return _transposed(_parts(w.inputs[0], parameters))
    if name == "slice":
        return _columns(_parts(w.inputs[0], parameters), w.attr("start"), w.attr("stop"))
    if name == "rows":
        flipped = _transposed(_parts(w.inputs[0], parameters))
        return _transposed(_columns(flipped, w.attr("start"), w.attr("stop")))
    if name == "concat":
        result, at = [], 0
        rowwise = w.attr("axis") == -2
        for x in w.inputs:
            for p in _parts(x, parameters):
                result.append(p._replace(k0=p.k0 + at) if rowwise else p._replace(n0=p.n0 + at))
            at += x.shape[0] if rowwise else x.shape[1]
        return result
    raise CompileError(
        f"the right side of a product is computed by {name}",
        where=w.where,
        hint="use parameters, their transposes, slices and concatenations",
    )


def weight_of(w: Node, parameters: Sequence[str]) -> Weight:
    """Return the packed matrix for the one-row matrix ``w`` of shape (k, n)."""
    k, n = w.shape
    pieces = [
        WeightPiece(p.param, p.offset, p.row_stride, p.col_stride, p.rows, p.cols, p.k0, p.n0)
        for p in _parts(w, parameters)
    ]
    return Weight(k, n, pieces)
