"""Rules of optimisers as fused elementwise kernels.

A rule is traced once on symbolic operands: value, gradient and states, one number per element, and
rate and step, numbers of the update. Operators on elements become a kernel; operators on numbers of
the update alone are evaluated on the host, once per update, in float64.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cavs import _engine
from cavs.codegen.cuda import call_text, literal
from cavs.codegen.cuda_prelude import PRELUDE
from cavs.codegen.map import MapOp, MapProgram, Register, reads_of
from cavs.codegen.update_numbers import UpdateNumbers
from cavs.errors import NumericsError, TraceError, line_of, user_line
from cavs.ir import ONE, VERTEX, Node, Operand, as_node, toposort
from cavs.ops.leaves import feature

Rule = Callable[[Any, Any, Any, Any, Any], Any]
KERNEL = "update_by_program"  # the name of the kernel in every module of `update_text`
_ROW = (7,)  # shape of the traced operands: any with more than one element
_HINT = "compute by + - * / **, comparisons and elementwise operators of cavs.ops, as ops.sqrt"


class _Step(Operand):
    """The number of the update, counted from 1."""

    __slots__ = ()
    _noun, _because = "the step", ""

    def as_node(self) -> Node:
        """Return it as a number of the update."""
        return feature("step", ONE)

    def __rpow__(self, base: Any) -> Node:
        if isinstance(base, (int, float, np.number)) and 0 <= base < math.inf:
            return feature(f"{float(base)!r} ** step", ONE)
        raise TraceError(
            f"{base!r:.60} ** step: the base is no number of at least 0",
            where=user_line(),
            hint="take a number, such as 0.9 ** step",
        )


class _States:
    """The states of an element, by name."""

    def __init__(self, states: Mapping[str, Node]) -> None:
        self.__dict__.update(states)

    def __getattr__(self, name: str) -> Any:
        raise TraceError(
            f"the rule reads a state {name!r}: {_named(vars(self))}",
            where=user_line(),
            hint=f"add {name!r} to the states of the optimiser",
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise TraceError(
            f"the rule assigns state.{name}",
            where=user_line(),
            hint="return the new states: return new_value, {" + f'"{name}": ...' + "}",
        )


def _named(states: Mapping[str, Any] | Sequence[str]) -> str:
    return f"its states are {', '.join(states)}" if states else "it has no states"


@dataclass(frozen=True, eq=False)
class UpdateProgram:
    """A traced rule.

    Attributes:
        owner: Name of the optimiser, in errors.
        states: Names of its states.
        ops: Operations over registers. The first registers hold value, gradient, states and the
            numbers of the update, of which the first multiplies the gradient.
        results: Registers of the new value and the new states.
        num_registers: Number of registers.
        numbers: Numbers of the update as traced nodes, of which the first is the engine's.
        text: The rule as equations.
    """

    owner: str
    states: tuple[str, ...]
    ops: tuple[MapOp, ...]
    results: tuple[int, ...]
    num_registers: int
    numbers: tuple[Node, ...]
    text: str

    @cached_property
    def key(self) -> str:
        """Digest of the kernel."""
        known = self.ops, self.results, len(self.states), len(self.numbers)
        return hashlib.sha256(repr(known).encode()).hexdigest()[:16]

    @cached_property
    def native(self) -> _engine.UpdateProgram:
        """The program of the engine."""
        return _engine.UpdateProgram(
            self.key, list(self.ops), list(self.results), self.num_registers, len(self.numbers)
        )

    @cached_property
    def _on_host(self) -> UpdateNumbers:
        return UpdateNumbers(self.numbers[1:])

    def scalars(self, rate: float, decay: float, step: float) -> list[float]:
        """Return the numbers of an update; the first is 1.

        Raises NumericsError, with the user's line, for one that is not finite.
        """
        found = [1.0, *self._on_host.evaluate(rate, decay, step)]
        if not all(map(math.isfinite, found)):
            at = next(i for i, x in enumerate(found) if not math.isfinite(x))
            node = self.numbers[at]
            raise NumericsError(
                f"the rule of {self.owner} computes {found[at]} by {node.op.name} in step "
                f"{int(step)}, with rate {rate} and weight decay {decay}; nothing was updated",
                where=node.where,
                hint="every number that it computes from rate and step must be finite",
            )
        return found


def trace_update(
    owner: str, rule: Rule, states: Sequence[str], *, decays: bool, decoupled: bool
) -> UpdateProgram:
    """Trace ``rule(value, gradient, state, rate, step)``, which returns value and states.

    owner: name of the optimiser, in errors. decays: there may be weight decay, which is added to
    the gradient or, if ``decoupled``, shrinks the value by rate * decay. Raises TraceError with the
    user's line for a rule that computes an element from others, or that returns something else.
    """
    names = [feature(name, VERTEX, shape=_ROW) for name in ("value", "gradient")]
    old = {name: feature(f"state.{name}", VERTEX, shape=_ROW) for name in states}
    scale, rate, decay = (feature(name, ONE) for name in ("scale", "rate", "decay"))
    value, gradient = names[0], names[1] * scale
    if decays and decoupled:
        value = value * (1.0 - rate * decay)
    elif decays:
        gradient = gradient + value * decay
    returned = rule(value, gradient, _States(old), rate, _Step())
    results = _results(owner, rule, returned, states)
    order = toposort(results)
    for node in order:
        _check_elementwise(owner, node)
    elements = [node for node in order if node.type.domain != ONE]
    inputs = (x for node in elements for x in node.inputs if x.type.domain == ONE)
    numbers = tuple(dict.fromkeys((scale, *inputs)))
    if len(numbers) > _engine.MOST_NUMBERS:
        raise TraceError(
            f"the rule of {owner} reads {len(numbers) - 1} different numbers, but it may read at "
            f"most {_engine.MOST_NUMBERS - 1}",
            where=line_of(getattr(rule, "__func__", rule)),
            hint="compute with numbers of Python before they meet value, gradient and states",
        )
    loads = [*names, *old.values(), *numbers]
    program = MapProgram(len(loads))
    at = {node: Register(program, i) for i, node in enumerate(loads)}
    for node in elements:
        if node not in at:
            at[node] = program.apply(node, [at[x] for x in node.inputs])
    # Copied, because an update may overwrite what it loads.
    stored = [
        program.emit("copy", at[node]) if at[node].number < len(loads) else at[node]
        for node in results
    ]
    ops, final, count = program.finish({r.number for r in stored})
    text = _text(order, ("value", *states), results)
    found = tuple(final[r.number] for r in stored)
    return UpdateProgram(owner, tuple(states), tuple(ops), found, count, numbers, text)


def _results(owner: str, rule: Rule, returned: Any, states: Sequence[str]) -> list[Node]:
    """Return the new value and states of what a rule returned."""
    where = line_of(getattr(rule, "__func__", rule))
    shown = ", ".join(f'"{name}": ...' for name in states)
    need = f"new_value, {{{shown}}}" if states else "new_value"
    hint = f"end {owner}.rule by: return {need}"
    new: Any = {}
    if isinstance(returned, tuple) and len(returned) == 2:
        returned, new = returned
    if not isinstance(new, Mapping) or set(new) != set(states):
        got = ", ".join(map(str, new)) if isinstance(new, Mapping) else f"{new!r:.60}"
        raise TraceError(
            f"the rule of {owner} returns the states {got or 'of none'}, but {_named(states)}",
            where=where,
            hint=hint,
        )
    results = []
    for name, result in (("value", returned), *((name, new[name]) for name in states)):
        try:
            node = as_node(result)
        except TraceError:
            raise TraceError(
                f"the rule of {owner} returns {result!r:.60} as {name}", where=where, hint=hint
            ) from None
        if node.type.domain != VERTEX or node.shape != _ROW:
            what = "one number for all elements" if node.type.domain == ONE else "other elements"
            raise TraceError(
                f"the rule of {owner} returns {what} as {name}, by {node.op.name}",
                where=node.where if node.inputs else where,
                hint=f"{name} needs a number for each element, computed from that of its operands",
            )
        results.append(node)
    return results


def _check_elementwise(owner: str, node: Node) -> None:
    if node.op.name in ("feature", "constant") or (
        node.op.elementwise and node.op.name != "uniform"
    ):
        return
    what = "reads a parameter" if node.op.name == "parameter" else f"applies {node.op.name}"
    raise TraceError(
        f"the rule of {owner} {what}, but it computes each element from the value, gradient and "
        "states of this element",
        where=node.where,
        hint=_HINT,
    )


def _text(order: Sequence[Node], names: Sequence[str], results: Sequence[Node]) -> str:
    shown: dict[Node, str] = {}
    lines: list[str] = []
    for node in order:
        if node.op.name in ("feature", "constant"):
            shown[node] = str(node.attr("name" if node.op.name == "feature" else "value"))
            continue
        shown[node] = f"%{len(lines)}"
        attrs = "".join(f" {key}={value}" for key, value in node.attrs)
        inputs = ", ".join(shown[x] for x in node.inputs)
        lines.append(f"{shown[node]} = {node.op.name} {inputs}{attrs}")
    lines += [f"{name} <- {shown[node]}" for name, node in zip(names, results, strict=True)]
    return "\n".join(lines)


def update_text(program: UpdateProgram, real: str = "float") -> str:
    """Return a module whose kernel `KERNEL` applies ``program`` to chunks of gradients."""
    states = len(program.states)
    operands = ["value", "gradient", *(f"states[{k}]" for k in range(states))]
    numbers = [f"number{k}" for k in range(len(program.numbers))]
    at = dict(enumerate([*operands, *numbers]))
    lines = []
    for n, op in enumerate(program.ops):
        inputs = [at[r] for r in reads_of(op)]
        constant = op.code == "constant"
        made = literal(op.imm, real) if constant else call_text(op.code, real, *inputs)
        lines.append(f"const real t{n} = {made};")
        at[op.dst] = f"t{n}"
    for name, register in zip(["value", *operands[2:]], program.results, strict=True):
        lines.append(f"{name} = {at[register]};")
    scale = " * outcome->scale"
    body = [
        "if (!outcome->ok) return;",
        *(
            f"const real {name} = static_cast<real>(numbers.of[{k}]{'' if k else scale});"
            for k, name in enumerate(numbers)
        ),
        f"update_each<{states}>(chunks, count, [=](real gradient, real& value, real* states) {{",
        *(f"  {line}" for line in lines),
        "});",
    ]
    head = f'extern "C" __global__ __launch_bounds__(256) void {KERNEL}('
    head += "const UpdateChunk* chunks, int count, UpdateNumbers numbers, const Outcome* outcome) {"
    text = "\n".join([head, *(f"  {line}" for line in body), "}", ""])
    return f'#include "update.cuh"\n{PRELUDE}\n{text}'
