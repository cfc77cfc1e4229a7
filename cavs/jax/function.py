"""A vertex function or model as a function of JAX."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cavs.config import is_whole, require
from cavs.data.batch import GraphBatch
from cavs.data.features import FeatureDomain
from cavs.data.sample_batch import SampleBatch
from cavs.errors import ConfigError, DTypeError, ShapeError, user_line
from cavs.frontend.model import Model
from cavs.frontend.vertex import VertexFunction
from cavs.jax.derivatives import Call, run
from cavs.jax.runs import Runs
from cavs.runtime.check import check_batch
from cavs.runtime.host_inputs import FUNCTION, FunctionModel, check_domains, check_model
from cavs.runtime.interface import BatchLike

for _batch in (GraphBatch, SampleBatch):  # a batch may be an argument of a function under jit
    jax.tree_util.register_static(_batch)


class Function:
    """A vertex function or model that JAX differentiates and compiles around, on the CPU.

    ``function.apply(parameters, batch, x=array, ...)`` runs all graphs of a ``cavs.batch`` and
    returns an array, or arrays by name, for what a vertex function pushes or ``Model.forward``
    returns, with rows in the order of the batch. Arrays are inputs of the vertex function, or
    features of the batch that the model reads by their names. ``parameters`` is a dict of arrays by
    the names that they have in the model, as ``init`` returns it. The function has a copy of the
    model, and changes nothing that the caller sees.

    features: of the batch, which are inputs of a vertex function besides the arrays. domains:
    "vertex" (the default), "edge" or "graph" for each array, by its name: what a row of it is for.
    keep: the most forward runs that wait for their backward runs; older ones are run again.

    Raises ConfigError for another model, another domain, and ``keep`` below 1; `apply` says what it
    raises.
    """

    def __init__(
        self,
        model: Model | VertexFunction,
        *,
        features: Sequence[str] = (),
        domains: Mapping[str, FeatureDomain] | None = None,
        keep: int = 8,
    ) -> None:
        check_model(model, "function")
        require(is_whole(keep) and keep >= 1, "keep", keep, "a whole number of at least 1")
        self._is_model = isinstance(model, Model)
        self._model = copy.deepcopy(model)
        self._features, self._domains, self._keep = tuple(features), dict(domains or {}), int(keep)
        check_domains(self._domains)
        self._shapes = {name: p.shape for name, p in self._model.parameters().items()}
        self._runs: dict[tuple[np.dtype[Any], tuple[str, ...]], Runs] = {}

    def init(self, seed: int | None = None, dtype: Any = jnp.float32) -> dict[str, jax.Array]:
        """Return parameters by name: drawn from ``seed``, or without one the values of the model.

        ConfigError for another dtype than float32 and, where jax_enable_x64 is set, float64.
        """
        found = np.dtype(dtype)
        wide = found == np.float64
        if (found != np.float32 and not wide) or (wide and not jax.config.jax_enable_x64):
            raise ConfigError(
                f"parameters of {found}",
                where=user_line(),
                hint="cavs.jax runs in float32, or in float64 after jax.config.update("
                '"jax_enable_x64", True)',
            )
        model = copy.deepcopy(self._wrapped(()))
        if seed is not None:
            model.initialize(seed, found)
        values = {name: p.current().astype(found) for name, p in model.parameters().items()}
        return {name.removeprefix(self._prefix): jnp.array(v) for name, v in values.items()}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the programs, which a copy compiles again."""
        return {**self.__dict__, "_runs": {}}

    @property
    def _prefix(self) -> str:
        return "" if self._is_model else FUNCTION

    def _wrapped(self, names: Sequence[str]) -> Model:
        if isinstance(self._model, Model):
            return self._model
        return FunctionModel(self._model, (*names, *self._features))

    def apply(
        self,
        parameters: Mapping[str, Any],
        batch: BatchLike,
        key: jax.Array | None = None,
        /,
        **inputs: Any,
    ) -> Any:
        """Return an array, or arrays by name, for the outputs of the model.

        key: a key of jax.random, by which ``ops.dropout`` drops and random numbers are drawn;
        without one nothing is dropped. Raises ConfigError for parameters of other names, ShapeError
        for one of another shape, DTypeError where arrays are not all of one dtype, float32 or
        float64, and FeatureError for an input with another number of rows.
        """
        check_batch(batch)
        arrays = {name: _array(f"input {name!r}", x) for name, x in inputs.items()}
        for name, x in arrays.items():
            if x.ndim == 0:
                raise ShapeError(
                    f"input {name!r} is one number",
                    where=user_line(),
                    hint="give an array with a row for each vertex, edge or graph",
                )
        given = self._checked(parameters)
        runs = self._runs_for(_dtype_of(given, arrays), tuple(sorted(arrays)))
        seed = jnp.int32(0) if key is None else jax.random.bits(key, (), "uint32") >> 1
        domains, dropout = tuple(self._domains.items()), key is not None
        call = Call(runs, batch, tuple(arrays), domains, dropout, user_line())
        call.check_rows(arrays)
        found: dict[str, Any] = run(call, seed, tuple(given.values()), tuple(arrays.values()))
        return found["output"] if set(found) == {"output"} else found

    def _checked(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters as arrays, in the order of the model."""
        if not isinstance(parameters, Mapping) or set(parameters) != set(self._shapes):
            names = ", ".join(parameters) if isinstance(parameters, Mapping) else f"{parameters!r}"
            raise ConfigError(
                f"parameters {names or 'of no name':.200}; the model has "
                f"{', '.join(self._shapes) or 'none'}",
                where=user_line(),
                hint="function.init(seed) returns a dict of all",
            )
        found = {name: _array(f"parameter {name!r}", parameters[name]) for name in self._shapes}
        for name, shape in self._shapes.items():
            if found[name].shape != shape:
                raise ShapeError(
                    f"parameter {name!r} has shape {list(shape)}, the array given "
                    f"{list(found[name].shape)}",
                    where=user_line(),
                    hint="function.init(seed) returns arrays of the right shapes",
                )
        return found

    def _runs_for(self, dtype: np.dtype[Any], names: tuple[str, ...]) -> Runs:
        """Return the session of a dtype, and for a vertex function of inputs."""
        which = dtype, () if self._is_model else names
        if which not in self._runs:
            self._runs[which] = Runs(copy.deepcopy(self._wrapped(names)), dtype, self._keep)
        return self._runs[which]


def _array(noun: str, given: Any) -> Any:
    try:
        return given if isinstance(given, jax.Array) else jnp.asarray(given)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{noun} is {given!r:.60}, not an array",
            where=user_line(),
            hint="features that are no arrays belong to the graphs: cavs.Graph(children, features)",
        ) from None


def _dtype_of(parameters: Mapping[str, Any], inputs: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the dtype of all arrays; DTypeError if there are several, or integers."""
    named = [(f"parameter {n!r}", a) for n, a in parameters.items()]
    named += [(f"input {n!r}", a) for n, a in inputs.items()]
    first = named[0][1].dtype if named else np.dtype(np.float32)
    for noun, array in named:
        if array.dtype not in (np.float32, np.float64):
            raise DTypeError(
                f"{noun} is {array.dtype}, not float32 or float64",
                where=user_line(),
                hint="integers belong to the graphs, cavs.Graph(children, {'token': ids}), or are "
                "looked up in an embedding of jax first",
            )
        if array.dtype != first:
            raise DTypeError(
                f"{noun} is {array.dtype}, {named[0][0]} {first}",
                where=user_line(),
                hint=f"convert it: .astype({first})",
            )
    return np.dtype(first)
