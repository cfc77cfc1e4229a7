"""Atomic writes of files: a reader sees the old content or the new."""

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
    """Write `parts` as the new content of `path`; if that fails, the old content stays.

    A link is followed; a device, or a file that may not be written, is refused. folders: create
    missing folders of `path`. OSError, and TypeError or ValueError for anything but a path.
    """
    final = Path(os.path.realpath(path))
    if folders:
        final.parent.mkdir(parents=True, exist_ok=True)
    if final.exists() and not (final.is_file() and os.access(final, os.W_OK)):
        raise PermissionError("it exists and is not a file that may be written")
    _clear_abandoned(final)
    # Every writer has a temporary file of its own, so that two processes do not mix contents.
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
    _sync_names(final.parent)


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """`replace_whole` with `text` as UTF-8; `ConfigError` if that fails."""
    try:
        replace_whole(path, [text.encode()])
    except OSError as error:
        raise ConfigError(
            f"cannot write {os.fspath(path)}: {error.strerror or error}",
            hint="name a file that you may write, in a folder that is there",
        ) from None


def _sync_names(folder: Path) -> None:
    """Flush the names of files in `folder` to disk, on file systems that can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def _clear_abandoned(final: Path) -> None:
    """Remove temporary files of `final` whose writers were killed.

    Files of this machine's writers are removed as soon as their process is gone. The process
    numbers of other machines say nothing here: their files must be older than an hour too.
    """
    name = re.escape(final.name)
    pattern = re.compile(rf"\.{name}\.([0-9]+)\.[0-9a-f]{{8}}(\.[0-9a-f]{{16}})?\.tmp")
    before = time.time() - _ABANDONED
    with suppress(OSError):  # another process removed it, or the folder is read-only
        for match in filter(None, map(pattern.fullmatch, os.listdir(final.parent))):
            old, ours = final.with_name(match[0]), match[2] and match[2] == _here()
            if not _runs(int(match[1])) and (ours or old.stat().st_mtime < before):
                old.unlink()


@functools.cache
def _here() -> str:
    """Return the name of this boot and process namespace; empty if the system has none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        processes = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    return f".{hashlib.sha256(f'{boot} {processes}'.encode()).hexdigest()[:16]}"


def _runs(process: int) -> bool:
    """True if this machine runs such a process, or does not tell."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
