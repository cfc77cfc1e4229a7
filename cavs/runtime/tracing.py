"""Traces a model for the features of batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cavs import _engine
from cavs.compiler.memory import Shape
from cavs.data.features import MAX_OPTIONAL
from cavs.data.merge import LEAF
from cavs.frontend.batch import Feature
from cavs.frontend.model import Model, trace_model
from cavs.passes.hoist_products_to_leaves import hoist_products_to_leaves
from cavs.passes.merge_vertices import distinguishing
from cavs.passes.specialise import optional_features
from cavs.runtime.check import check_schema
from cavs.runtime.variant import BatchLike, Variant

MAX_KINDS = 32  # of vertices that a model is compiled for
MAX_RECOMPILES = 8  # times that new ones came after it was compiled


def trace(variant: Variant, model: Model, schema: Mapping[str, Any], batch: BatchLike) -> None:
    """Traces ``model``, anew where a feature turns out to be absent at some vertex.

    schema: type of every feature of ``batch``. Raises what tracing raises, and FeatureError where
    a feature is not what it was.
    """
    if variant.traced is not None and not guessed(variant, batch):
        if schema == variant.last_schema:
            return
        check_schema(variant.traced, variant.schema, schema, batch)
        if not lacks(variant, batch):
            variant.last_schema = schema
            return
    variant.last_schema, variant.traced, variant.executor = {}, None, None
    old = variant.schema
    variant.schema = {
        n: Feature(
            s.kind,
            s.dtype,
            tuple(s.shape),
            n not in variant.merged_features
            and bool(s.has_absent or n in variant.absent or (n in old and old[n].optional)),
        )
        for n, s in schema.items()
    }
    of_edges = any(f.where == "edge" for f in variant.schema.values())
    variant.without_edges = of_edges and not batch.topology.num_edges
    variant.traced = trace_model(
        model,
        variant.schema,
        training=variant.training,
        with_loss=variant.with_loss,
        edges=batch.topology.num_edges > 0,
    )
    if variant.merging:
        variant.distinguishing = distinguishing(variant.traced, variant.training)
    optional, decided = variant.optional, variant.child_numbers
    set_child_numbers(variant, decided or 0)
    variant.child_numbers = decided
    if len(variant.optional) > MAX_OPTIONAL:
        merge_features(variant)
        return trace(variant, model, schema, batch)
    if optional != variant.optional:
        variant.kinds = ()
    if variant.pending_kinds:
        variant.kinds, variant.pending_kinds = variant.pending_kinds, ()


def fits(variant: Variant, batch: BatchLike) -> bool:
    """Whether the trace of ``variant`` holds for ``batch``, too."""
    return not guessed(variant, batch) and not lacks(variant, batch)


def guessed(variant: Variant, batch: BatchLike) -> bool:
    """Whether features of edges were traced where there were none, and are in ``batch``."""
    return variant.without_edges and batch.topology.num_edges > 0


def lacks(variant: Variant, batch: BatchLike) -> bool:
    """Whether a feature is absent somewhere that the trace takes for present everywhere."""
    return any(
        (s.has_absent or n in variant.absent) and not variant.schema[n].optional
        for n, s in batch.feature_schema().items()
        if n in variant.schema and n not in variant.merged_features
    )


def must_merge_features(variant: Variant, kinds: Collection[int]) -> bool:
    """Whether ``kinds`` of vertices besides the known ones are too many to compile for each."""
    if all(name.startswith(LEAF) for name in variant.optional):
        return False
    new = set(kinds) - set(variant.kinds)
    late = bool(new) and variant.executor is not None and variant.recompiles >= MAX_RECOMPILES
    return late or len(variant.kinds) + len(new) > MAX_KINDS


def decide_shape(variant: Variant, schedule: _engine.Schedule, agreed: bool) -> None:
    """What a program is compiled for, of the first batch that shows it; nothing where replicas,
    whose batches differ, have agreed on a program, or a session goes on with one that had none."""
    vertices, edges = schedule.batch.num_vertices, schedule.batch.num_edges
    if variant.shared is None:
        variant.shared = edges > vertices and not agreed
    known = any(key % 2 for key in variant.kinds)  # with children
    if variant.shape is None and edges and not (agreed or known):
        inner = sum(end - begin for key, (begin, end), _ in schedule.kinds if key % 2)
        variant.shape = Shape((vertices - inner) / inner, edges / inner)


def merge_features(variant: Variant) -> None:
    """Vertices without features that some have are no kinds any more: they read rows of zeros."""
    variant.merged_features |= {name for name in variant.optional if not name.startswith(LEAF)}
    variant.traced, variant.kinds, variant.last_schema = None, (), {}


def set_child_numbers(variant: Variant, numbers: int) -> None:
    """Hoist products of the first ``numbers`` children, see passes.hoist_products_to_leaves."""
    assert variant.traced is not None
    variant.child_numbers = numbers
    graph = hoist_products_to_leaves(variant.traced) if numbers else variant.traced
    variant.optional = optional_features(graph)
