"""The cost of strategies that exchange models: they begin with a step, and some do not wait."""

from dataclasses import replace

import pytest

from benchmarks.clusters import nodes
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.planning.builders import REGISTRY, build
from cavs.distributed.planning.compute import Compute
from cavs.distributed.planning.cost import bytes_by_rank, predict, simulate
from cavs.distributed.strategy import Variable

W = Variable(name="W", shape=(1024, 1024))
PEERS = ["PeerAverage", "ADPSGD", "PeerAverage(mode='async')"]


def test_models_of_peers_travel_from_the_beginning_of_a_step():
    """An average with one peer costs a message, whatever the number of ranks; all-reduce more."""
    model, compute = [W], Compute(forward=0.5, backward=0.5)
    for size in (2, 4, 8):
        resources = nodes([(1, 10)] * size)
        bytes_of = {n: bytes_by_rank(build(n, model, resources), model) for n in PEERS}
        assert all((sent == W.nbytes).all() for sent in bytes_of.values())
    asked = simulate(build(PEERS[0], model, resources), model, resources)
    free = simulate(build(PEERS[2], model, resources), model, resources)
    assert asked.exposed > 0 and free.exposed == 0
    summed = simulate(build("SMA", model, resources), model, resources)
    assert asked.exposed < 0.8 * summed.exposed
    late = simulate(build("AllReduce", model, resources), model, resources, compute)
    hidden = simulate(build("SMA", model, resources), model, resources, compute)
    assert hidden.exposed == 0 < late.exposed
    assert predict(build("ADPSGD", model, resources), model, resources).sync_seconds > 0
    odd = bytes_by_rank(build("ADPSGD", model, ResourceSpec.local(3)), model)
    assert odd.tolist() == [W.nbytes, 2 * W.nbytes, W.nbytes]


def test_means_that_follow_the_update_are_hidden_by_nothing():
    """Lookahead exchanges updated values: not while backward runs, nor before other sums."""
    v = Variable(name="V", shape=(64,))
    model, resources = [W, v], nodes([(1, 10)] * 4)
    compute = Compute(forward=0.5, backward=0.5, ready={"W": 0.0, "V": 0.5})
    late, early = (
        build(name, model, resources) for name in ("Lookahead(every=1)", "SMA(alpha=0.5)")
    )
    alone = simulate(late, model, resources).seconds
    for strategy, exposed in ((late, alone), (early, 0.0)):
        found = simulate(strategy, model, resources, compute)
        assert found.exposed == pytest.approx(exposed)
        formula = predict(strategy, model, resources, compute=1.0)
        sync = predict(strategy, model, resources).sync_seconds
        assert formula.sync_seconds == pytest.approx(sync) and 0 < sync < 1
        assert formula.seconds == pytest.approx(1.0 + (sync if exposed else 0.0))
    sums = build("AllReduce", model, resources)
    mixed = replace(late, nodes=(late.node("W"), sums.node("V")))
    first, second = sorted(simulate(mixed, model, resources, compute).finished)
    assert 1.0 < first < second


# These send less: a part of the gradients, values in some steps, or a model to one rank.
FRUGAL = {"PartialExchange", "Lookahead", "PeerAverage", "ADPSGD"}


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - {"Poseidon", "auto"} - FRUGAL))
def test_shards_send_as_much_as_the_parameter(name):
    """Partitioning and placement change the sender, not the amount; factors are another amount."""
    model = [W, Variable(name="V", shape=(96, 512))]
    sent = bytes_by_rank(build(name, model, ResourceSpec.local(4)), model)
    total = sum(v.nbytes for v in model)
    assert sent.sum() == pytest.approx(2 * 3 * total, rel=1e-3)
