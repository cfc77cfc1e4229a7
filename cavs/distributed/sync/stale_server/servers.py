"""Parameters with bounded staleness, or none: the worker's side, and the thread that serves.

Every rank has a mailbox and a thread that reads it while the rank computes: it applies what others
push to the parameters that are owned here, and keeps what owners write to this rank. A worker
begins a step when the owners of all parameters have told it values that are fresh enough: with its
own steps before applied, and those of the others up to the staleness.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cavs.distributed.comm.agreement import agreed, describe, failed_elsewhere
from cavs.distributed.comm.interfaces import Communicator, LostPeerError
from cavs.distributed.comm.mailbox import Letter, as_text
from cavs.distributed.strategy.ranks import leader_of
from cavs.distributed.sync.part import Array, pack, unpack
from cavs.distributed.sync.stale_server.owner import Layout, Owner, Word
from cavs.errors import CommunicationError

_LEFT = "it left while others train: call Trainer.close()"
_GRACE = 3.0  # seconds that an owner has to say how far the workers are


class StaleServers:
    """Servers and worker of one rank; all ranks create them together.

    values: all parameters, flat, with which this rank computes. teams: the workers, ranks that make
    steps, grouped by those that make each step together; one of a team writes to each owner, with
    the sum of their gradients. average: True if gradients are averaged over the workers.
    """

    def __init__(
        self,
        c: Communicator,
        layout: Layout,
        values: Sequence[Array],
        teams: Sequence[Sequence[int]],
        *,
        average: bool = True,
    ) -> None:
        self.teams, self.workers = teams, [worker for team in teams for worker in team]
        self.layout, self.values, self.timeout = layout, list(values), c.timeout
        self.rank, self.names, self._waiting = c.rank, c.names, c.waiting
        self.is_worker = c.rank in self.workers
        mine = [team for team in teams if c.rank in team]
        self.heard_by = [  # the owners that this rank writes to
            owner for owner in layout.owners for team in mine if leader_of(owner, team) == c.rank
        ]
        self.reduction = 1.0 / len(self.workers) if average else 1.0
        self.changed = threading.Condition()
        self.failed: BaseException | None = None
        self.phase = self.clock = self.steps = self.rounds = self.attempt = 0
        self.settled, self._awaits = True, False  # True if answers to a commit are pending
        self._owner: Owner | None = None
        self._early: list[Letter] = []  # letters of a phase that has not begun here
        self._inbox: list[Letter] = []  # values that have not been read
        self._answers: dict[int, tuple[int, ...]] = {}
        self._counted = 0  # bytes sent before the present step
        self.updates = 0  # number for each parameter, as known when all last settled
        self._stops: dict[int, int] = {}  # numbers of steps promised, by worker
        self._next_promise = 1
        self._box = c.mailbox()
        self._thread = threading.Thread(target=self._serve, name="cavs-servers", daemon=True)
        self._thread.start()
        atexit.register(_close_at_exit, weakref.ref(self), os.getpid())

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent, as worker and as owner."""
        return self._box.sent_bytes

    def newly_sent(self) -> int:
        """Return the bytes sent since the last call, or since all settled."""
        before, self._counted = self._counted, self.sent_bytes
        return self._counted - before

    # ---- the worker's side ---------------------------------------------------------------------

    def open(
        self, states: Sequence[Sequence[Array]], hyper: Mapping[str, Any], updates: int = 0
    ) -> None:
        """Begin a phase: owners take the parameters as they are here. All ranks call it.

        updates: number that the optimiser states have seen.
        """
        self._check()
        workers = {leader_of(self.rank, team): team for team in self.teams}
        shared = self.layout, self._box, self.phase + 1, workers, self.values
        owner = Owner(*shared, states, hyper, self.reduction, updates, self._owner)
        with self.changed:
            self._owner, self.phase, self.updates = owner, owner.phase, updates
            self.clock = self.rounds = 0
            self._inbox = []
            self.settled, self._awaits = True, False
        self._box.post(self.rank, [Word.WAKE, self.phase])

    def fetch(self) -> bool:
        """Wait until this worker may begin a step; return True if parameters were written."""
        self._check()
        self.attempt += 1
        if self.settled:
            self._counted = self.sent_bytes
        self.settled = False
        if not self.is_worker:
            self.clock, self.steps = self.clock + 1, self.steps + 1
        if not self._awaits:
            return False
        self._wait(lambda: self._has_all(2, self.clock), f"for step {self.steps + 1}")
        self._awaits = False
        return self._read()

    def push(self, owner: int, numbers: Sequence[int], arrays: Sequence[Array]) -> None:
        """Send gradients of some units to their owner, which applies them at `commit`."""
        flat = [a.reshape(-1) for a in arrays]
        self._box.post(owner, [Word.PUSH, self.phase, self.attempt, *numbers], flat)

    def commit(self, scale: float, lr: float) -> None:
        """Let owners apply a step that has succeeded, times `scale`."""
        for owner in self.heard_by:
            words = [Word.COMMIT, self.phase, self.attempt, self.clock]
            self._box.post(owner, words, [np.array([scale, lr], np.float64)])
        with self.changed:
            self.clock += 1
            self.steps += 1
            self._awaits = True

    def settle(self) -> bool:
        """Wait until all workers settle; then all ranks hold the same, final values.

        Return True if parameters were written.
        """
        self._check()
        for owner in self.heard_by:
            self._box.post(owner, [Word.SETTLE, self.phase, self.clock])
        self._wait(lambda: self._has_all(4, self.rounds + 1), "for all to meet")
        with self.changed:
            self.rounds += 1
            final = next(x for x in self._inbox if x.words[4:5] == (self.rounds,))
            self.steps += final.words[2] - self.clock
            self.clock, self.updates = final.words[2], final.words[5]
        self.settled, self._awaits = True, False
        return self._read()

    def _has_all(self, word: int, value: int) -> bool:
        """True if a letter of every group has `value` as this word."""
        found = {x.words[3] for x in self._inbox if x.words[word : word + 1] == (value,)}
        return len(found) == len(self.layout.groups)

    def _read(self) -> bool:
        """Write the values of letters to the parameters, in order; return True if there are any."""
        with self.changed:  # a rank that makes no steps may be a round behind
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
        """Bring every optimiser state from its owner to all ranks; after `settle`."""
        assert self._owner is not None
        for i in range(max(map(len, states), default=0)):
            flat = [s[i].reshape(-1) if len(s) > i else np.empty(0) for s in states]
            for group in self.layout.groups:
                packed = pack(group.dense, flat, self.values[0].dtype)
                c.broadcast(packed, group.owner)
                unpack(group.dense, packed, flat)
                for unit in group.tables:
                    rows = self._owner.ever(unit)
                    table = flat[unit.part.parameter].reshape(-1, unit.width)
                    every, values = c.all_gather(rows), c.all_gather(table[rows])
                    table[every[unit.owner]] = values[unit.owner]

    def stops(self, requested: bool) -> bool:
        """Return True to stop after this step, on which all ranks agree once one requests it."""

        def all_promised() -> bool:
            return len(self._stops) == len(self.workers)

        if self.is_worker:
            with self.changed:
                if requested or self._stops:
                    self._promise()
                if self.rank not in self._stops:
                    self._next_promise = self.steps + 1
                    return False
            self._wait(all_promised, "to stop together")
        else:  # follow the furthest worker
            owner = self._owner
            assert owner is not None
            self._wait(
                lambda: all_promised() or owner.furthest > self.clock or owner.rounds > self.rounds,
                "for the steps of others",
            )
        return all_promised() and self.steps >= max(self._stops.values())

    @property
    def is_stopping(self) -> bool:
        """True if a worker has requested a stop; all ranks know it once they have stopped."""
        return bool(self._stops)

    def go_on(self) -> None:
        """Clear the request to stop, after all ranks have stopped and settled."""
        with self.changed:
            self._stops, self._next_promise = {}, self.steps + 1

    def _promise(self) -> None:
        """Tell all how many steps this worker will make: all make the largest of these numbers."""
        if self.is_worker and self.rank not in self._stops:
            self._stops[self.rank] = self._next_promise
            self._tell_others([Word.STOP, 0, self._next_promise])

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
                clocks = self._ask()
                behind = self._behind(clocks)
                if clocks == before:
                    raise waiting.hung(self.timeout, why)
                before = clocks
        self._check()

    def _ask(self) -> dict[int, tuple[int, ...]]:
        """Return the clocks of the workers (`Owner.progress`), by each owner that answers."""
        owners, self._answers = self.layout.owners, {}
        for owner in owners:
            self._box.post(owner, [Word.ASK, 0])
        with self.changed:
            self.changed.wait_for(lambda: len(self._answers) == len(owners), _GRACE)
            return dict(self._answers)

    def _behind(self, progress: Mapping[int, Sequence[int]]) -> dict[int, str]:
        """Return the ranks that all wait for, according to the owners, and what they do."""
        silent = [r for r in self.layout.owners if r not in progress]
        found = dict.fromkeys(silent, "does not answer")
        for clocks in progress.values():
            slowest = min((clock for clock in clocks if clock >= 0), default=-1)
            for team, clock in zip(self.teams, clocks, strict=True):
                if clock == slowest >= 0 and self.rank not in team:
                    found.update(dict.fromkeys(team, f"is still in its step {clock + 1}"))
        return found

    def _check(self) -> None:
        if self.failed is not None:
            raise self.failed

    def fail(self, error: BaseException) -> None:
        """End the training here, and on the other ranks as soon as they look.

        Each rank finds out by itself that one is gone: it may want to go on without it.
        """
        with self.changed:
            if self.failed is not None:
                return
            self.failed = error
            self.changed.notify_all()
        if not isinstance(error, LostPeerError):
            with contextlib.suppress(CommunicationError):  # a rank may be gone
                self._tell_others([Word.FAIL, 0], [as_text(describe(error))])

    def leave(self) -> None:
        """End the thread at once, because a rank is gone; letters under way are lost."""
        with self.changed:
            self.failed = self.failed or LostPeerError("a rank is gone")
            self.changed.notify_all()
        self._box.leave()
        self._thread.join(timeout=5)

    def close(self) -> None:
        """End the thread, after all letters have left. Parameters stay as they are."""
        if not self.settled:
            self.fail(CommunicationError(_LEFT))
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
        """Take this letter, after those that came before their phase had begun, if it has."""
        arrived, self._early, now = [*self._early, letter], [], self.phase
        for other in arrived:
            word, phase = other.words[:2]
            if phase == now or word > Word.FINAL:
                self._take(other)
            elif phase > now:
                self._early.append(other)

    def _take(self, letter: Letter) -> None:
        word, owner = letter.words[0], self._owner
        assert owner is not None or word > Word.FINAL  # a phase has an owner
        match word:
            case Word.PUSH if owner:
                owner.hold(letter)
            case Word.COMMIT if owner:
                owner.commit(letter)
            case Word.SETTLE if owner:
                owner.settle(letter.source)
            case Word.ASK:
                clocks = [] if owner is None else owner.progress()
                self._box.post(letter.source, [Word.ANSWER, 0, *clocks])
        with self.changed:
            match word:
                case Word.VALUES | Word.FINAL:
                    self._inbox.append(letter)
                case Word.ANSWER:
                    self._answers[letter.source] = letter.words[2:]
                case Word.STOP:
                    self._stops[letter.source] = letter.words[2]
                    self._promise()
                case Word.FAIL if self.failed is None:
                    text = f"rank {self.names[letter.source]}: {letter.text()}"
                    self.failed = agreed(failed_elsewhere([text]))
            self.changed.notify_all()

    def _tell_others(self, words: Sequence[int], arrays: Sequence[Array] = ()) -> None:
        for r in range(self._box.size):
            if r != self.rank:
                self._box.post(r, words, arrays)


def _close_at_exit(servers: weakref.ref[StaleServers], process: int) -> None:
    """MPI ends with the process: no thread may call it then. A forked child is no rank."""
    alive = servers()
    if alive is None or alive._box.closed or os.getpid() != process:
        return
    alive.fail(CommunicationError(_LEFT))  # settled or not: others may go on to their next step
    alive.close()
