"""Results of a run in the caller's terms: names, shapes, and rows in the order of the batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cavs.frontend.parameter import Parameter
from cavs.ir import Graph
from cavs.passes.differentiate import INPUT, float_features
from cavs.runtime.interface import Array, BatchLike
from cavs.runtime.variant import Build


class GradientRows(NamedTuple):
    """The gradient of a table at the rows that a batch reads; all other rows are zero.

    rows: int32[k], rising. values: [k, width of the table].
    """

    rows: npt.NDArray[np.int32]
    values: Array


def outputs_of(
    build: Build, graph: Graph, rows: Any, batch: BatchLike, prefix: str = ""
) -> dict[str, Array]:
    """Return the outputs of the last run but the loss, with rows in the order of ``batch``.

    graph: the traced one. rows: the batch, or its distinct vertices. prefix: of the names of those
    that are returned.
    """
    found = {}
    for name, buffer in build.compiled.program.outputs.items():
        if name == "loss" or not name.startswith(prefix) or name not in graph.outputs:
            continue
        values = build.executor.output(buffer)
        t = graph.outputs[name].type
        if rows is not batch and t.domain.base == "vertex":
            distinct = rows.distinct_of(t.domain.structure)
            values = values if distinct is None else values[distinct]
        found[name] = values.reshape(values.shape[0], *t.shape)
    return found


def sum_of_copies(rows: Any, structure: str, cotangents: Array) -> Array:
    """Return the cotangent of each distinct vertex, the sum of those of the vertices equal to it.

    rows: the distinct vertices. cotangents: [vertices of a structure of the batch, width].
    """
    distinct = rows.distinct_of(structure)
    if distinct is None or not len(cotangents):
        return cotangents
    if structure not in rows.sorted_copies:  # once per batch, not in every step
        order = np.argsort(distinct, kind="stable")
        first = np.flatnonzero(np.diff(distinct[order], prepend=-1))
        rows.sorted_copies[structure] = order, first
    order, first = rows.sorted_copies[structure]
    found: Array = np.add.reduceat(cotangents[order], first, axis=0)
    return found


def parameter_gradients(
    build: Build,
    parameters: Mapping[str, Parameter],
    dtype: np.dtype[Any],
    without: Collection[str] = (),
    copies: bool = True,
) -> dict[str, Array]:
    """Return the dense gradients of trainable parameters by the last run, but those ``without``.

    copies: False after a backward run of a forward run, which leaves memory that arrays view to
    them.
    """
    kinds, executor = build.compiled.program.gradients, build.executor
    found = {}
    for number, (name, p) in enumerate(parameters.items()):
        if not p.trainable or name in without:
            continue
        if kinds.get(name, "none") == "none":
            found[name] = np.zeros(p.shape, dtype)
            continue
        rows, values = (None, None) if copies else executor.gradient_view(number)
        if values is None or rows is not None:
            found[name] = executor.gradient(number)
        else:
            found[name] = values.reshape(p.shape)
    return found


def table_gradients(build: Build, parameters: Mapping[str, Parameter]) -> dict[str, GradientRows]:
    """Return the gradients of trainable tables that lookups alone read, by the last run."""
    found = {}
    for number, (name, p) in enumerate(parameters.items()):
        sparse = build.compiled.program.gradients.get(name) == "sparse"
        rows = build.executor.gradient_rows(number) if p.trainable and sparse else None
        if rows is not None:
            found[name] = GradientRows(*rows)
    return found


def input_gradients(build: Build, graph: Graph, batch: Any) -> dict[str, Array]:
    """Return the gradients by all float features that the traced ``graph`` reads, by the last run.

    That by a feature of a type has a row for each vertex of the type, as the feature has.
    """
    found = {}
    features = {n.attr("name"): n for n in float_features(graph)}  # a name may have several nodes
    for name, feature in features.items():
        rows = build.executor.output(build.compiled.program.outputs[f"{INPUT}{name}"])
        if of := dict(feature.attrs).get("vertex_type"):
            structure = feature.type.domain.structure
            graphs = batch.graphs[structure] if structure else batch
            rows = rows[graphs.by_type({of: 1}, 0) == 1]
        found[name] = rows.reshape(len(rows), *feature.shape)
    return found
