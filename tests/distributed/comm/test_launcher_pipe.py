"""Numbers of processes that MPI starts later, and reports to the launcher."""

import pytest

from cavs.distributed.comm.launcher_pipe import number_from, rank_of_environment


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("CAVS_NUMBER", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"):
        monkeypatch.setenv(name, "0")  # restored at the end, whatever the test sets
        monkeypatch.delenv(name)


def test_a_process_has_the_rank_that_mpirun_gave_it(monkeypatch):
    assert rank_of_environment() is None
    monkeypatch.setenv("PMI_RANK", "3")
    assert rank_of_environment() == "3"


def test_later_processes_are_numbered_after_the_first_ones(monkeypatch):
    monkeypatch.setenv("PMIX_RANK", "2")
    number_from(4)
    assert rank_of_environment() == "6"
    number_from(10)  # counted from the rank, not from the number before
    assert rank_of_environment() == "12"


def test_a_process_without_a_rank_has_the_first_number():
    number_from(4)
    assert rank_of_environment() == "4"
