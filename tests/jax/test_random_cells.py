"""``cavs.jax.Function`` on random cells: the oracle, and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs.ir.interpret import interpret
from cavs.passes.differentiate import COTANGENT
from tests.compiler.test_typed_vertices import cases as typed_cases
from tests.compiler.test_typed_vertices import drawn as drawn_types
from tests.draws import examples
from tests.oracle import assert_close, inputs_of, traced
from tests.random_cells import batches, models, traced_parameters
from tests.random_structures import cases as structure_cases
from tests.runtime.test_input_gradients import own_rows

jax = pytest.importorskip("jax", reason="cavs.jax needs the package jax")
import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

from cavs.jax import Function  # noqa: E402

pytestmark = pytest.mark.usefixtures("wide")


def compare(model, batch, compiled, *names):
    """Compare outputs and gradients with the oracle. names: of features given as arrays."""
    function, key = Function(model), jax.random.key(7)
    parameters = function.init(dtype=jnp.float64)
    arrays = {name: jnp.asarray(batch[name], jnp.float64) for name in names}

    def run(parameters, arrays):
        return function.apply(parameters, batch, key, **arrays)

    def pull_back(parameters, arrays, cotangents):
        outputs, pull = jax.vjp(run, parameters, arrays)
        return outputs, pull(cotangents)

    rng = np.random.default_rng(0)
    types = jax.eval_shape(run, parameters, arrays)
    cotangents = {k: jnp.asarray(rng.normal(size=x.shape)) for k, x in types.items()}
    once = jax.jit(pull_back) if compiled else pull_back
    outputs, (by_parameters, by_arrays) = once(parameters, arrays, cotangents)
    whole = inputs_of(batch, seed=int(jax.random.bits(key, (), "uint32") >> 1))
    whole.features.update({f"{COTANGENT}{k}": np.asarray(d) for k, d in cotangents.items()})
    graph = traced(model, batch, inputs=True, outside=True)
    expected = interpret(graph, whole)
    expected |= own_rows(graph, expected, batch)
    for name, rows in outputs.items():
        assert_close(rows.reshape(np.shape(expected[name])), expected[name], 1e-9, name)
    for kind, gradients in (("grad", by_parameters), ("input", by_arrays)):
        for name, g in gradients.items():
            unused = np.zeros(g.shape)
            assert_close(g, expected.get(f"{kind}:{name}", unused), 1e-9, name)


@examples(6)
@given(models(smooth=True), batches(), st.booleans())
def test_random_cells_equal_the_oracle(model, batch, compiled):
    compare(model, traced_parameters(model, batch), compiled, "dense")


@examples(2)
@given(typed_cases(), st.booleans())
def test_types_of_vertices(case, compiled):
    compare(drawn_types(*case), case[1], compiled)


@examples(2)
@given(structure_cases(), st.booleans())
def test_several_structures(case, compiled):
    compare(*case, compiled)


@examples(4)
@given(models(smooth=True), batches(max_vertices=5, max_graphs=2))
def test_check_grads_of_random_cells(model, batch):
    batch = traced_parameters(model, batch)
    function = Function(model)
    parameters, dense = function.init(dtype=jnp.float64), jnp.asarray(batch["dense"], jnp.float64)

    def run(parameters, dense):
        return function.apply(parameters, batch, dense=dense)

    check_grads(run, (parameters, dense), order=1, modes=["rev"], eps=1e-6, atol=1e-5, rtol=1e-4)
