"""Models with a vertex function for each type equal the float64 oracle, on every path."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import cavs
from cavs.compiler import save_memory
from cavs.compiler.pipeline import Passes
from cavs.runtime import program_cache
from tests.compiler.test_equality import ALL_ON, FLOAT32, FLOAT64, check
from tests.draws import examples
from tests.oracle import numeric_slope, reference, slope_of, too_steep, traced
from tests.typed_cells import typed_batches, typed_models


def drawn(model, batch):
    """Trace once, so that the parameters of all functions exist, and draw their values."""
    traced(model, batch, training=False)
    model.initialize(3, np.float64)
    return model


def compare(model, batch, tolerance, *, dtype=np.float64, serial=False, **options):
    drawn(model, batch)
    at = {"seed": 5, "step": 2}
    graph, expected = reference(model, batch, **at)
    _, forward = reference(model, batch, training=False)
    session = cavs.Session(model, dtype=dtype, **options)
    session.set_serial(serial)
    shared = 0.0 if batch.num_vertices % 2 else np.inf
    with mock.patch.multiple(program_cache, MIN_MERGED=1, MIN_READERS=shared):
        try:
            check(session, batch, expected, forward, tolerance)
        except AssertionError:
            if dtype == np.float32 and too_steep(graph, batch, expected, tolerance, **at):
                reject()
            raise


def cases(smooth=False, **sizes):
    """Draw a model and a batch that it accepts."""
    return typed_models(smooth).flatmap(
        lambda model: st.tuples(st.just(model), typed_batches(model, **sizes))
    )


@examples(12)
@given(cases())
def test_values_and_gradients_in_float64(case):
    compare(*case, FLOAT64, passes=ALL_ON)


@examples(3)
@given(cases(smooth=True))
def test_values_and_gradients_in_float32(case):
    compare(*case, FLOAT32, dtype=np.float32)


@examples(6)
@given(cases(), st.sampled_from(sorted(vars(Passes()))))
def test_each_pass_can_be_switched_off(case, name):
    compare(*case, FLOAT64, passes=replace(ALL_ON, **{name: False}))


@examples(3)
@given(cases(), st.booleans())
def test_all_passes_off(case, serial):
    off = Passes(**dict.fromkeys(vars(Passes()), False))
    compare(*case, FLOAT64, passes=off, serial=serial)


@examples(3)
@given(cases(), st.sampled_from(save_memory.PLANS))
def test_programs_that_hold_less(case, plan):
    always = mock.Mock(return_value=True)
    with mock.patch.multiple(save_memory, holds_much=always, holds_less=always, PLANS=(plan,)):
        compare(*case, FLOAT64)


@examples(4)
@given(cases(smooth=True, max_vertices=5, max_graphs=2), st.integers(0, 2**31))
def test_gradients_equal_finite_differences(case, seed):
    model, batch = case
    drawn(model, batch)
    _, expected = reference(model, batch)
    rng = np.random.default_rng(seed)
    direction = {k: rng.normal(size=p.shape) for k, p in model.parameters().items()}
    found = {k: expected[f"grad:{k}"] for k in direction if f"grad:{k}" in expected}
    numeric = numeric_slope(model, batch, direction, eps=1e-5)
    assert slope_of(found, direction) == pytest.approx(numeric, rel=1e-5, abs=1e-7)
