"""Pictures of `benchmarks.paper`, in the order of the paper's panels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import paper_tables
from benchmarks.paper_cases import PANELS
from benchmarks.paper_tables import Entries, along, milliseconds, of_workload, rivals_of, share

Curves = dict[str, list[tuple[float, float]]]
LABELS = {"batch_size": "batch size", "hidden": "hidden size", "leaves": "leaves"}


def times(entries: Entries, size: str) -> Curves:
    """Return the milliseconds of a graph by runner, preparation included."""
    found: Curves = {}
    for entry in entries:
        for name in ("cavs", *rivals_of(entry)):
            each = milliseconds(entry, name) / entry["case"]["batch_size"]
            found.setdefault(name, []).append((entry["case"][size], each))
    return found


def shares(entries: Entries, size: str) -> Curves:
    """Return the share of a step that preparation, or the construction of expressions, takes."""
    found: Curves = {}
    for entry in entries:
        for name, part in (("cavs", "prepare"), ("dynet", "construct")):
            if name in entry["runners"]:
                value = share(entry["runners"][name], part)
                found.setdefault(name, []).append((entry["case"][size], value))
    return found


def speedups(entries: Entries, size: str) -> Curves:
    """Return how many times faster each optimisation makes a step that has none."""
    found: Curves = {}
    for entry in entries:
        for label, ratio in paper_tables.speedups(entry).items():
            found.setdefault(label, []).append((entry["case"][size], ratio))
    return found


Panel = tuple[str, str, str, Callable[[Entries, str], Curves]]


def draw(record: dict[str, Any], folder: Path) -> list[str]:
    """Write the pictures of a record to a folder; return the names of the files."""
    entries = record["cases"]
    overall: list[Panel] = [
        (model, size, "ms a graph", times) for size in ("batch_size", "hidden") for model in PANELS
    ]
    parts: list[Panel] = [
        ("tree-fc", "leaves", "share of a step", shares),
        ("tree-lstm", "batch_size", "share of a step", shares),
        ("fixed-lstm", "hidden", "times as fast", speedups),
        ("tree-lstm", "hidden", "times as fast", speedups),
    ]
    return [
        figure(entries, panels, folder / f"paper-{name}.png")
        for name, panels in (("6.11", overall), ("6.12-6.13", parts))
    ]


def figure(entries: Entries, panels: list[Panel], path: Path) -> str:
    """Draw panels in rows of four."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = -(-len(panels) // 4)
    made, axes = plt.subplots(
        rows, 4, figsize=(15, 3.2 * rows), squeeze=False, layout="constrained"
    )
    for axis, (model, size, label, read) in zip(axes.flat, panels, strict=True):
        curves = read(along(of_workload(entries, model), size), size)
        for name, points in curves.items():
            axis.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name)
        axis.set(title=model, xlabel=LABELS[size], ylabel=label, xscale="log")
        if read is times:
            axis.set_yscale("log")
        at = sorted({x for points in curves.values() for x, _ in points})
        axis.set_xticks(at, [f"{x:g}" for x in at])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        if curves:
            axis.legend(fontsize="small")
    made.savefig(path, dpi=110)
    plt.close(made)
    return path.name
