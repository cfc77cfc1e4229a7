"""A rank whose shard has no edge knows the edge features as the others do."""

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads
from cavs.train.checkpoint import read_checkpoint

VECTORS, WORDS = {"way": [[0.5, 1.0], [2.0, -1.0]]}, {"way": [1, 2]}


class Labelled(cavs.VertexFunction):
    """Edges are labelled, by vectors or by words of a table."""

    def __init__(self, words):
        self.words = words
        self.state = cavs.State(h=3)
        self.W = cavs.Parameter((3, 3))
        self.V = cavs.Parameter((3 if words else 2, 3))

    def vertex(self, v):
        child = v.gather()
        h = ops.tanh(v.pull("x") @ self.W + (child.h * (v.edge("way") @ self.V)).sum())
        v.scatter(h=h)
        v.push(h)


class Ways(cavs.Model):
    def __init__(self, words):
        self.words = words
        self.embedding = nn.Embedding(5, 3)
        self.table = nn.Embedding(4, 3)
        self.cell = Labelled(words)
        self.output = nn.Linear(3, 2)
        rng = np.random.default_rng(0)
        for p in self.parameters().values():
            p.value[...] = rng.normal(size=p.shape) * 0.4

    def loss(self, batch):
        way = self.table(batch["way"]) if self.words else batch["way"]
        h = self.cell(batch.graph, x=self.embedding(batch["token"]), way=way)
        return ops.cross_entropy(self.output(h), batch["label"])


def star(ways):
    return cavs.Graph([[1, 2], [], []], {"token": [1, 2, 3], "label": [0, 1, 1]}, ways)


def lone(token, ways=None):
    features = {"token": [token], "label": [token % 2]}
    return cavs.Graph([[]], features, {} if ways is None else {"way": ways})


def batches(words, order, empty):
    """First one with edges, on one rank; then one without."""
    first = [star(WORDS if words else VECTORS), *(lone(i, empty) for i in range(3))]
    return [first[::order], [lone(i, empty) for i in range(4)], first[::order]]


def train(t, some):
    return [t.advance(cavs.batch(graphs)).loss for graphs in some]


STRATEGIES = [None, "PartitionedPS", "PSLoadBalancing(servers=1)"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("empty", [None, []])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("words", [False, True])
def test_edges_on_one_rank_alone(words, order, empty, strategy, tmp_path):
    some = batches(words, order, empty)
    model = Ways(words)
    session = cavs.Session(model, dtype=np.float64)
    expected = train(cavs.Trainer(model, cavs.optim.SGD(lr=0.1), session=session), some)
    size = 3 if strategy and "servers" in strategy else 2

    def work(c):
        own, optimizer = Ways(words), cavs.optim.SGD(lr=0.1)
        with Trainer(own, optimizer, communicator=c, strategy=strategy, dtype=np.float64) as t:
            losses = train(t, some)
            t.save(tmp_path / "ways.safetensors")
        return losses, {n: p.value.copy() for n, p in own.parameters().items()}

    for losses, values in run_threads(size, work)[:2]:
        assert losses == pytest.approx(expected, rel=1e-10)
        for name, p in model.parameters().items():
            np.testing.assert_allclose(values[name], p.value, rtol=1e-9, atol=1e-12, err_msg=name)
    kept = read_checkpoint(tmp_path / "ways.safetensors").feature_types
    assert kept == model._feature_types


@pytest.mark.parametrize("empty", [None, []])
@pytest.mark.parametrize("words", [False, True])
def test_stale_ranks_count_by_themselves(words, empty):
    """No rank informs one without edges of the features of the others."""
    some = batches(words, 1, empty)

    def work(c):
        strategy, optimizer = "PSLoadBalancing(staleness=1)", cavs.optim.SGD(lr=0.1)
        with Trainer(Ways(words), optimizer, communicator=c, strategy=strategy) as t:
            return train(t, some)

    assert np.isfinite(run_threads(2, work)).all()
