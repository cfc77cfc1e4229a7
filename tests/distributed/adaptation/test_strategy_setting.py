"""Policies change the strategy of a running training."""

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads
from cavs.errors import ConfigError
from cavs.train import Policy
from cavs.train.policies import ExchangeSchedule, NoiseExchange, SwitchStrategy
from tests.distributed.elastic.test_resize import GRAPHS
from tests.distributed.test_trainer import Tree

PLAN = {
    2: "PSLoadBalancing",
    4: "AllReduce(chunk=2)",
    6: "Parallax(staleness=0)",
    8: "Buckets",
    10: "PartitionedPS",
    12: None,
}


def loader():
    return cavs.DataLoader(GRAPHS[:64], 8, shuffle=True, seed=1)


def values(trainer):
    return {n: p.value.copy() for n, p in trainer.parameters.items()}


class Planned(Policy):
    """Changes a setting after the steps of a plan, and notes its value after every step."""

    def __init__(self, plan, name="strategy"):
        self.plan, self.setting, self.seen = plan, name, []

    def after_step(self, run):
        self.seen.append(run.table[self.setting])
        if run.step in self.plan:
            assert run.adapt(self.setting, self.plan[run.step])


def fit(c, policies, strategy=None, epochs=2, **options):
    trainer = Trainer(
        Tree(), cavs.optim.Adam(lr=0.02), communicator=c, dtype=np.float64, strategy=strategy
    )
    result = trainer.fit(loader(), epochs=epochs, progress=False, policies=policies, **options)
    return values(trainer), result, trainer


def alone():
    session = cavs.Session(Tree(), dtype=np.float64)
    trainer = cavs.Trainer(session.model, cavs.optim.Adam(lr=0.02), session=session)
    trainer.fit(loader(), epochs=2, progress=False)
    return values(trainer)


@pytest.mark.parametrize("size", [1, 3])
def test_synchronous_strategies_one_after_the_other_equal_one_process(size):
    def work(c):
        policy = Planned(PLAN)
        found, result, trainer = fit(c, [policy])
        return found, policy.seen, result.status, trainer.strategy

    expected = alone()
    for found, seen, status, strategy in run_threads(size, work):
        assert status == "finished"
        assert seen[:5] == [None, None, "PSLoadBalancing", "PSLoadBalancing", "AllReduce(chunk=2)"]
        assert strategy is None
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12)


def test_replicas_are_averaged_before_another_strategy():
    class Noting(Policy):
        def __init__(self):
            self.before = self.after = None

        def after_step(self, run):
            if run.step == 4:
                self.before = values(self.trainer)

        def before_step(self, run):
            if run.step == 4:
                self.after = values(self.trainer)

    def work(c):
        trainer = Trainer(
            Tree(), cavs.optim.SGD(lr=0.1), communicator=c, dtype=np.float64, strategy="SMA"
        )
        noting = Noting()
        noting.trainer = trainer
        policies = [SwitchStrategy(4), noting]
        trainer.fit(loader(), epochs=1, progress=False, policies=policies)
        mean = {n: np.mean(c.all_gather(v.ravel()), axis=0) for n, v in noting.before.items()}
        return noting.before, mean, noting.after, values(trainer), trainer.strategy

    results = run_threads(3, work)
    names = list(results[0][0])
    assert any(not np.array_equal(results[0][0][n], results[1][0][n]) for n in names)
    for _, mean, after, last, strategy in results:
        assert strategy is None
        for name in names:
            np.testing.assert_allclose(after[name].ravel(), mean[name], rtol=1e-12, atol=1e-15)
            assert last[name].tobytes() == results[0][3][name].tobytes()


def test_the_budget_follows_a_schedule():
    class Bins(Policy):
        def __init__(self):
            self.seen = []

        def after_step(self, run):
            strategy = self.trainer.strategy
            bins = 1 if strategy is None else strategy.leaves[0].sync.bins
            self.seen.append([run.epoch, bins, run.table["exchange_budget"]])

    def work(c):
        trainer = Trainer(Tree(), cavs.optim.SGD(lr=0.1), communicator=c, dtype=np.float64)
        bins = Bins()
        bins.trainer = trainer
        policies = [ExchangeSchedule("0:1;1:0.3;3:1.0"), bins]
        trainer.fit(loader(), epochs=4, progress=False, policies=policies)
        return bins.seen, values(trainer)

    (seen, first), (other, second) = run_threads(2, work)
    assert seen == other
    assert {tuple(x) for x in seen if x[0] in (1, 4)} == {(1, 1, 1.0), (4, 1, 1.0)}
    assert {x[2] for x in seen if x[0] in (2, 3)} == {0.3}
    assert all(x[1] > 1 for x in seen if x[0] in (2, 3))
    assert all(first[n].tobytes() == second[n].tobytes() for n in first)


def test_the_budget_follows_the_noise():
    def work(c):
        policy = NoiseExchange(first=0.5, power=0.5, least=0.2)
        log = Planned({}, "exchange_budget")
        fit(c, [policy, log], strategy="PartialExchange(budget=1.0)", epochs=3)
        return log.seen

    first, second = run_threads(2, work)
    assert first == second
    assert first[0] == 1.0
    assert 0.2 <= first[-1] < 1.0


def test_a_strategy_changes_together_with_the_number_of_ranks():
    class Both(Policy):
        def after_step(self, run):
            if run.step == 3:
                run.set_strategy("PSLoadBalancing")
                run.resize(2)
            if run.step == 6:
                run.set_strategy("Buckets")
                run.resize(3)

    def work(c):
        found, result, trainer = fit(c, [Both()])
        return found, result.status, trainer.strategy.builder

    expected = alone()
    for found, status, builder in run_threads(3, work):
        assert (status, builder) == ("finished", "Buckets")
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12)


def test_a_spare_joins_with_the_strategy_of_the_others():
    class Grows(Policy):
        def after_step(self, run):
            if run.step == 2:
                run.set_strategy("SMA(alpha=0.5)")
            if run.step == 4:
                run.resize(3)

    def work(c):
        found, result, trainer = fit(c, [Grows()])
        return found, result.status, trainer.strategy.builder, trainer.communicator.size

    results = run_threads(2, work, spares=1)
    assert [r[1:] for r in results] == [("finished", "SMA(alpha=0.5)", 3)] * 3
    for found, *_ in results:
        assert all(found[n].tobytes() == results[0][0][n].tobytes() for n in found)


def test_ranks_that_ask_for_different_strategies_change_nothing(capfd):
    class Differs(Policy):
        def after_step(self, run):
            if run.step == 2:
                assert not run.set_strategy("SMA" if run.rank else "PS")

    def work(c):
        return fit(c, [Differs()])[2].strategy

    assert run_threads(2, work) == [None, None]
    assert "ranks ask for different changes" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("strategy", "Nothing", "called 'Nothing'"),
        ("strategy", "PS(", "PS"),
        ("strategy", 3, "strategy is 3"),
        ("strategy", "plan.json", "a file of a strategy"),
        ("exchange_budget", 0, "budget is 0"),
        ("exchange_budget", "x", "budget is 'x'"),
    ],
)
def test_a_value_that_cannot_be_set(name, value, what):
    class Asks(Policy):
        def after_step(self, run):
            run.adapt(name, value)

    def work(c):
        with pytest.raises(ConfigError, match=what):
            fit(c, [Asks()])
        return True

    assert run_threads(2, work) == [True, True]


@pytest.mark.parametrize(
    ("schedule", "what"),
    [
        ("", "no EPOCH:FRACTION"),
        ("0:1;x", "'x' is no EPOCH:FRACTION"),
        ("5:0.1", r"epochs are \[5\]"),
        ("0:1;3:0.1;2:1", r"epochs are \[0, 3, 2\]"),
        ("0:1.5", r"1.5 is not in \(0, 1\]"),
        ("0:0", r"0 is not in \(0, 1\]"),
        ("0:1e", "'1e' is no number"),
    ],
)
def test_a_schedule_that_cannot_be_read(schedule, what):
    with pytest.raises(ConfigError, match=what):
        ExchangeSchedule(schedule)


def test_on_one_process_nothing_is_exchanged():
    session = cavs.Session(Tree(), dtype=np.float64)
    trainer = cavs.Trainer(session.model, cavs.optim.Adam(lr=0.02), session=session)
    policies = [ExchangeSchedule("0:0.1"), SwitchStrategy(2, "SMA"), NoiseExchange()]
    trainer.fit(loader(), epochs=2, progress=False, policies=policies)
    for name, value in alone().items():
        assert values(trainer)[name].tobytes() == value.tobytes()
