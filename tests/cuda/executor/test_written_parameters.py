"""Values that the host writes reach a device before the first run, between runs, and in part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.cuda.device import Device
from cavs.errors import ConfigError


class Scorer(cavs.Model):
    def __init__(self) -> None:
        self.embedding, self.output = nn.Embedding(6, 3), nn.Linear(3, 2)

    def forward(self, batch: Any) -> Any:
        return self.output(self.embedding(batch["word"]))

    def loss(self, batch: Any) -> Any:
        return ops.cross_entropy(self.forward(batch), batch["label"])


BATCH = cavs.batch([cavs.Graph([[]] * 4, {"word": [0, 3, 5, 3], "label": [0, 1, 1, 0]})])


def scorer() -> Scorer:
    model = Scorer()
    model.initialize(1, np.float64)
    return model


def expected(model: Scorer) -> Any:
    table, output = model.embedding.weight.current(), model.output
    return table[BATCH["word"]] @ output.weight.current() + output.bias.current()


def check(session: Any, model: Scorer) -> None:
    np.testing.assert_allclose(session.predict(BATCH)["output"], expected(model), rtol=1e-12)


def test_writes_before_the_first_run(twin_device: Device) -> None:
    """There is nothing on the device to bring up to date yet."""
    model = scorer()
    session = cavs.Session(model, dtype=np.float64, device=twin_device)
    model.output.weight.value *= 2.0
    session.invalidate()
    session.write([1])
    session.write([], {0: np.array([3], np.int32)})
    session.pack_again()
    check(session, model)


def test_writes_through_a_view(twin_device: Device) -> None:
    """As those of another library that shares the memory of a parameter."""
    model = scorer()
    session = cavs.Session(model, dtype=np.float64, device=twin_device)
    view = model.output.weight.value[...]
    check(session, model)
    view *= 2.0
    session.pack_again()
    check(session, model)


def test_some_rows_of_a_table(twin_device: Device) -> None:
    model = scorer()
    session = cavs.Session(model, dtype=np.float64, device=twin_device)
    check(session, model)
    names = list(model.parameters())
    table = model.embedding.weight.current()
    table[3] += 1.0
    session.write([], {names.index("embedding.weight"): np.array([3], np.int32)})
    check(session, model)


def test_a_program_without_fused_kernels(twin_device: Device) -> None:
    class Product(cavs.Model):
        def __init__(self) -> None:
            self.W = cavs.Parameter((3, 2), init="xavier")

        def forward(self, batch: Any) -> Any:
            return batch["x"] @ self.W

    model, x = Product(), np.arange(12.0).reshape(4, 3)
    model.initialize(1, np.float64)
    batch = cavs.batch([cavs.Graph([[]] * 4, {"x": x})])
    found = cavs.Session(model, dtype=np.float64, device=twin_device).predict(batch)["output"]
    np.testing.assert_allclose(found, x @ model.W.current(), rtol=1e-12)


def test_serial_runs_are_of_the_cpu(twin_device: Device) -> None:
    session = cavs.Session(scorer(), dtype=np.float64, device=twin_device)
    with pytest.raises(ConfigError, match=r"on is True, but must be .*a session on the CPU"):
        session.set_serial(True)
