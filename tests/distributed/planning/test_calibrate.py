"""Calibration against a communicator whose latency and bandwidth are known."""

import math
import threading

import numpy as np
import pytest

from cavs.distributed.cluster.resources import Network
from cavs.distributed.planning.cost import calibrate, cards
from cavs.errors import ConfigError
from tests.patience import patience

LOCAL = (2e-6, 5e9)
FAR = (3e-5, 1e9)
SLOW = {"s": 1e8, "t": 2e8}  # bandwidths of nodes with different cards
SUMS = 2e9
COMMON = 8e9


class World:
    """Ranks as threads; a message takes its time on the clocks of both ends, no real time."""

    def __init__(self, addresses, common=False):
        self.addresses, self.size, self.common = addresses, len(addresses), common
        self.barrier = threading.Barrier(self.size)
        self.pairs = {}
        self.lock = threading.Lock()
        self.slots = [None] * self.size

    def queue(self, source, to):
        with self.lock:
            return self.pairs.setdefault((source, to), [threading.Semaphore(0), []])


class Rank:
    def __init__(self, world, rank):
        self.world, self.rank, self.size, self.now = world, rank, world.size, 0.0
        self.memory = None

    def clock(self):
        return self.now

    def link(self, other):
        a, b = self.world.addresses[self.rank], self.world.addresses[other]
        if a == b:
            return LOCAL
        return FAR[0], min(SLOW.get(a, FAR[1]), SLOW.get(b, FAR[1]))

    def send(self, array, to):
        semaphore, letters = self.world.queue(self.rank, to)
        letters.append((array.copy(), self.now))
        semaphore.release()

    def receive(self, array, source):
        semaphore, letters = self.world.queue(source, self.rank)
        assert semaphore.acquire(timeout=patience(20))
        letter, sent = letters.pop(0)
        latency, bandwidth = self.link(source)
        self.now = max(self.now, sent) + latency + letter.nbytes / bandwidth
        array[...] = letter

    def common_memory(self, nbytes):
        self.memory = np.zeros(nbytes, np.uint8) if self.world.common else None
        return self.memory

    def all_reduce(self, array):
        n, world = self.size, self.world
        world.slots[self.rank] = (array.copy(), self.now)
        world.barrier.wait(20)
        array[...] = sum(part for part, _ in world.slots)
        begin = max(now for _, now in world.slots)
        world.barrier.wait(20)
        latency, bandwidth = FAR if len(set(world.addresses)) > 1 else LOCAL
        if self.memory is not None and np.may_share_memory(array, self.memory):
            self.now = begin + 2 * math.ceil(math.log2(n)) * latency + array.nbytes / COMMON
            return
        ring = 2 * (n - 1) * latency + 2 * (n - 1) / n * array.nbytes / bandwidth
        self.now = begin + ring + (n - 1) / n * array.nbytes / SUMS


def measured(addresses, network=None, common=False, what=calibrate):
    world, found = World(addresses, common), [None] * len(addresses)
    given = [addresses] if network is None else [addresses, network]

    def work(rank):
        me = Rank(world, rank)
        found[rank] = what(me, *given, clock=me.clock)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(addresses))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("addresses", [["a", "a"], ["a", "b"], ["a", "a", "b", "b"]])
def test_known_values_are_measured(addresses):
    start = Network(latency=7.0, bandwidth=7.0, local_latency=7.0, local_bandwidth=7.0)
    found = measured(addresses, start)
    assert all(network == found[0] for network in found)
    if addresses.count("a") > 1:
        assert found[0].local_latency == pytest.approx(LOCAL[0], rel=0.01)
        assert found[0].local_bandwidth == pytest.approx(LOCAL[1], rel=0.01)
    else:
        assert found[0].local_latency == 7.0
    if "b" in addresses:
        assert found[0].latency == pytest.approx(FAR[0], rel=0.01)
        assert found[0].bandwidth == pytest.approx(FAR[1], rel=0.01)
    else:
        assert found[0].bandwidth == 7.0
    assert found[0].reduce_bandwidth == pytest.approx(SUMS, rel=0.05)


@pytest.mark.parametrize("addresses", ["abs", "sab", "abst", "aabbsstt", "abasbs", "abcst"])
def test_every_card_is_measured(addresses):
    """This includes a card that the first pair of ranks does not use."""
    found = measured(list(addresses), what=cards)
    assert all(told == found[0] for told in found)
    assert list(found[0]) == list(dict.fromkeys(addresses))
    for node, bandwidth in found[0].items():
        assert bandwidth == pytest.approx(SLOW.get(node, FAR[1]), rel=0.05), node


@pytest.mark.parametrize("addresses", ["a", "aa", "ab", "abab"])
def test_the_link_of_two_nodes_needs_no_second_measurement(addresses):
    assert measured(list(addresses), what=cards) == [{}] * len(addresses)


@pytest.mark.parametrize("ranks", [2, 3])
def test_sums_in_shared_memory_are_measured_where_available(ranks):
    addresses = ["a"] * ranks
    found = measured(addresses, common=True)
    assert all(network == found[0] for network in found)
    assert found[0].common_bandwidth == pytest.approx(COMMON, rel=0.05)
    assert found[0].reduce_bandwidth == pytest.approx(SUMS, rel=0.05)
    known = Network(common_bandwidth=7.0)
    assert measured(addresses, known)[0].common_bandwidth == 0
    assert measured([*addresses, "b"], known, common=True)[0].common_bandwidth == 0


def test_one_rank_measures_nothing():
    assert measured(["a"]) == [Network()]
    with pytest.raises(ConfigError, match="2 addresses for 1 ranks"):
        calibrate(Rank(World(["a"]), 0), ["a", "b"])


def test_a_clock_without_resolution():
    world = World(["a", "a"])
    found = [None, None]

    def work(rank):
        found[rank] = calibrate(Rank(world, rank), ["a", "a"], clock=lambda: 0.0)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert np.isfinite(found[0].local_bandwidth) and found[0].local_latency > 0
