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
