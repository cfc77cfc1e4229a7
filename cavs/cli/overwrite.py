"""``cavs train --overwrite``: remove the old run once the new one has saved a checkpoint."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cavs.errors import ConfigError
from cavs.train.checkpoint import best_path

_ASIDE = ".overwritten"  # suffix of the files of the old run meanwhile


@contextmanager
def overwriting(checkpoint: Path) -> Iterator[None]:
    """Move the files of an earlier run aside during the block, and remove them after it.

    If the block fails before it has written `checkpoint`, they are moved back. Raises `ConfigError`
    if they cannot be moved.
    """
    files = (checkpoint, best_path(checkpoint), checkpoint.with_name("log.jsonl"))
    aside = {old: old.with_name(old.name + _ASIDE) for old in files}
    try:
        for old, kept in aside.items():
            if os.path.isdir(old):
                raise IsADirectoryError(errno.EISDIR, "Is a directory")
            with suppress(FileNotFoundError):
                os.replace(old, kept)
    except OSError as error:
        _put_back(aside)
        raise ConfigError(
            f"cannot replace {old}: {error.strerror or error}",
            hint="pass another --out, or one that you may write to",
        ) from error
    try:
        yield
    except BaseException:
        if not os.path.exists(checkpoint):
            _put_back(aside)
        else:
            _remove(aside.values())
        raise
    _remove(aside.values())


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink(missing_ok=True)


def _put_back(aside: dict[Path, Path]) -> None:
    for old, kept in aside.items():
        with suppress(FileNotFoundError):
            os.replace(kept, old)
