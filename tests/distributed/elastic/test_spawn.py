"""Processes that MPI is to start in place of dead ones, and does not."""

import pytest

from cavs.distributed.comm import launcher_pipe, run_threads
from cavs.distributed.comm.mpi.communicator import MPICommunicator
from cavs.distributed.elastic.spawn import Spawner
from cavs.errors import CommunicationError
from tests.distributed.elastic.deaths import deaths  # noqa: F401  (a fixture)
from tests.distributed.elastic.test_failed_resizes import assert_finished, trained
from tests.distributed.elastic.test_resize import alone
from tests.patience import patience


@pytest.fixture(scope="module")
def expected():
    return alone()[0]


class Refusing:
    """Starts no process where MPI could start up to `size`.

    left: the number of messages that ranks have left, where rank 2 dies meanwhile.
    """

    def __init__(self, size, left=None):
        self.size, self.left = size, left
        self.count = self.failures = 0

    def most(self, c):
        return self.size if self.failures < 2 else 0

    def spawn(self, c, count):
        if self.left is not None and c.rank == 2:
            self.left[2] = 0
        return None, c.share(f"no slot is left for {count}")


def test_ranks_go_on_if_no_process_can_be_started(expected, capsys):
    """They try it twice, and then no longer want more ranks."""

    def work(c):
        def prepare(trainer):
            trainer.coordinator.resizer._spawner = Refusing(3)

        return trained(c, {3: 3}, prepare)

    assert_finished(run_threads(2, work, timeout=patience(20)), expected, 2)
    assert (
        capsys.readouterr().err.splitlines()
        == [
            "cavs: starting 1 in place of processes that have died",
            "cavs: no slot is left for 1",
        ]
        * 2
    )


def test_a_rank_may_die_while_processes_are_started(expected, capsys, deaths):  # noqa: F811
    def work(c):
        def prepare(trainer):
            trainer.coordinator.resizer._spawner = Refusing(4, deaths)

        return trained(c, {3: 4}, prepare, elastic=True)

    found = run_threads(3, work, timeout=patience(20))
    assert found[2] is None
    assert_finished(found[:2], expected, 2)
    said = capsys.readouterr().err
    assert "1 of 3 ranks lost at step 4, going on with 2" in said
    assert said.count("starting 1 in") == 1 and said.count("starting 2 in") == 2


class WithoutSlots(MPICommunicator):
    """A group of one rank, in which MPI starts no process."""

    def __init__(self):
        self.commands = []

    def spawn(self, command, count):
        self.commands.append((command, count))
        raise CommunicationError("MPI_Comm_spawn: no slots", hint="start fewer")

    def share(self, value):
        return [value]


def test_a_start_that_mpi_refuses_is_a_reason_and_no_error(monkeypatch):
    """Numbers of processes go on after it: some of them may have begun."""
    monkeypatch.setenv(launcher_pipe.RESTORE, '[4, ["python", "--number", "{}", "a.py"]]')
    spawner, c = Spawner(), WithoutSlots()
    assert spawner.most(c) == 4
    assert spawner.spawn(c, 2) == (None, ["MPI_Comm_spawn: no slots"])
    assert spawner.spawn(c, 1) == (None, ["MPI_Comm_spawn: no slots"])
    assert c.commands == [
        (["python", "--number", "4", "a.py"], 2),
        (["python", "--number", "6", "a.py"], 1),
    ]
    spawner.failures = 2
    assert spawner.most(c) == 0
