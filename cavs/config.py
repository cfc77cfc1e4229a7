"""Settings of the process."""

from __future__ import annotations

from cavs import _engine
from cavs.errors import ConfigError

MAX_THREADS: int = _engine.MAX_THREADS


def check_threads(threads: object) -> int:
    """``threads`` if the engine can run so many, else ConfigError."""
    whole = isinstance(threads, int) and not isinstance(threads, bool)
    if not whole or not 1 <= threads <= MAX_THREADS:  # type: ignore[operator]
        raise ConfigError(
            f"threads is {threads!r}, but must be a whole number from 1 to {MAX_THREADS}",
            hint="pass the number of cores to use; None, where it is taken, leaves it as it is",
        )
    return threads  # type: ignore[return-value]


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
    _engine.set_num_threads(check_threads(threads))
