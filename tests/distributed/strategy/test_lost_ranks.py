"""Strategies after some of their ranks died."""

import pytest

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.planning.builders import REGISTRY, build
from cavs.distributed.planning.cost import bytes_by_rank
from cavs.distributed.strategy import Variable
from cavs.distributed.strategy.ranks import without
from cavs.distributed.strategy.verify import problems
from cavs.distributed.sync import ParameterServer
from cavs.errors import ConfigError

VARIABLES = [
    Variable(name="table", shape=(40, 8), sparse=True, rows=5),
    *(Variable(name=f"w{i}", shape=(8, n), factors=3) for i, n in enumerate([16, 4, 24, 12])),
    Variable(name="b", shape=(9,)),
]
SHAPES = {variable.name: variable.shape for variable in VARIABLES}


@pytest.mark.parametrize("lost", [[0], [3], [1, 2], [0, 1, 3]])
@pytest.mark.parametrize("name", REGISTRY)
def test_the_result_is_a_strategy_of_the_survivors(name, lost):
    made = build(name, VARIABLES, ResourceSpec.local(4))
    left = without(made, lost, SHAPES)
    kept = [d for rank, d in enumerate(made.graph.ranks) if rank not in lost]
    assert list(left.graph.ranks) == kept
    assert problems(left, VARIABLES, ResourceSpec.local(4)) == []
    assert len(bytes_by_rank(left, VARIABLES)) == 4 - len(lost)
    for before, after in zip(made.leaves, left.leaves, strict=True):
        if isinstance(before.sync, ParameterServer) and before.sync.destination in kept:
            assert after == before


def test_the_order_of_deaths_does_not_matter():
    made = build("PSLoadBalancing", VARIABLES, ResourceSpec.local(4))
    assert without(made, [1, 3], SHAPES) == without(made, (3, 1), SHAPES)


def test_parameters_of_lost_ranks_go_to_the_least_loaded():
    made = build("PartitionedPS", VARIABLES, ResourceSpec.local(4))
    left = without(made, [2], SHAPES)
    sizes = {"table": 320, "w0": 128, "w1": 32, "w2": 192, "w3": 96, "b": 9}
    loads = dict.fromkeys(left.graph.ranks, 0.0)
    for node in left.nodes:
        for leaf in node.leaves:
            loads[leaf.sync.destination] += sizes[node.name] / len(node.leaves)
    assert max(loads.values()) <= 1.5 * min(loads.values())


def test_dedicated_servers_inherit_first_and_may_all_die():
    made = build("PSLoadBalancing(servers=2)", VARIABLES, ResourceSpec.local(4))
    dedicated = made.graph.servers
    left = without(made, [2], SHAPES)
    assert {leaf.sync.destination for leaf in left.leaves} == {dedicated[1]}
    none = without(made, [2, 3], SHAPES)
    assert none.graph.servers == ()
    assert {leaf.sync.destination for leaf in none.leaves} == set(made.graph.replicas)


def test_without_a_computing_rank():
    made = build("PSLoadBalancing(servers=2)", VARIABLES, ResourceSpec.local(3))
    with pytest.raises(ConfigError, match="all 1 ranks that compute are gone"):
        without(made, [0], SHAPES)
