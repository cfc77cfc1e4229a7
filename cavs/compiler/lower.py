"""Lower a partition to a program: bodies to stages, gradient terms to sums."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from cavs.codegen.map import MapProgram, Register
from cavs.compiler.fuse import RowLowering
from cavs.compiler.instructions import FUSED
from cavs.compiler.program import (
    ONE_SPACE,
    VERTEX_SPACE,
    Instruction,
    Load,
    Operand,
    Stage,
    Store,
    Weight,
    WeightPiece,
    instructions_of,
    kinds_in,
    touches,
)
from cavs.compiler.storage import name_of
from cavs.errors import FAULT, CompileError
from cavs.ir import BatchRule, Node
from cavs.passes.differentiate import COTANGENT
from cavs.passes.partition import Body


class Lowering(RowLowering):
    """Lowers a Partition to a Program."""

    def run(self) -> None:
        """Lower every body, in order of stages; gradients are summed as soon as they are known."""
        gradients = self._gradient_terms()
        self.needed: dict[str, set[Node]] = {}
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
                self._loop_body(stage, body, gradients)
            elif body.reduction:
                stage.label = f"reduce {self._purpose(body.nodes[0], gradients)}"
                self._attach_reductions(
                    stage, self._emitted(self._reduction, body.nodes[0], gradients)
                )
            else:
                stage.body = self._emitted(self._rows, body)
        self._finish_gradients(gradients)
        self._finish_outputs()
        self._divide()

    def _emitted(self, emit: Callable[..., None], *args: object) -> list[int]:
        """Return the numbers of the instructions that ``emit`` adds."""
        self.local = {}
        first = len(self.program.instructions)
        emit(*args)
        return list(range(first, len(self.program.instructions)))

    def _new_stage(self, body: Body) -> Stage:
        if body.loop is not None:
            bodies: list[list[int]] = [[] for _ in self.program.kinds]
            loop = body.loop
            return Stage(
                "loop",
                reversed=loop.backward,
                gradient=loop.gradient,
                bodies=bodies,
                label=str(loop),
            )
        space = body.space.at("vertex") if body.space.base == "rows" else body.space
        kind = "global" if body.reduction else "rows"
        return Stage(kind, self._space_of(space), label=f"rows {space}")

    def _loop_body(self, stage: Stage, body: Body, gradients: dict[Node, str]) -> None:
        """Lower a body for its kind; without specialisation, for each kind, over its rows."""
        for k in kinds_in(self.program, self._space_of(body.space.at("vertex"))):
            if body.kind is None or body.kind == k:
                self.kind = k if body.kind is None else None
                stage.bodies[k] += self._emitted(self._body, body, gradients)
        self.kind = None

    def _body(self, body: Body, gradients: dict[Node, str]) -> None:
        """Lower the rows of a task, then its terms of gradients."""
        sums = [n for n in body.nodes if n.op.rule is BatchRule.REDUCE]
        rows = [n for n in body.nodes if n.op.rule is not BatchRule.REDUCE]
        self._rows(replace(body, nodes=rows))
        for n in sums:
            self._reduction(n, gradients)

    def _purpose(self, n: Node, gradients: dict[Node, str]) -> str:
        """Return the gradients or outputs that a sum over rows is computed for."""
        owners = [gradients[n]] if n in gradients else []
        owners += [name for name, terms in self.other_terms.items() if n in terms]
        owners = self.tables.get(n, owners)
        if owners:
            return f"gradient {', '.join(owners)}"
        outputs = [key for key in self.graph.outputs if not key.startswith("grad:")]
        return ", ".join(x for x in outputs if n in self._needed_by(x)) or "for gradients"

    def _needed_by(self, output: str) -> set[Node]:
        """Return the values that an output depends on, through slots too."""
        if output not in self.needed:
            found: set[Node] = set()
            waiting = [self.graph.outputs[output]]
            while waiting:
                n = waiting.pop()
                if n not in found:
                    found.add(n)
                    waiting += n.inputs
                    if n.op.reads_slot:
                        waiting.append(self.graph.slots[n.attr("slot")])
            self.needed[output] = found
        return self.needed[output]

    def _attach_reductions(self, stage: Stage, ids: list[int]) -> None:
        """Give each instruction a global stage of its own, one for each table that it sums."""
        at = self.program.stages.index(stage)
        stage.body = ids[:1]
        for i, extra in enumerate(ids[1:], 1):
            self.program.stages.insert(at + i, Stage("global", body=[extra], label=stage.label))
        self.stage = len(self.program.stages) - 1
        for i in ids:
            self._touch_all(self.program.instructions[i])

    def _touch_all(self, instruction: Instruction) -> None:
        for o in instruction.inputs:
            self._touch(o.buffer)
        if instruction.out is not None:
            self._touch(instruction.out.buffer)

    # ---- reductions and gradients --------------------------------------------------------------

    def _gradient_terms(self) -> dict[Node, str]:
        """Return the reductions that are terms of exactly one gradient: they write it directly.

        Gradients of tables are never stored for others: each sums its rows itself.
        """
        owner: dict[Node, list[tuple[str, int]]] = defaultdict(list)
        self.other_terms: dict[str, list[Node]] = {}
        columns: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        for key, value in self.graph.outputs.items():
            if not key.startswith("grad:"):
                continue
            name, _, window = key.removeprefix("grad:").rpartition("#")
            start = int(window.partition("@")[2].partition(".")[0] or 0)  # the start in "1@300.0"
            self.other_terms.setdefault(name, [])
            columns[name] = value.shape[-1] if value.shape else 1
            # A window of rows is narrower than the whole.
            self.sizes[name] = max(self.sizes.get(name, 0), value.type.width)
            if value.op.rule is BatchRule.REDUCE and not value.op.program_input:
                owner[value].append((name, start))
            elif start > 0:
                raise CompileError(
                    f"rows {start}: of a gradient are no product", where=value.where, hint=FAULT
                )
            elif not _is_zero(value):
                self.other_terms[name].append(value)
        result = {}
        self.first_row: dict[Node, int] = {}
        self.tables: dict[Node, list[str]] = {}
        # Terms that other values are computed from are stored, and added at the end.
        read = {x for n in self.graph.nodes() for x in n.inputs} | set(self.graph.slots.values())
        read |= {x for key, x in self.graph.outputs.items() if not key.startswith("grad:")}
        for t, terms in owner.items():
            if t.op.name == "lookup_grad" and t not in read:
                self.tables[t] = [name for name, _ in terms]
            if t in self.tables or (len(terms) == 1 and t not in read):
                result[t], self.first_row[t] = terms[0]
            else:
                for name, start in terms:
                    if start > 0:
                        raise CompileError(
                            f"rows {start}: of a gradient are read", where=t.where, hint=FAULT
                        )
                    self.other_terms[name].append(t)
        sparse = {name for names in self.tables.values() for name in names}
        dense = {name for t, name in result.items() if t not in self.tables}
        dense |= {n for n, terms in self.other_terms.items() if terms}
        self.zeros = set(self.other_terms).intersection(self.reached) - dense
        dense |= self.zeros
        for name in self.other_terms:
            kind = "dense" if name in dense else "sparse" if name in sparse else "none"
            self.program.gradients[name] = kind
        self.grad_buffers: dict[str, int] = {}
        for name in sorted(dense):  # the order of a set of names changes from process to process
            index = self.program.parameters.index(name)  # strided by its columns
            self.grad_buffers[name] = self._buffer("grad", index, ONE_SPACE, columns[name], name)
        return result

    def _reduction(self, n: Node, gradients: dict[Node, str]) -> None:
        """Lower a sum over rows, an instruction per piece, to a gradient or a buffer of one row."""
        owner = gradients.get(n)
        name = n.op.name
        if name.startswith("lstm"):
            self._recurrence(n, owner)
            return
        operands = self.accesses.operands(n)
        domain = max((x.type.domain for x, _ in operands), key=lambda d: d.rank)
        kinds = {x.type.domain.kind for x, _ in operands} - {None}
        space = self._space(domain.of_kind(kinds.pop()) if kinds else domain)
        inputs = [[self.operand(p) for p in pieces] for _, pieces in operands]
        flat = [o for group in inputs for o in group]
        add = self.program.instructions.append
        if name == "lookup_grad":
            index = self.program.int_features.index(n.inputs[1].attr("name"))
            if n not in self.tables:
                raise CompileError(
                    "rows of a table's gradient are read",
                    where=n.where,
                    hint="compute with the rows that are looked up, ops.lookup(table, index), not "
                    "with the table",
                )
            for table in self.tables[n]:
                add(
                    Instruction(
                        "lookup_grad",
                        space,
                        inputs=flat,
                        argument=index,
                        argument2=self.program.parameters.index(table),
                        label=f"lookup gradient {table}",
                    )
                )
            return
        buffer = self.grad_buffers[owner] if owner else self._arena(n)
        if name == "matmul_tn":
            row, first = dict(n.attrs).get("at", (0, 0))
            row += self.first_row[n] if owner else 0
            width = n.inputs[1].shape[0]
            out = Operand(buffer, row * n.shape[1] + first, width)
            add(
                Instruction(
                    "matmul_tn",
                    space,
                    inputs=flat,
                    out=out,
                    accumulate=owner is not None,
                    split=len(inputs[0]),
                    label=f"gradient {owner or name_of(n)}",
                )
            )
            return
        if name != "sum_rows":
            raise CompileError(
                f"operator {name} cannot be lowered",
                where=n.where,
                hint="an operator of your own that sums over rows is composed of ops.sum_rows",
            )
        (column,) = dict(n.attrs).get("at", (0,))
        for o in flat:
            piece = Operand(buffer, column, o.width)
            add(
                Instruction(
                    "sum_rows",
                    space,
                    inputs=[o],
                    out=piece,
                    accumulate=owner is not None,
                    label=f"sum {owner or name_of(n)}",
                )
            )
            column += o.width

    def _recurrence(self, n: Node, owner: str | None) -> None:
        """Lower a whole LSTM, or its gradient by its input or a parameter, to one instruction."""
        p, number = self.program, n.attr("number")
        inputs = [self.operand(x) for _, pieces in self.accesses.operands(n) for x in pieces]
        i = Instruction(n.op.name, VERTEX_SPACE, inputs=inputs, argument=number)
        if n.op.name == "lstm_weight_grad":
            if owner is None:
                raise CompileError(
                    "the gradient of a weight has no parameter", where=n.where, hint=FAULT
                )
            i.out = Operand(self.grad_buffers[owner], 0, n.type.width)
            i.accumulate, i.argument2 = True, p.parameters.index(owner)
            i.label = f"gradient {owner}"
        else:
            i.out = Operand(self._arena(n), 0, n.type.width)
            i.label = name_of(n)
        if n.op.name == "lstm":
            names = [x.attr("parameter").name for x in n.inputs[1:]]
            pieces = [
                WeightPiece(
                    p.parameters.index(names[of - 1]), offset, stride, 1, rows, cols, k0, n0
                )
                for of, offset, stride, rows, cols, k0, n0 in n.attr("pieces")
            ]
            (width,), (hidden,) = n.inputs[0].shape, n.shape
            p.weights.append(Weight(width + hidden + 1, 4 * hidden, pieces))
            i.weight = len(p.weights) - 1
        p.instructions.append(i)

    def _finish_gradients(self, gradients: dict[Node, str]) -> None:
        """Add terms that are not reductions of their own to their gradients."""
        for name, terms in self.other_terms.items():
            if not terms and name not in self.zeros:
                continue
            self.stage = len(self.program.stages)
            self.local = {}
            width = self.sizes[name]
            grad = Operand(self.grad_buffers[name], 0, width, "one")
            loads = [Load(grad)]
            for t in terms:
                (p,) = self.accesses.pieces(t)
                loads.append(Load(self.operand(p)))
            program = MapProgram(len(loads))
            total = Register(program, 0)
            for i in range(1, len(loads)):
                total = total + Register(program, i)
            ops, register_of, count = program.finish({total.number})
            store = Store(self.grad_buffers[name], 0, 0, "write", register_of[total.number])
            self.program.instructions.append(
                Instruction(
                    FUSED,
                    ONE_SPACE,
                    loads=loads,
                    ops=ops,
                    stores=[store],
                    registers=count,
                    outer=1,
                    inner=width,
                    label=f"gradient {name}",
                )
            )
            body = [len(self.program.instructions) - 1]
            self.program.stages.append(Stage("rows", ONE_SPACE, body, label=f"gradient {name}"))

    def _divide(self) -> None:
        """Count the stages before the first that reads given cotangents or adds to gradients."""
        p = self.program
        if p.forward_stages < 0:
            return
        given = {n for n, b in enumerate(p.buffers) if b.name.startswith(COTANGENT)}
        for n, stage in enumerate(p.stages):
            reads, writes = touches(p, instructions_of(stage))
            if not given.isdisjoint(reads) or any(isinstance(key, tuple) for key in writes):
                p.forward_stages = n
                return
        p.forward_stages = len(p.stages)

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


def _is_zero(node: Node) -> bool:
    return (
        node.op.name == "broadcast"
        and node.inputs[0].op.name == "constant"
        and (node.inputs[0].attr("value") == 0.0)
    )
