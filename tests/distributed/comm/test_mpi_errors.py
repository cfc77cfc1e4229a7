"""Errors of the MPI communicator, on an MPI in which no rank outlives another."""

import os
import sys
import threading
import time
from contextlib import suppress
from weakref import WeakSet

import numpy as np
import pytest

from cavs.distributed.comm import LostPeerError, MPICommunicator, agreement
from cavs.distributed.comm.agreement import Agreement, agreed
from cavs.distributed.comm.mpi import communicator, polling
from cavs.distributed.comm.mpi.communicator import join_running
from cavs.distributed.comm.mpi.polling import MPIWaitRegister
from cavs.errors import CommunicationError, ConfigError, DeviceError
from tests.distributed.comm.mpi_stand_in import Aborted, StandIn
from tests.patience import patience


@pytest.fixture
def start(monkeypatch):
    """Return a function that makes a stand-in of MPI, which communicators then use."""
    for name, value in (("_registers", WeakSet()), ("_found", {}), ("_waits", [])):
        monkeypatch.setattr(MPIWaitRegister, name, value)
    monkeypatch.setattr(polling, "_GRACE", 0)  # another rank answers at once, or never
    monkeypatch.setattr(sys, "excepthook", lambda *raised: None)
    monkeypatch.setattr(communicator, "_ORPHANS", [])

    def make(size, **options):
        mpi = StandIn(size, **options)
        monkeypatch.setattr(communicator, "load_mpi", lambda timeout: mpi)
        return mpi

    return make


def test_a_peer_that_does_not_come_is_named(start):
    start(2)
    c = MPICommunicator(timeout=0.05)
    with pytest.raises(CommunicationError) as caught:
        c.all_reduce(np.zeros(3))
    said = "rank 0 waited 0.05 s in all-reduce of 24 bytes: rank 1 does not answer"
    assert str(caught.value).startswith(said)
    with pytest.raises(CommunicationError) as again:
        c.barrier()  # its messages would meet those of the all-reduce
    assert again.value is caught.value


def test_an_error_of_mpi_is_that_of_the_operation_and_of_no_death(start):
    mpi = start(2)
    c = MPICommunicator(timeout=patience(20))
    mpi.dead.add(1)
    with pytest.raises(CommunicationError) as caught:
        c.barrier()
    assert caught.value.what == "rank 0 in barrier with ranks [1]: process 1 has failed"
    assert not isinstance(caught.value, LostPeerError)


def test_an_error_of_mpi_as_it_takes_a_message(start, monkeypatch):
    mpi = start(2)
    c = MPICommunicator(timeout=patience(20))

    def refuse(*message):
        raise mpi.Exception("no memory")

    monkeypatch.setattr(type(mpi.COMM_WORLD), "Isend", refuse)
    with pytest.raises(CommunicationError) as caught:
        c.send(np.zeros(1), 1)
    assert caught.value.what == "rank 0 in send to rank 1 with ranks [1]: no memory"
    with pytest.raises(CommunicationError) as again:
        c.barrier()
    assert again.value is caught.value


@pytest.mark.parametrize(
    ("lost", "found"),
    [
        (0, "rank 1 sent 24 bytes, rank 0 expects 32 in receive from rank 1"),
        (1, "rank 0 waited 0.2 s in receive from rank 1: rank 1 does not answer"),
    ],
)
def test_a_message_behind_one_that_was_lost_is_not_taken_for_it(start, lost, found):
    mpi = start(2)
    first, second = (MPICommunicator(mpi.comm(r), timeout=0.2) for r in range(2))
    for size in (3, 4):
        second.send(np.zeros(size), 0)
    box = mpi.boxes[first._comm.name, 0]
    for _ in range(lost):
        box.popleft()
    with pytest.raises(CommunicationError) as caught:
        first.receive(np.zeros(4), 1)
    assert caught.value.what == found


def test_processes_that_mpi_cannot_start_are_an_error(start):
    start(1)
    with pytest.raises(CommunicationError, match=r"MPI cannot start 2 processes: no room for 2 "):
        MPICommunicator().spawn(["python", "more.py"], 2)


def test_a_mailbox_needs_a_thread_that_calls_mpi(start):
    start(2, threads=1)
    c = MPICommunicator()
    assert not c.overlaps
    with pytest.raises(DeviceError, match="below MPI_THREAD_SERIALIZED") as caught:
        c.mailbox()
    assert "hint: use staleness=0 and sync=True, no services, or another MPI" in str(caught.value)


def test_a_rank_cannot_be_left_out_without_ulfm(start):
    start(1)
    c = MPICommunicator()
    assert c.agree(True) and not c.agree(False) and c.agree(True)
    for end in (c.leave, c.shrink):
        with pytest.raises(
            DeviceError, match="this MPI cannot go on without a rank: MPIX"
        ) as error:
            end()
        assert "cavs launch --elastic, or mpirun --with-ft ulfm" in str(error.value)


def test_a_process_joins_the_ranks_that_started_it_once(start, monkeypatch):
    start(1)
    monkeypatch.setattr(communicator, "_JOINED", [])
    monkeypatch.setenv("CAVS_NUMBER", "5")
    c, count = join_running(30.0)
    assert (c.size, c.names, c.timeout, count) == (1, (5,), 30.0, 1)
    with pytest.raises(ConfigError, match="asks for all ranks a second time") as caught:
        join_running(30.0)
    assert "hint: call cavs.distributed.world() once" in str(caught.value)


# ---- ends ---------------------------------------------------------------------------------------


def test_a_rank_that_aborts_says_why(start, capsys):
    start(2)
    with pytest.raises(Aborted, match="1"):
        MPICommunicator().abort("no more memory")
    assert capsys.readouterr().err == "cavs: rank 0: no more memory\n"


def test_the_others_report_first_if_an_operation_has_failed(start, capsys, monkeypatch):
    start(2)
    monkeypatch.setattr(communicator, "_LAST_WORDS", 0.02)
    c = MPICommunicator(timeout=0.05)
    with pytest.raises(CommunicationError):
        c.barrier()
    begun = time.monotonic()
    with pytest.raises(Aborted):
        c.abort("rank 1 hangs")
    assert time.monotonic() - begun >= 0.02
    assert capsys.readouterr().err == "cavs: rank 0: rank 1 hangs\n"


def test_an_uncaught_error_ends_all_ranks_unless_they_know_of_it(start, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *raised: seen.append(raised[1]))
    start(2)
    c = MPICommunicator()
    mine, known, stop = ValueError("wrong"), agreed(ValueError("of all")), KeyboardInterrupt()
    sys.excepthook(ValueError, known, None)
    monkeypatch.setattr(communicator, "is_stopping", lambda: True)
    sys.excepthook(KeyboardInterrupt, stop, None)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(communicator, "is_stopping", lambda: False)
    for error, text in ((mine, "ValueError: wrong"), (stop, "KeyboardInterrupt: ")):
        with pytest.raises(Aborted):
            sys.excepthook(type(error), error, None)
        assert capsys.readouterr().err == f"cavs: rank {c.rank}: {text}\n"
    assert seen == [known, stop, mine, stop]


@pytest.fixture
def exits(monkeypatch):
    """Return the hooks that run at the end of the program, with their arguments."""
    found = []
    monkeypatch.setattr(agreement, "_open", {})
    monkeypatch.setattr(agreement.atexit, "register", lambda *hook: found.append(hook))
    return found


def test_a_program_that_ends_in_a_step_aborts_the_others(start, exits, capsys):
    start(2)
    c = MPICommunicator()
    agreement.mark_aborted(c)  # before a training
    agreement.attend(c, begun=True)
    agreement.mark_aborted(c)
    ((leave, process),) = exits
    assert process == os.getpid() and leave(process + 1) is None  # a child is no rank
    with pytest.raises(Aborted):
        leave(process)
    line = "cavs: rank 0: its program has ended in the middle of a step\n"
    assert capsys.readouterr().err == line


def test_a_program_that_ends_while_others_train_aborts_them(start, exits, capsys):
    mpi = start(2)
    first, second = (MPICommunicator(mpi.comm(r), timeout=patience(20)) for r in range(2))
    said = []

    def train():
        with suppress(CommunicationError):
            Agreement(second).consensus("batch")
        said.append(second.operation)

    agreement.attend(first, begun=True)
    other = threading.Thread(target=train)
    other.start()
    ((leave, process),) = exits
    with pytest.raises(Aborted):
        leave(process)
    other.join(patience(20))
    assert said == ["share"]  # where both learn of the phases
    line = "cavs: rank 0: its program has ended, without Trainer.close(), while others train\n"
    assert capsys.readouterr().err == line


def test_a_program_that_ends_alone_does_not_wait_for_ranks_that_are_gone(start, exits, capsys):
    start(2)
    c = MPICommunicator(timeout=0.05)
    agreement.attend(c, begun=True)
    ((leave, process),) = exits
    leave(process)
    assert capsys.readouterr().err == ""
    agreement.closed(c)
    leave(process)
