"""Ranks as threads of one process: for tests, and for trying a strategy without mpirun."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from cavs.distributed.communicator.collectives import Collectives, Message
from cavs.distributed.communicator.mailbox import Letter, Mailbox, decode
from cavs.distributed.communicator.protocol import Array, LostPeerError
from cavs.errors import CommunicationError

T = TypeVar("T")


class _World:
    """Mail between the ranks of one group, and what they have begun."""

    def __init__(self, size: int) -> None:
        self.changed = threading.Condition()
        self.mail: dict[tuple[int, int], deque[Array]] = defaultdict(deque)
        self.begun = [0] * size
        self.aborted = ""
        self.dead: set[int] = set()
        self.leaving: set[int] = set()  # survivors that wait for a smaller group
        self.smaller: _World | None = None
        self.groups: dict[tuple[int, int], _World] = {}
        self.memory: dict[int, Array] = {}  # common, the last of each rank
        self.boxes: dict[tuple[int, int], ThreadMailbox] = {}  # by number and rank


class ThreadCommunicator(Collectives):
    """Rank `rank` of a group whose ranks live in one process; `run_threads` makes them."""

    def __init__(self, world: _World, rank: int, size: int, *, timeout: float = 60.0) -> None:
        super().__init__(rank, size, timeout=timeout)
        self._world = world
        self._splits = self._mailboxes = 0
        self._parts: list[ThreadCommunicator] = []

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        world, limit = self._world, time.monotonic() + self.timeout
        with world.changed:
            world.begun[self._rank] = self.operations
            for array, to in sends:
                world.mail[self._rank, to].append(array.copy())
            world.changed.notify_all()
            for array, source in receives:
                letters = world.mail[source, self._rank]
                while not letters:
                    if world.aborted:
                        raise CommunicationError(world.aborted)
                    if world.leaving or source in world.dead:
                        raise LostPeerError(f"ranks {sorted(world.dead)} are gone")
                    if not world.changed.wait(limit - time.monotonic()):
                        raise self._hung()
                letter = letters.popleft()
                if letter.nbytes != array.nbytes:
                    raise CommunicationError(
                        f"rank {source} sent {letter.nbytes} bytes, rank {self._rank} expects "
                        f"{array.nbytes} in {self.operation}"
                    )
                array[...] = letter.view(array.dtype).reshape(array.shape)

    def _hung(self) -> CommunicationError:
        late = [r for r, n in enumerate(self._world.begun) if n < self.operations]
        who = ", ".join(f"rank {r}" for r in late) or "a rank"
        return CommunicationError(
            f"rank {self._rank} waited {self.timeout:g} s in {self.operation}: {who} did not come",
            hint="look at what that rank does, or pass a longer timeout",
        )

    def split(self, color: int, key: int = 0) -> ThreadCommunicator:
        """See `Communicator`."""
        every = self.share([color, key])
        members = sorted((k, r) for r, (c, k) in enumerate(every) if c == color)
        self._splits += 1
        with self._world.changed:
            group = self._world.groups.setdefault((self._splits, color), _World(len(members)))
        rank = [r for _, r in members].index(self._rank)
        part = ThreadCommunicator(group, rank, len(members), timeout=self.timeout)
        self._parts.append(part)
        return part

    def _map_common(self, nbytes: int) -> list[Array]:
        mine = np.zeros(nbytes, np.uint8)
        every = self.share(nbytes)
        with self._world.changed:
            self._world.memory[self._rank] = mine
        self.barrier()
        with self._world.changed:
            found = [self._world.memory[r] for r in range(len(every))]
        self.barrier()
        return found

    def mailbox(self) -> ThreadMailbox:
        """See `Communicator`."""
        box = ThreadMailbox(self._world, self._mailboxes, self._rank, self._size)
        self._mailboxes += 1
        with self._world.changed:
            self._world.boxes[box.number, self._rank] = box
        self.barrier()
        return box

    def close(self) -> None:
        """See `Communicator`."""
        with self._world.changed:
            boxes = [box for (_, rank), box in self._world.boxes.items() if rank == self._rank]
        for box in boxes:
            box.close()
        super().close()

    def die(self) -> None:
        """This rank takes part no longer, in parts of the group neither; the others find out."""
        for part in self._parts:
            part.die()
        with self._world.changed:
            self._world.dead.add(self._rank)
            self._world.changed.notify_all()

    def leave(self) -> None:
        """See `Communicator`."""
        with self._world.changed:
            self._world.leaving.add(self._rank)
            self._world.changed.notify_all()

    def shrink(self) -> ThreadCommunicator:
        """See `Communicator`."""
        self.leave()
        world = self._world
        with world.changed:
            while len(world.leaving | world.dead) < self._size:
                if not world.changed.wait(self.timeout):
                    raise self._hung()
            members = sorted(world.leaving - world.dead)
            if world.smaller is None:
                world.smaller = _World(len(members))
        self.close()
        rank = members.index(self._rank)
        return ThreadCommunicator(world.smaller, rank, len(members), timeout=self.timeout)

    def abort(self, message: str) -> None:
        """See `Communicator`."""
        with self._world.changed:
            self._world.aborted = message
            self._world.changed.notify_all()


class ThreadMailbox(Mailbox):
    """Of a rank that is a thread."""

    def __init__(self, world: _World, number: int, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.number, self._world = number, world
        self._others: deque[Letter] = deque()

    def _deliver(self, to: int, coded: Array) -> None:
        with self._world.changed:
            box = self._world.boxes[self.number, to]
        with box.changed:
            if not box.closed:  # who has left reads no more
                box._others.append(decode(self.rank, coded))
                box.changed.notify_all()

    def _arrived(self) -> Letter | None:
        with self.changed:
            if self._others:
                return self._others.popleft()
        with self._world.changed:
            if self._world.aborted:
                raise CommunicationError(self._world.aborted)
            if self._world.dead:
                raise LostPeerError(f"ranks {sorted(self._world.dead)} are gone")
        return None

    def _wait(self, longest: float, before: float) -> float:
        with self.changed:
            if not (self._own or self._others or self.closed):
                self.changed.wait(min(longest, 0.05))  # a rank may be gone
        return 0.0


def run_threads(
    size: int, work: Callable[[ThreadCommunicator], T], *, timeout: float = 60.0
) -> list[T]:
    """`work(communicator)` on `size` threads, one a rank; their results by rank.

    If ranks raise, the others are ended and the first exception by rank is raised again here.
    """
    world = _World(size)
    results: list[Any] = [None] * size
    errors: list[tuple[bool, int, BaseException]] = []

    def main(rank: int) -> None:
        communicator = ThreadCommunicator(world, rank, size, timeout=timeout)
        try:
            results[rank] = work(communicator)
        except BaseException as error:  # raised again by the caller's thread
            told = bool(world.aborted)
            errors.append((told, rank, error))
            communicator.abort(f"rank {rank} failed: {error}")
        finally:
            communicator.close()

    threads = [threading.Thread(target=main, args=(r,), daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise min(errors, key=lambda e: e[:2])[2]
    return results
