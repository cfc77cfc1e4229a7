"""One model of replicas that differ: evaluations, checkpoints, ends, deaths and errors."""

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads
from cavs.distributed.planning.builders import build
from cavs.distributed.strategy import GraphConfig, NodeConfig, Strategy, variables_of
from cavs.distributed.strategy.verify import problems
from cavs.distributed.sync import SMA, AllReduce, ParameterServer, PartialAllReduce
from cavs.errors import ConfigError, NumericsError
from cavs.train import Policy
from cavs.train.checkpoint import read_checkpoint
from cavs.train.monitors import NoiseScale
from tests.distributed.elastic.test_survivors import Killed, mortal
from tests.distributed.sync.test_replicas import Chain, chains
from tests.patience import patience

GRAPHS = chains(11, 48)


def loader(count=48):
    return cavs.DataLoader(GRAPHS[:count], 12, shuffle=True, seed=1)


def trainer_of(c, strategy, optimizer=None, **options):
    optimizer = optimizer or cavs.optim.Adam(lr=0.02)
    options = {"dtype": np.float64, "threads": 1} | options
    return Trainer(Chain(), optimizer, communicator=c, strategy=strategy, **options)


def values(trainer):
    return {n: p.value.copy() for n, p in trainer.parameters.items()}


def differ(a, b):
    return any(not np.array_equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize(
    "strategy",
    ["SMA", "Crossbow", "Lookahead", "PartialExchange(budget=0.4)", "PeerAverage(mode='async')"],
)
def test_an_evaluation_is_that_of_the_mean(strategy):
    def work(c):
        trainer = trainer_of(c, strategy)
        for batch in loader():
            trainer.advance(batch)
        own = values(trainer)
        found = trainer.evaluate(cavs.DataLoader(GRAPHS, 12))["loss"]
        assert not differ(own, values(trainer))
        every = [c.all_gather(np.ascontiguousarray(own[n].ravel())) for n in own]
        mean = [np.mean(parts, axis=0) for parts in every]
        return own, found, mean

    results = run_threads(3, work)
    assert differ(results[0][0], results[1][0])
    session = cavs.Session(Chain(), dtype=np.float64)
    for p, value in zip(session.model.parameters().values(), results[0][2], strict=True):
        p.value[...] = value.reshape(p.shape)
    alone = cavs.Trainer(session.model, cavs.optim.SGD(lr=1.0), session=session)
    expected = alone.evaluate(cavs.DataLoader(GRAPHS, 12))["loss"]
    assert [found for _, found, _ in results] == pytest.approx([expected] * 3, rel=1e-10)


def test_a_checkpoint_and_the_end_of_a_fit_hold_the_mean(tmp_path):
    path = tmp_path / "c.safetensors"

    class Noting(Policy):
        def __init__(self):
            self.last = {}

        def after_step(self, run):
            self.last = values(self.trainer)

    def work(c):
        trainer, policy = trainer_of(c, "SMA(alpha=0.2)"), Noting()
        policy.trainer = trainer
        trainer.fit(loader(), epochs=2, progress=False, checkpoint=path, policies=[policy])
        mine = {n: c.all_gather(v.ravel()) for n, v in policy.last.items()}
        mean = {n: np.mean(parts, axis=0) for n, parts in mine.items()}
        states = [s.copy() for own in trainer.states for s in own]
        return values(trainer), mean, policy.last, states

    results = run_threads(3, work)
    assert differ(results[0][2], results[1][2])
    stored = read_checkpoint(path)
    for found, mean, _, states in results:
        for name, value in found.items():
            np.testing.assert_allclose(value.ravel(), mean[name], rtol=1e-12, atol=1e-15)
            assert value.tobytes() == results[0][0][name].tobytes()
            assert stored.parameters[name].tobytes() == value.tobytes()
        for a, b in zip(states, results[0][3], strict=True):
            assert a.tobytes() == b.tobytes()

    def resumed(c):
        trainer = trainer_of(c, "SMA(alpha=0.2)")
        trainer.resume(path)
        trainer.begin()
        return values(trainer)

    for found in run_threads(2, resumed):
        assert not differ(found, results[0][0])


@pytest.mark.parametrize(
    "strategy", ["SMA(alpha=0.2)", "Crossbow", "Lookahead(every=3)", "PeerAverage", "ADPSGD"]
)
def test_saved_replicas_resume_with_the_same_bits(tmp_path, strategy):
    class Noting(Policy):
        def after_step(self, run):
            self.seen.append(values(self.trainer))

    def work(c, epochs, path, start=None):
        trainer, policy = trainer_of(c, strategy, save_replicas=True), Noting()
        policy.trainer, policy.seen = trainer, []
        if start:
            trainer.resume(start)
        trainer.fit(loader(), epochs=epochs, progress=False, checkpoint=path, policies=[policy])
        return policy.seen

    half, end = tmp_path / "half.safetensors", tmp_path / "end.safetensors"
    whole = run_threads(3, lambda c: work(c, 2, end))
    run_threads(3, lambda c: work(c, 1, half))
    for once, again in zip(whole, run_threads(3, lambda c: work(c, 2, half, half)), strict=True):
        for a, b in zip(once[len(again) :], again, strict=True):
            assert not differ(a, b)
    assert differ(whole[0][-1], whole[1][-1])


def test_every_replica_is_evaluated():
    def work(c):
        trainer, data = trainer_of(c, "Lookahead(every=50)"), cavs.DataLoader(GRAPHS, 12)
        for batch in loader():
            trainer.advance(batch)
        own = values(trainer)
        found = [values["loss"] for values in trainer.evaluate_replicas(data)]
        assert not differ(own, values(trainer))
        return own, found

    results = run_threads(3, work)
    session = cavs.Session(Chain(), dtype=np.float64)
    alone = cavs.Trainer(session.model, cavs.optim.SGD(lr=1.0), session=session)
    expected = []
    for own, _ in results:
        for name, p in session.model.parameters().items():
            p.value[...] = own[name]
        expected.append(alone.evaluate(cavs.DataLoader(GRAPHS, 12))["loss"])
    assert len(set(expected)) == 3
    for _, found in results:
        assert found == pytest.approx(expected, rel=1e-12)


def test_the_best_parameters_are_the_mean():
    def work(c):
        trainer = trainer_of(c, "SMA")
        dev = cavs.DataLoader(GRAPHS[:12], 12)
        result = trainer.fit(loader(), epochs=3, progress=False, dev=dev, restore_best=True)
        return values(trainer), result.best, trainer.evaluate(dev)["loss"]

    results = run_threads(2, work)
    assert not differ(results[0][0], results[1][0])
    for _, best, loss in results:
        assert loss == pytest.approx(best, rel=1e-12)


def test_survivors_go_on_with_their_own_replicas():
    def work(c):
        mortal(c, rank=2, messages=60)
        trainer = trainer_of(c, "Crossbow", elastic=True)
        try:
            for batch in loader():
                trainer.advance(batch)
        except Killed:
            return None
        own = values(trainer)
        trainer.fit(loader(), epochs=1, progress=False)
        return own, values(trainer), trainer.communicator.size

    first, second, third = run_threads(3, work, timeout=patience(20))
    assert third is None
    assert first[2] == second[2] == 2
    assert differ(first[0], second[0])
    assert not differ(first[1], second[1])
    assert all(np.isfinite(value).all() for value in first[1].values())


def test_a_gradient_that_is_not_finite_updates_no_replica():
    def work(c):
        trainer = trainer_of(c, "SMA")
        batches = list(loader())
        trainer.advance(batches[0])
        if c.rank == 1:
            trainer.parameters["output.bias"].value[0] = np.inf
        before = values(trainer)
        with pytest.raises(NumericsError):
            trainer.step(batches[1])
        assert not differ(before, values(trainer))
        return True

    assert run_threads(2, work) == [True, True]


def test_a_clipped_replica_keeps_to_its_own_norm():
    def work(c):
        optimizer = cavs.optim.SGD(lr=1.0)
        trainer = trainer_of(c, "Lookahead(every=50)", optimizer, max_norm=0.05)
        trainer.begin()
        before = values(trainer)
        outcome = trainer.advance(next(iter(loader())))
        after = values(trainer)
        return outcome.grad_norm, sum(np.sum((after[n] - before[n]) ** 2) for n in after) ** 0.5

    results = run_threads(3, work)
    assert len({norm for norm, _ in results}) == 1
    assert [moved for _, moved in results] == pytest.approx([0.05] * 3, rel=1e-9)


def test_monitors_see_the_part_that_is_reduced():
    def work(c):
        trainer, noise = trainer_of(c, "PartialExchange(budget=0.4)"), NoiseScale()
        trainer.fit(loader(), epochs=2, progress=False, monitors=[noise])
        with pytest.raises(ConfigError, match="keep those of"):
            other = trainer_of(c, "SMA")
            other.fit(loader(), epochs=1, progress=False, monitors=[NoiseScale()])
        return noise.value

    a, b = run_threads(2, work)
    assert a == b > 0


def two_ranks(*synchronisers, gradients="mean"):
    variables = variables_of(Chain())
    devices = ("localhost:CPU:0", "localhost:CPU:1")
    synchronisers = synchronisers * len(variables)
    nodes = [
        NodeConfig(name=v.name, synchroniser=s)
        for v, s in zip(variables, synchronisers, strict=False)
    ]
    strategy = Strategy(graph=GraphConfig(replicas=devices, gradients=gradients), nodes=nodes)
    return [problem.what for problem in problems(strategy, variables)]


@pytest.mark.parametrize(
    ("synchronisers", "gradients", "what"),
    [
        ([SMA(), ParameterServer(destination="localhost:CPU:0")], "mean", "owns"),
        ([SMA()], "sum", "gradients is 'sum'"),
        ([SMA(), SMA(alpha=0.2)], "mean", "has SMA"),
        ([PartialAllReduce(bins=2), PartialAllReduce(bins=3)], "mean", "have bins 2 and 3"),
    ],
)
def test_combinations_that_cannot_run(synchronisers, gradients, what):
    assert any(what in problem for problem in two_ranks(*synchronisers, gradients=gradients))


def test_all_reduce_goes_with_replicas_that_differ():
    assert two_ranks(SMA(), AllReduce()) == []


@pytest.mark.parametrize(
    ("builder", "what"),
    [
        ("PartialExchange(budget=0)", "budget is 0"),
        ("PartialExchange(budget=1.5)", "budget is 1.5"),
        ("PartialExchange(resync=-1)", "resync is -1"),
        ("PartialExchange(accumulate=1)", "accumulate is 1"),
        ("SMA(alpha=2)", "alpha is 2"),
        ("SMA(every=0)", "every is 0"),
        ("Crossbow(momentum='x')", "momentum is 'x'"),
        ("Lookahead(every=1.5)", "every is 1.5"),
        ("PeerAverage(select='near')", "select is 'near'"),
        ("PeerAverage(mode=1)", "mode is 1"),
        ("PeerAverage(seed=-1)", "seed is -1"),
        ("PeerAverage(timeout=-1)", "timeout is -1"),
        ("ADPSGD(seed=0.5)", "seed is 0.5"),
    ],
)
def test_options_of_builders_are_checked(builder, what):
    with pytest.raises(ConfigError, match=what):
        build(builder, variables_of(Chain()), None)
