"""The twin device, as it was when it was new, for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cavs.cuda.device import Device
from tests.cuda.memory import Pool
from tests.cuda.twin import Twin, missing
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
def context(twin: Twin) -> Context:
    return Context(twin)


@pytest.fixture
def device(twin: Twin) -> Iterator[Device]:
    """The twin's, whose memory is a pool; nothing may have gone wrong there."""
    yield Device(twin.library, 0, "sm_90", twin.compiler, Pool(twin))
    assert twin.fault() == ""
