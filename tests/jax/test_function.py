"""``cavs.jax.Function``: vertex functions and models in programs of JAX."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.errors import CavsError, ConfigError, DTypeError, FeatureError, ShapeError
from tests.oracle import assert_close, drawn
from tests.runtime.test_input_gradients import CHAIN, ROOTS, SHARED, Encoder, graph_of

jax = pytest.importorskip("jax", reason="cavs.jax needs the package jax")
import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

from cavs.jax import Function  # noqa: E402
from cavs.jax.runs import Runs  # noqa: E402

pytestmark = pytest.mark.usefixtures("wide")
FORMS = (CHAIN, [[]], SHARED, ROOTS)


def batch_of(*forms, seed=0):
    rng = np.random.default_rng(seed)
    return cavs.batch([graph_of(children, rng) for children in forms or FORMS])


def rows_of(batch, size=3, dtype=jnp.float32, seed=0):
    return jax.random.normal(jax.random.key(seed), (batch.num_vertices, size), dtype)


@pytest.fixture
def cell():
    return drawn(Encoder(3), 0.5)


def reference(parameters, batch, x):
    """The cell vertex by vertex, in JAX."""
    h, first = [], 0
    for graph in batch.graphs:
        own = []
        for v in range(graph.num_vertices):
            total = sum((own[c] for c in graph.children(v)), jnp.zeros_like(x[0]))
            z = x[first + v] @ parameters["W.weight"] + parameters["W.bias"]
            own.append(jnp.tanh(z + total @ parameters["U"]))
        h += own
        first += graph.num_vertices
    return jnp.stack(h)


def weighed(h):
    return (h * jnp.arange(h.size, dtype=h.dtype).reshape(h.shape) / h.size).sum()


def same(found, expected, tolerance=1e-11):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_close(ours, theirs, tolerance, "value")


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_vertex_function_equals_a_loop_in_jax(cell, dtype, compiled):
    function, batch = Function(cell), batch_of()
    parameters, x = function.init(dtype=dtype), rows_of(batch, dtype=dtype)

    def loss(parameters, x):
        h = function.apply(parameters, batch, x=x)
        assert h.dtype == dtype
        return weighed(h)

    both = jax.value_and_grad(loss, (0, 1))
    found = (jax.jit(both) if compiled else both)(parameters, x)
    expected = jax.value_and_grad(lambda p, x: weighed(reference(p, batch, x)), (0, 1))
    same(found, expected(parameters, x), 1e-5 if dtype == jnp.float32 else 1e-12)
    h = function.apply(parameters, batch, x=x)
    inferred = jax.jit(lambda p, x: function.apply(p, batch, x=x))(parameters, x)
    same([h, inferred], [reference(parameters, batch, x)] * 2, 1e-5)


class Readout(cavs.Model):
    """Several outputs; reads a feature of graphs, and one that only arrays bring."""

    def __init__(self, size=3):
        self.cell, self.out = Encoder(size), nn.Linear(size, 1)

    def forward(self, batch):
        h = ops.dropout(self.cell(batch.graph, x=batch["rows"]), 0.5)
        return {"h": h, "score": self.out(ops.sum_roots(h)) * batch["scale"]}


def test_a_model_with_several_outputs_and_features():
    function, batch = Function(drawn(Readout(), 0.5)), batch_of()
    parameters, x = function.init(dtype=jnp.float64), rows_of(batch, dtype=jnp.float64)
    scale = jnp.asarray(batch["scale"], jnp.float64)

    def score(scale, parameters=parameters):
        found = function.apply(parameters, batch, rows=x, scale=scale)
        assert set(found) == {"h", "score"}
        return found["score"].sum()

    same(
        jax.grad(score)(scale),
        function.apply(parameters, batch, rows=x, scale=1 + 0 * scale)["score"],
    )
    same(jax.jit(jax.grad(score))(scale), jax.grad(score)(scale))


def test_dropout_follows_the_key():
    function, batch = Function(drawn(Readout(), 0.5)), batch_of()
    parameters, x = function.init(dtype=jnp.float64), rows_of(batch, dtype=jnp.float64)

    def run(key):
        return function.apply(parameters, batch, key, rows=x)["h"]

    first, second = (run(jax.random.key(n)) for n in range(2))
    assert (first == 0).any() and (first != second).any()
    same(jax.jit(run)(jax.random.key(0)), first, 0.0)
    assert not (function.apply(parameters, batch, rows=x)["h"] == 0).any()


# ---- when runs happen ----------------------------------------------------------------------------


def terms(function, batch, x):
    """Two outstanding forward runs, of other parameters and inputs."""

    def loss(parameters, run):
        doubled = jax.tree.map(lambda p: 2 * p, parameters)
        return (run(parameters, x) * run(doubled, 0.5 * x)).sum()

    ours = lambda p, x: function.apply(p, batch, x=x)  # noqa: E731
    theirs = lambda p, x: reference(p, batch, x)  # noqa: E731
    return (lambda p: loss(p, ours)), (lambda p: loss(p, theirs))


@pytest.mark.parametrize("keep", [1, 8])
@pytest.mark.parametrize("compiled", [False, True])
def test_two_outstanding_forward_runs(cell, keep, compiled):
    """With keep=1 the first is dropped, and runs again."""
    function, batch = Function(cell, keep=keep), batch_of()
    parameters = function.init(dtype=jnp.float64)
    ours, theirs = terms(function, batch, rows_of(batch, dtype=jnp.float64))
    gradient = jax.grad(ours)
    same((jax.jit(gradient) if compiled else gradient)(parameters), jax.grad(theirs)(parameters))


def count_forward_runs(function, call):
    """Return how many forward runs the call needs, after one that compiles."""
    call()
    (runs,) = function._runs.values()
    before = runs._calls
    jax.block_until_ready(call())
    return runs._calls - before


def test_forward_runs_once_for_each_backward_run(cell):
    function, batch = Function(cell), batch_of()
    parameters, x = function.init(dtype=jnp.float64), rows_of(batch, dtype=jnp.float64)
    gradient = jax.grad(lambda p: function.apply(p, batch, x=x).sum())
    for call in (gradient, jax.jit(gradient)):
        assert count_forward_runs(function, lambda call=call: call(parameters)) == 1
    (runs,) = function._runs.values()
    assert not runs._outstanding


def test_forward_runs_without_backward_are_bounded(cell):
    function, batch = Function(cell, keep=3), batch_of()
    parameters, x = function.init(dtype=jnp.float64), rows_of(batch, dtype=jnp.float64)
    pulls = [
        jax.vjp(lambda p, n=n: function.apply(p, batch, x=x * n), parameters)[1] for n in range(9)
    ]
    (runs,) = function._runs.values()
    assert len(runs._outstanding) == 3
    for n, pull in enumerate(pulls):
        expected = jax.vjp(lambda p, n=n: reference(p, batch, x * n), parameters)[1]
        same(pull(2 * x), expected(2 * x))
    assert not runs._outstanding


def test_backward_twice_runs_forward_again(cell):
    function, batch = Function(drawn(Readout(), 0.5)), batch_of()
    parameters, x = function.init(dtype=jnp.float64), rows_of(batch, dtype=jnp.float64)
    outputs, pull = jax.vjp(
        lambda p: function.apply(p, batch, jax.random.key(3), rows=x), parameters
    )
    same(pull(outputs), pull(outputs), 0.0)


def test_values_survive_other_uses_between_forward_and_backward(cell):
    """Arrays of a program are used again after the call; parameters are written by others."""
    function, batch = Function(cell), batch_of()
    parameters, x = function.init(dtype=jnp.float64), rows_of(batch, dtype=jnp.float64)
    forward = jax.jit(lambda p, x: jax.vjp(lambda p, x: function.apply(p, batch, x=x * 2), p, x))
    _, pull = forward(parameters, x)
    for n in range(3):
        function.apply(jax.tree.map(lambda p, n=n: p + n, parameters), batch, x=x)
        jax.jit(lambda x, n=n: jnp.sin(x * n))(x).block_until_ready()
    _, expected = jax.vjp(lambda p, x: reference(p, batch, x * 2), parameters, x)
    same(pull(x), expected(x))


@pytest.mark.parametrize("compiled", [False, True])
def test_checkpoint(cell, compiled):
    function, batch = Function(cell), batch_of()
    parameters, x = function.init(dtype=jnp.float64), rows_of(batch, dtype=jnp.float64)

    @jax.checkpoint
    def block(parameters, x):
        return jnp.tanh(function.apply(parameters, batch, x=x))

    def loss(parameters, x):
        return block(parameters, block(parameters, x)).sum()

    def expected(parameters, x):
        again = lambda x: jnp.tanh(reference(parameters, batch, x))  # noqa: E731
        return again(again(x)).sum()

    gradient = jax.grad(loss, (0, 1))
    found = (jax.jit(gradient) if compiled else gradient)(parameters, x)
    same(found, jax.grad(expected, (0, 1))(parameters, x))


def test_scan_and_map(cell):
    function, batch = Function(cell), batch_of()
    parameters, x = function.init(dtype=jnp.float64), rows_of(batch, dtype=jnp.float64)

    def last(run):
        return lambda x: jax.lax.scan(lambda x, _: (run(x), None), x, length=3)[0].sum()

    ours = last(lambda x: function.apply(parameters, batch, x=x))
    same(jax.grad(ours)(x), jax.grad(last(lambda x: reference(parameters, batch, x)))(x))
    several = jnp.stack([x, 2 * x])
    found = jax.lax.map(lambda x: function.apply(parameters, batch, x=x), several)
    same(found, jnp.stack([reference(parameters, batch, x) for x in several]))


def test_training_under_jit(cell):
    """The same steps as a loop over vertices in JAX; a batch is an argument."""
    function, several = Function(cell), [batch_of(), batch_of(SHARED, seed=1)]

    def train(run):
        @jax.jit
        def step(parameters, batch, x):
            loss = lambda p: ((run(p, batch, x) - 0.5) ** 2).mean()  # noqa: E731
            found, gradients = jax.value_and_grad(loss)(parameters)
            return found, jax.tree.map(lambda p, g: p - 0.2 * g, parameters, gradients)

        parameters, losses = function.init(dtype=jnp.float64), []
        for n in range(6):
            batch = several[n % 2]
            found, parameters = step(parameters, batch, rows_of(batch, dtype=jnp.float64))
            losses.append(found)
        return losses, parameters

    losses, parameters = train(lambda p, batch, x: function.apply(p, batch, x=x))
    assert losses[-2] < losses[0]
    same([losses, parameters], list(train(reference)))


def test_gradients_by_inputs_only_where_they_are_needed(cell, monkeypatch):
    function, batch = Function(cell), batch_of()
    parameters, x = function.init(), rows_of(batch)
    asked = []
    forward = Runs.forward

    def recorded(runs, batch, values, inputs, *options):
        asked.append(inputs)
        return forward(runs, batch, values, inputs, *options)

    monkeypatch.setattr(Runs, "forward", recorded)
    for wrap in (lambda f: f, jax.jit):
        jax.block_until_ready(
            wrap(jax.grad(lambda p: function.apply(p, batch, x=x).sum()))(parameters)
        )
        wrap(jax.grad(lambda x: function.apply(parameters, batch, x=x).sum()))(x)
    assert asked == [False, True] * 2


def test_frozen_parameters_have_gradients_of_zero(cell):
    cell.U.trainable = False
    function, batch = Function(cell), batch_of()
    parameters, x = function.init(), rows_of(batch)
    found = jax.grad(lambda p: function.apply(p, batch, x=x).sum())(parameters)
    assert not found["U"].any() and found["W.weight"].any()


def test_edges_and_graphs_by_domain():
    class Weighed(cavs.VertexFunction):
        def __init__(self):
            self.state, self.W = cavs.State(h=2), cavs.Parameter((2, 2))

        def vertex(self, v):
            below = (v.gather().h * v.edge("weight")).sum()
            h = ops.tanh(v.pull("x") @ self.W + below + v.pull("whole"))
            v.scatter(h=h)
            v.push(h)

    function = Function(Weighed(), domains={"weight": "edge", "whole": "graph"})
    parameters, batch = function.init(0, jnp.float64), batch_of()
    x = rows_of(batch, 2, jnp.float64)
    weight, whole = 0.5 * x[: batch.num_edges], x[: batch.num_graphs]

    def run(x, weight, whole):
        return function.apply(parameters, batch, x=x, weight=weight, whole=whole)

    check_grads(run, (x, weight, whole), order=1, modes=["rev"])


def test_the_model_is_not_written(cell):
    before = {name: p.current().copy() for name, p in cell.parameters().items()}
    function, batch = Function(cell), batch_of()
    same(function.init(dtype=jnp.float64), {n: jnp.asarray(v) for n, v in before.items()}, 0.0)
    parameters = function.init(3)
    assert (parameters["U"] != before["U"]).any()
    same(parameters, function.init(3), 0.0)
    function.apply(parameters, batch, x=rows_of(batch))
    for name, p in cell.parameters().items():
        assert p.current().dtype == np.float64 and (p.current() == before[name]).all()


def test_arrays_of_numpy(cell):
    function, batch = Function(cell), batch_of()
    parameters = {name: np.asarray(p) for name, p in function.init().items()}
    x = np.asarray(rows_of(batch))
    same(function.apply(parameters, batch, x=x), reference(parameters, batch, x), 1e-5)


def test_features_of_the_batch_are_inputs():
    rng = np.random.default_rng(0)
    graphs = [cavs.Graph(c, {"x": rng.normal(size=(len(c), 3))}) for c in FORMS]
    batch, cell = cavs.batch(graphs), drawn(Encoder(3), 0.5)
    function = Function(cell, features=("x",))
    parameters = function.init(dtype=jnp.float64)
    found = jax.jit(lambda p: function.apply(p, batch))(parameters)
    same(found, Function(cell).apply(parameters, batch, x=np.asarray(batch["x"], np.float64)), 1e-6)


def test_a_batch_is_free_after_runs_without_jit(cell):
    function = Function(cell)
    batches = [batch_of() for _ in range(3)]
    parameters, x = function.init(), rows_of(batches[0])
    for batch in batches:
        jax.grad(lambda p, batch=batch: function.apply(p, batch, x=x).sum())(parameters)
    alive = [weakref.ref(batch) for batch in batches]
    del batches, batch
    gc.collect()
    assert [found() for found in alive] == [None] * 3


def test_copies_and_pickles(cell):
    function, batch = Function(cell), batch_of()
    parameters, x = function.init(), rows_of(batch)
    expected = function.apply(parameters, batch, x=x)
    for other in (copy.deepcopy(function), pickle.loads(pickle.dumps(function))):
        same(other.apply(parameters, batch, x=x), expected, 0.0)


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.grad])
def test_vmap_is_refused(cell, wrap):
    function, batch = Function(cell), batch_of()
    parameters, x = function.init(), rows_of(batch)
    several = jax.vmap(wrap(lambda x: function.apply(parameters, batch, x=x).sum()))
    with pytest.raises(ConfigError, match=r"jax\.vmap .* no axis to map over") as error:
        several(jnp.stack([x, x]))
    assert "put them into one cavs.batch" in str(error.value)
    assert "test_function.py" in str(error.value)


@pytest.mark.parametrize("compiled", [False, True])
def test_second_derivatives(cell, compiled):
    function, batch = Function(cell), batch_of()
    parameters, x = function.init(), rows_of(batch)
    first = jax.grad(lambda x: (function.apply(parameters, batch, x=x) ** 2).sum())
    first = jax.jit(first) if compiled else first
    with pytest.raises(ConfigError, match="second derivatives"):
        jax.grad(lambda x: first(x).sum())(x)


@pytest.mark.parametrize("compiled", [False, True])
def test_wrong_inputs(cell, compiled):
    function, batch = Function(cell), batch_of()
    parameters, x = function.init(), rows_of(batch)

    def run(x, parameters=parameters):
        call = lambda p, x: function.apply(p, batch, x=x)  # noqa: E731
        return (jax.jit(call) if compiled else call)(parameters, x)

    with pytest.raises(FeatureError, match=r"'x' has 3 rows, the batch needs 14: one for every"):
        run(x[:3])
    with pytest.raises(DTypeError, match=r"input 'x' is float64, parameter 'W.weight' float32"):
        run(x.astype(jnp.float64))
    with pytest.raises(DTypeError, match="integers belong to the graphs"):
        run(jnp.zeros(x.shape, jnp.int32))
    with pytest.raises(ShapeError, match="input 'x' is one number"):
        run(1.0)
    with pytest.raises(ShapeError, match=r"parameter 'U' has shape \[3, 3\], .* \[3\]"):
        run(x, {**parameters, "U": jnp.zeros(3, jnp.float32)})
    with pytest.raises(ConfigError, match=r"parameters U; the model has W\.weight, W\.bias, U"):
        run(x, {"U": parameters["U"]})
    with pytest.raises(CavsError, match="4"):
        run(jnp.zeros((len(x), 4), jnp.float32))
    same(run(x), reference(parameters, batch, x), 1e-5)  # it is as it was


def test_wrong_arguments(cell):
    with pytest.raises(ConfigError, match=r"give an instance of a cavs\.VertexFunction"):
        Function(Encoder)
    with pytest.raises(ConfigError, match=r"domains\['x'\] is 'node', not one of vertex, edge"):
        Function(cell, domains={"x": "node"})
    with pytest.raises(ConfigError, match="keep"):
        Function(cell, keep=0)
    function, batch = Function(cell), batch_of()
    with pytest.raises(ConfigError, match="parameters of float16"):
        function.init(dtype=jnp.float16)
    with pytest.raises(ConfigError, match="input 'x' is 'rows', not an array"):
        function.apply(function.init(), batch, x="rows")
    with pytest.raises(ConfigError, match="the model has"):
        function.apply([1], batch, x=rows_of(batch))
    with pytest.raises(CavsError, match="batch"):
        function.apply(function.init(), [1], x=rows_of(batch))


def test_float64_needs_a_switch(cell):
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(ConfigError, match=r"parameters of float64"):
            Function(cell).init(dtype=np.float64)
    finally:
        jax.config.update("jax_enable_x64", True)
