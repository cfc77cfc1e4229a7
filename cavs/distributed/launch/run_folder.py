"""The temporary folder of a launcher: it goes with it, even if a later one has to see to that."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cavs.errors import ConfigError

_PREFIX = "cavs-ranks-"
_NEW = 60.0  # seconds: a younger folder may not be locked yet


@contextmanager
def run_folder() -> Iterator[tuple[Path, int]]:
    """Yield a new folder and a file descriptor that keeps it, in processes that inherit it too.

    Folders of killed launchers are removed first. ConfigError if there can be no folder.
    """
    _sweep()
    try:
        made = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    except OSError as error:
        raise unusable(error) from error
    with made as name:
        lock = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # a file system without locks: then none is taken for left
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(name), lock
        finally:
            os.close(lock)


def unusable(error: OSError) -> ConfigError:
    """Return the error of a launcher that cannot write to its temporary folder."""
    return ConfigError(
        f"no temporary file for what the ranks have to say: {error}",
        hint="free some space, or set TMPDIR to a folder of a disk of this machine",
    )


def _sweep() -> None:
    """Remove the folders of this user that no launcher keeps."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another launcher may be at it
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(lock)
                if found.st_uid == os.geteuid() and time.time() - found.st_mtime >= _NEW:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
