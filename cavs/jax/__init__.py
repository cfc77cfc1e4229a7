"""Vertex functions and models of cavs as differentiable functions of JAX, on the CPU.

``Function`` is pure in its parameters, a dict of arrays, and takes part in ``jax.grad`` and
``jax.jit``; see docs/jax.md. Importing it needs the package jax, which ``import cavs`` never
imports.
"""

from cavs.errors import ConfigError

try:
    import jax  # noqa: F401
except ImportError as error:
    raise ConfigError(
        "cavs.jax needs the Python package jax", hint='pip install "cavs[jax]"'
    ) from error

from cavs.jax.function import Function

__all__ = ["Function"]
