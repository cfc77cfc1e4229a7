"""Matrices assembled from parameters, packed once per update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cavs.compiler.program import Weight
from cavs.errors import CompileError
from cavs.ir import Node


@dataclass(frozen=True)
class _Part:
    param: int
    offset: int
    row_stride: int
    col_stride: int
    rows: int
    cols: int
    k0: int
    n0: int


def _parts(w: Node, parameters: Sequence[str]) -> list[_Part]:
    name = w.op.name
    if name == "parameter":
        rows, cols = w.shape
        index = list(parameters).index(w.attr("parameter").name)
        return [_Part(index, 0, cols, 1, rows, cols, 0, 0)]
    if name == "transpose":
        return [
            replace(
                p,
                row_stride=p.col_stride,
                col_stride=p.row_stride,
                rows=p.cols,
                cols=p.rows,
                k0=p.n0,
                n0=p.k0,
            )
            for p in _parts(w.inputs[0], parameters)
        ]
    if name == "slice":
        start, stop = w.attr("start"), w.attr("stop")
        result = []
        for p in _parts(w.inputs[0], parameters):
            low, high = max(start - p.n0, 0), min(stop - p.n0, p.cols)
            if low < high:
                result.append(
                    replace(
                        p,
                        offset=p.offset + low * p.col_stride,
                        cols=high - low,
                        n0=p.n0 + low - start,
                    )
                )
        return result
    if name == "rows":
        start, stop = w.attr("start"), w.attr("stop")
        result = []
        for p in _parts(w.inputs[0], parameters):
            low, high = max(start - p.k0, 0), min(stop - p.k0, p.rows)
            if low < high:
                offset, k0 = p.offset + low * p.row_stride, p.k0 + low - start
                result.append(replace(p, offset=offset, rows=high - low, k0=k0))
        return result
    if name == "concat":
        result, at = [], 0
        rowwise = w.attr("axis") == -2
        for x in w.inputs:
            for p in _parts(x, parameters):
                result.append(replace(p, k0=p.k0 + at) if rowwise else replace(p, n0=p.n0 + at))
            at += x.shape[0] if rowwise else x.shape[1]
        return result
    raise CompileError(
        f"the right side of a product is made by {name}",
        where=w.where,
        hint="use parameters, their transposes, slices and concatenations",
    )


def weight_of(w: Node, parameters: Sequence[str]) -> Weight:
    """The packed matrix for the one-row matrix ``w`` of shape (k, n)."""
    k, n = w.shape
    pieces = [
        (p.param, p.offset, p.row_stride, p.col_stride, p.rows, p.cols, p.k0, p.n0)
        for p in _parts(w, parameters)
    ]
    return Weight(k, n, pieces)
