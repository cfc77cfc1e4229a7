"""The resource specification and its YAML."""

import builtins
import contextlib
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs.distributed.cluster.resources import (
    GIGABIT,
    Network,
    Node,
    ResourceSpec,
    load_resources,
    node_of,
    parse_resources,
    text_of,
)
from cavs.errors import ConfigError

TEXT = """\
nodes:
  - address: 10.0.0.1
    chief: true
    gpus: [0, 1, 3]
    bandwidth: 25
  - address: h2
    cpus: 2
network:
  bandwidth: 10
  latency: 50
  flow_bandwidth: 5
  local_bandwidth: 80.5
  local_latency: 0
"""


def test_a_complete_specification(tmp_path):
    (tmp_path / "r.yaml").write_text(TEXT)
    spec = load_resources(tmp_path / "r.yaml")
    assert spec.chief.address == "10.0.0.1"
    assert spec.replicas == (
        "10.0.0.1:GPU:0",
        "10.0.0.1:GPU:1",
        "10.0.0.1:GPU:3",
        "h2:CPU:0",
        "h2:CPU:1",
    )
    assert spec.cpu_devices == ("10.0.0.1:CPU:0", "h2:CPU:0", "h2:CPU:1")
    assert spec.devices == {*spec.replicas, *spec.cpu_devices}
    assert spec.bandwidth("10.0.0.1") == 25 * GIGABIT
    assert spec.bandwidth("h2") == 10 * GIGABIT
    assert spec.link("10.0.0.1:GPU:0", "h2:CPU:0") == (5 * GIGABIT, pytest.approx(50e-6))
    assert spec.link("h2:CPU:1", "h2:CPU:0") == (80.5 * GIGABIT, 0)
    with pytest.raises(ConfigError, match="there is no node h3"):
        spec.node("h3")


def test_a_written_specification_is_read_back(tmp_path):
    network = Network(
        latency=1234.5678e-6, local_latency=0.0, local_bandwidth=1.5e-6 * GIGABIT, bandwidth=8e20
    )
    nodes = (
        Node(address="10.0.0.1", chief=True, gpus=(0, 1, 3), cpus=(), bandwidth=25 * GIGABIT),
        Node(address="1e5", cpus=(0, 1)),
        Node(address="on", cpus=(1,)),
    )
    spec = ResourceSpec(nodes=nodes, network=network)
    text = text_of(spec)
    assert "latency: 1235  # microseconds" in text and "flow_bandwidth" not in text
    read = parse_resources(text)
    assert read.nodes == spec.nodes
    assert dataclasses.astuple(read.network) == pytest.approx(
        dataclasses.astuple(network), rel=1e-3, abs=0
    )
    plain = ResourceSpec.local(3)
    assert "network" not in text_of(plain) and parse_resources(text_of(plain)) == plain


def test_processes_of_this_machine():
    spec = ResourceSpec.local(3)
    assert spec.replicas == spec.cpu_devices == tuple(f"localhost:CPU:{i}" for i in range(3))
    assert spec.chief.address == "localhost"
    with pytest.raises(ConfigError, match="0 workers"):
        ResourceSpec.local(0)


def test_a_single_node_is_chief():
    assert parse_resources("nodes: [{address: a}]").chief.address == "a"


def test_addresses_may_hold_colons():
    assert node_of("fe80::1:CPU:0") == "fe80::1"
    spec = parse_resources('nodes: [{address: "fe80::1"}]')
    assert spec.link("fe80::1:CPU:0", "fe80::1:CPU:0")[0] == spec.network.local_bandwidth


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("bandwidth: 25", "bandwidth: fast", 5, "'fast' is not a number"),
        ("bandwidth: 25", "bandwidth: -1", 5, "bandwidth is -1"),
        ("bandwidth: 25", "bandwidth: 0", 5, "bandwidth is 0"),
        ("bandwidth: 25", "bandwidth: .inf", 5, "'.inf' is not a number"),
        ("bandwidth: 25", "bandwidth: 1e999", 5, "'1e999' is not a number"),
        ("bandwidth: 25", "bandwidth: [1]", 5, "a list is not a number"),
        ("bandwidth: 25", "speed: 25", 5, "unknown field 'speed'"),
        ("bandwidth: 25", "chief: true", 5, "chief stands twice"),
        ("chief: true", "chief: maybe", 3, "'maybe' is not true or false"),
        ("chief: true", "chief: false", 2, "0 of 2 nodes are chief"),
        ("cpus: 2", "chief: true", 2, "2 of 2 nodes are chief: 10.0.0.1, h2"),
        ("cpus: 2", "cpus: 0", 6, "node h2 has neither cpus nor gpus"),
        ("cpus: 2", "cpus: -3", 7, "cpus is -3"),
        ("cpus: 2", "cpus: 99999", 7, "cpus is 99999"),
        ("cpus: 2", "cpus: 1.5", 7, "'1.5' is not a number of devices"),
        ("cpus: 2", "cpus: 0x2", 7, "'0x2' is not a number of devices"),
        ("cpus: 2", "cpus: 010", 7, "'010' is not a number of devices or a list of them: to YAML"),
        ("bandwidth: 25", "bandwidth: 025", 5, "'025' is not a number: to YAML it is octal"),
        ("[0, 1, 3]", "[0, 01]", 4, "'01' is not a device number: to YAML it is octal"),
        ("cpus: 2", "cpus: ", 7, "'' is not a number of devices"),
        ("[0, 1, 3]", "[0, 1, 1]", 4, "gpus has 1"),
        ("[0, 1, 3]", "[0, x]", 4, "'x' is not a device number"),
        ("address: h2", "address: 10.0.0.1", 2, "address 10.0.0.1 stands twice"),
        ("address: h2", "address: a b", 6, "address is 'a b'"),
        ("address: h2", "address: ''", 6, "address is ''"),
        ("- address: h2", "- gpus: 1", 6, "a node has no address"),
        ("latency: 50", "latency: -5", 10, "latency is -5"),
        ("nodes:", "node:", 1, "unknown field 'node'"),
    ],
)
def test_errors_name_the_line(old, new, line, words):
    assert old in TEXT
    with pytest.raises(ConfigError) as caught:
        parse_resources(TEXT.replace(old, new, 1), "r.yaml")
    assert f"r.yaml, line {line}: {words}" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("3", "'3' is no mapping"),
        ("nodes: 3", "'3' is no list"),
        ("nodes: []", "nodes is empty"),
        ("nodes: [3]", "'3' is no mapping"),
        ("network: {}", "has no nodes"),
        ("nodes: [", "is no YAML"),
        ("nodes: &a [*a]", "uses aliases"),
        ("[" * 500 + "]" * 500, "is nested too deeply"),
        ("nodes: [{? [a] : b}]", "unknown field a list"),
        ("a: 1\n---\nb: 2", "is no YAML"),
        ("\t", "is no YAML"),
        ("nodes: !!python/object:os.system {}", "what is tagged !!python/object:os.system is no"),
        ("nodes: !own [3]", "what is tagged !own is no list"),
        ("nodes: {}", "a mapping is no list"),
    ],
)
def test_other_text_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_resources(text)


@given(st.text(max_size=60))
def test_arbitrary_text_is_read_or_refused(text):
    with contextlib.suppress(ConfigError):
        parse_resources(text)


def test_without_pyyaml(monkeypatch):
    real = builtins.__import__

    def none(name, *rest, **more):
        if name == "yaml":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", none)
    with pytest.raises(ConfigError, match=r"cavs\[cluster\]"):
        parse_resources(TEXT)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        load_resources(tmp_path / "absent")
    with pytest.raises(ConfigError, match="cannot read"):
        load_resources(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot read /dev/zero: .* it is a device, not a file"):
        load_resources("/dev/zero")


def test_specifications_built_in_python():
    with pytest.raises(ConfigError, match="without nodes"):
        ResourceSpec(nodes=())
    assert ResourceSpec(nodes=(Node(address="a"),), network=Network(latency=1.0)).nodes[0].chief
