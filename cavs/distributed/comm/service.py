"""Services: threads that read the letters of a rank and answer others while it computes.

A thread reads a mailbox of its own and never waits for another rank. An error that ends the
service, such as the death of a rank, is the error of all that is under way and of all later calls.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from cavs.distributed.comm.hang_detection import Known, Peers, PendingWait, nothing
from cavs.distributed.comm.mailbox import Letter, Mailbox
from cavs.distributed.comm.topology import Topology
from cavs.distributed.comm.traffic import Traffic
from cavs.errors import CommunicationError

T = TypeVar("T")
_GLANCE = 0.05  # seconds between two looks at whether to go on waiting
_PATIENCE = 1.0  # seconds of a wait before a rank asks the others about it
_BUSY, _IDLE = 0.005, 0.5  # seconds that the thread waits for a letter, in polls that slow down


class Ranks(Protocol):
    """The part of a communicator that services use; all ranks create a service together."""

    rank: int
    size: int
    names: Sequence[int]
    timeout: float
    traffic: Traffic

    @property
    def topology(self) -> Topology:
        """See `Communicator`."""

    def mailbox(self) -> Mailbox:
        """See `Communicator`."""

    def waiting(
        self, operation: str, peers: Peers | None = None, known: Known = ...
    ) -> PendingWait:
        """See `Communicator`."""


class Future(Generic[T]):
    """A `Handle` of a request to other ranks. operation: its name in errors."""

    def __init__(self, service: Service, operation: str) -> None:
        self._service, self.operation = service, operation
        self._finished = threading.Event()
        self._result: T | None = None
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        """True if `wait` would return at once."""
        return self._finished.is_set()

    def wait(self) -> T:
        """Return the result; raise the error of the service.

        CommunicationError after the timeout of the communicator, counted from this call.
        """
        if not self._finished.wait(_GLANCE):
            self._service.wait_for(self)
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]

    def ends_within(self, seconds: float) -> bool:
        """Wait for at most `seconds`; return True if it is done."""
        return self._finished.wait(seconds)

    def finish(self, result: T | None = None, error: BaseException | None = None) -> None:
        """End with a result or an error; only the first call counts."""
        if not self._finished.is_set():
            self._result, self.error = result, error
            self._finished.set()


class Service(ABC):
    """Base class of services. ranks: the communicator, all of whose ranks create the service."""

    def __init__(self, ranks: Ranks) -> None:
        self.rank, self.size, self.names = ranks.rank, ranks.size, tuple(ranks.names)
        self._ranks, self._mailbox = ranks, ranks.mailbox()
        self._lock = threading.RLock()  # guards all state; no thread waits while it holds it
        self._pending: set[Future[Any]] = set()
        self._broken: CommunicationError | None = None
        # A daemon: a peer that hangs must not keep this process alive.
        name = f"cavs-{type(self).__name__}"
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    @property
    def timeout(self) -> float:
        """Seconds that a request waits: those of the communicator."""
        return self._ranks.timeout

    @property
    def sent_bytes(self) -> int:
        """Bytes of letters sent to other ranks so far."""
        return self._mailbox.sent_bytes

    @abstractmethod
    def _read(self, letter: Letter) -> None:
        """Act on a letter, on the thread of the service; never waits."""

    @abstractmethod
    def _peers(self, future: Future[Any]) -> list[int]:
        """Return the ranks that `future` waits for by now; takes no lock."""

    @abstractmethod
    def _end(self, future: Future[Any], error: CommunicationError, *, late: bool) -> None:
        """End `future`, which was waited for in vain, and what ends with it.

        late: True if this rank found out, which others do not know.
        """

    def _inquire(self, future: Future[Any]) -> int:
        """Look for a mistake of another rank, once a wait has taken `_PATIENCE` seconds."""
        return 0

    def _find_missing(self, future: Future[Any]) -> tuple[list[int], Known]:
        """Return the ranks to blame for a `future` that is late, and what is known of each."""
        return self._peers(future), nothing

    def _loop(self) -> None:
        try:
            while not self._mailbox.closed:
                letter = self._mailbox.take(_BUSY if self._pending else _IDLE)
                if letter is not None:
                    self._read(letter)
        except CommunicationError as error:
            self.fail(error)
        except Exception as error:  # carried to whoever waits, whatever it is
            self.fail(CommunicationError(f"{type(self).__name__}: {type(error).__name__}: {error}"))

    def wait_for(self, future: Future[Any]) -> None:
        """Return when `future` is done; after the timeout at the latest, by an error."""
        begun, inquired = time.monotonic(), False
        missing: list[int] | None = None
        known: Known = nothing

        def peers() -> list[int]:
            return self._peers(future) if missing is None else missing

        def known_of(name: int) -> str:
            return known(name)  # by then

        with self._ranks.waiting(future.operation, peers, known_of) as waiting:
            try:
                while not future.ends_within(_GLANCE):
                    waiting.look()
                    seconds = time.monotonic() - begun
                    if seconds > _PATIENCE and not inquired:
                        inquired = True
                        self._inquire(future)
                    if seconds > self.timeout:
                        missing, known = self._find_missing(future)
                        if not future.done:
                            self._end(future, waiting.hung(self.timeout), late=True)
            except CommunicationError as error:
                self._end(future, error, late=False)

    def fail(self, error: CommunicationError) -> None:
        """End all that is under way, and every later call, with `error`."""
        with self._lock:
            self._broken = self._broken or error
            pending, self._pending = self._pending, set()
            for future in pending:
                future.finish(error=self._broken)

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def close(self) -> None:
        """End the thread; the service is not used again, and answers no rank."""
        if self._broken is None:
            self._mailbox.close()
        else:
            self._mailbox.leave()
        self.fail(CommunicationError(f"rank {self.names[self.rank]} has closed this service"))
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)
