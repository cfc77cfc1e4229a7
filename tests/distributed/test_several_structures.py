"""Ranks divide samples of several structures, and train on them as one process does."""

from __future__ import annotations

import re

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.distributed import Trainer
from cavs.distributed.balance.model import profiles
from cavs.distributed.comm import run_threads
from cavs.errors import ConfigError
from tests.compiler import test_structures_without_vertices as empty
from tests.compiler import test_typed_structures as typed
from tests.oracle import drawn


class Ways(cavs.VertexFunction):
    """A sum over children, weighted by their edges."""

    def __init__(self):
        self.state, self.W = cavs.State(h=3), cavs.Parameter((3, 3))

    def vertex(self, v):
        child = v.gather()
        h = ops.tanh(v.pull("x") @ self.W + (child.h * v.edge("way")).sum())
        v.scatter(h=h)
        v.push(h)


class Spelled(cavs.Model):
    """Labels of some words, by their characters and by attention to all words before the cell."""

    def __init__(self):
        self.char, self.word = nn.Embedding(9, 3), nn.Embedding(9, 3)
        self.spell, self.words = nn.LSTM(3, 3), Ways()
        self.output, self.count = nn.Linear(6, 2), nn.Linear(3, 1)
        rng = np.random.default_rng(0)
        for p in self.parameters().values():
            p.value[...] = rng.normal(size=p.shape) * 0.4

    def loss(self, batch):
        chars, words = batch.graphs["chars"], batch.graphs["words"]
        c = self.spell(chars, x=self.char(chars["char"]))
        x = self.word(words["token"])
        spelled = ops.take(c, batch.link("spelling"))
        of_all = ops.mean_linked(x, batch.link("all"))
        h = self.words(words, x=x + spelled, way=words["way"])
        labels = ops.cross_entropy(self.output(ops.concat([h, of_all])), words["label"])
        wrong = self.count(c).sum(-1) - 1.0
        return labels + ops.mean_rows(wrong * wrong) + 0.1 * ops.mean_rows(h.sum(-1))


def sample(rng, words, edges=True):
    lengths = rng.integers(1, 4, words)
    token = rng.integers(0, 9, words)
    children = [[v - 1] if v else [] for v in range(words)] if edges else [[]] * words
    ways = {"way": rng.normal(size=(words - 1, 3))} if edges and words > 1 else {}
    chars = cavs.Graph.chains(lengths, {"char": rng.integers(0, 9, lengths.sum())})
    return cavs.Sample(
        words=cavs.Graph(children, {"token": token, "label": token % 3 - 1}, ways),
        chars=chars,
        links={
            "spelling": cavs.Link("words", "chars", np.cumsum(lengths) - 1),
            "all": cavs.Link.all("words", "words"),
        },
    )


def batches():
    """Batches of 5, 2 and 4 samples; words have edges in one of them, in the last in none."""
    rng = np.random.default_rng(1)
    made = [[sample(rng, 4), *(sample(rng, n, edges=False) for n in (1, 3, 2, 2))]]
    made.append([sample(rng, 3), sample(rng, 1)])
    return [*made, [sample(rng, 2, edges=False) for _ in range(4)]]


BATCHES = batches()


def fitted(trainer):
    loader = cavs.DataLoader([x for samples in BATCHES for x in samples], 4, seed=3, shuffle=True)
    trainer.fit(loader, epochs=2, progress=False)
    return trainer.state.steps


def stepping(batches):
    """Return what a trainer does that makes a step for each list of samples."""
    return lambda trainer: [trainer.advance(cavs.batch(samples)).loss for samples in batches]


def equal_one_process(make, how, ranks=3, strategy=None, **optimizer):
    """Train models from `make` on ranks and on one process: results of `how`, and parameters."""

    def result(trainer):
        return how(trainer), {n: p.value.copy() for n, p in trainer.parameters.items()}

    def sgd():
        return cavs.optim.SGD(**{"lr": 0.1, **optimizer})

    session = cavs.Session(make(), dtype=np.float64)
    expected, values = result(cavs.Trainer(session.model, sgd(), session=session))

    def work(c):
        options = {"strategy": strategy, "dtype": "float64"}
        with Trainer(make(), sgd(), communicator=c, **options) as trainer:
            return result(trainer)

    for found, own in run_threads(ranks, work):
        assert found == pytest.approx(expected, rel=1e-10)
        for name, value in values.items():
            np.testing.assert_allclose(own[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


train = stepping(BATCHES * 2)


@pytest.mark.parametrize("how", [train, fitted], ids=["train", "fitted"])
@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [(None, 1), (None, 3), ("PartitionedPS", 2), ("PSLoadBalancing(servers=1)", 3)],
)
def test_ranks_train_on_samples_like_one_process(strategy, ranks, how):
    equal_one_process(Spelled, how, ranks, strategy, momentum=0.9)


class Near(cavs.VertexFunction):
    """Sums the words that are near, weighted, with a row of a table for each pair."""

    def __init__(self):
        self.state, self.W, self.way = cavs.State(h=3), cavs.Parameter((3, 3)), nn.Embedding(3, 3)

    def vertex(self, v):
        near = v.link("near")
        read = (near.x * self.way(near.way) * ops.reshape(near.weight, (1,))).sum()
        h = ops.tanh(v.pull("x") + v.gather().h.sum() @ self.W + read)
        v.scatter(h=h)
        v.push(h)


class Neighbours(cavs.Model):
    """Labels of pairs, and a mean over words."""

    def __init__(self):
        self.word, self.near = nn.Embedding(9, 3), Near()
        rng = np.random.default_rng(0)
        for p in self.parameters().values():
            p.value[...] = rng.normal(size=p.shape) * 0.4

    def loss(self, batch):
        words, link = batch.graphs["words"], batch.link("near")
        x = self.word(words["token"])
        near = ops.linked(link, x=x, way=link["way"], weight=link["weight"])
        h = self.near(words, x=x, near=near)
        labels = ops.cross_entropy(self.near.way(link["way"]) * h, link["label"])
        return labels + ops.mean_rows(h.sum(-1))


def neighbours(rng, words, pairs=True):
    """Return a sample whose words read others, with features of the pairs; or none."""
    rows = [rng.integers(0, words, rng.integers(1, 4) * pairs) for _ in range(words)]
    n = sum(map(len, rows))
    features = {
        "weight": rng.normal(size=n),
        "way": rng.integers(-1, 3, n),
        "label": rng.integers(-1, 3, n),
    }
    graph = cavs.Graph.chain(words, {"token": rng.integers(0, 9, words)})
    link = cavs.Link("words", "words", rows, features if n else {})
    return cavs.Sample(words=graph, links={"near": link})


def test_features_of_pairs_go_with_their_samples():
    """Samples without pairs leave their features out; a rank may have such samples alone."""
    rng = np.random.default_rng(2)
    made = [[neighbours(rng, n, n > 2) for n in of] for of in ((2, 5, 1, 3), (3, 1, 2), (1, 2))]
    equal_one_process(Neighbours, stepping(made * 2))


def test_types_of_vertices_go_with_their_samples():
    """A rank may have no vertex of a type, and no features of it."""
    rng = np.random.default_rng(4)
    one = typed.sample([[]], ["scan"], rng, ("other",), absent=["join"])
    made = [[*typed.samples(1), one], [one, *typed.samples(2)[::-1]], [one, one]]
    equal_one_process(lambda: drawn(typed.PlanCost(), 0.5), stepping(made * 2))


def test_ranks_may_have_no_vertex_of_a_structure():
    made = [empty.samples(*sizes, seed=7) for sizes in ([(2, 2), (0, 1), (3, 0)], [(1, 0)] * 3)]
    made.append(empty.samples((0, 2), (4, 0), (0, 1), (2, 3)))
    equal_one_process(lambda: drawn(empty.Reader(), 0.5), stepping(made * 2))


def test_ranks_learn_links_that_have_rows_on_others():
    """The first batch leaves the sort of a link open, the second shows it to one rank alone."""
    rng = np.random.default_rng(3)

    def of(words, rows):
        notes = cavs.Graph.chain(2, {"x": rng.normal(size=(2, 2))})
        links = {"to": cavs.Link("a", "b", rows)}
        graph = cavs.Graph.chain(words) if words else empty.EMPTY
        return cavs.Sample(a=graph, b=notes, links=links)

    none = [of(0, []) for _ in range(4)]
    made = [none, [*none[:2], of(2, [[0, 1], []]), of(1, [[1]])], none]
    equal_one_process(lambda: drawn(empty.Summed(), 0.5), stepping(made), ranks=2, lr=0.01)


def test_fits_of_ranks_take_samples_without_content():
    samples = empty.samples((0, 2), (0, 1), (2, 0), (3, 2))

    def work(c):
        model, optimizer = drawn(empty.Reader(), 0.5), cavs.optim.SGD(lr=0.05)
        with Trainer(model, optimizer, communicator=c, dtype="float64") as trainer:
            trainer.fit(cavs.DataLoader(samples, 4), epochs=2, progress=False)
            return {n: p.value.copy() for n, p in trainer.parameters.items()}

    one, other = run_threads(2, work)
    assert all((one[name] == other[name]).all() for name in one)


def test_stale_ranks_count_samples_by_themselves():
    def work(c):
        strategy, optimizer = "PSLoadBalancing(staleness=1)", cavs.optim.SGD(lr=0.1)
        with Trainer(Spelled(), optimizer, communicator=c, strategy=strategy) as trainer:
            return train(trainer)

    assert np.isfinite(run_threads(2, work)).all()


@pytest.mark.parametrize("strategy", [None, "PSLoadBalancing(staleness=1)"])
@pytest.mark.parametrize(
    ("what", "found"), [("char", "feature 'chars.char'"), ("link", "link 'spelling'")]
)
def test_ranks_with_other_samples_are_told_what_differs(strategy, what, found):
    def work(c):
        first = BATCHES[0][0]
        graphs, links = dict(first.graphs), dict(first.links)
        if c.rank and what == "char":
            char = graphs["chars"].features["char"] + 1
            graphs["chars"] = graphs["chars"].with_features({"char": char % 9})
        if c.rank and what == "link":
            links["spelling"] = cavs.Link("words", "chars", [0, 0, 0, 0])
        batch = cavs.batch([cavs.Sample(**graphs, links=links), *BATCHES[0][1:]])
        optimizer = cavs.optim.SGD(lr=0.1)
        trainer = Trainer(Spelled(), optimizer, communicator=c, strategy=strategy)
        with pytest.raises(ConfigError, match=re.escape(found)):
            trainer.step(batch)
        return True

    assert run_threads(2, work) == [True, True]


def test_profiles_of_samples_have_the_levels_of_each_structure():
    rng = np.random.default_rng(2)
    samples = [sample(rng, 3), sample(rng, 2, edges=False)]
    widths, edges = profiles(samples)
    parts = [profiles([s.graphs[name] for s in samples]) for name in ("chars", "words")]
    assert widths.tolist() == np.hstack([w for w, _ in parts]).tolist()
    assert edges.tolist() == [s.num_edges for s in samples]


def test_ranks_merge_equal_characters():
    def work(c):
        with Trainer(Spelled(), cavs.optim.SGD(lr=0.1), communicator=c) as trainer:
            trainer.advance(cavs.batch(BATCHES[0]))
            return trainer.session.session.latest().merged_structures

    assert run_threads(2, work) == [("chars",)] * 2
