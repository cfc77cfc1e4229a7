"""The table of a CPU run: every bound, the value found, and whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.batching import MODES
from benchmarks.bounds import Row, checked, times_over
from benchmarks.cpu_cases import A_TREE, LINEAR, NOISE, PEAK, RATE, SHARE
from benchmarks.harness import QUIET, markdown

HEADERS = ("measure", "case", "found", "bound", "holds")
Line = tuple[str, str, str, str, str]


def _line(case: str, row: Row) -> Line:
    measure, *rest = row
    found, needed, holds = rest
    return measure, case, found, needed, holds


def _times(measure: str, found: float, needed: float | None) -> Row:
    """Return the row of a ratio with a lower bound, or without one."""
    if needed is None:
        return measure, f"{found:.2f}", "", ""
    return checked(measure, found, needed, True, "{:.2f}")


def _star(entry: Any) -> str:
    return " *" if (entry.get("busy_before") or 0) > QUIET else ""


def _against(record: Any) -> Iterator[Line]:
    """Compare with the fastest of several rivals; if one is missing, none is known to be."""
    for entry in record["cases"]:
        case = entry["title"] + _star(entry)
        for names, needed in entry["needs"]:
            who = names[0] if len(names) == 1 else f"the better of {' and '.join(names)}"
            measure = f"{entry['what']}: time of {who} over ours"
            found = [times_over(entry, name) for name in names]
            known = [times for times in found if times is not None]
            if len(known) == len(found):
                yield _line(case, _times(measure, min(known), needed))
            elif needed is not None:
                yield measure, case, "not measured", f"at least {needed:.2f}", "NO"
    yield from _a_tree([e for e in record["cases"] if e["part"] == "one-tree"])


def _a_tree(entries: list[Any]) -> Iterator[Line]:
    """Use the number of threads that takes the least time."""
    found = {
        e["title"] + _star(e): ours["step"]["median"] + ours["prepare"]["median"]
        for e in entries
        if (ours := e["runners"].get("cavs")) is not None
    }
    if found:
        case = min(found, key=lambda title: found[title])
        measure = "microseconds a tree, preparation included"
        row = checked(measure, found[case] * 1e6, A_TREE * 1e6, False, "{:.0f}")
        yield _line(case, row)


def _batching(record: Any) -> Iterator[Line]:
    """Check that one sample at a time runs on one thread where two are no gain, up to noise."""
    for entry in record["batching"]:
        found = entry["found"]
        sizes = [e["case"]["batch_size"] for e in found]
        threads = max(e["case"]["threads"] for e in found)
        for e in found:
            case = e["case"]
            size, single = case["batch_size"], case["threads"] == 1
            title = f"{case['workload']} {MODES[case['training']]}, h {case['hidden']}, bs {size}"
            title += _star(entry)
            if size == min(sizes) and not single:
                measure = f"two threads over one, {NOISE:.0%} allowed for noise"
                yield _line(title, _times(measure, e["threads"]["median"], 1 - NOISE))
            if size == max(sizes) and not single:
                row = _times("second core", e["threads"]["median"], entry["second_core"])
                yield _line(title, row)
            if size == max(sizes) and entry["batches"] is not None:
                where = f"{case['threads']} thread{'' if single else 's'}"
                measure = f"batching: vertices a second to those at bs {min(sizes)}, {where}"
                needed = entry["batches"] if case["threads"] == threads else None
                yield _line(title, _times(measure, e["batching"]["median"], needed))


def _preparation(record: Any) -> Iterator[Line]:
    for entry in record["preparation"]:
        case, merged, unmerged = entry["title"] + _star(entry), entry["merged"], entry["unmerged"]
        measure = "collation and schedule over a training step"
        yield _line(case, checked(measure, unmerged["share"]["median"], SHARE, False, "{:.1%}"))
        share = f"{merged['share']['median']:.1%}"
        yield "the same and merging, over a step that is shorter by it", case, share, "", ""
        if entry["case"]["threads"] == 1:
            rate = merged["vertices"] / merged["alone"]["median"]
            measure = "vertices prepared a second on one thread, merging included"
            yield _line(case, checked(measure, rate, RATE, True, "{:,.0f}"))


def _growth(record: Any) -> Iterator[Line]:
    """Check that four times the vertices take four times the memory."""
    of: dict[str, list[Any]] = {}
    for entry in record["growth"]:
        of.setdefault(entry["shape"], []).append(entry)
        case = f"{entry['shape']} of {entry['vertices']:,} vertices"
        yield "runs: milliseconds a step", case, f"{entry['step'] * 1e3:.1f}", "runs", "yes"
    for shape, entries in of.items():
        if len(entries) < 2:
            continue
        small, large = entries[-2:]
        times = large["vertices"] / small["vertices"]
        more = large["bytes"] * large["vertices"] / max(small["bytes"] * small["vertices"], 1)
        case = f"{shape}, {small['vertices']:,} to {large['vertices']:,} vertices"
        measure = f"memory grows {more:.2f} times where vertices do {times:g} times: off by"
        yield _line(case, checked(measure, abs(more / times - 1), LINEAR, False, "{:.1%}"))


def _memory(record: Any) -> Iterator[Line]:
    merging = {"cavs": "merged", "cavs-without-merge_vertices": "separate"}
    for entry in record["memory"]:
        for runner, how in merging.items():
            peak, kept = entry[runner]["peak"], entry[runner]["kept"]
            measure = f"peak memory over what backward reads, equal vertices {how}"
            row = checked(measure, peak / max(kept, 1), PEAK, False, "{:.2f}")
            yield _line(entry["title"], row)


def _failed(record: Any) -> Iterator[Line]:
    for failure in record["failed"]:
        yield failure["part"], "", f"failed: {failure['error'].splitlines()[0][:120]}", "", "NO"


def checked_rows(record: Any) -> list[Line]:
    """Return all lines of the table: failures first, then measurements."""
    parts: tuple[Callable[[Any], Iterator[Line]], ...]
    parts = (_failed, _against, _batching, _preparation, _growth, _memory)
    return [line for part in parts for line in part(record)]


def missed(record: Any) -> list[str]:
    """Return the measures that miss their bound, with their cases."""
    lines = checked_rows(record)
    return [f"{measure}: {case}" for measure, case, *_, holds in lines if holds == "NO"]


def summary_table(record: Any) -> str:
    """Return the table in Markdown, below a line with machine and command."""
    head = f"{record['machine']['cpu']}; load {record['machine']['load']} at the start; "
    head += f"{record['data']} data; {record['seconds']:.0f} s; {record['command']}"
    lines = checked_rows(record)
    if any(case.endswith("*") for _, case, *_ in lines):
        head += f"\n\\* other work used more than {QUIET:.0%} of the cores just before"
    return f"{head}\n\n{markdown(HEADERS, lines)}"
