"""What must hold of what was measured, in one table: every program judges itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.harness import markdown

Row = tuple[str, str, str, str]  # measure, found, needed, whether it holds
HEADERS = ("measure", "found", "needed", "holds")


def judged(measure: str, found: float, needed: float, least: bool, show: str) -> Row:
    """A row of the table. least: whether `needed` is the least that it takes, or the most."""
    good = found >= needed if least else found <= needed
    sign = "at least" if least else "at most"
    return measure, show.format(found), f"{sign} {show.format(needed)}", "yes" if good else "NO"


def times_over(entry: Any, runner: str) -> float | None:
    """How many times longer a runner takes than the reference, in a case as `measure` gives it.

    None where one of them failed.
    """
    found = entry["ratios"].get(runner)
    return None if found is None else float(found["wall"]["median"])


def verdict(rows: Sequence[Row]) -> str:
    """The table, below what a program shows; nothing where nothing is judged."""
    return f"\n\n{markdown(HEADERS, rows)}" if rows else ""


def missed(rows: Sequence[Row]) -> list[str]:
    """The measures that miss their bound."""
    return [measure for measure, _, _, holds in rows if holds == "NO"]
