"""Types of numbers that options take."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def count(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return an argparse type: whole numbers of at least `least` and at most `most`."""
    need = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {need}")
        return value

    return parse
