"""Fused elementwise kernels as CUDA C text.

The operations are those of the block interpreter (cavs.codegen.map), recorded from the ``expr`` of
every operator; here each becomes a statement on one element. A thread computes up to 16 bytes of
neighbouring elements. Where the kernel reduces the last axis, a group of up to 32 lanes shares one
row of it and adds it up in a fixed order. Rows are numbered in 64 bits, everything inside a row in
32. Every grid gives the same bits. Operands may be stored in bfloat16; registers have the type of
the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cavs.codegen.map import MapOp, reads_of
from cavs.ops.primitives import PRIMITIVES

BLOCK = 256  # threads
_WORD = 16  # bytes that a thread moves at once
_LANES = 32
_REGISTERS = 96  # registers of a thread for loaded values, out of 128
_ITEMS = 2**31 - 1  # work items that fit into 32 bits


@dataclass(frozen=True)
class Load:
    """Access to operand ``n``, parameter ``xn``: column ``column`` of rows at distance ``stride``.

    rows: "self"; "one", the first for all; "index", row xn_index[r], zeros if that is negative;
    "segment_sum", the sum of rows [xn_offsets[r], xn_offsets[r + 1]), or, if ``indexed``, of the
    rows that xn_index has there. outer_stride: elements from block to block of a row. scalar: one
    element per block. aligned: xn is a multiple of 16 bytes. half: stored in bfloat16. first: the
    variable that has the number of the row at xn, if that is not row 0.
    """

    stride: int
    column: int = 0
    rows: str = "self"
    indexed: bool = False
    outer_stride: int = 0
    scalar: bool = False
    aligned: bool = True
    half: bool = False
    first: str = ""


@dataclass(frozen=True)
class Store:
    """Result ``n``, parameter ``yn``, 16 bytes aligned: a register, or its sum or max over a block.

    mode: "write", "sum" or "max". half: stored in bfloat16, only of mode "write". first: as of
    ``Load``.
    """

    register: int
    stride: int
    column: int = 0
    outer_stride: int = 0
    mode: str = "write"
    half: bool = False
    first: str = ""


def literal(value: float, real: str = "float") -> str:
    """A number as a constant of a type."""
    single = real == "float"
    x = float(np.float32(value)) if single else float(value)
    if np.isfinite(x):
        return f"{x!r}{'f' * single}"
    # By its bits: NVRTC has no header, and no builtin, that names it.
    if single:
        made = f"__int_as_float({0x7FC00000 if np.isnan(x) else 0x7F800000:#x})"
    else:
        bits = 0x7FF8000000000000 if np.isnan(x) else 0x7FF0000000000000
        made = f"__longlong_as_double({bits:#x}LL)"
    return ("-" if x < 0 else "") + made


def _power_of_two(most: int, *counts: int) -> int:
    """Return the largest power of two up to ``most`` that divides every count."""
    while any(c % most for c in counts):
        most //= 2
    return most


@dataclass(frozen=True)
class Shape:
    """Division of the work of a kernel: a thread computes ``vector`` elements of a block.

    If the kernel reduces, ``lanes`` threads share a block.
    """

    outer: int
    inner: int
    vector: int
    reduces: bool

    @property
    def lanes(self) -> int:
        """Number of threads that share a block, a power of two; 1 without a reduction."""
        lanes = 1
        while self.reduces and lanes < min(_LANES, -(-self.inner // self.vector)):
            lanes *= 2
        return lanes

    @property
    def items(self) -> int:
        """Number of work items of a row: blocks or vectors."""
        return self.outer * (1 if self.reduces else self.inner // self.vector)

    @property
    def threads(self) -> int:
        """Number of threads that compute a row."""
        return self.items * self.lanes


def _bytes(real: str, half: bool = False) -> int:
    return 2 if half else 4 if real == "float" else 8


def shape_of(
    loads: Sequence[Load], stores: Sequence[Store], outer: int, inner: int, real: str = "float"
) -> Shape:
    """Return the division of rows of outer x inner elements."""
    half = any(x.half for x in loads) or any(x.half for x in stores)
    vector = _power_of_two(_WORD // _bytes(real, half), inner)
    while vector > 1 and len(loads) * vector * _bytes(real) > 4 * _REGISTERS:
        vector //= 2
    return Shape(outer, inner, vector, any(store.mode != "write" for store in stores))


def _word(vector: int, real: str, x: Load | Store) -> int:
    """Return how many elements of a vector move at once."""
    stride = 0 if isinstance(x, Load) and x.rows == "one" else x.stride
    most = min(vector, _WORD // _bytes(real, x.half))
    return _power_of_two(most, stride, x.column, x.outer_stride)


def _address(array: str, row: str, x: Load | Store, block: bool) -> str:
    """Return the address of a thread's elements, or of the only element of a ``block``."""
    row = f"({row} - {x.first})" if x.first else row
    terms = [array] if row == "0" or x.stride == 0 else [array, f"{row} * {x.stride}LL"]
    terms += [f"{x.outer_stride} * o"] if x.outer_stride else []
    terms += [] if block else ["j"]
    terms += [str(x.column)] if x.column else []
    return " + ".join(terms)


def _load(n: int, load: Load, shape: Shape, real: str) -> tuple[list[str], list[str]]:
    """Return the statements of a load once per row, and those for every vector."""
    count, word = 1, 1
    if not load.scalar:
        count = shape.vector
        if load.aligned:
            word = _word(count, real, load)
    name = f"l{n}"

    def read(how: str, row: str) -> str:
        return f"{how}<{word}>({name}, {_address(f'x{n}', row, load, load.scalar)});"

    if load.rows in ("self", "one"):
        row = "r" if load.rows == "self" else "0"
        return [], [f"{real} {name}[{count}];", read("fetch", row)]
    zeros = f"{real} {name}[{count}] = {{}};"
    if load.rows == "index":
        once = f"const int i{n} = x{n}_index[r];"
        return [once], [zeros, f"if (i{n} >= 0) {read('fetch', f'i{n}')}"]
    once = f"const int b{n} = x{n}_offsets[r], e{n} = x{n}_offsets[r + 1];"
    each = f"for (int k = b{n}; k < e{n}; ++k) "
    if not load.indexed:
        return [once], [zeros, each + read("accumulate", "k")]
    return [once], [
        zeros,
        each + "{",
        f"  const int i{n} = x{n}_index[k];",
        f"  if (i{n} >= 0) {read('accumulate', f'i{n}')}",
        "}",
    ]


def parameters_of(
    loads: Sequence[Load], stores: Sequence[Store], ops: Sequence[MapOp], real: str
) -> list[str]:
    """Return the declarations of the parameters: operands, results and random numbers."""
    names = []
    for n, load in enumerate(loads):
        names.append(f"const {'bfloat16' if load.half else real}* x{n}")
        if load.rows == "segment_sum":
            names.append(f"const int* __restrict__ x{n}_offsets")
        if load.rows == "index" or load.indexed:
            names.append(f"const int* __restrict__ x{n}_index")
    names += [f"{'bfloat16' if y.half else real}* y{n}" for n, y in enumerate(stores)]
    if any(op.code == "uniform" for op in ops):
        names.append("const unsigned long long* __restrict__ draw")
        names.append("const int* __restrict__ row_ids")
    return names


def call_text(code: str, real: str, *inputs: str) -> str:
    """Return a primitive of ``inputs`` as a C expression."""
    return PRIMITIVES[code].cuda.format(*inputs, f="f" if real == "float" else "")


def indented(lines: Sequence[str], by: int = 2) -> list[str]:
    """Indent lines of text, except those of the preprocessor."""
    return [line if line.startswith("#") else " " * by + line for line in lines]


def _statements(
    loads: Sequence[Load], ops: Sequence[MapOp], shape: Shape, real: str
) -> tuple[list[str], list[str], dict[int, str]]:
    """Return the statements once per row, those for element ``v``, and the name of each
    register."""
    once, each = [], []
    value = {n: f"l{n}[{0 if load.scalar else 'v'}]" for n, load in enumerate(loads)}
    row_ids = False
    for n, op in enumerate(ops):
        code, dst, imm = op.code, op.dst, op.imm
        if code == "constant":
            value[dst] = literal(imm, real)
            continue
        if code == "uniform":
            if not row_ids:
                once.append("const unsigned id = row_ids ? row_ids[r] : (unsigned)r;")
                row_ids = True
            once.append(f"const unsigned key{n} = row_key(draw[0], draw[1], {int(imm)}u, id);")
            column = "j + v" if shape.outer == 1 else f"o * {shape.inner} + j + v"
            made = f"uniform(key{n}, {column})"
        elif code == "column":
            made = "j + v"
        else:
            made = call_text(code, real, *(value[r] for r in reads_of(op)))
        each.append(f"const {real} t{n} = {made};")
        value[dst] = f"t{n}"
    return once, each, value


@dataclass
class Statements:
    """The statements of a kernel, by when they run.

    row: once per row. body: for every vector, on row ``r``, column ``j``, and block ``o`` if there
    are several. written: stores of the vectors. before, after, reduced: the parts of reductions
    before and after all vectors of a block, and the stores of one lane.
    """

    row: list[str]
    body: list[str]
    written: list[str]
    before: list[str]
    after: list[str]
    reduced: list[str]


def statements_of(
    loads: Sequence[Load], ops: Sequence[MapOp], stores: Sequence[Store], shape: Shape, real: str
) -> Statements:
    """Return the statements of a kernel whose work is divided by ``shape``."""
    once, each, value = _statements(loads, ops, shape, real)
    found = Statements([], [], [], [], [], [])
    for n, load in enumerate(loads):
        for_row, for_vector = _load(n, load, shape, real)
        found.row += for_row
        found.body += for_vector
    found.row += once
    for n, store in enumerate(stores):
        x = value[store.register]
        if store.mode == "write":
            found.body.append(f"{real} s{n}[{shape.vector}];")
            each.append(f"s{n}[v] = {x};")
            word = _word(shape.vector, real, store)
            found.written.append(f"put<{word}>({_address(f'y{n}', 'r', store, False)}, s{n});")
            continue
        start = "0" if store.mode == "sum" else literal(-np.inf, real)
        more = "{0} + {1}" if store.mode == "sum" else PRIMITIVES["max"].cuda
        found.before.append(f"{real} s{n} = {start};")
        each.append(f"s{n} = {more.format(f's{n}', x)};")
        step = shape.lanes // 2
        while step:
            other = f"__shfl_xor_sync(0xffffffffu, s{n}, {step})"
            found.after.append(
                f"{{ const {real} x = {other}; s{n} = {more.format(f's{n}', 'x')}; }}"
            )
            step //= 2
        found.reduced.append(f"*({_address(f'y{n}', 'r', store, True)}) = s{n};")
    found.body += ["#pragma unroll", f"for (int v = 0; v < {shape.vector}; ++v) {{"]
    found.body += [*indented(each), "}"]
    return found


def grid_text(
    loads: Sequence[Load],
    ops: Sequence[MapOp],
    stores: Sequence[Store],
    outer: int,
    inner: int,
    real: str = "float",
) -> list[str]:
    """Return the lines of a kernel over rows [begin, end), which all threads of the grid share."""
    if outer == 1:  # without a block number o
        loads = [replace(load, outer_stride=0) for load in loads]
        stores = [replace(store, outer_stride=0) for store in stores]
    shape = shape_of(loads, stores, outer, inner, real)
    s = statements_of(loads, ops, stores, shape, real)
    if shape.reduces:
        block = _over_block(shape, [*s.body, *s.written])
        lines = _by_groups(shape, s.row, [*s.before, *block, *s.after], s.reduced)
    else:
        lines = _by_vectors(shape, [*s.row, *s.body, *s.written])
    most = _ITEMS // shape.items
    times = f" * {shape.items}" if shape.items > 1 else ""
    return [
        f"for (long long top = begin; top < end; top += {most}) {{",
        f"  const long long n = (end - top < {most} ? end - top : {most}){times};",
        *indented(lines),
        "}",
    ]


def kernel_text(
    name: str,
    loads: Sequence[Load],
    ops: Sequence[MapOp],
    stores: Sequence[Store],
    outer: int,
    inner: int,
    real: str = "float",
) -> str:
    """Return a ``__global__`` function over rows [begin, end) of outer x inner elements.

    ops: over registers, the first of which hold the loads, as ``MapProgram.finish`` gives them.
    Pointers are those of row 0, column 0. A kernel that draws random numbers takes a pointer to
    seed and step, and the ``row_ids`` that number its rows (null: their own numbers). Needs
    ``PRELUDE`` of cavs.codegen.cuda_prelude before it, with operands in bfloat16 ``HALF_PRELUDE``
    too, and blocks of whole warps; ``shape_of(...).threads`` times the rows is the work there is.
    """
    parameters = ["long long begin", "long long end", *parameters_of(loads, stores, ops, real)]
    head = f'extern "C" __global__ void __launch_bounds__({BLOCK}, 2) {name}('
    lines = grid_text(loads, ops, stores, outer, inner, real)
    return "\n".join([f"{head}{', '.join(parameters)}) {{", *indented(lines), "}", ""])


def _row_of(shape: Shape, item: str) -> list[str]:
    """Return the row r and the number ``piece`` of a work item inside it."""
    if shape.items == 1:
        return [f"const long long r = top + {item};"]
    return [
        f"const unsigned q = (unsigned)({item}) / {shape.items}u;",
        f"const int piece = (unsigned)({item}) - q * {shape.items}u;",
        "const long long r = top + q;",
    ]


def _by_vectors(shape: Shape, body: Sequence[str]) -> list[str]:
    """Return lines for one vector per thread."""
    if shape.items == 1:
        column = ["const int j = 0;"]
    elif shape.outer == 1:
        column = [f"const int j = piece * {shape.vector};"]
    else:
        vectors = shape.inner // shape.vector
        column = [f"const int o = piece / {vectors};"]
        column += [f"const int j = (piece - o * {vectors}) * {shape.vector};"]
    return [
        "const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;",
        "const long long threads = gridDim.x * (long long)blockDim.x;",
        "for (long long i = first; i < n; i += threads) {",
        *indented([*_row_of(shape, "i"), *column, *body]),
        "}",
    ]


def _over_block(shape: Shape, body: Sequence[str]) -> list[str]:
    """Return lines for the share of a lane in a block."""
    step = shape.lanes * shape.vector
    each = f"for (int j = lane * {shape.vector}; live && j < {shape.inner}; j += {step}) {{"
    return [each, *indented(body), "}"]


def _by_groups(
    shape: Shape, row: Sequence[str], body: Sequence[str], reduced: Sequence[str]
) -> list[str]:
    """Return lines for one block per group of lanes. The lanes of a warp exchange their sums, so
    they stay together.

    Groups after the last block only exchange: their operands may already be overwritten.
    """
    groups = _LANES // shape.lanes
    block = ["const int o = piece;"] if shape.outer > 1 else []
    return [
        f"const int lane = threadIdx.x % {shape.lanes}u;",
        f"const int group = threadIdx.x % {_LANES}u / {shape.lanes}u;",
        "const long long warp = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32;",
        "const long long warps = gridDim.x * (long long)blockDim.x / 32;",
        f"for (long long w = warp * {groups}; w < n; w += warps * {groups}) {{",
        "  const bool live = w + group < n;",
        "  const long long i = live ? w + group : n - 1;",
        *indented([*_row_of(shape, "i"), *block, *row, *body]),
        "  __syncwarp();  // all lanes have read what the sums may overwrite",
        "  if (live && lane == 0) {",
        *indented(reduced, 4),
        "  }",
        "}",
    ]
