"""Slices of the last axis, in the forms that NumPy has for them, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import ops
from cavs.errors import TraceError
from cavs.ir import EDGE, FLOAT, VERTEX, apply


def value(*shape, domain=VERTEX):
    return apply("feature", name="x", dtype=FLOAT, shape=shape, domain=domain, optional=False)


W = cavs.Parameter((4, 6))
BIAS = cavs.Parameter(6)


@pytest.mark.parametrize("domain", [VERTEX, EDGE], ids=str)
def test_a_row_of_one_axis(domain):
    x = value(6, domain=domain)
    assert x[..., 1:3] is x[:, 1:3] is x[1:3]
    assert x[..., -2:] is x[:, -2:] is x[4:6]


def test_a_row_of_two_axes():
    x = value(4, 6)
    assert x[..., 1:3] is x[:, :, 1:3] is x[1:3]


def test_a_parameter_has_no_rows():
    assert W[..., 1:3] is W[:, 1:3] is W[1:3]
    assert BIAS[..., 1:3] is BIAS[1:3]


REFUSED = {
    "an axis before the last": (value(4, 6), np.s_[:, 1:3], r":, 1:3: f32\[4,6\]@vertex"),
    "a slice of rows": (value(6), np.s_[0:2, 1:3], "0:2, 1:3"),
    "too many": (value(6), np.s_[:, :, 1:3], ":, :, 1:3"),
    "two ellipses": (value(6), (..., ..., slice(1, 3)), r"\.\.\., \.\.\., 1:3"),
    "an index": (value(6), np.s_[..., 0], r"\.\.\., 0"),
    "a new axis": (value(6), np.s_[:, None], ":, None"),
    "a step": (value(6), np.s_[..., ::2], r"\.\.\., ::2"),
    "an ellipsis alone": (value(6), ..., r"\.\.\.: f32"),
    "no index": (value(6), (), r"\(\): f32"),
    "a row of one number": (value(), np.s_[:, 0:1], ":, 0:1"),
    "rows of a parameter": (BIAS, np.s_[:, 0:1], ":, 0:1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_forms_are_refused(case):
    x, key, shown = REFUSED[case]
    with pytest.raises(TraceError, match=f"slice of its last axis, not .*{shown}") as error:
        x[key]
    assert "write value[a:b], or value[..., a:b]" in str(error.value)
    assert "test_slices.py" in str(error.value)


def test_a_refused_slice_of_children_says_how_they_are_folded():
    with pytest.raises(TraceError, match=r"\.sum\(\)"):
        value(6, domain=EDGE)[0, 1:3]


class Cut(cavs.VertexFunction):
    def __init__(self, cut):
        self.cut = cut
        self.state = cavs.State(h=6)
        self.W = cavs.Parameter((6, 6), init="xavier")

    def vertex(self, v):
        below = v.gather().h
        parts = [self.cut(x, 0, 2) for x in (v.pull("x"), below.sum())]
        h = ops.concat([*parts, self.cut(below, 2, 4).sum()]) @ self.cut(self.W, 0, 6)
        v.scatter(h=ops.tanh(h))
        v.push(h)


class Model(cavs.Model):
    def __init__(self, cut):
        self.cell = Cut(cut)

    def loss(self, batch):
        return ops.mean_rows(ops.square(self.cell(batch.graph, x=batch["x"])).sum(-1))


def test_all_forms_compute_the_same():
    rng = np.random.default_rng(0)
    graph = cavs.Graph([[], [], [0, 1]], {"x": rng.normal(size=(3, 6)).astype(np.float32)})
    cuts = (
        lambda x, a, b: x[a:b],
        lambda x, a, b: x[..., a:b],
        lambda x, a, b: x[:, a:b],
    )
    found = [cavs.Session(Model(cut)).gradients(cavs.batch([graph])) for cut in cuts]
    for loss, gradients in found[1:]:
        assert loss == found[0][0]
        np.testing.assert_array_equal(gradients["cell.W"], found[0][1]["cell.W"])
