"""Compiled kernels on disk, so that only the first process on a machine compiles them.

An entry is one file, named by a hash of everything the cubin depends on: source, headers, options
and version of the compiler. It has a checksum and appears atomically, so any number of processes
may fill a cache at once. A problem with it costs time but never changes a result: it is a
`CacheWarning`, once per cache, and the kernel is compiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from cavs.cuda.nvrtc import Nvrtc
from cavs.errors import CacheWarning

_MAGIC = b"cavs cubin 1\n"  # followed by the SHA-256 of the cubin, then the cubin
_HEADER = len(_MAGIC) + 32
_ABANDONED = 3600.0  # seconds after which a temporary file belongs to a writer that died
_PERMISSIONS = (
    "every process compiles its kernels again, which takes seconds; set CAVS_CACHE to a folder "
    "with space that may be read and written"
)
DEFAULT_LIMIT = 256 << 20


def default_folder() -> Path:
    """Return ``CAVS_CACHE``, or "cavs" in ``XDG_CACHE_HOME``, which is ``~/.cache`` by default."""
    own = os.environ.get("CAVS_CACHE")
    if own:
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # XDG: relative paths are ignored
        home = os.path.expanduser("~")  # stays "~" for a user unknown to the system
        base = os.path.join(home if os.path.isabs(home) else "/", ".cache")
    return Path(base) / "cavs"


def cubin_key(
    source: str, headers: Mapping[str, str], options: Sequence[str], compiler: str
) -> str:
    """Return the name of an entry: a SHA-256 of everything that the cubin depends on."""
    digest = hashlib.sha256()
    parts = [compiler, source, str(len(options)), *options]
    for name in sorted(headers):
        parts += [name, headers[name]]
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


class CubinCache:
    """Cubins in `folder`, up to `limit` bytes; the least recently used are evicted first.

    folder: `default_folder()` if None; created with the first cubin. No method raises: a folder
    that cannot be read or written, a full disk and a damaged file are a `CacheWarning`, once each.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, limit: int = DEFAULT_LIMIT
    ) -> None:
        self.folder = default_folder() if folder is None else Path(folder)
        self.limit = limit
        self._warned: set[str] = set()

    def get(self, key: str) -> bytes | None:
        """Return the cubin, or None if it is absent or damaged."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):  # a bad folder fails when it is written
            return None
        except OSError as error:
            self._warn("read", f"{path} cannot be read: {error.strerror}", _PERMISSIONS)
            return None
        cubin = content[_HEADER:]
        if content[:_HEADER] != _MAGIC + hashlib.sha256(cubin).digest():
            self._warn(
                "damaged",
                f"{path} of {len(content)} bytes is damaged: its checksum differs",
                "the kernel is compiled and written again; check the disk if this recurs",
            )
            return None
        with contextlib.suppress(OSError):  # a read-only folder does not record use
            os.utime(path)
        return cubin

    def put(self, key: str, cubin: bytes) -> None:
        """Keep a cubin; evict the least recently used if needed."""
        path = self._path(key)
        # Every writer has its own file; the last rename wins, and all contents are equal.
        temporary = path.with_name(f".{key}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                temporary.write_bytes(_MAGIC + hashlib.sha256(cubin).digest() + cubin)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            self._evict(path)
        except OSError as error:
            reason = error.strerror or str(error)
            self._warn("write", f"{self.folder} cannot be written: {reason}", _PERMISSIONS)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.cubin"

    def _evict(self, newest: Path) -> None:
        now, total, entries = time.time(), 0, []
        for file in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                status = file.stat()
                if file.name.endswith(".tmp") and now - status.st_mtime > _ABANDONED:
                    os.unlink(file.path)
                elif file.name.endswith(".cubin"):
                    total += status.st_size
                    entries.append((status.st_mtime_ns, status.st_size, file.path))
        for _, size, path in sorted(entries):
            if total <= self.limit:
                return
            if path != str(newest):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                total -= size

    def _warn(self, problem: str, found: str, cure: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            warning = CacheWarning(f"cache of compiled kernels: {found}", hint=cure)
            warnings.warn(warning, stacklevel=4)


class CachedCompiler:
    """A compiler with a cache."""

    def __init__(self, compiler: Nvrtc, cache: CubinCache) -> None:
        self.compiler, self.cache = compiler, cache
        self._version = "NVRTC {}.{}".format(*compiler.version())

    def compile(
        self, name: str, source: str, headers: Mapping[str, str], options: Sequence[str]
    ) -> bytes:
        """See `Nvrtc.compile`."""
        key = cubin_key(source, headers, options, self._version)
        cubin = self.cache.get(key)
        if cubin is None:
            cubin = self.compiler.compile(name, source, headers, options)
            self.cache.put(key, cubin)
        return cubin
