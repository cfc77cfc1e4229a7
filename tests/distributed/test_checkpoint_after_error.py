"""A bad graph, or a failing device, ends a `fit` on all ranks and loses no earlier step."""

import functools
import time
from contextlib import contextmanager

import numpy as np
import pytest

import cavs
from cavs.distributed.balance import StructureBalancer
from cavs.distributed.balance.shards import contiguous
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm import run_threads
from cavs.distributed.coordinator import RankCoordinator
from cavs.distributed.elastic import survivors
from cavs.errors import CavsError, CommunicationError, DeviceError, FeatureError
from cavs.train.checkpoint import read_checkpoint
from tests.distributed.step.test_consensus import outcomes, trainer
from tests.distributed.step.test_stale_parameters import assert_same_bits, values_of
from tests.distributed.test_trainer import trees
from tests.patience import patience

BAD = {  # graph of the two in rank 1's shard, and the graph that the error names
    "a token outside the table": ({"token": [99], "label": [0]}, 2, "'token' is 99"),  # in a step
    "tokens of another type": ({"token": [0.5], "label": [0]}, 2, "token"),  # before it compiles
    "rows of labels": (
        {"token": [-1], "label": [[0, 1]]},
        2,
        "'label'",
    ),  # while it compiles
    "no label": ({"token": [0]}, 1, '"label"'),  # where the loader builds the batch
}
STRATEGIES = {  # strategies and ranks; two of three compute
    "buckets": (None, 2),
    "owners": ("PartitionedPS", 2),
    "owners alone": ("PSLoadBalancing(servers=1)", 3),
    "residuals": ("AllReduce(compressor='error_feedback(float16)')", 2),
}


def data(steps, features, count=2):
    """Return batches of four graphs; the last `count` of the one after `steps` have these
    features.
    """
    good = {"token": [3], "label": [1]}
    pair = [cavs.Graph([[]], features if i >= 2 - count and features else good) for i in range(2)]
    return [*trees(4 * steps + 2, 3), *pair, *trees(4, 5)]


def fit(c, strategy, graphs, path, **options):
    resources = ResourceSpec.local(c.size) if c.size > 2 else None
    options |= {"strategy": strategy, "resources": resources}
    t = trainer(c, optimizer=cavs.optim.Adam(lr=0.01), **options)
    if path.exists():
        t.resume(path)
    t.fit(cavs.DataLoader(graphs, 4), epochs=2, checkpoint=path, progress=False)
    return values_of(t)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the result of a training on good graphs, which does not depend on the bad one."""

    @functools.cache
    def found(ranks, strategy, steps, elastic):
        path = tmp_path_factory.mktemp("good") / "good.safetensors"
        good = data(steps, {})
        return outcomes(ranks, lambda c: fit(c, strategy, good, path, elastic=elastic))

    return found


@pytest.mark.parametrize(
    "steps, elastic",
    [(2, False), (2, True), (survivors.EVERY, True)],
    ids=["", "elastic", "copied"],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("bad", BAD)
def test_a_resumed_training_equals_one_without_the_bad_graph(
    bad, strategy, steps, elastic, tmp_path, undisturbed
):
    features, count, text = BAD[bad]
    strategy, ranks = STRATEGIES[strategy]
    path = tmp_path / "bad.safetensors"

    def run(graphs, path):
        return outcomes(ranks, lambda c: fit(c, strategy, graphs, path, elastic=elastic))

    for rank, error in enumerate(run(data(steps, features, count), path)):
        assert isinstance(error, FeatureError if rank == 1 else CommunicationError)
        assert text in str(error), rank
        assert f"last good checkpoint: {path}, of step {steps}" in str(error)
    again = run(data(steps, features, count), path)  # resumed with the original graph
    assert all(text in str(error) for error in again)
    progress = read_checkpoint(path).progress
    assert (progress["step"], progress["loader"]["position"]) == (steps, steps)
    never = undisturbed(ranks, strategy, steps, elastic)
    assert_same_bits([*run(data(steps, {}), path), *never])


def test_with_some_stale_parameters_nothing_is_written(tmp_path):
    """Some ranks have requested the values of the next step by then."""
    features, count, text = BAD["no label"]
    graphs = data(2, features, count)
    path = tmp_path / "c.safetensors"
    for error in outcomes(2, lambda c: fit(c, "Parallax(staleness=1)", graphs, path)):
        assert isinstance(error, CavsError) and text in str(error)
    assert not path.exists()


@pytest.mark.parametrize("strategy", ["Parallax(staleness=1)", "PSLoadBalancing(staleness=2)"])
def test_a_bad_graph_in_the_first_step_of_a_resumed_run_is_named(strategy, tmp_path, monkeypatch):
    """The owners of stale parameters are about to be created."""
    path, (features, _, text) = tmp_path / "c.safetensors", BAD["no label"]
    graphs = [cavs.Graph([[]], {"token": [i], "label": [i % 3]}) for i in range(24)]
    with monkeypatch.context() as m:
        ask = RankCoordinator.should_stop

        def stop_after_two(coordinator, requested):
            return ask(coordinator, requested or coordinator.training.state.steps == 2)

        m.setattr(RankCoordinator, "should_stop", stop_after_two)
        ended = outcomes(2, lambda c: fit(c, strategy, graphs, path))
    assert all(isinstance(error, KeyboardInterrupt) for error in ended)
    graphs[4 * read_checkpoint(path).progress["loader"]["position"] + 3] = cavs.Graph(
        [[]], features
    )
    for error in outcomes(2, lambda c: fit(c, strategy, graphs, path)):
        assert isinstance(error, CavsError) and text in str(error)


def test_a_balancer_discards_batches_made_ahead():
    graphs = data(2, *BAD["no label"][:2])

    def work(c):
        t = trainer(c, split=StructureBalancer(timeout=5.0))
        with pytest.raises(CavsError):
            t.fit(cavs.DataLoader(graphs, 4), epochs=1, progress=False)
        return t.advance(cavs.batch(trees(6, 7))).loss

    first, second = run_threads(2, work, timeout=patience(20))
    assert first == second and np.isfinite(first)


@pytest.mark.parametrize("where", ["step", "save"])
@pytest.mark.parametrize("strategy", ["buckets", "owners"])
def test_no_rank_waits_for_one_whose_device_fails(strategy, where, tmp_path, monkeypatch):
    """It has nothing to write for the steps since, so none is requested."""
    path, begun = tmp_path / "c.safetensors", time.monotonic()

    def lost(*_):
        raise DeviceError("the GPU has failed")

    def work(c):
        t = trainer(c, strategy=STRATEGIES[strategy][0])
        if c.rank == 1:
            own = t.session.session
            monkeypatch.setattr(own, "download", lost)
            if where == "step":
                words = own.readable_errors

                @contextmanager
                def failing(batch):
                    with words(batch):
                        yield lost() if t.steps == 2 else None

                monkeypatch.setattr(own, "readable_errors", failing)
        t.fit(cavs.DataLoader(trees(16, 3), 4), epochs=1, checkpoint=path, progress=False)

    first, second = outcomes(2, work)
    assert time.monotonic() - begun < patience(10)
    assert isinstance(first, CommunicationError) and "rank 1: DeviceError: the GPU" in str(first)
    assert isinstance(second, DeviceError)
    if where == "step":
        assert "not saved" not in str(first)
    assert not path.exists()


@pytest.mark.parametrize("strategy", [None, "PSLoadBalancing(staleness=1)"])
@pytest.mark.parametrize("split", [contiguous, lambda graphs, ranks: [range(3), (3, 7, 5, 6, 4)]])
def test_a_graph_is_named_by_its_index_in_the_global_batch(split, strategy):
    graphs = data(2, {"token": [99], "label": [0]}, 1)[4:12]  # the last of 8 is bad
    assert graphs[7].features["token"][0] == 99

    def work(c):
        with trainer(c, split=split, strategy=strategy) as t:
            t.advance(cavs.batch(graphs))

    _, error = outcomes(2, work)
    assert "feature 'token' is 99 at vertex 0 of graph 7," in str(error)


def test_a_graph_of_a_loader_is_named_by_its_index_in_the_data_set():
    graphs = data(4, {"token": [99], "label": [0]}, 1)  # 24, of which the 20th is bad
    bad = next(i for i, g in enumerate(graphs) if g.features["token"][0] == 99)

    def work(c):
        loader = cavs.DataLoader(graphs, 8, shuffle=True)
        trainer(c).fit(loader, epochs=1, progress=False)

    errors = outcomes(2, work)
    assert any(f"feature 'token' is 99 at vertex 0 of graph {bad}," in str(e) for e in errors)
