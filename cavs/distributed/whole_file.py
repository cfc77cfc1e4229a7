"""Files that a reader finds whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from cavs.errors import ConfigError


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Writes `text` as UTF-8 in place of what was at `path`. `ConfigError` if that fails."""
    target = Path(path)
    part = Path(f"{target}.{os.getpid()}.part")
    try:
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot write {target}: {error.strerror}", hint="name a file in a folder that is there"
        ) from None
