"""The text of a compiled program: instructions as equations, fused kernels as expressions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from cavs.codegen.cuda import Load, Store, kernel_text
from cavs.codegen.map import MapOp, reads_of
from cavs.compiler.program import (
    Instruction,
    Operand,
    Program,
    kind_of,
    relation_of,
    selection_of,
    structure_of,
)
from cavs.ir import Domain
from cavs.ops.primitives import PRIMITIVES
from cavs.passes.specialise import Kind

_SUMMED = {
    "children": "child", "edges": "edge", "out": "parent edge", "parents": "parent",
    "graph_rows": "vertex", "graph_roots": "root", "row_graphs": "graph",
    "root_graphs": "graph it is a root of", "graph_leaves": "leaf",
    "leaf_graphs": "graph it is a leaf of",
}  # fmt: skip


def space_name(program: Program, space: int) -> str:
    """Return a space as the passes write domains: one, graph, vertex, edge.0, present.label, ..."""
    if selection := selection_of(space):
        base, feature = selection
        return f"{base}.{program.int_features[feature]}"
    if space < 4:
        return ("one", "graph", "vertex", "edge")[space]
    structure = program.structures.names[structure_of(program, space)]
    relation, link = relation_of(space), None
    if relation:
        link = program.structures.links[relation - 1]
    base = "vertex" if relation is None else "pair" if relation else "edge"
    return str(Domain(base, kind_of(space), structure, link))


def buffer_name(program: Program, index: int) -> str:
    """Return the name of a parameter or feature, and the number of any other buffer."""
    b = program.buffers[index]
    if b.role == "grad":
        return f"grad({b.name})"
    return b.name if b.role in ("param", "feature", "count", "ones") else f"b{index}"


def operand_text(program: Program, o: Operand) -> str:
    """Return a buffer seen through its row map: ``b3[0:6] of child``."""
    buffer, column, width, row_map, array, argument = o
    text = buffer_name(program, buffer)
    if (column, width) != (0, program.buffers[buffer].width):
        text += f"[{column}:{column + width}]"
    if row_map == "segment_sum":
        each = f"parent of its child {argument}" if array == "nth_parents" else _SUMMED.get(array)
        if each is None and array == "pairs":
            each = "linked vertex"
        if each is None:
            link = program.structures.links[argument]
            each = f"{link.source} linked" if array == "linked_rows" else f"{link.target} reader"
        return f"sum({text} of each {each})"
    if row_map != "index" or array in ("order", "edge_order", "present_order", "pair_order"):
        return text
    if array == "present":
        return f"{text} of vertices with {program.int_features[argument]}"
    if array == "place":
        return f"{text} where there is {program.int_features[argument]}"
    if array == "distinct":
        return f"{text} of its {program.int_features[argument]}"
    if array == "index_feature":
        return f"{text}[{program.int_features[argument]}]"
    if array == "linked":
        link = program.structures.links[argument]
        return f"{text} of the {link.source} linked"
    if array == "nth_leaf":
        return f"{text} of leaf child {argument}"
    if array in ("out", "parents"):
        return f"{text} of each {_SUMMED[array]}"
    if array.startswith("nth_"):
        return f"{text} of {array[4:]} {argument}"
    if array == "parent_if_nth":
        return f"{text} of the parent if child {argument}"
    return f"{text} of {array.replace('graph_of', 'the graph').replace('parent', 'the parent')}"


def _expression(op: MapOp, inputs: list[str]) -> str:
    code, imm = op.code, op.imm
    if code == "constant":
        return f"{imm:g}"
    if code == "uniform":
        return f"uniform(stream {imm:g})"
    if code == "column":
        return "column"
    if PRIMITIVES[code].text:
        return PRIMITIVES[code].text.format(*inputs)
    return f"{code}({', '.join(_bare(x) for x in inputs)})"


def _bare(text: str) -> str:
    """Return the text without brackets around the whole."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1] if text.startswith("(") else text


def map_text(program: Program, i: Instruction) -> list[str]:
    """Return a fused kernel as assignments; values that are read once are inlined."""
    value: dict[int, int] = {
        r: -1 - r for r in range(len(i.loads))
    }  # register -> number of its operation
    sources: list[list[int]] = []
    for n, op in enumerate(i.ops):
        sources.append([value[r] for r in reads_of(op)])
        value[op.dst] = n
    stored = [(store, value[store.register]) for store in i.stores]
    reads = Counter(x for group in sources for x in group)
    reads.update(x for _, x in stored)
    lines: list[str] = []
    text = {-1 - r: operand_text(program, load.operand) for r, load in enumerate(i.loads)}
    for n, op in enumerate(i.ops):
        text[n] = _expression(op, [text[x] for x in sources[n]])
        if reads[n] > 1 and op.code != "constant":
            lines.append(f"t{n} = {_bare(text[n])}")
            text[n] = f"t{n}"
    for (buffer, column, _, mode, _), x in stored:
        name, width = buffer_name(program, buffer), program.buffers[buffer].width
        written = i.outer * i.inner if mode == "write" else i.outer
        target = f"{name}[{column}:{column + written}]" if written != width else name
        computed = _bare(text[x])
        how = "sum over parents" if i.outward else mode
        lines.append(f"{target} = {computed if how == 'write' else f'{how} of ({computed})'}")
    return lines


def cuda_operands(
    program: Program, i: Instruction, half: Collection[int] = ()
) -> tuple[list[Load], list[Store]]:
    """Return how the CUDA kernel of a map reads and writes its buffers.

    half: buffers that are stored in bfloat16.
    """
    loads, stores = [], []
    for (buffer, column, _, row_map, array, _), outer_stride, scalar in i.loads:
        b = program.buffers[buffer]
        rows = "one" if b.role == "count" else row_map
        indexed = rows == "segment_sum" and array not in ("edges", "pairs")
        if b.role in ("ones", "count"):  # the same number in every column of every row
            loads.append(Load(0, 0, rows, indexed, 0, True, aligned=False))
        else:
            stored = buffer in half
            loads.append(Load(b.width, column, rows, indexed, outer_stride, scalar, half=stored))
    for buffer, column, outer_stride, mode, register in i.stores:
        width = program.buffers[buffer].width
        stores.append(Store(register, width, column, outer_stride, mode, buffer in half))
    return loads, stores


def cuda_text(program: Program, number: int) -> str:
    """Return a fused kernel as CUDA C, with a comment for each parameter."""
    i = program.instructions[number]
    loads, stores = cuda_operands(program, i)
    lines = [f"// x{n}: {operand_text(program, load.operand)}" for n, load in enumerate(i.loads)]
    lines += [f"// y{n}: {buffer_name(program, store.buffer)}" for n, store in enumerate(i.stores)]
    text = kernel_text(f"map_{number}", loads, i.ops, stores, i.outer, i.inner)
    return "\n".join([*lines, text])


def instruction_text(program: Program, i: Instruction) -> list[str]:
    """Return an instruction as equations."""
    if i.traits.fused:
        return map_text(program, i)
    inputs = [operand_text(program, o) for o in i.inputs]
    if i.traits.sparse_gradient:
        index = program.int_features[i.argument]
        return [f"grad({program.parameters[i.argument2]})[{index}] += {', '.join(inputs)}"]
    assert i.out is not None
    sign = "+=" if i.accumulate else "="
    out = operand_text(program, i.out)
    side = [" | ".join(inputs[a:b]) for a, b in ((0, i.split), (i.split, len(inputs)))]
    side = [f"[{s}]" if " | " in s else s for s in side]
    if i.traits.packed_weight:
        w = program.weights[i.weight]
        names = dict.fromkeys(program.parameters[p.param] for p in w.pieces)
        flipped = all(p.col_stride != 1 for p in w.pieces) and w.n > 1
        weight = " ".join(names) + ("^T" if flipped else "")
        return [f"{out} {sign} {side[1]} @ {weight} ({w.k} x {w.n})"]
    if i.traits.product:
        buffer, start, width = i.out[:3]
        high, columns = sum(o.width for o in i.inputs[: i.split]), program.buffers[buffer].width
        row, column = divmod(start, columns)
        if program.buffers[buffer].role == "grad" and width != columns:  # a window of the gradient
            window = f"[{row}:{row + high}, {column}:{column + width}]"
            out = buffer_name(program, buffer) + window
        return [
            f"{out} {sign} {side[0]}^T @ {side[1]}, over all rows of {space_name(program, i.space)}"
        ]
    if i.traits.sums:
        return [f"{out} {sign} sum of {inputs[0]}, over all rows of {space_name(program, i.space)}"]
    if i.traits.labels:
        inputs.append(program.int_features[i.argument])
    if i.weight >= 0:
        pieces = program.weights[i.weight].pieces
        inputs += dict.fromkeys(program.parameters[p.param] for p in pieces)
    return [f"{out} {sign} {i.type}({', '.join(inputs)})"]


def program_text(program: Program) -> str:
    """Return every stage with its instructions, in the order they run; first kinds with types."""
    lines = []
    for k, key in enumerate(program.kinds if program.types else ()):
        kind = Kind.of(key, program.optional, program.types, program.structures.names)
        of = f"{kind.structure}: " if kind.structure else ""
        lines.append(f"kind {k}: {of}{kind.text(program.optional)}")
    for number, stage in enumerate(program.stages):
        over = "" if stage.type != "rows" else f" over {space_name(program, stage.space)}"
        backward = ", tasks in reverse" if stage.reversed else ""
        lines.append(f"stage {number}: {stage.type}{over}  {stage.label}{backward}")
        bodies = [("", stage.body), *((f"kind {k}: ", b) for k, b in enumerate(stage.bodies))]
        for head, ids in bodies:
            for n in ids:
                i = program.instructions[n]
                lines.append(f"  {head}#{n} {i.type} over {space_name(program, i.space)}")
                lines += [f"      {x}" for x in instruction_text(program, i)]
    return "\n".join(lines)
