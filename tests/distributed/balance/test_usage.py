"""The use of CPU and memory in LB-BSP."""

from pathlib import Path

import pytest

import cavs
from cavs.cuda.device import Device
from cavs.distributed import Trainer
from cavs.distributed.balance import (
    HostUsage,
    PairBalancer,
    gpu_usage,
    host_usage,
    lbbsp,
    usage_on,
)
from cavs.distributed.comm import run_threads
from tests.distributed.test_trainer import BATCHES, Tree

MEMORY = "MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  250 kB\nHugePages_Total:  0\n"


def write(folder, ticks, memory=MEMORY):
    (folder / "stat").write_text(f"cpu  {' '.join(map(str, ticks))}\ncpu0 1 2 3\n")
    (folder / "meminfo").write_text(memory)


def test_shares_since_the_last_call(tmp_path):
    usage = HostUsage(tmp_path)
    # user nice system idle iowait irq softirq steal guest guest_nice
    write(tmp_path, [10, 0, 10, 70, 10, 0, 0, 0, 5, 0])
    assert usage() == (pytest.approx(0.2), pytest.approx(0.75))
    write(tmp_path, [70, 0, 10, 100, 20, 0, 0, 0, 65, 0])
    assert usage() == (pytest.approx(0.6), pytest.approx(0.75))
    assert usage()[0] == pytest.approx(0.6)  # no time has passed
    write(tmp_path, [70, 0, 10, 90, 10, 0, 0, 0, 65, 0])  # some kernels count idle time down
    assert 0 <= usage()[0] <= 1


def test_hosts_with_less_information(tmp_path):
    assert HostUsage(tmp_path)() == (0.0, 0.0)  # no Linux
    write(tmp_path, [1] * 8, memory="MemTotal:  1000 kB\n")
    assert HostUsage(tmp_path)() == (pytest.approx(0.75), 0.0)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no Linux")
def test_this_host():
    cpu, memory = host_usage()
    assert 0 <= cpu <= 1 and 0 < memory < 1


def test_the_pool_of_a_gpu_is_not_in_use():
    class Memory:
        spare = 0

        def free_and_total(self):
            return 20, 80

        def kept(self):
            return self.spare

    memory = Memory()
    assert gpu_usage(memory)()[1] == 0.75
    memory.spare = 40
    assert gpu_usage(memory)()[1] == 0.25
    memory.spare = 70  # the two are not read at the same moment
    assert gpu_usage(memory)()[1] == 0


class Full:
    """Memory of a GPU of which a tenth is free."""

    def __init__(self, ordinal):
        self.ordinal = ordinal

    def free_and_total(self):
        return 8, 80

    def kept(self):
        return 0


def test_memory_of_the_device_counts(monkeypatch):
    monkeypatch.setattr(lbbsp, "CupyMemory", Full)
    assert usage_on(None) is host_usage
    for memory in (None, Full(0)):
        assert usage_on(Device("", 0, "sm_90", None, memory))()[1] == pytest.approx(0.9)


@pytest.mark.parametrize("given", [None, lambda: (0.1, 0.2)])
def test_a_training_sets_the_device_of_a_balancer(given):
    """On a device: tests/cuda/distributed/test_rank_devices.py."""

    def work(c):
        balancer = PairBalancer(usage=given)
        t = Trainer(Tree(), cavs.optim.SGD(lr=0.1), communicator=c, split=balancer)
        t.advance(cavs.batch(BATCHES[0]))
        return balancer.usage

    assert run_threads(2, work) == [given or host_usage] * 2


def test_a_balancer_may_move_to_another_device(monkeypatch):
    monkeypatch.setattr(lbbsp, "CupyMemory", Full)
    balancer, told = PairBalancer(), PairBalancer(usage=host_usage)
    device = Device("", 0, "sm_90", None, None)
    for where in (device, None, device):
        balancer.on(where)
        told.on(where)
        assert (balancer.usage is host_usage) == (where is None)
        assert where is None or balancer.usage()[1] == pytest.approx(0.9)
        assert told.usage is host_usage
