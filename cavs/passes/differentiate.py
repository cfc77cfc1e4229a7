"""Reverse-mode differentiation of the joint graph (Cavs, section 3.4; thesis 6.5.3).

The cycle of the recurrence is cut at the slots: the cotangent of what a vertex scatters is a
``gather_grad`` of a new backward slot, and the cotangents of the gathers feed that slot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce

from cavs.errors import FAULT, CompileError
from cavs.ir import (
    FLOAT,
    ONE,
    REGISTRY,
    Graph,
    Node,
    Slot,
    TensorType,
    apply,
    broadcast_shapes,
    constant,
    origin,
    sum_of_axis,
    toposort,
    users,
)
from cavs.ops.leaves import feature
from cavs.ops.types import add_types, at_all_types
from cavs.passes.branches import Branches
from cavs.passes.rules import constant_of


def reduce_to(d: Node, target: TensorType) -> Node:
    """Sum the cotangent ``d`` over the rows and elements that broadcasting repeated."""
    while d.type.domain.rank > target.domain.rank:
        if target.domain == ONE:
            d = apply("sum_rows", d)
        elif d.type.domain.related:
            d = apply("sum_children", d)
        else:
            d = apply("sum_vertices", at_all_types(d))
    return _reduce_shape(d if target.domain.kind else at_all_types(d), target.shape)


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return broadcast_shapes([shape, target]) == target
    except ValueError:
        return False


def _reduce_shape(d: Node, shape: tuple[int, ...]) -> Node:
    if _broadcasts(d.shape, shape):
        return d
    extra = len(d.shape) - len(shape)
    if extra > 0 and d.shape[0] == 1:
        return _reduce_shape(apply("reshape", d, shape=d.shape[1:]), shape)
    if extra > 0 and len(d.shape) == 1:
        return _reduce_shape(apply("sum_axis", d), shape)
    target = ((1,) * extra + shape)[-len(d.shape) :]
    for axis, (size, kept) in enumerate(zip(d.shape[:-1], target[:-1], strict=True)):
        if kept == 1 < size:
            return _reduce_shape(sum_of_axis(d, axis), shape)
    if target[-1] == 1 < d.shape[-1]:
        return _reduce_shape(apply("keep_axis", apply("sum_axis", d)), shape)
    raise CompileError(
        f"cannot reduce a cotangent of shape {list(d.shape)} to {list(shape)}",
        where=d.where,
        hint="vjp= of an operator gives a cotangent for each input, which broadcasts with it; if "
        f"the operator is none of yours, {FAULT}",
    )


def expand(d: Node, target: TensorType) -> Node:
    """Broadcast ``d`` to the type of the value that it is the cotangent of."""
    if d.type == target:
        return d
    return apply("broadcast", d, shape=target.shape, domain=target.domain)


def gathered(gather: Node, readers: Iterable[Node]) -> list[Node]:
    """Return the nodes where cotangents of ``gather`` stop: values of k-th children, or itself."""
    nth = [n for n in readers if n.op.name == "nth_child"]
    return nth if len(nth) == len(list(readers)) else [*nth, gather]


def gradients(
    graph: Graph, output: Node, wrt: Iterable[Node]
) -> tuple[list[Node], dict[Slot, Node]]:
    """Return the gradients of ``output``, of one row, by ``wrt``, and the backward slots.

    Each new backward slot is mapped to the cotangent of its gathers.
    """
    nodes = toposort([output, *graph.slots.values()])
    wanted = list(wrt)
    forward = _depends_on(nodes, set(wanted), graph)
    branches = Branches(graph, nodes)
    cotangent: dict[Node, Node] = {}

    def add(node: Node, d: Node | None) -> None:
        if d is None or node not in forward:
            return
        d = expand(reduce_to(d, node.type), node.type) if d.type != node.type else d
        cotangent[node] = d if node not in cotangent else add_types(cotangent[node], d)

    # The gathered values whose cotangent each new slot holds: one for each type of vertices.
    backward: dict[Slot, list[Node]] = defaultdict(list)
    readers = users(nodes)
    gathers: dict[Slot, list[Node]] = defaultdict(list)
    for n in nodes:
        if n.op.reads_slot:
            gathers[n.attr("slot")].append(n)
    for slot, source in graph.slots.items():
        if slot.backward:  # the structure runs top-down
            if source in forward:
                back = replace(slot, backward=False)
                unread = [apply("gather_grad", slot=slot, domain=slot.structure.vertex)]
                backward[back] = gathers[slot] or unread
                add(source, apply("gather", slot=back, domain=slot.structure.edge))
            continue
        of_child: dict[int | None, Slot] = {}
        every = [n for g in gathers[slot] for n in gathered(g, readers.get(g, ()))]
        for n in every if source in forward else ():
            k = n.attr("k") if n.op.name == "nth_child" else None
            if k not in of_child:
                of_child[k] = replace(slot, backward=True, child=k)
                add(source, apply("gather_grad", slot=of_child[k], domain=slot.structure.vertex))
            backward[of_child[k]].append(n)
    stops = {n for values in backward.values() for n in values}
    add(output, constant(1.0))
    for node in reversed(nodes):
        d = cotangent.get(node)
        if d is None or not node.inputs or node in stops:
            continue
        if node.op.vjp is None:
            raise CompileError(
                f"operator {node.op.name} has no gradient",
                where=node.where,
                hint="give vjp= where the operator is defined, or read it through "
                "ops.stop_gradient(x), so that training takes it for a constant",
            )
        with origin(node.where):
            for x, dx in zip(node.inputs, branches.vjp(node, d), strict=True):
                add(x, dx)
    slots: dict[Slot, Node] = {}
    for back, values in backward.items():
        found = [at_all_types(cotangent[n]) for n in values if n in cotangent]
        domain = values[0].type.domain.of_kind(None)
        zero = apply("broadcast", constant(0.0), shape=values[0].shape, domain=domain)
        slots[back] = reduce(add_types, found) if found else zero
    for w in wanted:
        if w not in cotangent:
            cotangent[w] = apply("broadcast", constant(0.0), shape=w.shape, domain=w.type.domain)
    return [cotangent[w] for w in wanted], slots


def _depends_on(nodes: list[Node], wanted: set[Node], graph: Graph) -> set[Node]:
    """Return the nodes that depend on ``wanted``, also through slots."""
    found: set[Node] = set(wanted)
    while True:
        before = len(found)
        for node in nodes:
            if node in found:
                continue
            if any(x in found for x in node.inputs) or (
                node.op.reads_slot and graph.slots[node.attr("slot")] in found
            ):
                found.add(node)
        if len(found) == before:
            return found


#: Begins the names of outputs that are cotangents of float features.
INPUT = "input:"
#: Begins the names of float features that are cotangents of outputs, where no loss is traced.
COTANGENT = "#cotangent "


def float_features(graph: Graph) -> list[Node]:
    """Return the float features of the data that ``graph`` reads; none of the compiler's own.

    A feature is several nodes where it is read at vertices of several types, or with a label.
    """
    found = [n for n in graph.nodes() if n.op is REGISTRY["feature"] and n.type.dtype == FLOAT]
    return [n for n in found if not n.attr("name").startswith("#")]


def weighed_outputs(graph: Graph) -> Node:
    """Return the sum of all outputs of ``graph``, each element times its cotangent, a feature."""
    total = constant(0.0)
    for name, x in graph.outputs.items():
        terms = x * feature(f"{COTANGENT}{name}", x.type.domain, FLOAT, x.shape)
        for _ in x.shape:
            terms = apply("sum_axis", terms)
        total = total + (terms if terms.type.domain == ONE else apply("sum_rows", terms))
    return total


def after_cotangents(graph: Graph) -> set[Node]:
    """Return the nodes that depend on cotangents of outputs which the caller gives."""
    nodes = graph.nodes()
    given = {
        n
        for n in nodes
        if n.op is REGISTRY["feature"] and str(n.attr("name")).startswith(COTANGENT)
    }
    return _depends_on(nodes, given, graph) if given else given


def differentiate(graph: Graph, *, inputs: bool = False, outside: bool = False) -> Graph:
    """Add an output "grad:NAME" for every trainable parameter that the loss depends on.

    inputs: also an output "input:NAME" for every float feature that is read, its cotangent at all
    vertices, edges, graphs or pairs; zeros where no vertex of its type is, or no label. outside:
    the caller computes a loss from the outputs, whose cotangents become features.
    """
    loss = weighed_outputs(graph) if outside else graph.outputs["loss"]
    parameters = [
        n for n in graph.nodes() if n.op is REGISTRY["parameter"] and n.attr("parameter").trainable
    ]
    features = float_features(graph) if inputs else []
    found, slots = gradients(graph, loss, [*parameters, *features])
    outputs = dict(graph.outputs)
    for node, d in zip(parameters, found, strict=False):
        outputs[f"grad:{node.attr('parameter').name}"] = d
    for node, d in zip(features, found[len(parameters) :], strict=True):
        key = f"{INPUT}{node.attr('name')}"
        whole = _at_all_rows(d)
        outputs[key] = add_types(outputs[key], whole) if key in outputs else whole
    return Graph(outputs, {**graph.slots, **slots})


def _at_all_rows(d: Node) -> Node:
    """Return the cotangent of a feature with zeros at rows that it is not read at."""
    return apply("place", d) if d.type.domain.base == "present" else at_all_types(d)


def dense_gradients(graph: Graph) -> set[str]:
    """Return the parameters with a dense gradient that is not always zero.

    Such a gradient is stored as zeros if the kinds of vertices at hand contribute nothing, so that
    momentum and weight decay do not depend on the kinds. Looked-up rows of a parameter that is not
    sparse are part of a dense gradient, so that all of it decays and has momentum.
    """
    parameters = (n.attr("parameter") for n in graph.nodes() if n.op.name == "parameter")
    tables = {f"grad:{p.name}" for p in parameters if p.sparse}
    found = set()
    for key, value in graph.outputs.items():
        stack = [value] if key.startswith("grad:") else []
        while stack:
            x = stack.pop()
            if x.op.name == "add":
                stack += x.inputs
            elif key in tables and x.op.name == "lookup_grad":
                continue
            elif constant_of(x) != 0.0:
                found.add(key.removeprefix("grad:"))
    return found
