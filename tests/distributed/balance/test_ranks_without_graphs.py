"""Balancing with ranks that only own parameters: computing ranks get the graphs and predictions."""

import json
import time

import numpy as np
import pytest

import cavs
from cavs.distributed import by_counts
from cavs.distributed.balance import CostModel, SpeedBalancer, StructureBalancer
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm import run_threads
from tests.distributed.elastic.test_survivors import Killed, mortal
from tests.distributed.mpirun import needs_mpi4py
from tests.distributed.step.test_consensus import loader
from tests.distributed.step.test_stale_parameters import assert_same_bits, trainer, values_of
from tests.distributed.test_train_command import TOY, cavs_command
from tests.distributed.test_trainer import BATCHES, Tree
from tests.patience import patience

SERVED = ["PSLoadBalancing(servers=1)", "PartitionedPS(servers=1)"]
STALE = ["PSLoadBalancing(servers=1, staleness=1)", "PS(servers=1, sync=False)"]


class Watched(StructureBalancer):
    """A split that records the number of ranks and the times it received."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __call__(self, graphs, ranks):
        parts = super().__call__(graphs, ranks)
        self.asked.append((ranks, [list(part) for part in parts]))
        return parts


def run(c, strategy, split, epochs):
    """Train by `fit`, whose loader splits ahead, or with 0 epochs batch by batch."""
    options = {"strategy": strategy, "resources": ResourceSpec.local(c.size), "split": split}
    with trainer(c, optimizer=cavs.optim.SGD(lr=0.1), **options) as t:
        if epochs:
            t.fit(loader(), epochs=epochs, progress=False)
        else:
            for graphs in BATCHES:
                t.advance(cavs.batch(graphs))
        steps = t.steps
    return values_of(t), steps


def alone(epochs):
    model = Tree()
    session = cavs.Session(model, dtype=np.float64)
    t = cavs.Trainer(model, cavs.optim.SGD(lr=0.1), session=session)
    if epochs:
        t.fit(loader(), epochs=epochs, progress=False)
    else:
        for graphs in BATCHES:
            t.advance(cavs.batch(graphs))
    return {n: p.value for n, p in model.parameters().items()}


@pytest.mark.parametrize("epochs", [0, 2])
@pytest.mark.parametrize("strategy", SERVED)
def test_balance_by_structure_equals_one_process(strategy, epochs):
    def work(c):
        split = Watched()
        return *run(c, strategy, split, epochs), split

    results = run_threads(3, work)
    assert_same_bits([values for values, _, _ in results[:2]])
    for name, value in alone(epochs).items():
        np.testing.assert_allclose(results[0][0][name], value, rtol=1e-10, atol=1e-12, err_msg=name)
    first, second = (split for _, _, split in results[:2])
    assert first.asked == second.asked
    assert {ranks for ranks, _ in first.asked} == {2}
    assert len(first.asked) == results[0][1]
    for split in (first, second):  # two computing ranks are predicted, by the same times
        assert split.model.slowness.shape == (2,) and split.model.steps > 0
        np.testing.assert_array_equal(split.model.coefficients, first.model.coefficients)
    for _, steps, split in results[2:]:  # an owner has no graphs to split, and nothing to learn
        assert (steps, split.asked, split.model.steps) == (results[0][1], [], 0)


@pytest.mark.parametrize("epochs", [0, 2])
@pytest.mark.parametrize("strategy", STALE)
def test_by_structure_with_stale_owners(strategy, epochs):
    """Ranks do not know each other's times: splits follow the prior, equally on all ranks."""

    def work(c):
        split = Watched()
        run(c, strategy, split, epochs)
        return split

    first, second, owner = run_threads(3, work)
    assert first.asked and not owner.asked
    known = min(len(first.asked), len(second.asked))
    assert first.asked[:known] == second.asked[:known]
    assert first.model.steps == owner.model.steps == 0


@pytest.mark.parametrize("epochs", [0, 2])
def test_by_counts(epochs):
    def work(c):
        return run(c, SERVED[0], by_counts([1, 3]), epochs)

    results = run_threads(3, work)
    for name, value in alone(epochs).items():
        np.testing.assert_allclose(results[0][0][name], value, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("messages", [20, 77])
def test_survivors_start_to_learn_again(messages, capsys):
    """Batches that were split ahead for the former ranks are split again."""

    def work(c):
        mortal(c, 1, messages)
        options = {"split": StructureBalancer(), "elastic": True}
        t = trainer(c, optimizer=cavs.optim.SGD(lr=0.1), **options)
        try:
            t.fit(loader(), epochs=2, progress=False)
        except Killed:
            return None
        return values_of(t), t.communicator.size, t.session.split

    results = run_threads(3, work)
    assert results[1] is None
    for values, size, split in (results[0], results[2]):
        assert (size, type(split), split.ranks) == (2, StructureBalancer, 2)
        np.testing.assert_array_equal(split.model.slowness, results[0][2].model.slowness)
        for name, value in alone(2).items():
            np.testing.assert_allclose(values[name], value, rtol=1e-9, atol=1e-11, err_msg=name)


def test_number_of_ranks_comes_from_the_model_or_the_first_batch():
    assert StructureBalancer(model=CostModel(3)).ranks == 3
    balancer = StructureBalancer()
    assert sorted(i for part in balancer(BATCHES[0], 2) for i in part) == list(range(7))
    assert (balancer.ranks, len(balancer.model.slowness)) == (2, 2)


@pytest.mark.mpi
@needs_mpi4py
def test_from_the_command_line(tmp_path):
    options = ["--strategy", SERVED[0], "--balance", "structure", "--epochs", 2, "--quiet"]
    process = cavs_command("launch", "-n", 3, "train", TOY, "--out", tmp_path, *options)
    _, errors = process.communicate(timeout=patience(120))
    assert process.returncode == 0, errors
    lines = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    first, second = (e["train_loss"] for e in lines if "train_loss" in e)
    assert second < 0.8 * first


@pytest.mark.parametrize("counts", [[1, 3, 2], [0, 2, 0], [5, 0, 0]])
@pytest.mark.parametrize("strategy", [None, "PartitionedPS"])
@pytest.mark.parametrize("messages", [20, 77])  # before the first step has ended, and later
def test_survivors_keep_their_counts(counts, strategy, messages, capsys):
    """The survivors keep theirs; they split evenly where the dead rank had all."""
    taken = []

    def work(c):
        mortal(c, 1, messages)
        options = {"split": by_counts(counts), "elastic": True, "strategy": strategy}
        t = trainer(c, optimizer=cavs.optim.SGD(lr=0.1), **options)
        try:
            t.fit(loader(), epochs=2, progress=False)
        except Killed:
            return None
        taken.append([len(part) for part in t.session.split([0] * 9, 2)])
        return values_of(t)

    results = run_threads(3, work)
    first, _, third = counts
    weights = [first, third] if first + third else [1, 0.8]
    assert taken == [[round(9 * w / sum(weights)) for w in weights]] * 2
    for values in (results[0], results[2]):
        for name, value in alone(2).items():
            np.testing.assert_allclose(values[name], value, rtol=1e-9, atol=1e-11, err_msg=name)


def test_a_new_owner_has_no_count():
    """The only owner died before the first step, so a new strategy was made."""

    def work(c):
        mortal(c, 2, 30)
        options = {"split": by_counts([1, 3]), "elastic": True, "strategy": SERVED[0]}
        t = trainer(c, optimizer=cavs.optim.SGD(lr=0.1), **options)
        try:
            t.fit(loader(), epochs=2, progress=False)
        except Killed:
            return None
        return values_of(t), t.session.roles.count

    results = run_threads(3, work)
    assert results[0][1] == 1
    for name, value in alone(2).items():
        np.testing.assert_allclose(results[0][0][name], value, rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("kind", [StructureBalancer, SpeedBalancer])
def test_batches_split_ahead_of_a_stopped_fit_are_discarded(kind):
    """One rank was further ahead than the other."""

    def work(c):
        def collate(graphs, ids):
            time.sleep(0.05 * c.rank)
            return cavs.batch(graphs, ids)

        t = trainer(c, optimizer=cavs.optim.SGD(lr=0.1), split=kind())
        graphs = [graph for graphs in BATCHES for graph in graphs]
        run_step = t.coordinator.run_step

        def stop_at_five(advance, batch):
            t.session.wants_stop |= t.steps == 5
            return run_step(advance, batch)

        t.coordinator.run_step = stop_at_five
        with pytest.raises(KeyboardInterrupt):
            t.fit(cavs.DataLoader(graphs, 4, collate=collate), epochs=1, progress=False)
        t.coordinator.run_step = run_step
        return [t.advance(cavs.batch(graphs[:8])).loss for _ in range(8)]

    first, second = run_threads(2, work)
    assert first == second
