"""Bounds on measurements, in one table: every program checks its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import markdown, speed_table, write_report

Row = tuple[str, str, str, str]  # measure, found, needed, "yes" or "NO"
HEADERS = ("measure", "found", "needed", "holds")


def checked(measure: str, found: float, needed: float, least: bool, show: str) -> Row:
    """Return a row of the table. least: `needed` is a lower bound, otherwise an upper one."""
    good = found >= needed if least else found <= needed
    sign = "at least" if least else "at most"
    return measure, show.format(found), f"{sign} {show.format(needed)}", "yes" if good else "NO"


def times_over(entry: Any, runner: str) -> float | None:
    """Return the time of a runner over that of the reference, in a case as `measure` returns it.

    None if one of them failed.
    """
    found = entry["ratios"].get(runner)
    return None if found is None else float(found["wall"]["median"])


def rivals(cases: Sequence[Any], least: Mapping[str, float]) -> list[Row]:
    """Return a row per hidden size and rival that was measured. least: its time over ours."""
    return [
        checked(
            f"h {case['hidden']}: time of {name} over ours",
            case["ratios"][name]["median"],
            needed,
            True,
            "{:.2f}",
        )
        for case in cases
        for name, needed in least.items()
        if name in case["ratios"]
    ]


def report_turns(
    given: Any, cases: Sequence[Any], least: Mapping[str, float], size: str, unit: str
) -> int:
    """Print and write cases that runners have measured in turns; return 1 if a bound is missed.

    given: the options of the program. least: the least time of each rival over ours. size, unit:
    see `speed_table`.
    """
    bounds = rivals(cases, least)
    text = f"batches of {given.batch_size}, {given.threads} threads\n\n"
    text += speed_table(size, unit, cases) + verdict(bounds)
    print(text)
    result = {"batch_size": given.batch_size, "threads": given.threads, "cases": cases}
    write_report(given.out, text, [result])
    return 1 if missed(bounds) else 0


def verdict(rows: Sequence[Row]) -> str:
    """Return the table, to print below the results; empty without bounds."""
    return f"\n\n{markdown(HEADERS, rows)}" if rows else ""


def missed(rows: Sequence[Row]) -> list[str]:
    """Return the measures that miss their bound."""
    return [measure for measure, _, _, holds in rows if holds == "NO"]
