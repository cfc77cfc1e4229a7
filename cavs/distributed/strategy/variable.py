"""Facts about parameters on which strategies depend: of the model, and measured on a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cavs.compiler.pipeline import Passes
from cavs.compiler.program import Program, instructions_of, touches
from cavs.data import GraphBatch, SampleBatch
from cavs.frontend.batch import Feature
from cavs.frontend.model import Model, trace_model
from cavs.frontend.parameter import Module
from cavs.ir import Graph
from cavs.runtime import Session
from cavs.runtime.features import FeatureTypes
from cavs.runtime.space_rows import BatchRows, batch_rows, rows_of


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One trained parameter.

    shape: sizes of its axes. dtype: "float32" or "float64". sparse: only rows that a batch looks up
    have a gradient. rows: number of different rows of a sparse one that a replica touches in a
    step, as far as known. once, twice: numbers of those that it looks up once, and twice; from them
    follows how many several replicas touch (`distinct`); None: as if each drew its own evenly.
    factors: number of pairs (u, v) whose products a replica's gradient is the sum of (vertices, not
    graphs); None if it is no matrix product. done: its position in the order in which gradients are
    done; None: see `by_gradient`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    sparse: bool = False
    rows: float | None = None
    once: float | None = None
    twice: float | None = None
    factors: float | None = None
    done: int | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole parameter."""
        return self.size * self.itemsize


def variables_of(
    model: Module,
    *,
    dtype: str = "float32",
    rows: Mapping[str, float] | None = None,
    factors: Mapping[str, float] | None = None,
) -> tuple[Variable, ...]:
    """Return the trainable parameters of `model` in its order.

    rows, factors: those known, by name; see `Variable`.
    """
    return tuple(
        Variable(
            name=name,
            shape=tuple(p.shape),
            dtype=dtype,
            sparse=p.sparse,
            rows=(rows or {}).get(name),
            factors=(factors or {}).get(name),
        )
        for name, p in model.parameters().items()
        if p.trainable
    )


def by_gradient(variables: Sequence[Variable]) -> list[Variable]:
    """Return them in the order in which their gradients are done; the last one first if unknown.

    If some are known, the others have no gradient: they come first.
    """
    if all(variable.done is None for variable in variables):
        return list(reversed(variables))
    return sorted(variables, key=lambda v: -1 if v.done is None else v.done)


def in_order(variables: Sequence[Variable], names: Sequence[str]) -> tuple[Variable, ...]:
    """Return them with their `done`; `names`: those that have a gradient, in that order."""
    order = {name: i for i, name in enumerate(names)}
    return tuple(replace(variable, done=order.get(variable.name)) for variable in variables)


def measured_variables(
    model: Model,
    batch: GraphBatch | SampleBatch | None,
    *,
    dtype: str = "float32",
    passes: Passes | None = None,
) -> tuple[Variable, ...]:
    """Return the trainable parameters of `model`, measured on one replica's `batch`.

    The model is compiled for it as a replica compiles it, with `passes`, but on the CPU; nothing
    runs. A table that is read in other ways than by lookups is not sparse. factors: None where the
    engine would not hand out factors in place of the gradient. Without a batch all are unknown.
    """
    found = variables_of(model, dtype=dtype)
    if batch is None:
        return found
    session = Session(model, dtype=dtype, passes=passes, replicated=True)
    executor, inputs, compiled = session.ready(batch)
    program = compiled.program
    rows = batch_rows(program, inputs)

    def measured(variable: Variable) -> Variable:
        name, number = variable.name, program.parameters.index(variable.name)
        if variable.sparse and program.gradients.get(name) != "dense":
            return replace(variable, **_looked_up(compiled.traced, name, batch))
        factored = executor.set_factored(number)
        pairs = _pairs(program, rows, number) if factored else None
        return replace(variable, sparse=False, factors=pairs)

    return tuple(map(measured, found))


def trace_of(model: Model, batch: GraphBatch | SampleBatch) -> Graph:
    """Return the trace of `model` in training on batches like `batch`."""
    schema = {
        name: Feature(spec.domain, spec.dtype, tuple(spec.shape), spec.has_absent, spec.type)
        for name, spec in batch.feature_schema().items()
    }
    structures = FeatureTypes(model).structures(batch)
    return trace_model(model, schema, training=True, structures=structures)


def _looked_up(graph: Graph, name: str, batch: GraphBatch | SampleBatch) -> dict[str, Any]:
    """Return the numbers of rows of a table that are looked up, once, and twice, where known."""
    uses = [
        node
        for node in graph.nodes()
        for value in dict.fromkeys(node.inputs)
        if value.op.name == "parameter" and value.attr("parameter").name == name
    ]
    if not uses or any(node.inputs[1].op.name != "feature" for node in uses):
        return {}
    touched = [batch[node.inputs[1].attr("name")].reshape(-1) for node in uses]
    numbers, counts = np.unique(np.concatenate(touched), return_counts=True)
    counts = counts[numbers >= 0]
    once, twice = (float(np.count_nonzero(counts == n)) for n in (1, 2))
    return {"rows": float(len(counts)), "once": once, "twice": twice}


def _pairs(program: Program, rows: BatchRows, number: int) -> float:
    """Return the rows of the products that the gradient of a parameter is the sum of."""
    ids = [i for x in program.stages for i in instructions_of(x)]
    products = [i for i in ids if ("grad", number) in touches(program, [i])[1]]
    spaces = [program.instructions[i].space for i in products]
    return float(sum(rows_of(program, rows, space) for space in spaces))
