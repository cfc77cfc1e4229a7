"""Memory that all ranks of a host see: anonymous files, which end with the processes that map them.

A rank makes one for itself and maps those of the others by the numbers of their processes. Where
these mean nothing to it (containers with process numbers of their own, other users, another
system than Linux), there is none.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cavs.distributed.comm.interfaces import Array

_NAME = "cavs"
_TOKEN = 32  # bytes, behind the memory: by them a rank knows that it maps the right file


class CommonMemory:
    """Memory of every rank, by rank, as rank `rank` knows it: its own only while it is used."""

    def __init__(self, memory: Sequence[Array], rank: int) -> None:
        self._others = [array if r != rank else None for r, array in enumerate(memory)]
        self._begin, self._size = address_of(memory[rank]), memory[rank].nbytes
        self._used = weakref.ref(_owner(memory[rank]))

    @property
    def is_alive(self) -> bool:
        """True if this rank still uses it."""
        return self._used() is not None

    def like(self, flat: Array) -> list[Array]:
        """Return `flat` in the memory of every rank; nothing if it is stored elsewhere."""
        begin = address_of(flat) - self._begin
        end = begin + flat.nbytes
        if begin < 0 or end > self._size or not self.is_alive:
            return []
        return [flat if m is None else m[begin:end].view(flat.dtype) for m in self._others]


def _owner(array: Array) -> Any:
    """Return the object that lives as long as any array in the same memory."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner


def address_of(array: Array) -> int:
    """Return the address of its first element."""
    return int(array.__array_interface__["data"][0])


def map_common(rank: int, nbytes: int, share: Callable[[Any], list[Any]]) -> list[Array] | None:
    """Return memory of every rank, by rank; None on all ranks where one of them sees less.

    rank: of this process. share: brings all ranks everybody's JSON value.
    """
    token = os.urandom(_TOKEN)
    own = descriptor = None
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.memfd_create(_NAME)
        os.ftruncate(descriptor, nbytes + _TOKEN)
        own = _map(descriptor, nbytes)
        own[nbytes:] = np.frombuffer(token, np.uint8)
    try:
        every = share([socket.gethostname(), os.getpid(), descriptor, token.hex(), nbytes])
        found: list[Array] = []
        with contextlib.suppress(OSError):
            for r, (host, process, number, mark, size) in enumerate(every):
                if number is None or host != every[rank][0] or size != nbytes:
                    break
                memory = own if r == rank else _map_other(process, number, nbytes)
                if memory is None or memory[nbytes:].tobytes().hex() != mark:
                    break
                found.append(memory[:nbytes])
        usable = all(share(len(found) == len(every)))
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return found if usable else None


def _map_other(process: int, number: int, nbytes: int) -> Array:
    """Map the memory of another process; OSError for any other file that `number` leads to."""
    path = f"/proc/{process}/fd/{number}"
    if not os.readlink(path).startswith(f"/memfd:{_NAME} "):
        raise FileNotFoundError(path)
    file = os.open(path, os.O_RDWR)
    try:
        if os.fstat(file).st_size != nbytes + _TOKEN:
            raise FileNotFoundError(path)
        return _map(file, nbytes)
    finally:
        os.close(file)


def _map(descriptor: int, nbytes: int) -> Array:
    memory = mmap.mmap(descriptor, nbytes + _TOKEN)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
