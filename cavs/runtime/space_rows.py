"""Number of rows of the spaces of a program, in a batch."""

from __future__ import annotations

from typing import Any

from cavs.compiler.program import Program, kinds_in, relation_of, selection_of

DISTINCT = "#distinct "


def rows_of(program: Program, schedule: Any, present: dict[str, int], space: int) -> int:
    """Return the number of rows of a space.

    present: in how many rows each integer feature is present, and after `DISTINCT` and its name,
    how many distinct values it has there.
    """
    if selection := selection_of(space):
        base, feature = selection
        name = program.int_features[feature]
        return present[DISTINCT + name if base == "distinct" else name]
    if space < 4:
        batch = schedule.batch
        # Graphs of the caller, also where vertices are merged.
        graphs = (len(schedule.graph_offsets) - 1) // batch.num_structures
        return int((1, graphs, batch.num_vertices, batch.num_edges)[space])
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
