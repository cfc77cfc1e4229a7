"""A JSON-lines log: one object per line, appended and flushed at once."""

from __future__ import annotations

import json
import math
import os
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cavs.errors import ConfigError


def plain(value: Any) -> Any:
    """Return `value` as strict JSON: numbers of NumPy as Python's, infinity and NaN as text."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "item"):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


class JsonLines:
    """Appends records to `path`, after ending a line that a killed run or full disk left partial.

    Raises `ConfigError` if the file cannot be opened. If writing fails later, it warns once and the
    training goes on. opens: False for a process that writes only if the one before dies.
    """

    def __init__(self, path: str | os.PathLike[str], *, opens: bool = True) -> None:
        self.path = Path(path)
        self._broken = False
        if not opens:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append(b"")
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
            raise ConfigError(
                f"cannot write the log {path}: {getattr(error, 'strerror', None) or error}",
                hint="pass log= a path in a folder you may write to",
            ) from error

    def write(self, event: str, /, **record: Any) -> None:
        """Append ``{"event": event, "time": ..., **record}``; `record` cannot replace the two."""
        own = {key: value for key, value in record.items() if key not in ("event", "time")}
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps(plain({"event": event, "time": now, **own}), allow_nan=False)
        try:
            self._append(line.encode() + b"\n")
        except OSError as error:
            if not self._broken:
                warnings.warn(
                    f"cannot append to the log {self.path}: {error.strerror or error}; "
                    "training goes on",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self._broken = True

    def _append(self, line: bytes) -> None:
        with self.path.open("a+b") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    line = b"\n" + line
            file.write(line)
