"""Services on processes: hosts by name, named collectives, the store, and the death of a rank."""

import os
import signal
import socket
import time

import numpy as np
import pytest

from cavs.distributed.comm import LostPeerError
from cavs.distributed.comm.collective_state import CHUNK
from tests.distributed.comm.test_named import both_orders
from tests.distributed.mpirun import needs_mpi, run_ranks
from tests.patience import patience

pytestmark = needs_mpi


def services(c):
    """Run all services on four processes of two hosts; return the median seconds of `set_tree`."""
    name = "ab"[c.rank // 2]
    socket.gethostname = lambda: name
    assert c.topology.teams == ((0, 1), (2, 3))
    memory = c.common_memory(400_000).view("f8")
    for op, expected in (("sum", 10.0), ("max", 4.0), ("mean", 2.5)):
        memory[...] = c.rank + 1
        sent = c.traffic.totals(c.names)[0]
        c.all_reduce(memory, op)
        across = (c.traffic.totals(c.names)[0] - sent)[[2, 3] if c.rank < 2 else [0, 1]].sum()
        assert (memory == expected).all()
        assert across == pytest.approx(0 if c.rank % 2 else memory.nbytes, abs=100)

    both_orders(c, [0], count=40)
    named = c.named()
    big = np.full(3 * CHUNK // 8, 1.0 + c.rank)
    assert (named.all_reduce("big", big, "max").wait() == c.size).all()

    store, rates = c.store(), c.rates()
    store.keep({"w": np.full(300_000, c.rank), "b": np.ones((2, 2), np.float16)}, "model")
    for rank in range(c.size):
        model = store.request(rank, None, "model")
        assert (model["w"] == rank).all() and model["b"].shape == (2, 2)
    rates.sample()
    assert (np.delete(rates.comm_rates(), c.rank) > 0).all()
    latencies = rates.latency_matrix()
    assert (np.diag(latencies) == 0).all() and (latencies + np.eye(c.size) > 0).all()

    times = []
    for i in range(20):
        begun = time.perf_counter()
        assert named.set_tree(("RING", "AUTO")[i % 2])
        times.append(time.perf_counter() - begun)
    c.barrier()
    return float(np.median(times))


def test_services():
    assert run_ranks(4, __name__, "services") < patience(1)


def die_in_a_collective(c):
    """Let rank 1 die while all others wait for it, in a collective and for its arrays."""
    named, store = c.named(), c.store()
    named.all_reduce("first", np.ones(1)).wait()
    if c.rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    futures = [named.all_reduce("second", np.ones(1)), store.request_async(1, None, "never")]
    for future in futures:
        with pytest.raises(LostPeerError):
            future.wait()
    left = c.shrink()
    array = left.named().all_reduce("second", np.ones(3)).wait()
    left.barrier()
    left.close()
    return array.tolist()


def test_a_death_is_an_error_of_all_that_waits():
    assert run_ranks(3, __name__, "die_in_a_collective", elastic=True) == [2, 2, 2]


def die_on_a_host(c, victim):
    """Let a rank of one host die while ranks sum inside of their hosts and between them."""
    name = "ab"[c.rank // 2]
    socket.gethostname = lambda: name
    memory = c.common_memory(400_000).view("f8")
    with pytest.raises(LostPeerError):
        for i in range(10_000):
            if i == 20 and c.rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            c.all_reduce(memory, "max")
    left = c.shrink()
    memory = left.common_memory(400_000).view("f8")
    memory[...] = 1
    left.all_reduce(memory)
    total = float(memory[0])
    del memory
    left.barrier()
    left.close()
    return total


@pytest.mark.parametrize("victim", [2, 3])
def test_a_death_on_one_host_ends_the_sum_on_all(victim):
    assert run_ranks(4, __name__, "die_on_a_host", victim, elastic=True) == 3
