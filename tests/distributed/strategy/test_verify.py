"""Verification: accepted strategies, and every refusal with its cure."""

import dataclasses

import pytest

import cavs
from cavs.distributed.cluster.resources import Node, ResourceSpec
from cavs.distributed.planning.builders import build
from cavs.distributed.strategy import (
    GraphConfig,
    NodeConfig,
    Strategy,
    Variable,
    to_text,
    variables_of,
)
from cavs.distributed.strategy.text import from_text
from cavs.distributed.strategy.verify import problems, verify, verify_optimizer
from cavs.distributed.sync import (
    SMA,
    AllReduce,
    Lookahead,
    ParameterServer,
    PartialAllReduce,
    SufficientFactors,
)
from cavs.errors import ConfigError
from cavs.train.optim import SGD, Adagrad, Adam, AdamW
from tests.distributed.step.test_consensus import outcomes, trainer
from tests.distributed.test_trainer import BATCHES, Tree

CLUSTER = ResourceSpec(
    nodes=(Node(address="a", cpus=(0, 1), chief=True), Node(address="b", gpus=(0, 1)))
)
GRAPH = GraphConfig(replicas=CLUSTER.replicas)
DENSE = Variable(name="W", shape=(6, 4), factors=32)
SPARSE = Variable(name="W", shape=(6, 4), sparse=True, rows=3)
SERVER = ParameterServer(destination="a:CPU:0")


def strategy(*nodes, graph=GRAPH):
    return Strategy(graph=graph, nodes=nodes)


def node(sync=SERVER, **fields):
    return NodeConfig(**{"name": "W", "synchroniser": sync, **fields})


def cut(vector, sync=SERVER, **fields):
    parts = max(vector)
    shards = tuple(
        NodeConfig(name=f"W/part_{i}", synchroniser=sync, **fields) for i in range(parts)
    )
    return NodeConfig(name="W", partition=vector, shards=shards)


def server(**fields):
    return dataclasses.replace(SERVER, **fields)


@pytest.mark.parametrize(
    ("given", "variable"),
    [
        (node(), DENSE),
        (node(), SPARSE),
        (node(placement=("a:CPU:0",)), DENSE),
        (node(server(destination="b:CPU:0", two_level=True, local_replication=True)), DENSE),
        (node(server(sync=False)), DENSE),
        (node(server(staleness=3)), SPARSE),
        (node(AllReduce()), DENSE),
        (node(AllReduce()), SPARSE),
        (node(AllReduce(), placement=tuple(reversed(GRAPH.replicas))), DENSE),
        (node(AllReduce(), compressor="powersgd(rank=2)"), DENSE),
        (node(SufficientFactors()), DENSE),
        (cut((2, 1)), DENSE),
        (cut((6, 1)), SPARSE),
        (cut((1, 4), AllReduce(), compressor="onebit"), DENSE),
    ],
)
def test_accepted(given, variable):
    assert problems(strategy(given), [variable], CLUSTER) == []
    verify(strategy(given), [variable])


@pytest.mark.parametrize(
    ("given", "variable", "words"),
    [
        (node(server(destination="c:CPU:0")), DENSE, "W: destination: there is no device c:CPU:0"),
        (node(server(destination="a:GPU:0")), DENSE, "there is no device a:GPU:0"),
        (node(placement=("b:CPU:0",)), DENSE, "its value is kept on b:CPU:0: they would never"),
        (node(placement=("a:CPU:0", "a:CPU:1")), DENSE, "they would never meet"),
        (node(AllReduce(), placement=GRAPH.replicas[1:]), DENSE, "a:CPU:0 does not keep it"),
        (node(AllReduce(), placement=(*GRAPH.replicas, "b:CPU:0")), DENSE, "b:CPU:0 runs no"),
        (node(SufficientFactors(), placement=GRAPH.replicas[:1]), DENSE, "does not keep it"),
        (node(SufficientFactors()), SPARSE, "sufficient factors of a parameter sparse"),
        (node(SufficientFactors()), Variable(name="W", shape=(6,)), r"of shape [6]"),
        (node(SufficientFactors()), Variable(name="W", shape=(6, 4)), "no matrix product"),
        (cut((2, 1), SufficientFactors()), DENSE, "sufficient factors of a shard"),
        (cut((2, 1), SMA()), DENSE, "W/part_0: sma of a shard"),
        (cut((1, 2), Lookahead()), DENSE, "W/part_1: lookahead of a shard"),
        (node(compressor="float16"), DENSE, "compressor float16 with parameter_server"),
        (node(SufficientFactors(), compressor="onebit"), DENSE, "onebit with sufficient_factors"),
        (node(AllReduce(), compressor="onebit"), SPARSE, "onebit of a sparse gradient"),
        (
            node(PartialAllReduce(bins=2, accumulate=True), compressor="onebit"),
            DENSE,
            "W: compressor onebit of accumulated gradients",
        ),
        (node(AllReduce(), compressor="zip"), DENSE, "unknown compressor 'zip'"),
        (node(AllReduce(spec="nccl")), SPARSE, "spec 'nccl' of a sparse gradient"),
        (node(AllReduce(spec="nccl"), compressor="onebit"), DENSE, "'nccl' of compressor onebit"),
        (node(server(staleness=2, local_replication=True)), DENSE, "local_replication with stal"),
        (node(server(sync=False, local_replication=True)), DENSE, "local_replication with sync"),
        (node(server(local_replication=True)), SPARSE, "local_replication of a sparse"),
        (cut((7, 1)), DENSE, "7 parts of axis 0, which has 6"),
        (cut((2,)), DENSE, "partition [2] of a parameter of shape [6, 4]"),
        (cut((1, 2)), SPARSE, "partition [1, 2] of a sparse parameter"),
        (node(name="V"), DENSE, "says nothing about parameter W"),
    ],
)
def test_refused_with_a_cure(given, variable, words):
    found = problems(strategy(given), [variable], CLUSTER)
    assert any(words in p.what for p in found), found
    assert all(p.hint for p in found)
    with pytest.raises(ConfigError):
        verify(strategy(given), [variable], CLUSTER)


def test_all_problems_at_once():
    given = strategy(node(placement=("b:CPU:0",), compressor="float16"), node(name="V"))
    assert len(problems(given, [DENSE], CLUSTER)) == 3
    with pytest.raises(ConfigError, match=r"\(2 more problems\)"):
        verify(given, [DENSE], CLUSTER)


def test_ranks_on_devices_that_do_not_exist():
    graph = GraphConfig(replicas=("a:CPU:0", "d:CPU:0"))
    (found,) = problems(strategy(node(), graph=graph), [DENSE], CLUSTER)
    assert found.what == "rank 1: there is no device d:CPU:0"
    assert problems(strategy(node(), graph=graph), [DENSE]) == []


def test_a_destination_on_a_node_without_rank():
    graph = GraphConfig(replicas=("b:GPU:0", "b:GPU:1"))
    (found,) = problems(strategy(node(), graph=graph), [DENSE], CLUSTER)
    assert "a:CPU:0 is on a node without replica or server" in found.what


def test_servers_own_something():
    graph = GraphConfig(replicas=("b:GPU:0",), servers=("a:CPU:0", "a:CPU:1"))
    (found,) = problems(strategy(node(), graph=graph), [DENSE], CLUSTER)
    assert found.what == "server a:CPU:1 owns no parameter"


def test_shards_of_a_table_are_all_stale_or_none():
    shards = [
        NodeConfig(name=f"W/part_{i}", synchroniser=server(staleness=s))
        for i, s in enumerate((0, 2))
    ]
    mixed = NodeConfig(name="W", partition=(2, 1), shards=shards)
    (found,) = problems(strategy(mixed), [SPARSE], CLUSTER)
    assert "some shards are synchronous" in found.what and "staleness 0" in found.hint
    assert problems(strategy(mixed), [DENSE], CLUSTER) == []


@pytest.mark.parametrize(
    ("one", "two", "words"),
    [
        (SERVER, AllReduce(), "go by parameter_server and by all_reduce"),
        (AllReduce(), SERVER, "go by all_reduce and by parameter_server"),
        (server(two_level=True), SERVER, "some shards have two_level=True"),
    ],
)
def test_shards_of_a_table_have_one_synchroniser(one, two, words):
    shards = [NodeConfig(name=f"W/part_{i}", synchroniser=x) for i, x in enumerate((one, two))]
    mixed = NodeConfig(name="W", partition=(2, 1), shards=shards)
    (found,) = problems(strategy(mixed), [SPARSE], CLUSTER)
    assert words in found.what and "all its shards" in found.hint
    assert problems(strategy(mixed), [DENSE], CLUSTER) == []


TWICE = [SGD(lr=0.1, momentum=0.9), Adam(lr=0.1), AdamW(lr=0.1), Adagrad(lr=0.1)]


@pytest.mark.parametrize("optimizer", TWICE, ids=str)
def test_momentum_is_not_counted_twice(optimizer):
    """Deep Gradient Compression corrects the momentum that the optimiser has not."""
    given = strategy(cut((2, 1), AllReduce(), compressor="topk(momentum=0.9)"))
    with pytest.raises(
        ConfigError, match=r"W/part_0: topk\(.* momentum=0.9(.|\n)*topk\(momentum=0"
    ):
        verify_optimizer(given, optimizer)
    verify_optimizer(given, SGD(lr=0.1))
    verify_optimizer(strategy(node(AllReduce(), compressor="topk(ratio=0.1)")), optimizer)
    verify_optimizer(strategy(node()), optimizer)


@pytest.mark.parametrize("strategy", ["AllReduce(spec='nccl')", "PartitionedAR(spec='nccl')"])
@pytest.mark.parametrize("collectives", ["auto", "mpi"])
def test_ranks_on_cpus_do_not_sum_by_nccl(strategy, collectives):
    def work(c):
        trainer(c, strategy=strategy, collectives=collectives).advance(cavs.batch(BATCHES[0]))

    for error in outcomes(2, work):
        assert "spec 'nccl', but NCCL sums nothing here" in str(error) and "spec 'auto'" in str(
            error
        )


def test_factors_have_no_fields():
    """They are sent alone, by all-gather around a ring."""
    text = to_text(strategy(node(SufficientFactors())))
    assert from_text(text).leaves[0].sync == SufficientFactors()
    with pytest.raises(ConfigError, match="has an unknown field 'group'"):
        from_text(text.replace('"sufficient_factors"', '"sufficient_factors", "group": 1'))


@pytest.mark.parametrize("made", [False, True])
def test_ranks_refuse_a_second_momentum_before_they_train(made):
    name = "AllReduce(compressor='topk(momentum=0.9)')"
    given = build(name, variables_of(Tree()), ResourceSpec.local(2)) if made else name

    def work(c):
        t = trainer(c, strategy=given, optimizer=Adam(lr=0.1))
        t.advance(cavs.batch(BATCHES[0]))

    for error in outcomes(2, work):
        assert isinstance(error, ConfigError) and "with Adam(" in str(error)


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [({"compressor": "float16"}, "float32"), ({}, "float64"), ({"spec": "ring"}, "float32")],
)
def test_a_group_has_one_dtype(fields, dtype):
    spec = fields.pop("spec", "auto")
    other = NodeConfig(name="V", synchroniser=AllReduce(spec=spec), **fields)
    variables = [DENSE, Variable(name="V", shape=(3,), dtype=dtype)]
    (found,) = problems(strategy(node(AllReduce()), other), variables, CLUSTER)
    assert "group 0 of all_reduce mixes W" in found.what
    loose = dataclasses.replace(other, synchroniser=AllReduce(spec=spec, group=None))
    (found,) = problems(strategy(node(AllReduce(group=None)), loose), variables, CLUSTER)
    assert "what is in no group of all_reduce mixes W" in found.what
    separate = dataclasses.replace(other, synchroniser=AllReduce(spec=spec, group=1))
    assert problems(strategy(node(AllReduce()), separate), variables, CLUSTER) == []
    factors = dataclasses.replace(other, synchroniser=SufficientFactors(), compressor="none")
    matrix = Variable(name="V", shape=(3, 3), dtype=dtype, factors=1)
    assert problems(strategy(node(AllReduce()), factors), [DENSE, matrix], CLUSTER) == []
