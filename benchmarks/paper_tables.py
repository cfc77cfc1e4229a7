"""Tables of `benchmarks.paper` from measured cases, with the figures of the paper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np

from benchmarks.bounds import Row, checked
from benchmarks.harness import markdown
from benchmarks.paper_cases import (
    FIGURES,
    FIXED_BATCH,
    FIXED_HIDDEN,
    OPTIMISATIONS,
    PANELS,
    STREAMED,
)
from benchmarks.workloads import Case

Entries = SequenceOf[Any]
SHARE = 0.05  # most of a step that collation and scheduling may take
HAND = {"hand", "padded", "packed"}
DYNET = ("dynet", "dynet-depth")
# DyNet's time over that of Cavs on a Titan X, computation alone (tables 6.2 and 6.3).
PAPER_LEAVES = {32: 7.1, 64: 7.5, 128: 7.9, 256: 8.7, 512: 8.9, 1024: 9.7}
PAPER_BATCHES = {1: 0.8, 16: 1.2, 32: 1.6, 64: 1.8, 128: 2.0, 256: 2.4}
# Seconds of an epoch in memory operations and in computation, of Cavs: training, inference.
PAPER_MEMORY = {
    16: ((1.14, 9.8), (0.6, 2.9)),
    32: ((0.67, 6.1), (0.35, 1.9)),
    64: ((0.39, 4.0), (0.21, 1.3)),
    128: ((0.25, 2.9), (0.13, 0.97)),
    256: ((0.17, 2.3), (0.09, 0.77)),
}


def of_workload(entries: Entries, workload: str, training: bool = True) -> list[Any]:
    """Return the cases of a model in a mode."""
    return [
        entry
        for entry in entries
        if entry["case"]["workload"] == workload and entry["case"]["training"] == training
    ]


def along(entries: Entries, size: str) -> list[Any]:
    """Return the cases of the panel over a size ("hidden", "batch_size", "leaves"), sorted."""
    fixed = {"hidden": FIXED_HIDDEN, "batch_size": FIXED_BATCH, "leaves": Case.leaves}
    found = [
        entry
        for entry in entries
        if all(entry["case"][name] == at for name, at in fixed.items() if name != size)
    ]
    return sorted(found, key=lambda entry: entry["case"][size])


def whole(runner: Any) -> list[float]:
    """Return the seconds a vertex of each round: preparation and step."""
    parts = runner["seconds_per_vertex"], runner["prepare_seconds_per_vertex"]
    return [sum(both) for both in zip(*parts, strict=True)]


def over(entry: Any, name: str) -> float | None:
    """Return the time of a runner over ours, preparation included; None if one is missing."""
    runners = entry["runners"]
    if name not in runners or "cavs" not in runners:
        return None
    pairs = zip(whole(runners[name]), whole(runners["cavs"]), strict=True)
    return float(np.median([a / b for a, b in pairs]))


def shown(value: float | None, form: str = "{:.2f}") -> str:
    """Return a number as text; empty without one."""
    return "" if value is None else form.format(value)


def milliseconds(entry: Any, name: str) -> float:
    """Return the milliseconds of a batch, preparation included."""
    seconds = float(np.median(whole(entry["runners"][name])))
    return seconds * entry["vertices_per_batch"] * 1e3


def panels(entries: Entries) -> str:
    """Return the panels of 6.11: our milliseconds a batch, and times of rivals over ours."""
    parts = []
    for model, training, size, chosen in overall(entries):
        names = list(dict.fromkeys(name for e in chosen for name in rivals_of(e)))
        rows = [
            [
                str(entry["case"][size]),
                f"{milliseconds(entry, 'cavs'):.3g}",
                *(shown(over(entry, name)) for name in names),
            ]
            for entry in chosen
        ]
        mode = "training" if training else "inference"
        fixed = f"h {FIXED_HIDDEN}" if size == "batch_size" else f"batches of {FIXED_BATCH}"
        head = [size.replace("_", " "), "our ms a batch", *names]
        parts.append(f"**6.11** {model}, {mode}, {fixed}\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


def overall(entries: Entries) -> Iterator[tuple[str, bool, str, list[Any]]]:
    """Return the panels of 6.11 that have cases: model, training, size, and the cases."""
    for model in PANELS:
        for training in (True, False):
            for size in ("batch_size", "hidden"):
                chosen = along(of_workload(entries, model, training), size)
                if chosen := [entry for entry in chosen if rivals_of(entry)]:
                    yield model, training, size, chosen


def rivals_of(entry: Any) -> list[str]:
    """Return the runners of other libraries in a case."""
    return [name for name in entry["runners"] if not name.startswith("cavs")]


def share(runner: Any, part: str) -> float:
    """Return the median share of preparation ("prepare") or construction in all of a step."""
    pairs = zip(runner[f"{part}_seconds_per_vertex"], whole(runner), strict=True)
    return float(np.median([a / b for a, b in pairs]))


def construction(entries: Entries) -> str:
    """Return 6.12: collation and schedules of cavs, construction of graphs in DyNet."""
    parts = []
    for model, size in (("tree-fc", "leaves"), ("tree-lstm", "batch_size")):
        chosen = along(of_workload(entries, model), size)
        rows = []
        for entry in chosen:
            per = entry["vertices_per_batch"] * 1e3
            row = [str(entry["case"][size])]
            for name, part in (("cavs", "prepare"), ("dynet", "construct")):
                runner = entry["runners"].get(name)
                if runner is None:
                    row += ["", ""]
                    continue
                seconds = float(np.median(runner[f"{part}_seconds_per_vertex"]))
                row += [f"{seconds * per:.3g}", f"{share(runner, part):.1%}"]
            rows.append(row)
        if rows:
            head = [size.replace("_", " "), "our ms", "share", "dynet ms", "share"]
            parts.append(f"**6.12** {model}, training\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


def computation(entries: Entries) -> str:
    """Return table 6.2: the time of steps without preparation and construction."""
    parts = []
    for model, size, paper in (
        ("tree-fc", "leaves", PAPER_LEAVES),
        ("tree-lstm", "batch_size", PAPER_BATCHES),
    ):
        rows = []
        for entry in along(of_workload(entries, model), size):
            ours, dynet = (entry["runners"].get(name) for name in ("cavs", "dynet"))
            if ours is None or dynet is None:
                continue
            alone = computing(dynet)
            pairs = zip(alone, ours["seconds_per_vertex"], strict=True)
            per = entry["vertices_per_batch"] * 1e3
            at = entry["case"][size]
            rows.append(
                [
                    str(at),
                    f"{np.median(ours['seconds_per_vertex']) * per:.3g}",
                    f"{np.median(alone) * per:.3g}",
                    f"{np.median([a / b for a, b in pairs]):.2f}",
                    shown(paper.get(at), "{:.1f}"),
                ]
            )
        if rows:
            head = [size.replace("_", " "), "our ms", "dynet ms", "ratio", "in the paper"]
            parts.append(f"**Table 6.2** {model}, training\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


def computing(runner: Any) -> list[float]:
    """Return the seconds a vertex of steps without the construction of expressions."""
    built = runner["construct_seconds_per_vertex"]
    return [a - b for a, b in zip(runner["seconds_per_vertex"], built, strict=True)]


def optimisations(entries: Entries) -> str:
    """Return 6.13: how many times faster one optimisation makes a step that has none."""
    parts = []
    for model in ("fixed-lstm", "tree-lstm"):
        found = [(e, speedups(e)) for e in along(of_workload(entries, model), "hidden")]
        names = list(dict.fromkeys(name for _, ratios in found for name in ratios))
        rows = [
            [str(entry["case"]["hidden"]), *(shown(ratios.get(name)) for name in names)]
            for entry, ratios in found
            if ratios
        ]
        if rows:
            parts.append(f"**6.13** {model}, training\n\n{markdown(['hidden', *names], rows)}")
    return "\n\n".join(parts)


def speedups(entry: Any) -> dict[str, float]:
    """Return how many times faster each optimisation makes a step that has none.

    Empty for a case without a step that has none.
    """
    names = STREAMED if entry["case"]["device"] != "cpu" else OPTIMISATIONS
    runners = entry["runners"]
    times = {
        label: runners[name]["seconds_per_vertex"]
        for label, name in names.items()
        if name in runners
    }
    plain = times.pop("none", None)
    if plain is None:
        return {}
    return {
        label: float(np.median([a / b for a, b in zip(plain, found, strict=True)]))
        for label, found in times.items()
    }


def memory(entries: Entries) -> str:
    """Return table 6.3: milliseconds of a batch by the kind of the instructions.

    Products and maps stand for the computation of the paper. All other instructions, such as
    copies, gathers and sums over rows, stand for its memory operations.
    """
    rows = []
    by_mode = [
        {
            entry["case"]["batch_size"]: entry["runners"].get("cavs", {})
            for entry in along(of_workload(entries, "tree-lstm", training), "batch_size")
        }
        for training in (True, False)
    ]
    for size in by_mode[0]:
        row = [str(size)]
        for of_mode in by_mode:
            found = of_mode.get(size, {})
            if "other_seconds" not in found:
                row += [""] * 3
                continue
            computed = found["product_seconds"] + found["map_seconds"]
            row += [f"{found['other_seconds'] * 1e3:.3g}", f"{computed * 1e3:.3g}"]
            row.append(f"{found['other_seconds'] / (computed + found['other_seconds']):.1%}")
        paper = PAPER_MEMORY.get(size)
        row += [f"{a / (a + b):.1%}" for a, b in paper] if paper else ["", ""]
        rows.append(row)
    if not any(cell for row in rows for cell in row[1:4]):
        return ""
    head = [
        "batch size",
        "training: other ms",
        "products and maps ms",
        "share of other",
        "inference: other ms",
        "products and maps ms",
        "share of other",
        "share of memory in the paper: training",
        "inference",
    ]
    return f"**Table 6.3** tree-lstm, h {FIXED_HIDDEN}\n\n{markdown(head, rows)}"


def bounds(entries: Entries, figures: SequenceOf[str] = FIGURES) -> list[Row]:
    """Return the bounds of figures: the closest rival in 6.11, and the largest share of 6.12."""
    rows = []
    compared = [entry for *_, chosen in overall(entries) for entry in chosen]
    for kind, names in (("DyNet", set(DYNET)), ("hand-batched PyTorch", HAND)):
        found = [
            (ratio, entry["title"])
            for entry in (compared if "6.11" in figures else ())
            for name in names
            if (ratio := over(entry, name)) is not None
        ]
        if found:
            least, title = min(found)
            rows.append(
                checked(f"time of {kind} over ours, least ({title})", least, 1.0, True, "{:.2f}")
            )
    shares = [
        (share(entry["runners"]["cavs"], "prepare"), entry["title"])
        for entry in (built(entries) if "6.12" in figures else ())
        if "cavs" in entry["runners"]
    ]
    if shares:
        most, title = max(shares)
        label = f"share of collation and scheduling, largest ({title})"
        rows.append(checked(label, most, SHARE, False, "{:.3f}"))
    return rows


def built(entries: Entries) -> Iterable[Any]:
    """Return the cases of 6.12."""
    yield from along(of_workload(entries, "tree-fc"), "leaves")
    yield from along(of_workload(entries, "tree-lstm"), "batch_size")
