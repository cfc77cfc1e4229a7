"""A rank whose shard has no vertex of a type trains the functions of all types as the others do."""

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads
from tests.oracle import drawn
from tests.runtime.plans import PlanCost, plan

RNG = np.random.default_rng(0)
TREE = plan([[], [], [0], [2, 1]], ["scan", "scan", "filter", "join"], RNG)
ALONE = [plan([[]], ["scan"], RNG, absent=("filter",)) for _ in range(4)]
BATCHES = [[TREE, *ALONE[:3]], ALONE, [*ALONE[:3], TREE]]


def train(trainer):
    return [trainer.advance(cavs.batch(graphs)).loss for graphs in BATCHES]


def test_stale_ranks_trace_features_of_types():
    def work(c):
        strategy, optimizer = "PSLoadBalancing(staleness=1)", cavs.optim.SGD(lr=0.1)
        with Trainer(PlanCost(), optimizer, communicator=c, strategy=strategy) as t:
            return train(t)

    assert np.isfinite(run_threads(2, work)).all()


@pytest.mark.parametrize("strategy", [None, "PartitionedPS"])
def test_types_on_one_rank_alone(strategy):
    model = drawn(PlanCost(), 0.5)
    session = cavs.Session(model, dtype=np.float64)
    expected = train(cavs.Trainer(model, cavs.optim.SGD(lr=0.1), session=session))

    def work(c):
        own, optimizer = drawn(PlanCost(), 0.5), cavs.optim.SGD(lr=0.1)
        with Trainer(own, optimizer, communicator=c, strategy=strategy, dtype=np.float64) as t:
            return train(t), {n: p.value.copy() for n, p in own.parameters().items()}

    for losses, values in run_threads(2, work):
        assert losses == pytest.approx(expected, rel=1e-10)
        for name, p in model.parameters().items():
            np.testing.assert_allclose(values[name], p.value, rtol=1e-9, atol=1e-12, err_msg=name)
