"""The compiler, as a list of passes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from cavs.compiler.coalesce_operands import coalesce_operands
from cavs.compiler.lower import Lowering
from cavs.compiler.mark_scatter_traffic import mark_scatter_traffic
from cavs.compiler.memory import Shape, kept, peak
from cavs.compiler.merge_gradient_products import merge_gradient_products
from cavs.compiler.program import Program
from cavs.compiler.reuse_buffers import reuse_buffers
from cavs.errors import ConfigError, user_line
from cavs.ir import INT, Graph
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
from cavs.passes.specialise import Kind, optional_features, specialise
from cavs.passes.split_gradients import split_gradients
from cavs.passes.trim_gradients import trim_gradients
from cavs.passes.trim_products import trim_products

# Former names of switches, each with the present one.
RENAMED = {
    "at_labelled": "restrict_to_labelled",
    "at_child": "hoist_products_to_child",
    "at_nth_child": "hoist_products_to_leaves",
    "cotangents_at_child": "hoist_cotangents",
    "trim": "trim_products",
    "frugal": "save_memory",
}


@dataclass(frozen=True)
class Passes:
    """A switch for each pass that can be ablated; what is off is replaced by the plain way."""

    merge_vertices: bool = True
    restrict_to_labelled: bool = True
    hoist_products_to_child: bool = True
    hoist_products_to_leaves: bool = True
    hoist_cotangents: bool = True
    simplify: bool = True
    specialise: bool = True
    trim_products: bool = True
    merge_products: bool = True
    partition: bool = True
    fuse: bool = True
    plan_memory: bool = True
    save_memory: bool = True

    def __new__(cls, *positional: object, **switches: object) -> Passes:
        """Refuse a switch of a former name with its present one."""
        for old in RENAMED.keys() & switches:
            raise ConfigError(
                f"{old}: the pass and its switch were renamed",
                where=user_line(),
                hint=f"write {RENAMED[old]}",
            )
        return super().__new__(cls)


# save_memory and outward, see `_Compiler.finish`
WAYS = ((True, False), (False, True), (True, True))
MOST = 1.5  # so many times what backward reads a step should hold at most

# Of a session that is given none, by where it runs. On a device a launch costs more than what it
# computes: merged vertices are of more kinds, so that a level is three times as many tasks.
ON_CPU, ON_DEVICE = Passes(), Passes(merge_vertices=False)


def default_passes(device: object) -> Passes:
    """The passes of a session on ``device``, "cpu" or another, that is given none; one object."""
    return ON_CPU if device == "cpu" else ON_DEVICE


@dataclass
class Compiled:
    """A program and the stages it came from, for explain()."""

    program: Program
    traced: Graph
    graph: Graph
    partition: Partition
    stages: list[tuple[str, str]] = field(default_factory=list)


def compile_graph(
    traced: Graph,
    kinds: Sequence[int],
    parameters: Sequence[str],
    *,
    training: bool,
    merging: bool = False,
    shared: bool = False,
    nth_shared: bool = False,
    passes: Passes = Passes(),
    record: bool = False,
    replicated: bool = False,
    recurrent: bool = False,
    beside: bool = False,
    shape: Shape | None = None,
) -> Compiled:
    """Compiles a traced model for vertices of the ``kinds`` (keys of the schedule).

    training adds the gradients of all trainable parameters. merging: rows are distinct vertices,
    with the features of `cavs.passes.merge_vertices`. shared: vertices share children, so that
    edges outnumber vertices; nth_shared: so much that products of single children are done at the
    child. record keeps the text of every stage. replicated: batches of a training are parts of
    global ones, see `cavs.passes.scale_for_replicas`. recurrent: LSTMs are run as a whole, on
    batches of chains and on devices alone, see `cavs.passes.match_recurrences`. beside: sums may
    run beside loops, as on devices. shape: of the graphs; where a step would hold much more than
    backward reads, it is compiled to hold less.
    """
    c = _Compiler(traced, kinds, parameters, training, passes, record, beside)
    rules = RULES if passes.simplify else CANONICAL
    graph = c.done("trace", traced)
    replicated &= training
    if replicated:
        graph = c.done("scale_for_replicas", scale_for_replicas(graph))
    if recurrent:
        graph = c.done("match_recurrences", match_recurrences(graph))
    if merging:
        graph = c.done("merge_vertices", merge_vertices(graph, counts=not replicated))
    if nth_shared and passes.specialise:  # of products as they are traced: so kinds are numbered
        graph = c.done("hoist_products_to_leaves", hoist_products_to_leaves(graph))
    if passes.restrict_to_labelled:
        labelled = restrict_to_labelled(graph)
        graph = graph if labelled == graph else c.done("restrict_to_labelled", labelled)
    c.optional = optional_features(graph)
    if passes.hoist_products_to_child and shared:
        graph = c.done("hoist_products_to_child", hoist_products_to_child(graph))
    if training:
        graph = c.done("differentiate", differentiate(graph))
    graph = c.done("simplify", simplify(graph, rules))
    # Gradients of replicas leave one by one, which those that a loop sums do not.
    spare = training and not beside and not replicated
    spare &= passes.save_memory and passes.partition and passes.plan_memory

    def finished(save_memory: bool = False, outward: Collection[SlotKey] = ()) -> Compiled:
        return replace(c, stages=list(c.stages)).finish(graph, save_memory, outward)

    compiled = finished()
    if shape is None or not spare:
        return compiled
    edges = edge_cotangent_slots(compiled.graph)
    for save_memory, outward in WAYS if edges else WAYS[:1]:
        if _holds_much(compiled.program, shape):
            other = finished(save_memory, edges if outward else ())
            if _holds_less(other.program, compiled.program, shape):
                compiled = other
    return compiled


def _holds_much(program: Program, shape: Shape) -> bool:
    return peak(program, shape) > MOST * kept(program, shape)


def _holds_less(program: Program, other: Program, shape: Shape) -> bool:
    return peak(program, shape) < peak(other, shape)


@dataclass
class _Compiler:
    """What the passes behind differentiation need to know."""

    traced: Graph
    kinds: Sequence[int]
    parameters: Sequence[str]
    training: bool
    passes: Passes
    record: bool
    beside: bool
    optional: tuple[str, ...] = ()
    stages: list[tuple[str, str]] = field(default_factory=list)

    def done(self, name: str, graph: Graph) -> Graph:
        verify(graph, name)
        if self.record:
            self.stages.append((name, print_graph(graph)))
        return graph

    def finish(self, graph: Graph, save_memory: bool, outward: Collection[SlotKey]) -> Compiled:
        """Compiles a differentiated graph. save_memory: so that little is held at once, though
        products of gradients are of fewer rows, and those at children of more. outward: slots of
        which no row is held for each edge, though what parents make for each is made where it is
        read."""
        passes, done = self.passes, self.done
        rules = RULES if passes.simplify else CANONICAL

        def changed(name: str, before: Graph, after: Graph) -> Graph:
            return before if after == before else done(name, simplify(after, rules))

        reached = dense_gradients(graph)
        if passes.hoist_cotangents and self.training and not self.beside:
            graph = changed("share_cotangents", graph, share_cotangents(graph))
            moved = hoist_cotangent_products(graph, shared=save_memory)
            graph = changed("hoist_cotangent_products", graph, moved)
            if outward:
                summed = sum_cotangents_at_child(graph, outward)
                graph = changed("sum_cotangents_at_child", graph, summed)
        if passes.specialise:
            known = [Kind.of(key, self.optional) for key in self.kinds]
            special = specialise(graph, known, not passes.partition)
            graph = done("specialise", simplify(special, rules))
        if passes.trim_products:
            graph = done("trim_products", simplify(trim_products(graph), rules))
        if passes.hoist_cotangents and self.training:
            graph = changed("hoist_cotangent_scales", graph, hoist_cotangent_scales(graph))
        if outward:
            graph = changed("fold_constant_cotangents", graph, fold_constant_cotangents(graph))
        if passes.merge_products:
            graph = done("merge_products", simplify(merge_products(graph), rules))
        graph = verify(split_gradients(graph), "split_gradients")
        if passes.trim_products:
            graph = verify(simplify(trim_gradients(graph), rules), "trim_gradients")
        graph = done("insert_copies", insert_copies(graph))
        parts = partition(
            graph,
            hoist=passes.partition,
            sink=passes.plan_memory,
            recompute=passes.plan_memory,
            sums_in_loops=save_memory,
            edges_in_loops=bool(outward),
        )
        program = self._program(graph)
        Lowering(parts, program, passes.fuse, reached).run()
        mark_scatter_traffic(program)
        if passes.partition:
            merge_gradient_products(program, self.beside)
        if passes.plan_memory:
            reuse_buffers(program, self.beside)
        else:
            for b in program.buffers:
                b.first, b.last = 0, max(len(program.stages) - 1, 0)
        if self.beside:
            coalesce_operands(program)
        return Compiled(program, self.traced, graph, parts, self.stages)

    def _program(self, graph: Graph) -> Program:
        """An empty one, with the names and numbers of what ``graph`` reads."""
        nodes = graph.nodes()
        features = [n for n in nodes if n.op.name == "feature"]
        present = {str(d.kind) for d in (n.type.domain for n in nodes) if d.base == "present"}
        ints = present | {n.attr("name") for n in features if n.type.dtype == INT}
        return Program(
            kinds=list(self.kinds),
            parameters=list(self.parameters),
            int_features=sorted(ints),
            float_features=sorted({n.attr("name") for n in features if n.type.dtype != INT}),
            optional=self.optional,
        )
