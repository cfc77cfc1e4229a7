"""One training at a time writes to a checkpoint."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cavs.errors import ConfigError


class Claim:
    """On the checkpoint at `path`, held by all processes of the training that writes it.

    It is a lock on ``.NAME.claim`` beside it, since the checkpoint itself is a new file each time.
    The system lets go of it when the last of the processes ends, however it ends; a file that a
    killed one left is in nobody's way.

    shown: what an error says is written to. hint: its cure.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shown: object = None,
        hint: str = "wait for it or end it, or pass another checkpoint=",
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self.shown, self.hint = path if shown is None else shown, hint
        self._lock = self.path.with_name(f".{self.path.name}.claim")
        self._descriptor: int | None = None

    def take(self, *, shared: bool = False) -> None:
        """The first process does; others of its training may `join` if it is `shared`.

        ConfigError if another training holds it. A file system without locks is taken as it is.
        """
        if self._descriptor is not None:
            return
        while True:
            self._open()
            held = self._locked(fcntl.LOCK_EX)
            if held and shared:
                held = self._locked(fcntl.LOCK_SH)
            if not held:
                self._drop()
                raise ConfigError(
                    f"another training that is still running writes to {self.shown}",
                    hint=self.hint,
                )
            if self._is_there():
                return
            self._drop()  # its last holder has just removed it

    def join(self) -> None:
        """Once the first process of this training has taken it."""
        if self._descriptor is None:
            self._open()
            self._locked(fcntl.LOCK_SH)

    def close(self) -> None:
        """Lets go; the last holder removes the file."""
        if self._descriptor is not None and self._locked(fcntl.LOCK_EX) and self._is_there():
            with suppress(OSError):
                self._lock.unlink()
        self._drop()

    def _open(self) -> None:
        flags = os.O_CREAT | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self._lock, os.O_RDWR | flags, 0o666)
        except OSError:
            with suppress(OSError):  # of another user, who lets us read it
                self._descriptor = os.open(self._lock, os.O_RDONLY | os.O_CLOEXEC)

    def _is_there(self) -> bool:
        """Whether others would open the file that is open here."""
        if self._descriptor is None:
            return True
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self._lock))
        except FileNotFoundError:
            return False

    def _locked(self, how: int) -> bool:
        if self._descriptor is None:
            return True
        try:
            fcntl.flock(self._descriptor, how | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
        return True

    def _drop(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


@contextmanager
def writing(path: str | os.PathLike[str], *held: Claim | None) -> Iterator[None]:
    """The claim on `path` while it is written, unless it is one of those `held`."""
    try:
        own = Claim(path, hint="wait for it or end it, or save to another file")
    except (TypeError, ValueError):  # no path at all, which whoever writes says
        yield
        return
    if any(claim is not None and claim.path == own.path for claim in held):
        yield
        return
    own.take()
    try:
        yield
    finally:
        own.close()
