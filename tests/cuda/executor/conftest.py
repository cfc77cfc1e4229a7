"""Fixtures of the tests of the executor."""

from tests.compiled_once import compiled_once

__all__ = ["compiled_once"]
