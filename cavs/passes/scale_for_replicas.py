"""Scale the sums of a replica so that the mean over replicas is the loss of the whole batch.

A replica has S_r, the sum over its rows, where one process has S = S_1 + ... + S_N. With S_r times
N (the engine's ``replica_scale``) and counts of the global batch, the mean over the replicas of an
affine loss is the loss of the whole batch, and likewise for gradients. Terms without data (weight
decay written into the loss) count once, and means divide by the number of terms of the whole batch,
however the graphs are distributed.
"""

from __future__ import annotations

from cavs.errors import CompileError
from cavs.ir import Graph, Node, apply, rewrite, toposort

_HINT = "make the loss a sum of means or sums over rows, or train it on one process"


def scale_for_replicas(graph: Graph) -> Graph:
    """Scale the sums of the output "loss". CompileError if the loss is not affine in them."""
    loss = graph.outputs["loss"]
    sums = _sums(loss)
    _check_outermost(sums)
    _check_affine(loss, sums)

    def rule(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node not in sums:
            return None
        return apply("sum_rows", *inputs) * apply("replica_scale")

    return rewrite(graph, rule)


Divisor = tuple[str, str, str]  # operator, base or feature, and structure


def count_of_loss(graph: Graph) -> Divisor | None:
    """Return the count of rows that the loss divides its sums over rows by; None if it is a sum.

    It is ``("count_rows", base, structure)``, where the structure of samples that are one graph is
    "", or ``("count_present", feature, "")``. CompileError unless the loss of some graphs of a
    batch is that of the batch without the sums of the others, times the ratio of two counts: where
    sums are divided by different counts, and with terms without data.
    """
    loss = graph.outputs["loss"]
    divisors: dict[Node, set[Divisor | None]] = {node: {None} for node in _sums(loss)}
    for node in _above(loss, set(divisors)):
        found = [divisors[x] for x in node.inputs if x in divisors]
        if node in divisors or not found:
            continue
        if node.op.jointly_linear and len(found) < len(node.inputs):
            raise _not_one_mean("has terms without data", node)
        below = toposort([x for x in node.inputs if x not in divisors])
        counts = [key for x in below if (key := _count_key(x)) is not None]
        before = set[Divisor | None]().union(*found)
        divisors[node] = (before - {None}).union(counts) if counts else before
    every = divisors.get(loss, set())
    if len(every) != 1:
        why = "divides its sums by different counts" if every else "depends on no sum over rows"
        raise _not_one_mean(why, loss)
    return every.pop()


def _count_key(node: Node) -> Divisor | None:
    """Return operator and rows of a count; None of another node."""
    if node.op.name == "count_rows":
        return "count_rows", node.attr("base"), dict(node.attrs).get("structure", "")
    if node.op.name == "count_present":
        return "count_present", node.inputs[0].attr("name"), ""
    return None


def _not_one_mean(why: str, node: Node) -> CompileError:
    return CompileError(
        f"[{node.op.name}] the loss {why}, so that the gradients of some ranks are not those of "
        "their graphs",
        where=node.where,
        hint="write the loss as one mean, or as sums over rows, or use no backup ranks",
    )


def _sums(loss: Node) -> set[Node]:
    """Return the outermost sums over rows that the loss depends on."""
    found, stack, seen = set(), [loss], set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op.name == "sum_rows" and node.inputs[0].type.domain.base != "one":
            found.add(node)
        else:
            stack += node.inputs
    return found


def _check_outermost(sums: set[Node]) -> None:
    """Raise if a sum depends on another one, of which a replica knows only its own part."""
    for node in sums:
        for x in toposort(node.inputs):
            if x.op.name == "sum_rows" and x.inputs[0].type.domain.base != "one":
                raise CompileError(
                    "[sum_rows] the loss needs a sum over all rows, such as their mean, at each of "
                    "them, so parts of a batch cannot be computed separately",
                    where=x.where,
                    hint=_HINT,
                )


def _check_affine(loss: Node, sums: set[Node]) -> None:
    """Raise unless every path from a sum to the loss is linear."""
    varies: set[Node] = set()
    for node in _above(loss, sums):
        if node in sums:
            varies.add(node)
            continue
        inputs = tuple(i for i, x in enumerate(node.inputs) if x in varies)
        if not inputs:
            continue
        linear = len(inputs) == 1 and inputs[0] in node.op.linear_in
        if not linear and not node.op.jointly_linear:
            raise CompileError(
                f"[{node.op.name}] the loss is no affine function of its sums over rows, so parts "
                "of a batch cannot be computed separately",
                where=node.where,
                hint=_HINT,
            )
        varies.add(node)


def _above(loss: Node, sums: set[Node]) -> list[Node]:
    """Return the nodes of the loss that its sums do not depend on, inputs first."""
    below = {n for s in sums for n in toposort(s.inputs)}
    return [n for n in toposort([loss]) if n not in below]
