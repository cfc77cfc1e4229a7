"""Ranks compute on the devices and hosts of a strategy; others are refused."""

from __future__ import annotations

import dataclasses
import socket
import threading

import numpy as np
import pytest

import cavs
from cavs.cuda.device import Device
from cavs.distributed import Trainer
from cavs.distributed.cluster.resources import Network, Node, ResourceSpec
from cavs.distributed.comm import run_threads
from cavs.distributed.comm.agreement import Agreement
from cavs.distributed.planning import choice
from cavs.distributed.planning.builders import build
from cavs.distributed.planning.cost import calibrate
from cavs.distributed.step import devices
from cavs.distributed.strategy import GraphConfig, save, variables_of
from cavs.distributed.strategy.ranks import Roles, check_hosts, cluster_of, hosts_of, in_rank_order
from cavs.errors import CommunicationError, ConfigError, DeviceError
from tests.distributed.elastic.test_survivors import Killed, mortal
from tests.distributed.mpirun import needs_mpi, run_ranks
from tests.distributed.step.test_consensus import outcomes, trainer
from tests.distributed.step.test_stale_parameters import assert_same_bits, values_of
from tests.distributed.test_trainer import BATCHES, Tree, train_alone

CYCLIC = ("A", "B", "A", "B")


@pytest.fixture
def on_hosts(monkeypatch):
    """Run ranks as threads, each on a host of its own choice."""
    here = threading.local()
    monkeypatch.setattr(socket, "gethostname", lambda: getattr(here, "name", "other"))

    def run(names, work):
        def placed(c):
            here.name = names[c.rank]
            return work(c)

        return outcomes(len(names), placed)

    return run


# ---- the devices of ranks ----------------------------------------------------------------------


def trains(c, strategy, **options):
    t = trainer(c, strategy=strategy, optimizer=cavs.optim.Adam(lr=0.05), max_norm=0.5, **options)
    with t:
        for graphs in BATCHES:
            t.advance(cavs.batch(graphs))
    return values_of(t)


@pytest.mark.parametrize("collectives", ["auto", "mpi"])
def test_a_mixture_of_devices_is_refused(monkeypatch, collectives):
    monkeypatch.setattr(devices, "open_device", lambda name: pytest.fail(f"opened {name}"))

    def work(c):
        device = "cuda" if c.rank == 1 else "cpu"
        Trainer(
            Tree(), cavs.optim.SGD(lr=0.1), communicator=c, device=device, collectives=collectives
        )

    for error in outcomes(3, work):
        assert isinstance(error, ConfigError)
        assert "device: ranks 0 and 2 have cpu, rank 1 has cuda" in str(error)


def test_wrong_collectives_of_one_rank_are_an_error_on_all():
    def work(c):
        devices.device_of_rank("cpu", c, ["auto", "nccl"][c.rank])

    first, second = outcomes(2, work)
    assert isinstance(second, ConfigError) and "on the CPU" in str(second)
    assert isinstance(first, CommunicationError) and "on the CPU" in str(first)
    for error in outcomes(2, lambda c: devices.device_of_rank("cpu", c, ["auto", "mpi"][c.rank])):
        assert "collectives: rank 0 has auto, rank 1 has mpi" in str(error)


@pytest.mark.parametrize("messages", range(0, 30, 3))
def test_a_rank_that_dies_before_the_first_step_is_survived(messages):
    """It dies while devices or settings are compared, or a strategy is made."""

    def work(c):
        mortal(c, 2, messages)
        try:
            optimizer, options = cavs.optim.SGD(lr=0.1), {"strategy": "PSLoadBalancing"}
            t = Trainer(Tree(), optimizer, communicator=c, elastic=True, **options)
            t.advance(cavs.batch(BATCHES[0]))
        except Killed:
            return None
        return t.communicator.size, len(t.strategy.graph.replicas)

    assert run_threads(3, work) == [(2, 2), (2, 2), None]


# ---- given strategies --------------------------------------------------------------------------


def given(size, strategy="PSLoadBalancing", resources=None):
    return build(strategy, variables_of(Tree()), resources or ResourceSpec.local(size))


def on_devices(*ranks, servers=()):
    """Return a strategy of servers with other devices."""
    made = given(2, f"PSLoadBalancing(servers={len(servers)})" if servers else "AllReduce")
    return dataclasses.replace(made, graph=GraphConfig(replicas=ranks, servers=servers))


OTHER = given(2, resources=ResourceSpec(nodes=(Node(address="h", cpus=(0, 1)),)))
STRAY = [
    (
        on_devices("localhost:CPU:0", "localhost:CPU:7"),
        "rank 1: there is no device localhost:CPU",
    ),
    (on_devices("localhost:CPU:0", "elsewhere:CPU:0"), "there is no device elsewhere:CPU:0"),
    (OTHER, "rank 0: there is no device h:CPU:0"),
    (
        on_devices("localhost:GPU:0", "localhost:GPU:1"),
        "on localhost:GPU:0, but it computes on",
    ),
    (
        on_devices("localhost:CPU:0", "localhost:GPU:0"),
        "rank 1: the strategy has it on localhost:",
    ),
]


@pytest.mark.parametrize(("strategy", "words"), STRAY)
@pytest.mark.parametrize("saved", [False, True])
def test_devices_that_do_not_exist_are_refused(strategy, words, saved, tmp_path):
    if saved:
        save(strategy, tmp_path / "s.json")
        if "it on localhost:" in words or "but it computes" in words:
            words = "there is no device localhost:GPU:0"  # rank 0 checks the devices first

    def work(c):
        trains(c, str(tmp_path / "s.json") if saved else strategy)

    for error in outcomes(2, work):
        assert isinstance(error, ConfigError | CommunicationError) and words in str(error), error


def test_owners_that_do_not_exist_are_refused():
    made = given(2)
    far = dataclasses.replace(made.nodes[0].sync, destination="localhost:CPU:5")
    node = dataclasses.replace(made.nodes[0], synchroniser=far)
    strategy = dataclasses.replace(made, nodes=(node, *made.nodes[1:]))
    for error in outcomes(2, lambda c: trains(c, strategy)):
        assert "destination: there is no device localhost:CPU:5" in str(error)


def test_resources_may_name_several_hosts_on_one_machine():
    cluster = ResourceSpec(nodes=(Node(address="h", chief=True), Node(address="i")))
    results = run_threads(2, lambda c: trains(c, given(2, resources=cluster), resources=cluster))
    assert_same_bits(results)


def mpi_trains(c, name):
    """Return the error of each rank for strategies on this host, within its devices or beyond,
    and on others.
    """
    trains(c, given(2))
    with pytest.raises(ConfigError) as caught:
        trains(c, dict(zip(["stray", "gpu"], [STRAY[0][0], STRAY[3][0]], strict=True))[name])
    return c.share(str(caught.value))


@pytest.mark.mpi
class TestProcesses:
    pytestmark = needs_mpi

    def test_processes_refuse_devices_that_do_not_exist(self):
        texts = run_ranks(2, __name__, "mpi_trains", "stray")
        assert len(texts) == 2 and len(set(texts)) == 1 and STRAY[0][1] in texts[0]


# ---- ranks that are dealt to hosts in turn -----------------------------------------------------


def test_devices_are_in_the_order_of_ranks(on_hosts):
    wanted = ("A:CPU:0", "B:CPU:0", "A:CPU:1", "B:CPU:1")
    clusters = on_hosts(CYCLIC, lambda c: cluster_of(hosts_of(c)))
    for cluster in clusters:
        assert cluster.replicas == wanted and cluster.chief.address == "A"
        assert set(cluster.devices) == set(wanted)
    assert on_hosts(("A", "A"), hosts_of) == [["localhost"] * 2] * 2
    gpus = cluster_of(CYCLIC, gpus=True)
    assert gpus.replicas == tuple(d.replace("CPU", "GPU") for d in wanted) and not gpus.cpu_devices


@pytest.mark.parametrize("resources", [False, True])
def test_two_levels_sum_within_a_host(on_hosts, resources):
    """Two levels: ranks 0 and 2 are on one host, 1 and 3 on the other."""
    nodes = (Node(address="A", cpus=(0, 1), chief=True), Node(address="B", cpus=(0, 1)))
    cluster = ResourceSpec(nodes=nodes) if resources else None

    def work(c):
        t = trainer(
            c,
            strategy="PSLoadBalancing(two_level=True, local_replication=True)",
            resources=cluster,
            optimizer=cavs.optim.Adam(lr=0.05),
            max_norm=0.5,
        )
        with t:
            for graphs in BATCHES:
                t.advance(cavs.batch(graphs))
        roles = t.session.roles
        return values_of(t), roles.hosts, roles.host, roles.local.rank, roles.local.size

    results = on_hosts(CYCLIC, work)
    assert [r[1] for r in results] == [[[0, 2], [1, 3]]] * 4
    assert [r[2:] for r in results] == [(0, 0, 2), (1, 0, 2), (0, 1, 2), (1, 1, 2)]
    expected, _ = train_alone(cavs.optim.Adam(lr=0.05), max_norm=0.5)
    assert_same_bits([r[0] for r in results])
    for name, value in expected.items():
        np.testing.assert_allclose(results[0][0][name], value, rtol=1e-10, atol=1e-12)


def test_teams_of_stale_steps_are_of_one_host(on_hosts):
    def work(c):
        strategy = "PSLoadBalancing(two_level=True, staleness=1)"
        made = choice.agreed_strategy(strategy, Tree(), None, None, Agreement(c))
        return Roles(c, made).team

    assert on_hosts(CYCLIC, work) == [[0, 2], [1, 3], [0, 2], [1, 3]]


def test_links_are_measured_within_and_between_hosts(on_hosts, monkeypatch):
    told = []

    def recorded(c, addresses, network):
        told.append((c.rank, list(addresses)))
        return calibrate(c, addresses, network)

    monkeypatch.setattr(choice, "calibrate", recorded)
    made = on_hosts(
        CYCLIC, lambda c: choice.agreed_strategy("auto", Tree(), None, None, Agreement(c))
    )
    assert sorted(told) == [(r, list(CYCLIC)) for r in range(4)]
    assert len({strategy.digest for strategy in made}) == 1
    assert [d[0] for d in made[0].graph.ranks] == list(CYCLIC)


def test_dedicated_servers_are_the_last_ranks(on_hosts):
    def work(c):
        return choice.agreed_strategy("PS(servers=1)", Tree(), None, None, Agreement(c)).graph

    for graph in on_hosts(("B", "A", "B", "A"), work):
        assert graph.replicas == ("B:CPU:0", "A:CPU:0", "B:CPU:1") and graph.servers == ("A:CPU:1",)


def test_a_strategy_for_other_hosts_is_refused(on_hosts):
    nodes = (Node(address="A", cpus=(0, 1), chief=True), Node(address="B", cpus=(0, 1)))
    strategy = given(4, resources=ResourceSpec(nodes=nodes))
    for resources in (None, ResourceSpec(nodes=nodes)):
        for error in on_hosts(CYCLIC, lambda c: trains(c, strategy, resources=resources)):  # noqa: B023
            assert "rank 1 runs on B, the strategy has it on A:CPU:1" in str(error)
            assert "which are on A, B, A, B" in str(error)
        found = on_hosts("AABB", lambda c: trains(c, strategy, resources=resources))  # noqa: B023
        assert_same_bits(found)


def test_resources_are_reordered_only_for_these_hosts():
    nodes = (Node(address="A", cpus=(0, 1), chief=True), Node(address="B", gpus=(0, 1)))
    spec = ResourceSpec(nodes=nodes, network=Network(latency=1.0))
    ordered = in_rank_order(spec, CYCLIC)
    assert ordered.replicas == ("A:CPU:0", "B:GPU:0", "A:CPU:1", "B:GPU:1")
    assert ordered.network == spec.network and ordered.devices == spec.devices
    for hosts in ("AABB", "CDCD", "AAAB", ["localhost"] * 4):
        assert in_rank_order(spec, list(hosts)) is spec
    with pytest.raises(ConfigError, match="ranks on A:CPU:0, but replicas run on A:CPU:0, A:CPU:1"):
        ResourceSpec(nodes=nodes[:1], ranks=("A:CPU:0",))


# ---- ranks that only own parameters, with GPUs ---------------------------------------------------

MIXED = ResourceSpec(nodes=(Node(address="a", gpus=(0, 1), chief=True), Node(address="b")))
BYTEPS = build("BytePS", variables_of(Tree()), MIXED)


@pytest.mark.parametrize("strategy", [BYTEPS, "BytePS", "saved"])
@pytest.mark.parametrize("third", ["cuda", "cpu"])
def test_a_rank_that_computes_nothing_opens_no_gpu(monkeypatch, tmp_path, strategy, third):
    if strategy == "saved":
        strategy = str(tmp_path / "s.json")
        save(BYTEPS, strategy)
    opened = []

    def open_device(name):
        if len(opened) == 2:
            raise DeviceError("there is no GPU here")
        opened.append(name)
        return object.__new__(Device)

    monkeypatch.setattr(devices, "count_devices", lambda: 2)
    monkeypatch.setattr(devices, "open_device", open_device)

    def work(c):
        def replicas():
            return choice.number_of_replicas(strategy, Tree(), c, MIXED)

        device = ["cuda", "cuda", third][c.rank]
        return devices.device_of_rank(device, c, "auto", replicas)

    *_, last = outcomes(3, work)
    assert sorted(opened) == ["cuda:0", "cuda:1"] and last == "cpu"


def test_ranks_that_compute_need_the_gpu_that_others_have(monkeypatch):
    monkeypatch.setattr(devices, "open_device", lambda name: pytest.fail(f"opened {name}"))

    def work(c):
        def replicas():
            return choice.number_of_replicas(BYTEPS, Tree(), c, MIXED)

        return devices.device_of_rank(["cuda", "cpu", "cpu"][c.rank], c, "auto", replicas)

    for error in outcomes(3, work):
        assert "device: rank 0 has cuda, rank 1 has cpu" in str(error)


def test_a_builder_that_fails_is_an_error_on_all_before_a_gpu_is_opened(monkeypatch):
    monkeypatch.setattr(devices, "open_device", lambda name: pytest.fail(f"opened {name}"))

    def work(c):
        Trainer(
            Tree(), cavs.optim.SGD(lr=0.1), communicator=c, device="cuda", strategy="PS(servers=9)"
        )

    for error in outcomes(2, work):
        assert "servers=9 of 2 devices leave none to compute" in str(error)


def test_gpus_with_a_strategy_for_cpus_are_refused():
    check_hosts(BYTEPS, ["a", "a", "b"], gpus=True)
    with pytest.raises(ConfigError, match="rank 0: the strategy has it on a:GPU:0, but it"):
        check_hosts(BYTEPS, ["a", "a", "b"], gpus=False)
    with pytest.raises(ConfigError, match="on localhost:CPU:0, but it computes on a GPU"):
        check_hosts(given(2), ["localhost"] * 2, gpus=True)
