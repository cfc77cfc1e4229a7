"""A store of arrays that other ranks read while this one computes (KungFu's `keep` and `request`).

A rank keeps a copy of its arrays under a tag; any other rank requests them by rank, name and tag,
without a call on the side of the rank that keeps them (Mai et al., OSDI 2020, section 3.3). A rank
may also combine arrays of its own with those that another one keeps.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavs.config import is_whole, require
from cavs.distributed.comm.hang_detection import Known
from cavs.distributed.comm.mailbox import Array, Letter, as_text
from cavs.distributed.comm.messages import check_rank
from cavs.distributed.comm.reductions import check_op
from cavs.distributed.comm.service import Future, Ranks, Service
from cavs.distributed.comm.store_entry import (
    Arrival,
    Name,
    StoreEntry,
    StoreRequest,
    Transfer,
    Value,
    arrays_of,
    by_name,
    chosen,
    combined,
    packed,
    unfit,
    value_of,
)
from cavs.errors import CommunicationError, ConfigError

_REQUEST, _REPLY, _REFUSE, _CANCEL, _PING, _PONG, _COMBINE, _PART, _NEXT = range(9)
_WHOLE = 1 << 16  # bytes of an answer that travels in one letter
_PACE = 0.004  # seconds that a part of a larger one takes, if it can


class Reply(NamedTuple):
    """Arrays of another rank. version: of these, see `Store.keep`. seconds: from the request to the
    reply."""

    value: Any
    version: int
    seconds: float


@dataclass(eq=False)
class _Request:
    rank: int
    tag: str
    version: int
    future: Future[Reply]
    callback: Callable[[Reply], None] | None = None
    begun: float = field(default_factory=time.perf_counter)
    arrival: Arrival | None = None
    asked: float = 0.0  # when the last part was asked for


class Store(Service):
    """Arrays that ranks keep for each other. All ranks create it together.

    Each rank has arrays of its own; a request may go to any rank, this one included. Requests are
    served by a thread, whatever the rank does; large answers travel in parts of a few milliseconds,
    between which other messages pass. LostPeerError on all that waits if a rank dies.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._kept: dict[str, StoreEntry] = {}
        self._waiting: dict[str, list[StoreRequest]] = defaultdict(list)
        self._requests: dict[int, _Request] = {}
        self._leaving: dict[tuple[int, int], Transfer] = {}  # by rank and number of the request
        self._numbers, self._turns = itertools.count(), Counter[str]()
        self._counts = np.zeros(ranks.size, np.int64)
        self._seconds = np.zeros(ranks.size)
        super().__init__(ranks)

    # ---- keep ----------------------------------------------------------------------------------

    def keep(self, value: Value, tag: str, version: int | None = None) -> int:
        """Keep a copy of an array, a sequence of arrays or arrays by name; return its version.

        It replaces the arrays kept under `tag` before: a request sees all of one version. Any shape
        and any dtype that can be sent. version: a number above that of the arrays before; one more,
        beginning with 1, unless given.
        """
        layout, arrays = by_name(value)
        copies = {name: np.array(array, order="C") for name, array in arrays.items()}
        with self._lock:
            self._check()
            before = self.version(tag)
            version = before + 1 if version is None else version
            if version <= before:
                hint = "count versions upwards"
                raise ConfigError(f"version {version} of {tag!r} after version {before}", hint=hint)
            self._kept[tag] = StoreEntry(version, layout, copies)
        self._serve(tag)
        return version

    def kept(self, tag: str) -> list[Array]:
        """Return the arrays that this rank keeps under `tag` by now, for reading only."""
        with self._lock:
            found = self._kept.get(tag)
        return [] if found is None else list(found.arrays.values())

    def version(self, tag: str) -> int:
        """Return the version of what this rank keeps under `tag`; 0 if that is nothing."""
        found = self._kept.get(tag)
        return found.version if found else 0

    def next_turn(self, tag: str) -> int:
        """Return how often this has been called for `tag`, which ranks in step have alike."""
        self._turns[tag] += 1
        return self._turns[tag]

    # ---- requests ------------------------------------------------------------------------------

    def request(self, rank: int, name: Name, tag: str) -> Any:
        """Return what `rank` keeps under `tag`: an array, a list or a dict, as it was kept.

        name: of one array, the number of one in a sequence, or None for all. A request before the
        first `keep` waits; CommunicationError after the timeout. ConfigError if there is no such
        rank or name.
        """
        return self.request_async(rank, name, tag).wait().value

    def request_async(
        self,
        rank: int,
        name: Name,
        tag: str,
        callback: Callable[[Reply], None] | None = None,
        *,
        version: int = 1,
    ) -> Future[Reply]:
        """Return a handle at once; `wait` returns a `Reply`.

        callback: called with the reply on the thread of the store, before the handle is done. It
        must be short and wait for no rank; an error that it raises is that of the handle. version:
        the request waits until `rank` keeps this one or a later one.
        """
        if name is not None and not isinstance(name, str):
            require(is_whole(name), "name", name, "a name, the number of an array, or None")
            name = int(name)
        what = f"request of {f'{name!r} in ' if name is not None else ''}{tag!r} from rank"
        text = as_text(json.dumps([tag, name, version]))
        request = _Request(
            rank, tag, version, Future(self, f"{what} {self._named(rank)}"), callback
        )
        return self._ask(_REQUEST, request, text)

    def combine(
        self, rank: int, value: Value, tag: str, op: str = "mean", *, version: int = 1
    ) -> Future[Reply]:
        """Reduce `value` and what `rank` keeps under `tag`; both have the result.

        op: "sum", "min", "max" or "mean". Arrays must have the names, shapes and dtypes of those
        that are kept. `rank` keeps the result as one version more, at once: a request or another
        `combine` sees the arrays before it or after it. version: the reduction waits until `rank`
        keeps this one or a later one. Returns a handle of a `Reply` with the result.
        """
        layout, arrays = by_name(value)
        for array in arrays.values():
            check_op(op, array.dtype.name)
        head, data = packed(layout, arrays)
        future: Future[Reply] = Future(self, f"{op} of {tag!r} with rank {self._named(rank)}")
        text = as_text(json.dumps([tag, op, version, head]))
        return self._ask(_COMBINE, _Request(rank, tag, version, future), text, *data)

    def cancel(self, future: Future[Reply]) -> None:
        """End a request with a `CommunicationError`; a reply that still comes is ignored."""
        self._end(future, CommunicationError(f"{future.operation} was cancelled"), late=False)

    def ping(self, rank: int, nbytes: int = 0) -> float:
        """Return the seconds that a message of `nbytes` bytes to `rank` and back takes."""
        future: Future[Reply] = Future(self, f"ping of rank {self._named(rank)}")
        payload = np.zeros(nbytes, np.uint8)
        return self._ask(_PING, _Request(rank, "", 0, future), payload).wait().seconds

    def request_counts(self) -> NDArray[np.int64]:
        """Return the number of requests that each rank has answered, int64[K]."""
        with self._lock:
            return self._counts.copy()

    def request_seconds(self) -> NDArray[np.float64]:
        """Return the mean seconds from request to reply by rank, float64[K]; 0 without any."""
        with self._lock:
            return self._seconds / np.maximum(self._counts, 1)

    def _named(self, rank: int) -> int:
        check_rank(rank, self.size)
        return self.names[rank]

    def _ask(self, letter: int, request: _Request, *arrays: Array) -> Future[Reply]:
        with self._lock:
            self._check()
            number = next(self._numbers)
            self._requests[number] = request
            self._pending.add(request.future)
        try:
            self._mailbox.post(request.rank, [letter, number], arrays)
        except CommunicationError as error:
            self.fail(error)
        return request.future

    def _serve(self, tag: str) -> None:
        """Answer the requests of a tag that wait for no later version, as they came."""
        answers = []
        with self._lock:
            waiting = self._waiting[tag]
            while ready := next((w for w in waiting if w.version <= self.version(tag)), None):
                waiting.remove(ready)
                kept = self._kept[tag]
                misfit = unfit(tag, kept, ready)
                if ready.op and not misfit:
                    kept = self._kept[tag] = combined(kept, ready)
                answers.append((ready, kept, misfit))
            if not waiting:
                del self._waiting[tag]
        for asked, kept, misfit in answers:
            if misfit:
                text = as_text(f"rank {self.names[self.rank]} keeps {misfit}")
                self._mailbox.post(asked.rank, [_REFUSE, asked.number], [text])
                continue
            head, data = packed(*chosen(kept, asked))
            if asked.rank != self.rank and sum(x.size for x in data) > _WHOLE:
                with self._lock:
                    self._leaving[asked.rank, asked.number] = Transfer(kept.version, head, data)
                self._send_part(asked.rank, asked.number, _WHOLE)
                continue
            words = [_REPLY, asked.number, kept.version]
            self._mailbox.post(asked.rank, words, [as_text(json.dumps(head)), *data])

    def _send_part(self, rank: int, number: int, nbytes: int) -> None:
        """Send the next part of an answer, unless the request has been cancelled."""
        with self._lock:
            transfer = self._leaving.get((rank, number))
            if transfer is None:
                return
            head = "" if transfer.sent else json.dumps(transfer.head)
            part = transfer.next(nbytes)
            if transfer.is_done:
                del self._leaving[rank, number]
        words = [_PART, number, transfer.version, transfer.data.size]
        self._mailbox.post(rank, words, [as_text(head), part])

    # ---- letters -------------------------------------------------------------------------------

    def _read(self, letter: Letter) -> None:
        action, number = letter.words[:2]
        if action == _PING:
            self._mailbox.post(letter.source, [_PONG, number], letter.arrays)
        elif action in (_REQUEST, _COMBINE):
            tag, what, version, *heads = json.loads(letter.text())
            arrays = arrays_of(heads[0], letter.arrays[1:]) if heads else {}
            name, op = (None, what) if heads else (what, "")
            with self._lock:
                asked = StoreRequest(letter.source, number, name, max(version, 1), op, arrays)
                self._waiting[tag].append(asked)
            self._serve(tag)
        elif action == _CANCEL:
            with self._lock:
                for waiting in self._waiting.values():
                    waiting[:] = [w for w in waiting if w[:2] != (letter.source, number)]
                self._leaving.pop((letter.source, number), None)
        elif action == _NEXT:
            self._send_part(letter.source, number, letter.words[2])
        elif action == _PART:
            self._take_part(letter)
        elif action == _REPLY:
            head = json.loads(letter.text())
            value = value_of(head[0], arrays_of(head, letter.arrays[1:]))
            self._finish(number, value, letter.words[2])
        elif action == _REFUSE:
            hint = "ask for a name that is kept, or None for all; combine arrays of one form"
            self._finish(number, error=ConfigError(letter.text(), hint=hint))
        else:
            self._finish(number)

    def _take_part(self, letter: Letter) -> None:
        """Store a part of an answer, and ask for the next one or finish the request."""
        _, number, version, nbytes = letter.words
        now, part = time.perf_counter(), letter.arrays[1]
        with self._lock:
            request = self._requests.get(number)
            if request is None:  # it came too late
                return
            if request.arrival is None:
                request.arrival = Arrival(version, json.loads(letter.text()), nbytes, _PACE)
            arrival, asked = request.arrival, request.asked or request.begun
            wanted, request.asked = arrival.take(part, now - asked), now
        if wanted:
            self._mailbox.post(request.rank, [_NEXT, number, wanted])
        else:
            self._finish(number, value_of(arrival.head[0], arrival.arrays()), version)

    def _finish(
        self, number: int, value: Any = None, version: int = 0, error: ConfigError | None = None
    ) -> None:
        """Finish a request. version: of an answer; 0 of a ping."""
        with self._lock:
            request = self._requests.pop(number, None)
            if request is None:  # it came too late
                return
            self._pending.discard(request.future)
            seconds = time.perf_counter() - request.begun
            if version:
                self._counts[request.rank] += 1
                self._seconds[request.rank] += seconds
        if error is not None:
            request.future.finish(error=error)
            return
        reply = Reply(value, version, seconds)
        try:
            if request.callback is not None:
                request.callback(reply)
        except Exception as failed:  # the caller's, raised again by `wait`
            request.future.finish(error=failed)
        request.future.finish(reply)

    # ---- errors --------------------------------------------------------------------------------

    def _request_of(self, future: Future[Any]) -> tuple[int, _Request] | None:
        every = tuple(self._requests.items())
        return next(((n, r) for n, r in every if r.future is future), None)

    def _peers(self, future: Future[Any]) -> list[int]:
        found = self._request_of(future)
        return [found[1].rank] if found else []

    def _find_missing(self, future: Future[Any]) -> tuple[list[int], Known]:
        found = self._request_of(future)
        if found is None or not found[1].tag:
            return super()._find_missing(future)
        request = found[1]
        lacking = "nothing" if request.version == 1 else f"no version {request.version} yet"
        text = f"has kept {lacking} under {request.tag!r}"
        owner = self.names[request.rank]
        return [request.rank], lambda name: text if name == owner else ""

    def _end(self, future: Future[Any], error: CommunicationError, *, late: bool) -> None:
        with self._lock:
            if found := self._request_of(future):
                number, request = found
                del self._requests[number]
                self._pending.discard(future)
        future.finish(error=error)
        if found:
            with suppress(CommunicationError):  # a rank that is gone needs no letter
                self._mailbox.post(request.rank, [_CANCEL, number])

    def fail(self, error: CommunicationError) -> None:
        with self._lock:
            super().fail(error)
            self._requests.clear()
            self._waiting.clear()
            self._leaving.clear()
