"""The exchanges of one compiled program on this rank."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from cavs.distributed.strategy import NodeConfig, Strategy, Variable, shards_of
from cavs.distributed.sync.all_reduce import AllReduce, DenseAllReduce
from cavs.distributed.sync.member import Member, Runtime
from cavs.distributed.sync.on_device import DeviceAllReduce
from cavs.distributed.sync.synchroniser import Exchange, Transfer, lower
from cavs.errors import ConfigError


def exchanges_of(runtime: Runtime, layouts: Mapping[str, str]) -> list[Exchange]:
    """Return the exchanges that this rank takes part in, in the order of all ranks.

    layouts: "dense", "sparse" or "none" for the gradient of every parameter in the program. Without
    a strategy gradients are all-reduced in buckets.
    """
    strategy, parameters = runtime.strategy, runtime.parameters
    names = list(parameters)
    members: list[Member] = []
    order = [i for i in runtime.executor.gradient_order() if parameters[names[i]].trainable]
    for turn, i in enumerate(order):
        name, shape, dtype = names[i], parameters[names[i]].shape, str(runtime.values[i].dtype)
        variable = Variable(name=name, shape=shape, dtype=dtype, sparse=layouts[name] == "sparse")
        node = NodeConfig(name=name, synchroniser=AllReduce(group=None))
        node = node if strategy is None else strategy.node(name)
        for leaf, shard in zip(node.leaves, shards_of(node, shape), strict=True):
            # Servers take part where they own something; in a push replicas alone do.
            if runtime.roles.computes or (leaf.sync.owner is not None and not leaf.sync.is_stale):
                members.append(Member.of(i, turn, leaf, shard, variable))
    transfers = lower(members, runtime)
    sums = [t for t in transfers if t.exchange is DenseAllReduce]
    others = [t for t in transfers if t.exchange is not DenseAllReduce]
    on_host = {m.parameter for t in others for m in t.members}.union(served_by(strategy, names))
    there = [] if runtime.group is None else _on_device(sums, on_host)
    for transfer in sums:
        if transfer.nccl and transfer not in there:
            reason = "parts of its group are not consecutive in memory, or are needed on the host"
            if runtime.group is None:
                reason = "NCCL sums nothing here: see collectives of the trainer"
            raise ConfigError(
                f"{transfer.nccl}: its all-reduce has spec 'nccl', but {reason}",
                hint="give it spec 'auto'",
            )
    return [(DeviceAllReduce if t in there else t.exchange)(t.members, runtime) for t in transfers]


def served_by(strategy: Strategy | None, parameters: Iterable[str]) -> list[int]:
    """Return the numbers of the parameters that servers own, wholly or in part."""
    nodes = () if strategy is None else strategy.nodes
    served = {n.name for n in nodes if any(leaf.sync.owner is not None for leaf in n.leaves)}
    return [i for i, name in enumerate(parameters) if name in served]


def _on_device(sums: Sequence[Transfer], on_host: Collection[int]) -> list[Transfer]:
    """Return the sums over gradients that nothing else needs on the host."""
    here = set(on_host)
    there = [t for t in sums if all(m.part.rows == 1 for m in t.members)]
    here.update(m.parameter for t in sums if t not in there for m in t.members)
    while mixed := [t for t in there if any(m.parameter in here for m in t.members)]:
        there = [t for t in there if t not in mixed]
        here.update(m.parameter for t in mixed for m in t.members)
    return there
