"""Refusals of what NumPy and Python do to numbers and cannot do to traced values."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

import numpy as np

from cavs.errors import NoAttributeError, TraceError, user_line
from cavs.ir.types import TO_FLOATS

P = ParamSpec("P")
T = TypeVar("T")
_ONES = ("tanh", "exp", "log", "sin", "cos", "sqrt", "square", "absolute")
_TWOS = ("maximum", "minimum")
_FOLDED = "x.{0}() folds the children of a vertex, x.{0}(-1) the last axis"
_DOT = "ops.dot(a, b) of two values, x @ W with a parameter"
_CONCAT = "ops.concat([a, b])"

#: The replacement of each function of NumPy.
CURES: dict[str, str] = {
    **{name: f"ops.{name}(x)" for name in _ONES},
    **{name: f"ops.{name}(a, b)" for name in _TWOS},
    **dict.fromkeys(("abs", "fabs"), "ops.absolute(x)"),
    "fmax": "ops.maximum(a, b)",
    "fmin": "ops.minimum(a, b)",
    "where": "ops.where(condition, a, b)",
    "clip": "ops.clip(x, low, high)",
    "negative": "-x",
    "reciprocal": "1.0 / x",
    **dict.fromkeys(("dot", "inner", "vdot", "vecdot"), _DOT),
    **dict.fromkeys(("concatenate", "concat", "hstack", "stack", "append"), _CONCAT),
    **dict.fromkeys(("split", "array_split", "hsplit"), "ops.split(x, n)"),
    **dict.fromkeys(("reshape", "ravel"), "ops.reshape(x, shape)"),
    "transpose": "W.T of a parameter",
    "sum": _FOLDED.format("sum"),
    "mean": _FOLDED.format("mean"),
    **dict.fromkeys(("max", "amax"), _FOLDED.format("max")),
    **dict.fromkeys(("min", "amin"), _FOLDED.format("min")),
    "prod": "x.prod() folds the children of a vertex",
    "argmax": "ops.argmax(x)",
    "logical_not": "1.0 - x",
    "logical_and": "a * b",
    "logical_or": "ops.maximum(a, b)",
    "equal": "ops.equal(a, b)",
    "not_equal": "1.0 - ops.equal(a, b)",
}

#: NumPy's functions behind Python's operators, called if its array or number is on the left.
_SIGNS = {
    np.add: ("__add__", "__radd__"),
    np.subtract: ("__sub__", "__rsub__"),
    np.multiply: ("__mul__", "__rmul__"),
    np.true_divide: ("__truediv__", "__rtruediv__"),
    np.matmul: ("__matmul__", "__rmatmul__"),
    np.power: ("__pow__", "__rpow__"),
    np.less: ("__lt__", "__gt__"),
    np.less_equal: ("__le__", "__ge__"),
    np.greater: ("__gt__", "__lt__"),
    np.greater_equal: ("__ge__", "__le__"),
    np.floor_divide: ("__floordiv__", "__rfloordiv__"),
    np.remainder: ("__mod__", "__rmod__"),
    np.bitwise_and: ("__and__", "__rand__"),
    np.bitwise_or: ("__or__", "__ror__"),
    np.bitwise_xor: ("__xor__", "__rxor__"),
}
_LATER = "a traced value has no numbers yet: return it from forward, and read session.predict"

_SHAPE = "x.shape is that of one row"
_OPERATORS = "operators, .sum(), .mean(), .max(), .prod(), .softmax() and cavs.ops"

#: The replacement of methods of arrays and tensors.
_METHODS: dict[str, str] = {
    name: cure
    for names, cure in (
        ("reshape view flatten ravel squeeze unsqueeze", "ops.reshape(x, shape)"),
        ("numpy item tolist cpu clone copy", _LATER),
        ("float double astype to type", TO_FLOATS),
        ("size dim ndim", _SHAPE),
        ("grad", "session.gradients(batch) gives those of all parameters"),
        ("argmax", "ops.argmax(x)"),
        ("argmin topk sort", "return scores from forward, and sort session.predict"),
        ("dot inner mm matmul bmm", _DOT),
        ("cat append repeat expand", _CONCAT),
        ("chunk split unbind", "ops.split(x, n)"),
        ("clamp clip", "ops.clip(x, low, high)"),
        ("masked_fill where", "ops.where(condition, a, b)"),
        ("t transpose", "W.T of a parameter"),
        ("detach", "ops.stop_gradient(x)"),
        ("pow", "x ** 2"),
        ("abs", "ops.absolute(x)"),
        ("eq", "ops.equal(a, b)"),
        (
            "tanh sigmoid relu leaky_relu elu gelu silu softplus exp log sin cos sqrt square",
            "ops.{0}(x)",
        ),
        ("dropout lookup logsumexp", "ops.{0}(...)"),
        (
            "log_softmax",
            "ops.log_softmax(x) over the last axis, ops.log(x.softmax()) over children",
        ),
        ("norm", "ops.sqrt(ops.dot(x, x)), plus a small number where x may be zeros"),
    )
    for name in names.split()
}


_NUMBERS = (int, float, complex, np.number, np.bool_, np.ndarray)


def _refuse(what: str, hint: str) -> NoReturn:
    raise TraceError(what, where=user_line(), hint=hint)


def _refused(what: str, hint: str) -> Callable[..., Any]:
    """Return a method that raises TraceError; ``{}`` in ``what``: the operand, and the reason."""

    def method(self: Refusals, *args: Any, **options: Any) -> NoReturn:
        _refuse(what.format(self._noun, self._because), hint + self._elsewhere)

    return method


_no_number = _refused(
    "{} is no number of Python{}",
    "compute with the value itself, and with cavs.ops instead of math: ops.exp(x) for math.exp(x)",
)
_both = _refused("& does not take {}", "a * b of two comparisons is 1 where both are true")
_either = _refused("| does not take {}", "ops.maximum(a, b) of two comparisons is 1 where one is")
_xor = _refused(
    "^ does not take {}", "a ** 2 is a square; of two comparisons 1.0 - ops.equal(a, b)"
)
_floor = _refused("// and % do not take {}", "x / y divides; give rounded numbers as features")


_ARGUMENTS = {"dim": "axis", "keepdim": "keepdims"}  # as in PyTorch


def folding(method: Callable[P, T]) -> Callable[P, T]:
    """Return a fold that refuses the argument names of other libraries with a TraceError."""
    known = [name for name in inspect.signature(method).parameters if name != "self"]

    @wraps(method)
    def checked(*args: P.args, **named: P.kwargs) -> T:
        unknown = [name for name in named if name not in known]
        if unknown or len(args) - 1 + len(named) > len(known):
            what = f"{unknown[0]}=..." if unknown else f"{len(args) - 1} arguments"
            cure = _ARGUMENTS.get(unknown[0]) if unknown else None
            _refuse(
                f".{method.__name__}() does not take {what}: it has {', '.join(known)}",
                (f"write {cure}= for {unknown[0]}=; " if cure in known else "")
                + f"x.{method.__name__}(-1) is over the last axis, and without axis values of "
                "edges are folded over the children of a vertex",
            )
        return method(*args, **named)

    return checked


class Refusals:
    """Base of operands: refuses what would give a wrong result or an unclear error of NumPy."""

    __slots__ = ()
    _noun = "a traced value"
    _because = ": it stands for every vertex at once"
    _elsewhere = ""  # addition to a hint

    __float__ = __int__ = __complex__ = __trunc__ = __floor__ = __ceil__ = __round__ = _no_number
    __index__ = _refused(
        "{} counts and indexes nothing{}",
        "fold the children with v.gather().h.sum(), or read one with v.gather(k); range() and "
        "indices take numbers of Python",
    )
    __array__ = _refused(
        "{} cannot be made an array{}", "compute with it by operators and cavs.ops"
    )
    __len__ = _refused(
        "{} has no length{}",
        "x.shape[-1] is the size of its last axis, v.num_children how many children there are",
    )
    __iter__ = _refused("{} cannot be iterated", "use cavs.ops.split(value, n)")
    __bool__ = _refused("{} has no truth{}", "use cavs.ops.where(condition, a, b) instead of if")
    __setitem__ = _refused("{} cannot be changed", "join its parts with ops.concat([a, b])")
    __and__ = __rand__ = _both
    __or__ = __ror__ = _either
    __xor__ = __rxor__ = _xor
    __invert__ = _refused("~ does not take {}", "1.0 - x of a comparison is 1 where it is false")
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __divmod__ = __rdivmod__ = _floor

    def __rpow__(self, base: Any) -> Any:
        log = "ops.log(a)"
        if isinstance(base, int | float | np.number) and base > 0:
            log = f"{math.log(base):.8g}"
        _refuse(
            f"{base!r:.60} ** b: an exponent is a number, not {self._noun}",
            f"for a ** b with a above 0 write ops.exp(b * {log})",
        )

    def __eq__(self, other: object) -> Any:
        """Compare by identity, as equal nodes are one object; refuse numbers."""
        return self._same(other, "==", "ops.equal(a, b)")

    def __ne__(self, other: object) -> Any:
        """Negate ``==``."""
        same = self._same(other, "!=", "1.0 - ops.equal(a, b)")
        return not same if isinstance(same, bool) else same

    def _same(self, other: object, sign: str, cure: str) -> Any:
        if isinstance(other, Refusals):
            return self is other
        if isinstance(other, _NUMBERS):
            _refuse(
                f"{self._noun} {sign} {other!r:.60} asks whether both are one object, and they are "
                "not",
                f"use {cure}, which is 1 or 0 at every vertex, and ops.where(condition, a, b) "
                "instead of if",
            )
        return NotImplemented

    __hash__ = object.__hash__

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Apply an operator as if the left side were no array; TraceError for other functions."""
        if method == "__call__" and ufunc in _SIGNS:
            left, right = inputs
            forward, backward = _SIGNS[ufunc]
            if isinstance(left, Refusals):
                return getattr(left, forward)(right)
            return getattr(right, backward)(left)
        if ufunc in (np.equal, np.not_equal) and not isinstance(inputs[0], Refusals):
            return inputs[1] == inputs[0] if ufunc is np.equal else inputs[1] != inputs[0]
        return self.__array_function__(ufunc, (), (), {})

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """Raise a TraceError that names the replacement."""
        name = function.__name__
        cure = CURES.get(name)
        _refuse(
            f"np.{name} does not take {self._noun}{self._because}",
            (f"write {cure}" if cure else "compute with operators and cavs.ops") + self._elsewhere,
        )


def lacks(operand: Refusals, name: str) -> bool:
    """True if ``operand`` has no public attribute ``name``, rather than a property that failed."""
    return not hasattr(type(operand), name) and not name.startswith("_")


def no_attribute(operand: Refusals, name: str, where: str) -> NoAttributeError:
    """Return the error for an attribute that ``operand`` lacks, at a line of the user."""
    elsewhere = operand._elsewhere
    cure = _METHODS.get(name, "" if elsewhere else _OPERATORS)
    if elsewhere and cure in (_LATER, TO_FLOATS, _SHAPE):
        cure = ""
    cure = "write " * cure.startswith(("ops.", "x ", "W.")) + cure.format(name)
    return NoAttributeError(
        f"{operand._noun} has no {name!r}",
        where=where,
        hint=(cure + elsewhere).removeprefix("; "),
    )
