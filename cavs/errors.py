"""Every exception cavs raises on purpose.

A message names what was found, what was needed and, where one is known, the cure. Errors found
while tracing carry the line of the user's own code.
"""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.abspath(__file__))


def _is_users(filename: str) -> bool:
    """Whether code is the user's; what is typed at a prompt has a name such as ``<stdin>``."""
    if filename.startswith("<"):
        return not filename.startswith("<frozen ")
    return not os.path.abspath(filename).startswith(_PACKAGE + os.sep)


def user_line() -> str:
    """The innermost calling line outside the package, as ``file.py:12``; empty if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if _is_users(name):
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def line_of(function: object) -> str:
    """Where a function of the user is defined, as ``file.py:12``; empty for our own."""
    code = getattr(function, "__code__", None)
    if code is None or not _is_users(code.co_filename):
        return ""
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


class CavsError(Exception):
    """Base of all errors of cavs.

    ``what`` says what was found and what was needed, ``where`` the user's line, ``hint`` the cure.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        text = what
        if where:
            text += f"\n  from {where}"
        if hint:
            text += f"\n  hint: {hint}"
        super().__init__(text)


class TraceError(CavsError):
    """A vertex function or model that cannot be traced: no scatter, an unread state, a bad call."""


class ShapeError(TraceError):
    """Operands whose shapes do not fit."""


class DTypeError(TraceError):
    """Operands whose dtypes do not fit."""


class NoAttributeError(TraceError, AttributeError):
    """What symbols of a trace do not have, such as a method of tensors; says what to write."""


class FeatureError(CavsError):
    """A feature that is unknown, of the wrong length, dtype or range."""


class GraphError(CavsError, ValueError):
    """An input graph that is no DAG or has dangling indices; names graph and vertex."""

    vertex: int = -1


class DataError(CavsError, ValueError):
    """Input text that cannot be read; names file, line and what stands there."""


class CheckpointError(CavsError):
    """A checkpoint that is truncated, foreign, or does not fit the model."""


class NumericsError(CavsError):
    """A loss or value that is not finite; names step and graphs."""


class CompileError(CavsError):
    """The compiler cannot lower a model, or a pass broke a rule of the IR."""


class ConfigError(CavsError, ValueError):
    """An option with a value that makes no sense."""


class DeviceError(CavsError):
    """A device that is missing, too old, or failed; says which install line mends it."""


class DeviceWarning(DeviceError, RuntimeWarning):
    """What a device lacks, or has lost, without ending the work: a warning, work goes on.

    Where warnings are made errors, it is raised, as the `DeviceError` that it is.
    """


class CacheWarning(DeviceWarning):
    """A cache of compiled kernels that is damaged or cannot be written."""


class CommunicationError(CavsError):
    """A peer in data-parallel training that failed, hangs or is gone; names its rank."""
