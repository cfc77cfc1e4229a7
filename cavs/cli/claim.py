"""One training at a time writes to a folder."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from cavs.errors import ConfigError


class Claim:
    """Held by all processes of a training, on the folder that one of them writes to.

    The system lets go of it when the last of them ends, however it ends.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def take(self, folder: Path) -> None:
        """The first process does, and lets the others `join`. ConfigError if another run is there.

        A file system without locks is taken as it is.
        """
        self._open(folder)
        if not self._locked(fcntl.LOCK_EX):
            raise ConfigError(
                f"another training that is still running writes to {folder}",
                hint="wait for it or end it, or pass another --out",
            )
        self._locked(fcntl.LOCK_SH)

    def join(self, folder: Path) -> None:
        """Once the first process of this training has taken `folder`."""
        if self._descriptor is None:
            self._open(folder)
            self._locked(fcntl.LOCK_SH)

    def _open(self, folder: Path) -> None:
        self._descriptor = os.open(folder, os.O_RDONLY)

    def _locked(self, how: int) -> bool:
        assert self._descriptor is not None
        try:
            fcntl.flock(self._descriptor, how | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
        return True

    def close(self) -> None:
        """Lets go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
