"""Ctrl-C, or another signal to stop, deferred until the running step has ended."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

#: Signals of Ctrl-C, of a scheduler that reclaims the machine, and of a closed terminal.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DeferredInterrupt:
    """Context in which the first of `STOPS` only sets `requested`; a second one acts at once.

    Does nothing outside the main thread, since Python delivers no signals there.
    """

    def __init__(self) -> None:
        self.requested = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> DeferredInterrupt:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in STOPS:
                old = signal.getsignal(number)
                if old in (signal.default_int_handler, signal.SIG_DFL):
                    self._old[number] = old
                    signal.signal(number, self._request)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the previous handlers."""
        self._restore()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, old in self._old.items():
            signal.signal(number, old)
        self._old.clear()
