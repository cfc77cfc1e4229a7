"""The table of named collectives under way on a rank, and the letters about them.

Whichever comes first creates the state of a collective: the launch on this rank or a letter. Keys
hold the version of the routes and the step, so that neither ever mixes with another.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from cavs.distributed.comm.collective_state import CONTROL, UP, Collective, Key, Signature
from cavs.distributed.comm.hang_detection import Known
from cavs.distributed.comm.mailbox import Array, Letter, as_text
from cavs.distributed.comm.service import Future, Ranks, Service
from cavs.distributed.comm.topology import Routes
from cavs.errors import CommunicationError, ConfigError

_GRACE = 3.0  # seconds that others have to say what they launched
_FAIL, _ASK, _ANSWER = 2, 3, 4  # letters that belong to no phase of a collective
_HINT = "all ranks launch the same collectives in a step, with arrays of one size and dtype"


class CollectiveTable(Service):
    """Collectives that this rank has launched, by key. version: of the routes and the cluster.

    step: the number of the current step. routes: those of collectives that are launched now.
    """

    def __init__(self, ranks: Ranks, routes: Routes, version: int) -> None:
        self.version, self.step, self.routes = version, 0, routes
        self._running: dict[Key, Collective] = {}
        self._futures: dict[Key, Future[Any]] = {}
        self._early: dict[Key, list[Letter]] = defaultdict(list)  # before the launch here
        self._launched: dict[int, dict[str, Signature]] = {0: {}}  # in this step and the last
        self._controls = 0  # launched so far
        self._answers: dict[tuple[int, int], bool] = {}  # by question and rank
        self._questions = 0
        self._others = [r for r in range(ranks.size) if r != ranks.rank]
        super().__init__(ranks)

    def states(self, step: int) -> int:
        """Return the number of collectives of a step that are under way, here or by a letter."""
        with self._lock:
            return sum(key.step == step for key in (*self._running, *self._early))

    def launch(self, collective: Collective) -> Future[Any]:
        """Begin a collective; ConfigError if its name was used in this step."""
        key, future = collective.key, Future[Any](self, f"{collective.signature} {collective.key}")
        with self._lock:
            self._check()
            if key.step != CONTROL:
                if key.name in self._launched[key.step]:
                    raise ConfigError(
                        f"{key} was launched before",
                        hint="use a name once a step, and end_step() after each",
                    )
                self._launched[key.step][key.name] = collective.signature
            self._running[key] = collective
            self._futures[key] = future
            self._pending.add(future)
            try:
                collective.begin()
                for letter in self._early.pop(key, ()):
                    if self._agrees(key, letter.source, letter.words[4:], collective.signature):
                        self._take(collective, letter)
            except CommunicationError as error:
                self.fail(error)
        return future

    def next_step(self) -> None:
        """Begin the next step; CommunicationError on all if another rank launched more in this."""
        with self._lock:
            self._check()
            for key, letters in self._early.items():
                if key.step == self.step and key.version == self.version:
                    self._fail_all(self._not_launched(key, letters[0].source))
                    self._check()
            self._launched = {self.step: self._launched[self.step], self.step + 1: {}}
            self.step += 1

    # ---- letters -------------------------------------------------------------------------------

    def post(
        self, to: int, phase: int, key: Key, words: Sequence[int], arrays: Sequence[Array] = ()
    ) -> None:
        """Send a letter of a collective; for its state alone."""
        head = [phase, key.version, key.step, *words]
        self._mailbox.post(to, head, [as_text(key.name), *arrays])

    def _read(self, letter: Letter) -> None:
        phase, version, step, *words = letter.words
        key = Key(version, step, letter.text())
        with self._lock:
            if self._broken is not None:
                return
            if phase == _FAIL:
                text = letter.arrays[1].tobytes().decode()
                self.fail(CommunicationError(text, hint=_HINT))
            elif phase == _ASK:
                self._answer(key, letter.source, *words)
            elif phase == _ANSWER:
                self._answers[words[0], letter.source] = bool(words[1])
            elif collective := self._running.get(key):
                if self._agrees(key, letter.source, words[1:], collective.signature):
                    self._take(collective, letter)
            elif version == self.version and key.name in self._launched.get(step, ()):
                # This rank is done, as the root of a broadcast is: others did not launch that.
                self._agrees(key, letter.source, words[1:], self._launched[step][key.name])
            elif version == self.version and CONTROL < step < self.step:
                self._fail_all(self._not_launched(key, letter.source))
            elif version >= self.version:  # else it is of a cluster that is no more
                self._early[key].append(letter)

    def _take(self, collective: Collective, letter: Letter) -> None:
        if letter.words[0] == UP:
            collective.up(letter.words[3], letter.source, letter.arrays[1:])
        else:
            collective.down(letter.words[3], letter.arrays[1:])

    def _agrees(self, key: Key, source: int, words: Sequence[int], own: Signature) -> bool:
        """Return True if a rank launched the same as this one; else end the service on all."""
        theirs = Signature(*words)
        if theirs != own and self._broken is None:
            self._fail_all(
                f"rank {self.names[source]} launched {key} as {theirs}, rank "
                f"{self.names[self.rank]} as {own}"
            )
        return self._broken is None

    def _answer(self, key: Key, source: int, number: int, *words: int) -> None:
        """Say whether this rank has launched a collective that another one waits for."""
        known = self._launched.get(key.step)
        own = None if known is None else known.get(key.name)
        if key.step == CONTROL:
            launched = int(key.name) < self._controls
        elif own is not None:
            launched = self._agrees(key, source, words, own)
        else:
            launched = key.step < self.step  # forgotten, as far as this rank knows
            if launched and known is not None:
                self._fail_all(self._not_launched(key, source))
        self.post(source, _ANSWER, key, [number, launched])

    def forget(self, collective: Collective, result: Any) -> None:
        """Free the state of a collective that is done."""
        del self._running[collective.key]
        future = self._futures.pop(collective.key)
        self._pending.discard(future)
        future.finish(result)

    def _not_launched(self, key: Key, source: int) -> str:
        return (
            f"rank {self.names[self.rank]} ended step {key.step} without {key.name!r}, which rank "
            f"{self.names[source]} launched"
        )

    def _fail_all(self, text: str) -> None:
        """End the service on all ranks."""
        error = CommunicationError(text, hint=_HINT)
        self.fail(error)
        self._tell(error)

    def _end(self, future: Future[Any], error: CommunicationError, *, late: bool) -> None:
        self.fail(error)
        if late:
            self._tell(error)

    def _tell(self, error: CommunicationError) -> None:
        with suppress(CommunicationError):  # a rank that is gone needs no letter
            for rank in self._others:
                self.post(rank, _FAIL, Key(self.version, self.step, ""), [], [as_text(error.what)])

    # ---- missing ranks -------------------------------------------------------------------------

    def _key_of(self, future: Future[Any]) -> Key | None:
        return next((key for key, f in tuple(self._futures.items()) if f is future), None)

    def _peers(self, future: Future[Any]) -> list[int]:
        key = self._key_of(future)
        collective = None if key is None else self._running.get(key)
        return [] if collective is None else collective.awaited()

    def _inquire(self, future: Future[Any]) -> int:
        """Ask all ranks whether they have launched the collective of `future`, and which."""
        with self._lock:
            self._questions += 1
            key = self._key_of(future)
            if key is not None and self._broken is None:
                words = [self._questions, *self._running[key].signature]
                for rank in self._others:
                    self.post(rank, _ASK, key, words)
            return self._questions

    def _find_missing(self, future: Future[Any]) -> tuple[list[int], Known]:
        key, number = self._key_of(future), self._inquire(future)
        limit = time.monotonic() + _GRACE
        while time.monotonic() < limit and any(
            (number, r) not in self._answers for r in self._others
        ):
            if future.ends_within(0.01):
                break
        missing = [r for r in self._others if not self._answers.get((number, r), False)]
        names = {self.names[r] for r in missing if (number, r) in self._answers}
        return (
            missing or self._peers(future),
            lambda name: f"never launched {key}" if name in names else "",
        )

    def fail(self, error: CommunicationError) -> None:
        with self._lock:
            super().fail(error)
            self._running.clear()
            self._futures.clear()
            self._early.clear()
