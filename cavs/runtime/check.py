"""Check batches against a compiled model: known features in range, arity that the cell reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.data.features import owner_of, types_in
from cavs.data.vertex_types import number_of_bits
from cavs.errors import FeatureError, GraphError, NumericsError, TraceError
from cavs.frontend.batch import Feature
from cavs.ir import Domain, Graph, Node, Structure, Structures

# Features and parameters are checked where they are set: other values come from computing.
NOT_FINITE = (
    "lower lr, or set max_norm; look for an operator of the model that is not defined or overflows "
    "there, such as a log or a division of 0, or an exp"
)


def _at(batch: Any, domain: str, row: int, structure: str = "") -> str:
    """Return graph and position of a row of a feature; vertices count from 0 in their graph.

    structure: the one that the row belongs to, if samples have several.
    """
    if structure and domain in ("vertex", "edge"):
        batch = batch.graphs[structure]
    if domain == "graph":
        return str(batch.graph_label(row))
    if domain == "one":
        return "the batch as a whole"
    offsets = np.asarray(
        batch.topology.vertex_offsets if domain == "vertex" else batch.topology.edge_offsets
    )
    graph = int(np.searchsorted(offsets, row, side="right")) - 1
    return f"{domain} {row - int(offsets[graph])} of {batch.graph_label(graph)}"


def check_batch(batch: object) -> None:
    """FeatureError unless ``batch`` is a batch, and not a graph or a list of them."""
    if not hasattr(batch, "feature_schema"):
        raise FeatureError(
            f"a batch is needed, not {batch!r:.80}",
            hint="cavs.batch([graph, ...]) returns one, a cavs.DataLoader many",
        )


def check_typed_values(traced: Graph, types: Sequence[str]) -> None:
    """TraceError for values of a type of vertices in a model without a cell that has ``types``."""
    for n in traced.nodes() if not types else ():
        if (name := n.type.domain.vertex_type) is not None:
            raise TraceError(
                f"the model reads values of vertices of the type {name!r}, and has no cell with "
                "vertex functions of types",
                where=n.where,
                hint=f"add a cell whose functions are decorated by @cavs.vertex({name!r}), or give "
                "the feature to all vertices",
            )


def check_types(traced: Graph, types: Sequence[str], batch: Any) -> None:
    """GraphError if a vertex has a type without a vertex function; ``types``: those that have one.

    Likewise for vertices without types where vertex functions are for types, and for vertices with
    types where none is.
    """
    for structure in dict.fromkeys(slot.structure for slot in traced.slots):
        graphs = batch.graphs[structure.of] if structure.of else batch
        if not graphs.num_vertices:
            continue
        found = graphs.type_names
        own = set(filter(None, types_in(types, structure.of))) if structure.of else set(types)
        if found is None if not own else found is not None and set(found) <= own:
            continue
        if structure.of_types or not own:
            graphs.check_types(tuple(structure.of_types), structure.where, structure.name)


def arity_that_fits(traced: Graph) -> int:
    """Return the number of children that all vertex functions read; -1 if parents may be too many.

    A batch whose vertices have no more needs no check.
    """
    limits = [
        -1 if structure.top_down else most
        for structure in {slot.structure for slot in traced.slots}
        for _, most in _most_read(structure)
        if most is not None
    ]
    return min(limits, default=_ANY_NUMBER)


def check_arity(traced: Graph, schedule: Any, types: Sequence[str], batch: Any) -> None:
    """GraphError if a vertex has children that its vertex function never reads.

    A function that calls ``gather()`` reads any number; one that only calls ``gather(k)`` reads
    the children up to the largest k. schedule: of ``batch`` or its distinct vertices. types: of
    vertices, by which it numbers kinds.
    """
    max_arity = schedule.max_arity
    for structure in dict.fromkeys(slot.structure for slot in traced.slots):
        limits = {
            vertex_type: most
            for vertex_type, most in _most_read(structure)
            if most is not None and (structure.top_down or max_arity > most)
        }
        own = types_in(types, structure.of) if structure.of else types
        fits = structure.of_types and not structure.top_down and _fit(limits, schedule, own)
        if limits and not fits:
            graphs = batch.graphs[structure.of] if structure.of else batch
            _check_numbers(structure, limits, graphs)


def _fit(limits: Mapping[str | None, int], schedule: Any, types: Sequence[str]) -> bool:
    """True if no kind of vertices of a type in ``limits`` has more children than its limit."""
    limit_of = [limits.get(name, _ANY_NUMBER) for name in types]
    bits = 2 ** number_of_bits(types) - 1
    arities = zip(schedule.kinds, schedule.max_arities, strict=True)
    return all(most <= limit_of[key >> 1 & bits] for (key, *_), most in arities)


def _most_read(structure: Structure) -> Iterable[tuple[str | None, int | None]]:
    """Return the number of neighbours that are read, None for any, by type of vertices."""
    if structure.of_types:
        return structure.of_types.items()
    return [(None, structure.arity if structure.parents is None else structure.parents)]


_ANY_NUMBER = np.iinfo(np.int32).max  # a type reads any number of children


def _check_numbers(structure: Structure, limits: Mapping[str | None, int], batch: Any) -> None:
    """GraphError if a vertex of a type has more children, or parents, than its limit.

    limits: by type; None stands for all vertices.
    """
    topology = batch.topology
    if structure.top_down:
        number = present = np.bincount(topology.children, minlength=topology.num_vertices)
    else:  # empty positions before a child count
        number, present = np.diff(topology.child_lists[0]), np.diff(topology.offsets)
    every = limits.get(None)
    most = batch.by_type(limits, _ANY_NUMBER) if every is None else every
    wrong = np.flatnonzero(number > most)
    if not wrong.size:
        return
    vertex = int(wrong[0])
    count = int(number[vertex])
    what, one = ("parents", "parent") if structure.top_down else ("children", "child")
    has = f"{count} {what}" if count == present[vertex] else f"a child in position {count - 1}"
    of, reads = "", most
    if every is None:
        name = next(t for t in limits if batch.by_type({t: 1}, 0)[vertex])
        of, reads = f' at vertices of type "{name}"', limits[name]
    error = GraphError(
        f"{_at(batch, 'vertex', vertex)} has {has}; {structure.name} reads {reads} by "
        f"gather(k){of}",
        where=structure.where,
        hint=f"read every {one} with v.gather() and reduce, or give the graph fewer {what}",
    )
    error.vertex = vertex
    raise error


def check_structures(known: Structures | None, found: Structures | None, batch: Any) -> None:
    """FeatureError where the samples of a later batch have other structures or links."""
    if known == found:
        return

    def words(structures: Structures | None) -> str:
        if structures is None:
            return "one graph each"
        links = [
            f"link {x.name} from {x.target} to {x.source}" + ("" if x.single else ", lists")
            for x in structures.links
        ]
        return f"structures {', '.join(structures.names)}" + "".join(f"; {x}" for x in links)

    raise FeatureError(
        f"samples of earlier batches had {words(known)}; {_at(batch, 'graph', 0)} has "
        f"{words(found)}",
        hint="batches of one session need the same structures and links; make another Session",
    )


def check_schema(
    traced: Graph, known: Mapping[str, Feature], schema: Mapping[str, Any], batch: Any
) -> None:
    """FeatureError where a later batch lacks a feature, or has it with another type."""
    for name, old in known.items():
        new = schema.get(name)
        if new is None:
            if any(n.op.name == "feature" and n.attr("name") == name for n in traced.nodes()):
                raise FeatureError(
                    f"{_at(batch, 'graph', 0)} has no feature {name!r}, nor has another of its "
                    f"batch; earlier batches had it at every {old.where}",
                    hint=f"every graph needs it; these have {', '.join(sorted(schema)) or 'none'}",
                )
        elif (new.domain, new.dtype, tuple(new.shape)) != (old.where, old.dtype, old.shape):
            raise FeatureError(
                f"feature {name!r} was {old.dtype} {list(old.shape)} of every {old.where}, and is "
                f"now {new.dtype} {list(new.shape)} of every {new.domain}",
                hint="batches of one session need features of one type; make another Session",
            )


def _limits(nodes: list[Node]) -> Iterator[tuple[str, int, str, str]]:
    """Iterate over integer features with their limit: name, limit, its reason, user's line."""
    for n in nodes:
        if n.op.name == "lookup" and n.inputs[1].op.name == "feature":
            table, index = n.inputs
            name = table.attr("parameter").name if table.op.name == "parameter" else "table"
            limit = table.shape[0]
            yield index.attr("name"), limit, f"{name} has {limit} rows", n.where
        elif n.op.name == "cross_entropy_rows" and n.inputs[1].op.name == "feature":
            limit = n.inputs[0].shape[0]
            yield n.inputs[1].attr("name"), limit, f"the logits have {limit} classes", n.where


def explain_range(traced: Graph, batch: Any) -> FeatureError | None:
    """Return an error for the first integer that is too large for its table or classes, or None.

    It is called when the engine has refused a batch, so that a good batch costs nothing.
    """
    schema = batch.feature_schema()
    for name, limit, what, where in _limits(traced.nodes()):
        values = np.asarray(batch[name])
        wrong = np.flatnonzero(values >= limit)
        if wrong.size:
            row = int(wrong[0]) // math.prod(values.shape[1:])
            structure = owner_of(name)[0] if batch.structures else ""
            domain = schema[name].domain
            of_pair = domain == "pair"
            position = (
                batch.pair_label(name, row) if of_pair else _at(batch, domain, row, structure)
            )
            return FeatureError(
                f"feature {name!r} is {int(values.flat[wrong[0]])} at {position}, but {what}",
                where=where,
                hint=f"values are 0 to {limit - 1}, or -1 for none",
            )
    return None


def named(batch: Any) -> str:
    """Return the graphs of a batch for an error message."""
    if batch.ids is None:
        return f"the {batch.num_graphs} graphs of a batch without ids"
    listed = ", ".join(str(int(i)) for i in batch.ids[:64])
    return f"graphs {listed}" + (", ..." if len(batch.ids) > 64 else "")


def _damaged(parameters: Mapping[str, Any]) -> str:
    """Return the cure where parameters are not finite; empty where they are."""
    bad = [n for n, p in parameters.items() if not np.isfinite(p.current()).all()]
    return f"{', '.join(bad)} holds values that are not finite; load a good checkpoint" * bool(bad)


def check_loss(loss: float, batch: Any, parameters: Mapping[str, Any]) -> None:
    """NumericsError if the loss of an evaluation is not finite, with the graphs of its batch."""
    if not math.isfinite(loss):
        hint = _damaged(parameters) or NOT_FINITE
        raise NumericsError(f"the loss is {loss}, on {named(batch)}", hint=hint)


def check_prediction(
    name: str, rows: NDArray[Any], domain: Domain, batch: Any, parameters: Mapping[str, Any]
) -> None:
    """NumericsError if an output ``rows[n, ...]`` of a ``domain`` holds NaN, with its position.

    Infinite values pass: minus infinity is a valid score.
    """
    # The minimum is NaN if any value is; the method `min` takes twice as long for few.
    if not rows.size or not math.isnan(np.minimum.reduce(rows, axis=None)):
        return
    row = int(np.flatnonzero(np.isnan(rows).reshape(len(rows), -1).any(axis=1))[0])
    raise NumericsError(
        f"prediction {name!r} is NaN at {_at(batch, domain.base, row, domain.structure)}",
        hint=_damaged(parameters)
        or "an operator of the model is not defined or overflows there, such as a log or a "
        "division of 0, or an exp",
    )


class EngineErrors:
    """A context in which errors of the engine name the feature that they are about.

    The engine knows it by number; the error has its name, graph and vertex too. A class is entered
    faster than a generator.
    """

    __slots__ = ("_batch", "_traced")

    def __init__(self, traced: Graph | None, batch: Any) -> None:
        self._traced, self._batch = traced, batch

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if isinstance(error, IndexError | ValueError) and self._traced is not None:
            known = explain_range(self._traced, self._batch)
            if known is not None:
                raise known from error
