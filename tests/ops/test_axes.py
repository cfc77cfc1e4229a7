"""Rows with several axes: what repeats along which, and reshaping."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import ops
from cavs.errors import ShapeError, TraceError
from tests.oracle import assert_close, numeric_slope, reference, slope_of

ROW = (2, 2, 3)


class Model(cavs.Model):
    def __init__(self, shape, of=None):
        self.p, self.t = cavs.Parameter(shape), cavs.Parameter(ROW, init="uniform")
        self.of = of or (lambda m, b: b["z"] * m.t * m.p)

    def forward(self, batch):
        return self.of(self, batch)

    def loss(self, batch):
        return ops.mean_squared_error(ops.tanh(self.forward(batch)), 0.25)


def batch_of(rows=3):
    rng = np.random.default_rng(0)
    features = {"z": rng.standard_normal((rows, *ROW)), "x": rng.standard_normal((rows, 4))}
    return cavs.batch([cavs.Graph([[]] * rows, features)])


REPEATED = [(1,), (3,), (1, 1), (1, 3), (1, 1, 1), (1, 1, 3), (2, 2, 1), (2, 2, 3)]
COPIED = [(2, 1), (2, 3), (2, 1, 3), (1, 2, 3), (2, 1, 1), (1, 2, 1)]  # an axis before the last


def of_rows(shape):
    """A row of that shape, which repeats."""
    size = int(np.prod(shape))
    return lambda m, b: b["z"] * m.t * (ops.reshape(ops.reshape(b["z"], 12)[:size], shape) * m.p)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("shape", REPEATED + COPIED, ids=str)
def test_gradients_of_what_repeats(shape, rows):
    model, batch = Model(shape, of_rows(shape) if rows else None), batch_of()
    model.initialize(2, np.float64)
    _, gradients = cavs.Session(model, dtype=np.float64).gradients(batch)
    _, expected = reference(model, batch)
    rng = np.random.default_rng(1)
    direction = {k: rng.standard_normal(v.shape) for k, v in gradients.items()}
    for key, value in gradients.items():
        assert_close(value, expected[f"grad:{key}"], 1e-12, key)
    slope = slope_of(gradients, direction)
    assert numeric_slope(model, batch, direction) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [-1, -2, -3])
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_any_axis_of_a_row_is_summed(name, axis, keepdims):
    def of(model, batch):
        return getattr(batch["z"] * model.t, name)(axis, keepdims) * model.p

    model, batch = Model((1,), of), batch_of()
    model.initialize(2, np.float64)
    session = cavs.Session(model, dtype=np.float64)
    rows = batch["z"].astype(np.float64) * model.t.value
    wanted = getattr(rows, name)(axis, keepdims=keepdims) * model.p.value
    assert_close(session.predict(batch)["output"], wanted, 1e-12, name)
    _, expected = reference(model, batch)
    for key, value in session.gradients(batch)[1].items():
        assert_close(value, expected[f"grad:{key}"], 1e-12, key)


@pytest.mark.parametrize(("name", "axis"), [("sum", 0), ("mean", -4), ("max", -2), ("sum", 1.0)])
def test_axes_that_cannot_be_reduced(name, axis):
    model = Model((1,), lambda m, b: getattr(b["z"], name)(axis) * m.p)
    with pytest.raises(ShapeError, match=f"axis {axis} of a value") as caught:
        cavs.Session(model).evaluate(batch_of())
    assert "axis=-2" in caught.value.hint


@pytest.mark.parametrize(
    ("shape", "found"),
    [((-1,), (12,)), (12, (12,)), ((2, -1), (2, 6)), ((-1, 3, 1), (4, 3, 1)), (-1, (12,))],
    ids=str,
)
def test_one_size_of_a_shape_may_be_left_open(shape, found):
    seen = []

    def of(model, batch):
        seen.append(ops.reshape(batch["z"], shape).shape)
        return batch["z"] * model.p

    cavs.Session(Model((1,), of)).evaluate(batch_of())
    assert seen[0] == found


@pytest.mark.parametrize("shape", [(5, -1), (-1, -1), (7,), (0, -1)], ids=str)
def test_shapes_that_do_not_fit(shape):
    model = Model((1,), lambda m, b: ops.reshape(b["z"], shape) * m.p)
    with pytest.raises(ShapeError, match="12 elements do not fill") as caught:
        cavs.Session(model).evaluate(batch_of())
    assert "test_axes.py" in str(caught.value)


def test_an_empty_slice_is_told_as_it_was_written():
    model = Model((1,), lambda m, b: b["x"][5:9] * m.p)
    with pytest.raises(ShapeError, match=r"\[slice\] 5:9 of 4 elements is empty"):
        cavs.Session(model).evaluate(batch_of())


def test_a_softmax_over_the_last_axis():
    found = []

    def of(model, batch):
        found.append(batch["x"].softmax(-1) is batch["x"].softmax())
        return batch["x"].softmax(axis=-1) * model.p

    cavs.Session(Model((1,), of)).evaluate(batch_of())
    assert found[0]
    with pytest.raises(ShapeError, match="axis 0"):
        cavs.Session(Model((1,), lambda m, b: b["x"].softmax(0))).evaluate(batch_of())


def test_parts_of_no_whole_number():
    with pytest.raises(ShapeError, match=r"whole numbers, not 1.5"):
        model = Model((1,), lambda m, b: ops.split(b["x"], 1.5)[0])
        cavs.Session(model).evaluate(batch_of())


def test_tables_that_are_computed():
    class Looked(cavs.Model):
        def __init__(self):
            self.table = cavs.Parameter((4, 3))

        def loss(self, batch):
            return ops.mean_rows(ops.lookup(ops.tanh(self.table), batch["i"])).sum()

    batch = cavs.batch([cavs.Graph([[]] * 2, {"i": [0, 3]})])
    with pytest.raises(TraceError, match="looked up in a parameter, not in what 'tanh' makes"):
        cavs.Session(Looked()).evaluate(batch)
