"""Check a model against a loss that is written in NumPy, and its gradients by differences of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cavs

Parameters = Mapping[str, Any]
# Returns the loss and the output; outputs by name, if there are several.
Reference = Callable[[Parameters], tuple[float, Any]]
STEP = 1e-5


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def lstm_step(z: Any, c: Any) -> tuple[Any, Any]:
    """Return c and h of an LSTM whose gates i, f, o and u are ``z`` before their functions."""
    i, f, o, u = np.split(z, 4)
    c = sigmoid(i) * np.tanh(u) + sigmoid(f) * c
    return c, sigmoid(o) * np.tanh(c)


def cross_entropy(logits: Any, label: int) -> float:
    return float(np.log(np.exp(logits).sum()) - logits[label])


def check(model: cavs.Model, batch: Any, reference: Reference, output: str = "output") -> None:
    """Assert that loss, outputs and gradients of all parameters are those of the reference.

    output: the name of the output, where the reference returns one.
    """
    session = cavs.Session(model, dtype=np.float64)
    rng = np.random.default_rng(0)
    trained = [x for x in model.parameters().values() if x.trainable]
    for parameter in trained:  # large enough to reach the curved parts
        parameter.value = rng.uniform(-0.8, 0.8, parameter.shape)
    p = {name: x.value.astype(float) for name, x in model.parameters().items()}
    loss, outputs = reference(p)
    found = session.evaluate(batch)
    assert found.loss == pytest.approx(loss, rel=1e-9)
    predicted = session.predict(batch)
    for name, rows in (outputs if isinstance(outputs, dict) else {output: outputs}).items():
        np.testing.assert_allclose(predicted[name], rows, rtol=1e-9, atol=1e-12)
    own, gradients = session.gradients(batch)
    assert own == pytest.approx(loss, rel=1e-9)
    assert set(gradients) == {parameter.name for parameter in trained}
    for name, value in ((parameter.name, p[parameter.name]) for parameter in trained):
        direction = rng.normal(size=value.shape)
        ends = [reference({**p, name: value + e * direction})[0] for e in (STEP, -STEP)]
        slope = (ends[0] - ends[1]) / (2 * STEP)
        assert (gradients[name] * direction).sum() == pytest.approx(slope, rel=1e-6, abs=1e-9), name


def epoch_losses(run: Path) -> list[float]:
    """Return the losses of the epochs of a run of ``cavs train``."""
    events = map(json.loads, (run / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return [event["train_loss"] for event in events if event["event"] == "epoch"]
