"""The chains of operations that a strategy runs in a training step, and their bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cavs.distributed.strategy import Strategy, Variable, by_gradient, shards_of
from cavs.distributed.sync import Member, Pricing, lower
from cavs.distributed.sync.operation import NO_LOAD, Chain, Floats, Load, sent_bytes


def plan(
    strategy: Strategy, variables: Sequence[Variable], load: Load = NO_LOAD, step: int = 0
) -> tuple[Chain, ...]:
    """Return the chains of training step `step` (compressors may warm up).

    They are those of the exchanges that the run lowers the strategy to, in the order in which
    gradients are done (`by_gradient`). The bytes of the run are checked against them.
    """
    pricing = Pricing(strategy, load, step)
    members: list[Member] = []
    numbers = {variable.name: i for i, variable in enumerate(variables)}
    nodes = {node.name: node for node in strategy.nodes}
    for variable in by_gradient(variables):
        if variable.name not in nodes:
            continue
        node = nodes[variable.name]
        leaves = list(zip(node.leaves, shards_of(node, variable.shape), strict=True))
        for leaf, shard in reversed(leaves):
            members.append(Member.of(numbers[node.name], len(members), leaf, shard, variable))
    chains = [x for transfer in lower(members, pricing) for x in transfer.chains(pricing)]
    return tuple(chain for _, chain in sorted(chains, key=lambda item: item[0]))


def bytes_by_rank(
    strategy: Strategy, variables: Sequence[Variable], load: Load = NO_LOAD, step: int = 0
) -> Floats:
    """Return the bytes that every rank of the strategy sends in one training step."""
    world = len(strategy.graph.ranks)
    total = np.zeros(world)
    for chain in plan(strategy, variables, load, step):
        for operation in chain.operations:
            total += sent_bytes(operation, world)
    return total
