"""Counts of a global batch, which a rank finds without the others, and splits by given counts."""

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.distributed import Trainer, by_counts, contiguous
from cavs.distributed.balance.balancer import whole_shares
from cavs.distributed.balance.shards import shard
from cavs.distributed.comm import run_threads
from cavs.errors import ConfigError
from tests.compiler import test_typed_structures as typed
from tests.distributed.test_several_structures import (
    Neighbours,
    equal_one_process,
    neighbours,
    stepping,
)
from tests.oracle import drawn

STALE = "PSLoadBalancing(staleness=1)"
RNG = np.random.default_rng(3)
PAIRS = [[neighbours(RNG, n, n > 2) for n in of] for of in ((2, 5, 1, 3), (3, 1, 2), (1, 2))]


def typed_samples():
    """Batches of samples some of which have no vertex of a type."""
    rng = np.random.default_rng(4)
    one = typed.sample([[]], ["scan"], rng, ("other",), absent=["join"])
    return [[*typed.samples(1), one], [one, *typed.samples(2)[::-1]], [one, one]]


def words(*tokens):
    """Return a chain of words and marks, of which words have tokens."""
    types = ["word" if token is not None else "mark" for token in tokens]
    known = np.array([token for token in tokens if token is not None], np.int64)
    children = [[v - 1] if v else [] for v in range(len(tokens))]
    features = {"word": {"token": known}} if len(known) else {}
    return cavs.Graph(children, features, types=types)


BATCHES = {
    "pairs": PAIRS[0],
    "pairs on some": PAIRS[1],
    "types of samples": typed_samples()[0],
    "types on some": typed_samples()[1],
    "types": [words(1, None, -1), words(None), words(2, 3), words(-1, None)],
    "features": [
        cavs.Graph.chain(2, {"token": [1, -1]}, graph_features={"label": 3}),
        cavs.Graph.chain(1, {"token": [4]}, graph_features={"label": -1}),
    ],
}


def integers(batch):
    """Return the names of features of a batch that are indices."""
    return [n for n, x in batch.feature_schema().items() if np.dtype(x.dtype).kind == "i"]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("graphs", BATCHES.values(), ids=BATCHES)
def test_counts_of_all_ranks_add_up_to_those_of_the_batch(graphs, ranks):
    whole = cavs.batch(graphs)
    names = integers(whole)
    parts = [shard(whole, (rank, ranks), contiguous) for rank in range(ranks)]
    assert names
    total = sum(part.counts(names) for part in parts if not part.empty)
    for part in parts:
        np.testing.assert_array_equal(part.global_counts(names), total)


def settled(batches):
    """Return what a trainer does that makes a step for each batch, and waits for the updates."""

    def steps(trainer):
        losses = stepping(batches)(trainer)
        if isinstance(trainer, Trainer):
            trainer.settle()
        return losses

    return steps


def test_a_stale_rank_alone_counts_pairs_of_samples_as_one_process():
    equal_one_process(Neighbours, settled(PAIRS * 2), ranks=1, strategy=STALE)


def test_a_stale_rank_alone_counts_types_of_samples_as_one_process():
    how = settled(typed_samples() * 2)
    equal_one_process(lambda: drawn(typed.PlanCost(), 0.5), how, ranks=1, strategy=STALE)


class Kinds(cavs.Model):
    """Reads a row of a table for each vertex."""

    def __init__(self):
        self.table, self.output = nn.Embedding(4, 3), nn.Linear(3, 2)

    def loss(self, batch):
        return ops.mean_squared_error(self.output(self.table(batch["kind"])), 0.5)


def with_kinds(graphs, ids):
    """Return a batch with a feature that the loader's graphs do not have."""
    made = [cavs.Graph.chain(g.num_vertices, {"kind": g.features["x"] % 4}) for g in graphs]
    return cavs.batch(made, ids)


def test_a_feature_that_only_the_loader_makes_cannot_be_counted_by_a_stale_rank():
    graphs = [cavs.Graph.chain(n, {"x": np.arange(n)}) for n in (1, 2, 3, 4)]

    def work(c, strategy):
        loader = cavs.DataLoader(graphs, 4, collate=with_kinds)
        model, optimizer = Kinds(), cavs.optim.SGD(lr=0.1)
        trainer = Trainer(model, optimizer, communicator=c, strategy=strategy)
        return trainer.fit(loader, epochs=1, progress=False).status

    assert run_threads(2, lambda c: work(c, None)) == ["finished"] * 2

    def refused(c):
        with pytest.raises(ConfigError, match="has the feature 'kind', its graphs do not") as found:
            work(c, STALE)
        return found.value.hint

    hints = run_threads(1, refused)
    assert hints == ["give it to the graphs, or use a strategy with a synchronous parameter"]


# ---- given and computed counts ------------------------------------------------------------------


@pytest.mark.parametrize("counts", [[3, 1], [1, 2, 3, 4], [1, -1, 2], [0, 0, 0]])
def test_counts_that_are_none_of_the_ranks_are_refused(counts):
    with pytest.raises(ConfigError) as found:
        by_counts(counts)(list(range(12)), 3)
    assert found.value.what == f"counts {counts} for 3 ranks"
    assert found.value.hint == "give one for each"


def test_survivors_without_graphs_of_their_own_divide_them_equally():
    split = by_counts([5, 0, 0, 3])
    assert split.of([0, 1, 3])(range(8), 3) == [range(5), range(5, 5), range(5, 8)]
    assert split.of([1, 2])(range(7), 2) == [range(4), range(4, 7)]


@pytest.mark.parametrize("count", range(1, 40))
def test_equal_weights_give_equal_shares_however_they_are_rounded(count):
    for weight in (0.1, 0.7, 1 / 3, 1e-9, 123.4):
        assert whole_shares(count, [weight] * count) == [1] * count
        assert whole_shares(2 * count, [weight] * count, [2] * count) == [2] * count
