"""The installed version of cavs."""

from __future__ import annotations


def version() -> str:
    """Return the installed version of cavs."""
    from importlib import metadata  # slow to import, and needed by checkpoints alone

    try:
        return metadata.version("cavs")
    except metadata.PackageNotFoundError:
        return "unknown"
