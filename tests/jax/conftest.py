"""Float64 for tests of cavs.jax."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def wide():
    """Let JAX have float64, where the module uses it."""
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
