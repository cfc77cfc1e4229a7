"""The structure of a graph in the form of the engine: checks, CSR form and errors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cavs._engine import Graph as EngineGraph
from cavs.config import is_whole
from cavs.errors import GraphError

Indices = NDArray[np.int32]


@lru_cache(1024)
def shared(value: Any) -> Any:
    """Return one object for all equal values, up to the cache size: batches compare identities."""
    return value


_ACYCLIC = (
    "no vertex may come below itself: leave out an edge of the cycle, such as one that leads back"
)
# Words of the engine's errors, and the cure.
_CURES = {
    "cycle": _ACYCLIC,
    "has child": "children are vertices of the same graph, counted from 0; a leaf has the empty "
    "list [], and -1 leaves a position without a child",
    "offsets": "vertex v gathers from children[offsets[v]:offsets[v + 1]], so there are "
    "num_vertices + 1 offsets, from 0 to len(children); or give lists of children",
}
_INTEGERS = "indices are whole numbers: np.asarray(values, np.int32)"


def as_indices(values: ArrayLike, what: str) -> Indices:
    """Return integers as int32[n]; GraphError for anything else."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise GraphError(
            f"{what} must be integers in one dimension: {error}", hint=_INTEGERS
        ) from None
    if array.size == 0:
        return np.zeros(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise GraphError(
            f"{what} must be integers in one dimension, found dtype {array.dtype} "
            f"of shape {array.shape}",
            hint=_INTEGERS,
        )
    if array.max() > np.iinfo(np.int32).max or array.min() < np.iinfo(np.int32).min:
        raise GraphError(
            f"{what} must fit 32 bits, found {array.min()}..{array.max()}",
            hint="vertices are counted from 0 in each graph; map other names to such numbers first",
        )
    return array.astype(np.int32)


def graph_label(name: str) -> str:
    """Return the words by which errors name a graph."""
    return f'graph "{name}"' if name else "graph"


def graph_error(name: str, what: str, vertex: int = -1, hint: str = "") -> GraphError:
    """Return a GraphError that names the graph and carries the vertex."""
    error = GraphError(f"{graph_label(name)}: {what}", hint=hint)
    error.vertex = vertex
    return error


def _flatten(children: Sequence[Sequence[int]], name: str) -> tuple[Indices, Indices]:
    try:
        counts = [len(group) for group in children]
        flat = [child for group in children for child in group]
    except TypeError:
        raise graph_error(
            name,
            "children must be a sequence of child indices for every vertex, found "
            f"{children!r:.80}",
            hint="a list of lists, such as [[], [], [0, 1]]: vertex 2 gathers from 0 and 1",
        ) from None
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    what = f"{graph_label(name)}: children"
    return as_indices(offsets, what), as_indices(flat, what)


def make_topology(children: Any, name: str) -> EngineGraph:
    """Return the engine's graph of child lists or an (offsets, children) pair; or GraphError."""
    is_csr = (
        isinstance(children, tuple)
        and len(children) == 2
        and all(isinstance(part, np.ndarray) for part in children)
    )
    if is_csr:
        offsets = as_indices(children[0], f"{graph_label(name)}: offsets")
        flat = as_indices(children[1], f"{graph_label(name)}: children")
    else:
        offsets, flat = _flatten(children, name)
    try:
        return EngineGraph(offsets, flat)
    except GraphError as error:
        hint = next((cure for text, cure in _CURES.items() if text in error.what), "")
        raise graph_error(name, error.what, error.vertex, hint) from None


def csr(
    num_vertices: int, child: Indices, parent: Indices
) -> tuple[tuple[Indices, Indices], NDArray[np.intp]]:
    """Return edges as (offsets, children), and the stable order that sorts the edges by parent."""
    order = np.argsort(parent, kind="stable")
    offsets = np.zeros(num_vertices + 1, np.int32)
    np.cumsum(np.bincount(parent, minlength=num_vertices), out=offsets[1:])
    return (offsets, child[order]), order


def check_count(count: object, what: str, name: str) -> None:
    """GraphError unless ``count`` is a number of vertices."""
    if not is_whole(count):
        raise graph_error(
            name,
            f"{what} has a whole number of vertices, found {count!r:.80}",
            hint=f"pass an int: {what} of 3 vertices has 3",
        )
    if count < 1:
        raise graph_error(
            name,
            f"{what} needs at least one vertex, found {count}",
            hint="leave empty samples out of the data",
        )
    if count > np.iinfo(np.int32).max:
        raise graph_error(
            name, f"{count} vertices; indices have 32 bits", hint="cut it into several graphs"
        )
