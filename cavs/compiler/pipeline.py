"""The compiler, as a list of passes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from cavs.compiler.coalesce_operands import coalesce_operands
from cavs.compiler.copy_outputs import copy_outputs
from cavs.compiler.lower import Lowering
from cavs.compiler.mark_scatter_traffic import mark_scatter_traffic
from cavs.compiler.merge_gradient_products import merge_gradient_products
from cavs.compiler.options import CompileOptions, Passes, default_passes
from cavs.compiler.program import Program
from cavs.compiler.reuse_buffers import keep_buffers, reuse_buffers
from cavs.compiler.save_memory import PLAIN, MemoryPlan, least_memory
from cavs.config import collection_paused
from cavs.data.vertex_types import row_feature
from cavs.ir import INT, Graph, Node
from cavs.ir.printer import print_graph
from cavs.ir.verify import verify
from cavs.passes.backward.fold_constant_cotangents import fold_constant_cotangents
from cavs.passes.backward.hoist_cotangent_products import hoist_cotangent_products
from cavs.passes.backward.hoist_cotangent_scales import hoist_cotangent_scales
from cavs.passes.backward.share_cotangents import share_cotangents
from cavs.passes.backward.sum_cotangents_at_child import (
    SlotKey,
    edge_cotangent_slots,
    sum_cotangents_at_child,
)
from cavs.passes.deduplicate_lookups import deduplicate_lookups
from cavs.passes.differentiate import dense_gradients, differentiate
from cavs.passes.hoist_products_to_child import hoist_products_to_child
from cavs.passes.hoist_products_to_leaves import hoist_products_to_leaves
from cavs.passes.insert_copies import insert_copies
from cavs.passes.match_recurrences import match_recurrences
from cavs.passes.merge_products import merge_products
from cavs.passes.merge_vertices import merge_vertices
from cavs.passes.partition import Partition, partition
from cavs.passes.restrict_to_labelled import restrict_to_labelled
from cavs.passes.scale_for_replicas import scale_for_replicas
from cavs.passes.simplify import CANONICAL, RULES, simplify
from cavs.passes.specialise import Kind, optional_features, specialise, types_of
from cavs.passes.split_gradients import split_gradients
from cavs.passes.split_lookups import split_lookups
from cavs.passes.trim_gradients import trim_gradients
from cavs.passes.trim_products import trim_products

__all__ = ["CompileOptions", "Compiled", "Passes", "compile_graph", "default_passes"]


@dataclass
class Compiled:
    """A program and the stages it came from, for explain()."""

    program: Program
    traced: Graph
    graph: Graph
    partition: Partition
    stages: list[tuple[str, str]] = field(default_factory=list)


def _always(c: _Compilation) -> bool:
    return True


def _no_arguments(c: _Compilation) -> dict[str, Any]:
    return {}


class Pass(NamedTuple):
    """A step of the compiler: `function` maps a graph, and `arguments`, to a graph.

    applies: when it runs. simplified: its result is. if_changed: a result that equals its input is
    neither simplified nor shown. shown: `cavs.explain` prints the result.
    """

    name: str
    function: Callable[..., Graph]
    applies: Callable[[_Compilation], bool] = _always
    arguments: Callable[[_Compilation], dict[str, Any]] = _no_arguments
    simplified: bool = False
    if_changed: bool = False
    shown: bool = True


# Passes on the traced model; the result decides which features make kinds of vertices.
FORWARD = (
    Pass("trace", lambda graph: graph),
    Pass("split_lookups", split_lookups, if_changed=True),
    Pass("scale_for_replicas", scale_for_replicas, lambda c: c.replicated),
    Pass("match_recurrences", match_recurrences, lambda c: c.options.recurrent),
    Pass(
        "merge_vertices",
        merge_vertices,
        lambda c: bool(c.options.merging),
        lambda c: {"structures": c.options.merging, "counts": not c.replicated},
    ),
    Pass(
        "hoist_products_to_leaves",
        hoist_products_to_leaves,
        lambda c: c.options.shared_products and c.passes.specialise,
    ),
    Pass(
        "restrict_to_labelled",
        restrict_to_labelled,
        lambda c: c.passes.restrict_to_labelled,
        if_changed=True,
    ),
)
GRADIENTS = (
    Pass(
        "hoist_products_to_child",
        hoist_products_to_child,
        lambda c: c.passes.hoist_products_to_child and c.options.shared_children,
    ),
    Pass(
        "differentiate",
        differentiate,
        lambda c: c.options.training,
        lambda c: {"inputs": c.options.inputs, "outside": c.options.outside},
    ),
    Pass("simplify", simplify, arguments=lambda c: {"rules": c.rules}),
)
# These run once for each memory plan.
KINDS = (
    Pass(
        "share_cotangents",
        share_cotangents,
        lambda c: c.hoists_cotangents and not c.options.target.concurrent_sums,
        simplified=True,
        if_changed=True,
    ),
    Pass(
        "hoist_cotangent_products",
        hoist_cotangent_products,
        lambda c: c.hoists_cotangents and not c.options.target.concurrent_sums,
        lambda c: {"shared": c.plan.sum_in_loops},
        simplified=True,
        if_changed=True,
    ),
    Pass(
        "sum_cotangents_at_child",
        sum_cotangents_at_child,
        lambda c: c.hoists_cotangents and bool(c.summed_slots),
        lambda c: {"wanted": c.summed_slots},
        simplified=True,
        if_changed=True,
    ),
    Pass(
        "specialise",
        specialise,
        lambda c: c.passes.specialise or bool(c.types),
        lambda c: {"kinds": c.kinds_of_vertices, "products": not c.passes.hoist_eager},
        simplified=True,
    ),
    Pass("trim_products", trim_products, lambda c: c.passes.trim_products, simplified=True),
    Pass(
        "hoist_cotangent_scales",
        hoist_cotangent_scales,
        lambda c: c.hoists_cotangents,
        simplified=True,
        if_changed=True,
    ),
    Pass(
        "fold_constant_cotangents",
        fold_constant_cotangents,
        lambda c: bool(c.summed_slots),
        simplified=True,
        if_changed=True,
    ),
    Pass("merge_products", merge_products, lambda c: c.passes.merge_products, simplified=True),
    Pass(
        "deduplicate_lookups",
        deduplicate_lookups,
        lambda c: bool(c.options.repeated),
        lambda c: {"repeated": c.options.repeated, "kinds": c.kinds},
        if_changed=True,
    ),
    Pass("split_gradients", split_gradients, shown=False),
    Pass(
        "trim_gradients",
        trim_gradients,
        lambda c: c.passes.trim_products,
        simplified=True,
        shown=False,
    ),
    Pass("insert_copies", insert_copies),
)
PIPELINE = FORWARD + GRADIENTS + KINDS


@dataclass(eq=False)
class _Compilation:
    """The facts that passes need beyond the graph.

    optional, types: features and types of vertices that number the kinds. summed_slots: cotangents
    of edges that ``plan`` sums at the child. stages: texts for `cavs.explain`. results: of passes,
    by name, each with its graph and arguments; those of two memory plans often agree.
    """

    traced: Graph
    kinds: Sequence[int]
    parameters: Sequence[str]
    options: CompileOptions
    optional: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    plan: MemoryPlan = PLAIN
    summed_slots: Collection[SlotKey] = ()
    stages: list[tuple[str, str]] = field(default_factory=list)
    results: dict[str, list[tuple[Graph, dict[str, Any], Graph]]] = field(default_factory=dict)

    @property
    def passes(self) -> Passes:
        """The switches."""
        return self.options.passes

    @property
    def kinds_of_vertices(self) -> list[Kind]:
        """The kinds, in the order of their keys in the program."""
        names = self.options.structures.names
        return [Kind.of(key, self.optional, self.types, names) for key in self.kinds]

    @property
    def rules(self) -> Any:
        """The rules of simplification."""
        return RULES if self.passes.simplify else CANONICAL

    @property
    def replicated(self) -> bool:
        """True if gradients are summed over replicas."""
        return self.options.replicated and self.options.training

    @property
    def hoists_cotangents(self) -> bool:
        """True if backward hoists to the child."""
        return self.passes.hoist_cotangents and self.options.training

    @property
    def may_save_memory(self) -> bool:
        """True if memory plans apply.

        Not to replicas: their gradients are sent one by one, which those summed in a loop are not.
        """
        p, o = self.passes, self.options
        spares = o.training and not self.replicated and not o.target.concurrent_sums
        hoists = p.hoist_eager and p.hoist_lazy
        return spares and p.save_memory and hoists and p.plan_memory

    def run(self, passes: Sequence[Pass], graph: Graph) -> Graph:
        """Return ``graph`` after the passes that apply, each verified."""
        for p in passes:
            if not p.applies(self):
                continue
            graph, before = self._result(p, graph), graph
            if self.options.record and p.shown and not (p.if_changed and graph is before):
                self.stages.append((p.name, print_graph(graph)))
        return graph

    def _result(self, p: Pass, graph: Graph) -> Graph:
        """Return the result of a pass, verified; ``graph`` itself if the pass changes nothing."""
        arguments, known = p.arguments(self), self.results.setdefault(p.name, [])
        for before, given, after in known:
            if given == arguments and _in_order(before) == _in_order(graph):
                return graph if after is before else after
        found = p.function(graph, **arguments)
        if p.if_changed and found == graph:
            found = graph
        else:
            found = verify(simplify(found, self.rules) if p.simplified else found, p.name)
        known.append((graph, arguments, found))
        return found

    def finish(self, graph: Graph) -> Compiled:
        """Compile a graph with gradients."""
        reached = dense_gradients(graph)
        graph = self.run(KINDS, graph)
        parts = partition(
            graph,
            eager=self.passes.hoist_eager,
            lazy=self.passes.hoist_lazy,
            sink=self.passes.plan_memory,
            recompute=self.passes.plan_memory,
            sums_in_loops=self.plan.sum_in_loops,
            edges_in_loops=bool(self.summed_slots),
        )
        program = self._empty_program(graph)
        Lowering(parts, program, self.passes.fuse, reached).run()
        self._optimise(program)
        return Compiled(program, self.traced, graph, parts, self.stages)

    def _optimise(self, program: Program) -> None:
        """Run the passes over a program, in place."""
        concurrent_sums = self.options.target.concurrent_sums
        mark_scatter_traffic(program)
        if self.passes.hoist_lazy:
            merge_gradient_products(program, concurrent_sums)
        if self.passes.plan_memory:
            if self.options.target.copies_outputs:
                copy_outputs(program)
            reuse_buffers(program, concurrent_sums)
        else:
            keep_buffers(program)
        if concurrent_sums:
            coalesce_operands(program)

    def _empty_program(self, graph: Graph) -> Program:
        """A program without instructions, with the names of what ``graph`` reads."""
        nodes = graph.nodes()
        features = [n for n in nodes if n.op.name == "feature"]
        selecting = {str(d.kind) for d in (n.type.domain for n in nodes) if d.selected}
        ints = selecting | {n.attr("name") for n in features if n.type.dtype == INT}
        for n in features:
            if n.type.dtype != INT and (of := dict(n.attrs).get("vertex_type")):
                ints.add(row_feature(of, n.type.domain.structure))
        return Program(
            kinds=list(self.kinds),
            parameters=list(self.parameters),
            int_features=sorted(ints),
            float_features=sorted({n.attr("name") for n in features if n.type.dtype != INT}),
            optional=self.optional,
            types=self.types,
            structures=self.options.structures,
            forward_stages=0 if self.options.outside else -1,
        )


def _in_order(graph: Graph) -> list[tuple[Any, Node]]:
    return [*graph.outputs.items(), *graph.slots.items()]


def compile_graph(
    traced: Graph, kinds: Sequence[int], parameters: Sequence[str], options: CompileOptions
) -> Compiled:
    """Compile a traced model for vertices of the ``kinds``, keys of the schedule."""
    with collection_paused():
        return _compile(traced, kinds, parameters, options)


def _compile(
    traced: Graph, kinds: Sequence[int], parameters: Sequence[str], options: CompileOptions
) -> Compiled:
    c = _Compilation(traced, kinds, parameters, options)
    graph = c.run(FORWARD, traced)
    c.optional, c.types = optional_features(graph), types_of(graph)
    graph = c.run(GRADIENTS, graph)

    def compile_with(plan: MemoryPlan) -> Compiled:
        slots = edges if plan.sum_at_child else ()
        planned = replace(c, plan=plan, summed_slots=slots, stages=list(c.stages))
        return planned.finish(graph)

    edges: Collection[SlotKey] = ()
    plain = compile_with(PLAIN)
    if options.shape is None or not c.may_save_memory:
        return plain
    edges = edge_cotangent_slots(plain.graph)
    return least_memory(plain, options.shape, bool(edges), compile_with)
