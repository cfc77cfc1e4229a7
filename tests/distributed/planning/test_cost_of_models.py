"""The cost of strategies that exchange models: they begin with a step, and some do not wait."""

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


# These send less: a part of the gradients, values in some steps, or a model to one rank.
FRUGAL = {"PartialExchange", "Lookahead", "PeerAverage", "ADPSGD"}


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - {"Poseidon", "auto"} - FRUGAL))
def test_shards_send_as_much_as_the_parameter(name):
    """Partitioning and placement change the sender, not the amount; factors are another amount."""
    model = [W, Variable(name="V", shape=(96, 512))]
    sent = bytes_by_rank(build(name, model, ResourceSpec.local(4)), model)
    total = sum(v.nbytes for v in model)
    assert sent.sum() == pytest.approx(2 * 3 * total, rel=1e-3)
