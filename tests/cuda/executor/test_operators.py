"""Every operator of the registry on a device gives the values and gradients of the oracle."""

from __future__ import annotations

import numpy as np
import pytest

import cavs
from cavs.ir import REGISTRY
from tests.ops import test_slopes_of_losses as losses
from tests.ops.test_registry import ELSEWHERE, case_of, graphs
from tests.oracle import assert_close, reference

GROUPS = 6  # number of programs, since one per operator would compile for long
OF_ALL = sorted(set(REGISTRY) - ELSEWHERE)
NAMES = [OF_ALL[i::GROUPS] for i in range(GROUPS)]
BOUNDS = {  # relative to the largest value
    "float64": 1e-11,
    "float32": 2e-5,
    "tf32": 5e-3,
    "bfloat16": 5e-2,
}

# The twin rounds like the CPU: its most exact type is enough to find a wrong operator.
WHERE = [
    pytest.param("twin", "float64"),
    *(pytest.param("cuda", kind, marks=pytest.mark.cuda) for kind in BOUNDS),
]


class Together(cavs.Model):
    """A model that applies some operators, each to the batch."""

    def __init__(self, names):
        self.parts = {name: case_of(name) for name in names}
        for name, part in self.parts.items():
            setattr(self, f"of_{name}", part)

    def forward(self, batch):
        return {name: part.forward(batch)["value"] for name, part in self.parts.items()}

    def loss(self, batch):
        first, *others = (part.loss(batch) for part in self.parts.values())
        return sum(others, first)


def test_all_operators_of_the_registry_are_covered():
    assert {name for group in NAMES for name in group} | ELSEWHERE == set(REGISTRY)


@pytest.mark.parametrize(("device", "kind"), WHERE, indirect=["device"])
@pytest.mark.parametrize("names", NAMES, ids=lambda names: f"{names[0]}-{names[-1]}")
def test_operators(device, names, kind):
    model, batch = Together(names), cavs.batch(graphs(0))
    model.initialize(1, np.float64)
    _, expected = reference(model, batch, seed=5, step=2)
    _, forward = reference(model, batch, training=False)
    dtype = np.float64 if kind == "float64" else np.float32
    session = cavs.Session(
        model, dtype=dtype, device=device, precision="float32" if kind == "float64" else kind
    )
    found = session.evaluate(batch).outputs
    for name in names:
        assert_close(np.squeeze(found[name]), np.squeeze(forward[name]), BOUNDS[kind], name)
    loss, gradients = session.gradients(batch, seed=5, step=2)
    assert_close(loss, expected["loss"], BOUNDS[kind], "loss")
    assert gradients
    for name, g in gradients.items():
        wanted = expected.get(f"grad:{name}", np.zeros(g.shape))
        assert_close(g, wanted, BOUNDS[kind], name)


@pytest.mark.parametrize("way", losses.WAYS)
def test_weighed_losses(device, way):
    losses.check(losses.model_of(way), losses.batch_of(), device=device)
