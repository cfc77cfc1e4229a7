"""Ranks as threads train like one process."""

import time
from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from cavs.distributed import Trainer, by_counts, coordinator
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm import LostPeerError, SingleCommunicator, run_threads
from cavs.distributed.comm.agreement import Agreement
from cavs.distributed.planning import choice
from cavs.distributed.planning.builders import build
from cavs.distributed.planning.compute import Compute
from cavs.distributed.step.session import DistributedSession
from cavs.distributed.strategy import GraphConfig, NodeConfig, Strategy, by_gradient, variables_of
from cavs.distributed.sync import AllReduce, SufficientFactors
from cavs.distributed.sync.all_reduce import DenseAllReduce
from cavs.distributed.sync.operation import Operation
from cavs.errors import CommunicationError, ConfigError
from cavs.runtime import Session
from cavs.runtime.program_cache import MIN_MERGED
from cavs.train.checkpoint import read_checkpoint
from tests.distributed.tree import BATCHES, Tree, trees
from tests.train.own_rules import AMSGrad


def train_alone(optimizer, max_norm=None):
    model = Tree()
    session = cavs.Session(model, dtype=np.float64)
    trainer = cavs.Trainer(model, optimizer, session=session, max_norm=max_norm)
    losses = [trainer.advance(cavs.batch(graphs)) for graphs in BATCHES]
    return {n: p.value.copy() for n, p in model.parameters().items()}, losses


def train_together(size, optimizer, **options):
    def work(c):
        model = Tree(seed=c.rank)  # parameters of rank 0 count
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
    AMSGrad(0.05, weight_decay=0.01),
]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_any_number_of_ranks_equals_one_process(size, optimizer):
    assert_equal(train_alone(optimizer), train_together(size, optimizer))


STRATEGIES = ["AllReduce(chunk=2)", "Buckets", "PartitionedAR", "RandomAxisPartitionAR", "PS"]
STRATEGIES += ["PSLoadBalancing", "PartitionedPS", "UnevenPartitionedPS", "Parallax", "Horovod"]
STRATEGIES += ["BytePS", "Poseidon(batch_size=1)", "auto"]


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


def test_tables_travel_first_and_the_last_gradient_alone():
    def work(c):
        model = Tree()
        trainer = Trainer(model, cavs.optim.SGD(lr=0.1), communicator=c)
        trainer.advance(cavs.batch(BATCHES[0]))
        names = list(model.parameters())
        return [[names[p] for p in e.parameters] for e in trainer.session.exchanges]

    first, others, last = run_threads(2, work)[0]
    assert first == ["embedding.weight"] and len(last) == 1
    assert sorted([*first, *others, *last]) == sorted(Tree().parameters())


class Wide(cavs.Model):
    """One gradient of more than 4 MiB, which the engine computes in slabs, and several small
    ones.
    """

    def __init__(self):
        self.cell = nn.ChildSumTreeLSTM(3, 640)
        self.embedding = nn.Embedding(40, 3)
        self.output = nn.Linear(640, 3)

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return ops.cross_entropy(self.output(h), batch["label"])


def test_buckets_equal_no_strategy():
    def work(c, strategy):
        trainer = Trainer(Wide(), cavs.optim.SGD(lr=0.1), communicator=c, strategy=strategy)
        trainer.advance(cavs.batch(BATCHES[0]))
        sums = [e for e in trainer.session.exchanges if isinstance(e, DenseAllReduce)]
        values = [p.value.tobytes() for p in trainer.parameters.values()]
        return [[(p.parameter, p.offset, p.size) for p in e.parts] for e in sums], values

    plain, named = (run_threads(2, lambda c, s=s: work(c, s))[0] for s in (None, "Buckets"))
    assert named == plain
    slabs = [parameter for parts in plain[0] for parameter, _, _ in parts]
    assert len(plain[0]) > 2 and len(set(slabs)) < len(slabs)


def test_a_single_process_needs_no_communicator():
    model = Tree()
    trainer = Trainer(model, cavs.optim.SGD(lr=0.1), dtype=np.float64)
    assert isinstance(trainer.communicator, SingleCommunicator)
    report = trainer.advance(cavs.batch(BATCHES[0]))
    assert report.sent_bytes == 0


def test_a_timeout_other_than_the_communicators_is_refused():
    def work(c, timeout):
        options = {"communicator": c, "timeout": timeout}
        return Trainer(Tree(), cavs.optim.SGD(lr=0.1), **options).communicator.timeout

    for told in (None, 7.0):
        assert run_threads(2, lambda c, t=told: work(c, t), timeout=7.0) == [7.0, 7.0]
    with pytest.raises(ConfigError) as caught:
        run_threads(2, lambda c: work(c, 8.0), timeout=7.0)
    assert "timeout is 8.0 s, but the ThreadCommunicator given waits for 7.0 s" in str(caught.value)
    assert "give the time to the ThreadCommunicator" in str(caught.value)


def factors_for(size, model):
    """Return sufficient factors for every dense parameter; biases have none and are reduced."""
    replicas = ResourceSpec.local(size).cpu_devices
    nodes = tuple(
        NodeConfig(name=name, synchroniser=AllReduce() if p.sparse else SufficientFactors())
        for name, p in model.parameters().items()
    )
    return Strategy(graph=GraphConfig(replicas=replicas), nodes=nodes)


@pytest.mark.parametrize("size", [2, 3])
def test_sufficient_factors_equal_one_process(size):
    optimizer = cavs.optim.Adagrad(lr=0.1)

    def work(c):
        model = Tree()
        session = Session(model, dtype=np.float64, replicated=True)
        exchanging = DistributedSession(session, c, factors_for(size, model))
        states = optimizer.init_states(list(model.parameters().values()))
        for i, graphs in enumerate(BATCHES):
            exchanging.step(cavs.batch(graphs), optimizer.hyper(i), states, step=i)
        kinds = [type(e).__name__ for e in exchanging.exchanges]
        assert kinds.count("FactorBroadcast") >= 3
        return {n: p.value.copy() for n, p in model.parameters().items()}

    expected, _ = train_alone(optimizer)
    for values in run_threads(size, work):
        for name, value in expected.items():
            np.testing.assert_allclose(values[name], value, rtol=1e-11, atol=1e-13, err_msg=name)


COMPRESSORS = ["float16", "bfloat16", "onebit", "powersgd(rank=2)", "topk(ratio=0.1)"]


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_compressed_gradients_train_and_all_ranks_have_the_same_bits(compressor):
    strategy = f"AllReduce(compressor={compressor!r})"
    together = train_together(3, cavs.optim.SGD(lr=0.05), strategy=strategy)
    expected, _ = train_alone(cavs.optim.SGD(lr=0.05))
    start = {n: p.value for n, p in Tree().parameters().items()}
    for values, losses in together:
        assert all(np.isfinite(x.loss) for x in losses)
        for name, value in values.items():
            assert value.tobytes() == together[0][0][name].tobytes()
        # They roughly follow the exact gradients.
        moved, exact = (
            np.concatenate([(v[n] - start[n]).ravel() for n in start if n != "embedding.weight"])
            for v in (values, expected)
        )
        cosine = moved @ exact / np.linalg.norm(moved) / np.linalg.norm(exact)
        assert cosine > 0.7


@pytest.mark.parametrize("gradients", ["mean", "sum"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_clipping_before_compression_limits_the_applied_gradient(size, gradients):
    """Ranks that agree may apply clip * sqrt(ranks), as in Deep Gradient Compression."""
    graphs, clip = trees(1, 1) * size, 1e-4

    def work(c):
        model = Tree()
        start = {n: p.value.copy() for n, p in model.parameters().items()}
        resources, variables = ResourceSpec.local(size), variables_of(model)
        made = build(f"AllReduce(compressor='topk(ratio=1, clip={clip})')", variables, resources)
        made = replace(made, graph=replace(made.graph, gradients=gradients))
        optimizer = cavs.optim.SGD(lr=1.0)
        trainer = Trainer(model, optimizer, communicator=c, strategy=made, dtype=np.float64)
        trainer.advance(cavs.batch(graphs))
        return {n: np.linalg.norm(p.value - start[n]) for n, p in model.parameters().items()}

    for moved in run_threads(size, work):
        assert moved.pop("embedding.weight") > 10 * clip  # rows of a table are never compressed
        assert list(moved.values()) == pytest.approx([clip * size**0.5] * len(moved))


@pytest.mark.parametrize("size", [1, 2])
def test_equal_vertices_computed_once_count_as_often_as_they_occur(size):
    """Batches are above the size from which copies are merged, in different numbers on each
    rank.
    """
    graphs = trees(500, 3)
    assert sum(g.num_vertices for g in graphs) > 3 * size * MIN_MERGED
    optimizer = cavs.optim.SGD(lr=0.1)
    model = Tree()
    passes = Passes(merge_vertices=False)
    alone = cavs.Trainer(model, optimizer, session=Session(model, dtype=np.float64, passes=passes))
    losses = [alone.advance(cavs.batch(graphs)).loss for _ in range(3)]

    def work(c):
        own = Tree()
        split = by_counts([1] * (size - 1) + [2])
        t = Trainer(own, optimizer, communicator=c, dtype=np.float64, split=split)
        found = [t.advance(cavs.batch(graphs)).loss for _ in range(3)]
        return found, {n: p.value.copy() for n, p in own.parameters().items()}

    for found, values in run_threads(size, work):
        assert found == pytest.approx(losses, rel=1e-11)
        for name, p in model.parameters().items():
            np.testing.assert_allclose(values[name], p.value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("free", [True, False])
def test_auto_overlaps_messages_where_cores_are_free(free, monkeypatch):
    """It is measured, and equal on all ranks; the slowest counts."""
    ran, told, make = [], [], choice.make_strategy

    def recorded(name, variables, cluster, compute):
        told.append(compute)
        places = {v.name: v.done for v in variables if v.done is not None}
        assert places == ({"output.bias": 0, "cell.U": 1} if free else {})
        return make(name, variables, cluster, compute)

    monkeypatch.setattr(choice, "_has_free_core", lambda c: free)
    monkeypatch.setattr(choice, "make_strategy", recorded)

    def work(c):
        def run():
            ran.append(c.rank)
            time.sleep(0.02 * (1 + c.rank))
            return ["output.bias", "cell.U"]

        graphs, resources = cavs.batch(BATCHES[0]), ResourceSpec.local(2)
        return choice.agreed_strategy("auto", Tree(), graphs, resources, Agreement(c), run)

    made = run_threads(2, work)
    assert made[0] == made[1]
    (compute,) = told  # rank 0 builds it
    assert sorted(ran) == ([0, 0, 0, 1, 1, 1] if free else [])
    assert compute.seconds >= 0.04 if free else compute == Compute()
    assert compute.slowest > 1 if free else True


def test_auto_knows_the_order_of_gradients(monkeypatch):
    told, make = [], choice.make_strategy

    def recorded(name, variables, *more):
        told.append([v.name for v in by_gradient(variables)])
        return make(name, variables, *more)

    monkeypatch.setattr(choice, "_has_free_core", lambda c: True)
    monkeypatch.setattr(choice, "make_strategy", recorded)

    def work(c):
        t = Trainer(Tree(), cavs.optim.SGD(lr=0.1), communicator=c, strategy="auto")
        t.advance(cavs.batch(BATCHES[0]))
        names = list(t.parameters)
        executor = t.session.ready(t.session.shard(cavs.batch(BATCHES[0])))[0]
        return [names[i] for i in executor.gradient_order()]

    order, _ = run_threads(2, work)
    assert told == [order] != [list(reversed(Tree().parameters()))]


def test_a_batch_that_auto_cannot_run_is_an_error_on_all():
    def run():
        raise ConfigError("no such feature")

    def work(c):
        with pytest.raises((ConfigError, CommunicationError)) as caught:
            bad = run if c.rank else lambda: ()
            choice.agreed_strategy("auto", Tree(), None, None, Agreement(c), bad)
        return str(caught.value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "_has_free_core", lambda c: True)
        assert all("no such feature" in text for text in run_threads(2, work))


def test_the_launcher_learns_of_a_checkpoint_first(monkeypatch, tmp_path):
    """They may die first, and the launcher has to name the last checkpoint."""
    path, told = tmp_path / "checkpoint.safetensors", []
    monkeypatch.setattr(coordinator, "report", lambda *what: told.append(what))
    consensus = Agreement.consensus

    def interrupted(agreement, phase, *arguments, **options):
        if phase == "save" and path.exists():
            raise LostPeerError("the others are gone")
        return consensus(agreement, phase, *arguments, **options)

    monkeypatch.setattr(Agreement, "consensus", interrupted)

    def work(c):
        t = Trainer(Tree(), cavs.optim.SGD(lr=0.1), communicator=c, dtype=np.float64)
        t.advance(cavs.batch(trees(4, 0)))
        with pytest.raises(LostPeerError):
            t.save(path)

    run_threads(2, work)
    assert [what for what in told if what[0] == "saved"] == [("saved", str(path), 1)]
    assert read_checkpoint(path).progress["step"] == 1


@pytest.mark.parametrize(
    ("cls", "old", "new"),
    [
        (Trainer, "asked", "requested_strategy"),
        (Trainer, "elastic", "coordinator.training.elastic"),
        (Strategy, "is_free", "is_asynchronous"),
        (Operation, "kind", "collective"),
    ],
)
def test_a_renamed_attribute_names_the_new_one(cls, old, new):
    with pytest.raises(AttributeError, match=rf"{old} was renamed[\s\S]*use {new}"):
        getattr(cls, old)
