"""The twin device, as it was when it was new, for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
