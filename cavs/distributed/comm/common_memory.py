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
    token, descriptor = os.urandom(_TOKEN), None
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.memfd_create(_NAME)
        os.ftruncate(descriptor, nbytes + _TOKEN)
        os.pwrite(descriptor, token, nbytes)
    try:
        every = share([socket.gethostname(), os.getpid(), descriptor, token.hex(), nbytes])
        found: list[Array] = []
        with contextlib.suppress(OSError):
            for host, process, number, mark, size in every:
                if number is not None and host == every[rank][0] and size == nbytes:
                    found.append(_map(f"/proc/{process}/fd/{number}", nbytes, mark))
        usable = all(share(len(found) == len(every)))
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return found if usable else None


def _map(path: str, nbytes: int, mark: str) -> Array:
    """Map the memory of a process; OSError for any other file that `path` leads to."""
    if not os.readlink(path).startswith(f"/memfd:{_NAME} "):
        raise FileNotFoundError(path)
    with open(path, "r+b", buffering=0) as file:
        if os.fstat(file.fileno()).st_size != nbytes + _TOKEN:
            raise FileNotFoundError(path)
        memory = mmap.mmap(file.fileno(), nbytes + _TOKEN)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    if array[nbytes:].tobytes().hex() != mark:
        raise FileNotFoundError(path)
    return array[:nbytes]
