"""`charts_of`: the charts of a run, over steps or over time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cavs.inspect.report.run_log import RunLog, Series

OVER = ("steps", "time")
_POINTS = 160  # a line with more is averaged
_LARGEST = 1e300  # larger values are drawn as infinite ones
_TITLES = {
    "grad_norm": "Gradient norm",
    "rank_speed": "Speed of the slowest rank over the fastest",
    "lr_scale": "Scale of the learning rate",
}
#: Title, unit, and the numbers of a chart by label.
Group = tuple[str, str, Mapping[str, Series | None]]


class Point(NamedTuple):
    """A point of a line: a mean with the lowest and the highest value that it stands for."""

    x: float
    y: float
    low: float
    high: float


@dataclass
class Line:
    """One number in a chart.

    runs: Its points; the line is broken between runs. steps: True if a value holds until the next
    one. invalid: Positions of values that are infinite or NaN, with their texts.
    """

    label: str
    runs: list[list[Point]] = field(default_factory=list)
    steps: bool = False
    invalid: list[tuple[float, str]] = field(default_factory=list)

    @property
    def points(self) -> list[Point]:
        """All points."""
        return [point for run in self.runs for point in run]


@dataclass
class Chart:
    """Lines over a common axis. best: A point to emphasise, or None."""

    title: str
    unit: str
    lines: list[Line]
    best: tuple[float, float] | None = None

    def is_whole(self) -> bool:
        """True if all values are whole numbers."""
        return all(p.low == p.high == int(p.y) for line in self.lines for p in line.points)

    def y_range(self) -> tuple[float, float]:
        """Return the lowest and the highest value; 0 and 0 if all are infinite or NaN."""
        points = [p for line in self.lines for p in line.points]
        lows, highs = (p.low for p in points), (p.high for p in points)
        return min(lows, default=0.0), max(highs, default=0.0)


@dataclass
class Axis:
    """The axis that all charts share. marks: Position, event and text of every mark, in order."""

    title: str
    unit: str
    low: float
    high: float
    marks: list[tuple[float, str, str]]
    divisor: float = 1.0  # from seconds to the unit

    def positions(self, series: Series) -> list[float]:
        """Return the positions of the values of `series`."""
        return [x / self.divisor for x in (series.seconds if self.unit else series.steps)]


def axis_of(log: RunLog, over: str) -> Axis:
    """Return the axis of a run. over: ``"steps"`` or ``"time"``."""
    timed = over == "time"
    unit, divisor = ("", 1.0) if not timed else _time_unit(log.seconds)
    axis = Axis("training time" if timed else "step", unit, 0.0, 1.0, [], divisor)
    axis.marks = [((m.seconds if timed else m.step) / divisor, m.event, m.text) for m in log.marks]
    found = [x for series in log.series() for x in axis.positions(series)]
    found += [x for x, _, _ in axis.marks]
    low, high = min(found), max(found)
    axis.marks.sort(key=lambda mark: mark[0])
    axis.low = 0.0 if low <= 0.2 * high else low
    axis.high = high if high > axis.low else axis.low + 1.0
    return axis


def _time_unit(seconds: float) -> tuple[str, float]:
    if seconds < 300:
        return "s", 1.0
    return ("min", 60.0) if seconds < 3 * 3600 else ("h", 3600.0)


def charts_of(log: RunLog, axis: Axis) -> list[Chart]:
    """Return the charts of the numbers that a log has.

    Settings that never change are drawn only if the log has steps.
    """
    step, epoch = dict(log.numbers), dict(log.epoch_numbers)
    epoch.pop("dev_seconds", None)
    batch_sizes, computed = step.pop("batch_size", None), step.pop("graphs_per_second", None)
    settings = {
        name: series for name, series in log.settings.items() if step or _changes(series.values)
    }
    metrics = {name[4:]: epoch.pop(name) for name in list(epoch) if name.startswith("dev_")}
    groups: list[Group] = [
        (
            "Loss",
            "",
            {
                "batch": step.pop("loss", None),
                "training, mean of an epoch": epoch.pop("train_loss", None),
                "dev": metrics.pop("loss", None),
            },
        )
    ]
    shares = {name: series for name, series in metrics.items() if _is_share(series)}
    if len(shares) > 1:
        groups.append(("Metrics on dev", "", {_words(n): x for n, x in shares.items()}))
        metrics = {name: series for name, series in metrics.items() if name not in shares}
    for name, series in metrics.items():
        groups.append((f"{_words(name).capitalize()} on dev", "", {"dev": series}))
    batch = {
        "batch size": settings.pop("batch_size", batch_sizes),
        "gradient noise scale": step.pop("noise_scale", None),
    }
    title = " and ".join(label for label, series in batch.items() if series is not None)
    groups.append((title.capitalize(), "graphs", batch))
    for name, series in settings.items():
        groups.append((_title(name), "", {_words(name): series}))
    speeds = {
        "steps": step.pop("throughput", computed),
        "epochs": epoch.pop("graphs_per_second", None),
    }
    groups.append(("Throughput", "graphs/s", speeds))
    rate = epoch.pop("lr", None)
    if rate is not None and _changes(rate.values):
        groups.append(("Learning rate of the schedule", "", {"learning rate": rate}))
    for name, series in (*step.items(), *epoch.items()):
        groups.append((_title(name), "", {_words(name): series}))
    best = _best(log)
    charts = [_chart(group, axis, best, settings=log.settings.values()) for group in groups]
    return [chart for chart in charts if chart.lines]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _title(name: str) -> str:
    return _TITLES.get(name, _words(name).capitalize())


def _is_share(series: Series) -> bool:
    return all(0 <= x <= 1 for x in series.values if math.isfinite(x))


def _changes(values: Sequence[float]) -> bool:
    return len(set(values)) > 1


def _best(log: RunLog) -> tuple[Series, int] | None:
    """Return the series of the monitored value and its index at the best epoch."""
    monitor = log.start.get("monitor")
    for name in (f"dev_{monitor}", f"train_{monitor}"):
        series = log.epoch_numbers.get(name)
        if log.best is not None and series is not None and log.best["step"] in series.steps:
            return series, series.steps.index(log.best["step"])
    return None


def _chart(
    group: Group, axis: Axis, best: tuple[Series, int] | None, settings: Collection[Series]
) -> Chart:
    title, unit, lines = group
    chart = Chart(title, unit, [])
    for label, series in lines.items():
        if series is None or not series.values:
            continue
        steps = any(series is one for one in settings)
        chart.lines.append(_line(label, series, axis, steps=steps))
        if best is not None and series is best[0]:
            chart.best = axis.positions(series)[best[1]], series.values[best[1]]
            if not _is_drawable(chart.best[1]):
                chart.best = None
    return chart


def _line(label: str, series: Series, axis: Axis, *, steps: bool) -> Line:
    line = Line(label, steps=steps)
    columns = zip(axis.positions(series), series.values, series.fits, strict=True)
    runs: list[list[tuple[float, float]]] = []
    invalid: dict[int, tuple[float, str]] = {}
    width = (axis.high - axis.low) / _POINTS
    before = None
    for x, y, fit in columns:
        if not _is_drawable(y):
            invalid.setdefault(math.floor((x - axis.low) / width), (x, f"{y:.4g}"))
            before = None
            continue
        if fit != before:
            runs.append([])
            before = fit
        runs[-1].append((x, y if abs(y) > _LARGEST**-1 else 0.0))
    line.invalid = list(invalid.values())
    if line.steps:
        runs = [_corners(run, axis.high) for run in runs]
    if sum(map(len, runs)) > _POINTS:
        line.runs = [list(_averaged(run, axis.low, width)) for run in runs]
    else:
        line.runs = [[Point(x, y, y, y) for x, y in run] for run in runs]
    return line


def _corners(run: list[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """Return the points at which the value changes, and the `end`."""
    found = [p for i, p in enumerate(run) if i == 0 or p[1] != run[i - 1][1]]
    return [*found, (end, run[-1][1])]


def _averaged(run: list[tuple[float, float]], low: float, width: float) -> Iterator[Point]:
    """Yield the points of a run; all within a `width` of the axis as one."""
    begin = 0
    while begin < len(run):
        cell = math.floor((run[begin][0] - low) / width)
        end = bisect_right(run, math.nextafter(low + (cell + 1) * width, -math.inf), key=_x)
        end = max(end, begin + 1)
        xs, ys = zip(*run[begin:end], strict=True)
        yield Point(math.fsum(xs) / len(xs), math.fsum(ys) / len(ys), min(ys), max(ys))
        begin = end


def _is_drawable(value: float) -> bool:
    return abs(value) < _LARGEST  # False for NaN, too


def _x(point: tuple[float, float]) -> float:
    return point[0]
