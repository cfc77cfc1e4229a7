"""The choice of a device for each rank, its report, and the comparison of parameters on it."""

from __future__ import annotations

import pytest

import cavs
from cavs.distributed.balance import PairBalancer, lbbsp
from cavs.distributed.comm import run_threads
from cavs.distributed.step import devices
from cavs.errors import CommunicationError, ConfigError, DeviceError
from tests.cuda.distributed.test_ranks import trainer
from tests.distributed.balance.test_usage import Full
from tests.distributed.step.test_consensus import outcomes
from tests.distributed.test_trainer import BATCHES


def opened(monkeypatch, wanted, count, size=3, fails=None):
    """Record the devices that ranks open, of `count` devices; others are errors."""

    def open_device(name):
        if name == fails:
            raise DeviceError(f"{name} is broken")
        return name

    monkeypatch.setattr(devices, "count_devices", lambda: count)
    monkeypatch.setattr(devices, "open_device", open_device)
    return outcomes(size, lambda c: devices.device_of_rank(wanted, c))


def test_the_devices_of_a_host_are_distributed_to_its_ranks(monkeypatch, capfd):
    assert opened(monkeypatch, "cuda", 4) == ["cuda:0", "cuda:1", "cuda:2"]
    assert opened(monkeypatch, "cuda:1", 4) == ["cuda:1"] * 3
    assert opened(monkeypatch, "cpu", 0) == ["cpu"] * 3
    assert capfd.readouterr().err == ""
    assert opened(monkeypatch, "cuda", 2) == ["cuda:0", "cuda:1", "cuda:0"]
    assert capfd.readouterr().err.startswith("cavs: 3 ranks share 2 GPUs of ")
    assert opened(monkeypatch, "cuda", 1) == ["cuda"] * 3
    names = iter(["here", "there", "here"])
    monkeypatch.setattr(devices.socket, "gethostname", lambda: next(names))
    assert sorted(opened(monkeypatch, "cuda", 2)) == ["cuda:0", "cuda:0", "cuda:1"]


def test_a_missing_device_is_an_error_on_all_ranks(monkeypatch):
    first, second, third = opened(monkeypatch, "cuda", 3, fails="cuda:1")
    assert isinstance(second, DeviceError) and "cuda:1 is broken" in str(second)
    for other in (first, third):
        assert isinstance(other, CommunicationError)
        assert "rank 1: DeviceError: cuda:1 is broken" in str(other)


def test_a_balancer_uses_the_memory_of_the_device(twin, monkeypatch):
    """Unless another measure was given: the memory of the host says nothing of room on a GPU."""
    monkeypatch.setattr(lbbsp, "CupyMemory", Full)

    def work(c, **options):
        balancer = PairBalancer(**options)
        with trainer(c, twin, split=balancer) as t:
            t.advance(cavs.batch(BATCHES[0]))
        return balancer.usage()[1]

    assert run_threads(2, work) == [pytest.approx(0.9)] * 2
    assert run_threads(2, lambda c: work(c, usage=lambda: (0.0, 0.5))) == [0.5] * 2


def test_parameters_on_devices_are_compared(twin):
    def work(c):
        t = trainer(c, twin)
        t.advance(cavs.batch(BATCHES[0]))
        t.evaluate(cavs.DataLoader(BATCHES[1], 2))
        if c.rank == 1:
            t.parameters["output.bias"].value[0] += 1e-3
        t.evaluate(cavs.DataLoader(BATCHES[1], 2))

    for error in outcomes(2, work):
        assert isinstance(error, ConfigError) and "parameter output.bias: rank 0 has" in str(error)
