"""A lock that lets one training at a time write to a checkpoint."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cavs.errors import ConfigError


class CheckpointLock:
    """Lock on the checkpoint at `path`, held by all processes of the training that writes it.

    The lock is on a file ``.NAME.lock`` in the same folder, since each write replaces the
    checkpoint by a new file. The system releases it when the last process that holds it ends, in
    whatever way; a lock file left by a killed process blocks no later training.

    Args:
        path: The checkpoint.
        shown: Path that error messages name; by default `path`.
        hint: Cure that error messages give.
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
        self._file = self.path.with_name(f".{self.path.name}.lock")
        self._descriptor: int | None = None

    def acquire(self, *, shared: bool = False) -> None:
        """Acquire the lock for a new training.

        Raises `ConfigError` if another training holds it. Does nothing on a file system without
        locks. If `shared`, further processes of this training may `join`.
        """
        if self._descriptor is not None:
            return
        while True:
            self._open()
            held = self._flock(fcntl.LOCK_EX)
            if held and shared:
                held = self._flock(fcntl.LOCK_SH)
            if not held:
                self._close_file()
                raise ConfigError(
                    f"another training that is still running writes to {self.shown}",
                    hint=self.hint,
                )
            if self._is_current():
                return
            self._close_file()  # the last holder has removed the file since it was opened

    def join(self) -> None:
        """Share the lock that the first process of this training has acquired."""
        if self._descriptor is None:
            self._open()
            self._flock(fcntl.LOCK_SH)

    def close(self) -> None:
        """Release the lock; the last holder removes the file."""
        if self._descriptor is not None and self._flock(fcntl.LOCK_EX) and self._is_current():
            with suppress(OSError):
                self._file.unlink()
        self._close_file()

    def _open(self) -> None:
        flags = os.O_CREAT | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self._file, os.O_RDWR | flags, 0o666)
        except OSError:
            with suppress(OSError):  # a file of another user that this one may read
                self._descriptor = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)

    def _is_current(self) -> bool:
        """True if the open file is the one that the path names now."""
        if self._descriptor is None:
            return True
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self._file))
        except FileNotFoundError:
            return False

    def _flock(self, operation: int) -> bool:
        """Return False if another process holds a conflicting lock."""
        if self._descriptor is None:
            return True
        try:
            fcntl.flock(self._descriptor, operation | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
        return True

    def _close_file(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


@contextmanager
def locked(path: str | os.PathLike[str], *held: CheckpointLock | None) -> Iterator[None]:
    """Lock `path` while it is written, unless one of the locks in `held` is on it already."""
    try:
        lock = CheckpointLock(path, hint="wait for it or end it, or save to another file")
    except (TypeError, ValueError):  # not a path; the write itself reports that
        yield
        return
    if any(other is not None and other.path == lock.path for other in held):
        yield
        return
    lock.acquire()
    try:
        yield
    finally:
        lock.close()
