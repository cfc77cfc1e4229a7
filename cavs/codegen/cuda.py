"""Fused elementwise kernels as CUDA C text.

The operations are those of the block interpreter (cavs.codegen.map), made from the one ``expr`` of
every operator; here each becomes a statement on one element. A thread has an element, or, where the
kernel reduces the last axis, one row of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cavs.codegen.map import OpTuple, reads_of

OPERATIONS = {
    "copy": "{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "max": "{0} > {1} || {0} != {0} ? {0} : {1}",  # NaN goes through, unlike in fmaxf
    "min": "{0} < {1} || {0} != {0} ? {0} : {1}",
    "neg": "-{0}",
    "abs": "fabsf({0})",
    "exp": "expf({0})",
    "log": "logf({0})",
    "tanh": "tanhf({0})",
    "sigmoid": "1.0f / (1.0f + expf(-{0}))",
    "sqrt": "sqrtf({0})",
    "greater": "{0} > {1} ? 1.0f : 0.0f",
    "greater_equal": "{0} >= {1} ? 1.0f : 0.0f",
    "equal": "{0} == {1} ? 1.0f : 0.0f",
    "select": "{0} != 0.0f ? {1} : {2}",
    "fma": "fmaf({0}, {1}, {2})",
}

# The numbers of csrc/kernels/isa_uniform.h.
UNIFORM = """\
__device__ inline unsigned mix(unsigned x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}
__device__ inline float uniform(unsigned long long seed, unsigned long long step, unsigned stream,
                                unsigned row, unsigned column) {
  const unsigned words[] = {(unsigned)seed, (unsigned)(seed >> 32), (unsigned)step,
                            (unsigned)(step >> 32), stream, row};
  unsigned key = 0;
  for (int i = 0; i < 6; ++i) key = mix((key ^ words[i]) + 0x9e3779b9u);
  return (mix(mix(key ^ column) + mix(key + 0x85ebca6bu)) >> 8) * 5.9604644775390625e-8f;
}
"""


@dataclass(frozen=True)
class Load:
    """How operand ``n``, parameter ``xn``, is read: column ``column`` of rows ``stride`` apart.

    rows: "self"; "one", the first for all; "index", row xn_index[r], zeros where that is negative;
    "segment_sum", the sum of rows [xn_offsets[r], xn_offsets[r + 1]), or, if ``indexed``, of those
    that xn_index names there. outer_stride: elements from block to block of a row. scalar: one
    element a block.
    """

    stride: int
    column: int = 0
    rows: str = "self"
    indexed: bool = False
    outer_stride: int = 0
    scalar: bool = False


@dataclass(frozen=True)
class Store:
    """Result ``n``, parameter ``yn``: ``register`` is written, or its sum or max over a block."""

    register: int
    stride: int
    column: int = 0
    outer_stride: int = 0
    mode: str = "write"


def literal(value: float) -> str:
    """A number as a float constant."""
    x = float(np.float32(value))
    if np.isfinite(x):
        return f"{x!r}f"
    return "NAN" if np.isnan(x) else "INFINITY" if x > 0 else "-INFINITY"


def _columns(column: int, outer_stride: int, inner: bool) -> str:
    """The column that element j of block o is in."""
    terms = [f"{outer_stride} * o"] if outer_stride else []
    terms += ["j"] if inner else []
    terms += [str(column)] if column or not terms else []
    return " + ".join(terms)


def _load(n: int, load: Load) -> list[str]:
    column = _columns(load.column, load.outer_stride, not load.scalar)

    def at(row: str) -> str:
        return f"x{n}[{row} * {load.stride}LL + {column}]"

    if load.rows == "one":
        return [f"const float l{n} = x{n}[{column}];"]
    if load.rows == "self":
        return [f"const float l{n} = {at('r')};"]
    if load.rows == "index":
        index = f"x{n}_index[r]"
        return [f"const float l{n} = {index} < 0 ? 0.0f : {at(index)};"]
    each = f"for (int k = x{n}_offsets[r]; k < x{n}_offsets[r + 1]; ++k)"
    index = f"x{n}_index[k]"
    term = f"{index} < 0 ? 0.0f : {at(index)}" if load.indexed else at("k")
    return [f"float l{n} = 0.0f;", f"{each} l{n} += {term};"]


def _parameters(loads: Sequence[Load], stores: Sequence[Store], random: bool) -> str:
    names = ["long long begin", "long long end"]
    for n, load in enumerate(loads):
        names.append(f"const float* x{n}")
        if load.rows == "segment_sum":
            names.append(f"const int* x{n}_offsets")
        if load.rows == "index" or load.indexed:
            names.append(f"const int* x{n}_index")
    names += [f"float* y{n}" for n in range(len(stores))]
    if random:
        names += ["unsigned long long seed", "unsigned long long step", "const int* row_ids"]
    return ", ".join(names)


def kernel_text(
    name: str,
    loads: Sequence[Load],
    ops: Sequence[OpTuple],
    stores: Sequence[Store],
    outer: int,
    inner: int,
) -> str:
    """A ``__global__`` function over rows [begin, end) of outer x inner elements, any grid.

    ops: over registers, the first of which hold the loads, as ``MapProgram.finish`` gives them.
    Pointers are those of row 0. A kernel that draws random numbers takes seed, step and the
    ``row_ids`` that number its rows, and needs ``UNIFORM`` before it.
    """
    if outer == 1:  # there is no block number o then
        loads = [replace(load, outer_stride=0) for load in loads]
        stores = [replace(store, outer_stride=0) for store in stores]
    body = [line for n, load in enumerate(loads) for line in _load(n, load)]
    value = {n: f"l{n}" for n in range(len(loads))}
    for n, op in enumerate(ops):
        code, dst, imm = op[0], op[1], op[5]
        if code == "constant":
            value[dst] = literal(imm)
            continue
        if code == "uniform":
            column = _columns(0, inner if outer > 1 else 0, True)
            made = f"uniform(seed, step, {int(imm)}u, row_ids[r], {column})"
        else:
            made = OPERATIONS[code].format(*(value[r] for r in reads_of(op)))
        body.append(f"const float t{n} = {made};")
        value[dst] = f"t{n}"
    before, after = [], []
    for n, store in enumerate(stores):
        x = value[store.register]
        written = store.mode == "write"
        column = _columns(store.column, store.outer_stride, written)
        place = f"y{n}[r * {store.stride}LL + {column}]"
        if written:
            body.append(f"{place} = {x};")
            continue
        start = "0.0f" if store.mode == "sum" else "-INFINITY"
        more = "{0} + {1}" if store.mode == "sum" else OPERATIONS["max"]
        before.append(f"float s{n} = {start};")
        body.append(f"s{n} = {more.format(f's{n}', x)};")
        after.append(f"{place} = s{n};")
    each = outer if after else outer * inner
    lines = [f"const long long r = begin + i / {each};"]
    if after:
        lines += [f"const int o = i % {each};"] if outer > 1 else []
        lines += [*before, f"for (int j = 0; j < {inner}; ++j) {{"]
        lines += [*(f"  {line}" for line in body), "}", *after]
    else:
        lines += [f"const int o = i % {each} / {inner};"] if outer > 1 else []
        lines += [f"const int j = i % {inner};", *body]
    random = any(op[0] == "uniform" for op in ops)
    return "\n".join(
        [
            f'extern "C" __global__ void {name}({_parameters(loads, stores, random)}) {{',
            "  const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;",
            "  const long long width = (long long)gridDim.x * blockDim.x;",
            f"  for (long long i = first; i < (end - begin) * {each}; i += width) {{",
            *(f"    {line}" for line in lines),
            "  }",
            "}",
            "",
        ]
    )
