"""State of replicas that differ: at loads and resumptions, and under other strategies."""

import numpy as np
import pytest

import cavs
from cavs import nn
from cavs.distributed.comm import run_threads
from cavs.distributed.strategy import GraphConfig, NodeConfig, Strategy
from cavs.distributed.sync import SMA, AllReduce
from cavs.train import Monitor, Policy
from cavs.train.checkpoint import read_checkpoint
from cavs.train.policies import ExchangeSchedule, SwitchStrategy
from tests.distributed.sync.test_merged_replicas import GRAPHS, differ, loader, trainer_of, values
from tests.distributed.sync.test_replicas import Chain


def mixed(size):
    """Return a strategy with SMA for the cell and all-reduce for the output."""
    names = Chain().parameters()
    devices = tuple(f"localhost:CPU:{i}" for i in range(size))
    nodes = [
        NodeConfig(name=n, synchroniser=AllReduce() if n.startswith("output") else SMA())
        for n in names
    ]
    return Strategy(graph=GraphConfig(replicas=devices), nodes=nodes)


def test_reduced_parameters_are_clipped_alike():
    def work(c):
        trainer = trainer_of(c, mixed(3), cavs.optim.SGD(lr=0.5), max_norm=0.05)
        for batch in [*loader(), *loader()]:
            trainer.advance(batch)
        return values(trainer)

    first, second, _ = run_threads(3, work)
    assert differ({"w": first["cell.W"]}, {"w": second["cell.W"]})
    for name in ("output.weight", "output.bias"):
        assert first[name].tobytes() == second[name].tobytes()


def test_values_that_are_equal_keep_their_bits():
    def work(c):
        trainer = trainer_of(c, "SMA", dtype=np.float32)
        trainer.advance(next(iter(loader())))
        rng = np.random.default_rng(1)
        for p in trainer.parameters.values():
            p.value = rng.standard_normal(p.shape).astype(np.float32)
        before = values(trainer)
        trainer.session.replicas.average()
        return not differ(before, values(trainer))

    assert run_threads(3, work) == [True] * 3


def test_a_parameter_frozen_while_replicas_differ_becomes_their_mean():
    def work(c):
        trainer = trainer_of(c, "SMA")
        trainer.advance(next(iter(loader())))
        own = values(trainer)["output.bias"]
        mean = np.mean(c.all_gather(own), axis=0)
        trainer.parameters["output.bias"].trainable = False
        trainer.fit(loader(), epochs=1, progress=False)
        return values(trainer)["output.bias"], mean

    (a, mean), (b, _) = run_threads(2, work)
    assert a.tobytes() == b.tobytes()
    np.testing.assert_allclose(a, mean, rtol=1e-12)


def test_a_checkpoint_before_the_first_step_has_the_values_of_rank_0(tmp_path):
    path = tmp_path / "c.safetensors"

    def work(c):
        trainer = trainer_of(c, mixed(2))
        for p in trainer.parameters.values():
            p.value[...] = 10.0 * c.rank
        trainer.save(path)

    run_threads(2, work)
    assert all((array == 0).all() for array in read_checkpoint(path).parameters.values())


class Seen(Policy):
    """Notes the parameters after every step, and stops after one of them."""

    def __init__(self, trainer, last=None):
        self.trainer, self.last, self.values = trainer, last, []

    def after_step(self, run):
        self.values.append(values(self.trainer))
        if run.step == self.last:
            run.stop()


@pytest.mark.parametrize("begun", [False, True])
def test_replicas_resume_although_the_strategy_comes_with_a_policy(tmp_path, begun):
    path = tmp_path / "c.safetensors"

    def fit(c, last=None, start=None):
        trainer = trainer_of(c, None, save_replicas=True)
        if start and begun:
            trainer.begin()
        if start:
            trainer.resume(start)
        seen = Seen(trainer, last)
        policies = [SwitchStrategy(2, "SMA"), seen]
        trainer.fit(loader(), epochs=2, progress=False, policies=policies, checkpoint=path)
        return seen.values

    whole = run_threads(2, fit)
    run_threads(2, lambda c: fit(c, last=5))
    for once, again in zip(whole, run_threads(2, lambda c: fit(c, start=path)), strict=True):
        assert len(again) == len(once) - 5
        assert not any(differ(a, b) for a, b in zip(once[5:], again, strict=True))


def test_a_parameter_may_be_called_replica(tmp_path):
    class Named(Chain):
        def __init__(self):
            super().__init__()
            self.replica = nn.Linear(4, 5)
            self.replica.weight.value = np.ones((4, 5))
            self.replica.bias.value = np.ones(5)
            del self.inner

        def loss(self, batch):
            self.inner = self.replica
            found = super().loss(batch)
            del self.inner
            return found

    def work(c, start=None):
        trainer = cavs.distributed.Trainer(
            Named(),
            cavs.optim.SGD(lr=0.1),
            communicator=c,
            dtype=np.float64,
            strategy="PartialExchange(budget=0.4, accumulate=True)",
            save_replicas=True,
            threads=1,
        )
        if start:
            trainer.resume(start)
        for batch in loader():
            trainer.advance(batch)
        trainer.save(tmp_path / "c.safetensors")
        return values(trainer)

    run_threads(2, work)
    first, second = run_threads(2, lambda c: work(c, tmp_path / "c.safetensors"))
    assert all(np.isfinite(value).all() for value in (*first.values(), *second.values()))


def test_monitors_see_own_gradients_where_replicas_are_resynchronised():
    class Local(Monitor):
        name, wants = "own", ("local",)

        def __init__(self):
            self.seen = []

        def observe(self, parameter, local, reduced):
            if parameter == "output.weight":
                self.seen.append(np.array(local))

    def work(c, strategy):
        trainer, monitor = trainer_of(c, strategy), Local()
        trainer.coordinator.watch([monitor])
        trainer.advance(next(iter(loader())))
        return monitor.seen[0]

    plain = run_threads(2, lambda c: work(c, "PartialExchange(budget=0.5)"))
    again = run_threads(2, lambda c: work(c, "PartialExchange(budget=0.5, resync=1000)"))
    for a, b in zip(plain, again, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert not np.allclose(plain[0], plain[1])


def test_a_budget_goes_on_within_an_epoch(tmp_path):
    path = tmp_path / "c.safetensors"

    class Budgets(Policy):
        def __init__(self, last=None):
            self.last, self.seen = last, []

        def after_step(self, run):
            self.seen.append(run.table["exchange_budget"])
            if run.step == self.last:
                run.stop()

    def work(c, last=None, start=None):
        trainer, budgets = trainer_of(c, None), Budgets(last)
        if start:
            trainer.resume(start)
        policies = [ExchangeSchedule("0:0.3"), budgets]
        trainer.fit(loader(), epochs=1, progress=False, policies=policies, checkpoint=path)
        return budgets.seen

    assert run_threads(2, lambda c: work(c, last=2)) == [[0.3] * 2] * 2
    assert run_threads(2, lambda c: work(c, start=path)) == [[0.3] * 2] * 2


def test_a_spare_with_a_strategy_of_its_own_takes_that_of_the_others():
    class Plan(Policy):
        def after_step(self, run):
            if run.step in (1, 4):
                run.resize({1: 2, 4: 3}[run.step])
            if run.step == 2:
                run.set_strategy(None)

    def work(c):
        trainer = trainer_of(c, mixed(3))
        data = cavs.DataLoader(GRAPHS, 6, shuffle=True, seed=1)
        result = trainer.fit(data, epochs=1, progress=False, policies=[Plan()])
        return result.status, trainer.strategy, trainer.communicator.size

    assert run_threads(3, work) == [("finished", None, 3)] * 3


def test_updates_of_stale_parameters_are_counted_on():
    class Plan(Policy):
        def after_step(self, run):
            if run.step in (2, 6):
                run.set_strategy({2: None, 6: "PS"}[run.step])

    def work(c):
        trainer = trainer_of(c, "PSLoadBalancing(staleness=1)")
        data = cavs.DataLoader(GRAPHS, 6, shuffle=True, seed=1)
        trainer.fit(data, epochs=1, progress=False, policies=[Plan()])
        return trainer.session.stale.updates

    counts = run_threads(2, work)
    assert counts[0] == counts[1]


def test_replicas_of_another_number_of_ranks_become_their_mean(tmp_path):
    path = tmp_path / "c.safetensors"

    def saved(c):
        trainer = trainer_of(c, "SMA", save_replicas=True)
        for batch in loader():
            trainer.advance(batch)
        trainer.save(path)
        return values(trainer)

    def resumed(c):
        trainer = trainer_of(c, "SMA", save_replicas=True)
        trainer.resume(path)
        trainer.begin()
        return values(trainer)

    first, *others = run_threads(3, saved)
    assert differ(first, others[0])
    mean = read_checkpoint(path).parameters
    for found in run_threads(2, resumed):
        assert not differ(found, mean)
    for one, again in zip([first, *others], run_threads(3, resumed), strict=True):
        assert not differ(one, again)
