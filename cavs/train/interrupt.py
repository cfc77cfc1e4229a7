"""Ctrl-C, or another wish to stop, that waits for the running step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

#: Ctrl-C, a scheduler that wants the machine back, a terminal that was closed.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DeferredInterrupt:
    """While entered, the first of `STOPS` only sets `requested`; a second one acts.

    Does nothing outside the main thread, where Python delivers no signals.
    """

    def __init__(self) -> None:
        self.requested = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> DeferredInterrupt:
        """Take the signals over."""
        if threading.current_thread() is threading.main_thread():
            for number in STOPS:
                old = signal.getsignal(number)
                if old in (signal.default_int_handler, signal.SIG_DFL):
                    self._old[number] = old
                    signal.signal(number, self._request)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the signals back."""
        self._restore()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, old in self._old.items():
            signal.signal(number, old)
        self._old.clear()
