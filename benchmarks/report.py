"""Turns benchmarks/results/*.json, which hold whole grids, into tables and plots of the documents.

Of narrower ones: --results benchmarks/results/latest --out benchmarks/results/latest.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

from benchmarks.harness import tables
from benchmarks.places import RESULTS
from benchmarks.samples import ROOT

DOCS = ROOT / "docs" / "benchmarks"


def read_results(folder: Path) -> dict[str, Any]:
    """Every result file by its stem; raises ValueError that names a file that is none."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is no JSON: {error}") from error
        if isinstance(record, dict) and (record.get("cases") or record.get("text")):
            found[path.stem] = record
    return found


def section(name: str, record: dict[str, Any], plots: SequenceOf[str]) -> str:
    """One result file as Markdown."""
    machine = record["machine"]
    versions = ", ".join(f"{key} {value}" for key, value in record["versions"].items())
    lines = [
        f"## {name}",
        "",
        f"`{record['command']}`",
        "",
        f"{record['created']}, commit {record['commit'] or 'unknown'}. {machine['cpu']}, "
        f"{machine['cores']} cores, {' '.join(machine['isa'])}; load {machine['load']} at the "
        f"start. {versions}.",
        "",
        *[f"![{plot}]({plot})" for plot in plots],
        "",
        record["text"] if "text" in record else tables(record),
        "",
    ]
    return "\n".join(lines)


def _groups(record: dict[str, Any]) -> dict[tuple[bool, int], list[Any]]:
    groups: dict[tuple[bool, int], list[Any]] = {}
    for entry in record["cases"]:
        case = entry["case"]
        groups.setdefault((case["training"], case["threads"]), []).append(entry)
    return groups


def plot(name: str, record: dict[str, Any], folder: Path) -> list[str]:
    """Vertices a second over batch size, a panel a hidden size, an image a mode and threads."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    written = []
    for (training, threads), entries in _groups(record).items():
        hidden = sorted({entry["case"]["hidden"] for entry in entries})
        figure, axes = plt.subplots(
            1, len(hidden), figsize=(4 * len(hidden), 3.2), squeeze=False, layout="constrained"
        )
        for axis, h in zip(axes[0], hidden, strict=True):
            here = [entry for entry in entries if entry["case"]["hidden"] == h]
            here.sort(key=lambda entry: entry["case"]["batch_size"])
            for runner in dict.fromkeys(r for entry in here for r in entry["runners"]):
                points = [
                    (entry["case"]["batch_size"], entry["runners"][runner]["vertices_per_second"])
                    for entry in here
                    if runner in entry["runners"]
                ]
                axis.plot(*zip(*points, strict=True), marker="o", label=runner)
            axis.set(xscale="log", yscale="log", xlabel="batch size", title=f"h {h}")
            axis.set_xticks(
                [entry["case"]["batch_size"] for entry in here],
                [str(entry["case"]["batch_size"]) for entry in here],
            )
            axis.minorticks_off()
            axis.grid(alpha=0.3)
        axes[0][0].set_ylabel("vertices a second")
        axes[0][-1].legend(fontsize="small")
        mode = "training" if training else "inference"
        figure.suptitle(f"{record['benchmark']}, {mode}, {threads} thread(s)")
        file = f"{name}-{mode}-{threads}.png"
        figure.savefig(folder / file, dpi=110)
        plt.close(figure)
        written.append(file)
    return written


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the *.json")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of the report")
    parser.add_argument("--no-plots", action="store_true", help="tables only; no matplotlib")
    given = parser.parse_args(arguments)
    records = read_results(given.results)
    if not records:
        print(f"no results in {given.results}; run python -m benchmarks first", file=sys.stderr)
        return 1
    given.out.mkdir(parents=True, exist_ok=True)
    sections = []
    for name, record in records.items():
        # Of several workloads, as of passes, there is no one curve over batch sizes.
        single = len({entry["case"]["workload"] for entry in record.get("cases", ())}) == 1
        plotted = single and not given.no_plots
        plots = plot(name, record, given.out) if plotted else []
        sections.append(section(name, record, plots))
    page = given.out / "results.md"
    page.write_text("# Measured\n\n" + "\n".join(sections), encoding="utf-8")
    print(f"written: {page}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
