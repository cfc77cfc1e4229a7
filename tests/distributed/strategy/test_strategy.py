"""The strategy expression, its JSON, its digest, and its partitions."""

import dataclasses
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs.distributed.strategy import (
    GraphConfig,
    NodeConfig,
    Strategy,
    load,
    partition_of,
    save,
    shard_ranges,
    shards_of,
    to_text,
)
from cavs.distributed.strategy.text import from_text
from cavs.distributed.sync import (
    ADPSGD,
    SMA,
    AllReduce,
    ParameterServer,
    PartialAllReduce,
    PeerAverage,
    SufficientFactors,
)
from cavs.errors import ConfigError

DEVICES = ("a:CPU:0", "a:CPU:1", "b:GPU:0")

synchronisers = st.one_of(
    st.builds(
        AllReduce,
        spec=st.sampled_from(["auto", "ring"]),
        group=st.one_of(st.none(), st.integers(0, 9)),
    ),
    st.builds(SufficientFactors),
    st.builds(
        ParameterServer,
        destination=st.sampled_from(DEVICES),
        two_level=st.booleans(),
        local_replication=st.booleans(),
        staleness=st.integers(0, 4),
    ),
    st.builds(ParameterServer, destination=st.sampled_from(DEVICES), sync=st.just(False)),
)


@st.composite
def nodes(draw, name):
    parts = draw(st.integers(1, 4))
    names = [f"{name}/part_{i}" for i in range(parts)] if parts > 1 else [name]
    leaves = tuple(
        NodeConfig(
            name=leaf,
            synchroniser=draw(synchronisers),
            placement=tuple(draw(st.lists(st.sampled_from(DEVICES), max_size=2, unique=True))),
            compressor=draw(st.sampled_from(["none", "float16"])),
        )
        for leaf in names
    )
    return leaves[0] if parts == 1 else NodeConfig(name=name, partition=(1, parts), shards=leaves)


@st.composite
def strategies(draw):
    names = draw(st.lists(st.text(min_size=1, max_size=5), max_size=4, unique=True))
    graph = GraphConfig(
        replicas=DEVICES[:2],
        servers=DEVICES[2:] if draw(st.booleans()) else (),
        gradients=draw(st.sampled_from(["mean", "sum"])),
    )
    return Strategy(graph=graph, nodes=tuple(draw(nodes(name)) for name in names), builder="x")


def one(**fields):
    defaults = {"name": "W", "synchroniser": AllReduce()}
    return Strategy(
        graph=GraphConfig(replicas=DEVICES[:2]), nodes=(NodeConfig(**{**defaults, **fields}),)
    )


@given(strategies())
def test_json_round_trip(strategy):
    again = from_text(to_text(strategy))
    assert again == strategy
    assert again.digest == strategy.digest
    assert hash(again) == hash(strategy)


@given(strategies(), strategies())
def test_digests_differ_where_strategies_do(a, b):
    assert (a.digest == b.digest) == (a == b)


def test_the_digest_is_equal_in_all_processes():
    module = "tests.distributed.strategy.test_strategy"
    code = f"from {module} import one; print(one(compressor='float16').digest)"
    other = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert other == one(compressor="float16").digest
    assert len(other) == 64


def test_the_builder_is_no_part_of_the_digest():
    assert dataclasses.replace(one(), builder="y").digest == one().digest
    assert one(compressor="float16").digest != one().digest


def test_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        one().nodes[0].name = "V"


def test_files(tmp_path):
    save(one(), tmp_path / "s.json")
    assert load(tmp_path / "s.json") == one()
    assert [p.name for p in tmp_path.iterdir()] == ["s.json"]
    with pytest.raises(ConfigError, match="cannot write"):
        save(one(), tmp_path / "absent" / "s.json")
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path / "absent.json")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path / "bytes")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((), [], r"strategy is \[\]"),
        (("format",), 9, "format is 9, this version reads 1"),
        (("graph", "replicas"), "a", "graph.replicas is 'a'"),
        (("graph", "replicas"), [], "without replicas"),
        (("graph", "replicas"), ["a", "a"], "device a runs more than one rank"),
        (("graph", "gradients"), "max", "gradients is 'max'"),
        (("graph", "speed"), 1, "graph has an unknown field 'speed'"),
        (("nodes", 0, "name"), "", "a node of a strategy is called ''"),
        (("nodes", 0, "partition"), [0, 1], "W: partition is 0"),
        (("nodes", 0, "partition"), [True], "W: partition is True"),
        (("nodes", 0, "partition"), [2, 1], r"W: partition \[2, 1\] makes 2 shards, 0 are given"),
        (("nodes", 0, "placement"), [3], r"nodes\[0\].placement\[0\] is 3"),
        (("nodes", 0, "synchroniser"), None, "W: its synchroniser is None"),
        (("nodes", 0, "synchroniser", "type"), "gossip", "nodes.0..synchroniser is .*gossip"),
        (("nodes", 0, "synchroniser", "type"), [], r"nodes.0..synchroniser is .*\[\]"),
        (("nodes", 0, "synchroniser", "group"), -1, "AllReduce: group is -1"),
        (("nodes", 0, "synchroniser", "group"), 1.5, "AllReduce: group is 1.5"),
        (("nodes", 0, "synchroniser", "spec"), "tree", "AllReduce: spec is 'tree'"),
        (("nodes", 0, "synchroniser", "rate"), 1, "unknown field 'rate'"),
        (("nodes", 0, "shards"), [{"name": "x"}], "its synchroniser is None"),
    ],
)
def test_invalid_json_fields_are_refused(path, value, message):
    content = one().to_dict()
    place = content
    for key in path[:-1]:
        place = place[key]
    if path:
        place[path[-1]] = value
    else:
        content = value
    with pytest.raises(ConfigError, match=message) as caught:
        from_text(json.dumps(content), "s.json")
    assert "s.json: " in str(caught.value)


def test_text_that_is_not_json():
    with pytest.raises(ConfigError, match=r"s\.json is no JSON"):
        from_text("{", "s.json")
    with pytest.raises(ConfigError, match="is no JSON"):
        from_text("[" * 100_000)


def test_a_duplicate_field_is_refused():
    """JSON takes the last one, whichever the writer meant."""
    server = '"type": "parameter_server", "destination": "localhost:CPU:0"'
    node = f'{{"name": "W", "synchroniser": {{{server}, "destination": "localhost:CPU:1"}}}}'
    text = f'{{"format": 1, "graph": {{"replicas": ["localhost:CPU:0"]}}, "nodes": [{node}]}}'
    with pytest.raises(ConfigError) as caught:
        from_text(text, "s.json")
    assert caught.value.what == "s.json: the field 'destination' stands twice in one object"
    assert caught.value.hint == "keep one"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"staleness": 1, "sync": False}, "staleness 1 with sync=False"),
        ({"staleness": -1}, "staleness is -1"),
        ({"two_level": 1}, "two_level is 1"),
        ({"destination": ""}, "destination is"),
    ],
)
def test_invalid_servers_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        ParameterServer(**{"destination": "a:CPU:0", **fields})


def test_a_bin_that_does_not_exist_is_refused():
    assert PartialAllReduce(bins=2, bin=1).bin == 1
    with pytest.raises(ConfigError, match="bin is 2") as caught:
        PartialAllReduce(bins=2, bin=2)
    assert caught.value.hint == "give one below 2"


@pytest.mark.parametrize(
    ("sync", "compressor", "words"),
    [
        (AllReduce(), "onebit", "all-reduce, onebit"),
        (AllReduce(group=3), "none", "all-reduce, group 3"),
        (AllReduce(group=None), "none", "all-reduce, in buckets"),
        (SufficientFactors(), "none", "sufficient factors"),
        (SMA(), "none", "sma"),
        (PartialAllReduce(bins=3, bin=1), "none", "all-reduce, bin 1 of 3"),
        (PartialAllReduce(bins=3, bin=1), "float16", "all-reduce, bin 1 of 3, float16"),
        (PeerAverage(select="latency"), "none", "mean with a peer (latency, sync)"),
        (ADPSGD(), "none", "mean of pairs of ranks"),
    ],
)
def test_synchronisers_are_described_in_a_few_words(sync, compressor, words):
    assert sync.summary(compressor) == words


def shard(i, **fields):
    return NodeConfig(**{"name": f"W/part_{i}", "synchroniser": AllReduce(), **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shards": (shard(0), shard(0))}, "shard 1 is called 'W/part_0'"),
        ({"shards": (shard(0),)}, "makes 2 shards, 1 are given"),
        ({"shards": (shard(0), shard(1)), "compressor": "float16"}, "belong to its shards"),
        ({"shards": (shard(0), shard(1, partition=(1, 1)))}, r"shard 1 .* partition \[1, 1\]"),
    ],
)
def test_invalid_shards_are_refused(fields, message):
    with pytest.raises(ConfigError) as caught:
        NodeConfig(name="W", partition=(2, 1), **fields)
    assert re.search(message, str(caught.value))


def test_a_compressor_that_is_not_a_name():
    with pytest.raises(ConfigError, match="W: compressor is 3"):
        NodeConfig(name="W", synchroniser=AllReduce(), compressor=3)


def test_nodes_by_name():
    strategy = one()
    assert strategy.node("W") is strategy.nodes[0]
    with pytest.raises(ConfigError, match="nothing about parameter V"):
        strategy.node("V")
    with pytest.raises(ConfigError, match="parameter W stands twice"):
        Strategy(graph=strategy.graph, nodes=strategy.nodes * 2)


def test_the_rank_of_a_device():
    graph = GraphConfig(replicas=("a:GPU:0", "a:GPU:1", "b:GPU:0"), servers=("c:CPU:0",))
    assert [graph.rank_of(d) for d in ("a:GPU:1", "a:CPU:0", "b:CPU:0", "c:CPU:0")] == [1, 0, 2, 3]
    with pytest.raises(ConfigError, match="device d:CPU:0 is on a node without"):
        graph.rank_of("d:CPU:0")


@given(st.integers(1, 200), st.integers(1, 60))
def test_shard_ranges(size, parts):
    ranges = shard_ranges(size, parts)
    assert len(ranges) == parts
    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(size))
    lengths = [stop - start for start, stop in ranges]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


@given(st.integers(1, 3), st.integers(2, 7), st.integers(0, 2))
def test_shards_cover_the_parameter(parts, size, axis):
    shape = [3, 4, 5]
    shape[axis] = size
    parts = min(parts, size)
    vector = partition_of(shape, axis, parts)
    leaves = tuple(shard(i) for i in range(parts)) if parts > 1 else ()
    node = NodeConfig(
        name="W", partition=vector, shards=leaves, synchroniser=None if leaves else AllReduce()
    )
    array = np.arange(np.prod(shape)).reshape(shape)
    pieces = [array[s.index] for s in shards_of(node, shape)]
    assert [p.shape for p in pieces] == [s.shape for s in shards_of(node, shape)]
    assert np.array_equal(np.concatenate(pieces, axis if parts > 1 else 0), array)


def test_partitions_that_do_not_fit():
    for vector, shape, message in [
        ((3, 1), (2, 4), "3 parts of axis 0, which has 2"),
        ((2,), (2, 4), r"partition \[2\] of a parameter of shape \[2, 4\]"),
        ((2, 2), (4, 4), "only one of them greater than 1"),
    ]:
        parts = int(np.prod(vector))
        node = NodeConfig(name="W", partition=vector, shards=tuple(shard(i) for i in range(parts)))
        with pytest.raises(ConfigError) as caught:
            shards_of(node, shape)
            assert re.search(message, str(caught.value))
