"""A store of arrays that other ranks read while this one computes (KungFu's `keep` and `request`).

A rank keeps a copy of its arrays under a tag; any other rank requests them by rank, name and tag,
without a call on the side of the rank that keeps them (Mai et al., OSDI 2020, section 3.3).
"""

from __future__ import annotations

import itertools
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.comm.hang_detection import Known
from cavs.distributed.comm.mailbox import Array, Letter, as_text
from cavs.distributed.comm.messages import check_rank, dtype_code
from cavs.distributed.comm.service import Future, Ranks, Service
from cavs.errors import CommunicationError, ConfigError

Name = str | int | None
Value = Array | Sequence[Array] | Mapping[str, Array]
_REQUEST, _REPLY, _REFUSE, _CANCEL, _PING, _PONG = range(6)


class Reply(NamedTuple):
    """Arrays of another rank. version: counts its `keep`s of the tag from 1. seconds: from the
    request to the reply."""

    value: Any
    version: int
    seconds: float


class _Kept(NamedTuple):
    """Copies of arrays, never written again. layout: type of the value they are made of."""

    version: int
    layout: str
    arrays: dict[Name, Array]


@dataclass(eq=False)
class _Request:
    rank: int
    tag: str
    future: Future[Reply]
    callback: Callable[[Reply], None] | None
    begun: float


class Store(Service):
    """Arrays that ranks keep for each other. All ranks create it together.

    Each rank has arrays of its own; a request may go to any rank, this one included. Requests are
    served by a thread, whatever the rank does. LostPeerError on all that waits if a rank dies.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._kept: dict[str, _Kept] = {}
        self._waiting: dict[str, dict[tuple[int, int], Name]] = defaultdict(dict)
        self._requests: dict[int, _Request] = {}
        self._numbers = itertools.count()
        self._counts = np.zeros(ranks.size, np.int64)
        self._seconds = np.zeros(ranks.size)
        super().__init__(ranks)

    # ---- keep ----------------------------------------------------------------------------------

    def keep(self, value: Value, tag: str) -> int:
        """Keep a copy of an array, a sequence of arrays or arrays by name; return its version.

        It replaces the arrays kept under `tag` before: a request sees all of one version. Any shape
        and any dtype that can be sent.
        """
        arrays: dict[Name, Array]
        if isinstance(value, Mapping):
            layout, arrays = "mapping", dict(value.items())
        elif isinstance(value, np.ndarray):
            layout, arrays = "array", {None: value}
        else:
            layout, arrays = "sequence", dict(enumerate(value))
        for array in arrays.values():
            dtype_code(array)
        copies = {name: np.array(array, order="C") for name, array in arrays.items()}
        with self._lock:
            self._check()
            kept = _Kept(self.version(tag) + 1, layout, copies)
            self._kept[tag] = kept
            waiting = self._waiting.pop(tag, {})
        for (rank, number), name in waiting.items():
            self._answer(rank, number, name, tag, kept)
        return kept.version

    def version(self, tag: str) -> int:
        """Return how often this rank has kept something under `tag`."""
        kept = self._kept.get(tag)
        return kept.version if kept else 0

    # ---- requests ------------------------------------------------------------------------------

    def request(self, rank: int, name: Name, tag: str) -> Any:
        """Return what `rank` keeps under `tag`: an array, a list or a dict, as it was kept.

        name: of one array, the number of one in a sequence, or None for all. A request before the
        first `keep` waits; CommunicationError after the timeout. ConfigError if there is no such
        rank or name.
        """
        return self.request_async(rank, name, tag).wait().value

    def request_async(
        self, rank: int, name: Name, tag: str, callback: Callable[[Reply], None] | None = None
    ) -> Future[Reply]:
        """Return a handle at once; `wait` returns a `Reply`.

        callback: called with the reply on the thread of the store, before the handle is done. It
        must be short and wait for no rank; an error that it raises is that of the handle.
        """
        what = f"request of {f'{name!r} in ' if name is not None else ''}{tag!r} from rank"
        text = as_text(json.dumps([tag, name]))
        return self._ask(_REQUEST, rank, f"{what} {self._named(rank)}", tag, callback, text)

    def ping(self, rank: int, nbytes: int = 0) -> float:
        """Return the seconds that a message of `nbytes` bytes to `rank` and back takes."""
        payload, what = np.zeros(nbytes, np.uint8), f"ping of rank {self._named(rank)}"
        return self._ask(_PING, rank, what, "", None, payload).wait().seconds

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

    def _ask(
        self,
        letter: int,
        rank: int,
        operation: str,
        tag: str,
        callback: Callable[[Reply], None] | None = None,
        *arrays: Array,
    ) -> Future[Reply]:
        future: Future[Reply] = Future(self, operation)
        with self._lock:
            self._check()
            number = next(self._numbers)
            self._requests[number] = _Request(rank, tag, future, callback, time.perf_counter())
            self._pending.add(future)
        try:
            self._mailbox.post(rank, [letter, number], arrays)
        except CommunicationError as error:
            self.fail(error)
        return future

    def _answer(self, rank: int, number: int, name: Name, tag: str, kept: _Kept) -> None:
        if name is not None and name not in kept.arrays:
            has = f"keeps {', '.join(map(repr, kept.arrays))} under {tag!r}, not {name!r}"
            text = f"rank {self.names[self.rank]} {has}"
            self._mailbox.post(rank, [_REFUSE, number], [as_text(text)])
            return
        chosen = kept.arrays if name is None else {None: kept.arrays[name]}
        layout = kept.layout if name is None else "array"
        head = [layout, [[key, a.dtype.name, a.shape] for key, a in chosen.items()]]
        arrays = [a.reshape(-1).view(np.uint8) for a in chosen.values()]
        words = [_REPLY, number, kept.version]
        self._mailbox.post(rank, words, [as_text(json.dumps(head)), *arrays])

    # ---- letters -------------------------------------------------------------------------------

    def _read(self, letter: Letter) -> None:
        action, number = letter.words[:2]
        if action == _PING:
            self._mailbox.post(letter.source, [_PONG, number], letter.arrays)
        elif action == _REQUEST:
            tag, name = json.loads(letter.text())
            with self._lock:
                kept = self._kept.get(tag)
                if kept is None:
                    self._waiting[tag][letter.source, number] = name
            if kept is not None:
                self._answer(letter.source, number, name, tag, kept)
        elif action == _CANCEL:
            with self._lock:
                for waiting in self._waiting.values():
                    waiting.pop((letter.source, number), None)
        else:
            self._take(letter)

    def _take(self, letter: Letter) -> None:
        """Finish the request that a letter answers."""
        action, number = letter.words[:2]
        with self._lock:
            request = self._requests.pop(number, None)
            if request is None:  # it came too late
                return
            self._pending.discard(request.future)
            seconds = time.perf_counter() - request.begun
            if action == _REPLY:
                self._counts[request.rank] += 1
                self._seconds[request.rank] += seconds
        if action == _REFUSE:
            hint = "request a name that is kept, or None for all"
            request.future.finish(error=ConfigError(letter.text(), hint=hint))
            return
        reply = Reply(None, 0, seconds)
        try:
            if action == _REPLY:
                reply = Reply(_value(letter), letter.words[2], seconds)
            if request.callback is not None:
                request.callback(reply)
        except Exception as error:  # the caller's, raised again by `wait`
            request.future.finish(error=error)
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
        text = f"has kept nothing under {request.tag!r}"
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


def _value(letter: Letter) -> Any:
    """Return the arrays of a reply, as they were kept."""
    layout, heads = json.loads(letter.text())
    arrays = {
        key: data.view(np.dtype(dtype)).reshape(shape)
        for (key, dtype, shape), data in zip(heads, letter.arrays[1:], strict=True)
    }
    if layout == "array":
        return next(iter(arrays.values()))
    return arrays if layout == "mapping" else list(arrays.values())
