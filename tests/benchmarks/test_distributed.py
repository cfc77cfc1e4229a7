"""The bytes on the wire that `benchmarks.distributed` expects, against those that ranks send."""

import argparse
import shutil
from dataclasses import replace

import pytest

from benchmarks import distributed
from cavs.distributed.comm import run_threads
from cavs.distributed.planning.builders import REGISTRY
from cavs.distributed.strategy.expression import GraphConfig, NodeConfig, Strategy
from cavs.distributed.sync import AllReduce, ParameterServer, SufficientFactors

DEVICES = ("a:CPU:0", "b:CPU:0")


@pytest.fixture
def folder(data, tmp_path):
    """A data folder whose treebank has all splits."""
    (tmp_path / "sst").mkdir()
    for name in ("train", "dev", "test"):
        shutil.copy(f"{data}/sst/train.txt", tmp_path / "sst" / f"{name}.txt")
    return str(tmp_path)


def measured(data, strategy, ranks):
    """Return the bytes that a rank sends in a step, and those of the formula."""
    options = argparse.Namespace(data=data, hidden=16, batch_size=4, batches=2)

    def work(communicator):
        runner = distributed.make_runner(strategy, communicator, options)
        for i in range(len(runner.batches)):  # compiled, parameters at their owners
            runner.step(i)
        distributed.refuse_uncovered([runner])
        reports = [runner.step(i)[1] for i in range(len(runner.batches))]
        sent = distributed.summary(reports, communicator)["bytes"]
        return sent, distributed.formula(runner)

    return run_threads(ranks, work)[0]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "strategy",
    ["messages", "AllReduce", "PartitionedAR", "PS", "PSLoadBalancing", "PartitionedPS",
     "UnevenPartitionedPS", "Parallax"],
)  # fmt: skip
def test_the_formula_is_what_ranks_send(folder, strategy, ranks):
    sent, expected = measured(folder, strategy, ranks)
    assert sent == pytest.approx(expected, rel=distributed.BYTES)


def test_every_builder_is_covered_or_refused(folder):
    for name in REGISTRY:
        try:
            sent, expected = measured(folder, name, 2)
        except SystemExit as error:
            assert "the formula of bytes covers" in str(error) and name in str(error)
        else:
            assert sent == pytest.approx(expected, rel=distributed.BYTES), name


def test_parts_of_a_strategy_that_the_formula_does_not_cover():
    def found(leaf, servers=()):
        graph = GraphConfig(replicas=DEVICES, servers=servers)
        return distributed.not_covered(Strategy(graph=graph, nodes=(leaf,)))

    plain = NodeConfig(name="W", synchroniser=AllReduce())
    server = ParameterServer(destination=DEVICES[0])
    assert distributed.not_covered(None) == found(plain) == ""
    assert found(replace(plain, synchroniser=server)) == ""
    assert found(plain, ("c:CPU:0",)) == "servers that run no replica"
    assert found(replace(plain, compressor="float16")) == "W: compressor float16"
    assert found(replace(plain, synchroniser=SufficientFactors())) == "W: sufficient factors"
    late = replace(server, staleness=2)
    assert found(replace(plain, synchroniser=late)) == "W: a stale server"
    assert (
        found(replace(plain, synchroniser=replace(server, two_level=True))) == "W: two_level=True"
    )
