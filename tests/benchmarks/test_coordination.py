"""The simulated workers of the comparison of LB-BSP with other schemes."""

import itertools

import numpy as np
import pytest

from benchmarks import coordination as co
from benchmarks import lbbsp
from cavs.distributed.balance import Memoryless

TWO = co.Cluster("two", (co.Worker(0.0, 0.01), co.Worker(0.0, 0.03)), 40, noise=0.0)


def first(scheme, count, cluster=TWO):
    return list(itertools.islice(scheme(cluster.fresh(), None), count))


def test_bsp_waits_for_the_slowest():
    assert [u.seconds for u in first(co.bsp, 2)] == pytest.approx([1.2, 2.4])
    assert {u.samples for u in first(co.bsp, 2)} == {80}


def test_lb_bsp_reaches_the_even_split():
    seconds = [u.seconds for u in first(co.lbbsp(Memoryless), 5)]
    assert np.diff(seconds)[-1] == pytest.approx(0.6)  # 60 and 20 samples


def test_ssp_stays_within_its_bound_and_asp_does_not():
    free = first(co.stale(float("inf")), 40)
    bound = first(co.stale(2), 40)
    assert free[-1].seconds == pytest.approx(12.0, rel=0.05)  # 30 and 10 updates
    # In the end the fast worker waits for the slow one: as many updates of each.
    assert bound[-1].seconds == pytest.approx(40 / 2 * 1.2, rel=0.15)


def test_helpers_shorten_an_iteration_of_flexrr():
    (update,) = first(co.flexrr, 1)
    assert 0.6 <= update.seconds < 0.9


def test_backup_and_redundant_workers_shorten_a_step():
    cluster = co.Cluster("three", (*TWO.workers, TWO.workers[0]), 40, 0.0, spares=TWO.workers[:1])
    assert first(co.backup, 1, cluster)[0].seconds == pytest.approx(0.4)
    assert first(co.redundant, 1, cluster)[0].seconds == pytest.approx(0.4)
    assert first(co.backup, 1, cluster)[0].samples == 80


def test_stale_gradients_are_those_of_the_weights_that_a_worker_had():
    learner = co.Learner(0.5)
    updates = co.stale(float("inf"))(TWO.fresh(), learner)
    before = learner.weights
    for update in itertools.islice(updates, 3):
        assert update.stale is before or update.seconds > 0.4
        learner.apply(learner.gradient(update.stale, 8), update.share)
    assert not np.array_equal(before[0], learner.weights[0])


def test_a_network_is_trained_to_a_loss():
    seconds = co.time_to_loss(co.bsp, TWO, 2.15, [0.1], 100.0)
    assert 1.2 <= seconds < 100


def test_bounds_name_the_second_best():
    found = {"BSP": (1.0, 9.0), "ASP": (4.0, 8.0), "backup": (2.0, 6.0), "LB-BSP": (3.0, 4.0)}
    schemes = {n: {"samples": a, "seconds": b, "best": b} for n, (a, b) in found.items()}
    result = {"simulated": {"16 GPUs": schemes}}
    ((measure, found, _, holds),) = lbbsp.targets(result)
    assert "backup" in measure and found == "0.67" and holds == "yes"
    assert "0.44" in lbbsp.show(result)


def test_weights_are_those_of_one_process_or_of_equal_ranks():
    graphs = lbbsp.drawn_trees(sum(lbbsp.SHARES), True)
    for naive in (False, True):
        found = lbbsp.weighed(graphs, naive)
        total = sum(
            float(g.features["weight"][np.array(g.features["label"]) >= 0].sum()) for g in found
        )
        assert total == pytest.approx(1, rel=1e-4)
    weights = [float(g.features["weight"][0]) for g in lbbsp.weighed(graphs, True)]
    assert weights[0] < weights[-1]
