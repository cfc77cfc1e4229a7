"""A rank dies while parameters are stale: the others return to the last settled state and continue.

Steps of several ranks are applied in another order every time, so results are compared on a
loss that is linear in the parameters: its gradient is the same everywhere, and a lost or
doubled update shows in the last digit.
"""

import functools

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer
from cavs.distributed.comm import LostPeerError, run_threads
from cavs.distributed.elastic import survivors
from cavs.errors import CommunicationError
from cavs.train.checkpoint import read_checkpoint
from tests.distributed.elastic.test_survivors import Killed, survive_a_kill
from tests.distributed.mpirun import needs_mpi
from tests.distributed.step.test_consensus import loader
from tests.distributed.step.test_stale_parameters import assert_same_bits, trainer, values_of
from tests.distributed.test_trainer import BATCHES
from tests.draws import EXAMPLES
from tests.patience import patience

EPOCHS = 3
STALE = ["PSLoadBalancing(staleness=1)", "PartitionedPS(sync=False)", "PS(staleness=3)"]
MIXED = "Parallax(staleness=1)"
DEDICATED = ["PSLoadBalancing(servers=2, staleness=2)", "Parallax(servers=1, staleness=1)"]


class Linear(cavs.Model):
    """The mean of the outputs of a table and a matrix at each vertex."""

    def __init__(self):
        self.embedding = cavs.nn.Embedding(40, 3)
        self.output = cavs.nn.Linear(4, 3)
        for i, p in enumerate(self.parameters().values()):
            p.value[...] = np.random.default_rng(i).normal(size=p.shape)

    def loss(self, batch):
        y = self.embedding(batch["token"]) + self.output(batch["x"])
        up, down = (cavs.ops.mean_squared_error(y, at) for at in (-1.0, 1.0))
        return 0.25 * (up - down)


@functools.cache
def chains():
    rng, graphs = np.random.default_rng(7), []
    for _ in range(39):
        n = int(rng.integers(1, 6))
        features = {"token": rng.integers(0, 40, n), "x": rng.normal(size=(n, 4))}
        graphs.append(cavs.Graph.chain(n, features=features))
    return graphs


def data():
    return cavs.DataLoader(chains(), 8, shuffle=True)


def mortal(c, rank, acts):
    """Let `rank` die after so many letters and exchanges."""
    count, boxes = 0, []

    def act(c):
        nonlocal count
        count += 1
        if count > acts:
            c.die()
            for box in boxes:  # its thread stops serving
                box.close()
            raise Killed

    def in_group(c):
        exchange, mailbox, shrink = c._exchange, c.mailbox, c.shrink

        def killed(sends, receives):
            act(c)
            exchange(sends, receives)

        def opened():
            box = mailbox()
            boxes.append(box)
            post = box.post

            def posting(*letter):
                if not box.closed:
                    act(c)
                post(*letter)

            box.post = posting
            return box

        def shrinking():
            if count > acts:  # its thread died, and this one learned of it as the others did
                raise Killed
            return in_group(shrink())

        c._exchange, c.mailbox, c.shrink = killed, opened, shrinking
        return c

    if c.rank == rank:
        in_group(c)


def fit(c, strategy, path=None):
    t = Trainer(
        Linear(),
        cavs.optim.SGD(lr=0.05),
        communicator=c,
        dtype=np.float64,
        elastic=True,
        strategy=strategy,
    )
    with t:
        result = t.fit(data(), epochs=EPOCHS, dev=data(), checkpoint=path, progress=False)
    return values_of(t), [e["dev_loss"] for e in result.epochs], t.steps, t.communicator.size


def survive(size, deaths, strategy, path=None):
    def work(c):
        for rank, acts in deaths:
            mortal(c, rank, acts)
        try:
            return fit(c, strategy, path)
        except (Killed, CommunicationError):
            if c.rank not in [rank for rank, _ in deaths]:
                raise

    return run_threads(size, work, timeout=patience(20))


@pytest.fixture(scope="module")
def alone():
    return run_threads(1, lambda c: fit(c, None))[0]


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(survivors, "EVERY", 4)


def check(results, alone, left, same=None):
    """left: the ranks that finished. same: those that hold all parameters."""
    assert [r for r, result in enumerate(results) if result is not None] == left
    ended = [results[r] for r in left]
    whole = [results[r] for r in (left if same is None else same)]
    assert_same_bits([values for values, _, _, _ in whole])
    for _, losses, steps, size in ended:
        assert (steps, size) == (alone[2], len(left))
        # Reports before the last are from before a death, or of repeated steps.
        assert losses[-1] == pytest.approx(alone[1][-1], rel=1e-9)
    for values, _, _, _ in whole:
        for name, value in alone[0].items():
            np.testing.assert_allclose(values[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


# Two strategies have a death at each of the points; in a thorough run, all of them.
POINTS = [
    (strategy, acts)
    for i, strategy in enumerate([*STALE, MIXED])
    for n, acts in enumerate(range(3, 262, 13))
    if EXAMPLES or (n + i) % 2 == 0
]


@pytest.mark.parametrize(("strategy", "acts"), POINTS)
def test_a_rank_that_dies_anywhere_costs_nothing(strategy, acts, alone, tmp_path, capsys):
    path, victim = tmp_path / "c.safetensors", acts % 3
    results = survive(3, [(victim, acts)], strategy, path)
    if results[victim] is not None:  # the training ended earlier
        assert acts > 150
        return
    check(results, alone, [r for r in range(3) if r != victim])
    assert "1 of 3 ranks lost at step" in capsys.readouterr().err
    assert read_checkpoint(path).progress["step"] == alone[2]


@pytest.mark.parametrize("victim", [0, 2, 3])
@pytest.mark.parametrize("acts", [50, 60, 90, 120])
@pytest.mark.parametrize("strategy", DEDICATED)
def test_ranks_that_only_own_parameters_may_die_or_survive(strategy, victim, acts, alone):
    """The first ranks compute, the last ones own."""
    results = survive(4, [(victim, acts)], strategy)
    if results[victim] is not None:
        return
    computing = range(4 - int(strategy.partition("servers=")[2][0]))
    left = [r for r in range(4) if r != victim]
    check(results, alone, left, same=[r for r in left if r in computing])


@pytest.mark.parametrize("deaths", [[(1, 60), (3, 100)], [(0, 80), (1, 81)], [(0, 50), (2, 53)]])
@pytest.mark.parametrize("strategy", STALE)
def test_two_ranks_may_die(strategy, deaths, alone):
    results = survive(4, deaths, strategy)
    gone = [rank for rank, _ in deaths]
    check(results, alone, [r for r in range(4) if r not in gone])


OPTIMIZERS = {"adam": cavs.optim.Adam(lr=0.02), "momentum": cavs.optim.SGD(0.1, momentum=0.5)}


def learn(optimizer, acts, timeout=60):
    """Return loss before and after, updates and steps of each rank; rank 1 may die."""

    def work(c):
        mortal(c, 1, acts)
        options = {"elastic": True, "strategy": STALE[0]}
        try:
            with trainer(c, optimizer=OPTIMIZERS[optimizer], **options) as t:
                begin = t.evaluate(loader())["loss"]
                result = t.fit(loader(), epochs=6, dev=loader(), progress=False)
            return begin, result.epochs[-1]["dev_loss"], t.session.stale.updates, t.steps
        except (Killed, CommunicationError):
            assert c.rank == 1

    return run_threads(3, work, timeout=patience(timeout))


calm = functools.cache(lambda optimizer: learn(optimizer, 10**9)[0])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("acts", [25, 70, 140])
def test_optimiser_states_come_back(optimizer, acts):
    """The loss of a model that learns is close to that of an undisturbed run."""
    first, gone, third = learn(optimizer, acts, timeout=20)
    assert gone is None and first == third
    (begin, expected, _, steps), (_, found, updates, _) = calm(optimizer), first
    assert abs(found - expected) < 0.2 * (begin - expected)
    assert 2 * steps <= updates < 3 * steps  # two ranks, but three before one died


def test_without_elastic_a_lost_rank_is_an_error():
    def work(c):
        mortal(c, 1, 40)
        try:
            t = trainer(c, strategy=STALE[0])
            t.fit(loader(), epochs=2, progress=False)
        except (Killed, CommunicationError) as error:
            return error

    error = run_threads(2, work)[0]
    assert isinstance(error, LostPeerError) and "ranks [1] are gone" in str(error)


def test_different_numbers_of_steps_are_an_error():
    def work(c):
        with trainer(c, strategy=STALE[0], elastic=True) as t:
            for i in range(4 + c.rank):
                t.advance(cavs.batch(BATCHES[i]))

    def caught(c):
        try:
            work(c)
        except CommunicationError as error:
            return str(error)

    for text in run_threads(2, caught, timeout=5):
        assert "rank 0 in end, rank 1 in snapshot" in text


class TestProcesses:
    pytestmark = needs_mpi

    @pytest.mark.parametrize("strategy", [STALE[0], MIXED])
    def test_a_killed_rank_is_survived(self, strategy, tmp_path):
        survive_a_kill(tmp_path, "--strategy", strategy)
