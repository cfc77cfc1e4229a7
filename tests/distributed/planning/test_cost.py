"""The cost model: bytes against messages counted one by one, times against worked examples."""

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.clusters import cluster, nodes, vgg16
from cavs.distributed.cluster.resources import Network, Node, ResourceSpec
from cavs.distributed.planning.builders import REGISTRY, build
from cavs.distributed.planning.compute import Compute
from cavs.distributed.planning.cost import (
    FEATURES,
    Load,
    Operation,
    bytes_by_rank,
    features,
    plan,
    predict,
    sent_bytes,
    simulate,
)
from cavs.distributed.strategy import Variable, by_gradient, in_order
from cavs.distributed.sync.operation import HEADER_BYTES, INDEX_BYTES, SMALL
from cavs.errors import ConfigError

MB = 1 << 20
W = Variable(name="W", shape=(1024, 1024), factors=8)
E = Variable(name="E", shape=(1000, 60), sparse=True, rows=50)
B = Variable(name="b", shape=(64,))


def counted(operation):
    """Return bytes by rank, from the messages of the algorithms themselves."""
    ranks, sent = operation.ranks, dict.fromkeys(operation.ranks, 0.0)
    n, own = len(ranks), operation.bytes_of_ranks()
    if operation.collective == "all_reduce" and own[0] <= SMALL:
        for i, rank in enumerate(ranks):  # up and down a binomial tree
            step = 1
            while step < n:
                if i % (2 * step) == step:
                    sent[rank] += own[0]
                    sent[ranks[i - step]] += own[0]
                step *= 2
    elif operation.collective == "all_reduce":
        for rank in ranks:
            for _ in range(2 * (n - 1)):
                sent[rank] += own[0] / n
    elif operation.collective == "all_gather":
        for i, rank in enumerate(ranks):
            for step in range(n - 1):
                sent[rank] += own[(i - step) % n] + HEADER_BYTES
    elif operation.collective == "all_to_all":
        for i, rank in enumerate(ranks):
            for _ in range(n - 1):
                sent[rank] += own[i] / n + HEADER_BYTES
    elif operation.collective == "request":
        for i, rank in enumerate(ranks):
            sent[rank] += own[i]
    elif operation.collective in ("reduce", "gather"):
        for i, rank in enumerate(ranks):
            if rank != operation.root:
                sent[rank] += own[i] + HEADER_BYTES * (operation.collective == "gather")
    else:
        for i, rank in enumerate(ranks):
            if rank != operation.root:
                sent[operation.root] += own[i]
    return sent


@given(
    st.sampled_from(
        ["all_reduce", "all_gather", "all_to_all", "request", "reduce", "gather", "broadcast"]
    ),
    st.integers(2, 9),
    st.sampled_from([8.0, 1e6]),
    st.integers(0, 8),
    st.booleans(),
)
def test_bytes_are_those_of_the_messages(kind, n, nbytes, root, uneven):
    ranks = tuple(range(1, n + 1))
    sizes = nbytes
    if uneven and kind in ("all_gather", "gather", "request"):
        sizes = tuple(nbytes * (i + 1) for i in range(n))
    operation = Operation(kind, ranks, sizes, ranks[root % n])
    expected = counted(operation)
    sent = sent_bytes(operation, n + 3)
    assert sent.tolist() == pytest.approx([expected.get(r, 0.0) for r in range(n + 3)])


def test_worked_bytes():
    four = ResourceSpec.local(4)
    size = W.nbytes
    assert bytes_by_rank(build("AllReduce", [W], four), [W]).tolist() == [1.5 * size] * 4
    assert bytes_by_rank(build("PS", [W], four), [W]).tolist() == [3 * size] + [size] * 3
    factors = bytes_by_rank(build("Poseidon", [W], four), [W])
    assert factors.tolist() == [3 * (8 * 2048 * 4 + HEADER_BYTES)] * 4
    half = bytes_by_rank(build("AllReduce(compressor='float16')", [W], four), [W])
    assert half.tolist() == [1.5 * size / 2 + 2 * 3 * HEADER_BYTES] * 4
    assert bytes_by_rank(build("AllReduce", [W], ResourceSpec.local(1)), [W]).tolist() == [0]


def test_the_columns_of_poseidons_table():
    """Sends and receives of a node that is server and worker: 58.7 million floats; of SFB 3.7."""
    model = [Variable(name=f"w{i}", shape=(4096, 512), factors=32) for i in range(8)]
    eight = ResourceSpec.local(8)
    sent = bytes_by_rank(build("PSLoadBalancing", model, eight), model) / 4
    assert 2 * sent == pytest.approx(np.full(8, 58_720_256))
    whole = [Variable(name="w", shape=(4096, 4096), factors=32)]
    factors = bytes_by_rank(build("Poseidon", whole, eight), whole) / 4
    assert factors * 2 == pytest.approx(np.full(8, 2 * 32 * 7 * 8192), rel=1e-4)
    ring = bytes_by_rank(build("AllReduce", whole, eight), whole) / 4
    assert 2 * ring == pytest.approx(np.full(8, 58_720_256))


def test_sparse_bytes():
    two, row = ResourceSpec.local(2), 60 * 4 + INDEX_BYTES
    gathered = bytes_by_rank(build("AllReduce", [E], two), [E])
    assert gathered.tolist() == [50 * row + HEADER_BYTES] * 2
    union = 1000 * (1 - 0.95**2)
    served = bytes_by_rank(build("PS", [E], two), [E])
    assert served.tolist() == pytest.approx([union * row, 50 * row + HEADER_BYTES])
    load = Load(rows={"E": [np.arange(40), np.arange(30, 90)]}, factors={})
    served = bytes_by_rank(build("PS", [E], two), [E], load)
    assert served.tolist() == pytest.approx([90 * row, 60 * row + HEADER_BYTES])
    gathered = bytes_by_rank(build("AllReduce", [E], two), [E], load)
    assert gathered.tolist() == [40 * row + HEADER_BYTES, 60 * row + HEADER_BYTES]
    # All rows are in the first half: the owner of the second receives headers alone.
    cut = bytes_by_rank(build("PartitionedPS", [E], two), [E], load)
    assert cut.tolist() == pytest.approx([90 * row + HEADER_BYTES, 60 * row + HEADER_BYTES])


def test_a_table_is_gathered_at_once_however_it_is_cut():
    """Its messages are counted as they are sent."""
    two, model = ResourceSpec.local(2), [E, Variable(name="v", shape=(8,))]
    whole, cut = (build(name, model, two) for name in ("AllReduce", "PartitionedAR"))
    assert cut.nodes[0].parts == 2
    (_, one), (_, several) = plan(whole, model), plan(cut, model)
    assert one.leaves == ("E",) and several.leaves == ("E/part_0", "E/part_1")
    assert one.operations == several.operations


def test_factors_travel_one_parameter_at_a_time():
    model = [W, Variable(name="V", shape=(512, 1024), factors=2)]
    strategy = build("Poseidon", model, ResourceSpec.local(2))
    first, second = plan(strategy, model)
    assert (first.leaves, second.leaves) == (("V",), ("W",))
    assert first.operations[0].nbytes == (2 * 1536 * 4,) * 2


def test_measured_factors_replace_expected_ones():
    two = ResourceSpec.local(2)
    load = Load(rows={}, factors={"W": [2, 3]})
    sent = bytes_by_rank(build("Poseidon", [W], two), [W], load)
    assert sent.tolist() == [n * 2048 * 4 + HEADER_BYTES for n in (2, 3)]


def test_two_levels_use_the_network_once_per_node():
    gpus = nodes([(4, 10)] * 3)
    flat = plan(build("PS(two_level=False)", [W], gpus), [W])
    (chain,) = plan(build("PS(local_replication=True)", [W], gpus), [W])
    assert [op.collective for op in flat[0].operations] == ["reduce", "broadcast"]
    assert len(flat[0].operations[0].ranks) == 12
    kinds = [(op.collective, op.ranks) for op in chain.operations]
    local = [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)]
    leaders = ("reduce", (0, 4, 8)), ("broadcast", (0, 4, 8))
    assert kinds == [("reduce", r) for r in local] + list(leaders) + [
        ("broadcast", r) for r in local
    ]


@pytest.mark.parametrize("option", ["local_replication=True", "two_level=True"])
def test_within_one_node_replicas_communicate_directly(option):
    """The run does the same: replicas of one node communicate with the servers directly."""
    three, model = ResourceSpec.local(3), [W, E, B]
    plain = build("PSLoadBalancing(servers=1)", model, three)
    asked = build(f"PSLoadBalancing(servers=1, {option})", model, three)
    assert plan(asked, model) == plan(plain, model) and asked.digest != plain.digest


def test_dedicated_servers_contribute_nothing():
    mixed = ResourceSpec(nodes=(Node(address="a", gpus=(0, 1), chief=True), Node(address="b")))
    strategy = build("BytePS(two_level=False)", [W], mixed)
    sent = bytes_by_rank(strategy, [W])
    assert sent.tolist() == [W.nbytes, W.nbytes, 2 * W.nbytes]


def test_groups_leave_in_the_order_of_backward():
    model = [Variable(name=f"v{i}", shape=(9,)) for i in range(5)]
    chains = plan(build("AllReduce(chunk=2)", model, ResourceSpec.local(2)), model)
    assert [chain.leaves for chain in chains] == [("v4",), ("v2", "v3"), ("v0", "v1")]


def test_buckets_are_filled_in_the_order_in_which_gradients_are_done():
    """The last gradient, after which nothing is computed, is sent alone."""
    names, sizes = "abcde", (2, 1, 3, 9, 1)  # MB, in buckets of 4
    model = [Variable(name=n, shape=(s * MB // 4,)) for n, s in zip(names, sizes, strict=True)]
    model.append(dataclasses.replace(E, name="t"))
    strategy = build("Buckets", model, ResourceSpec.local(2))

    def chains(order=""):
        return [chain.leaves for chain in plan(strategy, in_order(model, order))]

    assert chains() == [("t",), ("e",), ("d",), ("c", "b"), ("a",)]
    assert chains("tadbce") == [("t",), ("a",), ("d",), ("b", "c"), ("e",)]
    assert chains("ecbadt") == [("e", "c"), ("b", "a"), ("d",), ("t",)]
    sent = plan(strategy, in_order(model, "tadbce"))[3].operations
    assert [(o.collective, o.nbytes, o.in_place) for o in sent] == [("all_reduce", 4 * MB, True)]


def test_gradients_follow_the_known_order():
    model = [B, W, dataclasses.replace(W, name="V")]
    groups = build("AllReduce(chunk=2)", model, ResourceSpec.local(2))
    ordered = in_order(model, ["V", "b", "W"])
    assert [v.name for v in by_gradient(ordered)] == ["V", "b", "W"]
    assert [chain.leaves for chain in plan(groups, ordered)] == [("V",), ("b", "W")]
    assert Compute(1.0, 3.0).gradient_times(ordered) == {"V": 2.0, "b": 3.0, "W": 4.0}
    assert Compute(1.0, 3.0).gradient_times(model) == {"V": 2.0, "W": 3.0, "b": 4.0}
    # A parameter that is frozen, or not in this program, delays nothing.
    (first, *_) = by_gradient(in_order(model, ["W", "b"]))
    assert first.name == "V"


def test_warm_up_changes_with_the_step():
    strategy = build(
        "AllReduce(compressor='topk(ratio=0.01, warm_up=10)')", [W], nodes([(1, 1)] * 2)
    )
    sent = [bytes_by_rank(strategy, [W], step=step)[0] for step in (0, 5, 10)]
    assert sent[0] > sent[1] > sent[2] == pytest.approx(W.size * 0.01 * 8, rel=1e-3)


# ---- time -------------------------------------------------------------------------------------


def flat_network(workers, **network):
    fields = {"bandwidth": 1e9, "latency": 1e-3, **network}
    return ResourceSpec(
        nodes=tuple(Node(address=f"h{i}", chief=i == 0) for i in range(workers)),
        network=Network(**fields),
    )


def test_ring_time():
    """Equation 8.3 with the number of consecutive messages of a ring."""
    found = predict(build("AllReduce", [W], flat_network(4)), [W], flat_network(4))
    assert found.sync_seconds == pytest.approx(1.5 * W.nbytes / 1e9 + 6e-3)
    assert found.seconds == found.sync_seconds
    busy = predict(build("AllReduce", [W], flat_network(4)), [W], flat_network(4), compute=1.0)
    assert busy.seconds == 1.0
    summing = flat_network(4, reduce_bandwidth=1e8)
    found = predict(build("AllReduce", [W], summing), [W], summing)
    assert found.sync_seconds == pytest.approx(1.5 * W.nbytes / 1e9 + 6e-3 + 0.75 * W.nbytes / 1e8)


def test_ranks_of_one_node_sum_in_shared_memory():
    """Two barriers of log2 N messages each, and the bytes; not for compressed gradients."""
    resources = ResourceSpec.local(4, Network(local_latency=1e-3, common_bandwidth=1e9))
    found = predict(build("AllReduce", [W], resources), [W], resources)
    assert found.sync_seconds == pytest.approx(W.nbytes / 1e9 + 4e-3)
    for other in ("AllReduce(compressor='float16')", "PS"):
        messages = ResourceSpec.local(4, Network(local_latency=1e-3))
        strategy = build(other, [W], resources)
        found = [predict(strategy, [W], r).seconds for r in (resources, messages)]
        assert found[0] == found[1] > 0
    network = flat_network(4, common_bandwidth=1e9)
    found = predict(build("AllReduce", [W], network), [W], network)
    assert found.sync_seconds == pytest.approx(1.5 * W.nbytes / 1e9 + 6e-3)


def test_server_time():
    """Equation 8.2, push and pull: three workers on other nodes, the fourth on the server's
    node.
    """
    four = flat_network(4)
    found = predict(build("PS", [W], four), [W], four)
    assert found.sync_seconds == pytest.approx(2 * (3 * W.nbytes / 1e9 + 3e-3))


def test_a_server_waits_for_its_busiest_port():
    """Equation 8.2 adds up bytes over the bandwidth of each link; within a node it has no links."""
    two = Network(bandwidth=1e9, latency=0, local_latency=0, local_bandwidth=1e8)

    def push_and_pull(cpus, slow):
        each = enumerate(tuple(range(count)) for count in cpus)
        nodes = [Node(address=f"h{i}", cpus=own, chief=i == 0) for i, own in each]
        nodes[-1] = dataclasses.replace(nodes[-1], bandwidth=slow)
        resources = ResourceSpec(nodes=tuple(nodes), network=two)
        strategy = build("PS(two_level=False)", [W], resources)
        return predict(strategy, [W], resources).sync_seconds / 2 / W.nbytes

    assert push_and_pull((1, 1, 1), 1e9) == pytest.approx(2 / 1e9)
    assert push_and_pull((1, 1, 1), 1e7) == pytest.approx(1 / 1e7)  # 8.2: and 1 / 1e9
    assert push_and_pull((1, 1, 2), 1e7) == pytest.approx(2 / 1e7)  # both through one card
    assert push_and_pull((3, 1), 1e9) == pytest.approx(2 / 1e8)  # on the server's node


def test_a_small_all_reduce_takes_the_depth_of_a_tree():
    many = flat_network(8)
    found = predict(build("AllReduce", [B], many), [B], many)
    assert found.sync_seconds == pytest.approx(6 * (B.nbytes / 1e9 + 1e-3))


def test_one_worker_sends_nothing():
    alone = ResourceSpec.local(1)
    for name in sorted(REGISTRY):
        strategy = build(name, [W, E, B], alone)
        assert predict(strategy, [W, E, B], alone).sync_seconds == 0
        assert simulate(strategy, [W, E, B], alone, Compute(1, 2)).seconds == 3


def test_one_connection_limits_a_server_too():
    limited = flat_network(2, flow_bandwidth=1e8)
    found = predict(build("PS", [W], limited), [W], limited)
    assert found.sync_seconds == pytest.approx(2 * (W.nbytes / 1e8 + 1e-3))


def test_features():
    four = flat_network(4)
    model = [W, E, B]
    found = dict(zip(FEATURES, features(build("Parallax", model, four), model, four), strict=True))
    dense = 1.5 * (W.nbytes + B.nbytes) / 1e9
    assert found["collectives_max_transfer"] == pytest.approx(dense)
    assert found["collectives_max_messages"] == 6
    row = 60 * 4 + INDEX_BYTES
    union = 1000 * (1 - 0.95**4)
    assert found["servers_max_transfer"] == pytest.approx(3 * (50 + union) * row / 1e9)
    assert found["servers_mean_messages"] == 6
    assert found["servers_mean_launches"] == 2
    server_features = features(build("PSLoadBalancing", model, four), model, four)
    assert len(server_features) == 12
    assert not server_features[6:].any()
    assert server_features[0] > server_features[3]


@given(st.sampled_from(sorted(set(REGISTRY) - {"auto"})), st.sampled_from(["B2", "B9", "A2"]))
@settings(deadline=None, max_examples=20)
def test_simulation_agrees_with_the_model_where_nothing_overlaps(name, where):
    """A single chain, ready at once, has no queue and no overlap, so both agree."""
    resources = cluster(where)
    # a prime: not partitioned, with the limit on shards
    model = [Variable(name="w", shape=(1009, 640))]
    options = "(max_shards=8)" if "Partition" in name and "Uneven" not in name else ""
    strategy = build(name + options, model, resources)
    if len(strategy.leaves) > 1:
        return
    found = simulate(strategy, model, resources)
    assert found.seconds >= 0.5 * predict(strategy, model, resources).sync_seconds
    assert found.seconds <= 1.5 * predict(strategy, model, resources).sync_seconds


def test_a_ring_uses_its_own_links():
    """No link inside a host with one rank; four from each card where no neighbours share one."""
    size, card, inside = 1e9, 100e9 / 8, 40e9 / 8

    def seconds(hosts, order):
        made = [Node(address=h, cpus=tuple(range(order.count(h))), chief=h == "a") for h in hosts]
        seen = dict.fromkeys(hosts, 0)
        ranks = []
        for host in order:
            ranks.append(f"{host}:CPU:{seen[host]}")
            seen[host] += 1
        network = Network(bandwidth=card, latency=0, local_latency=0, local_bandwidth=inside)
        resources = ResourceSpec(nodes=tuple(made), network=network, ranks=tuple(ranks))
        model = [Variable(name="w", shape=(int(size / 4 / 1000), 1000))]
        strategy = build("AllReduce", model, resources)
        found = predict(strategy, model, resources).sync_seconds
        assert simulate(strategy, model, resources).seconds == pytest.approx(found, rel=0.01)
        n = len(order)
        return found / (2 * (n - 1) / n * size)

    assert seconds("abc", "abc") == pytest.approx(1 / card, rel=1e-3)
    assert seconds("ab", "aabb") == pytest.approx(1 / inside, rel=1e-3)
    assert seconds("ab", "abababab") == pytest.approx(4 / card, rel=1e-3)


def test_overlap():
    """Messages during backward are hidden; the last gradient's message never is."""
    model = [Variable(name=f"w{i}", shape=(512, 512)) for i in range(10)]
    resources = flat_network(4)
    alone = predict(build("AllReduce(chunk=1)", model[:1], resources), model[:1], resources)
    each = alone.sync_seconds
    compute = Compute(forward=1.0, backward=10 * each)
    single = simulate(build("AllReduce(chunk=1)", model, resources), model, resources, compute)
    assert single.seconds == pytest.approx(1 + 11 * each)
    fused = simulate(build("AllReduce", model, resources), model, resources, compute)
    assert fused.exposed == pytest.approx(each * 10 - 9 * 6e-3)
    late = dataclasses.replace(compute, ready={v.name: 10 * each for v in model})
    none = simulate(build("AllReduce(chunk=1)", model, resources), model, resources, late)
    assert none.exposed == pytest.approx(10 * each)


def test_servers_share_the_load():
    model = [Variable(name=f"w{i}", shape=(512, 512)) for i in range(8)]
    resources = flat_network(8, latency=0)
    times = {
        name: simulate(build(name, model, resources), model, resources).seconds
        for name in ("PS", "PSLoadBalancing", "PartitionedPS")
    }
    assert times["PS"] == pytest.approx(2 * 8 * 7 * MB / 1e9)  # no pull before the last push
    assert times["PSLoadBalancing"] < times["PS"] / 3
    ring = simulate(build("AllReduce", model, resources), model, resources).seconds
    assert ring == pytest.approx(2 * 7 / 8 * 8 * MB / 1e9)


def test_new_values_of_synchronous_servers_are_not_hidden():
    """They leave when all have computed and all is summed, as in the run; stale ones do not
    wait.
    """
    model = [Variable(name=f"w{i}", shape=(512, 512)) for i in range(4)]
    resources = flat_network(4, latency=0)
    each, compute = 3 * MB / 1e9, Compute(1.0, 1.0)
    served = build("PS", model, resources)
    found = simulate(served, model, resources, compute)
    # All pushes but the last are hidden, and no pull is.
    assert found.exposed == pytest.approx(5 * each)
    assert found.finished == pytest.approx([2 + (2 + i) * each for i in range(4)])
    slow = simulate(served, model, resources, Compute(1.0, 1.0, slowest=2))
    assert slow.seconds == pytest.approx(4 + 5 * each)
    # A ring that ends late delays values that servers have had for long.
    reduced = build("AllReduce", model, resources)
    nodes = [reduced.node("w0"), *served.nodes[1:]]
    mixed = dataclasses.replace(served, nodes=tuple(nodes))
    *pulls, ring = simulate(mixed, model, resources, compute).finished
    assert ring == pytest.approx(2 + each / 2)
    assert pulls == pytest.approx([ring + (1 + i) * each for i in range(3)])
    stale = build("PS(staleness=1)", model, resources)
    nodes = [*served.nodes[:2], *stale.nodes[2:]]
    mixed = dataclasses.replace(served, nodes=tuple(nodes))
    *answered, last, _ = simulate(mixed, model, resources, compute).finished
    assert max(answered) < 2 < last


def test_many_messages_keep_a_rank_busy():
    """A hundred tiny parameters send one message each per direction, handled in turn."""
    model = [Variable(name=f"w{i}", shape=(2,)) for i in range(100)]
    resources = flat_network(2)
    single = simulate(build("PSLoadBalancing", model, resources), model, resources)
    assert single.seconds == pytest.approx(200 * 1e-3, rel=0.02)
    fused = simulate(build("AllReduce", model, resources), model, resources)
    assert fused.seconds == pytest.approx(2e-3, rel=0.01)


def test_with_stale_servers_a_replica_waits_for_its_own_answer():
    model = [W]
    resources = flat_network(4)
    compute = Compute(0.05, 0.05)
    strict = simulate(build("PS", model, resources), model, resources, compute)
    stale = simulate(build("PS(staleness=3)", model, resources), model, resources, compute)
    free = simulate(build("PS(sync=False)", model, resources), model, resources, compute)
    assert strict.exposed > 0.02
    network = resources.network
    trip = 2 * (W.nbytes / network.bandwidth + network.latency)
    assert stale.exposed == free.exposed == pytest.approx(trip, rel=0.01)
    assert stale.exposed < strict.exposed / 2
    starved = simulate(build("PS(sync=False)", model, resources), model, resources)
    assert starved.seconds == starved.busy > 0
    # A slow replica delays those within a bound.
    slow = Compute(0.05, 0.05, slowest=3)
    held = simulate(build("PS(staleness=3)", model, resources), model, resources, slow)
    loose = simulate(build("PS(sync=False)", model, resources), model, resources, slow)
    assert held.seconds > 0.3 and loose.seconds == free.seconds


def test_the_slowest_replica_counts():
    found = simulate(
        build("PS", [W], flat_network(2)), [W], flat_network(2), Compute(1, 1, slowest=3)
    )
    assert found.seconds > 6 and found.exposed < 0.1
    for bad in (
        {"forward": -1},
        {"backward": float("nan")},
        {"slowest": 0.5},
        {"ready": {"W": -1}},
    ):
        with pytest.raises(ConfigError, match="compute: "):
            Compute(**bad)


@pytest.mark.parametrize("workers", [256, 1024])
def test_large_clusters(workers):
    """Rings slow down with latency, one server with bytes; neither simulation takes long."""
    resources = nodes([(4, 50)] * (workers // 4))
    begin = time.process_time()
    model = vgg16()
    ring = simulate(build("AllReduce(chunk=4)", model, resources), model, resources)
    server = simulate(build("PS", model, resources), model, resources)
    spread = simulate(build("PartitionedPS", model, resources), model, resources)
    assert ring.seconds < spread.seconds < server.seconds
    total = sum(v.nbytes for v in model)
    assert ring.seconds > 2 * total / (50e9 / 8)
    assert server.seconds > (workers // 4 - 1) * total / (50e9 / 8)
    assert time.process_time() - begin < 60
