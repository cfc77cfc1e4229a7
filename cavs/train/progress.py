"""Progress on stderr: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

_COLUMNS = 80  # where there is no terminal
_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 10.0
_NO_STREAM = (AttributeError, OSError, ValueError)  # the stream is None, broken, or closed


def duration(seconds: float) -> str:
    """Return ``4.2s``, ``1:05`` or ``2:03:04``."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    tail = f"{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
    return f"{hours}:{tail}" if hours else tail


def short_number(value: float) -> str:
    """Return a number in few characters: ``0.4321``, ``12345``, ``1.235e+09``.

    Whole numbers, and the whole part of large ones, are written in digits.
    """
    if math.isfinite(value) and abs(value) < 1e9 and (value == int(value) or abs(value) >= 1000):
        return f"{value:.0f}"
    return f"{value:.4g}"


class Progress:
    """Shows the progress of a pass over `total` batches; a context manager.

    total: 0 if it is not known. `done` batches of a resumed pass were made before. `clock` and
    `stream` are for tests.
    """

    def __init__(
        self,
        title: str,
        total: int,
        *,
        done: int = 0,
        enabled: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title, self.total, self.done, self.enabled = title, total, done, enabled
        self.graphs = 0
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._first = done
        self._start = self._clock()
        self._tty = self._is_terminal()
        self._shown = self._start if not self._tty else -math.inf
        self._drawn = False

    @property
    def seconds(self) -> float:
        """Wall-clock seconds since the start."""
        return float(self._clock() - self._start)

    @property
    def rate(self) -> float:
        """Graphs per second."""
        return self.graphs / max(self.seconds, 1e-9)

    def advance(self, graphs: int, **values: float) -> None:
        """Count a batch of `graphs` graphs; show `values`, such as ``loss=0.4``.

        Where the line would be too long, it lacks the rate, then the last of the values.
        """
        self.done += 1
        self.graphs += graphs
        if not self.enabled:
            return
        now = self._clock()
        wait = _REDRAW_SECONDS if self._tty else _LINE_SECONDS
        if now - self._shown >= wait:
            self._shown = now
            self._draw(values)

    def finish(self, text: str) -> None:
        """Replace the bar by the line `text`."""
        if self.enabled:
            self._clear()
            self._write(f"{self.title}  {text}\n")

    def __enter__(self) -> Progress:
        """Return this object."""
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the bar, so that the next output begins a line."""
        self._clear()

    def _draw(self, values: dict[str, float]) -> None:
        left = self.total - self.done
        each = self.seconds / max(self.done - self._first, 1)
        shown = [f"{name} {short_number(value)}" for name, value in values.items()]
        rate = [f"{self.rate:.0f} graphs/s"]
        time_left = [f"{duration(left * each)} left"] if left > 0 else []
        columns = shutil.get_terminal_size().columns if self._tty else _COLUMNS + 1
        while True:
            made = f"{self.done}/{self.total}" if self.total else str(self.done)
            tail = "  ".join([made, *shown, *rate, *time_left])
            if len(self.title) + 2 + len(tail) < columns or not (rate or shown[1:]):
                break
            (rate or shown).pop()
        if not self._tty:
            self._write(f"{self.title}  {tail}\n")
            return
        room = columns - len(self.title) - len(tail) - 7
        bar = ""
        if room >= 8 and self.total:
            size = min(room, 30)
            full = size * self.done // max(self.total, 1)
            bar = "[" + "#" * full + "." * (size - full) + "]  "
        self._write("\r" + f"{self.title}  {bar}{tail}"[: columns - 1].ljust(columns - 1))
        self._drawn = True

    def _clear(self) -> None:
        if self._drawn:
            self._write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
            self._drawn = False

    def _is_terminal(self) -> bool:
        try:
            return self._stream.isatty()
        except _NO_STREAM:
            return False

    def _write(self, text: str) -> None:
        # A training must not end because stderr is missing, closed or broken.
        try:
            self._stream.write(text)
            self._stream.flush()
        except _NO_STREAM:
            self.enabled = False
