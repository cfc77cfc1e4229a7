"""Services when a letter, a rank or a request fails: whoever waits learns of it."""

import threading

import numpy as np
import pytest

from cavs.distributed.comm import LostPeerError, SingleCommunicator, run_threads, service
from cavs.distributed.comm.service import Future, Service
from cavs.distributed.comm.store import _NEXT, Store
from cavs.errors import CommunicationError
from tests.distributed.comm.test_collective_table import until
from tests.distributed.step.test_consensus import outcomes
from tests.patience import patience


class Divider(Service):
    """Divides by the words of letters; requests that no rank answers wait for the last one.

    late: for each request that ended by an error, True if this rank found out.
    """

    def __init__(self, ranks):
        self.quotients, self.late = [], []
        super().__init__(ranks)

    def request(self):
        return Future(self, "a division")

    def _read(self, letter):
        self.quotients.append(6 // letter.words[0])

    def _peers(self, future):
        return [self.size - 1]

    def _end(self, future, error, *, late):
        self.late.append(late)
        future.finish(error=error)


def test_an_error_of_a_letter_is_that_of_all_requests():
    c = SingleCommunicator()
    c.timeout = patience(20)
    divider = Divider(c)
    future = divider.request()
    divider._pending.add(future)
    for word in (2, 0):
        divider._mailbox.post(0, [word])
    with pytest.raises(CommunicationError, match="Divider: ZeroDivisionError: "):
        future.wait()
    assert divider.quotients == [3]
    divider.close()


def test_a_request_that_no_rank_answers_names_those_to_blame(monkeypatch):
    monkeypatch.setattr(service, "_PATIENCE", 0.05)  # before the timeout
    gave_up = threading.Event()

    def work(c):
        divider = Divider(c)
        if c.rank == 1:
            assert gave_up.wait(patience(20))
            return None
        c.timeout = 0.15
        future = divider.request()
        with pytest.raises(CommunicationError) as caught:
            future.wait()
        gave_up.set()
        divider.close()
        return str(caught.value).splitlines()[0], future.error is caught.value, divider.late

    said, same, late = run_threads(2, work)[0]
    assert said == "rank 0 waited 0.15 s in a division: rank 1 did not come"
    assert same and late == [True]


def test_a_death_ends_a_request_that_is_waited_for():
    """The communicator reports it, whether or not the thread of the service still runs."""

    def work(c):
        divider = Divider(c)
        if c.rank == 1:
            c.die()
            return None
        with pytest.raises(LostPeerError, match=r"ranks \[1\] are gone"):
            divider.request().wait()
        return divider.late

    assert run_threads(2, work)[0] == [False]


# ---- the store ----------------------------------------------------------------------------------


def test_a_store_whose_rank_cannot_be_reached_is_given_up():
    c = SingleCommunicator()
    c.size, c.names = 2, (0, 1)  # but no letter reaches the second one
    store = Store(c)
    with pytest.raises(CommunicationError, match="there is no rank 1 to write to"):
        store.request(1, None, "w")
    with pytest.raises(CommunicationError, match="there is no rank 1 to write to"):
        store.keep(np.ones(1), "w")
    store.close()


def test_a_store_may_be_closed_by_its_own_callback():
    store = SingleCommunicator().store()
    store.keep(np.ones(2), "w")
    reply = store.request_async(0, None, "w", lambda reply: store.close()).wait()
    assert reply.value.tolist() == [1, 1]
    with pytest.raises(CommunicationError, match="rank 0 has closed this service"):
        store.request(0, None, "w")


def test_a_rank_that_answers_no_ping_is_named():
    busy, gave_up = threading.Event(), threading.Event()

    def work(c):
        store = c.store()
        store.keep(np.ones(1), "w")
        c.barrier()
        if c.rank == 1:

            def hold(reply):
                busy.set()
                assert gave_up.wait(patience(20))

            store.request_async(1, None, "w", hold)
            assert gave_up.wait(patience(20))
            return
        assert busy.wait(patience(20))
        c.timeout = 0.1
        try:
            store.ping(1)
        finally:
            gave_up.set()

    error = outcomes(2, work)[0]
    assert isinstance(error, CommunicationError)
    assert str(error).startswith("rank 0 waited 0.1 s in ping of rank 1: rank 1 did not come")


def test_a_part_of_a_cancelled_answer_is_not_sent():
    """Its letter passed that of the cancellation."""

    def work(c):
        store = c.store()
        store.keep(np.zeros(1 << 15), "w")
        c.barrier()
        if c.rank == 0:
            store._mailbox.post(1, [_NEXT, 99, 1 << 14])
            assert store.ping(1) > 0  # rank 1 has read it by then
            assert store.request(1, None, "w").size == 1 << 15
        c.barrier()
        return store._broken

    assert run_threads(2, work) == [None, None]


# ---- waits that lead to other ranks -------------------------------------------------------------


@pytest.mark.parametrize(
    "wait",
    [
        lambda c: c.named().broadcast("a", np.zeros(1), 0),
        lambda c: c.named().all_reduce("a", np.zeros(1)),
        lambda c: c.store().request_async(0, None, "a"),
    ],
    ids=["broadcast", "all-reduce", "request"],
)
def test_a_wait_for_a_service_is_followed_to_the_rank_that_hangs(wait):
    """Rank 2 waits for rank 1, which waits in a service for rank 0."""
    gave_up, ranks = threading.Event(), {}

    def work(c):
        ranks[c.rank] = c
        c.store()
        assert c.named().set_tree([0, 0, 0])
        c.barrier()
        if c.rank == 0:
            assert gave_up.wait(patience(20))
            c.store().keep(np.ones(1), "a")
            wait(c)
            return
        if c.rank == 1:
            wait(c).wait()
            return
        wait(c)
        until(ranks[1]._register.own)
        c.timeout = 0.1
        try:
            c.receive(np.zeros(1), 1)
        finally:
            gave_up.set()

    first, second, third = outcomes(3, work)
    assert first is None and second is None
    assert str(third).startswith("rank 2 waited 0.1 s in receive from rank 1: rank 0 did not come")
