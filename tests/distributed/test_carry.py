"""Ranks carry the states of their graphs from batch to batch, and train as one process."""

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer, by_counts
from cavs.distributed.balance import SpeedBalancer
from cavs.distributed.comm import LostPeerError, run_threads
from cavs.errors import ConfigError, FeatureError
from cavs.train import Policy, read_checkpoint
from tests.distributed.elastic.deaths import deaths  # noqa: F401  (a fixture)
from tests.distributed.elastic.test_resize import Planned
from tests.distributed.elastic.test_survivors import Killed
from tests.patience import patience
from tests.train.test_carry import _StopAt
from tests.train.truncated import CARRY, PARTS, LanguageModel, loader, trainer


def alone(epochs=2, **options):
    made = trainer()
    result = made.fit(loader(), epochs=epochs, carry=CARRY, progress=False, **options)
    return made, [e["train_loss"] for e in result.epochs]


def on_rank(c, epochs=2, resume=None, save=None, fit=None, **options):
    """Train on a rank; return parameters and losses."""
    adam = cavs.optim.Adam(lr=0.05)
    with Trainer(LanguageModel(), adam, communicator=c, dtype=np.float64, **options) as made:
        if resume is not None:
            made.resume(resume)
        given = {"train": loader(), "epochs": epochs, "carry": CARRY, "progress": False}
        result = made.fit(**given | (fit or {}))
        if save is not None:
            made.save(save)
        values = {name: p.value.copy() for name, p in made.parameters.items()}
        return values, [e["train_loss"] for e in result.epochs], result.status


def assert_equal(found, expected):
    made, losses = expected
    for values, own, _ in found:
        assert own == pytest.approx(losses, rel=1e-10)
        for name, p in made.parameters.items():
            np.testing.assert_allclose(values[name], p.value, rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (2, {}),
        (3, {"strategy": "PartitionedPS"}),
        (2, {"split": by_counts([3, 1])}),
        (2, {"split": by_counts([0, 1])}),
        (5, {}),  # the last rank has no graph
        (2, {"strategy": "PS(servers=1)"}),
    ],
)
def test_ranks_train_as_one_process(size, options):
    assert_equal(run_threads(size, lambda c: on_rank(c, **options)), alone())


@pytest.mark.parametrize("sizes", [(2, 3), (3, 1), (1, 2)])
def test_any_number_of_ranks_continues_within_an_epoch(sizes, tmp_path):
    path = tmp_path / "m"
    first, then = sizes
    run_threads(first, lambda c: on_rank(c, save=path, fit={"policies": [_StopAt(7)]}))
    stored = read_checkpoint(path).extra
    assert {n: a.shape for n, a in stored.items()} == {"@carry/c0": (4, 5), "@carry/h0": (4, 5)}
    found = run_threads(then, lambda c: on_rank(c, resume=path))
    made, losses = alone()
    assert_equal([(v, [losses[0], *x[-1:]], s) for v, x, s in found], (made, losses))


def test_states_go_to_ranks_that_join():
    def work(c):
        return on_rank(c, fit={"policies": [Planned({2: 1, 4: 3, 7: 2})]})

    found = run_threads(2, work, spares=1, timeout=patience(20))
    made, losses = alone()
    assert [status for *_, status in found] == ["finished", "finished", "detached"]
    assert_equal(found[:2], (made, losses))


class _Dies(Policy):
    """Lets rank 1 end some messages after step 4."""

    def __init__(self, left, messages):
        self.left, self.messages = left, messages

    def after_step(self, run):
        if run.step == 4 and run.rank == 1:
            self.left[1] = self.messages


def resumes(path):
    """Check that a run goes on from a checkpoint of a step after the death."""
    stored = read_checkpoint(path)
    assert stored.progress["fit"]["step"] >= 4
    made = trainer()
    made.resume(path)
    result = made.fit(loader(), epochs=2, carry=CARRY, progress=False)
    assert result.status == "finished" and np.isfinite(result.epochs[-1]["train_loss"])


@pytest.mark.parametrize("messages", range(5))
def test_a_death_at_a_save_leaves_a_checkpoint(messages, deaths, tmp_path):  # noqa: F811
    """A resumed run begins its next batch from the features of the graphs."""
    path = tmp_path / "m"
    fit = {"checkpoint": path, "checkpoint_every": 2, "policies": [_Dies(deaths, messages)]}

    def work(c):
        try:
            on_rank(c, fit=fit)
        except (LostPeerError, Killed) as error:
            return type(error)

    assert run_threads(2, work, timeout=patience(20)) == [LostPeerError, Killed]
    resumes(path)


@pytest.mark.parametrize("messages", range(13))
def test_a_death_before_a_resize_leaves_a_checkpoint(messages, deaths, tmp_path):  # noqa: F811
    """Rank 1 dies at each of the 12 messages in which ranks gather their states, and after them."""
    path = tmp_path / "m"

    def work(c):
        policies = [_Dies(deaths, messages), Planned({4: 2})]
        try:
            on_rank(c, fit={"checkpoint": path, "policies": policies})
        except (LostPeerError, Killed) as error:
            return type(error)

    found = run_threads(3, work, timeout=patience(20))
    assert found == [LostPeerError, Killed, LostPeerError]
    resumes(path)


def in_pairs():
    """Return a split that turns around with every batch, for 2 of 4 graphs each."""

    def split(graphs, ranks):
        turn = int(graphs[0].name.split()[-1]) // 3 % 2
        return [[0, 1], [2, 3]] if turn else [[2, 3], [0, 1]]

    return split


@pytest.mark.parametrize(
    ("options", "fit", "error", "message"),
    [
        ({}, {"dev": loader()}, ConfigError, "with dev on many ranks"),
        ({"split": SpeedBalancer(2)}, {}, ConfigError, "with a split that learns"),
        ({"split": in_pairs()}, {}, FeatureError, r"computed the graphs \[[02], [13]\] of a batch"),
        (
            {},
            {"carry": {"h0": "x"}},
            ConfigError,
            "no value 'x' with the loss; it returns 'c', 'h'",
        ),
    ],
)
def test_states_that_ranks_cannot_carry_are_refused(options, fit, error, message):
    def work(c):
        with pytest.raises(error, match=message):
            on_rank(c, fit=fit, **options)
        return True

    assert all(run_threads(2, work))


def test_a_step_returns_the_values_of_a_rank():
    def work(c):
        with Trainer(LanguageModel(), cavs.optim.SGD(lr=0.1), communicator=c) as made:
            return made.advance(next(iter(loader()))).aux["h"].shape

    assert run_threads(3, work) == [(2, 5), (1, 5), (1, 5)] and PARTS == 4
