"""Every optimised path equals the float64 oracle on random cells over random graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import cavs
from cavs import _engine
from cavs.compiler import save_memory
from cavs.compiler.pipeline import Passes
from cavs.runtime import program_cache, tracing
from tests.compiled_once import programs_shared
from tests.draws import EXAMPLES, examples
from tests.oracle import amplified, assert_close, numeric_slope, reference, slope_of, too_steep
from tests.random_cells import RandomModel, batches, graph_of, models, traced_parameters

FLOAT64, FLOAT32 = 1e-9, 1e-4
ALL_ON = Passes(**dict.fromkeys(vars(Passes()), True))
CASES = 50  # values and gradients in each


def compare(model, batch, tolerance, **options):
    """Loss, predictions and gradients of the engine against the oracle; see Case.compare."""
    Case(model, batch).compare(tolerance, **options)


class Case:
    """A model and a batch, and what the oracle makes of them."""

    at: ClassVar = {"seed": 5, "step": 2}

    def __init__(self, model, batch):
        self.model, self.batch = model, traced_parameters(model, batch)
        self.graph, self.expected = reference(model, self.batch, **self.at)
        _, self.forward = reference(model, self.batch, training=False)

    def compare(
        self,
        tolerance,
        *,
        dtype=np.float64,
        passes=None,
        serial=False,
        shared=None,
        bound=0.0,
        **options,
    ):
        """bound: of products of fewer bits. The tolerance grows by the change of the oracle's
        values if its products are off by as much."""
        batch, known = self.batch, (self.graph, self.batch, self.expected)
        session = cavs.Session(self.model, dtype=dtype, passes=passes or ALL_ON, **options)
        session.set_serial(serial)
        # These batches are small; in half of them products of child values are done at the child.
        if shared is None:
            shared = 0.0 if batch.num_vertices % 2 else np.inf
        with mock.patch.multiple(program_cache, MIN_MERGED=1, MIN_READERS=shared):
            try:
                check(session, batch, self.expected, self.forward, tolerance)
            except AssertionError:
                if bound:
                    moved = amplified(*known, bound, **self.at)
                    check(session, batch, self.expected, self.forward, tolerance, moved)
                elif dtype == np.float32 and too_steep(*known, tolerance, **self.at):
                    reject()  # another one is drawn
                else:
                    raise


def check(session, batch, expected, forward, tolerance, moved=None):
    """The three programs of ``session`` on ``batch``; moved: further tolerance."""
    more = (moved or {}).get
    loss, gradients = session.gradients(batch, seed=5, step=2)
    assert_close(loss, expected["loss"], tolerance, "loss", more("loss", 0.0))
    for name, g in gradients.items():
        unused = np.zeros(session.parameters[name].shape)
        key = f"grad:{name}"
        assert_close(g, expected.get(key, unused), tolerance, name, more(key, 0.0))
    result = session.evaluate(batch)
    assert_close(result.loss, forward["loss"], tolerance, "loss without dropout")
    assert result.weight == forward.get("weight", batch.num_graphs)
    for name, rows in result.outputs.items():
        one = np.shape(forward[name])  # a value that all rows share is an output of one row
        assert_close(rows.reshape(one), forward[name], tolerance, name)


NARROW = {"int16": (1e-2, 1e-4), "bfloat16x3": (1e-3, 2**-16), "bfloat16": (0.3, 2**-8)}
SOME = st.just(True) if EXAMPLES else st.integers(1, 5).map(lambda i: i > 3)


@examples(CASES)
@given(models(smooth=True), batches(), SOME)
def test_every_precision_equals_the_oracle(model, batch, narrow):
    """Compile each program once.

    Narrow products, of those that this processor has instructions for, are put to two fifths of
    the cells, or to all that are asked for. Their factors have 16 or 8 bits: models are within
    1e-4 or 1e-2, the worst random cells beyond, and a few so far that their own values move as much
    when products are off by the bound.
    """
    case = Case(model, batch)
    with programs_shared():
        case.compare(FLOAT64)
        case.compare(FLOAT32, dtype=np.float32)
        for precision in [p for p in NARROW if narrow and _engine.isa(p) != _engine.isa()]:
            tolerance, bound = NARROW[precision]
            case.compare(tolerance, dtype=np.float32, precision=precision, bound=bound)


@examples(28)
@given(models(), batches(), SOME)
def test_cells_with_kinks_equal_the_oracle(model, batch, serial):
    """Two fifths of them one vertex at a time, too, or all that are asked for."""
    case = Case(model, batch)
    with programs_shared():
        case.compare(FLOAT64)
        if serial:
            case.compare(FLOAT64, serial=True)


@examples(22)
@given(models(), batches(), st.sampled_from(sorted(vars(Passes()))))
def test_each_pass_can_be_switched_off(model, batch, name):
    compare(model, batch, FLOAT64, passes=replace(ALL_ON, **{name: False}))


@examples(11)
@given(models(), batches())
def test_all_passes_off(model, batch):
    off = Passes(**dict.fromkeys(vars(Passes()), False))
    compare(model, batch, FLOAT64, passes=off)


@examples(15)
@given(models(), batches())
def test_vertices_without_features_among_others(model, batch):
    with mock.patch.object(tracing, "MAX_KINDS", 0):
        compare(model, batch, FLOAT64)


@examples(15)
@given(models(), st.integers(0, 2**31), st.booleans())
def test_children_of_many_parents(model, seed, specialise):
    rng = np.random.default_rng(seed)
    graphs = []
    for n in rng.integers(6, 12, 3):
        children = [rng.choice(v, min(v, 4), replace=False).tolist() for v in range(n)]
        graphs.append(graph_of(children, rng))
    batch = cavs.batch(graphs)
    assert batch.num_edges > batch.num_vertices
    compare(model, batch, FLOAT64, passes=Passes(specialise=specialise))


@examples(15)
@given(models(), batches(), st.booleans(), st.booleans(), st.booleans())
def test_gradients_summed_a_task_at_a_time(model, batch, eager, specialise, serial):
    passes = Passes(hoist_eager=eager, hoist_lazy=False, specialise=specialise)
    compare(model, batch, FLOAT64, passes=passes, serial=serial)


@examples(15)
@given(models(), batches(), st.sampled_from(save_memory.PLANS), st.booleans())
def test_programs_that_hold_less(model, batch, plan, serial):
    """As if every plain one held too much, and that plan less."""
    always = mock.Mock(return_value=True)
    with mock.patch.multiple(save_memory, holds_much=always, holds_less=always, PLANS=(plan,)):
        compare(model, batch, FLOAT64, serial=serial)


@examples(15)
@given(models(smooth=True), batches(max_vertices=6, max_graphs=2), st.integers(0, 2**31))
def test_gradients_equal_finite_differences(model, batch, seed):
    batch = traced_parameters(model, batch)
    _, expected = reference(model, batch)
    rng = np.random.default_rng(seed)
    direction = {k: rng.normal(size=p.shape) for k, p in model.parameters().items()}
    exact = slope_of(
        {k: expected[f"grad:{k}"] for k in direction if f"grad:{k}" in expected}, direction
    )
    numeric = numeric_slope(model, batch, direction, eps=1e-5)
    assert exact == pytest.approx(numeric, rel=1e-5, abs=1e-7)


def test_cotangents_of_leaves_next_to_those_of_their_parents():
    """One buffer holds both; a leaf's is a sum over parents that are rows of other kinds."""
    cell = {"state": {"c": 1}, "top_down": False, "width": 1, "reads": {"c": "nth"}, "steps": []}
    cell |= dict.fromkeys(("edge_feature", "loss"), True)
    cell |= dict.fromkeys(("whole", "added", "pushed_child", "push_all"), False)
    cell |= {"edges": "mean", "starts": None}
    choices = {"x_width": 1, "cells": [cell]}
    absent = ("dense", "dropout", "graph_loss", "rich", "subwords", "noise")
    choices |= dict.fromkeys(absent, False)
    rng = np.random.default_rng(0)
    batch = cavs.batch([graph_of([[], [], [0]], rng)])
    compare(RandomModel(choices), batch, FLOAT64, shared=0.0)
