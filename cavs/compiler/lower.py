"""Passes 6 and 7: bodies to instructions. Fusion of elementwise nodes, storage and lifetimes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from cavs.codegen.map import MapProgram, Register
from cavs.compiler.program import (
    ONE_SPACE,
    Buffer,
    Instruction,
    Operand,
    Program,
    Stage,
    space_of,
)
from cavs.compiler.weights import weight_of
from cavs.errors import CompileError
from cavs.ir import BatchRule, Graph, Node
from cavs.passes.access import LOCAL_ARRAYS, Piece, is_leaf
from cavs.passes.partition import Body, Partition, is_elementwise


def _grid(shape: tuple[int, ...]) -> tuple[int, int]:
    """A row as outer x inner blocks."""
    if len(shape) < 2:
        return 1, shape[0] if shape else 1
    outer = 1
    for s in shape[:-1]:
        outer *= s
    return outer, shape[-1]


@dataclass(eq=False)
class _Group:
    """Elementwise nodes that become one kernel."""

    base: str
    kind: int | None
    shape: tuple[int, ...]
    step: int
    nodes: list[Node] = field(default_factory=list)


class Lowering:
    """Builds a Program from a Partition."""

    def __init__(self, partition: Partition, program: Program, fuse: bool) -> None:
        self.partition, self.program, self.fuse = partition, program, fuse
        self.graph: Graph = partition.graph
        self.accesses = partition.accesses
        self.arena: dict[Node, int] = {}
        self.local: dict[Node, int] = {}
        self.leaves: dict[Node, int] = {}
        self.weights: dict[Node, int] = {}
        self.merge_of: dict[Node, Node] = {}
        for n in self.graph.nodes():
            if n.op.name == "merge":
                for x in n.inputs:
                    self.merge_of[x] = n
        self.stage = -1
        self.kind: int | None = None  # stands for "all kinds" in a loop

    # ---- buffers -------------------------------------------------------------------------------

    def _buffer(self, role: str, index: int, space: int, width: int, name: str) -> int:
        self.program.buffers.append(Buffer(role, index, space, width, name))
        return len(self.program.buffers) - 1

    def _touch(self, buffer: int) -> int:
        b = self.program.buffers[buffer]
        b.first, b.last = min(b.first, self.stage), max(b.last, self.stage)
        return buffer

    def _arena(self, node: Node) -> int:
        """The buffer of a kept node; a merged one lives in the buffer of its merge."""
        home = self.merge_of.get(node, node)
        if home not in self.arena:
            d = home.type.domain
            space = space_of(d.base, d.kind)
            self.arena[home] = self._buffer("arena", 0, space, home.type.width, _name(home))
        return self._touch(self.arena[home])

    def _leaf(self, node: Node) -> int:
        if node not in self.leaves:
            self.leaves[node] = self._new_leaf(node)
        return self.leaves[node]

    def _new_leaf(self, node: Node) -> int:
        name, d, width = node.op.name, node.type.domain, node.type.width
        p = self.program
        if name == "parameter":
            parameter = node.attr("parameter").name
            index = p.parameters.index(parameter)
            rows = node.shape[0] if len(node.shape) == 2 else 1
            return self._buffer("param", index, ONE_SPACE, width // rows, parameter)
        if name == "feature":
            index = p.float_features.index(node.attr("name"))
            return self._buffer("feature", index, space_of(d.base, None), width, node.attr("name"))
        if name == "count_present":
            index = p.int_features.index(node.inputs[0].attr("name"))
            return self._buffer("count", index, ONE_SPACE, 1, "count")
        assert name == "num_children", name
        return self._buffer("ones", 0, ONE_SPACE, 1, "ones")

    def _read(self, node: Node) -> int:
        """The buffer to read ``node`` from, in the body at hand."""
        if is_leaf(node):
            return self._leaf(node)
        return self.local[node] if node in self.local else self._arena(node)

    def _write(self, node: Node, body: Body) -> int:
        """The buffer to store ``node`` of ``body`` in."""
        if node in self.partition.kept and node not in self.local:
            return self._arena(node)
        if node not in self.local:
            d = node.type.domain
            space = self._space(d.base, d.kind)
            role = "scratch" if d.by_structure else "arena"
            self.local[node] = self._buffer(role, 0, space, node.type.width, _name(node))
        return self._touch(self.local[node])

    def operand(self, p: Piece) -> Operand:
        """A piece as the engine names it."""
        buffer = self._read(p.source)
        self._touch(buffer)
        argument = p.argument
        if p.array == "index_feature":
            argument = self.program.int_features.index(str(argument))
        return (buffer, p.column, p.width, p.map, p.array, int(argument))

    # ---- stages --------------------------------------------------------------------------------

    def run(self) -> None:
        """Lowers every body, in order of stages; gradients leave as soon as they are known."""
        gradients = self._gradient_terms()
        loops: dict[object, Stage] = {}
        for body in self.partition.bodies:
            if body.loop is not None and body.loop in loops:
                stage = loops[body.loop]
                self.stage = self.program.stages.index(stage)
            else:
                self.stage = len(self.program.stages)
                stage = self._new_stage(body)
                self.program.stages.append(stage)
                if body.loop is not None:
                    loops[body.loop] = stage
            if body.loop is not None:
                self._loop_body(stage, body)
            elif body.reduction:
                self._attach_reductions(stage, self._emitted(self._reduction, body, gradients))
            else:
                stage.body = self._emitted(self._rows, body)
        self._finish_gradients(gradients)
        self._finish_outputs()

    def _emitted(self, emit: Callable[..., None], *args: object) -> list[int]:
        """The numbers of the instructions that ``emit`` adds."""
        self.local = {}
        first = len(self.program.instructions)
        emit(*args)
        return list(range(first, len(self.program.instructions)))

    def _new_stage(self, body: Body) -> Stage:
        if body.loop is not None:
            bodies: list[list[int]] = [[] for _ in self.program.kinds]
            return Stage("loop", reversed=body.loop.backward, bodies=bodies, label=str(body.loop))
        base = "vertex" if body.base == "rows" else body.base
        kind = "global" if body.reduction else "rows"
        label = f"{'reduce' if body.reduction else 'rows'} {base}"
        label += "" if body.kind is None else f".{body.kind}"
        return Stage(kind, space_of(base, body.kind), label=label)

    def _loop_body(self, stage: Stage, body: Body) -> None:
        """A body for its kind; without specialisation a copy for each, over that kind's rows."""
        for k in range(len(self.program.kinds)):
            if body.kind is None or body.kind == k:
                self.kind = k if body.kind is None else None
                stage.bodies[k] += self._emitted(self._rows, body)
        self.kind = None

    def _space(self, base: str, kind: int | None) -> int:
        return space_of(base, self.kind if kind is None and base in ("vertex", "edge") else kind)

    def _attach_reductions(self, stage: Stage, ids: list[int]) -> None:
        """One instruction a global stage."""
        at = self.program.stages.index(stage)
        stage.body = ids[:1]
        for i, extra in enumerate(ids[1:], 1):
            self.program.stages.insert(at + i, Stage("global", body=[extra], label=stage.label))
        self.stage = len(self.program.stages) - 1
        for i in ids:
            self._touch_all(self.program.instructions[i])

    def _touch_all(self, instruction: Instruction) -> None:
        for o in instruction.inputs:
            self._touch(o[0])
        if instruction.out is not None:
            self._touch(instruction.out[0])

    # ---- rows ----------------------------------------------------------------------------------

    def _rows(self, body: Body) -> None:
        """Groups the elementwise nodes of ``body`` by step and emits everything in order."""
        inside = set(body.nodes)
        group_of: dict[Node, _Group] = {}
        groups: dict[object, _Group] = {}
        step: dict[Node, int] = {}
        for n in body.nodes:
            fused = is_elementwise(n)
            level = 0
            for x, pieces in self.accesses.operands(n):
                for p in pieces:
                    for source in self._inside(p, inside):
                        joined = (
                            self.fuse
                            and fused
                            and x is source
                            and p.map == "self"
                            and _joinable(source, n)
                        )
                        level = max(level, step[source] + (0 if joined else 1))
            step[n] = level
        self._as_late_as_useful(body, step)
        for n in body.nodes:
            base, shape, level = n.type.domain.base, _kernel_shape(n), step[n]
            if is_elementwise(n):
                key = (level, base, shape) if self.fuse else n
                kind = n.type.domain.kind
                group = groups.setdefault(key, _Group(base, kind, shape, level))
                group.nodes.append(n)
                group_of[n] = group
        items: list[tuple[int, int, Node | _Group]] = []
        for i, n in enumerate(body.nodes):
            if n not in group_of:
                items.append((step[n], i, n))
            elif group_of[n].nodes[0] is n:
                items.append((step[n], i, group_of[n]))
        stored = self._stored(body, group_of)
        for _, _, item in sorted(items, key=lambda t: t[:2]):
            if isinstance(item, _Group):
                self._map(item, body, stored)
            else:
                self._single(item, body)

    def _as_late_as_useful(self, body: Body, step: dict[Node, int]) -> None:
        """Elementwise nodes join the latest kernel that can hold them, next to their readers."""
        if not self.fuse:
            return
        bound: dict[Node, int] = {}
        for n in reversed(body.nodes):
            if is_elementwise(n) and not _reduces_axis(n) and n in bound:
                step[n] = max(step[n], bound[n])
            for x, pieces in self.accesses.operands(n):
                for p in pieces:
                    if p.array not in LOCAL_ARRAYS:
                        continue
                    joined = is_elementwise(n) and x is p.source and p.map == "self"
                    limit = step[n] if joined and _joinable(x, n) else step[n] - 1
                    bound[p.source] = min(bound.get(p.source, limit), limit)

    def _inside(self, p: Piece, inside: Container[Node]) -> list[Node]:
        """The node of this body behind a piece; what other tasks made does not count."""
        return [p.source] if p.source in inside and p.array in LOCAL_ARRAYS else []

    def _stored(self, body: Body, group_of: dict[Node, _Group]) -> set[Node]:
        """Nodes of ``body`` that something outside their kernel reads."""
        stored = set()
        for n in body.nodes:
            if n in self.partition.kept:
                stored.add(n)
        for n in body.nodes:
            for x, pieces in self.accesses.operands(n):
                for p in pieces:
                    together = n in group_of and group_of.get(x) is group_of[n] and p.map == "self"
                    if not together or _reduces_axis(p.source):
                        stored.add(p.source)
        return stored

    def _map(self, group: _Group, body: Body, stored: set[Node]) -> None:
        """One fused kernel."""
        for n in list(group.nodes):
            if n.op.name == "broadcast" and self._is_joined_copy(n):
                self._joined_copy(n, body)
                group.nodes.remove(n)
        if not group.nodes:
            return
        outer, inner = _grid(group.shape)
        loads: dict[tuple[Operand, int, bool], int] = {}
        inputs: dict[tuple[Node, Node], int] = {}
        members = set(group.nodes)
        for n in group.nodes:
            for x, pieces in self.accesses.operands(n):
                if x in members:
                    continue
                load = (self.operand(pieces[0]), *_block(x, group.shape))
                inputs[n, x] = loads.setdefault(load, len(loads))
        program = MapProgram(len(loads))
        registers: dict[Node, Register] = {}
        results: dict[Node, tuple[str, Register]] = {}
        for n in group.nodes:
            args = [
                program.constant(float(x.attr("value")))
                if x.op.name == "constant"
                else registers[x]
                if x in registers
                else Register(program, inputs[n, x])
                for x in n.inputs
            ]
            if _reduces_axis(n):
                results[n] = ("sum" if n.op.name == "sum_axis" else "max", args[0])
            else:
                registers[n] = program.apply(n, args)
                if n in stored:
                    results[n] = ("write", registers[n])
        ops, place, count = program.finish({r.number for _, r in results.values()})
        stores = []
        for n, (mode, register) in results.items():
            stride = (1 if mode != "write" else inner) if outer > 1 else 0
            stores.append((self._write(n, body), 0, stride, mode, place[register.number]))
        self.program.instructions.append(
            Instruction(
                "map",
                self._space(group.base, group.kind),
                loads=list(loads),
                ops=ops,
                stores=stores,
                registers=max(count, 1),
                outer=outer,
                inner=inner,
                label="map " + "+".join(dict.fromkeys(n.op.name for n in group.nodes)),
            )
        )

    def _is_joined_copy(self, n: Node) -> bool:
        x = n.inputs[0]
        return x.op.name != "constant" and len(self.accesses.at(x, n)) > 1

    def _joined_copy(self, n: Node, body: Body) -> None:
        """A copy out of several pieces: one kernel a piece, side by side."""
        buffer = self._write(n, body)
        column = 0
        for p in self.accesses.at(n.inputs[0], n):
            self._copy_map(n, self.operand(p), buffer, column, 1, p.width, 0, 0)
            column += p.width

    def _copy_map(
        self, n: Node, source: Operand | None, buffer: int, column: int, outer: int, inner: int,
        load_stride: int, store_stride: int,
    ) -> None:  # fmt: skip
        loads = [] if source is None else [(source, load_stride, False)]
        ops = [("constant", 0, 0, 0, 0, 0.0)] if source is None else []
        d = n.type.domain
        self.program.instructions.append(
            Instruction(
                "map",
                self._space(d.base, d.kind),
                loads=loads,
                ops=ops,
                stores=[(buffer, column, store_stride, "write", 0)],
                registers=1,
                outer=outer,
                inner=inner,
                label=f"copy {n.op.name}",
            )
        )

    def _single(self, n: Node, body: Body) -> None:
        """An instruction of its own: a product, a loss, a maximum, a rearrangement."""
        name, d = n.op.name, n.type.domain
        space = self._space(d.base, d.kind)
        pieces = [self.operand(p) for _, ps in self.accesses.operands(n) for p in ps]
        add = self.program.instructions.append
        if name in ("pad", "slice", "concat", "transpose"):
            self._rearrange(n, body)
            return
        out: Operand = (self._write(n, body), 0, n.type.width, "self", "none", 0)
        if name == "matmul":
            weight = self._weight(n.inputs[1])
            k, width = n.inputs[1].shape
            label = f"matmul {k}x{width} {_name(n)}"
            add(Instruction("matmul", space, inputs=pieces, out=out, weight=weight, label=label))
        elif name == "max_children":
            add(Instruction("segment_max", space, inputs=pieces, out=out, label="max over children"))
        elif name in ("cross_entropy_rows", "cross_entropy_grad"):
            kind = "cross_entropy" if name == "cross_entropy_rows" else name
            label = self.program.int_features.index(n.inputs[1].attr("name"))
            add(Instruction(kind, space, inputs=pieces, out=out, argument=label, label=kind))
        else:
            raise CompileError(f"operator {name} cannot be lowered", where=n.where)

    def _rearrange(self, n: Node, body: Body) -> None:
        """Rank-2 slices and concatenations, pads and transposes: strided copies."""
        buffer = self._write(n, body)
        outer, size = _grid(n.shape)
        column = 0
        if n.op.name == "transpose":
            raise CompileError("a transposed parameter can only be a factor of a product", where=n.where)
        if n.op.name == "pad":
            self._copy_map(n, None, buffer, 0, outer, size, 0, size)
            column = n.attr("start")
        if n.op.name == "concat" and n.attr("axis") != -1:
            raise CompileError("rows of values cannot be concatenated", where=n.where)
        for x, pieces in self.accesses.operands(n):
            inner = n.shape[-1] if n.op.name == "slice" else x.shape[-1]
            source = self.operand(pieces[0])
            start = n.attr("start") if n.op.name == "slice" else 0
            stride = x.shape[-1]
            moved = (source[0], source[1] + start, (outer - 1) * stride + inner, *source[3:])
            self._copy_map(n, moved, buffer, column, outer, inner, stride, size)
            column += inner

    def _weight(self, w: Node) -> int:
        if w not in self.weights:
            self.program.weights.append(weight_of(w, self.program.parameters))
            self.weights[w] = len(self.program.weights) - 1
        return self.weights[w]

    # ---- reductions and gradients ----------------------------------------------------------------

    def _gradient_terms(self) -> dict[Node, str]:
        """The reductions that are terms of exactly one gradient: they write it themselves."""
        owner: dict[Node, list[str]] = defaultdict(list)
        self.other_terms: dict[str, list[Node]] = {}
        for key, value in self.graph.outputs.items():
            if not key.startswith("grad:"):
                continue
            name = key[5:].split("#")[0]
            self.other_terms.setdefault(name, [])
            if value.op.rule is BatchRule.REDUCE and not is_leaf(value):
                owner[value].append(name)
            elif not _is_zero(value):
                self.other_terms[name].append(value)
        result = {}
        for t, names in owner.items():
            if len(names) == 1:
                result[t] = names[0]
            else:
                for name in names:
                    self.other_terms[name].append(t)
        sparse = {n for t, n in result.items() if t.op.name == "lookup_grad"}
        dense = {n for t, n in result.items() if t.op.name != "lookup_grad"}
        dense |= {n for n, terms in self.other_terms.items() if terms}
        for name in self.other_terms:
            kind = "dense" if name in dense else "sparse" if name in sparse else "none"
            self.program.gradients[name] = kind
        self.grad_buffers: dict[str, int] = {}
        for name in sorted(dense):  # the order of a set of names changes from process to process
            node = self.graph.outputs[f"grad:{name}#0"]
            index = self.program.parameters.index(name)
            columns = node.shape[-1]  # the engine strides a gradient by its columns
            self.grad_buffers[name] = self._buffer("grad", index, ONE_SPACE, columns, name)
        return result

    def _reduction(self, body: Body, gradients: dict[Node, str]) -> None:
        """One instruction over all rows; into a gradient, or into a buffer of one row."""
        (n,) = body.nodes
        owner = gradients.get(n)
        name = n.op.name
        operands = self.accesses.operands(n)
        domain = max((x.type.domain for x, _ in operands), key=lambda d: d.rank)
        kinds = {x.type.domain.kind for x, _ in operands} - {None}
        space = space_of(domain.base, kinds.pop() if kinds else None)
        inputs = [[self.operand(p) for p in pieces] for _, pieces in operands]
        flat = [o for group in inputs for o in group]
        add = self.program.instructions.append
        if name == "lookup_grad":
            if owner is None:
                raise CompileError("the gradient of a table is used twice", where=n.where)
            index = self.program.int_features.index(n.inputs[1].attr("name"))
            param = self.program.parameters.index(owner)
            add(
                Instruction(
                    "lookup_grad", space, inputs=flat, argument=index, argument2=param,
                    label=f"lookup gradient {owner}",
                )  # fmt: skip
            )
            return
        buffer = self.grad_buffers[owner] if owner else self._arena(n)
        if name == "matmul_tn":
            out: Operand = (buffer, 0, n.shape[1], "self", "none", 0)
            add(
                Instruction(
                    "matmul_tn", space, inputs=flat, out=out, accumulate=owner is not None,
                    split=len(inputs[0]), label=f"gradient {owner or _name(n)}",
                )  # fmt: skip
            )
            return
        assert name == "sum_rows", name
        column = 0
        for o in flat:
            piece: Operand = (buffer, column, o[2], "self", "none", 0)
            add(
                Instruction(
                    "sum_rows", space, inputs=[o], out=piece, accumulate=owner is not None,
                    label=f"sum {owner or _name(n)}",
                )  # fmt: skip
            )
            column += o[2]

    def _finish_gradients(self, gradients: dict[Node, str]) -> None:
        """Terms that are no reductions of their own are added at the end."""
        for name, terms in self.other_terms.items():
            if not terms:
                continue
            self.stage = len(self.program.stages)
            self.local = {}
            width = terms[0].type.width
            grad: Operand = (self.grad_buffers[name], 0, width, "one", "none", 0)
            loads = [(grad, 0, False)]
            for t in terms:
                (p,) = self.accesses.pieces(t)
                loads.append((self.operand(p), 0, False))
            program = MapProgram(len(loads))
            total = Register(program, 0)
            for i in range(1, len(loads)):
                total = total + Register(program, i)
            ops, place, count = program.finish({total.number})
            store = (self.grad_buffers[name], 0, 0, "write", place[total.number])
            self.program.instructions.append(
                Instruction(
                    "map", ONE_SPACE, loads=loads, ops=ops, stores=[store], registers=count,
                    outer=1, inner=width, label=f"gradient {name}",
                )  # fmt: skip
            )
            body = [len(self.program.instructions) - 1]
            self.program.stages.append(Stage("rows", ONE_SPACE, body, label=f"gradient {name}"))

    def _finish_outputs(self) -> None:
        self.stage = len(self.program.stages)
        self.local = {}
        for key, node in self.graph.outputs.items():
            if key.startswith("grad:"):
                continue
            buffer = self._arena(node)
            if key == "loss":
                self.program.loss = buffer
            self.program.outputs[key] = buffer
        last = max(len(self.program.stages) - 1, 0)
        for b in self.program.buffers:
            b.last = min(b.last, last)


def _kernel_shape(node: Node) -> tuple[int, ...]:
    return node.inputs[0].shape if _reduces_axis(node) else node.shape


def _joinable(source: Node, reader: Node) -> bool:
    """Whether the elementwise ``source`` can be in one kernel with its ``reader``."""
    return (
        is_elementwise(source)
        and not _reduces_axis(source)
        and source.shape == _kernel_shape(reader)
        and source.type.domain == reader.type.domain
    )


def _reduces_axis(node: Node) -> bool:
    return node.op.name in ("sum_axis", "max_axis")


def _is_zero(node: Node) -> bool:
    return node.op.name == "broadcast" and node.inputs[0].op.name == "constant" and (
        node.inputs[0].attr("value") == 0.0
    )


def _name(node: Node) -> str:
    return f"{node.op.name}.{node.where}" if node.where else node.op.name


def _block(x: Node, shape: tuple[int, ...]) -> tuple[int, bool]:
    """How an operand of a fused kernel repeats: outer stride and whether one number a block."""
    outer, inner = _grid(shape)
    if x.shape == shape or (x.type.width == outer * inner and _grid(x.shape) == (outer, inner)):
        return (inner if outer > 1 else 0), False
    if x.type.width == 1:
        return 0, inner > 1
    if _grid(x.shape) == (1, inner):
        return 0, False
    if len(x.shape) == len(shape) and x.shape[-1] == 1 and x.type.width == outer:
        return 1, True
    raise CompileError(
        f"a value of shape {list(x.shape)} repeated to {list(shape)} cannot be lowered", where=x.where
    )
