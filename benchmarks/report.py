"""Write tables and plots of the documents from benchmarks/results/*.json, which hold whole grids.

For narrower ones: --results benchmarks/results/latest --out benchmarks/results/latest.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

from benchmarks import paper_plots
from benchmarks.harness import tables
from benchmarks.options import OptionParser
from benchmarks.result_paths import RESULTS
from benchmarks.samples import ROOT

DOCS = ROOT / "docs" / "benchmarks"
COLUMNS = 98
HEAD = """# Results

For readers who check a figure: whole grids, each with its command, commit, machine and load, as
`python -m benchmarks.report` writes them. [benchmarks.md](../benchmarks.md) has the summary.

"""


PAPER = """# The evaluation of the paper

For readers of the paper (thesis, section 6.6): its figures and tables on the CPU, next to the
paper's, which are of a GPU of 2017. [results.md](results.md) has the other programs.

"""


def read_results(folder: Path) -> dict[str, Any]:
    """Return every result file by its stem; raise a ValueError that names a file without JSON."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is no JSON: {error}") from error
        if isinstance(record, dict) and (record.get("cases") or record.get("text")):
            found[path.stem] = record
    return found


def section(
    name: str, record: dict[str, Any], plots: SequenceOf[str], text: str | None = None
) -> str:
    """Return one result file as Markdown. text: in place of all its tables."""
    machine = record["machine"]
    versions = ", ".join(f"{key} {value}" for key, value in record["versions"].items())
    lines = [
        f"## {name}",
        "",
        "```",
        record["command"],
        "```",
        "",
        f"{record['created']}, commit {record['commit'] or 'unknown'}. {machine['cpu']}, "
        f"{machine['cores']} cores, {' '.join(machine['isa'])}; load {machine['load']} at the "
        f"start. {versions}.",
        "",
        *[f"![{plot}]({plot})" for plot in plots],
        "",
        text or (record["text"] if "text" in record else tables(record)),
        "",
    ]
    return wrapped("\n".join(lines))


def wrapped(text: str) -> str:
    """Wrap the lines of prose; rows of tables, commands and pictures stay as they are."""
    lines, code = [], False
    for line in text.split("\n"):
        code ^= line == "```"
        keep = code or line.startswith(("|", "!"))
        lines.append(line if keep else textwrap.fill(line, COLUMNS, break_long_words=False))
    return "\n".join(lines)


def _groups(record: dict[str, Any]) -> dict[tuple[bool, int], list[Any]]:
    groups: dict[tuple[bool, int], list[Any]] = {}
    for entry in record["cases"]:
        case = entry["case"]
        groups.setdefault((case["training"], case["threads"]), []).append(entry)
    return groups


def plot(name: str, record: dict[str, Any], folder: Path) -> list[str]:
    """Plot vertices per second over batch size, a panel per hidden size."""
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
        axes[0][0].set_ylabel("vertices per second")
        axes[0][-1].legend(fontsize="small")
        mode = "training" if training else "inference"
        figure.suptitle(f"{record['benchmark']}, {mode}, {threads} thread(s)")
        file = f"{name}-{mode}-{threads}.png"
        figure.savefig(folder / file, dpi=110)
        plt.close(figure)
        written.append(file)
    return written


def main(arguments: list[str] | None = None) -> int:
    parser = OptionParser("benchmarks.report", __doc__ or "")
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
    if paper := records.pop("paper", None):
        plots = [] if given.no_plots else paper_plots.draw(paper, given.out)
        text = PAPER + section("paper", paper, plots, paper["summary"])
        (given.out / "paper.md").write_text(text, encoding="utf-8")
    for name, record in records.items():
        # A file with several workloads, as that of passes, has no single curve over batch sizes.
        single = len({entry["case"]["workload"] for entry in record.get("cases", ())}) == 1
        plotted = single and not given.no_plots
        plots = plot(name, record, given.out) if plotted else []
        sections.append(section(name, record, plots))
    page = given.out / "results.md"
    page.write_text(HEAD + "\n".join(sections), encoding="utf-8")
    print(f"written: {page}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
