"""Checks of options, and the one setting of the process: how many threads the engine has."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from numbers import Integral, Real
from typing import TypeGuard

import numpy as np

from cavs import _engine
from cavs.errors import ConfigError

MAX_THREADS: int = _engine.MAX_THREADS
_wished: list[int] = []  # the number of threads, once somebody has set it


def is_whole(value: object) -> TypeGuard[int]:
    """Whether ``value`` counts or indexes something; True and False do not, though Python's can."""
    # Most are plain ints, and asking an abstract class is slow for each id of a batch.
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def require(holds: bool, name: str, value: object, need: str) -> None:
    """Raise `ConfigError` naming the option, the value found and what it must be."""
    if not holds:
        found = f"{value!r:.120}"
        raise ConfigError(f"{name} is {found}, but must be {need}", hint=f"pass {need} as {name}")


def require_number(name: str, value: object, need: str, holds: Callable[[float], bool]) -> None:
    """`require` for a finite number; anything that is no number fails too."""
    number = not isinstance(value, bool) and isinstance(value, Real)
    require(number and math.isfinite(value) and holds(value), name, value, need)  # type: ignore[arg-type]


def require_flag(name: str, value: object) -> None:
    """`require` for True or False; a text such as "no" would be taken for True."""
    require(isinstance(value, bool | np.bool_), name, value, "True or False")


def require_count(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """`require` for a whole number of at least `least` and, where given, at most `most`."""
    need = f"of at least {least}" if most is None else f"from {least} to {most}"
    fits = is_whole(value) and value >= least and (most is None or value <= most)
    require(fits, name, value, f"a whole number {need}")


def require_seed(value: object) -> None:
    """`require_count` for what the engine takes as a seed: 64 bits."""
    require_count("seed", value, 0, 2**64 - 1)


def require_threads(value: object) -> None:
    """`require_count` for a number of threads."""
    require_count("threads", value, 1, MAX_THREADS)


def num_threads() -> int:
    """Threads of the engine, process-wide.

    At first what the affinity mask and the cgroup's quota allow, or ``CAVS_NUM_THREADS``;
    ConfigError if that is no number from 1 to 256.
    """
    return _engine.num_threads()


def set_num_threads(threads: int) -> None:
    """Set the number of threads of the engine, 1 to 256, process-wide; a running step ends first.

    Raises ConfigError on anything else.
    """
    require_threads(threads)
    _engine.set_num_threads(threads)
    _wished[:] = [threads]


def share_processors(processes: int) -> None:
    """Takes this process's part of the default where `processes` may use the same processors.

    Nothing changes once somebody has set a number of threads, here or by ``CAVS_NUM_THREADS``.
    """
    if not _wished and not os.environ.get("CAVS_NUM_THREADS"):
        set_num_threads(max(1, num_threads() // processes))
