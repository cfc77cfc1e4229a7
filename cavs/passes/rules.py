"""Registration of simplification rules by operator, and constants."""

from __future__ import annotations

from collections.abc import Callable

from cavs.ir import Node, Op, TensorType, apply, constant

Rule = Callable[[Node], Node | None]

_operators: dict[Rule, Callable[[Op], bool]] = {}


def of(name: str) -> Callable[[Rule], Rule]:
    """Register a rule for the operator ``name``."""
    return where(lambda op: op.name == name)


def where(fits: Callable[[Op], bool]) -> Callable[[Rule], Rule]:
    """Register a rule for the operators for which ``fits`` is true."""

    def register(rule: Rule) -> Rule:
        _operators[rule] = fits
        return rule

    return register


class Rules:
    """Rules, in the order in which they are tried."""

    def __init__(self, *rules: Rule) -> None:
        self.rules = rules
        self._of: dict[str, tuple[Rule, ...]] = {}

    def of(self, op: Op) -> tuple[Rule, ...]:
        """Return the rules registered for ``op``."""
        found = self._of.get(op.name)
        if found is None:
            found = self._of[op.name] = tuple(r for r in self.rules if _operators[r](op))
        return found


def zeros(t: TensorType) -> Node:
    """Return zeros of type ``t``."""
    return full(0.0, t)


def full(value: float, t: TensorType) -> Node:
    """Return the same number at every element of type ``t``."""
    if t == constant(value).type:
        return constant(value)
    return apply("broadcast", constant(value), shape=t.shape, domain=t.domain)


def constant_of(node: Node) -> float | None:
    """Return the number that every element of ``node`` is known to be, or None."""
    if node.op.name == "constant":
        return float(node.attr("value"))
    if node.op.name == "broadcast" and node.inputs[0].op.name == "constant":
        return float(node.inputs[0].attr("value"))
    return None


def as_type(x: Node, t: TensorType) -> Node:
    """Return ``x`` broadcast to type ``t``."""
    return x if x.type == t else apply("broadcast", x, shape=t.shape, domain=t.domain)
