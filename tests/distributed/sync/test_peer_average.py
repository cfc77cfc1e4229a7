"""Averages with peers: every rank follows the definition for the peers drawn, written in NumPy."""

import time

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.distributed import Trainer, by_counts
from cavs.distributed.comm import run_threads
from cavs.distributed.comm.store import Store
from cavs.train.schedules import Exponential
from tests.distributed.mpirun import needs_mpi4py, run_ranks
from tests.distributed.sync.test_merged_replicas import loader, trainer_of, values
from tests.distributed.sync.test_replicas import STEPS, Oracle, assert_follows, trained

SEED = 7
IN_STEP = ["PeerAverage", "PeerAverage(select='round_robin')", "ADPSGD"]
TIMED = ["PeerAverage(select='latency')", "PeerAverage(mode='async')"]


def peer_of(select, rank, size, step):
    if select == "round_robin":
        return (rank + 1 + step % (size - 1)) % size
    drawn = np.random.default_rng([SEED, rank, step]).integers(size)
    return (drawn + (drawn == rank)) % size


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("select", ["random", "round_robin"])
def test_values_move_halfway_to_those_of_the_peer(size, select):
    strategy = f"PeerAverage(select={select!r}, seed={SEED})"
    found, oracle = trained(size, strategy), Oracle(size)
    for step in range(STEPS):
        gradients, before = oracle.gradients(step), oracle.w
        if size > 1:
            peers = [before[peer_of(select, rank, size, step)] for rank in range(size)]
            pairs = zip(before, peers, strict=True)
            oracle.w = [{n: (w[n] + peer[n]) / 2 for n in w} for w, peer in pairs]
        oracle.update(gradients)
        assert_follows(found, oracle, step)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_pairs_of_ranks_take_their_mean(size):
    found, oracle = trained(size, f"ADPSGD(seed={SEED})"), Oracle(size)
    for step in range(STEPS):
        gradients = oracle.gradients(step)
        for active in range(0, size if size > 1 else 0, 2):
            drawn = np.random.default_rng([SEED, active, step]).integers(size // 2)
            pair = oracle.w[active], oracle.w[1 + 2 * drawn]
            mean = {n: (pair[0][n] + pair[1][n]) / 2 for n in pair[0]}
            for w in pair:
                w.update({n: value.copy() for n, value in mean.items()})
        oracle.update(gradients)
        assert_follows(found, oracle, step)


@pytest.mark.parametrize("strategy", ["PeerAverage(seed=3)", "ADPSGD(seed=3)"])
def test_results_depend_on_no_time(strategy, monkeypatch):
    expected = trained(4, strategy)
    serve, rng = Store._serve, np.random.default_rng(1)

    def late(store, tag):
        time.sleep(float(rng.choice([0, 0.01])))
        serve(store, tag)

    monkeypatch.setattr(Store, "_serve", late)
    for one, other in zip(expected, trained(4, strategy), strict=True):
        for name, value in one[-1].items():
            assert value.tobytes() == other[-1][name].tobytes()


# ---- replicas come together ---------------------------------------------------------------------


@pytest.mark.parametrize("strategy", IN_STEP + TIMED)
def test_the_distance_to_the_mean_falls_geometrically(strategy):
    batch, steps = next(iter(loader())), 60 if "async" in strategy else 20

    def work(c):
        trainer = trainer_of(c, strategy, cavs.optim.SGD(lr=1e-13))
        trainer.begin(batch)
        rng = np.random.default_rng(c.rank)
        for p in trainer.parameters.values():
            p.value[...] = rng.standard_normal(p.shape)
        found = []
        for _ in range(steps):
            found.append(np.concatenate([v.ravel() for v in values(trainer).values()]))
            trainer.advance(batch)
        trainer.close()
        return found

    w = np.array(run_threads(4, work))  # rank, step, element
    distance = ((w - w.mean(axis=0)) ** 2).sum(axis=(0, 2))
    if "async" in strategy:  # a model of many steps before may come at any time
        assert distance[-1] < 1e-6 * distance[0]
        return
    for step in range(4, steps):
        assert distance[step] < max(0.5 * distance[step - 4], 1e-16 * distance[0])
    if strategy == "ADPSGD" or "round_robin" in strategy:
        np.testing.assert_allclose(w[:, -1].mean(axis=0), w[:, 0].mean(axis=0), atol=1e-9)


class Quadratic(cavs.Model):
    """Least squares of a row a graph."""

    def __init__(self):
        self.output = nn.Linear(3, 2)
        self.output.weight.value[...] = self.output.bias.value[...] = 0

    def loss(self, batch):
        return ops.mean_squared_error(self.output(batch["x"]), batch["y"])


def rows_of(size):
    """Return inputs that are the same for all ranks, 5 rows of each, and targets that are not."""
    rng = np.random.default_rng(2)
    columns = np.hstack([np.ones((5, 1)), rng.standard_normal((5, 3))])
    x = np.tile(5**0.5 * np.linalg.qr(columns)[0][:, 1:], (size, 1))  # the Hessian is the identity
    return x, rng.standard_normal((len(x), 2)) + 3 * np.arange(size).repeat(5)[:, None]


def batch_of(x, y):
    rows = zip(x[:, None], y[:, None], strict=True)
    return cavs.batch([cavs.Graph.chain(1, features={"x": a, "y": b}) for a, b in rows])


def quadratic_trainer(c, strategy, counts, dtype=np.float64):
    return Trainer(
        Quadratic(),
        cavs.optim.SGD(lr=Exponential(0.4, 0.97)),
        communicator=c,
        dtype=dtype,
        threads=1,
        strategy=strategy,
        split=by_counts(counts),
    )


@pytest.mark.parametrize("strategy", IN_STEP + TIMED)
def test_the_mean_of_the_replicas_finds_the_optimum(strategy):
    size, (x, y) = 4, rows_of(4)
    optimum = np.linalg.lstsq(np.hstack([x, np.ones((len(x), 1))]), y, rcond=None)[0]

    def work(c):
        trainer, batch = quadratic_trainer(c, strategy, [5] * size), batch_of(x, y)
        for _ in range(120):
            trainer.advance(batch)
        trainer.close()
        return np.vstack([trainer.parameters[f"output.{n}"].value for n in ("weight", "bias")])

    found = run_threads(size, work)
    # The optimum of a rank alone is up to 4.5 away. Where a model counts twice, the mean drifts.
    bound = {"PeerAverage": 0.3, IN_STEP[1]: 1e-4, "ADPSGD": 1e-4}.get(strategy, 1.5)
    error = np.abs(np.mean(found, axis=0) - optimum).max()
    assert error < bound


# ---- processes ----------------------------------------------------------------------------------


def over_mpi(c):
    """Return sums of the parameters after some steps, and the bytes of a step and of a model."""
    found = []
    for strategy in ("PeerAverage", "ADPSGD", "PeerAverage(mode='async')"):
        trainer = trainer_of(c, strategy)
        for batch in loader():
            sent = trainer.advance(batch).sent_bytes
        own = values(trainer)
        trainer.session.stale.settle()
        c.barrier()
        found.append([[float(v.sum()) for v in own.values()], sent])
    return found, sum(v.nbytes for v in own.values())


@pytest.mark.mpi
@needs_mpi4py
def test_processes_train_as_threads_do():
    expected, nbytes = run_threads(2, over_mpi)[0]
    found, _ = run_ranks(2, __name__, "over_mpi")
    for (own, sent), (others, as_many) in zip(found[:2], expected[:2], strict=True):
        assert own == pytest.approx(others, rel=1e-12)
        assert sent == as_many > nbytes
    assert np.isfinite(found[2][0]).all()
