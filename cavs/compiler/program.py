"""The program that the engine runs, as plain data; mirrors csrc/exec/program.h."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from cavs.codegen.map import MapOp
from cavs.compiler.instructions import INSTRUCTIONS, InstructionTraits
from cavs.errors import renamed
from cavs.ir import Structures
from cavs.passes.specialise import STRUCTURE_SHIFT

T = TypeVar("T")

ONE_SPACE, GRAPH_SPACE, VERTEX_SPACE, EDGE_SPACE = 0, 1, 2, 3
VERTEX_STRUCTURE = 1 << 20  # plus 2 s: vertices of structure s, where samples have several
PAIRS, PAIRS_STRIDE = 1 << 21, 1 << 12  # see kPairs0 in program.h
PRESENT_SPACE = -2  # minus the number of an integer feature: vertices where it is present
DISTINCT_SPACE = -(1 << 24)  # minus the number of an integer feature: its distinct values


def space_of(base: str, kind: int | None, structure: int | None = None) -> int:
    """Return the engine's number of a domain; structure: its number, if samples have several."""
    if base == "one":
        return ONE_SPACE
    if base == "graph":
        return GRAPH_SPACE
    number = {"vertex": VERTEX_SPACE, "edge": EDGE_SPACE, "out": EDGE_SPACE}[base]
    if kind is not None:
        return number + 2 + 2 * kind
    return number if structure is None else VERTEX_STRUCTURE + number - VERTEX_SPACE + 2 * structure


def space_selected_by(base: str, feature: int) -> int:
    """Return the number of the rows, "present" or "distinct", that an integer feature selects."""
    return (PRESENT_SPACE if base == "present" else DISTINCT_SPACE) - feature


def selection_of(space: int) -> tuple[str, int] | None:
    """Return the base of rows that an integer feature selects, and its number; None for others."""
    if space > PRESENT_SPACE:
        return None
    if space <= DISTINCT_SPACE:
        return "distinct", DISTINCT_SPACE - space
    return "present", PRESENT_SPACE - space


def kind_of(space: int) -> int | None:
    """Return the kind that the rows of a space belong to; None for rows of all kinds."""
    if space >= PAIRS:
        kind = (space - PAIRS) % PAIRS_STRIDE - 1
        return kind if kind >= 0 else None
    return (space - 4) // 2 if 4 <= space < VERTEX_STRUCTURE else None


def relation_of(space: int) -> int | None:
    """Return what leads from vertices to the rows: 0 edges, 1 + l the pairs of link l, or None."""
    if space >= PAIRS:
        return 1 + (space - PAIRS) // PAIRS_STRIDE
    return 0 if space > 1 and space % 2 else None


@dataclass
class Buffer:
    """Rows of ``width`` elements; see Role in program.h."""

    role: str
    index: int
    space: int
    width: int
    name: str
    first: int = 1 << 30
    last: int = -1
    held: str = "all"  # rows of all vertices, those with children ("inner") or without ("leaves")


class Operand(NamedTuple):
    """Columns of a buffer, seen through a row map."""

    buffer: int
    column: int
    width: int
    map: str = "self"
    array: str = "none"
    argument: int = 0

    @property
    def columns(self) -> range:
        """The columns of the buffer."""
        return range(self.column, self.column + self.width)


class Load(NamedTuple):
    """An operand of a fused kernel, read in blocks at steps of ``outer_stride`` columns."""

    operand: Operand
    outer_stride: int = 0
    scalar: bool = False


class Store(NamedTuple):
    """A result of a fused kernel: a register, or its sum or maximum over a block."""

    buffer: int
    column: int
    outer_stride: int
    mode: str  # write, sum, max
    register: int

    def columns(self, outer: int, inner: int) -> range:
        """From the first column that is written to the last, in blocks of ``inner``."""
        width = (outer - 1) * self.outer_stride + (inner if self.mode == "write" else 1)
        return range(self.column, self.column + width)


class WeightPiece(NamedTuple):
    """A window of a parameter, and its position (k0, n0) in a packed matrix."""

    param: int
    offset: int
    row_stride: int
    col_stride: int
    rows: int
    cols: int
    k0: int
    n0: int


@dataclass
class Weight:
    """A matrix of k rows and n columns, packed from pieces of parameters."""

    k: int
    n: int
    pieces: list[WeightPiece]


@renamed({"kind": "type"})
@dataclass
class Instruction:
    """One instruction; fields as in program.h."""

    type: str
    space: int
    inputs: list[Operand] = field(default_factory=list)
    out: Operand | None = None
    accumulate: bool = False
    weight: int = -1
    split: int = 0
    argument: int = 0
    argument2: int = 0
    loads: list[Load] = field(default_factory=list)
    ops: list[MapOp] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    registers: int = 0
    outer: int = 1
    inner: int = 0
    outward: bool = False
    scatters: int = 0  # columns that it writes and gather reads; for reports alone
    label: str = ""

    @property
    def operands(self) -> list[Operand]:
        """Everything that it reads."""
        return [*self.inputs, *(load.operand for load in self.loads)]

    @property
    def traits(self) -> InstructionTraits:
        """Traits of all instructions of its name."""
        return INSTRUCTIONS[self.type]


@renamed({"kind": "type"})
@dataclass(eq=False)
class Stage:
    """Instructions that run together."""

    type: str  # rows, loop, global
    space: int = 0
    body: list[int] = field(default_factory=list)
    reversed: bool = False  # a loop whose tasks run from the roots down
    gradient: bool = False  # a loop of cotangents
    bodies: list[list[int]] = field(default_factory=list)
    label: str = ""


@dataclass
class Program:
    """Everything that the engine needs but the data."""

    kinds: list[int]
    parameters: list[str]
    int_features: list[str]
    float_features: list[str]
    optional: tuple[str, ...]
    types: tuple[str, ...] = ()  # types of vertices, which number the kinds with ``optional``
    structures: Structures = field(default_factory=Structures)
    buffers: list[Buffer] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    loss: int = -1
    outputs: dict[str, int] = field(default_factory=dict)
    gradients: dict[str, str] = field(
        default_factory=dict
    )  # parameter -> "dense" | "sparse" | "none"
    forward_stages: int = -1  # that run before the caller gives cotangents; -1: it gives none


def structure_of(program: Program, space: int) -> int:
    """Return the number of the structure that vertices or edges of a space belong to."""
    if space >= PAIRS:
        names, links = program.structures
        return names.index(links[(space - PAIRS) // PAIRS_STRIDE].target)
    if space >= VERTEX_STRUCTURE:
        return (space - VERTEX_STRUCTURE) // 2
    kind = kind_of(space)
    return 0 if kind is None else program.kinds[kind] >> STRUCTURE_SHIFT


def kinds_in(program: Program, space: int) -> list[int]:
    """Return the numbers of the kinds of vertices that a space of vertices or edges has."""
    kind = kind_of(space)
    if kind is not None:
        return [kind]
    own = structure_of(program, space)
    return [k for k, key in enumerate(program.kinds) if key >> STRUCTURE_SHIFT == own]


def clone(x: T) -> T:
    """Return a shallow copy of a plain object, ten times as fast as copy.copy."""
    new = object.__new__(type(x))
    new.__dict__.update(x.__dict__)
    return new


Touches = tuple[set[object], set[object]]  # keys that are read, and written
Window = tuple[range, range]  # rows and columns of a gradient


def instructions_of(stage: Stage) -> list[int]:
    """Return all instructions of a stage."""
    return [*stage.body, *(i for body in stage.bodies for i in body)]


def touches(program: Program, numbers: Iterable[int]) -> Touches:
    """Return the buffers, and gradients by parameter, that instructions read and write."""

    def key(buffer: int) -> object:
        b = program.buffers[buffer]
        return ("grad", b.index) if b.role == "grad" else buffer

    found = [program.instructions[n] for n in numbers]
    reads = {b for i in found for b in read(i)}
    writes = {b for i in found for b in written(i)}
    tables = {("grad", i.argument2) for i in found if i.traits.sparse_gradient}
    return set(map(key, reads)), {*map(key, writes), *tables}


def read(i: Instruction) -> list[int]:
    """Return the buffers that an instruction reads."""
    return [o.buffer for o in i.inputs] + [load.operand.buffer for load in i.loads]


def written(i: Instruction) -> list[int]:
    """Return the buffers that an instruction writes."""
    return [s.buffer for s in i.stores] + ([] if i.out is None else [i.out.buffer])


def window(program: Program, i: Instruction) -> Window:
    """Return the rows and columns of a gradient that a sum writes."""
    assert i.out is not None, i.type
    buffer, start, width = i.out[:3]
    columns = program.buffers[buffer].width
    row, column = divmod(start, columns)
    rows = sum(o.width for o in i.inputs[: i.split]) if i.traits.product else 1
    end = column + width
    if end > columns:  # a sum of matrices is flat and may cover several rows
        return range(row, row + rows + (end - 1) // columns), range(columns)
    return range(row, row + rows), range(column, end)
