"""Models of any operators in any order equal the float64 oracle, and its gradients are right."""

from __future__ import annotations

from unittest import mock

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

import cavs
from cavs import ops
from cavs.compiler.pipeline import Passes
from cavs.errors import TraceError
from cavs.runtime import program_cache, tracing
from tests import random_programs
from tests.compiler.test_equality import check
from tests.draws import examples
from tests.oracle import numeric_slope, reference, slope_of, traced
from tests.random_programs import batches, programs

SWITCHES = sorted(vars(Passes()))


def with_parameters(model, batch):
    """The model with all parameters that its trace asks for, drawn; None if it cannot be traced."""
    try:
        traced(model, batch, training=False)
    except TraceError as error:  # a top-down cell has no value of an edge of several parents
        assert "runs on a reversed graph, and this value of an edge needs" in str(error)
        return None
    model.initialize(3, np.float64)
    rng = np.random.default_rng(1)
    for p in model.parameters().values():
        p.value = p.value + 0.3 * rng.normal(size=p.shape)
    return model


def compare(model, batch, tolerance, *, merged=True, **options):
    """Loss, predictions and gradients against the oracle."""
    assume(with_parameters(model, batch))
    _, expected = reference(model, batch, seed=5, step=2)
    _, forward = reference(model, batch, training=False)
    session = cavs.Session(model, **options)
    shared = 0.0 if batch.num_vertices % 2 else np.inf  # products of child values at the child
    least = 1 if merged else 10**9
    with mock.patch.multiple(program_cache, MIN_MERGED=least, MIN_READERS=shared):
        check(session, batch, expected, forward, tolerance)


@examples(50)
@given(programs(), batches(), st.booleans())
def test_float64_equals_the_oracle(model, batch, merged):
    compare(model, batch, 1e-9, merged=merged, dtype=np.float64)


@examples(25)
@given(programs(smooth=True), batches())
def test_float32_equals_the_oracle(model, batch):
    compare(model, batch, 1e-3, dtype=np.float32)


@examples(25)
@given(programs(), batches(), st.sets(st.sampled_from(SWITCHES)), st.booleans())
def test_passes_may_be_off_in_any_combination(model, batch, off, mixed):
    """mixed: vertices with and without features are of one kind."""
    passes = Passes(**{name: name not in off for name in SWITCHES})
    with mock.patch.object(tracing, "MAX_KINDS", 0 if mixed else tracing.MAX_KINDS):
        compare(model, batch, 1e-9, dtype=np.float64, passes=passes)


@examples(25)
@given(programs(smooth=True), batches())
def test_gradients_are_slopes(model, batch):
    with mock.patch.dict(random_programs.UNARY, {"stop": ops.tanh}):
        assume(with_parameters(model, batch))
        _, expected = reference(model, batch)
        rng = np.random.default_rng(0)
        direction = {k: rng.normal(size=p.shape) for k, p in model.parameters().items()}
        slope = slope_of({k.removeprefix("grad:"): g for k, g in expected.items()}, direction)
        numeric = numeric_slope(model, batch, direction, 1e-4)
    assert abs(slope - numeric) <= 1e-5 * max(1.0, abs(slope))
