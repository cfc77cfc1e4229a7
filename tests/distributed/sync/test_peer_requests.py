"""Requests for the models of peers: one at a time, of one version, from peers that answer."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cavs
from cavs.distributed.comm import run_threads
from cavs.distributed.comm.store import _REPLY, Store
from cavs.distributed.sync.peer_average import ModelRequests
from cavs.distributed.sync.peers import FastPeers, PeersInTurn, RandomPeers
from tests.distributed.sync.test_merged_replicas import loader, trainer_of
from tests.patience import patience


class Gate:
    """Lets the store of a rank answer only while it is open."""

    def __init__(self, store):
        self.opened = threading.Event()
        self.opened.set()
        post = store._mailbox.post

        def gated(to, words, arrays=()):
            assert self.opened.wait(patience(10))
            post(to, words, arrays)

        store._mailbox.post = gated


def until(condition):
    limit = time.monotonic() + patience(10)
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)


def test_the_last_complete_model_is_used_while_the_next_is_under_way():
    free = threading.Event()

    def work(c):
        store = c.store()
        if c.rank == 1:
            gate = Gate(store)
            store.keep([np.full(3, 1.0)], "w")
            c.barrier()
            c.barrier()
            gate.opened.clear()
            store.keep([np.full(3, 2.0)], "w")
            c.barrier()
            assert free.wait(patience(10))
            gate.opened.set()
            c.barrier()
            return
        requests = ModelRequests(store, PeersInTurn(0, 2, 0), 0.0)
        c.barrier()
        assert requests.latest() is None
        requests.ask(0, "w")
        requests.land()
        assert requests.latest()[0][0].tolist() == [1.0] * 3
        c.barrier()
        c.barrier()
        requests.ask(1, "w")
        time.sleep(0.05)
        assert not requests.is_due and requests.latest()[0][0].tolist() == [1.0] * 3
        free.set()
        until(lambda: requests.is_due)
        requests.land()
        assert requests.latest()[0][0].tolist() == [2.0] * 3 and requests.flight is None
        c.barrier()

    run_threads(2, work)


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=3), st.integers(0, 3))
def test_no_model_mixes_two_versions(sizes, delay):
    """One rank keeps models without a pause; slow or fast, each arrives as it was kept."""

    def work(c):
        store, seen = c.store(), 0
        store.keep([np.zeros(n) for n in sizes], "w")
        c.barrier()
        if c.rank == 1:
            serve = store._serve

            def slow(tag):
                time.sleep(delay / 1000)
                serve(tag)

            store._serve = slow
            for version in range(1, 100):
                store.keep([np.full(n, float(version)) for n in sizes], "w")
                time.sleep(0)
            c.barrier()
            return True
        requests = ModelRequests(store, PeersInTurn(0, 2, 0), 0.0)
        while seen < 10:
            if requests.is_due:
                requests.land()
                seen += 1
            if requests.flight is None:
                requests.ask(seen, "w")
            for _ in range(20):
                found = requests.latest()
                assert found is None or len({float(v) for part in found[0] for v in part}) == 1
        requests.land()
        c.barrier()
        return True

    assert run_threads(2, work) == [True, True]


def test_a_late_model_is_averaged_once_with_the_model_of_the_request(monkeypatch):
    free, read = threading.Event(), Store._read
    free.set()

    def gated(store, letter):
        assert free.wait(patience(10))
        read(store, letter)

    monkeypatch.setattr(Store, "_read", gated)
    batch = next(iter(loader()))

    def work(c):
        trainer = trainer_of(c, "PeerAverage(mode='async')", cavs.optim.SGD(lr=1e-13))
        trainer.begin(batch)

        def add(x):
            for p in trainer.parameters.values():
                p.value[...] += x

        def moved():
            return [float(p.value.mean()) for p in trainer.parameters.values()]

        for p in trainer.parameters.values():
            p.value[...] = 10.0 * c.rank
        trainer.advance(batch)
        assert moved() == pytest.approx([5.0] * len(moved()))
        c.barrier()
        free.clear()
        c.barrier()
        trainer.advance(batch)  # asks, and gets no answer
        add(1.0 + 2.0 * c.rank)
        trainer.advance(batch)
        assert moved() == pytest.approx([6.0 + 2.0 * c.rank] * len(moved()))
        c.barrier()  # neither answers before both have moved
        free.set()
        requests = trainer.session.exchanges[0].requests
        until(lambda: requests.fresh)
        c.barrier()  # neither keeps another model before both have the answer
        trainer.advance(batch)
        assert moved() == pytest.approx([7.5 + c.rank] * len(moved()))
        assert requests.latest() is None
        trainer.settle()
        trainer.close()

    run_threads(2, work)


def test_one_request_at_a_time_is_under_way(monkeypatch):
    ask, read = Store.request_async, Store._serve
    most = [0, 0, 0]

    def counted(store, *arguments, **options):
        future = ask(store, *arguments, **options)
        open_requests = sum(1 for r in store._requests.values() if r.tag.startswith("peer"))
        most[store.rank] = max(most[store.rank], open_requests)
        return future

    def slow(store, tag):
        time.sleep(0.01 * store.rank)
        read(store, tag)

    monkeypatch.setattr(Store, "request_async", counted)
    monkeypatch.setattr(Store, "_serve", slow)

    def work(c):
        trainer = trainer_of(c, "PeerAverage(mode='async')")
        for batch in loader():
            trainer.advance(batch)
        requests = trainer.session.exchanges[0].requests
        trainer.settle()
        assert requests.flight is None or requests.flight.future.done
        trainer.close()
        return requests.count

    made = run_threads(3, work)
    assert most == [1, 1, 1] and all(1 <= count <= 4 for count in made)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_selected_peers_are_other_ranks(size):
    for cls in (RandomPeers, PeersInTurn, FastPeers):
        every = [cls(rank, size, 1) for rank in range(size)]
        for number in range(20):
            peers = [selector.peer(number) for selector in every]
            assert all(p != r and 0 <= p < size for r, p in enumerate(peers))
            for selector, peer in zip(every, peers, strict=True):
                selector.took(peer, 0.01)
            if cls is PeersInTurn:
                assert sorted(peers) == list(range(size))
    drawn = [RandomPeers(0, size, 1).peer(number) for number in range(300)]
    assert set(drawn) == set(range(1, size))


def test_fast_peers_are_asked_more_often_and_slow_ones_at_times():
    selector, seconds = FastPeers(2, 5, 0), {0: 0.01, 1: 0.01, 3: 0.02, 4: 0.5}
    asked = []
    for number in range(400):
        asked.append(selector.peer(number))
        selector.took(asked[-1], seconds[asked[-1]])
    assert asked[:4] == [3, 4, 0, 1]  # each of them once, from the next rank on
    counts = np.bincount(asked, minlength=5)
    assert counts[2] == 0 and counts[0] >= counts[3] > 3 * counts[4] > 0
    assert counts[4] >= 400 // 16 - 1


def test_a_peer_that_misses_the_timeout_counts_as_that_slow():
    selector = FastPeers(0, 3, 0)
    for number in range(40):
        peer = selector.peer(number)
        if peer == 2:
            selector.missed(peer, 5.0)
        else:
            selector.took(peer, 0.01)
    assert selector.latency.tolist() == pytest.approx([0, 0.01, 5.0])
    assert selector.asked[1] > 2 * selector.asked[2] > 0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_step_goes_on_without_a_peer_that_is_late(mode):
    def work(c):
        post = c.store()._mailbox.post

        def silent(to, words, arrays=()):
            if words[0] != _REPLY:
                post(to, words, arrays)

        if c.rank == 2:  # it asks, and answers nothing
            c.store()._mailbox.post = silent
        trainer = trainer_of(c, f"PeerAverage(select='latency', mode={mode!r}, timeout=0.2)")
        for batch in [*loader()] * 3:
            trainer.advance(batch)
            time.sleep(0.03)
        requests = trainer.session.exchanges[0].requests
        trainer.session.exchanges[0].forget()  # no answer will come
        trainer.close()
        return requests.selector.latency[2], requests.selector.asked.sum()

    (first, asked), (second, _), (_, asked_by_2) = run_threads(3, work, timeout=patience(20))
    assert first == second == 0.2
    assert min(asked, asked_by_2) >= (12 if mode == "sync" else 2)


def test_the_threads_of_stores_end_with_the_trainings():
    def running():
        return [t.name for t in threading.enumerate() if t.name == "cavs-Store"]

    def work(c):
        trainer = trainer_of(c, "PeerAverage(mode='async')")
        trainer.fit(loader(), epochs=1, progress=False)
        c.barrier()
        found = len(running())
        c.barrier()
        trainer.close()
        return found

    before = len(running())
    assert run_threads(3, work) == [before + 3] * 3
    until(lambda: len(running()) == before)
