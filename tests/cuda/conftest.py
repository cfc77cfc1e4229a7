"""Devices of tests: the twin, as it was when it was new, for each; and the machine's own GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cavs.cuda.device import Device
from tests.cuda.allocators import Pool
from tests.cuda.hardware import gpu
from tests.cuda.nccl_stand_in import StandIn
from tests.cuda.nccl_threads import stand_in
from tests.cuda.twin import Twin, TwinCompiler, missing
from tests.cuda.twin.launch import Context


@pytest.fixture
def twin() -> Iterator[Twin]:
    """The host twin; nothing may have been written beside an allocation when the test ends."""
    if reason := missing():
        pytest.skip(reason)
    device = Twin()
    device.reset()
    yield device
    device.check_guards()
    device.reset()


@pytest.fixture
def nccl(twin: Twin) -> Iterator[StandIn]:
    """A stand-in for NCCL on the twin's devices, which all groups have left when the test ends."""
    with stand_in(twin) as found:
        yield found


@pytest.fixture
def context(twin: Twin) -> Context:
    return Context(twin)


@pytest.fixture(params=["twin", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> Device:
    """The twin's as `twin_device`, and the machine's own GPU where it has one."""
    found = gpu() if request.param == "cuda" else request.getfixturevalue("twin_device")
    assert isinstance(found, Device)
    return found


@pytest.fixture
def shuffle(request: pytest.FixtureRequest, device: Device) -> Callable[[int], None]:
    """Has streams, blocks and threads of the twin run in an order of a seed; a GPU has its own."""
    if isinstance(device.compiler, TwinCompiler):
        return request.getfixturevalue("twin").adversarial  # type: ignore[no-any-return]
    return lambda seed: None


@pytest.fixture
def twin_device(twin: Twin) -> Iterator[Device]:
    """The twin's, whose memory is a pool; nothing may have gone wrong there."""
    yield Device(twin.library, 0, "sm_90", twin.compiler, Pool(twin))
    assert twin.fault() == ""
