"""What all tests of training share."""

from tests.compiled_once import compiled_once

__all__ = ["compiled_once"]
