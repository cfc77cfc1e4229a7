"""Fixtures of all tests of many ranks."""

from tests.compiled_once import compiled_once

__all__ = ["compiled_once"]
