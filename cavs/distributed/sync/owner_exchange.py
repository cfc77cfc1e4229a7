"""The price of exchanges with owners: gradients go to them, values come from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cavs.distributed.sync.exchange import Exchange
from cavs.distributed.sync.member import Member, Pricing, row_bytes
from cavs.distributed.sync.operation import Chain, Floats, Operation, rooted


class OwnerExchange(Exchange):
    """An exchange with the owners of its members, each of which is priced on its own."""

    @classmethod
    def chains(cls, members: Sequence[Member], pricing: Pricing) -> list[tuple[int, Chain]]:
        found = []
        for member in members:
            lag = member.leaf.sync.lag
            operations = cls.operations([member], pricing)
            chain = Chain((member.leaf.name,), operations, lag == 0, lag is not None)
            found.append((member.turn, chain))
        return found

    @classmethod
    def operations(cls, members: Sequence[Member], pricing: Pricing) -> tuple[Operation, ...]:
        (member,) = members
        variable, shard, sync = member.variable, member.shard, member.leaf.sync
        assert sync.owner is not None
        root, replicas = pricing.strategy.graph.rank_of(sync.owner), pricing.replicas
        push, pull = "reduce", "broadcast"
        sent: Floats = np.full(len(replicas), float(member.nbytes))
        received = float(member.nbytes)
        if variable.sparse:
            push = "gather"
            rows, union = pricing.rows(variable, shard, replicas)
            sent, received = rows * row_bytes(variable), union * row_bytes(variable)
        hosts = pricing.hosts
        leaders = [root if root in ranks else ranks[0] for ranks in hosts]
        many = len(hosts) > 1  # else no rank speaks for a host, as in the run
        found: list[Operation] = []
        senders: Mapping[int, float] = dict(zip(replicas, sent.tolist(), strict=True))
        if sync.sums_on_hosts and many:
            summed = {}
            for ranks, leader in zip(hosts, leaders, strict=True):
                found += rooted(push, {r: float(sent[r]) for r in ranks}, leader)
                summed[leader] = received
                if variable.sparse:
                    summed[leader] = pricing.rows(variable, shard, ranks)[1] * row_bytes(variable)
            senders = summed
        found += rooted(push, senders, root)
        if sync.replicates_on_hosts and many:
            found += rooted(pull, dict.fromkeys(leaders, received), root)
            for ranks, leader in zip(hosts, leaders, strict=True):
                found += rooted(pull, dict.fromkeys(ranks, received), leader)
        else:
            found += rooted(pull, dict.fromkeys(replicas, received), root)
        return tuple(found)
