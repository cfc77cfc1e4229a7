"""Number of rows of the spaces of a program, in a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from cavs.compiler.program import Program, kinds_in, relation_of, selection_of
from cavs.runtime.interface import Inputs


class BatchRows(NamedTuple):
    """The parts of a batch that decide how many rows each space has.

    present: in how many rows of ``schedule`` each integer feature is present. distinct: how many
    distinct values it has there.
    """

    schedule: Any
    present: Mapping[str, int]
    distinct: Mapping[str, int]


def batch_rows(program: Program, inputs: Inputs) -> BatchRows:
    """Return the `BatchRows` of the batch whose inputs the engine takes."""
    schedule, _, ints = inputs
    found = {n: x[x >= 0] for n, x in zip(program.int_features, ints, strict=True)}
    distinct = {n: len(np.unique(x)) for n, x in found.items()}
    return BatchRows(schedule, {n: x.size for n, x in found.items()}, distinct)


def rows_of(program: Program, batch: BatchRows, space: int) -> int:
    """Return the number of rows of a space."""
    schedule = batch.schedule
    if selection := selection_of(space):
        base, feature = selection
        counts = batch.distinct if base == "distinct" else batch.present
        return counts[program.int_features[feature]]
    if space < 4:
        vertices = schedule.batch
        # Graphs of the caller, also where vertices are merged.
        graphs = (len(schedule.graph_offsets) - 1) // vertices.num_structures
        return int((1, graphs, vertices.num_vertices, vertices.num_edges)[space])
    keys = {program.kinds[k] for k in kinds_in(program, space)}
    relation = relation_of(space)
    if relation:
        return sum(
            _pairs_of(schedule, relation - 1, v) for key, v, _ in schedule.kinds if key in keys
        )
    found = [(v if relation is None else e) for key, v, e in schedule.kinds if key in keys]
    return sum(int(end - begin) for begin, end in found)


def _pairs_of(schedule: Any, link: int, rows: tuple[int, int]) -> int:
    """Return the number of pairs of a link whose targets are vertex rows of one kind."""
    offsets, _ = schedule.linked_rows(link)
    return int(offsets[rows[1]] - offsets[rows[0]])
