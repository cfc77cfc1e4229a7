"""LB-BSP in training: shares follow the ranks' speeds, and the result is that of one process.

Ranks are threads with clocks set by the tests, so that no result depends on real time.
"""

import functools
import json
import threading

import numpy as np
import pytest

import cavs
from cavs.cli import main
from cavs.distributed.balance import PREDICTORS, PairBalancer, SpeedBalancer, StructureBalancer
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm import run_threads
from cavs.distributed.coordinator import RankCoordinator
from cavs.errors import CommunicationError, ConfigError, DataError
from tests.distributed.elastic.test_survivors import Killed, mortal
from tests.distributed.mpirun import needs_mpi4py
from tests.distributed.step.test_consensus import outcomes
from tests.distributed.step.test_stale_parameters import assert_same_bits, trainer, values_of
from tests.distributed.test_train_command import TOY, cavs_command
from tests.distributed.test_trainer import Tree, trees
from tests.patience import patience

DATA, BATCH, STEPS = trees(80, 11), 40, 60
SLOW = 3  # times, the last rank


class Watched:
    """A split that records the graphs of every rank."""

    def __call__(self, graphs, ranks):
        parts = super().__call__(graphs, ranks)
        self.asked.append([list(part) for part in parts])
        return parts


def balancer(kind, **options):
    made = type(f"Watched{kind.__name__}", (Watched, kind), {})(**options)
    made.asked = []
    return made


def slowed(t, seconds):
    """Let the clock of a rank show `seconds(rank, graphs)` after it has computed."""
    session, mine = t.session, []
    shard, finish = session.shard, session.synchronous_step.finish

    def sharded(batch):
        mine[:] = [shard(batch)]
        return mine[0]

    def finished(run, *rest):
        if mine:  # a rank that computes nothing has no shard
            run.compute_seconds = seconds(session.position[0], mine[0].local.num_graphs)
        return finish(run, *rest)

    session.shard, session.synchronous_step.finish = sharded, finished


def loader(**options):
    return cavs.DataLoader(DATA, BATCH, **{"shuffle": True, **options})


def alone(epochs, **options):
    model = Tree()
    session = cavs.Session(model, dtype=np.float64)
    t = cavs.Trainer(model, cavs.optim.SGD(lr=0.1), session=session)
    t.fit(loader(**options), epochs=epochs, progress=False)
    return {n: p.value for n, p in model.parameters().items()}


@pytest.fixture(scope="module")
def expected():
    return alone(STEPS // 2)


@functools.cache
def alone_in_small_batches():
    model = Tree()
    t = cavs.Trainer(model, cavs.optim.SGD(lr=0.1), session=cavs.Session(model, dtype=np.float64))
    t.fit(cavs.DataLoader(DATA, 8, shuffle=True), epochs=2, progress=False)
    return {n: p.value for n, p in model.parameters().items()}


def assert_near(values, expected, limit=1e-12):
    for name, value in expected.items():
        distance = np.linalg.norm(values[name] - value) / np.linalg.norm(value)
        assert distance <= limit, (name, distance)


def optimum(ranks):
    speeds = np.array([1.0] * (ranks - 1) + [1 / SLOW])
    return BATCH * speeds / speeds.sum()


KINDS = [(SpeedBalancer, {"predictor": make}) for make in PREDICTORS.values()]
KINDS += [(SpeedBalancer, {"lag": 0}), (PairBalancer, {}), (PairBalancer, {"lag": 1})]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_rank_slowed_three_times(kind, options, ranks, expected):
    """Counts are within one graph of the optimum in 40 steps; parameters equal one process's."""

    def work(c):
        split, noise = balancer(kind, **options), np.random.default_rng(c.rank)
        with trainer(c, split=split) as t:

            def seconds(rank, graphs):
                slow = SLOW if rank == ranks - 1 else 1
                return 0.01 * slow * graphs * noise.normal(1, 0.004)

            slowed(t, seconds)
            t.fit(loader(), epochs=STEPS // 2, progress=False)
        return values_of(t), split.asked

    results = run_threads(ranks, work)
    assert_same_bits([values for values, _ in results])
    assert_near(results[0][0], expected)
    asked = results[0][1]
    assert all(other == asked for _, other in results)
    counts = np.array([[len(part) for part in parts] for parts in asked])
    assert counts.shape == (STEPS, ranks) and (counts.sum(axis=1) == BATCH).all()
    assert counts[0].tolist() == [BATCH // ranks] * ranks
    # times of graphs dealt before its last move are ignored
    limit = 1 if options != {"lag": 1} else 2
    assert np.abs(counts[40:] - optimum(ranks)).max() <= limit
    times = (counts * ([1] * (ranks - 1) + [SLOW])).max(axis=1) / optimum(ranks)[0]
    assert kind is not SpeedBalancer or times[40:].max() <= 1.1


@pytest.mark.parametrize("kind", [SpeedBalancer, PairBalancer])
def test_ranks_that_only_own_parameters_have_no_share(kind, expected):
    def work(c):
        split = balancer(kind)
        options = {"strategy": "PSLoadBalancing(servers=1)", "resources": ResourceSpec.local(3)}
        with trainer(c, split=split, **options) as t:
            slowed(t, lambda rank, graphs: 0.01 * graphs * (1 + 2 * rank))
            t.fit(loader(), epochs=STEPS // 2, progress=False)
        return values_of(t), split.asked

    results = run_threads(3, work)
    for values, _ in results[:2]:
        assert_near(values, expected)
    assert results[0][1] == results[1][1] and results[2][1] == []
    assert np.abs([len(part) for part in results[0][1][-1]] - optimum(2)).max() <= 1


def test_every_rank_receives_the_use_of_cpu_and_memory():
    seen = {}

    class Spy(PREDICTORS["memoryless"]):
        def update(self, speed, cpu=0.0, memory=0.0):
            super().update(speed)
            seen.setdefault(threading.get_ident(), []).append((cpu, memory))

    def work(c):
        use = (0.1 * (c.rank + 1), 0.5 + 0.1 * c.rank)
        t = trainer(c, split=SpeedBalancer(predictor=Spy, usage=lambda: use))
        report = [t.advance(cavs.batch(DATA[:8])) for _ in range(2)][-1]
        return report.rank_reports, seen[threading.get_ident()]

    both = ((0.1, 0.5), (0.2, 0.6))
    for rank, (reports, told) in enumerate(run_threads(2, work)):
        assert tuple(report[:2] for report in reports) == both
        # A step is learned with the load at its start, by its own rank, which sends the speed.
        assert told == [(0, 0), both[rank]]
        assert all(report[2] > 0 for report in reports)


def test_no_more_graphs_for_full_memory():
    def work(c):
        full = 0.99 if c.rank == 0 else 0.2
        split = balancer(PairBalancer, usage=lambda: (0.0, full))
        t = trainer(c, split=split)
        slowed(t, lambda rank, graphs: graphs * [0.1, 0.2, 0.3][rank])
        t.fit(loader(), epochs=10, progress=False)
        return [len(part) for part in split.asked[-1]]

    counts, *others = run_threads(3, work)
    assert counts[0] == 14 and counts[1] > 13 > counts[2]
    assert others == [counts, counts]


def test_short_batches_and_changed_batch_sizes():
    for split in (SpeedBalancer(lag=0), PairBalancer(lag=0)):
        assert [len(p) for p in split(range(1), 2)] == [1, 0]  # fewer than ranks
        split.update([1.0, 1.0])
        assert [len(p) for p in split(range(9), 2)] == [5, 4]
        split.update([5.0, 12.0])
        counts = [len(p) for p in split(range(8), 2)]
        assert counts == ([6, 2] if isinstance(split, SpeedBalancer) else [4, 4])
        split.update([1.0, 1.0])
        split(range(30), 2)
        split.update(None)
    pairs = PairBalancer(lag=0)
    pairs(range(9), 2)
    pairs.update([1.0, 2.0])
    assert (pairs.rule.counts, pairs.rule.step) == ([5, 4], 1)
    pairs(range(64), 2)  # the first was the short last batch of an epoch
    pairs.update([1.0, 2.0])
    assert (sum(pairs.rule.counts), pairs.rule.step) == (64, 4)


def test_a_rank_too_slow_for_one_graph_is_named_once(capsys):
    def work(c):
        t = trainer(c, split=PairBalancer())
        slowed(t, lambda rank, graphs: graphs * [1.0, 1e3][rank])
        for _ in range(12):
            t.advance(cavs.batch(DATA[:4]))

    run_threads(2, work)
    said = capsys.readouterr().err
    assert said == (
        "cavs: iteration 6: worker 1 is slowest with 1 samples; training without it would be "
        "faster\n"
    )


# ---- a loader that looks ahead, and steps that fail ---------------------------------------------


@pytest.mark.parametrize("kind", [SpeedBalancer, PairBalancer, StructureBalancer])
@pytest.mark.parametrize("options", [{"cache": True, "shuffle": False}, {"prefetch": 8}])
def test_loaders_that_keep_batches_or_look_far_ahead(kind, options):
    """Their batches are divided when the steps begin, by the loader's own collate."""

    def work(c):
        seen = []

        def collate(graphs, ids):
            seen.append(len(graphs))
            return cavs.batch(graphs, ids.tolist())

        split = balancer(kind)
        t = trainer(c, split=split)
        slowed(t, lambda rank, graphs: 0.01 * graphs * (1 + rank))
        t.fit(loader(collate=collate, **options), epochs=3, progress=False)
        return values_of(t), split.asked, max(seen)

    first, second = run_threads(2, work, timeout=30)
    assert len(first[1]) == 6 and first[1] == second[1]
    assert first[2] < BATCH  # no rank collated the whole batch
    assert_near(first[0], alone(3, **options))


STALE = ["PSLoadBalancing(staleness=2)", "PSLoadBalancing(sync=False, servers=1)"]


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        (SpeedBalancer, None),
        (PairBalancer, None),
        *((StructureBalancer, s) for s in [None, *STALE]),
    ],
)
def test_a_training_follows_a_stopped_one(kind, strategy):
    """No thread is left waiting for times, and batches split ahead are discarded."""

    def work(c):
        split = kind(timeout=5.0)
        t = trainer(c, split=split, strategy=strategy, resources=ResourceSpec.local(c.size))
        train = cavs.DataLoader(DATA, 8, shuffle=True)
        asked = 0

        def stops(requested):
            nonlocal asked
            asked += 1
            return RankCoordinator.should_stop(t.coordinator, asked == 3 and c.rank == 0)

        t.coordinator.should_stop = stops
        with pytest.raises(KeyboardInterrupt):
            t.fit(train, epochs=2, progress=False)
        asked, steps = 9, t.steps
        t.fit(cavs.DataLoader(DATA, 8, shuffle=True), epochs=1, progress=False)
        t.close()
        return values_of(t), t.steps - steps

    results = run_threads(3, work, timeout=30)
    assert [steps for _, steps in results] == [10, 10, 10]
    assert_same_bits([values for values, _ in results])


@pytest.mark.parametrize("kind", [SpeedBalancer, PairBalancer, StructureBalancer])
def test_a_failed_step_leaves_no_times(kind):
    bad = [*DATA[:7], cavs.Graph([[]], {"token": [99], "label": [0]})]

    def work(c):
        split = kind(lag=0, timeout=5.0)
        t = trainer(c, split=split)
        t.advance(cavs.batch(DATA[:8]))
        with pytest.raises((cavs.errors.FeatureError, CommunicationError)):
            t.advance(cavs.batch(bad))
        for _ in range(3):
            t.advance(cavs.batch(DATA[:8]))
        return t.steps

    assert run_threads(2, work, timeout=30) == [4, 4]


def test_a_bad_graph_is_named_without_a_wait_for_times():
    """The loader tries graphs one by one to find it, without calling the balancer."""
    bad = [*DATA[:8], cavs.Graph([[]], {"token": [0]})]

    def work(c):
        t = trainer(c, split=StructureBalancer(timeout=5.0))
        t.fit(cavs.DataLoader(bad, 9), epochs=1, progress=False)

    for error in outcomes(2, work):  # one of the ranks cannot build its first batch
        assert "label" in str(error) and "batch 0 of epoch 0" in str(error)


@pytest.mark.parametrize("where", ["resume", "with", "evaluate"])
def test_an_error_on_one_rank_before_the_first_step(where, tmp_path):
    def work(c):
        t = trainer(c)
        if where == "evaluate":
            graphs = DATA[:8] if c.rank == 0 else [*DATA[:7], cavs.Graph([[]], {"label": [0]})]
            t.evaluate(cavs.DataLoader(graphs, 4))
        elif where == "resume" and c.rank == 1:
            t.resume(tmp_path / "nothing.safetensors")
        with t:
            if where == "with" and c.rank == 1:
                raise DataError("no such file")
            t.fit(loader(), epochs=1, progress=False)

    first, second = outcomes(2, work)
    assert isinstance(first, CommunicationError) and not isinstance(second, CommunicationError)
    assert f"rank 1: {type(second).__name__}: {second}" in str(first)


# ---- refusals, deaths and the command line ------------------------------------------------------


@pytest.mark.parametrize("kind", [SpeedBalancer, PairBalancer])
@pytest.mark.parametrize("how", ["fit", "advance"])
def test_asynchronous_ranks_do_not_know_each_others_times(kind, how):
    def work(c):
        t = trainer(c, strategy="PSLoadBalancing(staleness=1)", split=kind())
        if how == "fit":
            t.fit(loader(), epochs=1, progress=False)
        else:
            t.advance(cavs.batch(DATA[:8]))

    for error in outcomes(2, work):
        assert isinstance(error, ConfigError)
        assert f"{kind.__name__} with the strategy PSLoadBalancing(staleness=1)" in str(error)
        assert "do not know each other's times" in str(error)


@pytest.mark.parametrize("kind", [SpeedBalancer, PairBalancer, StructureBalancer])
def test_more_ranks_than_graphs(kind):
    def work(c):
        t = trainer(c, split=kind())
        t.fit(cavs.DataLoader(DATA, 2), epochs=1, progress=False)

    for error in outcomes(3, work):
        assert isinstance(error, ConfigError)
        assert f"{kind.__name__} balances batches of 2 graphs over 3 ranks" in str(error)


def test_ranks_that_split_differently():
    def work(c):
        t = trainer(c, split=lambda graphs, ranks: [range(c.rank + 2), range(c.rank + 2, 8)])
        before = values_of(t)
        with pytest.raises(ConfigError, match="computed 7 graphs of a batch of 8"):
            t.advance(cavs.batch(DATA[:8]))
        assert_same_bits([before, values_of(t)])

    run_threads(2, work)

    def other(c):
        split = SpeedBalancer() if c.rank else PairBalancer()
        trainer(c, split=split).advance(cavs.batch(DATA[:8]))

    for error in outcomes(2, other):
        assert "split: rank 0 has PairBalancer, rank 1 has SpeedBalancer" in str(error)


@pytest.mark.parametrize("strategy", [None, "PSLoadBalancing(servers=1)"])
@pytest.mark.parametrize("kind", [SpeedBalancer, PairBalancer, StructureBalancer])
@pytest.mark.parametrize(("victim", "messages"), [(1, 50), (1, 77), (2, 60), (2, 90)])
def test_survivors_start_to_learn_again(kind, victim, messages, strategy, capsys):
    """The same holds if it only owned parameters: the survivors keep their positions."""

    def work(c):
        mortal(c, victim, messages)
        split = balancer(kind, timeout=5.0)
        options = {"split": split, "elastic": True, "strategy": strategy}
        if strategy is not None:
            options["resources"] = ResourceSpec.local(3)
        t = trainer(c, **options)
        slowed(t, lambda rank, graphs: 0.01 * graphs * (1 + 2 * (rank == 0)))
        try:
            t.fit(cavs.DataLoader(DATA, 8, shuffle=True), epochs=2, progress=False)
        except Killed:
            return None
        return values_of(t), t.communicator.size, t.session.split, t.steps, split.asked

    results = run_threads(3, work, timeout=60)
    assert results[victim] is None
    computing = 2 if strategy is None or victim == 2 else 1
    for rank, (values, size, split, steps, asked) in enumerate(r for r in results if r is not None):
        assert (size, steps, isinstance(split, kind)) == (2, 20, True)
        assert split.ranks == (computing if rank < computing else None)
        if rank < computing:
            assert asked[-9:] == results[0][4][-9:]
            counts = [len(part) for part in asked[-1]]
            slow_rank_relieved = {SpeedBalancer: [2, 6], PairBalancer: [2, 6]}
            assert computing == 1 or counts == slow_rank_relieved.get(kind, counts)
        assert_near(values, alone_in_small_batches(), 1e-10)


def test_batches_of_another_split_are_divided_again():
    def work(c):
        t = trainer(c, split=SpeedBalancer())
        t.fit(cavs.DataLoader(DATA, 8), epochs=1, progress=False)
        ahead = t.coordinator.training.collate(DATA[:8], np.arange(8))
        assert t.session.shard(ahead) is ahead
        t.session.split = lambda graphs, ranks: [range(6), range(6, 8)]
        again = t.session.shard(ahead)
        return ahead.position == again.position, again.local.num_graphs, again.ids == ahead.ids

    assert run_threads(2, work) == [(True, 6, True), (True, 2, True)]


def test_misuse():
    for kind in (SpeedBalancer, PairBalancer):
        with pytest.raises(ConfigError, match="lag is -1"):
            kind(lag=-1)
        with pytest.raises(ConfigError, match="ranks is 0"):
            kind(0)
        with pytest.raises(ConfigError, match="of 2 ranks splits for 3"):
            kind(2)(DATA[:4], 3)
        split = kind()
        split(DATA[:4], 2)
        with pytest.raises(ConfigError, match="seconds of 2 workers"):
            split.update([1.0, float("nan")])
    with pytest.raises(ConfigError, match="of 3 ranks with a model of 2"):
        StructureBalancer(3, model=StructureBalancer(2).model)


@pytest.mark.mpi
@needs_mpi4py
@pytest.mark.parametrize(
    "balance", [["lb-bsp"], ["lb-bsp", "--predictor", "arima"], ["lb-bsp-gpu"]]
)
def test_from_the_command_line(balance, tmp_path):
    options = ["--balance", *balance, "--epochs", 2, "--quiet"]
    process = cavs_command("launch", "-n", 2, "train", TOY, "--out", tmp_path, *options)
    _, errors = process.communicate(timeout=patience(120))
    assert process.returncode == 0, errors
    lines = list(map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines()))
    assert lines[0]["balance"] == balance[0]
    first, second = (e["train_loss"] for e in lines if "train_loss" in e)
    assert second < first


# Errors that one process can find come before the search for other ranks.
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--balance", "fast"], "invalid choice: 'fast'"),
        (["--balance", "lb-bsp", "--predictor", "oracle"], "invalid choice: 'oracle'"),
        (["--predictor", "ema"], "--predictor ema with --balance equal"),
    ],
)
def test_refused_options_of_the_command_line(options, said, tmp_path, capsys):
    try:
        status = main(["train", TOY, "--out", str(tmp_path / "out"), *options])
    except SystemExit as end:
        status = end.code
    assert status not in (0, None)
    assert said in capsys.readouterr().err


@pytest.mark.mpi
@needs_mpi4py
def test_refused_options_on_ranks(tmp_path):
    """Two trainings run concurrently, because they wait more than they compute."""
    refused = {
        "balances batches of 1 graphs over 2 ranks": ["--batch-size", 1],
        "each other's times": ["--strategy", "PS(sync=False)"],
    }
    started = []
    for i, options in enumerate(refused.values()):
        train = ["train", TOY, "--out", tmp_path / str(i), "--balance", "lb-bsp", *options]
        started.append(cavs_command("launch", "-n", 2, *train))
    for said, process in zip(refused, started, strict=True):
        _, errors = process.communicate(timeout=patience(120))
        assert process.returncode != 0
        assert said in errors and "Traceback" not in errors
