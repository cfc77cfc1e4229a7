"""Edge cases of a session: unusual graphs, large graphs, threads, memory."""

from __future__ import annotations

import resource
import sys
import tracemalloc

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.compiler.pipeline import Passes
from cavs.errors import FeatureError
from cavs.inspect import measure
from models.tree_lstm import SentimentClassifier
from tests.oracle import agrees, assert_close, reference
from tests.runtime.trees import WORDS, Classifier, OfRoots, graph, treebank

STRUCTURES = {
    "unequal depth": [[[]], [[], [0], [1], [2], [3], [4]], [[], [], [0, 1]]],
    "one vertex": [[[]]],
    "isolated vertices": [[[], [], [0, 1], [], []], [[], []]],
    "shared children": [[[], [0], [0], [1, 2], [1, 2, 3, 0], [3, 3, 3]]],
    "several roots": [[[], [0], [0], [], [3], [3, 0]]],
    "no edges at all": [[[], []], [[]]],
    "arity 0 to 50": [[*([] for _ in range(51)), *(list(range(k)) for k in range(51))]],
    "children after parents": [[[1, 2], [3], [3], []]],
}


@pytest.fixture(params=["child-sum", "attention"])
def model(request):
    cells = {"child-sum": nn.ChildSumTreeLSTM, "attention": nn.TreeAttention}
    made = Classifier(cells[request.param](8, 6))
    made.initialize(1, np.float64)
    return made


def check(model, batch, *, tolerance=1e-11):
    _, forward = reference(model, batch, training=False)
    session, _ = agrees(model, batch, tolerance)
    assert_close(session.predict(batch)["output"], forward["output"], tolerance, "output")


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(model, name):
    rng = np.random.default_rng(0)
    check(model, cavs.batch([graph(children, rng) for children in STRUCTURES[name]]))


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_token_absent(model, name):
    rng = np.random.default_rng(0)
    made = [graph(children, rng, absent=lambda kids: True) for children in STRUCTURES[name]]
    check(model, cavs.batch(made))


def test_all_structures_in_turn(model):
    """One session, compiled again for each new kind of vertex, equals fresh ones."""
    rng = np.random.default_rng(0)
    session = cavs.Session(model, dtype=np.float64)
    for absent in (bool, lambda kids: False, lambda kids: True):
        for structures in STRUCTURES.values():
            batch = cavs.batch([graph(children, rng, absent) for children in structures])
            fresh = cavs.Session(model, dtype=np.float64).gradients(batch)
            loss, gradients = session.gradients(batch)
            assert_close(loss, fresh[0], 1e-12, "loss")
            for name, g in gradients.items():
                assert_close(g, fresh[1][name], 1e-12, name)


def test_an_empty_batch_is_refused():
    with pytest.raises(FeatureError, match="at least one graph"):
        cavs.batch([])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_a_chain_of_5000():
    """Forward and the gradient of U, against a loop in NumPy."""
    n, rng = 5000, np.random.default_rng(0)
    model = Classifier(nn.GRU(8, 6))
    model.initialize(2, np.float64)
    chain = graph([[], *([i] for i in range(n - 1))], rng, absent=lambda kids: False)
    batch = cavs.batch([chain])
    session = cavs.Session(model, dtype=np.float64)
    p = {k: x.value for k, x in model.parameters().items()}
    xs = p["embedding.weight"][batch["token"]] @ p["tree.W"] + p["tree.b"]
    h, hs = np.zeros(6), []
    for x in xs:
        r, z = np.split(sigmoid(x[:12] + h @ p["tree.U"]), 2)
        h = z * h + (1 - z) * np.tanh(x[12:] + (r * h) @ p["tree.U_n"])
        hs.append(h)
    logits = np.array(hs) @ p["output.weight"] + p["output.bias"]
    assert_close(session.predict(batch)["output"], logits, 1e-11, "output")
    loss, gradients = session.gradients(batch)
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    assert_close(loss, -log_p[np.arange(n), batch["label"]].mean(), 1e-11, "loss")
    rows = np.exp(log_p)
    rows[np.arange(n), batch["label"]] -= 1
    assert_close(gradients["output.weight"], np.array(hs).T @ rows / n, 1e-11, "gradient")
    step = 1e-6 * rng.normal(size=p["tree.U"].shape)
    ends = []
    for sign in (1, -1):
        p["tree.U"] += sign * step
        session.invalidate()
        ends.append(session.evaluate(batch).loss)
        p["tree.U"] -= sign * step
    slope = (ends[0] - ends[1]) / 2
    assert slope == pytest.approx(float((gradients["tree.U"] * step).sum()), rel=1e-5)


def heap(n):
    """A complete binary tree of n (odd) vertices; the root is 0."""
    first = [list(range(2 * v + 1, 2 * v + 3)) for v in range(n // 2)]
    return [*first, *([] for _ in range(n - n // 2))]


def arena_of(n, merging):
    rng = np.random.default_rng(0)
    children = heap(n)
    token = np.where(np.arange(n) < n // 2, -1, rng.integers(0, 50, n))
    one = cavs.Graph(children, {"token": token, "label": rng.integers(0, 5, n)})
    session = cavs.Session(Classifier(), passes=Passes(merge_vertices=merging))
    loss, gradients = session.gradients(cavs.batch([one]))
    assert np.isfinite(loss) and all(np.isfinite(g).all() for g in gradients.values())
    return session.report()["arena_bytes"]


@pytest.mark.slow
def test_a_graph_of_a_million_vertices():
    """It takes ten times the memory of a tenth of it, or less where equal vertices are merged."""
    small, large = arena_of(100_001, False), arena_of(1_000_001, False)
    assert 9.5 < large / small < 10.5
    assert arena_of(1_000_001, True) < 0.95 * large


@pytest.fixture
def threads():
    before = cavs.num_threads()
    yield cavs.set_num_threads
    cavs.set_num_threads(before)


def test_threads_change_nothing_but_the_last_bits(threads):
    batch = treebank(40)
    results = {}
    for run, count in enumerate((1, 2, 1, 2)):
        model = Classifier(input_size=64, hidden_size=48, rate=0.3)
        model.initialize(0, np.float64)
        threads(count)
        session = cavs.Session(model, dtype=np.float64)
        results[run] = session.gradients(batch, seed=3, step=1)
    for other in (1, 2, 3):
        assert_close(results[other][0], results[0][0], 1e-12, "loss")
        for name, g in results[0][1].items():
            assert_close(results[other][1][name], g, 1e-12, name)
    for a, b in ((0, 2), (1, 3)):  # same seed, same threads: same bits
        assert results[a][0] == results[b][0]
        assert all((results[a][1][n] == g).all() for n, g in results[b][1].items())


def test_repeated_runs_give_the_same_bits():
    model, batch = Classifier(rate=0.5), treebank(20)
    model.initialize(0)
    session = cavs.Session(model)
    first = session.gradients(batch, seed=7, step=4)
    for _ in range(5):
        session.gradients(treebank(5, seed=1), seed=1)
        again = session.gradients(batch, seed=7, step=4)
        assert again[0] == first[0]
        assert all((again[1][n] == g).all() for n, g in first[1].items())
    assert session.gradients(batch, seed=8, step=4)[0] != first[0]


def test_memory_does_not_grow():
    model = Classifier(input_size=64, hidden_size=64)
    model.initialize(0)
    session = cavs.Session(model)
    batches = [treebank(25, seed=s) for s in range(4)]
    hyper = {"kind": "adagrad", "lr": 0.01}
    states = [[np.zeros_like(p.value)] for p in model.parameters().values()]
    for batch in batches:
        session.step(batch, hyper, states)
    arena = session.report()["arena_bytes"]
    for i in range(20):
        session.step(batches[i % 4], hyper, states)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(200):
        session.step(batches[i % 4], hyper, states)
        assert session.report()["arena_bytes"] <= arena * 1.5
    session.step(batches[3], hyper, states)
    assert session.report()["arena_bytes"] == arena
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert growth * (1024 if sys.platform == "linux" else 1) < 2e6


CELLS = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "binary": nn.BinaryTreeLSTM,
    "child-sum": nn.ChildSumTreeLSTM,
    "tree-gru": nn.TreeGRU,
    "tree-fc": lambda _, size: nn.TreeFC(size),
    "attention": nn.TreeAttention,
    "tensor": lambda _, size: nn.RNTN(size),
    "sum": lambda _, size: Reduced(size, "sum"),
    "maximum": lambda _, size: Reduced(size, "max"),
    "relu of a product": lambda _, size: Reduced(size, "sum", lambda h, x, U: ops.relu(h @ U)),
    "by the parent": lambda _, size: Reduced(size, "sum", lambda h, x, U: h * (x @ U)),
    "the greater": lambda _, size: Reduced(size, "sum", lambda h, x, U: ops.maximum(h, x) @ U),
}


class Reduced(cavs.VertexFunction):
    """A cell that keeps its state, or values of its children too, or ``each`` of every child."""

    def __init__(self, size, how, each=None):
        self.how, self.each = how, each
        self.state = cavs.State(h=size)
        self.U = cavs.Parameter((size, size))

    def vertex(self, v):
        x, children = v.pull("x"), v.gather().h
        read = children if self.each is None else self.each(children, x, self.U)
        read = getattr(read, self.how)()
        h = ops.tanh(x + (read @ self.U if self.each is None else read))
        v.scatter(h=h)
        v.push(h)


def of_roots(batch):
    """Return a batch with its labels as labels of graphs."""
    return cavs.batch(
        [
            cavs.Graph(g.topology, {"token": g.features["token"]}, graph_features={"label": i % 5})
            for i, g in enumerate(batch.graphs)
        ]
    )


@pytest.mark.parametrize("losses", ["everywhere", "everywhere, dropout", "roots", "roots, dropout"])
@pytest.mark.parametrize("name", [*CELLS, "tree-fc on complete trees", "sum on chains"])
def test_peak_memory_is_near_what_backward_must_read(name, losses, monkeypatch):
    """25 trees or chains, wide enough that the classes hardly count, with and without merging."""
    monkeypatch.setattr(measure, "RUNS", 1)  # its seconds are not read
    size, rate = 40, 0.5 if losses.endswith("dropout") else 0.0
    batch = treebank(25)
    rng = np.random.default_rng(0)
    if name in ("LSTM", "GRU", "sum on chains"):
        chains = ([[], *([i] for i in range(n - 1))] for n in range(5, 55, 2))
        batch = cavs.batch([graph(c, rng, absent=lambda kids: False) for c in chains])
    if name.endswith("complete trees"):
        levels = [[]] * 32 + [[2 * i, 2 * i + 1] for i in range(31)]
        batch = cavs.batch([graph(levels, rng) for _ in range(25)])
    everywhere = losses.startswith("everywhere")
    batch = batch if everywhere else of_roots(batch)
    made = Classifier if everywhere else OfRoots
    model = made(
        CELLS[name.removesuffix(" on complete trees").removesuffix(" on chains")](size, size),
        size,
        size,
        rate,
    )
    peaks = []
    for merged in (False, True):
        run = cavs.explain(model, batch, passes=Passes(merge_vertices=merged)).run
        assert run.kept_bytes > 0
        assert run.peak_bytes <= 1.5 * run.kept_bytes
        assert run.arena_bytes <= 1.5 * run.kept_bytes + (256 << 10)  # small ones are not packed
        peaks.append(run.peak_bytes)
    most = 1.03 if name == "relu of a product" else 1.0  # the number of edges is unchanged
    assert peaks[1] <= most * peaks[0]


def test_peak_memory_of_the_sentiment_classifier():
    """The Tree-LSTM of the Stanford treebank: 25 trees, 300 inputs, 150 hidden, dropout."""
    model = SentimentClassifier(WORDS, 300, 150, 0.5)
    run = cavs.explain(model, treebank(25)).run
    assert run.kept_bytes > 0
    assert run.peak_bytes <= 1.1 * run.kept_bytes


def test_the_serial_engine_agrees():
    model, batch = Classifier(rate=0.2), treebank(8)
    model.initialize(0, np.float64)
    session = cavs.Session(model, dtype=np.float64)
    loss, gradients = session.gradients(batch, seed=1)
    session.set_serial(True)
    serial, expected = session.gradients(batch, seed=1)
    assert_close(loss, serial, 1e-12, "loss")
    for name, g in gradients.items():
        assert_close(g, expected[name], 1e-12, name)


def test_top_down_over_reversed_graphs():
    """Reversed graphs: every vertex gathers from its only parent."""
    rng = np.random.default_rng(0)
    children = [[], [], [0, 1], [], [2, 3]]
    model = Classifier(nn.LSTM(8, 6))
    model.initialize(0, np.float64)
    check(model, cavs.batch([graph(children, rng, lambda kids: False).reversed()]))


@pytest.mark.parametrize("merged", [False, True])
def test_a_step_on_a_batch_seen_before_allocates_nothing_large(merged, monkeypatch):
    """NumPy reports its arrays to tracemalloc; a single feature of this batch takes 80 kB."""
    model, batch = Classifier(nn.TreeFC(8), 8, 8), treebank(700)
    monkeypatch.setattr("cavs.runtime.program_cache.MIN_MERGED", 1 if merged else 1 << 30)
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=0.01))
    assert 4 * batch.num_vertices > 80_000
    for _ in range(2):
        trainer.step(batch)
    tracemalloc.start()
    try:
        trainer.step(batch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000
