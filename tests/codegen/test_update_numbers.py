"""Numbers that a rule computes from rate and step alone, by the functions of the C library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

import cavs
from cavs import ops
from cavs.errors import NumericsError


@dataclass(frozen=True)
class Scheduled(cavs.optim.Optimizer):
    """Gradient descent whose rate is multiplied by ``factor(rate, step)``."""

    factor: Any = None
    states = ()

    def rule(self, value: Any, gradient: Any, state: Any, rate: Any, step: Any) -> Any:
        return value - gradient * self.factor(rate, step)


def number(factor, rate=0.1, step=5.0):
    """Return the number of the update that multiplies its gradient."""
    first, found = Scheduled(rate, factor=factor).program.scalars(rate, 0.0, step)
    assert first == 1.0
    return found


FINITE = {
    "exponential": (lambda r, s: r * ops.exp(-s * 1.0), 0.1 * math.exp(-5.0)),
    "tanh": (lambda r, s: ops.tanh(r * s), math.tanh(0.5)),
    "logarithm": (lambda r, s: ops.log(1.0 + r * s), math.log(1.5)),
    "root": (lambda r, s: r / ops.sqrt(s * 1.0), 0.1 / math.sqrt(5.0)),
    "power": (lambda r, s: 1.0 - 0.9**s, 1.0 - 0.9**5),
    "overflow that is cut": (lambda r, s: ops.minimum(ops.exp(s * 1000.0), 2.0), 2.0),
    "divided by an overflow": (lambda r, s: r / ops.exp(s * 1000.0), 0.0),
}


@pytest.mark.parametrize("case", FINITE)
def test_numbers_equal_those_of_the_c_library(case):
    factor, expected = FINITE[case]
    assert number(factor) == pytest.approx(expected, rel=1e-15)


NOT_FINITE = {
    "overflow": (lambda r, s: ops.exp(s * 1000.0), "inf by exp"),
    "logarithm of zero": (lambda r, s: ops.log(s - 5.0), "-inf by log"),
    "logarithm below zero": (lambda r, s: ops.log(s - 6.0), "nan by log"),
    "root below zero": (lambda r, s: ops.sqrt(s - 6.0), "nan by sqrt"),
    "division by zero": (lambda r, s: r / (s - 5.0), "inf by div"),
}


@pytest.mark.parametrize("case", NOT_FINITE)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy computes these and warns
def test_numbers_that_are_not_finite_name_their_operator(case):
    factor, found = NOT_FINITE[case]
    with pytest.raises(NumericsError, match=f"Scheduled computes {found} in step 5") as raised:
        number(factor)
    assert raised.value.where.startswith("test_update_numbers.py:")
