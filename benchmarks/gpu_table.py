"""The one table of a GPU run: what was found, and what must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import bounds
from benchmarks.bounds import Row, checked, times_over
from benchmarks.harness import markdown

# Relative norms of the difference to float64 that a precision may have.
ALLOWED = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 1e-2}
TREES_A_SECOND = 60_000  # Tree-LSTM on the treebank, hidden and batch size 256
PREPARED = 0.05  # collation, schedule and upload, over a step
EXPOSED = 0.05  # preparation that the device does not hide, over a step
# Relative difference of the mean loss to the CPU's after each of 1,000 steps: errors accumulate.
CURVE = 0.001

# Microseconds per level by the persistent kernel, in tf32, up to these sizes.
LEVEL = {"forward": 4.0, "both": 8.0}
LEVEL_HIDDEN, LEVEL_WIDTH = 512, 64
LATENCY = 120.0  # median latency of one tree in microseconds, by the persistent kernel
MODES = {"forward": "forward", "both": "forward and backward"}


def _entries(record: Any, group: str) -> Iterator[Any]:
    yield from (e for e in record["cases"] if e["group"] == group)


def _targets(record: Any) -> Iterator[Row]:
    """Yield the measures that have a bound."""
    for precision, workloads in record.get("accuracy", {}).items():
        worst = max(max(found.values()) for found in workloads.values())
        measure = f"difference to float64, {precision}"
        yield checked(measure, worst, ALLOWED[precision], False, "{:.1e}")
    for entry in _entries(record, "sst"):
        yield from _sst(entry)
    shares: list[tuple[str, str, float, str]] = [
        ("tree-fc", "floor-torch", 0.5, "share of the product floor"),
        ("fixed-lstm", "padded", 0.7, "time of cuDNN over ours"),
    ]
    for group, runner, needed, what in shares:
        for entry in _entries(record, group):
            times = times_over(entry, runner)
            if times is not None:
                yield checked(f"{entry['title']}: {what}", times, needed, True, "{:.2f}")
    for name, found in record.get("first_step", {}).items():
        measure = f"import and first step of the {name.replace('_', ' ')}, seconds"
        if name == "second_process":
            yield checked(measure, found["total"], 1.5, False, "{:.2f}")
        else:
            yield measure, f"{found['total']:.2f}", "", ""
    if "fresh" in record:
        yield from _fresh(record["fresh"])
    yield from _level_targets(record)
    for found in record.get("latency", ()):
        if "persistent" in found["ways"]:
            median = found["ways"]["persistent"]["median"]
            measure = f"one tree, h {found['hidden']}, {found['precision']}: persistent, us"
            yield checked(measure, median, LATENCY, False, "{:.0f}")
    if "curve" in record:
        c = record["curve"]
        steps = f"{c['steps']} steps, loss from {c['first']:.3f} to {c['last']:.3f}"
        yield checked(f"{steps}: difference to the CPU's", c["worst"], CURVE, False, "{:.1e}")


def _level_targets(record: Any) -> Iterator[Row]:
    """Yield the worst width of every cell and hidden size."""
    for found in record.get("levels", ()):
        if found["precision"] != "tf32" or found["hidden"] > LEVEL_HIDDEN:
            continue
        checked_widths = [
            entry
            for entry in found["widths"]
            if entry["width"] <= LEVEL_WIDTH and "persistent" in entry["ways"]
        ]
        for mode, needed in LEVEL.items() if checked_widths else ():
            worst = max(checked_widths, key=lambda entry: entry["ways"]["persistent"][mode])
            measure = f"levels: {found['title']}, worst at {worst['width']} vertices: "
            measure += f"persistent, {MODES[mode]}, us a level"
            yield checked(measure, worst["ways"]["persistent"][mode], needed, False, "{:.2f}")


def _sst(entry: Any) -> Iterator[Row]:
    ours = entry["runners"].get("cavs")
    if ours is None:
        return
    step, title = ours["step"]["median"], entry["title"]
    rate = entry["samples_per_batch"] / step
    yield checked(f"{title}: trees a second", rate, TREES_A_SECOND, True, "{:,.0f}")
    hand = times_over(entry, "hand")
    if hand is not None:
        yield checked(f"{title}: batched by hand over ours", hand, 3.0, True, "{:.2f}")
    graphs = [
        t for t in (times_over(entry, f"{n}-graph") for n in ("hand", "manual")) if t is not None
    ]
    if graphs:
        measure = f"{title}: the best under CUDA graphs over ours"
        yield checked(measure, min(graphs), 1.5, True, "{:.2f}")
    share = ours["prepare"]["median"] / step
    yield checked(f"{title}: preparation alone, over a step", share, PREPARED, False, "{:.1%}")


def _fresh(found: Any) -> Iterator[Row]:
    title, step = found["title"], found["fresh"]["median"]
    rate = found["batch_size"] / step
    measure = f"{title}: trees a second, on batches made meanwhile"
    yield checked(measure, rate, TREES_A_SECOND, True, "{:,.0f}")
    hidden = f"preparation takes {found['prepare']['median'] / step:.1%} of it"
    measure = f"{title}: a step is longer than on ready batches ({hidden})"
    yield checked(measure, found["exposed"]["median"], EXPOSED, False, "{:.1%}")


def _ceilings(record: Any) -> Iterator[Row]:
    """Yield the peak rates of the device, and the share that cavs reaches."""
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
        if ours is None or entry["group"] in ("sweep", "ablation", "graphs", "naive"):
            continue
        rate = entry["flops"] / ours["step"]["median"]
        found = f"{rate / 1e12:.3g} TFLOP/s"
        ceiling = top.get(case["precision"])
        found += f", {rate / ceiling:.1%} of the ceiling" if ceiling else ""
        yield f"{entry['title']}: products", found, "", ""
    if "busy" in record.get("timeline", {}):
        share = f"{record['timeline']['busy']:.1%}"
        yield "time in which the device is busy, on batches made meanwhile", share, "", ""
    if "timeline" in record and "bytes" in top:
        moved = record["timeline"]["indexed_bytes"] + record["timeline"]["write_bytes"]
        for entry in _entries(record, "sst"):
            if "cavs" in entry["runners"]:
                rate = moved / entry["runners"]["cavs"]["step"]["median"]
                text = f"{rate / 1e9:,.1f} GB/s, {rate / top['bytes']:.1%} of the ceiling"
                yield f"{entry['title']}: read by index and written", text, "", ""


def _launches(record: Any) -> Iterator[Row]:
    """Return the cost of a launch for the host, and in a series until all are done."""
    for found in record.get("launches", ()):
        ways = {"one by one": "one_by_one", "between streams": "forked", "in a graph": "replay"}
        costs = [
            f"{way} {found[k]['enqueue']:.2f} ({found[k]['done']:.2f})" for way, k in ways.items()
        ]
        costs += [f"{k} {found[k]:.2f}" for k in ("capture", "instantiate")]
        yield f"a launch, {found['bytes']} bytes of arguments, us", ", ".join(costs), "", ""


def _levels(record: Any) -> Iterator[Row]:
    """Yield microseconds per level of every way, with its launches; then the fitted lines."""
    for found in record.get("kernels", ()):
        yield f"kernels of {found['points']} models compiled, s", f"{found['seconds']:.1f}", "", ""
    for found in record.get("levels", ()):
        for entry in found["widths"]:
            for mode, what in MODES.items():
                costs = [
                    f"{way} {of[mode]:.2f} ({of['launches'][mode]})" if mode in of else f"{way} ?"
                    for way, of in entry["ways"].items()
                ]
                measure = f"levels: {found['title']}, {entry['width']} vertices: {what}, "
                yield f"{measure}us a level (launches of a run)", ", ".join(costs), "", ""
        for way, fits in found["fits"].items():
            lines = [
                f"{name} {of['a']:.2f} {of['b']:+.4f} a row (off by {of['off']:.0%})"
                for name, of in fits.items()
            ]
            yield f"levels: {found['title']}: us a task, {way}", ", ".join(lines), "", ""


def _latency(record: Any) -> Iterator[Row]:
    """Yield medians and 90th percentiles of the latency of one tree."""
    for found in record.get("latency", ()):
        measure = f"one tree of {found['trees']}, h {found['hidden']}, {found['precision']}"
        costs = [
            f"{way} {of['median']:.0f} ({of['p90']:.0f}), {of['collation']['median']:.0f} of it "
            "collation"
            for way, of in found["ways"].items()
        ]
        yield f"{measure}: us, median (90 %)", "; ".join(costs), "", ""


def _measured(record: Any) -> Iterator[Row]:
    """Yield milliseconds per batch with quartiles, and time over that of cavs."""
    for entry in record["cases"]:
        for name, runner in entry["runners"].items():
            step, times = runner["step"], times_over(entry, name)
            quartiles = f"{step['q25'] * 1e3:.3g}-{step['q75'] * 1e3:.3g}"
            found = f"{step['median'] * 1e3:.3g} ms ({quartiles})"
            found += f", {times:.2f} times cavs" if times is not None else ""
            found += f"; {runner['peak_memory'] / 2**20:,.0f} MiB"
            yield f"{entry['group']}: {entry['title']}: {name}", found, "", ""


def _missing(record: Any) -> Iterator[Row]:
    for failure in record["failed"]:
        first = failure["error"].splitlines()[0]
        yield failure["part"], f"failed: {first[:120]}", "", "NO"
    for name in (*record["skipped"], *record.get("optional_skipped", ())):
        yield name, "left out: time was up", "", ""


def missed(record: Any) -> list[str]:
    """Return the measures that miss their bound."""
    return bounds.missed(list(_targets(record)))


def summary_table(record: Any) -> str:
    """Return Markdown: cases and rivals, ceilings, missing parts, bounds."""
    parts: tuple[Callable[[Any], Iterator[Row]], ...] = (
        _measured,
        _ceilings,
        _launches,
        _levels,
        _latency,
        _missing,
        _targets,
    )
    rows = [row for part in parts for row in part(record)]
    place = record.get("ceilings", {}).get("device") or record["machine"]["cpu"]
    head = f"{place}; {record['data']} data; {record['seconds']:.0f} s; {record['command']}"
    return f"{head}\n\n{markdown(bounds.HEADERS, rows)}"
