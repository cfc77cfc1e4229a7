"""Makes the loss of one replica's part of a batch stand for its share in that of the whole batch.

A replica has S_r = sum over its rows where one process has S = S_1 + ... + S_N. With S_r times N
(the engine's ``replica_scale``) and with counts of the global batch, the mean over the replicas of
the loss is the loss of the whole batch, and so is that of the gradients, if the loss is an affine
function of its sums: terms without data (weight decay written into the loss) count once, means
divide by the number of terms of the whole batch, however the graphs are dealt out.
"""

from __future__ import annotations

from cavs.errors import CompileError
from cavs.ir import Graph, Node, apply, rewrite, toposort

_HINT = "make the loss a sum of means or sums over rows, or train it on one process"


def scale_for_replicas(graph: Graph) -> Graph:
    """Scales the sums behind the output "loss". CompileError if the loss is not affine in them."""
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
    """The sums over rows that the loss is made of, none below another."""
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
    """Raises if one needs another: of that a replica knows its own part alone."""
    for node in sums:
        for x in toposort(node.inputs):
            if x.op.name == "sum_rows" and x.inputs[0].type.domain.base != "one":
                raise CompileError(
                    "[sum_rows] the loss needs a sum over all rows, such as their mean, at each of "
                    "them, so parts of a batch cannot be computed apart",
                    where=x.where,
                    hint=_HINT,
                )


def _check_affine(loss: Node, sums: set[Node]) -> None:
    """Raises unless every path from a sum to the loss is linear."""
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
                "of a batch cannot be computed apart",
                where=node.where,
                hint=_HINT,
            )
        varies.add(node)


def _above(loss: Node, sums: set[Node]) -> list[Node]:
    """Nodes of the loss that do not lie below its sums, inputs first."""
    below = {n for s in sums for n in toposort(s.inputs)}
    return [n for n in toposort([loss]) if n not in below]
