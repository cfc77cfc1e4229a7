"""Named collectives: asynchronous, launched in any order by any thread, without a coordinator.

Ranks recognise a collective by its name, as KungFu does (Mai et al., OSDI 2020, section 4.3). Each
chunk of an array travels along a route: a rank adds the sums of the ranks below it, in a fixed
order, to its own values and sends the result to the rank above it; the root sends the total down
again. Whichever comes first creates the state of a collective: the launch or a letter.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from cavs.distributed.comm.collective_state import (
    CONTROL,
    UP,
    AllGather,
    AllReduce,
    Broadcast,
    Collective,
    Key,
    Signature,
)
from cavs.distributed.comm.hang_detection import Known
from cavs.distributed.comm.mailbox import Array, Letter, as_text
from cavs.distributed.comm.messages import as_row, check_rank
from cavs.distributed.comm.reductions import check_op
from cavs.distributed.comm.service import Future, Ranks, Service
from cavs.distributed.comm.topology import Routes
from cavs.errors import CommunicationError, ConfigError

_GRACE = 3.0  # seconds that others have to say what they launched
_FAIL, _ASK, _ANSWER = 2, 3, 4  # letters that belong to no phase of a collective
_HINT = "all ranks launch the same collectives in a step, with arrays of one size and dtype"


class NamedCollectives(Service):
    """Collectives that ranks recognise by name. All ranks create it together.

    version: of the cluster; letters of other versions are not mixed up. topology: see
    `Topology.routes`; `set_tree` changes it. Attributes: step, the number of the current step.

    Calls may come from any thread, in another order on each rank, and return a `Future` at once.
    Arrays are NumPy's, C-contiguous, and are the collective's until its future is done. A name is
    used once a step. Sums have an order that the routes alone determine: the same bits in every
    run and on all ranks. After an error the object is given up: everything under way raises on all
    ranks, and so does every later call. LostPeerError if a rank dies.
    """

    def __init__(self, ranks: Ranks, topology: str | Sequence[int] = "AUTO", version: int = 0):
        self._topology = ranks.topology
        self._routes = self._topology.routes(topology)
        self.version, self.step = version, 0
        self._running: dict[Key, Collective] = {}
        self._futures: dict[Key, Future[Any]] = {}
        self._early: dict[Key, list[Letter]] = defaultdict(list)  # before the launch here
        self._launched: dict[int, dict[str, Signature]] = {0: {}}  # in this step and the last
        self._agreements = 0
        self._answers: dict[tuple[int, int], bool] = {}  # by question and rank
        self._questions = 0
        self._others = [r for r in range(ranks.size) if r != ranks.rank]
        super().__init__(ranks)

    @property
    def routes(self) -> Routes:
        """The routes of the collectives that are launched next."""
        return self._routes

    def states(self, step: int) -> int:
        """Return the number of collectives of a step that are under way, here or by a letter."""
        with self._lock:
            return sum(key.step == step for key in (*self._running, *self._early))

    # ---- collectives ---------------------------------------------------------------------------

    def all_reduce(self, name: str, array: Array, op: str = "sum") -> Future[Array]:
        """Reduce an array of any shape and dtype over the ranks, in place; `wait` returns it.

        op: "sum", "min", "max" or "mean". A rank sends n bytes to each neighbour on the routes.
        """
        return self._all_reduce(self._key(name), array, op)

    def broadcast(self, name: str, array: Array, root: int) -> Future[Array]:
        """Send the array of `root` to all, in place; `wait` returns it."""
        check_rank(root, self.size)
        return self._launch(Broadcast(self, self._key(name), array, root=root))

    def all_gather(self, name: str, array: Array) -> Future[list[Array]]:
        """Return every rank's array, by rank; first axes may differ. It travels as one chunk."""
        as_row(array)
        if not array.ndim:
            raise ConfigError("an array without axes has no rows to gather", hint="reshape it")
        return self._launch(AllGather(self, self._key(name), array))

    def _key(self, name: str) -> Key:
        return Key(self.version, self.step, name)

    def _all_reduce(self, key: Key, array: Array, op: str) -> Future[Array]:
        number = check_op(op, as_row(array).dtype.name)
        return self._launch(AllReduce(self, key, array, op=number))

    def _launch(self, collective: Collective) -> Future[Any]:
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

    # ---- steps ---------------------------------------------------------------------------------

    def end_step(self) -> None:
        """Wait for all collectives of this step, and begin the next one.

        CommunicationError if another rank launched one in this step that this rank did not.
        """
        with self._lock:
            futures = [f for key, f in self._futures.items() if key.step == self.step]
        for future in futures:
            future.wait()
        with self._lock:
            self._check()
            for key, letters in self._early.items():
                if key.step == self.step and key.version == self.version:
                    self._fail_all(self._not_launched(key, letters[0].source))
                    self._check()
            self._launched = {self.step: self._launched[self.step], self.step + 1: {}}
            self.step += 1

    @contextmanager
    def one_step(self) -> Iterator[NamedCollectives]:
        """Run a block, then `end_step`; an error of the block is raised as it is."""
        yield self
        self.end_step()

    # ---- routes --------------------------------------------------------------------------------

    def set_tree(self, tree: str | Sequence[int]) -> bool:
        """Send along another topology from now on; all ranks call it between two collectives.

        tree: see `Topology.routes`. Return False on all ranks, and change nothing, unless all give
        the same one (OSDI 2020, algorithm 1). ConfigError on the ranks whose tree is none, or whose
        collectives are not done; the others return False.
        """
        failed: ConfigError | None = None
        routes, text = self._routes, f"rank {self.rank}"
        try:
            with self._lock:
                if under_way := [str(k) for k in self._running if k.step != CONTROL]:
                    raise ConfigError(
                        f"the routes cannot change while {under_way[0]} is under way",
                        hint="call end_step() first",
                    )
            routes = self._topology.routes(tree)
            text = f"routes {routes.text}"
        except ConfigError as error:
            failed = error
        self.barrier()
        agreed = self.agree(text.encode())
        if failed is not None:
            raise failed
        if not agreed:
            return False
        with self._lock:
            self._routes = routes
            self.version += 1
        self.barrier()
        return True

    def agree(self, data: bytes) -> bool:
        """Return True on all ranks if they call it with the same bytes, else False on all.

        All ranks call `agree`, `barrier` and `set_tree` in the same order.
        """
        length = np.array([len(data), -len(data)], np.int64)
        self._control(length, "min")
        if length[0] != -length[1]:
            return False
        own = np.frombuffer(data, np.uint8)
        both = np.concatenate([own, 255 - own])  # the smallest of all, and the largest
        self._control(both, "min")
        return bool((both[: own.size] == 255 - both[own.size :]).all())

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        self._control(np.zeros(1, np.uint8), "min")

    def _control(self, array: Array, op: str) -> None:
        with self._lock:
            key = Key(self.version, CONTROL, str(self._agreements))
            self._agreements += 1
        self._all_reduce(key, array, op).wait()

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
            launched = int(key.name) < self._agreements
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
                self.post(rank, _FAIL, self._key(""), [], [as_text(error.what)])

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
