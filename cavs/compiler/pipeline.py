"""The compiler, as a list of passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cavs.compiler.columns import store_side_by_side
from cavs.compiler.lower import Lowering
from cavs.compiler.products import join_products
from cavs.compiler.program import Program
from cavs.compiler.reuse import plan_reuse
from cavs.compiler.scatter import mark_scatters
from cavs.ir import INT, Graph
from cavs.ir.printer import print_graph
from cavs.ir.verify import verify
from cavs.passes.access import insert_copies
from cavs.passes.at_child import at_child
from cavs.passes.at_labelled import at_labelled
from cavs.passes.at_nth_child import at_nth_child
from cavs.passes.cotangents_at_child import multiples_at_child, products_at_child
from cavs.passes.differentiate import dense_gradients, differentiate, split_gradients
from cavs.passes.merge_products import merge_products
from cavs.passes.merge_vertices import merge_vertices
from cavs.passes.partition import Partition, partition
from cavs.passes.recurrence import recurrences
from cavs.passes.replicate import replicate
from cavs.passes.simplify import CANONICAL, RULES, simplify
from cavs.passes.specialise import Kind, optional_features, specialise
from cavs.passes.trim import trim, trim_gradients


@dataclass(frozen=True)
class Passes:
    """A switch for each pass that can be ablated; what is off is replaced by the plain way."""

    merge_vertices: bool = True
    at_labelled: bool = True
    at_child: bool = True
    at_nth_child: bool = True
    cotangents_at_child: bool = True
    simplify: bool = True
    specialise: bool = True
    trim: bool = True
    merge_products: bool = True
    partition: bool = True
    fuse: bool = True
    plan_memory: bool = True


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
) -> Compiled:
    """Compiles a traced model for vertices of the ``kinds`` (keys of the schedule).

    training adds the gradients of all trainable parameters. merging: rows are distinct vertices,
    with the features of `cavs.passes.merge_vertices`. shared: vertices share children, so that
    edges outnumber vertices; nth_shared: so much that products of single children are done at the
    child. record keeps the text of every stage. replicated: batches of a training are parts of
    global ones, see `cavs.passes.replicate`. recurrent: LSTMs are run as a whole, on batches of
    chains and on devices alone, see `cavs.passes.recurrence`. beside: sums may run beside loops, as
    on devices.
    """
    stages: list[tuple[str, str]] = []

    def done(name: str, graph: Graph) -> Graph:
        verify(graph, name)
        if record:
            stages.append((name, print_graph(graph)))
        return graph

    rules = RULES if passes.simplify else CANONICAL
    graph = done("trace", traced)
    replicated &= training
    if replicated:
        graph = done("replicate", replicate(graph))
    if recurrent:
        graph = done("recurrences", recurrences(graph))
    if merging:
        graph = done("merge_vertices", merge_vertices(graph, counts=not replicated))
    if nth_shared and passes.specialise:  # of products as they are traced: so kinds are numbered
        graph = done("at_nth_child", at_nth_child(graph))
    if passes.at_labelled:
        labelled = at_labelled(graph)
        graph = graph if labelled == graph else done("at_labelled", labelled)
    optional = optional_features(graph)
    if passes.at_child and shared:
        graph = done("at_child", at_child(graph))
    if training:
        graph = done("differentiate", differentiate(graph))
    graph = done("simplify", simplify(graph, rules))
    reached = dense_gradients(graph)
    if passes.cotangents_at_child and training and not beside:
        moved = products_at_child(graph)
        graph = graph if moved == graph else done("products_at_child", simplify(moved, rules))
    if passes.specialise:
        known = [Kind.of(key, optional) for key in kinds]
        graph = done("specialise", simplify(specialise(graph, known, not passes.partition), rules))
    if passes.trim:
        graph = done("trim", simplify(trim(graph), rules))
    if passes.cotangents_at_child and training:
        moved = multiples_at_child(graph)
        graph = graph if moved == graph else done("multiples_at_child", simplify(moved, rules))
    if passes.merge_products:
        graph = done("merge_products", simplify(merge_products(graph), rules))
    graph = verify(split_gradients(graph), "split_gradients")
    if passes.trim:
        graph = verify(simplify(trim_gradients(graph), rules), "trim_gradients")
    graph = done("insert_copies", insert_copies(graph))
    parts = partition(
        graph, hoist=passes.partition, sink=passes.plan_memory, recompute=passes.plan_memory
    )
    nodes = graph.nodes()
    features = [n for n in nodes if n.op.name == "feature"]
    present = {str(d.kind) for d in (n.type.domain for n in nodes) if d.base == "present"}
    program = Program(
        kinds=list(kinds),
        parameters=list(parameters),
        int_features=sorted(present | {n.attr("name") for n in features if n.type.dtype == INT}),
        float_features=sorted({n.attr("name") for n in features if n.type.dtype != INT}),
        optional=optional,
    )
    Lowering(parts, program, passes.fuse, reached).run()
    mark_scatters(program)
    if passes.partition:
        join_products(program, beside)
    if passes.plan_memory:
        plan_reuse(program, beside)
    else:
        for b in program.buffers:
            b.first, b.last = 0, max(len(program.stages) - 1, 0)
    if beside:
        store_side_by_side(program)
    return Compiled(program, traced, graph, parts, stages)
