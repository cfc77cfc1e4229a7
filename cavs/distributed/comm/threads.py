"""Ranks as threads of one process: for tests, and for trying a strategy without mpirun."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from cavs.distributed.comm.collectives import Collectives
from cavs.distributed.comm.hang_detection import Wait, WaitRegister
from cavs.distributed.comm.interfaces import Array, LostPeerError
from cavs.distributed.comm.mailbox import Letter, Mailbox, decode
from cavs.distributed.comm.messages import Code, Message, Mismatch, label_of
from cavs.distributed.comm.pool import join_pool
from cavs.errors import CommunicationError, ConfigError

T = TypeVar("T")


class _World:
    """State that the ranks of one group share, and all parts of `whole`, the group of all ranks.

    hosts: the host of each of its ranks, by the numbers in `whole`. changed: guards the state, and
    wakes ranks in agreements. arrived: wakes the rank of a number that messages come to.
    """

    def __init__(self, hosts: Mapping[int, str], whole: _World | None = None) -> None:
        self.hosts, self.names, self.whole = hosts, list(hosts), whole or self
        self.changed: threading.Condition
        self.arrived: dict[int, threading.Condition]
        if whole is not None:
            self.changed, self.arrived = whole.changed, whole.arrived
        else:  # one lock, and a condition for each rank: a message wakes no other
            lock = threading.RLock()
            self.changed = threading.Condition(lock)
            self.arrived = {name: threading.Condition(lock) for name in self.names}
        # In `whole` alone:
        self.aborted = ""
        self.registers = {name: WaitRegister(name, self.ask) for name in self.names}
        self.mail: dict[tuple[int, int], deque[tuple[Code, Array, float]]] = defaultdict(deque)
        self.dead: set[int] = set()
        self.leaving: set[int] = set()  # survivors that wait for a smaller group
        self.smaller: _World | None = None
        self.ballots: dict[int, dict[int, bool]] = defaultdict(dict)  # by number; flag by rank
        self.verdicts: dict[int, bool] = {}
        self.groups: dict[tuple[int, int], _World] = {}
        self.subgroups: dict[tuple[int, ...], _World] = {}  # by number and ranks
        self.boxes: dict[tuple[int, int], ThreadMailbox] = {}  # by number and rank

    def wake_all(self) -> None:
        """Wake the ranks of all groups, whatever they wait for; the caller holds the lock."""
        for condition in (self.changed, *self.arrived.values()):
            condition.notify_all()

    def ask(self) -> dict[int, list[Wait]]:
        """Return the waits of all ranks."""
        with self.changed:
            return {number: register.own() for number, register in self.registers.items()}

    def hosts_of(self, ranks: Iterable[int]) -> dict[int, str]:
        """Return the hosts of some ranks, by their numbers in `whole`."""
        return {self.names[r]: self.hosts[self.names[r]] for r in ranks}

    def lost(self) -> LostPeerError:
        """Return the error that ranks have died."""
        gone = sorted(self.names[r] for r in self.dead or self.leaving)
        return LostPeerError(f"ranks {gone} {'are gone' if self.dead else 'have left'}")


class ThreadCommunicator(Collectives):
    """Rank `rank` of a group whose ranks live in one process; `run_threads` makes them."""

    def __init__(self, world: _World, rank: int, *, timeout: float = 60.0) -> None:
        register = world.whole.registers[world.names[rank]]
        super().__init__(rank, world.names, timeout, register, str(id(world)))
        self._world = world
        self._splits = self._mailboxes = self._ballots = 0
        self._parts: list[ThreadCommunicator] = []
        self._arrivals: list[float] = []  # times of the messages received last
        self._smaller: ThreadCommunicator | None = None  # the result of `shrink`

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        world, limit = self._world, time.monotonic() + self.timeout
        self._arrivals = []
        with world.changed:
            for array, to in sends:
                world.mail[self.rank, to].append((self._code, array.copy(), time.perf_counter()))
                world.arrived[world.names[to]].notify_all()
            for i, (array, source) in enumerate(receives):
                self._await([r for _, r in receives[i:]], limit)
                code, sent, at = world.mail[source, self.rank].popleft()
                self._arrivals.append(at)
                label, wanted = label_of(code, sent), label_of(self._code, array)
                if label != wanted or sent.nbytes != array.nbytes:
                    found = Mismatch(source, sent.nbytes, label, array.nbytes, wanted)
                    raise found.error(self.names, self.rank, self.operation)
                array[...] = sent.reshape(array.shape)

    def _receive(self, receives: Sequence[Message]) -> list[float]:
        begun = time.perf_counter()
        self._exchange([], receives)
        return [max(at, begun) for at in self._arrivals]

    def _await(self, sources: Sequence[int], limit: float) -> None:
        """Wait for a message of the first of `sources`; messages of the others are to follow."""
        world, mail = self._world, self._world.mail
        arrived = world.arrived[world.names[self.rank]]
        if mail[sources[0], self.rank]:
            return
        with self._waiting(
            self.operation, lambda: [r for r in sources if not mail[r, self.rank]]
        ) as waiting:
            while not mail[sources[0], self.rank]:
                if world.whole.aborted:
                    raise CommunicationError(world.whole.aborted)
                if world.leaving or sources[0] in world.dead:
                    raise world.lost()
                if not arrived.wait(limit - time.monotonic()):
                    raise waiting.hung(self.timeout)

    def _check_alive(self) -> None:
        if self._world.leaving or self._world.dead:
            raise self._world.lost()

    def split(self, color: int, key: int = 0) -> ThreadCommunicator:
        every = self.share([color, key])
        members = [r for _, r in sorted((k, r) for r, (c, k) in enumerate(every) if c == color)]
        self._splits += 1
        world = self._world
        with world.changed:
            hosts = world.hosts_of(members)
            group = world.groups.setdefault((self._splits, color), _World(hosts, world.whole))
        part = ThreadCommunicator(group, members.index(self.rank), timeout=self.timeout)
        part.traffic = self.traffic
        self._parts.append(part)
        return part

    def _host(self) -> str:
        return self._world.hosts[self.names[self.rank]]

    def subgroup(self, ranks: Sequence[int], number: int, mailbox: Mailbox) -> ThreadCommunicator:
        world = self._world
        with world.changed:
            key = (number, *ranks)
            if key not in world.subgroups:
                world.subgroups[key] = _World(world.hosts_of(ranks), world.whole)
            group = world.subgroups[key]
        part = ThreadCommunicator(group, list(ranks).index(self.rank), timeout=self.timeout)
        part.traffic = self.traffic
        self._parts.append(part)
        return part

    def mailbox(self) -> ThreadMailbox:
        box = ThreadMailbox(self._world, self._mailboxes, self.rank)
        box.traffic = self.traffic
        self._mailboxes += 1
        with self._world.changed:
            self._world.boxes[box.number, self.rank] = box
        self.barrier()
        return box

    def close(self) -> None:
        with self._world.changed:
            boxes = [box for (_, rank), box in self._world.boxes.items() if rank == self.rank]
        for box in boxes:
            box.close()
        for part in self._parts:
            part.close()
        super().close()

    def die(self) -> None:
        """Let this rank take part no longer, nor in parts of the group; the others find out."""
        for part in self._parts:
            part.die()
        with self._world.changed:
            self._world.dead.add(self.rank)
            self._world.wake_all()

    def agree(self, flag: bool) -> bool:
        world, number = self._world, self._ballots
        self._ballots += 1
        with world.changed:  # one ballot for all
            ballot = world.ballots[number]

        def missing() -> list[int]:
            return [r for r in range(self.size) if r not in ballot and r not in world.dead]

        with world.changed:
            ballot[self.rank] = flag
            world.changed.notify_all()
            with self._waiting("agreement", missing) as waiting:
                while number not in world.verdicts and missing():
                    if world.whole.aborted:
                        raise CommunicationError(world.whole.aborted)
                    if not world.changed.wait(self.timeout):
                        raise waiting.hung(self.timeout)
            return world.verdicts.setdefault(number, all(ballot.values()) and not world.dead)

    def leave(self) -> None:
        super().leave()
        with self._world.changed:
            self._world.leaving.add(self.rank)
            self._world.wake_all()

    def shrink(self) -> ThreadCommunicator:
        self.leave()
        world = self._world

        def missing() -> list[int]:
            return [r for r in range(self.size) if r not in world.leaving | world.dead]

        with world.changed:
            with self._waiting("shrink", missing) as waiting:
                while missing():
                    if not world.changed.wait(self.timeout):
                        raise waiting.hung(self.timeout)
            members = sorted(world.leaving - world.dead)
            if world.smaller is None:
                world.smaller = _World(world.hosts_of(members))
        self.close()
        number = members.index(self.rank)
        self._smaller = ThreadCommunicator(world.smaller, number, timeout=self.timeout)
        return self._smaller

    def close_all(self) -> None:
        """Close the communicator, and those of its survivors, with all threads of this rank."""
        last: ThreadCommunicator | None = self
        while last is not None:
            last.close()
            last = last._smaller

    def abort(self, message: str) -> None:
        world = self._world.whole
        with world.changed:
            world.aborted = message
            world.wake_all()


class ThreadMailbox(Mailbox):
    """The mailbox of a rank that is a thread."""

    def __init__(self, world: _World, number: int, rank: int) -> None:
        super().__init__(rank, world.names)
        self.number, self._world = number, world

    def _deliver(self, to: int, coded: Array) -> None:
        with self._world.changed:
            if self.rank in self._world.dead:
                return
            box = self._world.boxes[self.number, to]
        with box.changed:
            if not box.closed:  # a rank that has left reads no letters
                box.traffic.count(self.names[self.rank], received=coded.nbytes)
                box._here.append(decode(self.rank, coded))
                box.changed.notify_all()

    def lost(self) -> set[int]:
        with self._world.changed:
            return set(self._world.dead)

    def _arrived(self) -> Letter | None:
        with self._world.changed:
            if self._world.whole.aborted:
                raise CommunicationError(self._world.whole.aborted)
            if self._world.dead and not self.outlives:
                raise self._world.lost()
        return None


def run_threads(
    size: int,
    work: Callable[[Any], T],
    *,
    timeout: float = 60.0,
    hosts: Sequence[str] | None = None,
    spares: int = 0,
) -> list[T]:
    """Run `work(communicator)` on `size` threads, one a rank; return the results by rank.

    hosts: a name for each rank; ranks of one name share memory. One host unless given. spares:
    number of further threads, which wait to join a training. If ranks raise, the others are ended
    and the first exception by rank is raised again here.
    """
    size += spares
    names = ["localhost"] * size if hosts is None else list(hosts)
    if len(names) != size:
        raise ConfigError(f"{len(names)} hosts for {size} ranks", hint="name one for each rank")
    world = _World(dict(enumerate(names)))
    results: list[Any] = [None] * size
    errors: list[tuple[bool, int, BaseException]] = []

    def main(rank: int) -> None:
        communicator = ThreadCommunicator(world, rank, timeout=timeout)
        try:
            results[rank] = work(join_pool(communicator, spares) if spares else communicator)
        except BaseException as error:  # raised again by the caller's thread
            told = bool(world.aborted)
            errors.append((told, rank, error))
            communicator.abort(f"rank {rank} failed: {error}")
        finally:
            communicator.close_all()

    threads = [threading.Thread(target=main, args=(r,), daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise min(errors, key=lambda e: e[:2])[2]
    return results
