"""Gradients by features on a device; a loss outside of the model is refused there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import cavs
from cavs.errors import ConfigError
from tests.compiler.test_typed_vertices import cases, drawn
from tests.cuda.executor.test_engine import RANDOM, device, twin_device  # noqa: F401
from tests.draws import examples
from tests.random_cells import batches, models, traced_parameters
from tests.random_structures import cases as structure_cases
from tests.runtime.test_input_gradients import FLOAT32, FLOAT64, Encoded, compare, graph_of


@examples(10, RANDOM, most=50)
@given(models(), batches())
def test_random_cells(device, model, batch):  # noqa: F811
    compare(model, traced_parameters(model, batch), FLOAT64, device=device)


@examples(4, RANDOM, most=50)
@given(models(smooth=True), batches())
def test_float32(device, model, batch):  # noqa: F811
    batch = traced_parameters(model, batch)
    compare(model, batch, FLOAT32, device=device, dtype=np.float32)


@examples(2, RANDOM, most=50)
@given(cases())
def test_types_of_vertices(device, case):  # noqa: F811
    compare(drawn(*case), case[1], FLOAT64, device=device)


@examples(2, RANDOM, most=50)
@given(structure_cases())
def test_several_structures(device, case):  # noqa: F811
    compare(*case, FLOAT64, device=device)


def test_a_loss_outside_of_the_model(twin_device):  # noqa: F811
    session = cavs.Session(Encoded(), device=twin_device)
    batch = cavs.batch([graph_of([[], [0]], np.random.default_rng(0))])
    with pytest.raises(ConfigError, match="a forward run for a loss of the caller is for the CPU"):
        session.forward(batch)
