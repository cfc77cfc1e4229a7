"""Ranks that are threads train like one process."""

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.distributed import Trainer
from cavs.distributed.communicator import SingleCommunicator, run_threads


class Tree(cavs.Model):
    """A Tree-LSTM with what weights must get right: two means, a sum, weight decay in the loss."""

    def __init__(self, seed=0):
        self.embedding = nn.Embedding(40, 6)
        self.cell = nn.ChildSumTreeLSTM(6, 5)
        self.output = nn.Linear(5, 3)
        self.value = nn.Linear(5, 1)
        rng = np.random.default_rng(seed)
        for p in self.parameters().values():
            p.value[...] = rng.normal(size=p.shape) * 0.4

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        loss = ops.cross_entropy(self.output(h), batch["label"])
        loss = loss + 0.5 * ops.mean_squared_error(self.value(h), 0.3)
        total = ops.cross_entropy(self.output(h), batch["label"], reduction="sum")
        return loss + 0.01 * total + 0.1 * ops.mean_squared_error(self.output.weight, 0.0)


def trees(count, seed):
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        n = int(rng.integers(1, 9))
        children = [[] for _ in range(n)]
        for v in range(1, n):
            children[int(rng.integers(0, v))].append(v)
        leaf = np.array([not c for c in children])
        token = np.where(leaf | (rng.random(n) < 0.2), rng.integers(0, 40, n), -1)
        label = np.where(rng.random(n) < 0.6, rng.integers(0, 3, n), -1)
        graphs.append(cavs.Graph(children, {"token": token, "label": label}))
    return graphs


BATCHES = [trees(n, seed) for seed, n in enumerate([7, 4, 1, 2, 9, 8, 3, 5])]


def train_alone(optimizer, max_norm=None):
    model = Tree()
    session = cavs.Session(model, dtype=np.float64)
    trainer = cavs.Trainer(model, optimizer, session=session, max_norm=max_norm)
    losses = [trainer.advance(cavs.batch(graphs)) for graphs in BATCHES]
    return {n: p.value.copy() for n, p in model.parameters().items()}, losses


def train_together(size, optimizer, **options):
    def work(c):
        model = Tree(seed=c.rank)  # rank 0's parameters count
        trainer = Trainer(model, optimizer, communicator=c, dtype=np.float64, **options)
        losses = [trainer.advance(cavs.batch(graphs)) for graphs in BATCHES]
        return {n: p.value.copy() for n, p in model.parameters().items()}, losses

    return run_threads(size, work)


def assert_equal(alone, together):
    expected, losses = alone
    for values, found in together:
        for name, value in expected.items():
            np.testing.assert_allclose(values[name], value, rtol=1e-11, atol=1e-13, err_msg=name)
            assert values[name].tobytes() == together[0][0][name].tobytes()
        for a, b in zip(losses, found, strict=True):
            assert a.loss == pytest.approx(b.loss, rel=1e-11)
            assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-11)


OPTIMIZERS = [
    cavs.optim.SGD(lr=0.1),
    cavs.optim.Adagrad(lr=0.1),
    cavs.optim.Adam(lr=0.05, weight_decay=0.01),
]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.kind)
def test_any_number_of_ranks_equals_one_process(size, optimizer):
    assert_equal(train_alone(optimizer), train_together(size, optimizer))


STRATEGIES = ["AllReduce(chunk=2)", "PartitionedAR", "RandomAxisPartitionAR", "PS"]
STRATEGIES += ["PSLoadBalancing", "PartitionedPS", "UnevenPartitionedPS", "Parallax", "Horovod"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("size", [2, 3])
def test_every_builder_equals_one_process(size, strategy):
    optimizer = cavs.optim.Adam(lr=0.05)
    together = train_together(size, optimizer, strategy=strategy, max_norm=0.5)
    assert_equal(train_alone(optimizer, max_norm=0.5), together)


def test_communication_after_backward_gives_the_same():
    optimizer = cavs.optim.SGD(lr=0.1)
    late = train_together(2, optimizer, wait_free=False)
    assert_equal(train_alone(optimizer), late)
    early = train_together(2, optimizer)
    for name, value in early[0][0].items():
        assert value.tobytes() == late[0][0][name].tobytes()


def test_one_process_alone_needs_no_communicator():
    model = Tree()
    trainer = Trainer(model, cavs.optim.SGD(lr=0.1), dtype=np.float64)
    assert isinstance(trainer.communicator, SingleCommunicator)
    report = trainer.advance(cavs.batch(BATCHES[0]))
    assert report.sent_bytes == 0
