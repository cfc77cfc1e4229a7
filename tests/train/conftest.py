"""Fixtures of the tests of training."""

from tests.compiled_once import compiled_once

__all__ = ["compiled_once"]
