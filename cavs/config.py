"""Checks of options, and what the process shares: threads of the engine, garbage collection."""

from __future__ import annotations

import contextlib
import gc
import math
import os
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from typing import TypeGuard

import numpy as np

from cavs import _engine
from cavs.errors import ConfigError

MAX_THREADS: int = _engine.MAX_THREADS
_requested: list[int] = []  # the number of threads, once it was set


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the garbage collector, which slows down code that makes many small objects."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def is_whole(value: object) -> TypeGuard[int]:
    """True if ``value`` is an integer; True and False do not count as integers."""
    # Most are plain ints, and a check against an abstract class is slow for each id of a batch.
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def require(holds: bool, name: str, value: object, need: str) -> None:
    """Raise `ConfigError` naming the option, the value found and what it must be."""
    if not holds:
        found = f"{value!r:.120}"
        raise ConfigError(f"{name} is {found}, but must be {need}", hint=f"pass {need} as {name}")


def require_number(name: str, value: object, need: str, holds: Callable[[float], bool]) -> None:
    """`require` for a finite number; anything else fails too."""
    number = type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))
    require(number and math.isfinite(value) and holds(value), name, value, need)  # type: ignore[arg-type]


def require_flag(name: str, value: object) -> None:
    """`require` for True or False; a text such as "no" would be taken for True."""
    require(isinstance(value, bool | np.bool_), name, value, "True or False")


def require_count(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """`require` for a whole number of at least `least` and, where given, at most `most`."""
    if is_whole(value) and value >= least and (most is None or value <= most):
        return
    need = f"of at least {least}" if most is None else f"from {least} to {most}"
    require(False, name, value, f"a whole number {need}")


def require_seed(value: object) -> None:
    """`require_count` for a seed of the engine: 64 bits."""
    require_count("seed", value, 0, 2**64 - 1)


def require_threads(value: object) -> None:
    """`require_count` for a number of threads."""
    require_count("threads", value, 1, MAX_THREADS)


def num_threads() -> int:
    """Return the number of threads of the engine, process-wide.

    By default as many as the affinity mask and the cgroup's quota allow, or ``CAVS_NUM_THREADS``;
    ConfigError if that is no number from 1 to 256.
    """
    return _engine.num_threads()


def set_num_threads(threads: int) -> None:
    """Set the number of threads of the engine, 1 to 256, process-wide; a running step ends first.

    Raises ConfigError on anything else.
    """
    require_threads(threads)
    _engine.set_num_threads(threads)
    _requested[:] = [threads]


def share_processors(processes: int) -> None:
    """Divide the default number of threads by the `processes` that share the processors.

    Nothing changes if a number of threads was set, here or by ``CAVS_NUM_THREADS``.
    """
    if not _requested and not os.environ.get("CAVS_NUM_THREADS"):
        set_num_threads(max(1, num_threads() // processes))
