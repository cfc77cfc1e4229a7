"""Parameters with bounded staleness, or none: the worker's side, and the thread that serves.

Every rank has a mailbox and a thread that reads it while the rank computes: it applies what others
push to the parameters that are owned here, and keeps what owners write to this rank. A worker
begins a step when the owners of all parameters have told it values that are fresh enough: with its
own steps before applied, and those of the others up to the staleness.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cavs.distributed.comm.agreement import agreed, failed_elsewhere
from cavs.distributed.comm.interfaces import Communicator, LostPeerError
from cavs.distributed.comm.mailbox import Letter, as_text
from cavs.distributed.strategy.roles import leader_of
from cavs.distributed.sync.part import Array, pack, unpack
from cavs.distributed.sync.stale_server import letters
from cavs.distributed.sync.stale_server.layout import Layout
from cavs.distributed.sync.stale_server.owner import Owner
from cavs.errors import CommunicationError

_GRACE = 3.0  # seconds that an owner has to say how far the workers are


class StaleServers:
    """Servers and worker of one rank; all ranks create them together.

    values: all parameters, flat: what this rank computes with. workers: the ranks that make steps.
    teams: those of them that make each step together; one of a team speaks to each owner, with the
    sum of their gradients. Each alone unless given.
    """

    def __init__(
        self,
        c: Communicator,
        layout: Layout,
        values: Sequence[Array],
        workers: Sequence[int],
        *,
        average: bool = True,
        teams: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.teams = [[w] for w in workers] if teams is None else [list(team) for team in teams]
        self.layout, self.values, self.timeout = layout, list(values), c.timeout
        self.rank, self.size, self.workers = c.rank, c.size, list(workers)
        self.names, self._waiting = c.names, c.waiting
        self.reduction = 1.0 / len(self.workers) if average else 1.0
        self.changed = threading.Condition()
        self.failed: BaseException | None = None
        self.phase = self.clock = self.steps = self.rounds = self.attempt = 0
        self.settled, self._awaits = True, False  # True if answers to a commit are pending
        self._owner: Owner | None = None
        self._early: list[Letter] = []  # letters of a phase that has not begun here
        self._inbox: list[Letter] = []  # values that have not been read
        self._answers: dict[int, tuple[int, ...]] = {}
        self._promised, self._told_stop = 1, False
        self._counted = 0
        self.updates = 0  # that each parameter had, as known since the last meeting
        self._stops: dict[int, int] = {}
        self._box = c.mailbox()
        self._thread = threading.Thread(target=self._serve, name="cavs-servers", daemon=True)
        self._thread.start()
        atexit.register(_close_at_exit, weakref.ref(self))

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent, as worker and as owner."""
        return self._box.sent_bytes

    def newly_sent(self) -> int:
        """Bytes sent since this was asked last, or since all met."""
        before, self._counted = self._counted, self.sent_bytes
        return self._counted - before

    @property
    def is_worker(self) -> bool:
        """True if this rank makes steps."""
        return self.rank in self.workers

    @property
    def heard_by(self) -> list[int]:
        """The owners that this rank writes to."""
        mine = [team for team in self.teams if self.rank in team]
        owners = self.layout.owners
        return [o for o in owners for team in mine if leader_of(o, team) == self.rank]

    # ---- the worker's side ---------------------------------------------------------------------

    def open(
        self, states: Sequence[Sequence[Array]], hyper: Mapping[str, Any], updates: int = 0
    ) -> None:
        """A new phase: owners take the parameters as they are here. All ranks call it.

        updates: how many the optimiser states have seen.
        """
        self._check()
        owner = Owner(
            self.layout,
            self.rank,
            self.size,
            {leader_of(self.rank, team): team for team in self.teams},
            self.values,
            states,
            hyper,
            self.reduction,
            updates,
            self._owner,
        )
        with self.changed:
            self.updates = updates
            self._owner = owner
            self.phase += 1
            self.clock = self.rounds = 0
            self._inbox = []
            self.settled, self._awaits = True, False
        self._post(self.rank, [letters.WAKE, self.phase])

    def fetch(self) -> bool:
        """Waits until this worker may begin its next step; whether parameters were written."""
        self._check()
        self.attempt += 1
        if self.settled:
            self._counted = self.sent_bytes
        self.settled = False
        if not self.is_worker:
            self.clock, self.steps = self.clock + 1, self.steps + 1
        if not self._awaits:
            return False
        self._wait(lambda: self._told(2, self.clock), f"for step {self.steps + 1}")
        self._awaits = False
        return self._read()

    def push(self, owner: int, numbers: Sequence[int], arrays: Sequence[Array]) -> None:
        """Gradients of some units to their owner, which applies them at `commit`."""
        flat = [a.reshape(-1) for a in arrays]
        self._post(owner, [letters.PUSH, self.phase, self.attempt, *numbers], flat)

    def commit(self, scale: float, lr: float) -> None:
        """The step is whole and good: owners apply it, times `scale`."""
        for owner in self.heard_by:
            words = [letters.COMMIT, self.phase, self.attempt, self.clock]
            self._post(owner, words, [np.array([scale, lr], np.float64)])
        with self.changed:
            self.clock += 1
            self.steps += 1
            self._awaits = True

    def settle(self) -> bool:
        """Waits until all workers have come here; then all ranks hold the same, final values.

        Returns whether parameters were written.
        """
        self._check()
        for owner in self.heard_by:
            self._post(owner, [letters.SETTLE, self.phase, self.clock])
        self._wait(lambda: self._told(4, self.rounds + 1), "for all to meet")
        with self.changed:
            self.rounds += 1
            final = next(x for x in self._inbox if x.words[4:5] == (self.rounds,))
            clock, self.updates = final.words[2], final.words[5]
            self.steps += clock - self.clock
            self.clock = clock
        self.settled, self._awaits = True, False
        return self._read()

    def _told(self, word: int, value: int) -> bool:
        """True if a letter of every group has `value` as this word."""
        told = {x.words[3] for x in self._inbox if len(x.words) > word and x.words[word] == value}
        return len(told) == len(self.layout.groups)

    def _read(self) -> bool:
        """Writes what came into the parameters, in the order in which it came."""
        with self.changed:  # a rank that makes no steps may be a meeting behind
            arrived = [x for x in self._inbox if x.words[4:5] <= (self.rounds,)]
            self._inbox = [x for x in self._inbox if x.words[4:5] > (self.rounds,)]
        for letter in arrived:
            if not letter.arrays:
                continue
            group, arrays = self.layout.groups[letter.words[3]], iter(letter.arrays)
            unpack(group.dense, next(arrays), self.values)
            for unit in group.tables:
                rows = next(arrays)
                table = self.values[unit.part.parameter].reshape(-1, unit.width)
                table[rows] = next(arrays).reshape(-1, unit.width)
        return any(letter.arrays for letter in arrived)

    def collect(self, states: Sequence[Sequence[Array]], c: Communicator) -> None:
        """Brings all ranks every optimiser state, from its owner; after `settle`."""
        assert self._owner is not None
        for i in range(max(map(len, states), default=0)):
            flat = [s[i].reshape(-1) if len(s) > i else np.empty(0) for s in states]
            for group in self.layout.groups:
                packed = np.empty(sum(part.size for part in group.dense), self.values[0].dtype)
                pack(group.dense, flat, packed)
                c.broadcast(packed, group.owner)
                unpack(group.dense, packed, flat)
                for unit in group.tables:
                    rows = self._owner.ever(unit)
                    table = flat[unit.part.parameter].reshape(-1, unit.width)
                    every, values = c.all_gather(rows), c.all_gather(table[rows])
                    table[every[unit.owner]] = values[unit.owner]

    def stops(self, requested: bool) -> bool:
        """Return True to stop after this step, on which all ranks agree once one requests it."""
        if not self.is_worker:
            return self._stops_serving()
        with self.changed:
            if requested or self._stops:
                self._announce()
            if not self._told_stop:
                self._promised = self.steps + 1
                return False
        self._wait(lambda: len(self._stops) == len(self.workers), "to stop together")
        return self.steps >= max(self._stops.values())

    @property
    def is_stopping(self) -> bool:
        """True if a worker has requested a stop; all ranks know it once they have stopped."""
        return bool(self._stops)

    def go_on(self) -> None:
        """Clear the request to stop, after all ranks have stopped and settled."""
        with self.changed:
            self._stops, self._told_stop = {}, False
            self._promised = self.steps + 1

    def _stops_serving(self) -> bool:
        """As `stops` on a rank without steps, which follows the furthest worker."""
        owner = self._owner
        assert owner is not None

        def all_told() -> bool:
            return len(self._stops) == len(self.workers)

        self._wait(
            lambda: all_told() or owner.furthest > self.clock or owner.rounds > self.rounds,
            "for the steps of others",
        )
        return all_told() and self.steps >= max(self._stops.values())

    def _announce(self) -> None:
        """Tells all how many steps this worker has promised: the furthest promise is kept."""
        if not self._told_stop and self.is_worker:
            self._told_stop = True
            self._stops[self.rank] = self._promised
            self._tell_others([letters.STOP, 0, self._promised])

    # ---- waiting and failing -------------------------------------------------------------------

    def _wait(self, ready: Callable[[], bool], why: str) -> None:
        """Wait until `ready`, or a rank fails, or no worker makes progress for too long."""
        before: Mapping[int, Sequence[int]] | None = None
        behind: dict[int, str] = {}

        def known(name: int) -> str:
            return behind.get(self.names.index(name), "")

        with self._waiting(f"the wait {why}", lambda: tuple(behind), known) as waiting:
            while True:
                with self.changed:
                    if self.changed.wait_for(lambda: self.failed or ready(), self.timeout / 2):
                        break
                standing = self._ask()
                behind = self._behind(standing)
                if standing == before:
                    raise waiting.hung(self.timeout, why)
                before = standing
        self._check()

    def _ask(self) -> dict[int, tuple[int, ...]]:
        """How far the workers are by each owner that answers."""
        with self.changed:
            self._answers = {}
        owners = self.layout.owners
        for owner in owners:
            self._post(owner, [letters.ASK, 0])
        with self.changed:
            self.changed.wait_for(lambda: len(self._answers) == len(owners), _GRACE)
            return dict(self._answers)

    def _behind(self, standing: Mapping[int, Sequence[int]]) -> dict[int, str]:
        """Whom all wait for, as owners tell it, and what can be said of them."""
        silent = [r for r in self.layout.owners if r not in standing]
        found = dict.fromkeys(silent, "does not answer")
        for clocks in standing.values():
            slowest = min((clock for clock in clocks if clock >= 0), default=-1)
            for team, clock in zip(self.teams, clocks, strict=True):
                if clock == slowest >= 0 and self.rank not in team:
                    found.update(dict.fromkeys(team, f"is still in its step {clock + 1}"))
        return found

    def _check(self) -> None:
        if self.failed is not None:
            raise self.failed

    def fail(self, error: BaseException) -> None:
        """Ends the training here, and on the other ranks as soon as they look.

        That a rank is gone each finds out by itself: it may want to go on without.
        """
        with self.changed:
            if self.failed is not None:
                return
            self.failed = error
            self.changed.notify_all()
        if isinstance(error, LostPeerError):
            return
        with contextlib.suppress(CommunicationError):  # a rank that is gone need not learn of it
            self._tell_others([letters.FAIL, 0], [as_text(f"{type(error).__name__}: {error}")])

    def leave(self) -> None:
        """Ends the thread at once, because a rank is gone; what is under way is lost."""
        with self.changed:
            self.failed = self.failed or LostPeerError("a rank is gone")
            self.changed.notify_all()
        self._box.leave()
        self._thread.join(timeout=5)

    def close(self) -> None:
        """Ends the thread; what is posted leaves before. Parameters stay as they are."""
        if not self.settled:
            self.fail(_left())
        self._box.close()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    # ---- the thread that serves ----------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._box.closed:
                letter = self._box.take(1.0)
                if letter is not None:
                    self._handle(letter)
        except BaseException as error:  # raised again by the thread that trains
            self.fail(error)

    def _handle(self, letter: Letter) -> None:
        """This letter, after those that came before their phase had begun, if it has."""
        arrived, self._early, now = [*self._early, letter], [], self.phase
        for other in arrived:
            word, phase = other.words[:2]
            if word in letters.ALWAYS:
                self._hear(other)
            elif phase > now:
                self._early.append(other)
            elif phase == now:
                self._of_phase(other)

    def _of_phase(self, letter: Letter) -> None:
        assert self._owner is not None
        match letter.words[0]:
            case letters.PUSH:
                self._owner.hold(letter)
            case letters.COMMIT:
                self._owner.commit(letter, self._answer)
                self._wake()
            case letters.SETTLE:
                self._owner.settle(letter.source, self._answer)
                self._wake()
            case _:
                with self.changed:
                    self._inbox.append(letter)
                    self.changed.notify_all()

    def _wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _answer(self, to: int, words: Sequence[int], arrays: Sequence[Array]) -> None:
        """Post a letter of an owner, with the phase filled in."""
        self._post(to, [words[0], self.phase, *words[2:]], [a.reshape(-1) for a in arrays])

    def _hear(self, letter: Letter) -> None:
        if letter.words[0] == letters.ASK:
            standing = [] if self._owner is None else self._owner.standing()
            self._post(letter.source, [letters.ANSWER, 0, *standing])
            return
        with self.changed:
            match letter.words[0]:
                case letters.ANSWER:
                    self._answers[letter.source] = letter.words[2:]
                case letters.STOP:
                    self._stops[letter.source] = letter.words[2]
                    self._announce()
                case letters.FAIL if self.failed is None:
                    text = f"rank {self.names[letter.source]}: {letter.text()}"
                    self.failed = agreed(failed_elsewhere([text]))
            self.changed.notify_all()

    def _post(self, to: int, words: Sequence[int], arrays: Sequence[Array] = ()) -> None:
        self._box.post(to, words, arrays)

    def _tell_others(self, words: Sequence[int], arrays: Sequence[Array] = ()) -> None:
        for r in range(self.size):
            if r != self.rank:
                self._post(r, words, arrays)


def _close_at_exit(servers: weakref.ref[StaleServers]) -> None:
    """MPI ends with the process: no thread may call it then."""
    alive = servers()
    if alive is None or alive._box.closed:
        return
    alive.fail(_left())  # settled or not: others may go on to their next step
    alive.close()


def _left() -> CommunicationError:
    return CommunicationError("it left while others train: call Trainer.close()")
