"""Bytes that planning predicts from the batch of one replica, compared with those sent."""

import dataclasses
import functools

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.distributed import Trainer
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm import SingleCommunicator, run_threads
from cavs.distributed.planning.builders import build
from cavs.distributed.planning.choice import number_of_replicas
from cavs.distributed.planning.cost import bytes_by_rank
from cavs.distributed.strategy import Variable, load, save, variables_of
from cavs.distributed.strategy.variable import measured_variables
from cavs.distributed.strategy.verify import problems
from cavs.distributed.sync import AllReduce, ParameterServer, SufficientFactors
from cavs.distributed.sync.operation import distinct
from tests.draws import EXAMPLES

WORDS, WIDTH, PART = 3000, 16, 100  # graphs per rank
STEPS = 4
BUILDERS = ["Buckets", "AllReduce", "Parallax", "PSLoadBalancing", "Poseidon"]
OTHERS = ["Poseidon(batch_size=1)", "Poseidon(otherwise='all_reduce')", "PartitionedPS"]
PEERS = ["PeerAverage", "ADPSGD", "SMA"]


class Sentence(cavs.Model):
    """The cell's W has no factors: leaves need fewer of its columns than the others."""

    def __init__(self, width=WIDTH, hidden=WIDTH):
        self.embedding = nn.Embedding(WORDS, width)
        self.cell = nn.ChildSumTreeLSTM(width, hidden)
        self.output = nn.Linear(hidden, 3)

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return ops.cross_entropy(self.output(h), batch["label"])


class Decayed(Sentence):
    """A model whose loss reads the whole table."""

    def loss(self, batch):
        return super().loss(batch) + 1e-4 * ops.mean_squared_error(self.embedding.weight, 0.0)


class Tied(Sentence):
    """A model with tied weights of input and output."""

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return ops.cross_entropy(h @ self.embedding.weight.T, batch["token"])


@functools.cache
def sentences(count, seed, tree=False):
    """Return graphs of words whose frequencies fall with their rank, as in text."""
    rng = np.random.default_rng(seed)
    weight = 1 / np.arange(1, WORDS + 1)
    graphs = []
    for n in rng.integers(5, 30, count):
        token = rng.choice(WORDS, n, p=weight / weight.sum())
        children = [[v - 1] if v else [] for v in range(n)]
        if tree:  # every third vertex is a leaf
            children = [[] if v % 3 == 0 else [v - 1] for v in range(n)]
            children[-1] = [v for v in range(n - 1) if v % 3 == 2 or v == n - 2]
        graphs.append(cavs.Graph(children, {"token": token, "label": token % 3}))
    return graphs


def sent(make, strategy, ranks, graphs):
    """Return the bytes of each rank in a step, and the strategy."""
    share = len(graphs) // STEPS

    def work(c):
        t = Trainer(make(), cavs.optim.SGD(lr=0.1), strategy=strategy, communicator=c)
        batches = [cavs.batch(graphs[i * share : (i + 1) * share]) for i in range(STEPS)]
        return sum(t.advance(batch).sent_bytes for batch in batches) / STEPS, t.strategy

    found = run_threads(ranks, work)
    return np.array([n for n, _ in found]), found[0][1]


def check(make, strategy, ranks, tree=False):
    graphs = sentences(PART * ranks * STEPS, 1, tree)
    found, made = sent(make, strategy, ranks, graphs)
    variables = measured_variables(make(), cavs.batch(graphs[:PART]))
    assert bytes_by_rank(made, variables).sum() == pytest.approx(found.sum(), rel=0.05)
    return made, variables


# Every model with every strategy, and both of them with both numbers of ranks.
CASES = [
    (strategy, make, ranks)
    for i, strategy in enumerate([*BUILDERS, *OTHERS])
    for n, make in enumerate([Sentence, Decayed, Tied])
    for k, ranks in enumerate([2, 4])
    if EXAMPLES or (i + n + k) % 2 == 0
]


@pytest.mark.parametrize(("strategy", "make", "ranks"), CASES)
def test_bytes_are_predicted_from_one_shard(strategy, make, ranks):
    check(make, strategy, ranks)


@pytest.mark.parametrize("strategy", PEERS)
def test_bytes_of_models_are_predicted(strategy):
    check(Sentence, strategy, 4)


@pytest.mark.parametrize("strategy", BUILDERS)
def test_bytes_are_predicted_for_trees(strategy):
    check(lambda: Sentence(hidden=48), strategy, 2, tree=True)


def test_factors_are_planned_where_the_engine_hands_them_out():
    """Factors of few rows pay off for all matrices; one has none and uses a server."""
    graphs = [graph for graph in sentences(500, 2) if graph.num_vertices == 12][:16]
    found, made = sent(lambda: Sentence(256, 256), "Poseidon", 2, graphs * STEPS)
    variables = measured_variables(Sentence(256, 256), cavs.batch(graphs[:8]))
    kinds = {node.name: type(node.sync) for node in made.nodes}
    assert kinds["cell.U"] == kinds["cell.U_f"] == SufficientFactors
    assert kinds["cell.W"] == ParameterServer
    assert {v.name for v in variables if v.factors} == {"cell.U", "cell.U_f", "output.weight"}
    assert bytes_by_rank(made, variables).sum() == pytest.approx(found.sum(), rel=0.05)


def test_gradients_without_factors_are_reduced_with_the_others(tmp_path):
    """The strategy was made for another batch, given or in a file."""
    graphs, path = sentences(16, 2), str(tmp_path / "s.json")
    variables = measured_variables(Sentence(64, 64), cavs.batch(graphs[:8]))
    plain = build("Poseidon(otherwise='all_reduce')", variables, ResourceSpec.local(2))
    given = dataclasses.replace(
        plain,
        nodes=tuple(
            dataclasses.replace(node, synchroniser=SufficientFactors())
            if node.name == "cell.W"
            else node
            for node in plain.nodes
        ),
    )
    save(given, path)
    for strategy in (given, path):
        found, made = sent(lambda: Sentence(64, 64), strategy, 2, graphs * STEPS)
        assert made == given == load(path)
        assert bytes_by_rank(made, variables).sum() == pytest.approx(found.sum(), rel=0.05)
    # `cavs strategy check` reports it
    (problem,) = problems(given, variables, ResourceSpec.local(2))
    assert "cell.W" in problem.what and "no matrix product" in problem.what


@pytest.mark.parametrize("make", [Decayed, Tied])
def test_a_table_that_is_read_as_a_whole_is_dense(make, tmp_path):
    batch, two = cavs.batch(sentences(4, 3)), ResourceSpec.local(2)
    table, *_ = variables = measured_variables(make(), batch)
    assert variables_of(make())[0].sparse and not table.sparse
    assert table.rows is None and table.factors is None
    assert isinstance(build("Parallax", variables, two).nodes[0].sync, AllReduce)
    made = build("AllReduce(compressor='float16')", variables, two)
    assert made.nodes[0].compressor == "float16"
    assert problems(made, variables, two) == []
    assert "sparse" in problems(made, variables_of(make()), two)[0].what
    path = str(tmp_path / "s.json")
    save(made, path)
    assert number_of_replicas(path, make(), SingleCommunicator(), two) == 2
    for strategy in ("AllReduce(compressor='float16')", path):
        half, _ = sent(make, strategy, 2, sentences(8 * STEPS, 4))
        assert half.sum() == pytest.approx(bytes_by_rank(made, variables).sum(), rel=0.05)


class TestGrowth:
    def shown(self, weight, count, samples, seed=0):
        """Return the predicted over the actual number of rows of so many samples of `count`
        draws, from one of them.
        """
        rng = np.random.default_rng(seed)
        weight = weight / weight.sum()
        foreseen, counted = [], []
        for _ in range(40):
            draws = rng.choice(len(weight), (samples, count), p=weight)
            counts = np.unique(draws[0], return_counts=True)[1]
            once, twice = (np.count_nonzero(counts == n) for n in (1, 2))
            foreseen.append(min(distinct(len(counts), once, twice, samples), len(weight)))
            counted.append(len(np.unique(draws)))
        return np.mean(foreseen) / np.mean(counted)

    @pytest.mark.parametrize(("samples", "near"), [(2, 0.05), (4, 0.05), (8, 0.12)])
    @pytest.mark.parametrize("power", [0, 0.5, 1, 1.3])
    @pytest.mark.parametrize("count", [400, 4000])
    def test_various_frequencies(self, count, power, samples, near):
        weight = np.arange(1, 2001.0) ** -power
        assert self.shown(weight, count, samples) == pytest.approx(1, abs=near)

    @pytest.mark.parametrize("rows", [1, 7, 500])
    def test_prediction_is_between_one_and_all(self, rows):
        for once in {0, 1, rows // 2, rows}:
            for twice in {0, (rows - once) // 2, rows - once}:
                found = [distinct(rows, once, twice, n) for n in (1, 2, 3, 64, 1024)]
                assert found[0] == rows and found == sorted(found)
                assert all(f <= rows * n for f, n in zip(found, (1, 2, 3, 64, 1024), strict=True))

    def test_even_draws_need_no_batch(self):
        table = Variable(name="E", shape=(1000, 60), sparse=True, rows=50)
        made = build("PS", [table], ResourceSpec.local(2))
        evenly = 1000 * (1 - (1 - 0.05) ** 2)
        assert bytes_by_rank(made, [table])[0] == pytest.approx(evenly * 244)
        known = dataclasses.replace(table, once=10, twice=5)
        assert bytes_by_rank(made, [known])[0] == pytest.approx(distinct(50, 10, 5, 2) * 244)
        alike = dataclasses.replace(table, once=0, twice=0)
        assert bytes_by_rank(made, [alike])[0] == pytest.approx(50 * 244)
