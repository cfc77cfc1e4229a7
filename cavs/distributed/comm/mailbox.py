"""Letters between ranks: messages that no rank awaits, as servers need them.

Collectives are called by all ranks in one order. A server that applies gradients as they come must
take a letter from whoever writes first.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs.distributed.comm.traffic import Traffic
from cavs.errors import CommunicationError

Array = NDArray[Any]
_DTYPES = [np.dtype(name) for name in ("u1", "i4", "i8", "f4", "f8")]
_WORD = 8  # bytes; arrays begin at multiples of it


@dataclass(frozen=True)
class Letter:
    """A message from rank `source`."""

    source: int
    words: tuple[int, ...]  # the first says what the message is
    arrays: tuple[Array, ...]  # one axis each; they belong to the receiver

    def text(self) -> str:
        """Return the first array as text."""
        return self.arrays[0].tobytes().decode()


def as_text(text: str) -> Array:
    """Return text as an array, for a letter."""
    return np.frombuffer(text.encode(), np.uint8)


def letter_bytes(words: int, sizes: Sequence[int]) -> int:
    """Return the bytes of a letter of so many words and of arrays of so many bytes."""
    return _WORD * (2 + words + 2 * len(sizes)) + sum(-(-n // _WORD) * _WORD for n in sizes)


def encode(words: Sequence[int], arrays: Sequence[Array]) -> Array:
    """Return a letter as bytes, a copy."""
    sizes = [a.nbytes for a in arrays]
    head = [len(words), len(arrays), *words]
    for a in arrays:
        head += [_DTYPES.index(a.dtype), a.nbytes]
    out = np.empty(letter_bytes(len(words), sizes), np.uint8)
    at = _WORD * len(head)
    out[:at].view(np.int64)[...] = head
    for a in arrays:
        end = at + a.nbytes
        out[at:end].view(a.dtype)[...] = a.reshape(-1)
        at += -(-a.nbytes // _WORD) * _WORD
        out[end:at] = 0
    return out


def decode(source: int, coded: Array) -> Letter:
    """Return the letter in `coded`, whose memory its arrays keep."""
    counts = coded[: 2 * _WORD].view(np.int64)
    words, arrays = int(counts[0]), int(counts[1])
    at = _WORD * (2 + words + 2 * arrays)
    head = coded[:at].view(np.int64)[2:].tolist()
    found = []
    for code, nbytes in zip(head[words::2], head[words + 1 :: 2], strict=True):
        found.append(coded[at : at + nbytes].view(_DTYPES[code]))
        at += -(-nbytes // _WORD) * _WORD
    return Letter(source, tuple(head[:words]), tuple(found))


class Mailbox:
    """The letters of one rank. Any thread posts; one thread takes. This one is of a single rank.

    Letters from one rank to another keep their order. A letter to oneself costs no bytes.
    names: the numbers of the ranks in the world, for errors. sent_bytes: of letters to other ranks.
    traffic: counters of bytes, that of the communicator. outlives: True if letters of the others
    are taken after a rank has died; else `take` raises.
    """

    # Shortest and longest seconds between two looks at what has come; a rank may be gone meanwhile.
    _pauses = (0.05, 0.05)

    def __init__(self, rank: int, names: Sequence[int]) -> None:
        self.rank, self.size, self.names = rank, len(names), names
        self.traffic = Traffic()
        self.changed = threading.Condition()
        self._here: deque[Letter] = deque()
        self.sent_bytes, self.closed, self.outlives = 0, False, False

    def post(self, to: int, words: Sequence[int], arrays: Sequence[Array] = ()) -> None:
        """Send a letter and return at once; the arrays are copied."""
        coded = encode(words, arrays)
        with self.changed:
            if self.closed:
                raise CommunicationError(f"rank {self.names[self.rank]} has closed its mailbox")
            if to == self.rank:
                self._here.append(decode(to, coded))
                self.changed.notify_all()
                return
            self.sent_bytes += coded.nbytes
        self.traffic.count(self.names[to], sent=coded.nbytes)
        self._deliver(to, coded)

    def take(
        self, timeout: float, wanted: Callable[[Letter], bool] = lambda letter: True
    ) -> Letter | None:
        """Return the next letter, or None if none comes within `timeout` seconds or it was closed.

        wanted: True for letters to return; others stay. Raises `CommunicationError` if a rank is
        gone.
        """
        limit, pause = time.monotonic() + timeout, 0.0
        while not self.closed:
            with self.changed:
                for i, letter in enumerate(self._here):
                    if wanted(letter):
                        del self._here[i]
                        return letter
                seen = len(self._here)
            if arrived := self._arrived():
                if wanted(arrived):
                    return arrived
                with self.changed:
                    self._here.append(arrived)
                continue
            left = limit - time.monotonic()
            if left <= 0:
                return None
            shortest, longest = self._pauses
            pause = min(max(1.5 * pause, shortest), longest)
            with self.changed:
                if len(self._here) == seen and not self.closed:
                    self.changed.wait(min(left, pause))
        return None

    def _deliver(self, to: int, coded: Array) -> None:
        """Send bytes to another rank, without waiting."""
        raise CommunicationError(f"there is no rank {to} to write to")

    def lost(self) -> set[int]:
        """Return the ranks that are known to have died."""
        return set()

    def _arrived(self) -> Letter | None:
        """Return a letter that is not in `_here` yet, if there is one."""
        return None

    def leave(self) -> None:
        """End at once, because a rank is gone; what is posted may be lost."""
        self.close()

    def close(self) -> None:
        """Send what is posted, then end; `take` returns None."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
