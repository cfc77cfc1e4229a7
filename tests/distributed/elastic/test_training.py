"""Parameters that only some ranks have written after the start."""

import numpy as np
import pytest

import cavs
from cavs.distributed.comm import run_threads
from cavs.errors import CheckpointError, CommunicationError, ConfigError
from tests.distributed.mpirun import needs_mpi, run_ranks
from tests.distributed.step.test_consensus import loader, outcomes, trainer
from tests.distributed.test_trainer import BATCHES

STRATEGIES = {None: 2, "PartitionedPS": 2, "PSLoadBalancing(servers=1)": 3}
STRATEGIES |= {"PSLoadBalancing(staleness=2)": 2}


def act(t, name, folder):
    """Call a method that compares the parameters."""
    if name == "fit":
        t.fit(loader(), epochs=1, progress=False)
    elif name == "evaluate":
        t.evaluate(loader())
    else:
        t.save(folder / "checkpoint")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("action", ["fit", "evaluate", "save"])
def test_a_parameter_written_on_one_rank_is_named_on_all(strategy, action, tmp_path):
    def work(c):
        t = trainer(c, strategy=strategy)
        t.advance(cavs.batch(BATCHES[0]))
        t.settle()
        act(t, action, tmp_path)  # equal parameters are accepted
        t.settle()
        if c.rank == 0:
            t.parameters["output.bias"].value[0] += 1e-9
        act(t, action, tmp_path)

    for error in outcomes(STRATEGIES[strategy], work):
        assert isinstance(error, ConfigError) and error.agreed
        text = "the ranks hold different parameters after step"
        assert text in str(error) and "parameter output.bias: rank 0 has crc32" in str(error)
        assert "cell" not in str(error)


def test_a_rank_that_loads_alone_is_refused(tmp_path):
    def work(c):
        t = trainer(c)
        t.advance(cavs.batch(BATCHES[0]))
        t.save(tmp_path / "checkpoint")
        if c.rank == 0:
            t.load(tmp_path / "checkpoint")
        else:
            t.advance(cavs.batch(BATCHES[1]))

    for error in outcomes(2, work):
        assert isinstance(error, CommunicationError)
        assert "ranks are in different phases: rank 0 in load, rank 1 in step" in str(error)
        assert "load on all ranks" in error.hint


@pytest.mark.parametrize("method", ["load", "resume"])
def test_a_file_that_one_rank_cannot_read_is_an_error_on_all(method, tmp_path):
    def work(c):
        t = trainer(c)
        t.advance(cavs.batch(BATCHES[0]))
        t.save(tmp_path / "checkpoint")
        getattr(t, method)(tmp_path / ("checkpoint" if c.rank else "nothing"))

    first, second = outcomes(2, work)
    assert isinstance(first, CheckpointError) and isinstance(second, CommunicationError)
    assert "rank 0: CheckpointError: cannot read the checkpoint" in str(second)


def test_all_ranks_may_write_alike(tmp_path):
    def work(c):
        t = trainer(c)
        t.advance(cavs.batch(BATCHES[0]))
        t.save(tmp_path / "checkpoint")
        t.advance(cavs.batch(BATCHES[1]))
        t.load(tmp_path / "checkpoint")
        for p in t.parameters.values():
            np.multiply(p.value, 0.5, out=p.value)
        act(t, "fit", tmp_path)
        return t.evaluate(loader())["loss"]

    assert len(set(run_threads(2, work))) == 1


def diverges(c):
    t = trainer(c)
    t.advance(cavs.batch(BATCHES[0]))
    if c.rank == 1:
        t.parameters["output.bias"].value[0] += 1e-9
    try:
        t.evaluate(loader())
    except ConfigError as error:
        return str(error)


class TestProcesses:
    pytestmark = needs_mpi

    def test_processes_compare_their_parameters(self):
        assert "parameter output.bias: rank 0 has" in run_ranks(2, __name__, "diverges")
