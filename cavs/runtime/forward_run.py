"""A run whose backward stages follow later, by a loss that the caller computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from cavs import _engine
from cavs.errors import ConfigError
from cavs.frontend.parameter import Parameter
from cavs.passes.differentiate import COTANGENT
from cavs.runtime.check import EngineErrors
from cavs.runtime.interface import Array, BatchLike
from cavs.runtime.parameter_sync import ParameterSync
from cavs.runtime.program_cache import Prepared
from cavs.runtime.results import (
    GradientRows,
    input_gradients,
    outputs_of,
    parameter_gradients,
    sum_of_copies,
    table_gradients,
)


class Gradients(NamedTuple):
    """Gradients of a loss by trainable parameters and by float features of the batch, by name.

    inputs: empty unless the forward run was asked for them. tables: sparse gradients of tables that
    are not among ``parameters`` then; empty unless the backward run was asked for them.
    """

    parameters: dict[str, Array]
    inputs: dict[str, Array]
    tables: dict[str, GradientRows]


class ForwardRun:
    """The outputs of a model for one batch, with what the backward run needs of their computation.

    It owns the memory of the run: further runs do not change it, and it is used again when the
    object is dropped or its backward run is done. The batch and its features must not change until
    then. outputs: of ``Model.forward``, by name, with rows in the order of the batch; the caller's
    own arrays.
    """

    def __init__(
        self,
        prepared: Prepared,
        batch: BatchLike,
        parameters: Mapping[str, Parameter],
        sync: ParameterSync,
        lock: AbstractContextManager[Any],
        dtype: np.dtype[Any],
        numbers: tuple[int, int],
    ) -> None:
        self._build, self._graph = prepared.variant.built, prepared.variant.traced.graph
        self._inputs, self._batch, self._numbers = prepared.inputs, batch, numbers
        self._rows = prepared.rows
        self._with_inputs, self._dtype = prepared.variant.key.inputs, dtype
        self._parameters, self._sync, self._lock = parameters, sync, lock
        self._executor = cast("_engine.Executor", self._build.executor)
        self._versions = sync.written()
        with EngineErrors(self._graph, batch):
            self._run = self._executor.forward(*self._inputs, *numbers)
        self.outputs: dict[str, Array] = outputs_of(self._build, self._graph, self._rows, batch)

    @property
    def finished(self) -> bool:
        """True after `backward`, which cannot be called again."""
        return self._run.finished

    def backward(
        self, cotangents: Mapping[str, npt.ArrayLike], *, sparse: bool = False
    ) -> Gradients:
        """Return the gradients of the loss whose gradients by the outputs are ``cotangents``.

        cotangents: by the name of an output, in its shape; zeros where one is left out. sparse:
        tables that lookups alone read have the rows that were read in place of dense gradients.
        Values that are not finite are returned as they are. ConfigError for other cotangents, for a
        second call, and where parameters were written since the forward run.
        """
        with self._lock:
            given = self._checked(cotangents)
            schedule, floats, ints = self._inputs
            names = self._build.compiled.program.float_features
            floats = [
                given[n.removeprefix(COTANGENT)] if n.startswith(COTANGENT) else rows
                for n, rows in zip(names, floats, strict=True)
            ]
            self._executor.backward(self._run, schedule, floats, ints, *self._numbers)
            tables = table_gradients(self._build, self._parameters) if sparse else {}
            found = parameter_gradients(
                self._build, self._parameters, self._dtype, tables, copies=False
            )
            if not self._with_inputs:
                return Gradients(found, {}, tables)
            inputs = input_gradients(self._build, self._graph, self._batch)
            return Gradients(found, inputs, tables)

    def _checked(self, cotangents: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """Return a matrix for each output; ConfigError if the backward run may not be."""
        if self.finished:
            raise ConfigError(
                "a second backward run of one forward run",
                hint="backward writes over the values of the run: add the cotangents of all losses "
                "and call it once, or run forward again",
            )
        self._sync.follow_others()
        if self._sync.written() != self._versions or self._executor.is_outdated(self._run):
            raise ConfigError(
                "parameters were written since the forward run, or read by Parameter.value, which "
                "may write",
                hint="call backward before parameters change; Parameter.current() returns values "
                "for reading alone",
            )
        for name in cotangents:
            if name not in self.outputs:
                raise ConfigError(
                    f"a cotangent of {name!r:.60}, which is no output",
                    hint=f"outputs are {', '.join(map(repr, self.outputs))}",
                )
        found = {}
        for name, output in self.outputs.items():
            given = cotangents.get(name)
            rows = np.zeros(output.shape) if given is None else np.asarray(given)
            if rows.shape != output.shape:
                raise ConfigError(
                    f"the cotangent of {name!r:.60} has shape {list(rows.shape)}, the output "
                    f"{list(output.shape)}",
                    hint="give the gradient of the loss by the output, in its shape",
                )
            matrix = np.asarray(rows.reshape(len(rows), math.prod(rows.shape[1:])), self._dtype)
            domain = self._graph.outputs[name].type.domain
            if self._rows is not self._batch and domain.base == "vertex":
                matrix = sum_of_copies(self._rows, domain.structure, matrix)
            found[name] = np.ascontiguousarray(matrix)
        return found
