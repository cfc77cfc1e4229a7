"""Traces a model for the features of batches, and decides from batches how it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cavs import _engine
from cavs.compiler.memory import Shape
from cavs.data.features import MAX_OPTIONAL
from cavs.data.merge import LEAF
from cavs.data.vertex_types import number_of_bits
from cavs.frontend.batch import Feature
from cavs.frontend.model import Model, trace_model
from cavs.ir import Graph, Structures
from cavs.passes.deduplicate_lookups import LEAST_REPEATED, RepeatedIndex, looked_up
from cavs.passes.hoist_products_to_leaves import hoist_products_to_leaves
from cavs.passes.merge_vertices import distinguishing
from cavs.passes.specialise import STRUCTURE_SHIFT, optional_features, types_of
from cavs.runtime.check import (
    arity_that_fits,
    check_schema,
    check_structures,
    check_typed_values,
)
from cavs.runtime.interface import Array, BatchLike
from cavs.runtime.variant import Decisions, Trace, Variant, VariantKey

MAX_KINDS = 32  # kinds of vertices that a model is compiled for
MAX_RECOMPILES = 8  # for kinds that come after compilation


def trace(
    variant: Variant,
    model: Model,
    schema: Mapping[str, Any],
    structures: Structures | None,
    batch: BatchLike,
    like: Variant | None = None,
) -> None:
    """Trace ``model`` unless the trace of ``variant`` holds for ``batch``.

    schema: type of every feature of ``batch``. structures: of its samples. like: a variant that was
    first traced for ``batch``, where merging does not apply; one without merging has the same
    trace. Raises what tracing raises, and FeatureError where a feature has changed its type; the
    variant is unchanged then.
    """
    known, decisions = variant.trace, variant.decisions
    if (
        known is not None
        and known.merged_features == decisions.merged_features
        and not _guessed(known, batch, structures)
    ):
        if known.structures is not None or structures is not None:
            check_structures(known.structures, structures, batch)
            known.guessed_links &= _without_rows(batch)
        if schema == known.last_schema:
            return
        check_schema(known.graph, known.schema, schema, batch)
        if not _lacks(known, decisions, batch):
            known.last_schema = schema
            return
    if like is not None and known is None and decisions.traced_like(like.decisions):
        found = replace(like.traced)
    else:
        found = _traced(variant.key, decisions, known, model, schema, structures, batch)
    while len(found.optional) > MAX_OPTIONAL - number_of_bits(found.types):
        decisions.merge_features(_mergeable(found))
        found = _traced(variant.key, decisions, known, model, schema, structures, batch)
    if known is not None and known.optional != found.optional:
        decisions.forget_kinds()
    if decisions.types not in (None, found.types):
        decisions.forget_kinds()
    decisions.types = found.types
    variant.trace, variant.build = found, None


def _traced(
    key: VariantKey,
    decisions: Decisions,
    known: Trace | None,
    model: Model,
    schema: Mapping[str, Any],
    structures: Structures | None,
    batch: BatchLike,
) -> Trace:
    absent = set(decisions.absent)
    if known is not None:
        absent |= {n for n, f in known.schema.items() if f.optional}
    features = {
        n: Feature(
            s.domain,
            s.dtype,
            tuple(s.shape),
            n not in decisions.merged_features and bool(s.has_absent or n in absent),
            s.type,
        )
        for n, s in schema.items()
    }
    edges = batch.topology.num_edges > 0
    graph = trace_model(
        model,
        features,
        training=key.training and key.dropout,
        with_loss=key.with_loss,
        predictions=key.outside or not key.training,
        edges=edges,
        structures=structures,
    )
    types = types_of(graph)
    check_typed_values(graph, types)
    return Trace(
        graph,
        features,
        _optional(graph, decisions.child_numbers or 0),
        distinguishing(graph, key.training, structures) if key.merging else None,
        decisions.merged_features,
        not edges and any(f.where == "edge" for f in features.values()),
        types,
        structures,
        _without_rows(batch),
        fits=arity_that_fits(graph),
    )


def _without_rows(batch: BatchLike) -> frozenset[str]:
    """Return the links that no sample of ``batch`` has rows of."""
    if batch.structures is None:
        return frozenset()
    return frozenset(name for name, link in batch.links.items() if link.single is None)


def _optional(graph: Graph, child_numbers: int) -> tuple[str, ...]:
    return optional_features(hoist_products_to_leaves(graph) if child_numbers else graph)


def fits(variant: Variant, structures: Structures | None, batch: BatchLike) -> bool:
    """True if the trace of ``variant`` holds for ``batch``, whose samples have ``structures``."""
    found = variant.traced
    return not _guessed(found, batch, structures) and not _lacks(found, variant.decisions, batch)


def _guessed(trace: Trace, batch: BatchLike, structures: Structures | None) -> bool:
    """True if types of edge features were a guess, and ``batch`` has edges; or those of links."""
    if trace.without_edges and batch.topology.num_edges > 0:
        return True
    if not trace.guessed_links or trace.structures is None or structures is None:
        return False
    changed = set(structures.links).difference(trace.structures.links)
    return any(link.name in trace.guessed_links for link in changed)


def _lacks(trace: Trace, decisions: Decisions, batch: BatchLike) -> bool:
    """True if a feature is absent somewhere that the trace takes for present everywhere."""
    return any(
        (s.has_absent or n in decisions.absent) and not trace.schema[n].optional
        for n, s in batch.feature_schema().items()
        if n in trace.schema and n not in decisions.merged_features
    )


def _mergeable(trace: Trace) -> set[str]:
    return {name for name in trace.optional if not name.startswith(LEAF)}


def must_merge_features(variant: Variant, kinds: Collection[int]) -> bool:
    """True if ``kinds`` of vertices besides the known ones are too many to compile for each."""
    decisions = variant.decisions
    new = set(kinds) - set(decisions.kinds)
    if not new and len(decisions.kinds) <= MAX_KINDS:
        return False
    if not _mergeable(variant.traced):
        return False
    late = bool(new) and variant.build is not None and decisions.recompiles >= MAX_RECOMPILES
    return late or len(decisions.kinds) + len(new) > MAX_KINDS


def merge_features(variant: Variant) -> None:
    """Let no absent feature make kinds of vertices; the model is traced again for that."""
    variant.decisions.merge_features(_mergeable(variant.traced))


def decide_shape(decisions: Decisions, schedule: _engine.Schedule, agreed: bool) -> None:
    """Decide from the first batch whether edges outnumber vertices, and the shape of its graphs.

    agreed: replicas, whose batches differ, run one program: nothing is decided. Nor is the shape
    where a session continues with a program that was compiled without one.
    """
    if decisions.shared is not None and decisions.shape is not None:
        return
    vertices, edges = schedule.batch.num_vertices, schedule.batch.num_edges
    if decisions.shared is None:
        decisions.shared = edges > vertices and not agreed
    has_inner = any(key % 2 for key in decisions.kinds)
    if decisions.shape is None and edges and not (agreed or has_inner):
        inner = sum(end - begin for key, (begin, end), _ in schedule.kinds if key % 2)
        decisions.shape = Shape((vertices - inner) / inner, edges / inner)


def decide_child_numbers(variant: Variant, numbers: int) -> None:
    """Hoist products of the first ``numbers`` children, see passes.hoist_products_to_leaves."""
    variant.decisions.child_numbers = numbers
    variant.traced.optional = _optional(variant.traced.graph, numbers)


def decide_repeated(
    variant: Variant, rows_of: Callable[[str], Array], schedule: _engine.Schedule
) -> None:
    """Decide which index features are repeated, see passes.deduplicate_lookups.

    rows_of: an index feature of the batch by its name.
    """
    traced, found, order = variant.traced, [], schedule.order
    structures = (traced.structures or Structures()).names
    for name, structure in looked_up(traced.graph).items():
        index = rows_of(name)
        present = index >= 0
        distinct = len(set(index[present].tolist()))
        lookups = tuple(
            (int(key), np.count_nonzero(present[order[begin:end]]) / max(distinct, 1))
            for key, (begin, end), _ in schedule.kinds
            if structures[key >> STRUCTURE_SHIFT] == structure
        )
        repeated = RepeatedIndex(name, lookups)
        if repeated.total >= LEAST_REPEATED:
            found.append(repeated)
    variant.decisions.repeated = tuple(found)
    if found:
        variant.build = None
