"""A session before its first run, and after writes to parameters that it does not see."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import ConfigError


class Scorer(cavs.Model):
    def __init__(self):
        self.output = nn.Linear(3, 2)

    def forward(self, batch):
        return self.output(batch["x"])

    def loss(self, batch):
        return ops.cross_entropy(self.forward(batch), batch["label"])


@pytest.fixture
def batch():
    rows = np.random.default_rng(0).standard_normal((4, 3))
    return cavs.batch([cavs.Graph([[]] * 4, {"x": rows, "label": [0, 1, 1, 0]})])


@pytest.fixture
def session():
    model = Scorer()
    model.initialize(1, np.float64)
    return cavs.Session(model, dtype=np.float64)


def test_nothing_is_reported_before_a_run(session, batch):
    assert session.report() == {} == session.report(training=False)
    session.predict(batch)
    assert session.report(training=False)["tasks"] > 0
    assert session.report() == {}  # no training yet


def test_timelines_are_of_devices(session):
    with pytest.raises(ConfigError, match=r"on is True, but must be .*a session on a device"):
        session.set_tracing(True)


def test_writes_through_a_view_are_read_after_packing_again(session, batch):
    """As those of another library that shares the memory of a parameter."""
    view = session.model.output.weight.value[...]
    before = session.predict(batch)["output"].copy()
    view *= 2.0
    session.pack_again()
    after = session.predict(batch)["output"]
    bias = session.model.output.bias.current()
    np.testing.assert_allclose(after - bias, 2.0 * (before - bias), rtol=1e-12)


def test_forward_runs_survive_packing_again(session, batch):
    """Unlike `Session.invalidate`, which says that values were written in between."""
    ones = {"output": np.ones((4, 2))}
    run = session.forward(batch)
    expected = run.backward(ones)
    run = session.forward(batch)
    session.pack_again()
    for name, g in run.backward(ones).parameters.items():
        np.testing.assert_array_equal(g, expected.parameters[name])
    run = session.forward(batch)
    session.invalidate()
    with pytest.raises(ConfigError, match="parameters were written since the forward run"):
        run.backward(ones)
