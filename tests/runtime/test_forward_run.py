"""A forward run, and its backward run later: ``Session.forward`` and ``ForwardRun.backward``."""

from __future__ import annotations

import gc
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import cavs
from cavs import nn, ops
from cavs.compiler import save_memory
from cavs.compiler.pipeline import Passes
from cavs.errors import ConfigError, FeatureError, TraceError
from cavs.ir.interpret import interpret
from cavs.passes.differentiate import COTANGENT
from cavs.runtime import program_cache
from tests.compiled_once import programs_shared
from tests.compiler.test_typed_vertices import cases as typed_cases
from tests.compiler.test_typed_vertices import drawn as drawn_types
from tests.draws import examples
from tests.oracle import assert_close, drawn, inputs_of, too_steep, traced
from tests.random_cells import batches, models, traced_parameters
from tests.random_structures import cases as structure_cases
from tests.runtime.test_input_gradients import (
    ALL_ON,
    CHAIN,
    FLOAT32,
    FLOAT64,
    OFF,
    ROOTS,
    SHARED,
    Encoded,
    graph_of,
    own_rows,
)

AT = {"seed": 5, "step": 2}


def compare(model, batch, tolerance, *, serial=False, inputs=True, dropout=True, **options):
    """Compare outputs and gradients of a session with the oracle; return the session."""
    session = cavs.Session(model, **{"dtype": np.float64, "passes": ALL_ON} | options)
    if serial:
        session.set_serial(True)
    run = session.forward(batch, inputs=inputs, dropout=dropout, **AT)
    rng = np.random.default_rng(0)
    cotangents = {k: rng.normal(size=x.shape) for k, x in run.outputs.items()}
    graph = traced(model, batch, inputs=True, outside=True)
    features = {f"{COTANGENT}{k}": d for k, d in cotangents.items()}
    whole = inputs_of(batch, **AT)
    whole.features.update(features)
    expected = interpret(graph, whole)
    expected |= own_rows(graph, expected, batch)
    given = {k: d.astype(session.dtype) for k, d in cotangents.items()}
    found = run.backward(given)
    try:
        for name, rows in run.outputs.items():
            assert rows.dtype == session.dtype
            one = np.shape(expected[name])  # a value that all rows share is an output of one row
            assert_close(rows.reshape(one), expected[name], tolerance, name)
        for name, g in found.parameters.items():
            unused = np.zeros(g.shape)
            assert_close(g, expected.get(f"grad:{name}", unused), tolerance, name)
        for name, g in found.inputs.items():
            unread = np.zeros(g.shape)  # but for values that no output depends on
            assert_close(g, expected.get(f"input:{name}", unread), tolerance, name)
    except AssertionError:
        how = AT | {"features": features}
        if session.dtype == np.float32 and too_steep(graph, batch, expected, tolerance, **how):
            reject()
        raise
    known = {k for k in expected if k.startswith("input:")}
    assert {f"input:{k}" for k in found.inputs} >= (known if inputs else set())
    assert inputs or not found.inputs
    return session


@examples(12)
@given(models(smooth=True), batches(), st.booleans())
def test_random_cells_equal_the_oracle(model, batch, inputs):
    batch = traced_parameters(model, batch)
    with programs_shared():
        compare(model, batch, FLOAT64, inputs=inputs)
        compare(model, batch, FLOAT32, inputs=inputs, dtype=np.float32)


@examples(12)
@given(models(smooth=True), batches(), st.integers(1, 3))
def test_distinct_vertices_run_once(model, batch, copies):
    """The outputs of copies are equal, and their cotangents are added."""
    batch = traced_parameters(model, cavs.batch([*batch.graphs] * copies))
    with mock.patch.object(program_cache, "MIN_MERGED", 0):
        compare(model, batch, FLOAT64, inputs=False)


class Composed(cavs.Model):
    """States of vertices, and the sum of those of a graph."""

    def __init__(self):
        self.cell = nn.ChildSumTreeLSTM(3, 4)

    def forward(self, batch):
        h = self.cell(batch.graph, x=batch["x"])
        return {"output": h, "total": ops.sum_graph(h)}


def test_copies_are_computed_once():
    session = cavs.Session(drawn(Composed(), 0.5), dtype=np.float64)
    rng = np.random.default_rng(1)
    graphs = [graph_of(shape, rng) for shape in (CHAIN, ROOTS)]
    batch = cavs.batch(graphs * 40)
    run = session.forward(batch)
    assert run._rows.num_vertices == sum(g.num_vertices for g in graphs)
    weights = {name: rng.normal(size=rows.shape) for name, rows in run.outputs.items()}
    found = run.backward(weights).parameters
    separate = cavs.Session(session.model, dtype=session.dtype, passes=Passes(merge_vertices=False))
    expected = separate.forward(batch).backward(weights).parameters
    assert list(found) == list(expected)
    for name, g in found.items():
        assert_close(g, expected[name], 1e-11, name)


def test_models_whose_copies_differ_have_one_program():
    """Vertices read a value of their graph, so large batches run as small ones do."""
    session = cavs.Session(drawn(Encoded(), 0.5), dtype=np.float64)
    graph = graph_of(CHAIN, np.random.default_rng(1))
    for count in (1, 100):
        session.forward(cavs.batch([graph] * count))
    built = [v for v in session._variants.values() if v.build is not None]
    assert len(built) == 1


@examples(10)
@given(models(), batches(), st.booleans())
def test_cells_with_kinks_equal_the_oracle(model, batch, serial):
    compare(model, traced_parameters(model, batch), FLOAT64, serial=serial)


@examples(10)
@given(models(), batches(), st.sampled_from(sorted(vars(Passes()))))
def test_each_pass_can_be_switched_off(model, batch, name):
    passes = replace(ALL_ON, **{name: False})
    compare(model, traced_parameters(model, batch), FLOAT64, passes=passes)


@examples(6)
@given(models(), batches())
def test_all_passes_off(model, batch):
    compare(model, traced_parameters(model, batch), FLOAT64, passes=OFF)


@examples(5)
@given(models(), batches(), st.sampled_from(save_memory.PLANS))
def test_programs_that_hold_less(model, batch, plan):
    always = mock.Mock(return_value=True)
    with mock.patch.multiple(save_memory, holds_much=always, holds_less=always, PLANS=(plan,)):
        compare(model, traced_parameters(model, batch), FLOAT64)


@examples(8)
@given(typed_cases(), st.booleans())
def test_types_of_vertices(case, inputs):
    with mock.patch.object(program_cache, "MIN_MERGED", 0):
        compare(drawn_types(*case), case[1], FLOAT64, inputs=inputs)


@examples(6)
@given(structure_cases(), st.booleans())
def test_several_structures(case, inputs):
    with mock.patch.object(program_cache, "MIN_MERGED", 0):
        compare(*case, FLOAT64, inputs=inputs)


def batch_of(*forms, seed=0):
    rng = np.random.default_rng(seed)
    return cavs.batch([graph_of(children, rng) for children in forms])


@pytest.fixture
def model():
    return drawn(Encoded(), 0.5)


@pytest.fixture
def session(model):
    return cavs.Session(model, dtype=np.float64)


def assert_equal(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert set(ours) == set(theirs)
        for name, rows in ours.items():
            np.testing.assert_array_equal(rows, theirs[name])


def ones(run):
    return {name: np.ones(rows.shape) for name, rows in run.outputs.items()}


def test_gradients_equal_those_of_a_loss_in_the_model(session):
    """The sum of all outputs, as `Encoded.loss` has, but for the sum of x."""
    batch = batch_of(CHAIN, [[]], SHARED, ROOTS)
    run = session.forward(batch, inputs=True)
    found = run.backward(ones(run))
    _, gradients, inputs = session.gradients(batch, inputs=True)
    for name, g in found.parameters.items():
        assert_close(g, gradients[name], 1e-12, name)
    assert_close(found.inputs["x"] + 1.0, inputs["x"], 1e-12, "x")
    assert_close(found.inputs["scale"], inputs["scale"], 1e-12, "scale")


def test_outputs_are_those_of_predict(session):
    batch = batch_of(CHAIN, SHARED)
    assert_close(
        session.forward(batch).outputs["output"], session.predict(batch)["output"], 1e-12, "output"
    )


def test_outstanding_runs_have_memory_of_their_own(session):
    """Backward in another order, with other batches and a training run in between."""
    some = [batch_of(CHAIN, SHARED, seed=1), batch_of(ROOTS, seed=2), batch_of(CHAIN, seed=3)]
    alone = []
    for batch in some:
        run = session.forward(batch, inputs=True)
        alone.append(run.backward(ones(run)))
    runs = [session.forward(batch, inputs=True) for batch in some + some]
    session.gradients(some[1])
    session.predict(some[0])
    for i in (2, 0, 4, 5, 1, 3):
        assert_equal(runs[i].backward(ones(runs[i])), alone[i % 3])


def test_memory_of_dropped_runs_is_used_again(session):
    batch = batch_of(CHAIN, SHARED)
    run = session.forward(batch, inputs=True)
    expected = run.backward(ones(run))
    for _ in range(20):
        session.forward(batch, inputs=True)
    gc.collect()
    run = session.forward(batch, inputs=True)
    del session
    assert_equal(run.backward(ones(run)), expected)


def test_gradients_are_the_callers(session):
    batch = batch_of(CHAIN, SHARED)
    run = session.forward(batch)
    first = run.backward(ones(run))
    expected = {name: rows.copy() for name, rows in first.parameters.items()}
    for rows in first.parameters.values():
        rows[...] = np.nan
    run = session.forward(batch)
    second = run.backward(ones(run))
    assert_equal([second.parameters], [expected])
    assert all(np.isnan(rows).all() for rows in first.parameters.values())


def test_memory_of_dropped_gradients_is_used_again(session):
    batch = batch_of(CHAIN, SHARED)

    def addresses():
        run = session.forward(batch)
        found = run.backward(ones(run)).parameters
        for rows in found.values():
            assert np.isfinite(rows).all()
            rows[...] = np.nan  # the next run reads none of it
        return {name: rows.ctypes.data for name, rows in found.items()}

    assert addresses() == addresses() == addresses()


def test_outputs_are_the_callers(session):
    batch = batch_of(CHAIN)
    run, other = session.forward(batch), session.forward(batch)
    before = run.outputs["output"].copy()
    other.outputs["output"][:] = 7.0
    other.backward(ones(other))
    np.testing.assert_array_equal(run.outputs["output"], before)


def test_a_second_backward_run_is_an_error(session):
    run = session.forward(batch_of(CHAIN))
    run.backward(ones(run))
    with pytest.raises(ConfigError, match="a second backward run of one forward run"):
        run.backward(ones(run))


def test_parameters_that_were_written_are_an_error(session, model):
    run = session.forward(batch_of(CHAIN))
    model.out.bias.value[:] = 1.0
    with pytest.raises(ConfigError, match="parameters were written since the forward run"):
        run.backward(ones(run))
    run = session.forward(batch_of(CHAIN))
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=0.1), session=session)
    trainer.step(batch_of(CHAIN))
    with pytest.raises(ConfigError, match="parameters were written since the forward run"):
        run.backward(ones(run))
    run = session.forward(batch_of(CHAIN))
    session.invalidate()
    with pytest.raises(ConfigError, match="parameters were written since the forward run"):
        run.backward(ones(run))


def test_values_may_be_read_in_between(session, model):
    run = session.forward(batch_of(CHAIN))
    assert model.out.bias.current().shape == (1,)
    run.backward(ones(run))


def test_wrong_cotangents_are_errors(session):
    run = session.forward(batch_of(CHAIN))
    with pytest.raises(ConfigError, match="cotangent of 'logits', which is no output") as error:
        run.backward({"logits": np.ones((4, 1))})
    assert "outputs are 'output'" in str(error.value)
    with pytest.raises(ConfigError, match=r"'output' has shape \[4\], the output \[4, 1\]"):
        run.backward({"output": np.ones(4)})
    run.backward({"output": np.ones((4, 1))})  # an error leaves the run as it was


def test_outputs_without_a_cotangent(session):
    run = session.forward(batch_of(CHAIN), inputs=True)
    for g in (g for group in run.backward({}) for g in group.values()):
        np.testing.assert_array_equal(g, np.zeros(g.shape))


def test_frozen_parameters_have_no_gradient(model):
    model.out.weight.trainable = False
    session = cavs.Session(model, dtype=np.float64)
    run = session.forward(batch_of(CHAIN))
    found = run.backward(ones(run))
    assert set(found.parameters) == set(session.parameters) - {"out.weight"}
    assert found.inputs == {}


def test_without_dropout():
    class Dropped(Encoded):
        def forward(self, batch):
            return ops.dropout(super().forward(batch), 0.5)

    session = cavs.Session(drawn(Dropped(), 0.5), dtype=np.float64)
    batch = batch_of(CHAIN, SHARED, ROOTS)
    run = session.forward(batch, dropout=False)
    assert_close(run.outputs["output"], session.predict(batch)["output"], 1e-12, "output")
    again = [session.forward(batch, seed=s).outputs["output"] for s in (0, 0, 1)]
    np.testing.assert_array_equal(again[0], again[1])
    assert (again[0] == 0.0).any()
    assert (again[0] != again[2]).any()


class Readout(cavs.Model):
    """Outputs of vertices, of graphs and of the batch as a whole; a loss is none of its own."""

    def __init__(self, size=3):
        self.cell, self.bias = Encoded(size).cell, cavs.Parameter(size, init="uniform")

    def forward(self, batch):
        h = self.cell(batch.graph, x=batch["x"])
        whole = ops.sum_rows(h) * self.bias
        return {"h": h, "graph": ops.sum_roots(h) * batch["scale"], "whole": whole, "x": batch["x"]}


def test_outputs_of_all_domains():
    model = drawn(Readout(), 0.5)
    session = compare(model, batch_of(CHAIN, SHARED, ROOTS), FLOAT64)
    shapes = {k: x.shape for k, x in session.forward(batch_of(CHAIN, SHARED)).outputs.items()}
    assert shapes == {"h": (8, 3), "graph": (2, 3), "whole": (1, 3), "x": (8, 3)}


def test_a_model_without_forward():
    class Lost(cavs.Model):
        def loss(self, batch):
            return ops.sum_rows(batch["x"].sum(-1))

    with pytest.raises(TraceError, match="Lost has no forward"):
        cavs.Session(Lost()).forward(batch_of(CHAIN))


def test_replicas_are_refused(model):
    with pytest.raises(ConfigError, match="without replicas"):
        cavs.Session(model, replicated=True).forward(batch_of(CHAIN))


def test_new_kinds_of_vertices_between_forward_and_backward():
    class Words(cavs.Model):
        def __init__(self):
            self.embedding, self.cell = nn.Embedding(5, 3), Encoded(3).cell

        def forward(self, batch):
            return self.cell(batch.graph, x=self.embedding(batch["token"]))

    def batch(*tokens):
        return cavs.batch([cavs.Graph(CHAIN, {"token": np.array(tokens)})])

    session = cavs.Session(drawn(Words(), 0.5), dtype=np.float64)
    run = session.forward(batch(0, 1, 2, 3))
    expected = run.backward(ones(run))
    run = session.forward(batch(0, 1, 2, 3))
    session.forward(batch(-1, 1, -1, 3))
    assert_equal(run.backward(ones(run)), expected)
    with pytest.raises(FeatureError, match="feature 'token' is 5 at vertex 1 of graph 0"):
        session.forward(batch(0, 5, 2, 3))
    run = session.forward(batch(0, 1, 2, 3))
    assert_close(run.backward(ones(run))[0]["cell.U"], expected[0]["cell.U"], 1e-12, "U")
