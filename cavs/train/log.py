"""A JSON-lines log: one object a line, flushed at once, appended to."""

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
    """`value` as strict JSON: numbers of NumPy become Python's, what is not finite its name."""
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
    """Appends records to `path`; a line torn by a killed run or a full disk is closed first.

    Raises `ConfigError` if the file cannot be opened. A disk that fills up later is warned of
    once and does not stop the training.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._broken = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append(b"")
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
            raise ConfigError(
                f"cannot write the log {path}: {getattr(error, 'strerror', None) or error}",
                hint="pass log= a path in a folder you may write to",
            ) from error

    def write(self, event: str, /, **record: Any) -> None:
        """Append ``{"event": event, "time": ..., **record}``; of `record` nothing is called so."""
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
