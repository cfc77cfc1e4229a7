"""Random strategies that pass verification give the parameters of one process."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import cavs
from cavs import nn, ops
from cavs.distributed import Trainer
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm import run_threads
from cavs.distributed.planning.builders import build
from cavs.distributed.strategy import GraphConfig, NodeConfig, Strategy, variables_of
from cavs.distributed.strategy.verify import problems
from cavs.distributed.sync import AllReduce, ParameterServer, SufficientFactors
from tests.patience import patience

WORDS, LABELS, HIDDEN = 30, 3, 20


class Heads(cavs.Model):
    """Two tables and two heads: matrices, vectors of many elements and vectors of few."""

    def __init__(self):
        self.words, self.tags = nn.Embedding(WORDS, 6), nn.Embedding(5, 6)
        self.cell = nn.ChildSumTreeLSTM(6, HIDDEN)
        self.first, self.second = nn.Linear(HIDDEN, 5), nn.Linear(HIDDEN, LABELS)

    def loss(self, batch):
        x = self.words(batch["token"]) + self.tags(batch["tag"])
        x = x + self.words(batch["pieces"]).sum(-2)
        h = self.cell(batch.graph, x=x)
        of_tags = ops.cross_entropy(self.first(h), batch["tag"])
        return of_tags + ops.cross_entropy(self.second(h), batch["label"])


@functools.cache
def batches():
    rng = np.random.default_rng(1)

    def chain(n):
        values = {"token": WORDS, "tag": 5, "label": LABELS}
        features = {k: rng.integers(0, m, n) for k, m in values.items()}
        features["pieces"] = rng.integers(-1, WORDS, (n, 2))
        return cavs.Graph.chain(n, features=features)

    return [cavs.batch([chain(int(n)) for n in rng.integers(1, 9, 7)]) for _ in range(3)]


def trained(c, strategy):
    trainer = Trainer(
        Heads(),
        cavs.optim.SGD(lr=0.1, momentum=0.5),
        strategy=strategy,
        communicator=c,
        dtype=np.float64,
        threads=1,
    )
    rng = np.random.default_rng(3)
    for p in trainer.parameters.values():
        p.value = 0.3 * rng.standard_normal(p.value.shape)
    for batch in batches():
        trainer.advance(batch)
    found = {name: p.value.copy() for name, p in trainer.parameters.items()}
    trainer.close()
    return found


@functools.cache
def alone():
    return run_threads(1, lambda c: trained(c, None))[0]


def assert_as_alone(strategy):
    replicas, servers = len(strategy.graph.replicas), len(strategy.graph.servers)
    every = run_threads(replicas + servers, lambda c: trained(c, strategy), timeout=patience(60))
    for found in every[:replicas]:
        for name, expected in alone().items():
            scale = np.abs(expected).max()
            np.testing.assert_allclose(
                found[name], expected, rtol=0, atol=1e-12 * scale, err_msg=name
            )


def devices(count):
    return tuple(f"localhost:CPU:{i}" for i in range(count))


@st.composite
def strategies(draw):
    ranks = draw(st.integers(2, 4))
    servers = draw(st.sampled_from([0, 0, 0, 1]))
    there = devices(ranks)

    def synchroniser(how, two_level):
        if how == "server":
            return ParameterServer(destination=draw(st.sampled_from(there)), two_level=two_level)
        if how == "sum":
            return AllReduce(group=draw(st.sampled_from([None, 0, 1, 2])))
        return SufficientFactors()

    def several(v, parts):
        """Return synchronisers of all parts; tables have one for all, and only matrices have
        factors.
        """
        known = ["server", "sum", "sum"]
        known += ["factors"] if parts == 1 and len(v.shape) == 2 and not v.sparse else []
        kind, levels = st.sampled_from(known), st.booleans()
        drawn = [(draw(kind), draw(levels)) for _ in range(1 if v.sparse else parts)]
        return [synchroniser(*one) for one in drawn * (parts if v.sparse else 1)]

    nodes = []
    for v in variables_of(Heads()):
        partition = [1] * len(v.shape)
        if draw(st.booleans()):
            axis = 0 if v.sparse else draw(st.integers(0, len(v.shape) - 1))
            partition[axis] = draw(st.integers(2, min(v.shape[axis], 5)))
        found = several(v, math.prod(partition))
        if len(found) == 1:
            nodes.append(NodeConfig(name=v.name, synchroniser=found[0]))
            continue
        shards = tuple(
            NodeConfig(name=f"{v.name}/part_{i}", synchroniser=s) for i, s in enumerate(found)
        )
        nodes.append(NodeConfig(name=v.name, partition=tuple(partition), shards=shards))
    graph = GraphConfig(replicas=there[: ranks - servers], servers=there[ranks - servers :])
    strategy = Strategy(graph=graph, nodes=tuple(nodes))
    assume(not problems(strategy, variables_of(Heads()), ResourceSpec.local(ranks)))
    return strategy


@settings(max_examples=60, deadline=None)
@given(strategies())
def test_any_verified_strategy(strategy):
    assert_as_alone(strategy)


@pytest.mark.parametrize(
    ("name", "groups"),
    [("second.bias", [5, 6, 5]), ("cell.b", [5, 6] * 4), ("first.bias", [5, 5, 6, 6, 5])],
)
def test_parts_of_a_small_vector_in_groups_of_their_own(name, groups):
    """Elements between two parts that are summed together are summed elsewhere."""
    base = build("AllReduce", variables_of(Heads()), ResourceSpec.local(2))
    shards = tuple(
        NodeConfig(name=f"{name}/part_{i}", synchroniser=AllReduce(group=g))
        for i, g in enumerate(groups)
    )
    cut = NodeConfig(name=name, partition=(len(groups),), shards=shards)
    nodes = tuple(cut if node.name == name else node for node in base.nodes)
    assert_as_alone(Strategy(graph=GraphConfig(replicas=devices(2)), nodes=nodes))


@pytest.mark.parametrize("chunk", [2, 3, 4, 5])
@pytest.mark.parametrize("builder", ["PartitionedAR", "RandomAxisPartitionAR"])
def test_groups_that_end_in_the_middle_of_a_vector(builder, chunk):
    spec = ResourceSpec.local(2)
    assert_as_alone(build(f"{builder}(chunk={chunk})", variables_of(Heads()), spec))
