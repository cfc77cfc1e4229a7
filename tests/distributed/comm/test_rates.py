"""Rates and latencies between ranks, from counters of bytes and from pings."""

import time

import numpy as np
import pytest

from cavs.distributed.comm import SingleCommunicator, run_threads
from cavs.distributed.comm.rates import Rates
from cavs.distributed.comm.topology import minimum_spanning_tree
from cavs.errors import ConfigError


def test_rates_are_the_bytes_of_each_peer():
    def work(c):
        rates = Rates(c, 0)
        c.barrier()
        before = c.traffic.totals(c.names)
        longest = -time.monotonic()
        rates.sample()
        shortest = -time.monotonic()
        if c.rank == 0:
            c.send(np.zeros(1000), 2)
        elif c.rank == 2:
            c.receive(np.zeros(1000), 0)
        sent, received = (
            now - then for now, then in zip(c.traffic.totals(c.names), before, strict=True)
        )
        time.sleep(0.05)
        shortest += time.monotonic()
        rates.sample()
        longest += time.monotonic()
        egress, ingress = rates.egress_rates(), rates.ingress_rates()
        np.testing.assert_array_equal(rates.comm_rates(), egress + ingress)
        assert (egress * shortest <= sent * 1.01).all() and (egress * longest >= sent * 0.99).all()
        c.barrier()
        return sent.tolist(), received.tolist()

    assert run_threads(3, work) == [
        ([0, 0, 8000], [0, 0, 0]),
        ([0, 0, 0], [0, 0, 0]),
        ([0, 0, 0], [8000, 0, 0]),
    ]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_bytes_that_are_sent_are_received(size):
    """Collectives, parts, mailboxes and common memory count together."""

    def work(c):
        memory = c.common_memory(1 << 16).view("f8")
        c.all_reduce(memory)
        c.broadcast(np.zeros(100), 1)
        c.split(c.rank % 2).all_reduce(np.zeros(5000))
        c.named().all_reduce("a", np.zeros(5000)).wait()
        c.named().barrier()
        c.barrier()
        time.sleep(0.1)  # letters of the last barrier
        sent, received = c.traffic.totals(c.names)
        assert sent[c.rank] == received[c.rank] == 0
        assert sent.sum() >= c.sent_bytes + c.named().sent_bytes - size  # parts are rounded
        c.barrier()
        return sent, received

    results = run_threads(size, work, hosts=["a"] * size)
    sent, received = (np.array(x) for x in zip(*results, strict=True))
    np.testing.assert_allclose(sent, received.T, atol=2 * size)


def test_a_thread_samples_each_period():
    def work(c):
        rates = Rates(c, 0.05)
        end = time.monotonic() + 10
        found = np.zeros(2)
        while time.monotonic() < end:
            found = np.maximum(found, rates.comm_rates())
            least = np.array([found.sum()])
            c.all_reduce(least, "min")
            if least[0]:
                break
        rates.close()
        c.barrier()
        return found[1 - c.rank]

    assert min(run_threads(2, work)) > 0


def test_latencies_become_the_same_matrix_and_tree_on_all():
    def work(c):
        rates = c.rates()
        assert c.rates() is rates
        matrix = rates.latency_matrix()
        slow = matrix.copy()
        slow[0, 1:] = slow[1:, 0] = np.arange(c.size, 1, -1)  # from rank 0 the last is nearest
        c.store().keep(np.zeros(3), "w")
        c.store().request((c.rank + 1) % c.size, None, "w")
        counts = rates.request_counts()
        assert counts[(c.rank + 1) % c.size] == 1 and counts.sum() == 1
        assert rates.request_seconds().sum() > 0
        assert (rates.rate_matrix() >= 0).all()
        c.barrier()
        return matrix, minimum_spanning_tree(slow)

    results = run_threads(4, work)
    for matrix, tree in results:
        assert matrix.shape == (4, 4) and (np.diag(matrix) == 0).all()
        assert (matrix + np.eye(4) > 0).all()
        assert matrix.tobytes() == results[0][0].tobytes()
        assert tree == results[0][1] and tree[3] == 0


def test_one_rank_has_no_peers():
    rates = SingleCommunicator().rates()
    assert rates.latencies().tolist() == [0] and rates.comm_rates().tolist() == [0]
    for period in (-1.0, float("inf")):
        with pytest.raises(ConfigError, match=f"period is {period} s"):
            Rates(SingleCommunicator(), period)
