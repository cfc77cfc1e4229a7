"""Functions of NumPy and Python refuse traced values and name the cure."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import cavs
from cavs import ops
from cavs.errors import TraceError
from cavs.ir import Node, apply, constant
from cavs.ir.refusals import CURES
from tests.frontend.test_trace_errors import Classifier, good, line_in, passing_x, trace

X = np.ones(3, np.float32)
CALLS = {
    "np.tanh(x)": r"np.tanh does not take.*write ops.tanh\(x\)",
    "np.dot(x, x)": r"ops.dot\(a, b\)",
    "np.inner(x, X)": r"ops.dot\(a, b\)",
    "np.maximum(x, 0.0)": r"ops.maximum\(a, b\)",
    "np.concatenate([x, x])": r"ops.concat\(\[a, b\]\)",
    "np.sum(x)": r"x.sum\(-1\) the last axis",
    "np.add.reduce(x)": "np.add does not take",
    "np.sinh(x)": "np.sinh does not take.*cavs.ops",
    "np.asarray(x)": "a traced value cannot be made an array",
    "np.array([x, x])": "cannot be made an array",
    "math.exp(x)": r"ops.exp\(x\) for math.exp\(x\)",
    "math.floor(x)": "is no number",
    "float(x)": "is no number",
    "int(x)": "is no number",
    "round(x)": "is no number",
    "len(x)": r"no length.*x.shape\[-1\]",
    "range(x)": "counts and indexes nothing",
    "[1, 2][x]": "counts and indexes nothing",
    "list(x)": "cannot be iterated",
    "2.0 ** x": r"2.0 \*\* b: .*ops.exp\(b \* 0.69314718\)",
    "np.float32(2) ** x": r"ops.exp\(b \* 0.69314718\)",
    "x ** x": r"ops.exp\(b \* ops.log\(a\)\)",
    "X ** x": r"ops.exp\(b \* ops.log\(a\)\)",
    "x // 2": "// and % do not take",
    "np.int64(7) % x": "// and % do not take",
    "(x > 0) & (x < 1)": r"& does not take.*a \* b",
    "(x > 0) | (x < 1)": r"\| does not take.*ops.maximum",
    "X & x": "& does not take",
    "x ^ 2": r"\^ does not take.*\*\* 2",
    "~(x > 0)": r"~ does not take.*1.0 - x",
    "x.__setitem__(0, 1.0)": "cannot be changed",
    "x == 1": r"x == 1|== 1 asks.*ops.equal\(a, b\)",
    "1.0 != x": r"!= 1.0 asks.*use 1.0 - ops.equal\(a, b\)",
    "x == True": "== True asks",
    "x == np.float32(1)": "asks whether both are one object",
    "np.float32(1) == x": "asks whether both are one object",
    "np.int64(1) != x": r"!= .*use 1.0 - ops.equal\(a, b\)",
    "X == x": "asks whether both are one object",
    # An array must become a parameter, on either side of every operator.
    **dict.fromkeys(
        [f"X {sign} x" for sign in ("+", "-", "*", "/", "@", "<", ">=")]
        + [f"x {sign} X" for sign in ("+", "-", "*", "/", "@", "<", ">=")],
        r"a ndarray cannot take part.*hold an array as cavs.Parameter",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_refused_call_names_the_line_and_the_cure(call):
    code = compile(call, "model.py", "eval")

    def body(f, v):
        eval(code, {"x": v.pull("x"), "X": X, "np": np, "math": math})

    with pytest.raises(TraceError, match=re.compile(CALLS[call], re.DOTALL)) as caught:
        trace(Classifier(body))
    assert caught.value.where == "model.py:1" and caught.value.hint


def test_the_number_of_children_compared_by_equality():
    def body(f, v):
        if v.num_children == 1:  # here
            v.scatter(h=v.gather().h.sum())

    with pytest.raises(TraceError, match=r"ops.where\(condition, a, b\) instead of if") as caught:
        trace(Classifier(body))
    assert caught.value.where == line_in(body, "# here")


def test_a_parameter_is_no_array():
    p = cavs.Parameter((2, 2))
    for call in (np.tanh, np.linalg.norm, np.asarray, float, len):
        with pytest.raises(
            TraceError, match=r"a parameter[^:]*\n(.|\n)*\.value is its array"
        ) as caught:
            call(p)
        assert caught.value.where.startswith("test_foreign_functions.py:")
    assert np.tanh(p.value).shape == (2, 2)
    assert p in [p] and p != cavs.Parameter((2, 2))


def test_numbers_of_numpy_compute():
    def body(f, v):
        x, two = v.pull("x"), np.float32(2.0)
        assert two * x is 2.0 * x and x * two is x * 2.0 and two - x is 2.0 - x
        assert (two < x) is (x > 2.0) and (two >= x) is (x <= 2.0)
        assert np.array(2.0) / x is 2.0 / x and np.add(x, x) is x + x
        good(f, v)

    assert "loss" in trace(Classifier(body, passing_x)).outputs


def test_nodes_are_equal_as_objects():
    a, b = constant(1.0), constant(2.0)
    assert a == constant(1.0) and a != b and (a == "a") is False and a != None  # noqa: E711
    assert b in [a, b] and a not in [b, None, "a"] and {a: 1}[constant(1.0)] == 1
    assert Node.__hash__ is object.__hash__ and apply("neg", a) is -a


def test_cures_are_operators():
    named = {name for cure in CURES.values() for name in re.findall(r"ops\.(\w+)", cure)}
    assert named <= set(ops.__all__)
    assert all(hasattr(np, name) for name in CURES)
