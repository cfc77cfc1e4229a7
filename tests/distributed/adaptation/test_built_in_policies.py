"""Built-in policies in trainings on ranks: the rule holds, and so does the result."""

from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads
from cavs.train import Policy
from cavs.train.checkpoint import read_checkpoint
from cavs.train.monitors import Throughput
from cavs.train.policies import AdaptiveTopology, ElasticGNS, GNSBatch
from tests.distributed.test_trainer import Tree, trees
from tests.patience import patience

GRAPHS = trees(48, 2)


class Seen(Policy):
    """Notes noise scale, batch size and ranks after every epoch, before the policies act.

    ``after_*`` hooks are called in reverse, so that it is the last one of the list.
    """

    def __init__(self):
        self.epochs = []

    def after_epoch(self, run):
        self.epochs.append([run.noise_scale, run.batch_size, run.size])

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state):
        self.epochs = list(state["epochs"])


class Planned(Policy):
    """Sets batch sizes by epoch."""

    def __init__(self, sizes):
        self.sizes = sizes

    def after_epoch(self, run):
        assert run.set_batch_size(self.sizes[run.epoch - 1])


def fit(trainer, policies, epochs=4, **options):
    loader = cavs.DataLoader(GRAPHS, 4, shuffle=True, seed=1)
    return trainer.fit(loader, epochs=epochs, progress=False, policies=policies, **options)


def trained(c, policy, others=(), **options):
    trainer = Trainer(Tree(), cavs.optim.SGD(lr=0.1), communicator=c, dtype=np.float64)
    result = fit(trainer, [policy, *others], **options)
    return result.status, {n: p.value.copy() for n, p in trainer.parameters.items()}


def alone(sizes=(4, 4, 4, 4)):
    session = cavs.Session(Tree(), dtype=np.float64)
    trainer = cavs.Trainer(session.model, cavs.optim.SGD(lr=0.1), session=session)
    fit(trainer, [Planned(sizes)])
    return {n: p.value for n, p in trainer.parameters.items()}


def assert_equal(found, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-11, err_msg=name)


def test_gns_batch_grows_batches_on_three_ranks(tmp_path):
    def work(c):
        policy, seen = GNSBatch(every=1, most=40), Seen()
        status, values = trained(c, policy, [seen], checkpoint=tmp_path / "m")
        return status, values, seen.epochs, policy.state_dict()

    found = run_threads(3, work, timeout=patience(20))
    status, values, epochs, state = found[0]
    assert status == "finished" and all(other[2] == epochs for other in found)
    expected, last = [4], np.nan
    for noise, size, _ in epochs:
        assert size == expected[-1]
        expected.append(min(int(size * noise / last), 40) if noise > last > 0 else size)
        last = noise if noise > 0 else last
    assert expected[-1] > 4, epochs
    assert_equal(values, alone(expected[1:]))
    names = dict(read_checkpoint(tmp_path / "m").progress["policies"])
    assert names["GNSBatch"] == state == {"last": last}


def test_elastic_gns_takes_spares():
    def work(c):
        seen = Seen()
        return *trained(c, ElasticGNS(), [seen]), seen.epochs

    found = run_threads(2, work, spares=2, timeout=patience(20))
    epochs = found[0][2]
    sizes, last = [2], np.nan
    for noise, _, size in epochs:
        assert size == sizes[-1]
        sizes.append(min(int(size * noise / last), 4) if noise > last > 0 else size)
        last = noise if noise > 0 and not noise <= last else last
    assert sizes[-2] > 2, epochs
    assert [status for status, _, _ in found].count("finished") == sizes[-2]
    expected = alone()
    for status, values, _ in found:
        if status == "finished":
            assert_equal(values, expected)


class Slowing(Throughput):
    """Gives a throughput that falls to a fifth after 11 steps, whatever else the machine does."""

    def end_step(self, facts):
        super().end_step(replace(facts, seconds=0.1 if self.steps >= 11 else 0.02))
        self.steps += 1

    steps = 0


class Trees(Policy):
    """Notes the tree of every step."""

    def __init__(self):
        self.trees = []

    def after_step(self, run):
        self.trees.append(run.table["tree"])


@pytest.mark.parametrize("tree", ["latency", "star"])
def test_adaptive_topology_sets_a_tree_when_steps_take_longer(tree):
    def work(c):
        seen = Trees()
        policy = AdaptiveTopology(share=0.3, window=3, tree=tree)
        policy.monitors = (Slowing(window=3),)
        return *trained(c, policy, [seen], epochs=2), seen.trees

    found = run_threads(3, work, timeout=patience(20))
    trees = found[0][2]
    assert all(other[2] == trees for other in found)
    assert trees[:11] == [None] * 11 and trees[-1] is not None
    assert trees[-1] == [1, 1, 1] if tree == "star" else trees[-1][0] == 0
    assert len({str(tree) for tree in trees}) == 2  # once
    for values in (found[1][1], found[2][1]):
        assert_equal(values, found[0][1])
