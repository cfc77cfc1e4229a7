"""`ConfigurationStore`: one JSON object with a version, in memory, in a file, or behind HTTP.

A scheduler writes the number of ranks that it wants, as ``{"size": 4}``, and a training writes back
how many there are, as ``"committed"``; see `cavs.train.policies.FollowStore`. It is the external
store of cluster configurations of Mai et al., KungFu, OSDI 2020, section 5.2.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from cavs.config import require, require_count
from cavs.errors import ConfigError

LARGEST = 1 << 16  # bytes of a configuration
_PATIENCE = 5.0  # seconds to wait for the lock of a file, which is held for a write
_GLANCE = 0.01  # seconds between two attempts
_FORM = '{"version": 1, "value": {"size": 4}}'


class Configuration(NamedTuple):
    """The content of a configuration store.

    version: number of writes so far. value: a JSON object; ``"size"`` is the wanted number of
    ranks, ``"committed"`` the number that trains.
    """

    version: int
    value: dict[str, Any]

    def encode(self) -> bytes:
        """Return it as JSON text. Raises `ConfigError` for a value that no store takes."""
        require(isinstance(self.value, dict), "value", self.value, "a dict of JSON values")
        require_count("version", self.version, 0)
        if "size" in self.value:
            require_count("size", self.value["size"])
        try:
            text = json.dumps(self._asdict(), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"the configuration {self.value!r:.80} is no JSON object: {error}",
                hint="use texts, finite numbers, and lists and dicts of these",
            ) from error
        if len(text) > LARGEST:
            raise ConfigError(
                f"a configuration of {len(text)} bytes, but a store takes {LARGEST}",
                hint="store large data elsewhere, and its path here",
            )
        return text

    @classmethod
    def decode(cls, data: bytes, where: str) -> Configuration:
        """Return the content of `data`. Raises `ConfigError` if it is none; where: its source."""
        try:
            if len(data) > LARGEST:
                raise ValueError(f"more than {LARGEST} bytes")
            read = json.loads(data)
            if not isinstance(read, dict) or read.keys() != {"version", "value"}:
                raise ValueError("no object of version and value")
            found = cls(**read)
            found.encode()
        except (ValueError, RecursionError) as error:  # ConfigError, and Unicode's, are ValueErrors
            shown = data[:60].decode(errors="replace")
            reason = error.what if isinstance(error, ConfigError) else error
            raise ConfigError(
                f"{where} has an invalid configuration, {shown!r}: {reason}",
                hint=f"write one such as {_FORM}",
            ) from error
        return found


class ConfigurationStore(ABC):
    """A JSON object with a version, which changes by compare-and-set.

    where: the location, for messages.
    """

    where: str

    @abstractmethod
    def read(self) -> Configuration:
        """Return the content; version 0 and an empty object before the first write.

        Raises `CommunicationError` if the store does not answer, and `ConfigError` if it refuses
        the token or has invalid content.
        """

    @abstractmethod
    def write(self, value: Mapping[str, Any], version: int) -> bool:
        """Replace the value if the store has `version`, on which it is based.

        Returns True if it is written, so that the store has ``version + 1``; False, with nothing
        changed, if others have written meanwhile. Raises as `read` does, and `ConfigError` for a
        value that is no JSON object, or has a ``"size"`` below 1.
        """


class MemoryStore(ConfigurationStore):
    """A store of this process."""

    where = "memory"

    def __init__(self) -> None:
        self._version, self._data = 0, Configuration(0, {}).encode()
        self._lock = threading.Lock()

    def read(self) -> Configuration:
        return Configuration.decode(self._data, self.where)

    def write(self, value: Mapping[str, Any], version: int) -> bool:
        data = Configuration(version + 1, dict(value)).encode()
        with self._lock:
            if self._version != version:
                return False
            self._version, self._data = version + 1, data
        return True


class FileStore(ConfigurationStore):
    """A store in a file, which may be edited by hand, too.

    Each write replaces the file by a rename, so that a reader sees all of it or nothing; writers
    hold a lock on the file ``.NAME.lock`` next to it. The file system must have locks.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.where = str(path)

    def read(self) -> Configuration:
        try:
            with self.path.open("rb") as file:
                data = file.read(LARGEST + 1)
        except FileNotFoundError:
            return Configuration(0, {})
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
            raise self._failed("read", error) from error
        return Configuration.decode(data, self.where)

    def write(self, value: Mapping[str, Any], version: int) -> bool:
        data = Configuration(version + 1, dict(value)).encode()
        new = self.path.with_name(f".{self.path.name}.{os.getpid()}.{threading.get_ident()}.new")
        try:
            with self._locked():
                if self.read().version != version:
                    return False
                try:
                    with new.open("xb") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                    os.replace(new, self.path)
                finally:
                    with suppress(FileNotFoundError):
                        new.unlink()
        except (OSError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise self._failed("write", error) from error
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        limit = time.monotonic() + _PATIENCE
        path = self.path.with_name(f".{self.path.name}.lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            while not _try_lock(lock):
                if time.monotonic() > limit:
                    raise ConfigError(
                        f"{path} is locked for more than {_PATIENCE:g} s",
                        hint="end the process that holds it: fuser names it",
                    )
                time.sleep(_GLANCE)
            yield
        finally:
            os.close(lock)

    def _failed(self, what: str, error: Exception) -> ConfigError:
        return ConfigError(
            f"cannot {what} the configuration {self.where}: "
            f"{getattr(error, 'strerror', None) or error}",
            hint="choose a file that you may read and write, on a file system with locks",
        )


def _try_lock(descriptor: int) -> bool:
    """Return False if another process, or another thread of this one, has the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


def read_token(path: str | os.PathLike[str]) -> str:
    """Return the token in a file. Raises `ConfigError` if it has none."""
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the token in {path}: {getattr(error, 'strerror', None) or error}",
            hint="write one, such as: openssl rand -hex 24 > FILE; chmod 600 FILE",
        ) from error
    check_token(text, str(path))
    return text


def check_token(token: str, where: str) -> None:
    """Raise `ConfigError` unless `token` is one word that a header of HTTP can have."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"the token of {where} is no word of printable ASCII characters",
            hint="write one, such as: openssl rand -hex 24 > FILE; chmod 600 FILE",
        )
