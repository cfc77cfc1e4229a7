"""The choice among builders and saved strategies by the cost model."""

import dataclasses

import pytest

from benchmarks.clusters import MODELS, TABLE, cluster, vgg16
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.planning.auto import CANDIDATES, compare, make_strategy
from cavs.distributed.planning.builders import build, builders_of_equal_replicas
from cavs.distributed.planning.compute import Compute
from cavs.distributed.planning.cost import predict, simulate
from cavs.distributed.strategy import Variable, in_order, save
from cavs.errors import ConfigError
from tests.distributed.planning.test_cost import B, E, W, flat_network


@pytest.mark.parametrize("where", sorted(TABLE))
@pytest.mark.parametrize("name", ["vgg16", "ncf_sparse", "tree_lstm"])
def test_auto_is_near_the_best_on_known_clusters(name, where):
    """Compare with every registered builder with its own defaults, candidate of auto or not.

    Costs are those of the cost model; test_auto.py tests whether it is right.
    """
    make, seconds = MODELS[name]
    model, resources = make(), cluster(where)
    compute = Compute(seconds / 3, seconds * 2 / 3)
    chosen = make_strategy("auto", model, resources, compute)
    mine = simulate(chosen, model, resources, compute).seconds
    for builder in sorted(set(builders_of_equal_replicas()) - {"auto"}):
        other = build(builder, model, resources)
        assert mine <= 1.1 * simulate(other, model, resources, compute).seconds


def test_comparison_is_sorted_without_duplicates():
    found = compare(CANDIDATES, [W, E, B], cluster("B2"))
    seconds = [candidate.simulation.seconds for candidate in found]
    assert seconds == sorted(seconds)
    digests = [candidate.strategy.digest for candidate in found]
    assert len(set(digests)) == len(digests)
    assert all(c.strategy.builder for c in found)


def test_auto_adapts_to_the_cluster():
    """With many nodes and one server, its card is the bottleneck."""
    model = vgg16()
    chosen = make_strategy("auto", model, cluster("B8"))
    slow = predict(build("PS", model, cluster("B8")), model, cluster("B8"))
    assert predict(chosen, model, cluster("B8")).sync_seconds < slow.sync_seconds / 4


def test_auto_takes_buckets_where_computation_hides_messages():
    """A dense model with large first parameters and a small last gradient."""
    large = [dataclasses.replace(W, name=n, factors=None) for n in "WV"]
    model = [*large, *(Variable(name=n, shape=(64,)) for n in "abc")]
    order = ["W", "V", "c", "b", "a"]
    resources = flat_network(4)
    found = make_strategy("auto", in_order(model, order), resources, Compute(0.5, 1.0))
    assert found.builder == "Buckets"
    exposed = simulate(found, in_order(model, order), resources, Compute(0.5, 1.0)).exposed
    assert exposed == pytest.approx(4 * (256 / 1e9 + 1e-3))  # for `a` alone, up a tree and down
    # If nothing hides them, messages count.
    assert make_strategy("auto", model, resources).builder != "Buckets"


def test_strategies_by_name_and_file(tmp_path):
    two = ResourceSpec.local(2)
    path = str(tmp_path / "s.json")
    save(build("PS", [W], two), path)
    assert make_strategy(path, [W], two).digest == make_strategy("PS", [W], two).digest
    with pytest.raises(ConfigError, match="says nothing about parameter b"):
        make_strategy(path, [W, B], two)
    with pytest.raises(ConfigError, match="there is no device localhost:CPU:1"):
        make_strategy(path, [W], ResourceSpec.local(1))
    with pytest.raises(ConfigError, match="no strategy builder"):
        make_strategy("automatic", [W], two)
    with pytest.raises(ConfigError, match="no trainable parameter"):
        make_strategy("auto", [], two)
