"""`write_picture`: a report as a PNG, by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cavs.errors import ConfigError
from cavs.inspect.report.charts import Axis, Chart, axis_of, charts_of
from cavs.inspect.report.facts import title_of
from cavs.inspect.report.run_log import RunLog
from cavs.inspect.report.scale import scale_of

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#b03080", "#8a6d00", "#555555")
_MARKS: dict[str, dict[str, Any]] = {
    "change": {"color": "#666677", "linestyle": "--", "linewidth": 0.8},
    "resume": {"color": "#009e73", "linestyle": ":"},
    "interrupt": {"color": "#c62828", "linewidth": 0.8},
    "error": {"color": "#c62828", "linewidth": 0.8},
}


def write_picture(log: RunLog, over: str, file: Path) -> None:
    """Draw a report into `file`. over: ``"steps"`` or ``"time"``.

    Raises `ConfigError` without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "a report as PNG needs the Python package matplotlib",
            hint="pip install 'cavs[report]', or pass an --out that ends in .html, which needs no "
            "package",
        ) from None
    axis = axis_of(log, over)
    charts = charts_of(log, axis)
    columns = min(2, len(charts))
    rows = -(-len(charts) // columns)
    figure = Figure(figsize=(5.5 * columns, 2.8 * rows + 0.4), dpi=110, layout="constrained")
    figure.suptitle(_plain(title_of(log)), fontsize=12)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for chart, panel in zip(charts, panels, strict=False):
        _draw(chart, axis, panel)
    for panel in panels[len(charts) :]:
        panel.set_axis_off()
    figure.savefig(file, format="png")


def _plain(text: str) -> str:
    """Return text that matplotlib shows as it is: ``$`` begins a formula otherwise."""
    printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return printable.replace("$", r"\$")


def _draw(chart: Chart, axis: Axis, panel: Any) -> None:
    scale = scale_of(*chart.y_range())
    panel.set_title(_plain(chart.title), fontsize=10, loc="left")
    panel.set_xlabel(axis.title + (f", {axis.unit}" if axis.unit else ""), fontsize=8)
    panel.set_ylabel(chart.unit, fontsize=8)
    panel.set_yscale("log" if scale.logarithmic else "linear")
    panel.set_xlim(axis.low, axis.high)
    panel.set_ylim(scale.low, scale.high)
    if not scale.logarithmic:
        panel.set_yticks(scale.ticks(whole=chart.is_whole()))
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.25)
    for position, event in dict.fromkeys((x, event) for x, event, _ in axis.marks):
        if event == "checkpoint":
            panel.plot(position, 0.02, "|", color="#666677", transform=panel.get_xaxis_transform())
        else:
            panel.axvline(position, **_MARKS[event])
    for i, line in enumerate(chart.lines):
        color, label = _COLORS[i % len(_COLORS)], _plain(line.label)
        for run in line.runs:
            x, y, low, high = zip(*run, strict=True)
            style = "steps-post" if line.steps else "default"
            marker = None if line.steps or len(line.points) > 60 else "."
            panel.plot(x, y, marker=marker, color=color, label=label, drawstyle=style)
            panel.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
            label = "_"  # an entry of the legend for the first run only
        crosses = dict.fromkeys(x for x, _ in line.invalid)
        for position in crosses:
            panel.plot(position, 0.97, "x", color=color, transform=panel.get_xaxis_transform())
    if chart.best is not None:
        panel.plot(*chart.best, "o", markersize=9, markerfacecolor="none", color="#1c1e21")
    if len(chart.lines) > 1:
        panel.legend(fontsize=7)
