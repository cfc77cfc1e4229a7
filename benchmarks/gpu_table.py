"""The one table of a GPU run: what was found, and what must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.harness import markdown

Row = tuple[str, str, str, str]

# Relative norms of the difference to float64 that a precision may have.
ALLOWED = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 1e-2}


def _judged(measure: str, found: float, needed: float, least: bool, show: str) -> Row:
    good = found >= needed if least else found <= needed
    sign = "at least" if least else "at most"
    return measure, show.format(found), f"{sign} {show.format(needed)}", "yes" if good else "NO"


def _times(entry: Any, runner: str) -> float | None:
    """How many times longer a runner takes than cavs; None where one of them failed."""
    found = entry["ratios"].get(runner)
    return None if found is None else float(found["wall"]["median"])


def _entries(record: Any, group: str) -> Iterator[Any]:
    yield from (e for e in record["cases"] if e["group"] == group)


def _targets(record: Any) -> Iterator[Row]:
    """The measures that have a bound."""
    for precision, workloads in record.get("accuracy", {}).items():
        worst = max(max(found.values()) for found in workloads.values())
        measure = f"difference to float64, {precision}"
        yield _judged(measure, worst, ALLOWED[precision], False, "{:.1e}")
    for entry in _entries(record, "sst"):
        yield from _sst(entry)
    bounds: list[tuple[str, str, float, str]] = [
        ("tree-fc", "floor-torch", 0.5, "share of the product floor"),
        ("fixed-lstm", "padded", 0.7, "time of cuDNN over ours"),
    ]
    for group, runner, needed, what in bounds:
        for entry in _entries(record, group):
            times = _times(entry, runner)
            if times is not None:
                yield _judged(f"{entry['title']}: {what}", times, needed, True, "{:.2f}")
    for name, found in record.get("first_step", {}).items():
        measure = f"first step of the {name.replace('_', ' ')}, seconds"
        if name == "second_process":
            yield _judged(measure, found["first"], 1.5, False, "{:.2f}")
        else:
            yield measure, f"{found['first']:.2f}", "", ""
    if "curve" in record:
        c = record["curve"]
        text = f"{c['worst']:.1e}; loss from {c['first']:.3f} to {c['last']:.3f}"
        yield f"losses of {c['steps']} steps against the CPU's", text, "", ""


def _sst(entry: Any) -> Iterator[Row]:
    ours = entry["runners"].get("cavs")
    if ours is None:
        return
    step, title = ours["step"]["median"], entry["title"]
    rate = entry["samples_per_batch"] / step
    yield _judged(f"{title}: trees a second", rate, 60_000, True, "{:,.0f}")
    hand = _times(entry, "hand")
    if hand is not None:
        yield _judged(f"{title}: batched by hand over ours", hand, 3.0, True, "{:.2f}")
    graphs = [t for t in (_times(entry, f"{n}-graph") for n in ("hand", "manual")) if t is not None]
    if graphs:
        measure = f"{title}: the best under CUDA graphs over ours"
        yield _judged(measure, min(graphs), 1.5, True, "{:.2f}")
    share = ours["prepare"]["median"] / step
    yield _judged(f"{title}: preparation over a step", share, 0.05, False, "{:.1%}")


def _ceilings(record: Any) -> Iterator[Row]:
    """The device's own, and what cavs reaches of them."""
    top = record.get("ceilings", {})
    for name, found in top.items():
        if name == "device":
            continue
        if name == "bytes":
            yield "copy, read plus written", f"{found / 1e9:,.0f} GB/s", "", ""
        else:
            yield f"product of large squares, {name}", f"{found / 1e12:.1f} TFLOP/s", "", ""
    for entry in record["cases"]:
        ours, case = entry["runners"].get("cavs"), entry["case"]
        if ours is None or entry["group"] in ("sweep", "ablation", "naive"):
            continue
        rate = entry["flops"] / ours["step"]["median"]
        found = f"{rate / 1e12:.3g} TFLOP/s"
        ceiling = top.get(case["precision"])
        found += f", {rate / ceiling:.1%} of the ceiling" if ceiling else ""
        yield f"{entry['title']}: products", found, "", ""
    if "timeline" in record and "bytes" in top:
        moved = record["timeline"]["gather_bytes"] + record["timeline"]["write_bytes"]
        for entry in _entries(record, "sst"):
            if "cavs" in entry["runners"]:
                rate = moved / entry["runners"]["cavs"]["step"]["median"]
                text = f"{rate / 1e9:,.1f} GB/s, {rate / top['bytes']:.1%} of the ceiling"
                yield f"{entry['title']}: gathered and written", text, "", ""


def _measured(record: Any) -> Iterator[Row]:
    """Every case and runner: milliseconds a batch with quartiles, and time over that of cavs."""
    for entry in record["cases"]:
        for name, runner in entry["runners"].items():
            step, times = runner["step"], _times(entry, name)
            quartiles = f"{step['q25'] * 1e3:.3g}-{step['q75'] * 1e3:.3g}"
            found = f"{step['median'] * 1e3:.3g} ms ({quartiles})"
            found += f", {times:.2f} times cavs" if times is not None else ""
            yield f"{entry['group']}: {entry['title']}: {name}", found, "", ""


def _missing(record: Any) -> Iterator[Row]:
    for failure in record["failed"]:
        first = failure["error"].splitlines()[0]
        yield failure["part"], f"failed: {first[:120]}", "", "NO"
    for name in record["skipped"]:
        yield name, "left out: time was up", "", ""


def summary_table(record: Any) -> str:
    """Markdown: cases and rivals first, then ceilings, then what is missing, then the bounds."""
    parts: tuple[Callable[[Any], Iterator[Row]], ...] = (_measured, _ceilings, _missing, _targets)
    rows = [row for part in parts for row in part(record)]
    place = record.get("ceilings", {}).get("device") or record["machine"]["cpu"]
    head = f"{place}; {record['data']} data; {record['seconds']:.0f} s; {record['command']}"
    return f"{head}\n\n{markdown(('measure', 'found', 'needed', 'holds'), rows)}"
