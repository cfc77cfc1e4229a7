"""Gradients by float features: ``Session.gradients(batch, inputs=True)``."""

from __future__ import annotations

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
from cavs.errors import ConfigError
from cavs.ir import Graph
from cavs.ir.interpret import interpret
from cavs.passes.differentiate import float_features
from cavs.runtime import program_cache
from tests.compiled_once import programs_shared
from tests.compiler.test_typed_vertices import cases as typed_cases
from tests.compiler.test_typed_vertices import drawn as drawn_types
from tests.draws import examples
from tests.oracle import agrees, assert_close, drawn, inputs_of, loss_of, too_steep, traced
from tests.random_cells import batches, models, traced_parameters
from tests.random_structures import cases as structure_cases

FLOAT64, FLOAT32 = 1e-9, 1e-4
AT = {"seed": 5, "step": 2}
ALL_ON = Passes(**dict.fromkeys(vars(Passes()), True))
OFF = Passes(**dict.fromkeys(vars(Passes()), False))


def reference(model, batch):
    """Return the graph with gradients by features, and its outputs by the interpreter."""
    graph = traced(model, batch, inputs=True)
    found = interpret(graph, inputs_of(batch, **AT))
    return graph, found | own_rows(graph, found, batch)


def own_rows(graph, found, batch):
    """Return the gradients by features: those of a type have rows of the vertices of the type."""
    rows = {}
    for feature in float_features(graph):
        key = f"input:{feature.attr('name')}"
        of, structure = dict(feature.attrs).get("vertex_type"), feature.type.domain.structure
        graphs = batch.graphs[structure] if structure else batch
        mask = np.array(graphs.types or (), str) == of
        rows[key] = found[key] if of is None else found[key][mask]
    return rows


def compare(model, batch, tolerance, *, serial=False, known=None, **options):
    """Compare loss and all gradients of a session with the oracle; return those by features.

    known: the reference, where another session of the model was compared with it.
    """
    graph, expected = known or reference(model, batch)
    session = cavs.Session(model, **{"dtype": np.float64, "passes": ALL_ON} | options)
    if serial:
        session.set_serial(True)
    loss, gradients, inputs = session.gradients(batch, inputs=True, **AT)
    known = {k for k in expected if k.startswith("input:")}
    assert {f"input:{k}" for k in inputs} >= known
    try:
        assert_close(loss, expected["loss"], tolerance, "loss")
        for name, found in gradients.items():
            unused = np.zeros(found.shape)
            assert_close(found, expected.get(f"grad:{name}", unused), tolerance, name)
        for name, found in inputs.items():
            assert found.dtype == session.dtype
            if len(found):
                assert found.shape == np.shape(batch[name])
            unread = np.zeros(found.shape)  # but for values that the loss does not depend on
            assert_close(found, expected.get(f"input:{name}", unread), tolerance, name)
    except AssertionError:
        if session.dtype == np.float32 and too_steep(graph, batch, expected, tolerance, **AT):
            reject()
        raise
    return inputs


@examples(15)
@given(models(smooth=True), batches())
def test_random_cells_equal_the_oracle(model, batch):
    batch = traced_parameters(model, batch)
    with programs_shared():
        known = reference(model, batch)
        compare(model, batch, FLOAT64, known=known)
        compare(model, batch, FLOAT32, known=known, dtype=np.float32)


@examples(10)
@given(models(), batches(), st.booleans())
def test_cells_with_kinks_equal_the_oracle(model, batch, serial):
    compare(model, traced_parameters(model, batch), FLOAT64, serial=serial)


@examples(10)
@given(models(), batches(), st.sampled_from(sorted(vars(Passes()))))
def test_each_pass_can_be_switched_off(model, batch, name):
    passes = replace(ALL_ON, **{name: False})
    compare(model, traced_parameters(model, batch), FLOAT64, passes=passes)


@examples(3)
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
@given(typed_cases())
def test_features_of_types(case):
    compare(drawn_types(*case), case[1], FLOAT64)


@examples(6)
@given(structure_cases())
def test_several_structures_and_features_of_pairs(case):
    compare(*case, FLOAT64)


def slope(graph, inputs, direction, eps):
    """Return the slope of the loss along a direction of the features, by central differences."""
    start = {k: np.asarray(inputs.features[k], np.float64) for k in direction}
    only = Graph({"loss": graph.outputs["loss"]}, graph.slots)

    def at(t):
        inputs.features.update({k: start[k] + t * d for k, d in direction.items()})
        return float(interpret(only, inputs)["loss"])

    wide, narrow = ((at(step) - at(-step)) / (2 * step) for step in (eps, eps / 2))
    inputs.features.update(start)
    return (4 * narrow - wide) / 3


@examples(8)
@given(models(smooth=True), batches(max_vertices=6, max_graphs=2), st.integers(0, 2**31))
def test_gradients_equal_finite_differences(model, batch, seed):
    batch = traced_parameters(model, batch)
    graph = traced(model, batch)
    loss, _, found = cavs.Session(model, dtype=np.float64).gradients(batch, inputs=True)
    assert loss == pytest.approx(loss_of(graph, batch), rel=1e-9)
    rng = np.random.default_rng(seed)
    direction = {k: rng.normal(size=g.shape) for k, g in found.items()}
    exact = sum(float((found[k] * d).sum()) for k, d in direction.items())
    numeric = slope(graph, inputs_of(batch), direction, 1e-5)
    assert exact == pytest.approx(numeric, rel=1e-5, abs=1e-7)


class Encoder(cavs.VertexFunction):
    def __init__(self, size):
        self.state, self.W = cavs.State(h=size), nn.Linear(size, size)
        self.U = cavs.Parameter((size, size))

    def vertex(self, v):
        h = ops.tanh(self.W(v.pull("x")) + v.gather().h.sum() @ self.U)
        v.scatter(h=h)
        v.push(h)


class Encoded(cavs.Model):
    """Reads one feature in several places, and others of edges and graphs."""

    def __init__(self, size=3):
        self.cell, self.out = Encoder(size), nn.Linear(size, 1)

    def forward(self, batch):
        return self.out(self.cell(batch.graph, x=batch["x"]) * batch["x"]) * batch["scale"]

    def loss(self, batch):
        return ops.sum_rows(self.forward(batch).sum(-1)) + ops.sum_rows(batch["x"].sum(-1))


def graph_of(children, rng, size=3):
    floats = rng.normal(size=(len(children), size)).astype(np.float32)
    whole = {"scale": rng.normal(size=1).astype(np.float32)}
    return cavs.Graph(children, {"x": floats, "unread": floats}, graph_features=whole)


CHAIN = [[], [0], [1], [2]]
SHARED = [[], [0, 0], [0, 1], [1, 2]]
ROOTS = [[], [0], [0], [], [3]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_readers_add_up_on_graphs_of_all_forms(dtype):
    """Unequal depths, one vertex, shared children, several roots, chains."""
    rng = np.random.default_rng(0)
    forms = [CHAIN, [[]], SHARED, ROOTS, CHAIN]
    batch = cavs.batch([graph_of(children, rng) for children in forms])
    model = drawn(Encoded(), 0.5)
    tolerance = FLOAT64 if dtype == np.float64 else FLOAT32
    found = compare(model, batch, tolerance, dtype=dtype)
    assert set(found) == {"x", "scale"}
    assert found["scale"].shape == (5, 1)


def test_equal_vertices_have_gradients_of_their_own():
    """They are computed once without ``inputs=True``."""
    rng = np.random.default_rng(1)
    x = np.stack([rng.normal(size=3)] * 4)
    graphs = [
        cavs.Graph(CHAIN, {"x": x}, graph_features={"scale": np.array([s])}) for s in (0.5, -2.0)
    ]
    model = drawn(Encoded(), 0.5)
    with mock.patch.object(program_cache, "MIN_MERGED", 1):
        found = compare(model, cavs.batch(graphs), FLOAT64)
    assert not np.allclose(found["x"][0], found["x"][4])


def test_nothing_changes_without_inputs():
    """Programs, bits and what `aux` reads are those of a session that never had inputs."""
    rng = np.random.default_rng(2)
    batch = cavs.batch([graph_of(children, rng) for children in (CHAIN, SHARED)])
    model = drawn(Encoded(), 0.5)
    one, other = cavs.Session(model, dtype=np.float64), cavs.Session(model, dtype=np.float64)
    loss, _, _ = one.gradients(batch, inputs=True)
    ours, theirs = one.gradients(batch), other.gradients(batch)
    assert ours[0] == theirs[0] == loss
    for name, found in ours[1].items():
        np.testing.assert_array_equal(found, theirs[1][name])
    texts = [repr(s.compiled(batch, record=False).program) for s in (one, other)]
    assert texts[0] == texts[1]
    agrees(model, batch)


def test_a_feature_that_the_loss_does_not_depend_on():
    class Cut(Encoded):
        def loss(self, batch):
            x = ops.stop_gradient(batch["x"])
            return ops.sum_rows(self.out(self.cell(batch.graph, x=x)).sum(-1))

    batch = cavs.batch([graph_of(CHAIN, np.random.default_rng(0))])
    found = compare(drawn(Cut(), 0.5), batch, FLOAT64)
    np.testing.assert_array_equal(found["x"], np.zeros((4, 3)))


def test_states_of_a_session_hold_the_program():
    batch = cavs.batch([graph_of(CHAIN, np.random.default_rng(0))])
    model = drawn(Encoded(), 0.5)
    session = cavs.Session(model, dtype=np.float64)
    session.gradients(batch, inputs=True)
    other = cavs.Session(model, dtype=np.float64)
    other.load_state_dict(session.state_dict())
    _, _, found = other.gradients(batch, inputs=True)
    np.testing.assert_array_equal(found["x"], session.gradients(batch, inputs=True)[2]["x"])


def test_inputs_is_a_flag():
    batch = cavs.batch([graph_of(CHAIN, np.random.default_rng(0))])
    with pytest.raises(ConfigError, match="inputs is 'x', but must be True or False"):
        cavs.Session(Encoded()).gradients(batch, inputs="x")
