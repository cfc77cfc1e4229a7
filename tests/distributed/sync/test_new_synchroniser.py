"""A new synchroniser is one file: it verifies, is written to JSON, priced, and trains."""

import numpy as np
import pytest

import cavs
from cavs.distributed import Strategy, Trainer
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm import run_threads
from cavs.distributed.planning.cost import bytes_by_rank, predict, simulate
from cavs.distributed.strategy import GraphConfig, NodeConfig, register, to_text, variables_of
from cavs.distributed.strategy.expression import REGISTRY
from cavs.distributed.strategy.text import from_text
from cavs.distributed.strategy.verify import problems
from cavs.distributed.sync import AllReduce
from cavs.errors import ConfigError
from tests.distributed.test_trainer import BATCHES, Tree

TWO = ResourceSpec.local(2)


@pytest.fixture(scope="module", autouse=True)
def mean_of_all():
    """The synchroniser, which other tests do not know."""
    from tests.distributed.sync.mean_of_all import MeanOfAll

    REGISTRY[MeanOfAll.type] = MeanOfAll
    yield MeanOfAll
    del REGISTRY[MeanOfAll.type]


def strategy_of(sync):
    nodes = [NodeConfig(name=v.name, synchroniser=sync) for v in variables_of(Tree())]
    return Strategy(graph=GraphConfig(replicas=TWO.replicas), nodes=tuple(nodes))


def trained(strategy):
    def work(c):
        t = Trainer(Tree(), cavs.optim.SGD(lr=0.1), strategy=strategy, communicator=c, threads=1)
        for graphs in BATCHES[:4]:
            t.advance(cavs.batch(graphs))
        values = {name: p.value.copy() for name, p in t.parameters.items()}
        kinds = {type(e).__name__ for e in t.session.exchanges}
        t.close()
        return values, kinds

    return run_threads(2, work)


def test_it_trains_as_all_reduce_does(mean_of_all):
    (values, kinds), (others, _) = trained(strategy_of(mean_of_all()))
    (expected, _), _ = trained(strategy_of(AllReduce(group=None)))
    assert kinds == {"GatherAndAdd", "SparseAllGather"}
    for name, value in values.items():  # two terms have one sum in any order
        np.testing.assert_array_equal(value, others[name])
        np.testing.assert_array_equal(value, expected[name])


def test_it_is_verified_written_and_priced(mean_of_all):
    strategy, variables = strategy_of(mean_of_all()), variables_of(Tree())
    assert problems(strategy, variables, TWO) == []
    assert from_text(to_text(strategy)) == strategy
    dense = [v for v in variables if not v.sparse]
    alone = Strategy(graph=strategy.graph, nodes=tuple(strategy.node(v.name) for v in dense))
    assert bytes_by_rank(alone, dense).tolist() == [sum(v.nbytes + 8 for v in dense)] * 2
    assert predict(strategy, variables, TWO).seconds > 0
    assert simulate(strategy, variables, TWO).seconds > 0


def test_two_synchronisers_cannot_have_one_type(mean_of_all):
    class Other(AllReduce):
        type = mean_of_all.type

    with pytest.raises(ConfigError, match="there is already a synchroniser mean_of_all"):
        register(Other)
    assert REGISTRY[mean_of_all.type] is mean_of_all
