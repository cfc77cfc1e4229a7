"""A policy that lets the number of ranks follow a configuration store."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from cavs.config import is_whole, require_count, require_number
from cavs.errors import CavsError, ConfigError
from cavs.train.configuration import ConfigurationStore, open_store
from cavs.train.policy import Policy, TrainingRun

_PATIENCE = 0.2  # seconds that a step waits for the store
_MOST = 1 << 31  # a number of ranks that there never is


class FollowStore(Policy):
    """Resizes the training to the ``"size"`` in a configuration store.

    Rank 0 reads the store and sends the number to the others, which all ask for it. It writes back
    the number of ranks that there are, as ``"committed"``, and as ``"size"`` if there is none. A
    step waits 0.2 s for the store at most: a store that is slow, gone or broken leaves the ranks as
    they are, with one line on stderr. Sizes above the number of processes are cut to it (Mai et
    al., KungFu, OSDI 2020, section 5.2).

    Args:
        store: A `ConfigurationStore`, its URL, or its file; by default that of ``cavs launch
            --config-store``.
        every: Steps between two times that ranks compare.
        seconds: Least time between two reads.
        token_file: File with the token of an HTTP store; by default ``CAVS_CONFIG_TOKEN``.
    """

    def __init__(
        self,
        store: ConfigurationStore | str | None = None,
        every: int = 10,
        seconds: float = 1.0,
        token_file: str | os.PathLike[str] | None = None,
    ) -> None:
        require_count("every", every)
        require_number("seconds", seconds, "a number of at least 0", lambda x: x >= 0)
        if not isinstance(store, ConfigurationStore):
            store = open_store(store, token_file)
        self.store = store
        self.every, self.seconds = every, seconds
        self._query: _Query | None = None
        self._asked = -float("inf")
        self._said = ""  # the last warning

    def before_train(self, run: TrainingRun) -> None:
        """Begin with the size in the store."""
        self._follow(run)

    def after_step(self, run: TrainingRun) -> None:
        """Ask for the size in the store."""
        if run.step % self.every == 0:
            self._follow(run)

    def on_resize(self, run: TrainingRun, old: int, new: int) -> None:
        """Let the store know at once."""
        if run.rank == 0:
            self._asked = -float("inf")
            self._wanted(new)

    def _follow(self, run: TrainingRun) -> None:
        wanted = self._wanted(run.size) if run.rank == 0 else 0
        wanted = int(run.broadcast(float(wanted)))
        size = min(wanted, run.max_size)
        if wanted == 0:
            return
        if wanted > size and run.rank == 0:
            self._warn(f"{self.store.where} wants {wanted} ranks, there are {size} processes")
        if size != run.size:
            try:
                run.resize(size)
            except ConfigError as error:  # on all ranks, which know of no other size then
                if run.rank == 0:
                    self._warn(f"going on with {run.size} ranks: {error.what}")

    def _wanted(self, size: int) -> int:
        """Return the size in the store, or 0 if it is not known; `size` is the present one."""
        query = self._query
        if query is None:
            if time.monotonic() < self._asked + self.seconds:
                return 0
            self._asked = time.monotonic()
            query = self._query = _Query(self.store, size)
            query.start()
            query.join(_PATIENCE)
        if query.is_alive():
            self._warn(f"{self.store.where} does not answer within {_PATIENCE:g} s; {size} ranks")
            return 0
        self._query = None
        if query.error:
            self._warn(f"going on with {size} ranks: {query.error}")
        elif query.wanted in (0, size):
            self._said = ""
        return query.wanted

    def _warn(self, text: str) -> None:
        if text != self._said:
            self._said = text
            print(f"cavs: {text}", file=sys.stderr, flush=True)


class _Query(threading.Thread):
    """Reads a store once, and writes back the present number of ranks.

    wanted: the size in the store, or 0 if it has none. error: the reason why it is not known.
    """

    def __init__(self, store: ConfigurationStore, size: int) -> None:
        super().__init__(daemon=True, name="configuration store")
        self._store, self._size = store, size
        self.wanted, self.error = 0, ""

    def run(self) -> None:
        try:
            version, value = self._store.read()
            if is_whole(value.get("size")):
                self.wanted = min(value["size"], _MOST)
            if value.get("committed") != self._size or not self.wanted:
                new: dict[str, Any] = {"size": self._size, **value, "committed": self._size}
                self._store.write(new, version)  # False if there is another wish, to be read next
        except CavsError as error:
            self.error = error.what
