"""Builders with compressors on MPI ranks; `python -m benchmarks.matrix` runs all of them."""

import pytest

import cavs
from benchmarks import matrix
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm import run_threads
from cavs.distributed.planning.builders import build, builders_of_equal_replicas
from cavs.distributed.strategy import variables_of
from cavs.runtime import program_cache
from tests.compiled_once import compile_once
from tests.distributed.mpirun import needs_mpi, run_ranks

# Number of ranks for a few combinations in which every builder and every compressor occurs.
THINNED = {
    2: (["AllReduce(chunk=2)", "Parallax", "PartitionedPS"], ["none", "onebit", "float16"]),
    4: (
        ["RandomAxisPartitionAR", "Buckets", "Poseidon(batch_size=1)"],
        ["none", "powersgd(rank=2)"],
    ),
    3: (["Horovod", "UnevenPartitionedPS"], ["none", "topk(ratio=0.01, warm_up=20)"]),
}


def ran(c, builders, compressors):
    """Run in a process of its own, with equal models."""
    program_cache.compile_graph = compile_once
    # Top-k sends everything in its first 20 steps.
    steps = "25" if any("warm_up=20" in name for name in compressors) else "10"
    arguments = ["--steps", steps, "--dtype", "float64", "--builders", *builders]
    return matrix.measure(c, matrix.parsed([*arguments, "--compressors", *compressors]))


@pytest.mark.slow
class TestOnRanks:
    pytestmark = needs_mpi

    @pytest.mark.parametrize("size", THINNED)
    def test_bytes_follow_the_formula_and_parameters_equal_one_process(self, size):
        builders, compressors = THINNED[size]
        records = run_ranks(size, __name__, "ran", builders, compressors, timeout=300)
        assert len(records) == len(builders) * len(compressors) * len(matrix.TABLES)
        for record in records:
            named = record["table"], record["builder"], record["compressor"]
            if record["refused"]:
                assert "compressor" in record["refused"], named
                continue
            assert record["faults"] == [], named
            assert abs(record["off"]) <= 0.05 and record["worst_rank"] <= 0.05, named
            if record["compressor"] == "none":
                assert record["difference"] <= 1e-12, named


def test_every_builder_is_in_the_matrix():
    given = matrix.parsed([])
    assert set(builders_of_equal_replicas()) <= set(given.builders)
    variables = matrix.measured_variables(matrix.Sentiment(True), None)
    found = list(matrix.cases(variables, "sparse", 2, given))
    assert len(found) == len(given.builders) * len(given.compressors)
    admitted = {(case.builder, case.compressor) for case in found if not case.refused}
    assert ("Parallax", "onebit") in admitted and ("PS", "none") in admitted
    assert ("PS", "onebit") not in admitted


def test_missed_bounds_are_reported():
    good = {
        "off": 0.0,
        "worst_rank": 0.0,
        "same_bits": True,
        "difference": 1e-15,
        "loss": [1.0, 0.9],
    }
    (case,) = list(
        matrix.cases(
            matrix.measured_variables(matrix.Sentiment(False), None),
            "dense",
            2,
            matrix.parsed(["--builders", "PS", "--compressors", "none"]),
        )
    )
    assert matrix.faults(case, good, 1e-12) == []
    for change, said in [
        ({"off": -0.06}, "bytes -6.0%, at a rank 0.0% off"),
        ({"worst_rank": 0.07}, "bytes +0.0%, at a rank 7.0% off"),
        ({"same_bits": False}, "ranks have different parameters"),
        ({"difference": 1e-11}, "1.0e-11 from one process"),
        ({"difference": float("nan")}, "nan from one process"),
        ({"loss": [1.0, 1.1]}, "the loss goes from 1.000 to 1.100"),
    ]:
        assert matrix.faults(case, good | change, 1e-12) == [said]


@pytest.mark.parametrize("optimizer", sorted(matrix.OPTIMIZERS))
def test_distance_from_one_process_is_rounding(optimizer):
    """Only rounding, which Adagrad amplifies in float32, moves them."""
    made = matrix.trees(8, True)
    batches = [cavs.batch(made[:4]), cavs.batch(made[4:])]
    for dtype, bound in (("float32", 1e-6), ("float64", 1e-12)):
        given = matrix.parsed(["--optimizer", optimizer, "--dtype", dtype, "--steps", "4"])
        expected = matrix.alone("sparse", batches, given, dtype)
        found = matrix.nearest("sparse", batches, expected, given)
        assert found == bound or (optimizer, dtype) == ("adagrad", "float32")
        assert bound <= found < 1e-3


@pytest.mark.parametrize("optimizer", sorted(matrix.OPTIMIZERS))
def test_ranks_stay_within_the_limit_of_one_process(optimizer):
    """Train in float64, in which the limit holds for all."""
    given = matrix.parsed(["--optimizer", optimizer, "--dtype", "float64", "--steps", "6"])
    made = matrix.trees(16, True)
    batches = [cavs.batch(made[:8]), cavs.batch(made[8:])]
    expected = matrix.alone("sparse", batches, given, "float64")
    variables = variables_of(matrix.Sentiment(True), dtype="float64")
    strategy = build("PartitionedPS", variables, ResourceSpec.local(2))
    case = matrix.Case("sparse", "PartitionedPS", "none", strategy)
    for result in run_threads(2, lambda c: matrix.run_case(case, c, batches, expected, given)):
        assert result["same_bits"] and result["difference"] <= matrix.EQUAL["float64"]
