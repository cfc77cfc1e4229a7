"""Fixtures of the executor tests."""

import pytest

from cavs import _engine


@pytest.fixture(params=[1, 2])
def threads(request):
    """Number of threads of the engine: one, then two; reset to one."""
    _engine.set_num_threads(request.param)
    yield request.param
    _engine.set_num_threads(1)
