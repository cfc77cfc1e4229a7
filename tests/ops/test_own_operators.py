"""Operators of one's own: kernels and gradients, and the cure for one that is not compiled."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import ops
from cavs.errors import CompileError
from cavs.ir import FLOAT, ONE, REGISTRY, BatchRule, TensorType, apply, defop

ROWS = np.array([[0.5, -1.0, 2.0, 3.0], [1.5, 0.25, -2.0, 1.0], [-0.5, 4.0, 1.0, -3.0]])
CHILDREN = [[], [0], [1]]


@pytest.fixture
def own():
    """Define an operator for the time of a test."""
    names = []

    def define(name, **fields):
        names.append(name)
        defop(name, **{"infer": lambda types, attrs: types[0], **fields})
        return lambda *inputs: apply(name, *inputs)

    yield define
    for name in names:
        del REGISTRY[name]


class Model(cavs.Model):
    """A scale for each column of rows, and what ``call`` makes of the scaled rows."""

    def __init__(self, call):
        self.call = call
        self.scale = cavs.Parameter(4, init=[1.0, 2.0, -1.0, 0.5])
        self.square = cavs.Parameter((4, 4), init="ones")

    def forward(self, batch):
        return self.call(self, batch["x"] * self.scale)

    def loss(self, batch):
        return ops.sum_rows(self.forward(batch)).sum(-1)


def batch():
    return cavs.batch([cavs.Graph(CHILDREN, {"x": ROWS})])


def predicted(call):
    return cavs.Session(Model(call), dtype=np.float64).predict(batch())["output"]


def gradients(call):
    return cavs.Session(Model(call), dtype=np.float64).gradients(batch())[1]


SCALED = ROWS * [1.0, 2.0, -1.0, 0.5]


def test_numbers_stand_on_either_side_in_an_expression(own):
    either = own("either_side", expr=lambda e, x: 1.0 / (2.0 + x * x) + 3.0 * (4.0 - x) - (-x))
    expected = 1.0 / (2.0 + SCALED**2) + 3.0 * (4.0 - SCALED) + SCALED
    np.testing.assert_allclose(predicted(lambda m, x: either(x)), expected, rtol=1e-12)


def test_results_of_an_expression_that_nothing_reads_are_not_computed(own):
    def expr(e, x):
        e.exp(e.sin(x))
        return e.tanh(x)

    wasteful = own("wasteful", expr=expr)
    call = lambda m, x: wasteful(x)  # noqa: E731
    np.testing.assert_allclose(predicted(call), np.tanh(SCALED), rtol=1e-12)
    program = cavs.Session(Model(call)).compiled(batch(), training=False).program
    codes = {op.code for i in program.instructions for op in i.ops}
    assert "tanh" in codes and codes.isdisjoint({"exp", "sin"})


def test_an_unknown_primitive_of_an_expression(own):
    wrong = own("wrong_primitive", expr=lambda e, x: e.sinh(x))
    with pytest.raises(AttributeError, match=r"no primitive 'sinh': there are .*tanh"):
        predicted(lambda m, x: wrong(x))


def refused(run, call, what, hint):
    with pytest.raises(CompileError, match=what) as raised:
        run(call)
    assert hint in raised.value.hint
    assert raised.value.where.startswith("test_own_operators.py:")


def test_an_operator_without_an_expression(own):
    opaque = own("opaque", evaluate=lambda n, x: np.sinh(x))
    call = lambda m, x: opaque(x)  # noqa: E731
    refused(predicted, call, "operator opaque cannot be lowered", "needs expr=")


def test_an_operator_over_all_rows(own):
    one_row = lambda types, attrs: TensorType(FLOAT, types[0].shape, ONE)  # noqa: E731
    largest = own("largest_row", infer=one_row, rule=BatchRule.REDUCE)
    call = lambda m, x: x * largest(x)  # noqa: E731
    refused(predicted, call, "operator largest_row cannot be lowered", "composed of ops.sum_rows")


def test_an_operator_without_a_gradient(own):
    flat = own("no_gradient", expr=lambda e, x: e.tanh(x))
    np.testing.assert_allclose(predicted(lambda m, x: flat(x)), np.tanh(SCALED), rtol=1e-12)
    call = lambda m, x: flat(x)  # noqa: E731
    refused(gradients, call, "operator no_gradient has no gradient", "ops.stop_gradient")
    constant = gradients(lambda m, x: x * ops.stop_gradient(flat(x)))["scale"]
    np.testing.assert_allclose(constant, (ROWS * np.tanh(SCALED)).sum(0), rtol=1e-12)


@pytest.mark.parametrize(("stop", "size"), [(3, 3), (2, 2)])
def test_a_cotangent_of_another_shape(own, stop, size):
    wrong = own(f"narrow_{size}", expr=lambda e, x: e.tanh(x), vjp=lambda n, d: [d[0:stop]])
    found = rf"cannot reduce a cotangent of shape \[{size}\] to \[4\]"
    refused(gradients, lambda m, x: wrong(x), found, "broadcasts with it")


def test_a_branch_through_a_rule_that_sums_over_elements(own):
    """Nothing flows back from rows of the other branch, also where the rule has summed already."""
    scaled = own(
        "scaled_row",
        infer=lambda types, attrs: types[0],
        expr=lambda e, x, s: x * s,
        vjp=lambda n, d: [d * n.inputs[1], (d * n.inputs[0]).sum(-1)],
    )

    def call(model, x):
        first = x[0:1].sum(-1)
        return ops.where(x > 0.0, scaled(x, first), 0.0)

    taken = np.where(SCALED > 0, 1.0, 0.0)
    slope = taken * SCALED[:, :1]  # by x
    slope[:, 0] += (taken * SCALED).sum(1)  # by the first column
    np.testing.assert_allclose(gradients(call)["scale"], (slope * ROWS).sum(0), rtol=1e-12)


def test_a_transposed_parameter_outside_of_a_product():
    call = lambda m, x: ops.reshape(ops.tanh(m.square.T) * 1.0, (16,))[0:4] * x  # noqa: E731
    found = "a transposed parameter can only be a factor of a product"
    refused(predicted, call, found, "x @ P.T")
