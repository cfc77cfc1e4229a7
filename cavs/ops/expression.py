"""NumPy functions for elementwise expressions; codegen has those for kernels."""

from __future__ import annotations

from typing import Any

import numpy as np


class NumpyExpression:
    """Scalar functions of ``expr`` as NumPy functions on arrays of any shape."""

    exp, log, tanh, sqrt, absolute = np.exp, np.log, np.tanh, np.sqrt, np.abs
    maximum, minimum = np.maximum, np.minimum

    @staticmethod
    def constant(value: float) -> Any:
        """The number itself."""
        return value

    @staticmethod
    def zeros(shape: tuple[int, ...]) -> Any:
        """Zeros of float64."""
        return np.zeros(shape)

    @staticmethod
    def sigmoid(x: Any) -> Any:
        """1 / (1 + exp(-x)) without overflow."""
        return 0.5 * np.tanh(0.5 * x) + 0.5

    @staticmethod
    def greater(a: Any, b: Any) -> Any:
        """1.0 where a > b."""
        return np.where(a > b, 1.0, 0.0)

    @staticmethod
    def greater_equal(a: Any, b: Any) -> Any:
        """1.0 where a >= b."""
        return np.where(a >= b, 1.0, 0.0)

    @staticmethod
    def equal(a: Any, b: Any) -> Any:
        """1.0 where a == b."""
        return np.where(a == b, 1.0, 0.0)

    @staticmethod
    def select(c: Any, a: Any, b: Any) -> Any:
        """A where c is not 0, else b."""
        return np.where(c != 0, a, b)
