"""The text of a kernel that walks many tasks of a loop: cuda/kernels/persistent.cuh with arguments.

A block computes one slice of the columns of every result, for all rows of a task, so that its next
instruction finds them without waiting for another block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from cavs.codegen.cuda import (
    Load,
    Shape,
    Store,
    grid_text,
    indented,
    parameters_of,
    shape_of,
    statements_of,
)
from cavs.codegen.cuda_prelude import HALF_PRELUDE, PRELUDE
from cavs.codegen.map import MapOp

Moved = TypeVar("Moved", Load, Store)
TILE_ROWS, CHUNK = 16, 16  # as in persistent.cuh
WARPS = 8
EIGHTS = 8  # times eight columns, whose sums a warp keeps at once
TASK = 5  # numbers per task in cuda/executor/persistent.cc: kind, its rows, its edge rows

# The class that multiplies, by precision; InTurn for float64.
PRODUCTS = {"float32": "InFloat32", "tf32": "InTf32", "bfloat16": "InBfloat16"}


@dataclass(frozen=True)
class Slices:
    """Cut of the columns of a result: every ``period`` of them alike, ``unit`` per block."""

    period: int
    unit: int


def slices_of(period: int, most: int) -> Slices:
    """Return slices for at most ``blocks``, with an even number of columns if possible."""
    unit = -(-period // most)
    step = 4 if period % 4 == 0 and unit > 2 else 2 if period % 2 == 0 else 1
    return Slices(period, -(-unit // step) * step)


@dataclass(frozen=True)
class Near:
    """The part of a buffer that a block keeps in shared memory: rows of ``stride`` from ``at`` on.

    It has the columns of the block only. first: as in ``Load``.
    """

    at: int
    stride: int
    slices: Slices
    first: str

    def load_or_store(self, x: Moved) -> Moved:
        """Return the operand in shared memory."""
        column = x.column // self.slices.period * self.slices.unit
        return replace(x, stride=self.stride, column=column, first=self.first, half=False)

    def address(self) -> str:
        """Return the address of column 0."""
        return f"near + {self.at} - slice * {self.slices.unit}"


@dataclass(frozen=True)
class Part:
    """An instruction in a kernel: its parameters, the function it needs, and how it is called."""

    parameters: tuple[str, ...]
    function: str
    call: str
    at_start: tuple[str, ...] = ()


def _named(prefix: str, parameters: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return declarations with new names, and these names."""
    split = [p.rpartition(" ") for p in parameters]
    names = [f"{prefix}{name}" for _, _, name in split]
    declared = tuple(f"{kind} {name}" for (kind, _, _), name in zip(split, names, strict=True))
    return declared, names


def _rows(edges: bool) -> str:
    return "edges" if edges else "vertices"


def map_part(
    number: int,
    edges: bool,
    loads: Sequence[Load],
    ops: Sequence[MapOp],
    stores: Sequence[Store],
    outer: int,
    inner: int,
    slices: Slices | None,
    near: Mapping[str, Near],
    real: str,
) -> Part:
    """Return a fused kernel; without ``slices`` all threads of the grid share its rows.

    near: parameters that are kept in shared memory instead.
    """
    name = f"map_{number}"
    parameters = parameters_of(loads, stores, ops, real)
    if slices is None:
        ends = "const long long begin = span.begin, end = span.end;"
        lines = [ends, *grid_text(loads, ops, stores, outer, inner, real)]
    else:
        lines = _sliced(loads, ops, stores, slices, real)
    own = ["const Span& span", "int slice", "long long vertex0", "long long edge0"]
    head = f"__device__ inline void {name}({', '.join([*own, *parameters])}) {{"
    text = "\n".join([head, *indented(lines), "}", ""])
    declared, names = _named(f"i{number}_", parameters)
    given = [p.rpartition(" ")[2] for p in parameters]
    addresses = [near[p].address() if p in near else x for p, x in zip(given, names, strict=True)]
    arguments = ", ".join([_rows(edges), "slice", "vertex0", "edge0", *addresses])
    return Part(declared, text, f"{name}({arguments});")


def _sliced(
    loads: Sequence[Load], ops: Sequence[MapOp], stores: Sequence[Store], of: Slices, real: str
) -> list[str]:
    loads = [replace(load, outer_stride=0) for load in loads]
    stores = [replace(store, outer_stride=0) for store in stores]
    vector = shape_of(loads, stores, 1, of.period, real).vector
    while of.unit % vector:
        vector //= 2
    s = statements_of(loads, ops, stores, Shape(1, of.period, vector, False), real)
    each = of.unit // vector
    return [
        f"const int first = slice * {of.unit};",
        f"const int items = span.size() * {each};",
        "for (int i = threadIdx.x; i < items; i += kThreads) {",
        f"  const int j = first + i % {each} * {vector};",
        f"  const long long r = span.begin + i / {each};",
        f"  if (j >= {of.period}) continue;",
        *indented([*s.row, *s.body, *s.written]),
        "}",
    ]


@dataclass(frozen=True)
class Result:
    """The target of an instruction: first as in ``Store``; near: in shared memory instead."""

    width: int
    half: bool
    first: str
    accumulate: bool = False
    near: Near | None = None

    def text(self, number: int) -> str:
        """Return the text of the target of instruction ``number``."""
        if self.near is not None:
            more = str(self.accumulate).lower()
            region = f"near + {self.near.at}, {self.near.stride}, {self.near.first}"
            return f"NearResult{{{region}, {more}}}"
        base = self.first or f"i{number}_base"
        flags = f"{str(self.half).lower()}, {str(self.accumulate).lower()}"
        return f"Result{{i{number}_out, i{number}_stride, {base}, {flags}}}"


_OUT = ("void* out", "long long stride", "long long base")


def product_part(
    number: int,
    edges: bool,
    widths: Sequence[int],
    first: Sequence[str],
    out: Result,
    slices: Slices,
    at: int | None,
    multiply: str,
) -> Part:
    """Return a product of sources of ``widths`` side by side.

    first: for each source, as in ``Load``. at: offset of its weights in shared memory, in values;
    None: they are read from memory. multiply: the class that multiplies.
    """
    kept = str(at is not None).lower()
    chunks, eights, each = product_shape(widths, out.width, slices)
    masks = [sum(1 << s for s, f in enumerate(first) if f == name) for name in ("vertex0", "edge0")]
    w = f"w{number}"
    columns = f"Columns{{{slices.period}, {slices.unit}, {out.width // slices.period}, "
    columns += f"slice * {slices.unit}}}"
    shared = "nullptr" if at is None else f"weights + {at}"
    start = [f"const Weights {w} = {{i{number}_w, {shared}, {out.width}, {chunks}, {columns}}};"]
    if at is not None:
        start.append(f"keep_weights(i{number}_a, {w}, weights + {at}, {eights});")
    declared, _ = _named(
        f"i{number}_", ["const __grid_constant__ Sources a", "const Packed* w", *_OUT]
    )
    begins = f"First{{{masks[0]}u, {masks[1]}u, vertex0, edge0}}"
    call = (
        f"product<{multiply}, {each}, {kept}>(i{number}_a, {begins}, {_rows(edges)}, {w}, "
        f"{eights}, {out.text(number)}, parts);"
    )
    return Part(declared, "", call, tuple(start))


def product_shape(widths: Sequence[int], n: int, slices: Slices) -> tuple[int, int, int]:
    """Chunks of the depth; groups of eight columns of a block; how many of these at a time."""
    chunks = sum(-(-width // CHUNK) for width in widths)
    eights = -(-(n // slices.period * slices.unit) // 8)
    times = -(-eights // EIGHTS)
    each = -(-eights // times)
    return chunks, each * times, each


def columns_part(
    number: int, function: str, edges: bool, first: str, out: Result, slices: Slices
) -> Part:
    """Some columns of rows by a ``function`` of persistent_chunk.cuh."""
    declared, _ = _named(f"i{number}_", ["const __grid_constant__ Rows in", *_OUT])
    rows = f"i{number}_in"
    columns = f"Columns{{{slices.period}, {slices.unit}, 1, slice * {slices.unit}}}"
    if first:
        shifted = f"Rows rows = {rows}; rows.base += {first};"
        text = f"{{ {shifted} {function}(rows, {_rows(edges)}, {columns}, {out.text(number)}); }}"
    else:
        text = f"{function}({rows}, {_rows(edges)}, {columns}, {out.text(number)});"
    return Part(declared, "", text)


def module_text(kernels: Sequence[str], real: str, half: bool) -> str:
    """Return a module of kernels of `kernel_text`."""
    heads = ["#define CAVS_DOUBLE"] if real == "double" else []
    heads += ['#include "persistent.cuh"', PRELUDE, *([HALF_PRELUDE] if half else [])]
    return "\n".join([*heads, *kernels])


def kernel_text(
    name: str,
    bodies: Sequence[Sequence[tuple[Part, bool]]],
    parts_at: int,
    near_at: int,
) -> str:
    """Return the kernel ``name``, launched with a block of 256 threads per slice.

    bodies: the instructions of each kind, and for each whether a barrier of the grid precedes it.
    parts_at, near_at: offsets in bytes of shared memory, after the weights, of parts of sums and of
    ``Near`` values. The parameters are the tasks, the numbers of the first and of all, the step
    between them, the counters of barriers, and those of the instructions.
    """
    parts = [part for body in bodies for part, _ in body]
    own = ["const int* __restrict__ tasks", "int first", "int count", "int step"]
    own += ["unsigned long long* arrived", *(p for part in parts for p in part.parameters)]
    lines = [
        "extern __shared__ unsigned char dynamic[];",
        "const int slice = blockIdx.x;",
        "GridBarrier barrier(arrived);",
        "Packed* weights = reinterpret_cast<Packed*>(dynamic);",
        f"real* parts = reinterpret_cast<real*>(dynamic + {parts_at});",
        f"real* near = reinterpret_cast<real*>(dynamic + {near_at});",
        *(line for part in parts for line in part.at_start),
        "for (int i = 0; i < count; ++i) {",
        f"  const int* task = tasks + (first + i * step) * {TASK};",
        "  const int kind = task[0];",
        "  const long long vertex0 = task[1], edge0 = task[3];",
        "  const Span vertices = {vertex0, task[2]}, edges = {edge0, task[4]};",
    ]
    for kind, body in enumerate(bodies):
        if not body:
            continue
        lines.append(f"  if (kind == {kind}) {{")
        for part, waits in body:
            lines += [f"    {'barrier.wait' if waits else '__syncthreads'}();", f"    {part.call}"]
        lines.append("  }")
    head = f'extern "C" __global__ void __launch_bounds__(256, 1) {name}({", ".join(own)}) {{'
    functions = [part.function for part in parts if part.function]
    return "\n".join(["namespace {", *functions, "}", head, *indented([*lines, "}"]), "}", ""])
