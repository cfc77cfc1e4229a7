"""The choice of ``auto``, compared by the messages that training sends, not by the cost model."""

import threading
from collections import defaultdict, deque
from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.distributed import Trainer
from cavs.distributed.cluster.resources import Network
from cavs.distributed.comm import ThreadCommunicator, run_threads
from cavs.distributed.planning import choice
from cavs.distributed.planning.auto import CANDIDATES
from cavs.distributed.planning.builders import builders_of_equal_replicas
from tests.distributed.strategy.test_roles import hosts
from tests.distributed.test_trainer import trees

RANKS, STEPS = 3, 3
NETWORKS = {
    "slow": Network(latency=1e-6, bandwidth=1e7),
    "far": Network(latency=0.02, bandwidth=1e9),
    "both": Network(latency=1e-3, bandwidth=1e8),
}
LATENCY = np.array([n.latency for n in NETWORKS.values()])
BANDWIDTH = np.array([n.bandwidth for n in NETWORKS.values()])


class Clocks:
    """The clock of each rank on each of the networks, by the messages that it exchanges.

    A card sends one message after the other, and receives so; none arrives before its latency.
    """

    def __init__(self, patch):
        self.now = np.zeros((RANKS, len(NETWORKS)))
        self.arrivals = defaultdict(deque)
        lock, exchange = threading.Lock(), ThreadCommunicator._exchange

        def timed(c, sends, receives):
            own, group = c.names[c.rank], id(c._world)
            sent = came = self.now[own]
            with lock:
                for array, to in sends:
                    sent = sent + array.nbytes / BANDWIDTH
                    self.arrivals[group, c.rank, to].append(sent + LATENCY)
            exchange(c, sends, receives)
            with lock:
                for array, source in receives:
                    arrival = self.arrivals[group, source, c.rank].popleft()
                    came = np.maximum(came + array.nbytes / BANDWIDTH, arrival)
            self.now[own] = np.maximum(sent, came)

        patch.setattr(ThreadCommunicator, "_exchange", timed)
        patch.setattr(ThreadCommunicator, "common_memory", lambda c, nbytes: None)
        patch.setattr(choice, "_has_free_core", lambda c: False)  # no message is hidden


class Table(cavs.Model):
    """A model with a table, few rows of which are in a batch."""

    def __init__(self, words=20_000, size=16, hidden=16):
        self.embedding = nn.Embedding(words, size)
        self.cell = nn.ChildSumTreeLSTM(size, hidden)
        self.output = nn.Linear(hidden, 3)

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return ops.cross_entropy(self.output(h), batch["label"])


MODELS = {"table": Table, "dense": lambda: Table(40, 64, 128)}
# Networks where the choice matters: the worst takes so many times as long as the best.
SPREADS = {("table", "slow"): 1.6, ("dense", "slow"): 4, ("dense", "far"): 1.6}


def seconds(make, strategy, network):
    """Return seconds of a step on each of the networks. network: the one that the strategy is
    made for.
    """
    batch = cavs.batch(trees(2 * RANKS, 1))

    def work(c):
        resources = replace(hosts(*[1] * RANKS), network=network)
        options = {"resources": resources, "strategy": strategy, "wait_free": False}
        t = Trainer(make(), cavs.optim.SGD(lr=0.1), communicator=c, **options)
        t.advance(batch)
        begun = clocks.now.max(axis=0) if c.rank == 0 else None
        for _ in range(STEPS):
            t.advance(batch)
        c.barrier()
        return begun

    with pytest.MonkeyPatch.context() as patch:
        clocks = Clocks(patch)
        begun = run_threads(RANKS, work)[0]
        return (clocks.now.max(axis=0) - begun) / STEPS


@pytest.mark.parametrize("name", MODELS)
def test_auto_is_near_the_best_builder(name):
    names = sorted({*builders_of_equal_replicas(), *CANDIDATES} - {"auto"})
    every = {builder: seconds(MODELS[name], builder, Network()) for builder in names}
    for i, (where, network) in enumerate(NETWORKS.items()):
        by_builder = {builder: found[i] for builder, found in every.items()}
        best, worst = min(by_builder.values()), max(by_builder.values())
        assert worst > SPREADS.get((name, where), 1) * best, (where, by_builder)
        found = seconds(MODELS[name], "auto", network)[i]
        assert found <= 1.1 * best, (where, found, by_builder)


def test_names_that_moved_from_the_cost_model():
    with pytest.raises(ImportError, match=r"has moved[\s\S]*planning\.compute\.Compute"):
        exec("from cavs.distributed.planning.cost import Compute")
    with pytest.raises(ImportError, match=r"has moved[\s\S]*planning\.auto\.make_strategy"):
        exec("from cavs.distributed.planning.cost import make_strategy")
