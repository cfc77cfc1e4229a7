"""A call of a function of JAX, with its rule of differentiation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from cavs.data.features import FeatureDomain
from cavs.jax.host_calls import on_host
from cavs.jax.runs import Runs
from cavs.runtime.forward_run import Gradients
from cavs.runtime.host_inputs import with_inputs
from cavs.runtime.interface import Array, BatchLike


@jax.tree_util.register_static
@dataclass(frozen=True)
class Call:
    """A batch, the names of inputs and their domains, and how they are run.

    dropout: whether values are dropped. where: the user's line. inputs: whether gradients by the
    inputs are needed.
    """

    runs: Runs
    batch: BatchLike
    names: tuple[str, ...]
    domains: tuple[tuple[str, FeatureDomain], ...]
    dropout: bool
    where: str
    inputs: bool = False

    def with_rows(self, rows: Sequence[Array]) -> BatchLike:
        """Return the batch with ``rows`` of the inputs."""
        named = dict(zip(self.names, rows, strict=True))
        return with_inputs(self.batch, named, dict(self.domains), "Function")

    def check_rows(self, arrays: dict[str, Any]) -> None:
        """FeatureError for an input with another number of rows than the batch needs."""
        with_inputs(self.batch, arrays, dict(self.domains), "Function")

    def shapes(self, inputs: Sequence[Any]) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the types of the outputs, for inputs of the same shapes."""
        rows = [np.zeros(x.shape, x.dtype) for x in inputs]
        found = self.runs.shapes(self.batch, self.with_rows(rows), [x.shape for x in inputs])
        dtype = self.runs.dtype
        return {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in found.items()}

    # ---- on the host, with arrays of NumPy ---------------------------------------------------

    def infer(self, seed: Any, values: Sequence[Array], inputs: Sequence[Array]) -> dict[str, Any]:
        """Return the outputs alone."""
        return self.runs.infer(self.with_rows(inputs), values, self.dropout, int(seed))

    def forward(self, seed: Any, values: Sequence[Array], inputs: Sequence[Array]) -> Any:
        """Return the outputs, and the number of the run, by which `backward` finds it."""
        batch, options = self.with_rows(inputs), (self.inputs, self.dropout, int(seed))
        outputs, number = self.runs.forward(batch, values, *options)
        return outputs, np.int32(number)

    def backward(
        self,
        number: Any,
        seed: Any,
        values: Sequence[Array],
        inputs: Sequence[Array],
        cotangents: dict[str, Array],
    ) -> Any:
        """Return the gradients by all parameters and, where they are needed, by the inputs."""
        batch, options = self.with_rows(inputs), (self.inputs, self.dropout, int(seed))
        found = self.runs.backward(int(number), cotangents, batch, values, *options)
        return self._in_order(found, values, inputs)

    def _in_order(
        self, found: Gradients, values: Sequence[Array], inputs: Sequence[Array]
    ) -> tuple[list[Array], list[Array]]:
        parameters = [
            found.parameters[name].reshape(x.shape)
            if name in found.parameters
            else np.zeros_like(x)
            for name, x in zip(self.runs.session.parameters, values, strict=True)
        ]
        if not self.inputs:
            return parameters, []
        return parameters, [
            found.inputs[name].reshape(x.shape) if name in found.inputs else np.zeros_like(x)
            for name, x in zip(self.names, inputs, strict=True)
        ]


@jax.custom_vjp  # type: ignore[untyped-decorator]
def run(call: Call, seed: Any, parameters: Any, inputs: Any) -> Any:
    """Return the outputs of the model by name."""
    return on_host(call.infer, call.where, lambda: call.shapes(inputs), seed, parameters, inputs)


def _forward(call: Call, seed: Any, parameters: Any, inputs: Any) -> Any:
    needed = any(x.perturbed for x in inputs)
    call = replace(call, inputs=needed)
    seed = seed.value
    parameters, inputs = (tuple(x.value for x in xs) for xs in (parameters, inputs))
    number = jax.ShapeDtypeStruct((), np.int32)
    arguments = seed, parameters, inputs
    outputs, which = on_host(
        call.forward, call.where, lambda: (call.shapes(inputs), number), *arguments
    )
    return outputs, (call, which, *arguments)


def _backward(residuals: Any, cotangents: dict[str, Any]) -> Any:
    call, number, seed, parameters, inputs = residuals
    given = {
        name: jnp.zeros(d.shape, d.dtype) if isinstance(d, SymbolicZero) else d
        for name, d in cotangents.items()
    }
    arguments = number, seed, parameters, inputs, given
    types = list(parameters), list(inputs) if call.inputs else []
    by_parameters, by_inputs = on_host(call.backward, call.where, lambda: types, *arguments)
    by_inputs = tuple(by_inputs) if call.inputs else tuple(map(jnp.zeros_like, inputs))
    return None, None, tuple(by_parameters), by_inputs


run.defvjp(_forward, _backward, symbolic_zeros=True)
