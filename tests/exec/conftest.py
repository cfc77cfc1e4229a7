"""What the tests of the executor share."""

import pytest

from cavs import _engine


@pytest.fixture(params=[1, 2])
def threads(request):
    """One thread of the engine, then two; one is what is left behind."""
    _engine.set_num_threads(request.param)
    yield request.param
    _engine.set_num_threads(1)
