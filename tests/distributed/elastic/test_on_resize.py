"""The hook `on_resize`: all ranks of a new group call it, at the same step."""

import numpy as np
import pytest

import cavs
from cavs.distributed.comm import run_threads
from cavs.errors import CommunicationError
from cavs.train import Policy
from cavs.train.checkpoint import read_checkpoint
from cavs.train.policies import KeepSize, LinearScaling
from tests.distributed.elastic.test_resize import Planned, loader, make, outcome, values
from tests.distributed.elastic.test_survivors import Killed, mortal
from tests.distributed.test_trainer import Tree
from tests.patience import patience


class Noted(Policy):
    """Notes calls of the hook; a collective shows that all ranks make them together."""

    def __init__(self):
        self.calls = []

    def on_resize(self, run, old, new):
        assert (run.size, run.all_reduce(1.0)) == (new, new)
        self.calls.append([run.step, old, new])

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = [list(call) for call in state["calls"]]


class Following(Policy):
    """Sets batch size and rate after the steps of a plan, on one process."""

    def __init__(self, plan):
        self.plan = plan

    def after_step(self, run):
        if run.step in self.plan:
            size, scale = self.plan[run.step]
            assert run.set_batch_size(size) and run.set_lr_scale(scale)


def alone(plan, epochs=2):
    session = cavs.Session(Tree(), dtype=np.float64)
    trainer = cavs.Trainer(session.model, cavs.optim.Adam(lr=0.02), session=session)
    trainer.fit(loader(), epochs=epochs, progress=False, policies=[Following(plan)])
    return trainer.steps, values(trainer)


def fit(c, policies, epochs=2, **options):
    own = {k: options.pop(k) for k in ("elastic", "strategy") if k in options}
    trainer = make(c, **own)
    result = trainer.fit(loader(), epochs=epochs, progress=False, policies=policies, **options)
    return result.status, trainer


def assert_values(trainer, expected):
    steps, parameters = expected
    assert trainer.steps == steps
    for name, value in parameters.items():
        np.testing.assert_allclose(values(trainer)[name], value, 1e-10, 1e-12, err_msg=name)


@pytest.mark.parametrize("strategy", [None, "PartitionedPS"])
def test_linear_scaling_follows_4_2_3_ranks(strategy):
    def work(c):
        noted = Noted()
        policies = [Planned({3: 2, 10: 3}), LinearScaling(), noted]
        return *fit(c, policies, strategy=strategy), noted.calls

    expected = alone({3: (4, 0.5), 10: (6, 0.75)})
    found = run_threads(4, work, timeout=patience(20))
    assert [status for status, _, _ in found] == ["finished"] * 3 + ["detached"]
    for _, trainer, calls in found[:3]:
        assert calls == [[3, 4, 2], [10, 2, 3]]
        assert_values(trainer, expected)
    assert found[3][2] == []  # it left with the first change


def test_a_spare_that_joins_calls_the_hook_with_the_others():
    def work(c):
        noted = Noted()
        fit(c, [Planned({2: 4}), noted], epochs=1)
        return noted.calls

    assert run_threads(2, work, spares=2, timeout=patience(20)) == [[[2, 2, 4]]] * 4


def test_the_hook_is_called_between_epochs():
    def work(c):
        noted = Noted()
        fit(c, [Planned({15: 1}, "after_epoch"), noted])
        return noted.calls

    assert run_threads(2, work, timeout=patience(20)) == [[[15, 2, 1]], []]


class Collective(Policy):
    """Makes a collective in several hooks, in which ranks may learn of a death."""

    def before_step(self, run):
        assert run.all_reduce(1.0, "max") == 1

    after_step = before_epoch = after_epoch = before_step


@pytest.mark.parametrize("messages", range(1, 200, 19))
def test_survivors_call_the_hook_at_the_same_step(messages):
    def work(c):
        mortal(c, 2, messages)
        noted = Noted()
        try:
            return *fit(c, [Collective(), noted], elastic=True), noted.calls
        except Killed:
            return None

    *left, gone = run_threads(3, work, timeout=patience(20))
    assert gone is None and left[0][2] == left[1][2]
    if left[0][2]:  # otherwise it died before the first step
        assert [call[1:] for call in left[0][2]] == [[3, 2]]
    assert_values(left[0][1], alone({}))


@pytest.mark.parametrize("keeps", [False, True])
def test_the_hook_is_called_after_a_death_unless_another_process_joins_at_once(keeps):
    """`KeepSize` replaces the rank before the next step, so that all steps have three."""

    def work(c):
        mortal(c, 2, 80)
        noted = Noted()
        resizes = KeepSize() if keeps else Planned({20: 3})
        try:
            return *fit(c, [resizes, LinearScaling(batch=False), noted], elastic=True), noted.calls
        except Killed:
            return None

    found = run_threads(3, work, spares=1, timeout=patience(20))
    assert found[2] is None
    calls = found[0][2]
    died = 0 if keeps else calls[0][0]
    assert calls == ([] if keeps else [[died, 3, 2], [20, 2, 3]])
    plan = {} if keeps else {died: (8, 2 / 3), 20: (8, 1.0)}
    for rank in (0, 1, 3):
        assert found[rank][2] == calls
        assert_values(found[rank][1], alone(plan))


def test_a_resumed_run_scales_to_its_ranks(tmp_path):
    path = tmp_path / "m"

    def first(c):
        fit(c, [LinearScaling()], epochs=1, checkpoint=path)

    def second(c):
        trainer = make(c)
        trainer.resume(path)
        trainer.fit(loader(), epochs=2, progress=False, checkpoint=path, policies=[LinearScaling()])
        return trainer

    run_threads(4, first, timeout=patience(20))
    for trainer in run_threads(2, second, timeout=patience(20)):
        assert_values(trainer, alone({15: (4, 0.5)}))
    (name, state) = read_checkpoint(path).progress["policies"][0]
    assert name == "LinearScaling" and state["ranks"] == 2 and state["size"]["last"] == 4


class Failing(Policy):
    def on_resize(self, run, old, new):
        if run.rank == new - 1:
            raise ZeroDivisionError


@pytest.mark.parametrize("plan", [{2: 1}, {2: 3}])
def test_an_error_in_the_hook_is_one_on_all_ranks(plan, tmp_path):
    """With 3 ranks it is raised on the one that joins."""

    def work(c):
        policies = [Planned(plan), Failing()]
        return outcome(lambda: fit(c, policies, checkpoint=tmp_path / "m"))

    found = run_threads(2, work, spares=1, timeout=patience(20))
    size = plan[2]
    assert isinstance(found[size - 1], ZeroDivisionError)
    assert all(isinstance(error, CommunicationError) for error in found[: size - 1])
    assert all(status == "detached" for status, _ in found[size:])
    assert read_checkpoint(tmp_path / "m").progress["step"] == 2
