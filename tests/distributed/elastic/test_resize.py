"""Ranks leave and join while a training runs; the result is that of one process."""

import threading

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer, by_counts
from cavs.distributed.balance import SpeedBalancer
from cavs.distributed.comm import run_threads
from cavs.distributed.comm.pool import Pool
from cavs.distributed.strategy import GraphConfig, NodeConfig, Strategy
from cavs.distributed.sync import AllReduce
from cavs.errors import CommunicationError, ConfigError
from cavs.train import Policy
from cavs.train.checkpoint import read_checkpoint
from cavs.train.policies import KeepSize
from tests.distributed.elastic.test_survivors import Killed, mortal
from tests.distributed.test_trainer import Tree, trees
from tests.patience import patience

GRAPHS = trees(120, 2)
PLAN = {3: 2, 6: 4, 9: 1, 12: 6, 20: 3}  # number of ranks after a step; 4 begin, 2 wait


class Planned(Policy):
    """Resizes after the steps of a plan, and keeps the sizes of all steps."""

    def __init__(self, plan, hook="after_step"):
        self.plan, self.hook, self.sizes = plan, hook, []

    def _resize(self, run, hook):
        if hook == self.hook and run.step in self.plan:
            assert run.resize(self.plan[run.step])

    def before_train(self, run):
        self._resize(run, "before_train")

    def before_epoch(self, run):
        self._resize(run, "before_epoch")

    def after_epoch(self, run):
        self._resize(run, "after_epoch")

    def after_step(self, run):
        self.sizes.append([run.step, run.size])
        self._resize(run, "after_step")

    def state_dict(self):
        return {"sizes": self.sizes}

    def load_state_dict(self, state):
        self.sizes = list(state["sizes"])


def loader(**options):
    return cavs.DataLoader(GRAPHS, 8, shuffle=True, seed=1, **options)


def make(c, optimizer=None, dtype=np.float64, **options):
    optimizer = optimizer or cavs.optim.Adam(lr=0.02)
    return Trainer(Tree(), optimizer, communicator=c, dtype=dtype, **options)


def values(trainer):
    return {n: p.value.copy() for n, p in trainer.parameters.items()}


def alone(optimizer=None, dtype=np.float64, **options):
    session = cavs.Session(Tree(), dtype=dtype)
    trainer = cavs.Trainer(session.model, optimizer or cavs.optim.Adam(lr=0.02), session=session)
    result = trainer.fit(loader(), epochs=2, progress=False, **options)
    return values(trainer), result


def resized(c, plan=PLAN, hook="after_step", fit=None, policies=(), **options):
    trainer, policy = make(c, **options), Planned(plan, hook)
    result = trainer.fit(
        loader(), epochs=2, progress=False, policies=[policy, *policies], **(fit or {})
    )
    return result, trainer, policy


def sizes_of(plan, steps=30, size=4):
    found = []
    for step in range(1, steps + 1):
        found.append([step, size])
        size = plan.get(step, size)
    return found


def assert_all_equal(found, expected, plan=PLAN, rtol=1e-10, atol=1e-12):
    last = sizes_of(plan)[-1][1]
    assert [result.status for result, _, _ in found[:last]] == ["finished"] * last
    assert [r.status for r, _, _ in found[last:]] == ["detached"] * (len(found) - last)
    for _, trainer, policy in found[:last]:
        assert policy.sizes == sizes_of(plan) and trainer.steps == 30
        for name, value in expected.items():
            np.testing.assert_allclose(values(trainer)[name], value, rtol, atol, err_msg=name)


OPTIMIZERS = [cavs.optim.SGD(lr=0.1, momentum=0.9), cavs.optim.Adam(lr=0.02, weight_decay=0.01)]


@pytest.mark.parametrize("strategy", [None, "PartitionedPS", "Parallax", "PartitionedAR"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["momentum", "adam"])
def test_ranks_4_2_4_1_6_3_train_as_one_process(strategy, optimizer):
    expected, _ = alone(optimizer)
    options = {"strategy": strategy, "optimizer": optimizer}
    found = run_threads(4, lambda c: resized(c, **options), spares=2, timeout=patience(20))
    assert_all_equal(found, expected)


def test_float32_is_within_rounding_of_one_process():
    expected, _ = alone(cavs.optim.SGD(lr=0.1), np.float32)
    options = {"optimizer": cavs.optim.SGD(lr=0.1), "dtype": np.float32}
    found = run_threads(4, lambda c: resized(c, **options), spares=2, timeout=patience(20))
    assert_all_equal(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "strategy",
    [
        "PSLoadBalancing(staleness=2)",
        "PSLoadBalancing(sync=False)",
        "AllReduce(compressor='float16')",
        "AllReduce(compressor='powersgd(rank=2)')",
        "AllReduce(compressor='topk(ratio=0.3)')",
    ],
)
def test_stale_and_compressed_strategies_end_near_an_undisturbed_run(strategy):
    dev, optimizer = cavs.DataLoader(GRAPHS, 16), cavs.optim.SGD(lr=0.05)

    def undisturbed(c):
        trainer = make(c, optimizer, strategy=strategy)
        return trainer.fit(loader(), epochs=2, progress=False, dev=dev).epochs

    def disturbed(c):
        return resized(c, optimizer=optimizer, strategy=strategy, fit={"dev": dev})

    expected = run_threads(4, undisturbed, timeout=patience(20))[0]
    found = run_threads(4, disturbed, spares=2, timeout=patience(20))
    assert [r.status for r, _, _ in found] == ["finished"] * 3 + ["detached"] * 3
    for record, other in zip(found[0][0].epochs, expected, strict=True):
        assert record["dev_loss"] == pytest.approx(other["dev_loss"], rel=2e-3)


@pytest.mark.parametrize(
    ("hook", "plan"),
    [
        ("before_train", {0: 2}),
        ("before_train", {0: 6}),
        ("before_epoch", {15: 5}),
        ("before_epoch", {0: 1, 15: 6}),
        ("after_epoch", {15: 6}),
        ("after_epoch", {15: 1}),
    ],
)
def test_hooks_around_epochs_resize_before_the_next_step(hook, plan):
    expected, _ = alone()
    found = run_threads(4, lambda c: resized(c, plan, hook), spares=2, timeout=patience(20))
    last = plan[max(plan)]
    assert [r.status for r, _, _ in found] == ["finished"] * last + ["detached"] * (6 - last)
    for _, trainer, _ in found[:last]:
        for name, value in expected.items():
            np.testing.assert_allclose(values(trainer)[name], value, 1e-10, 1e-12, err_msg=name)


def test_evaluation_checkpoints_and_best_parameters_go_on_over_sizes(tmp_path):
    dev = cavs.DataLoader(GRAPHS[:20], 8)
    options = {"dev": dev, "restore_best": True}
    expected, result = alone(**options)
    fit = {**options, "checkpoint": tmp_path / "m", "checkpoint_every": 4}
    found = run_threads(4, lambda c: resized(c, fit=fit), spares=2, timeout=patience(20))
    assert_all_equal(found, expected)
    kept = found[0][0]
    assert [e["dev_loss"] for e in kept.epochs] == pytest.approx(
        [e["dev_loss"] for e in result.epochs]
    )
    stored = read_checkpoint(tmp_path / "m").progress
    assert stored["step"] == 30 and stored["fit"]["epoch"] == 2
    without_path = run_threads(4, lambda c: resized(c, fit=options), spares=2, timeout=patience(20))
    assert_all_equal(without_path, expected)


@pytest.mark.parametrize("split", [SpeedBalancer, lambda: by_counts([4, 1, 2, 3])])
def test_batches_are_divided_for_the_ranks_that_train(split):
    expected, _ = alone()
    found = run_threads(4, lambda c: resized(c, split=split()), spares=2, timeout=patience(20))
    assert_all_equal(found, expected, rtol=1e-8, atol=1e-10)


class Doubling(Policy):
    def after_step(self, run):
        if run.step == 4:
            assert run.set_batch_size(16) and run.set_lr_scale(0.5)


def test_batch_size_and_rate_are_those_of_the_ranks_before():
    session = cavs.Session(Tree(), dtype=np.float64)
    one = cavs.Trainer(session.model, cavs.optim.Adam(lr=0.02), session=session)
    one.fit(loader(), epochs=2, progress=False, policies=[Doubling()])
    plan = {2: 1, 6: 5, 9: 2}
    found = run_threads(
        4, lambda c: resized(c, plan, policies=[Doubling()]), spares=1, timeout=patience(20)
    )
    for _, trainer, _ in found[:2]:
        assert trainer.steps == one.steps
        for name, value in values(one).items():
            np.testing.assert_allclose(values(trainer)[name], value, 1e-10, 1e-12, err_msg=name)


@pytest.mark.parametrize(
    ("size", "message"),
    [(0, "size is 0"), (-1, "size is -1"), (1.5, "size is 1.5"), (4, "2 train and 1 wait")],
)
def test_sizes_that_cannot_be_are_refused_on_all_ranks(size, message):
    found = run_threads(
        2, lambda c: outcome(lambda: resized(c, {3: size})), spares=1, timeout=patience(20)
    )
    for error in found[:2]:
        assert isinstance(error, ConfigError) and message in str(error)
    assert found[2][0].status == "detached"


def outcome(work):
    try:
        return work()
    except Exception as error:
        return error


def test_a_given_strategy_is_left_to_its_replicas():
    """It goes on with fewer; more than it names are refused."""
    replicas = tuple(f"localhost:CPU:{i}" for i in range(2))
    nodes = [
        NodeConfig(name=name, synchroniser=AllReduce(group=None)) for name in Tree().parameters()
    ]
    strategy = Strategy(graph=GraphConfig(replicas=replicas), nodes=tuple(nodes))
    expected, _ = alone()
    found = run_threads(
        2, lambda c: resized(c, {3: 1, 5: 2}, strategy=strategy), timeout=patience(20)
    )
    for result, trainer, _ in found:
        assert result.status == "finished"
        for name, value in expected.items():
            np.testing.assert_allclose(values(trainer)[name], value, 1e-10, 1e-12, err_msg=name)
    found = run_threads(
        2,
        lambda c: outcome(lambda: resized(c, {3: 3}, strategy=strategy)),
        spares=1,
        timeout=patience(20),
    )
    assert all("the strategy has 2 replicas" in str(error) for error in found[:2])


def test_a_process_with_another_program_is_left_out(capsys):
    def work(c):
        optimizer = cavs.optim.Adam(lr=0.5 if c.rank == 2 else 0.02)
        return resized(c, {3: 4}, optimizer=optimizer)

    found = run_threads(2, work, spares=2, timeout=patience(20))
    assert [r.status for r, _, _ in found] == ["finished", "finished", "detached", "finished"]
    assert found[0][2].sizes[-1] == [30, 3]
    said = capsys.readouterr().err
    assert "process 2 has another program" in said and "going on with 3 ranks, not 4" in said


def test_a_process_that_does_not_answer_is_left_out(capsys, monkeypatch):
    monkeypatch.setattr("cavs.distributed.elastic.resize._PATIENCE", 0.3)

    def work(c):
        if c.rank == 2:  # it has ended before it was wanted
            return None
        return resized(c, {3: 4})

    found = run_threads(2, work, spares=2, timeout=patience(20))
    assert found[0][2].sizes[-1] == [30, 3] and found[3][0].status == "finished"
    assert "process 2 did not answer" in capsys.readouterr().err


def test_an_error_of_the_ranks_releases_those_that_wait():
    class Failing(Policy):
        def after_step(self, run):
            if run.step == 5:
                raise ZeroDivisionError

    def work(c):
        return outcome(lambda: resized(c, {3: 1}, policies=[Failing()]))

    found = run_threads(2, work, spares=1, timeout=patience(20))
    assert isinstance(found[0], ZeroDivisionError)
    assert found[1][0].status == found[2][0].status == "detached"


def test_letters_of_an_earlier_version_are_dropped():
    def work(c):
        pool = Pool(c, [0])
        if c.rank == 0:
            pool._mailbox.post(1, (0, 7), [np.zeros(0, np.uint8)])  # an invitation of long ago
            pool.version = 8
            ready, reasons = pool.invite(1, "x: 1", patience(5))
            pool.announce([0, 1], 9)
            return ready, reasons
        return pool.wait(lambda: "x: 1", lambda: False)

    (ready, reasons), invitation = run_threads(2, work, timeout=patience(20))
    assert ready == [1] and reasons == []
    assert invitation.version == 9 and invitation.members == (0, 1)


@pytest.mark.parametrize("strategy", [None, "PartitionedPS"])
@pytest.mark.parametrize("messages", range(40, 200, 40))
def test_a_dead_rank_is_replaced_by_a_waiting_process(messages, strategy):
    expected, _ = alone()

    def work(c):
        mortal(c, 2, messages)
        try:
            return resized(c, {}, strategy=strategy, elastic=True, policies=[KeepSize()])
        except Killed:
            return None

    found = run_threads(3, work, spares=1, timeout=patience(20))
    assert found[2] is None
    assert [found[r][0].status for r in (0, 1, 3)] == ["finished"] * 3
    assert found[0][2].sizes[-1] == [30, 3]
    for rank in (0, 1, 3):
        trainer = found[rank][1]
        for name, value in expected.items():
            np.testing.assert_allclose(values(trainer)[name], value, 1e-10, 1e-12, err_msg=name)


def test_a_process_that_others_train_without_makes_no_call(tmp_path):
    """It would wait for ranks that never come."""
    calls = {
        "step": lambda t: t.step(cavs.batch(GRAPHS[:4])),
        "evaluate": lambda t: t.evaluate(cavs.DataLoader(GRAPHS[:8], 4)),
        "save": lambda t: t.save(tmp_path / "m"),
    }

    def work(c):
        trainer = make(c)
        if c.rank == 2:  # a spare
            assert np.isfinite(calls["evaluate"](trainer)["loss"])
            with pytest.raises(CommunicationError, match="step on a process"):
                calls["step"](trainer)
        trainer.fit(loader(), epochs=1, progress=False, policies=[Planned({3: 1})])
        if c.rank == 0:
            return
        for name, call in calls.items():
            with pytest.raises(CommunicationError, match=f"{name} on a process that others train"):
                call(trainer)
        trainer.close()

    run_threads(2, work, spares=1, timeout=patience(20))


def test_groups_that_are_no_more_leave_no_thread():
    before = set(threading.enumerate())
    run_threads(4, resized, spares=2, timeout=patience(20))
    assert [t.name for t in set(threading.enumerate()) - before] == []
