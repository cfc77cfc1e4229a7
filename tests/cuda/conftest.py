"""Fixtures: a fresh twin for each test, devices on it, and the machine's GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cavs.cuda.device import Device
from tests.compiled_once import compiled_once
from tests.cuda.allocators import Pool
from tests.cuda.hardware import gpu
from tests.cuda.nccl_stand_in import StandIn
from tests.cuda.nccl_threads import stand_in
from tests.cuda.twin import Twin, TwinCompiler, missing
from tests.cuda.twin.launch import Context

__all__ = ["compiled_once"]


@pytest.fixture
def twin() -> Iterator[Twin]:
    """The host twin; at the end of the test all guard bytes must be intact."""
    if reason := missing():
        pytest.skip(reason)
    device = Twin()
    device.reset()
    yield device
    device.check_guards()
    device.reset()
    Pool.close_all()


@pytest.fixture
def nccl(twin: Twin) -> Iterator[StandIn]:
    """A stand-in for NCCL on the twin's devices; at the end all groups must be closed."""
    with stand_in(twin) as found:
        yield found


@pytest.fixture
def context(twin: Twin) -> Context:
    return Context(twin)


@pytest.fixture(params=["twin", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> Device:
    """A device of the twin, or the machine's GPU if there is one."""
    found = gpu() if request.param == "cuda" else request.getfixturevalue("twin_device")
    assert isinstance(found, Device)
    return found


@pytest.fixture
def shuffle(request: pytest.FixtureRequest, device: Device) -> Callable[[int], None]:
    """A function that makes the twin run in a random order of a seed; on a GPU it does nothing."""
    if isinstance(device.compiler, TwinCompiler):
        return request.getfixturevalue("twin").adversarial  # type: ignore[no-any-return]
    return lambda seed: None


@pytest.fixture
def twin_device(twin: Twin) -> Iterator[Device]:
    """A device of the twin with a pool as its memory; at the end the pool must have no errors."""
    yield Device(twin.library, 0, "sm_90", twin.compiler, Pool(twin))
    assert twin.fault() == ""
