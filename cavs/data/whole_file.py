"""Files that a reader finds whole or not at all."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cavs.errors import ConfigError

_ABANDONED = 3600.0  # seconds since a writer last wrote


def replace_whole(
    path: str | os.PathLike[str], parts: Iterable[bytes | memoryview], *, folders: bool = False
) -> None:
    """Writes `parts` in place of what was at `path`, which stays as it is if that fails.

    A link is followed; a device, or a file that may not be written, is refused. folders: those on
    the way are made. OSError, and TypeError or ValueError for what is no path.
    """
    final = Path(os.path.realpath(path))
    if folders:
        final.parent.mkdir(parents=True, exist_ok=True)
    if final.exists() and not (final.is_file() and os.access(final, os.W_OK)):
        raise PermissionError("it exists and is not a file that may be written")
    _clear_abandoned(final)
    # Every writer has a file of its own, so that two processes both leave a whole one.
    own = f"{os.getpid()}.{secrets.token_hex(4)}{_here()}"
    temporary = final.with_name(f".{final.name}.{own}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _keep_name(final.parent)


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """`replace_whole` by `text` as UTF-8. `ConfigError` if that fails."""
    try:
        replace_whole(path, [text.encode()])
    except OSError as error:
        raise ConfigError(
            f"cannot write {os.fspath(path)}: {error.strerror or error}",
            hint="name a file that you may write, in a folder that is there",
        ) from None


def _keep_name(folder: Path) -> None:
    """Has the disk keep what a file of `folder` is called now, where file systems can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def _clear_abandoned(final: Path) -> None:
    """Remove what writers of `final` that were killed have left behind.

    Those of this machine are gone at once; others, whose process numbers say nothing here, would
    have written for long.
    """
    name = re.escape(final.name)
    pattern = re.compile(rf"\.{name}\.([0-9]+)\.[0-9a-f]{{8}}(\.[0-9a-f]{{16}})?\.tmp")
    before = time.time() - _ABANDONED
    with suppress(OSError):  # another was faster, or the folder does not let us
        for match in filter(None, map(pattern.fullmatch, os.listdir(final.parent))):
            old, ours = final.with_name(match[0]), match[2] and match[2] == _here()
            if not _runs(int(match[1])) and (ours or old.stat().st_mtime < before):
                old.unlink()


@functools.cache
def _here() -> str:
    """A name of the processes among which this one's number is its own; empty if none is known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        processes = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    return f".{hashlib.sha256(f'{boot} {processes}'.encode()).hexdigest()[:16]}"


def _runs(process: int) -> bool:
    """Whether this machine has such a process; so it has if it cannot be asked."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
