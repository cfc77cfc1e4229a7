"""`chart_svg`: a chart as inline SVG, whose colours are those of the page."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise

from cavs.inspect.html import COLORS, html_text
from cavs.inspect.report.charts import Axis, Chart, Line, Point
from cavs.inspect.report.scale import Scale, scale_of, short

WIDTH, HEIGHT = 480, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 470, 12, 222
_GAP = 2.0  # the least distance of two columns
_MAX_MARKS = 3  # in the text of a column


def chart_svg(chart: Chart, axis: Axis) -> str:
    """Return a chart with its axes, marks, lines, and one column per position for its values."""
    x, y = Scale(axis.low, axis.high), scale_of(*chart.y_range())
    drawing = _Drawing(axis, x, y)
    title = html_text(chart.title)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">',
        *drawing.grid(whole=chart.is_whole()),
        *drawing.marks(),
        *(part for i, line in enumerate(chart.lines) for part in drawing.line(line, i)),
    ]
    if chart.best is not None:
        best_x, best_y = drawing.at(*chart.best)
        parts.append(f'<circle class="best" cx="{best_x}" cy="{best_y}" r="6"/>')
    return "\n".join([*parts, *drawing.columns(chart), "</svg>"])


class _Drawing:
    def __init__(self, axis: Axis, x: Scale, y: Scale) -> None:
        self.axis, self.x, self.y = axis, x, y
        self.mark_lefts = [self.left(position) for position, _, _ in axis.marks]

    def at(self, x: float, y: float) -> tuple[str, str]:
        """Return the coordinates of a point."""
        return f"{self.left(x):.1f}", self.top(y)

    def left(self, x: float) -> float:
        """Return the horizontal coordinate of a position."""
        return _LEFT + (_RIGHT - _LEFT) * self.x.fraction(x)

    def top(self, y: float) -> str:
        """Return the vertical coordinate of a value."""
        return f"{_BOTTOM - (_BOTTOM - _TOP) * self.y.fraction(y):.1f}"

    def grid(self, *, whole: bool) -> Iterator[str]:
        """Yield horizontal lines with their values, and the positions below the chart."""
        for value in self.y.ticks(whole=whole):
            top = self.top(value)
            yield f'<line class="grid" x1="{_LEFT}" y1="{top}" x2="{_RIGHT}" y2="{top}"/>'
            yield f'<text x="{_LEFT - 6}" y="{top}" dy="4" text-anchor="end">{short(value)}</text>'
        for position in self.x.ticks(6, whole=not self.axis.unit):
            left = f"{self.left(position):.1f}"
            text = f'<text x="{left}" y="{_BOTTOM + 20}" text-anchor="middle">'
            yield f"{text}{short(position)}</text>"
        yield f'<line class="axis" x1="{_LEFT}" y1="{_BOTTOM}" x2="{_RIGHT}" y2="{_BOTTOM}"/>'

    def marks(self) -> Iterator[str]:
        """Yield a path for the marks of each event: ticks for checkpoints, lines for others."""
        paths: dict[str, dict[str, None]] = {}  # a position only once
        for position, event, _ in self.axis.marks:
            end = _BOTTOM - 7 if event == "checkpoint" else _TOP
            move = f"M{self.left(position):.1f} {_BOTTOM}V{end}"
            paths.setdefault(event, {})[move] = None
        for event, moves in paths.items():
            yield f'<path class="mark {event}" d="{"".join(moves)}"/>'

    def line(self, line: Line, number: int) -> Iterator[str]:
        """Yield a line with the band of its lowest and highest values."""
        color = f"c{number % COLORS}"
        for run in line.runs:
            if any(point.low < point.high for point in run):
                yield f'<path class="band {color}" d="{self._band(run)}"/>'
            if len(run) > 1:
                yield f'<path class="line {color}" d="{self._path(run, line.steps)}"/>'
        dots = [
            point for run in line.runs if len(run) == 1 or len(line.points) <= 60 for point in run
        ]
        for point in dots if not line.steps or len(dots) == 1 else ():
            left, top = self.at(point.x, point.y)
            yield f'<circle class="dot {color}" cx="{left}" cy="{top}" r="2.5"/>'
        invalid = dict.fromkeys(f"{self.left(x):.1f}" for x, _ in line.invalid)
        if invalid:
            crosses = "".join(f"M{x} {_TOP - 4}l8 8m-8 0l8-8" for x in invalid)
            yield f'<path class="invalid {color}" d="{crosses}"/>'

    def _path(self, run: list[Point], steps: bool) -> str:
        parts = []
        for i, point in enumerate(run):
            left, top = self.at(point.x, point.y)
            parts.append(
                f"M{left} {top}" if i == 0 else f"H{left}V{top}" if steps else f"L{left} {top}"
            )
        return "".join(parts)

    def _band(self, run: list[Point]) -> str:
        upper = [" ".join(self.at(point.x, point.high)) for point in run]
        lower = [" ".join(self.at(point.x, point.low)) for point in reversed(run)]
        return f"M{'L'.join([*upper, *lower])}Z"

    def columns(self, chart: Chart) -> Iterator[str]:
        """Yield an invisible column around every position that has values, with them as title."""
        positions = self._positions(chart)
        edges = [
            _LEFT,
            *((self.left(a) + self.left(b)) / 2 for a, b in pairwise(positions)),
            _RIGHT,
        ]
        for i, position in enumerate(positions):
            begin, end = edges[i], edges[i + 1]
            text = "\n".join(map(html_text, self._texts(chart, position, begin, end)))
            yield (
                f'<g class="column"><path d="M{self.left(position):.1f} {_TOP}V{_BOTTOM}"/>'
                f'<rect x="{begin:.1f}" y="0" width="{end - begin:.1f}" height="{HEIGHT}"/>'
                f"<title>{text}</title></g>"
            )

    def _positions(self, chart: Chart) -> list[float]:
        """Return the positions of all values and marks that are not too close to others."""
        every = {point.x for line in chart.lines for point in line.points}
        every |= {x for line in chart.lines for x, _ in line.invalid}
        every |= {x for x, _, _ in self.axis.marks}
        found: list[float] = []
        for x in sorted(every):
            if not found or self.left(x) - self.left(found[-1]) > _GAP:
                found.append(x)
        return found

    def _texts(self, chart: Chart, position: float, begin: float, end: float) -> Iterator[str]:
        unit = f" {self.axis.unit}" if self.axis.unit else ""
        yield f"{self.axis.title} {short(position)}{unit}"
        for line in chart.lines:
            yield from self._values(line, position, begin, end)
        first, last = bisect_left(self.mark_lefts, begin), bisect_left(self.mark_lefts, end)
        marks = [text for _, _, text in self.axis.marks[first : min(last, first + _MAX_MARKS)]]
        yield from dict.fromkeys(marks)
        if last - first > _MAX_MARKS:
            yield f"{last - first - _MAX_MARKS} more"

    def _values(self, line: Line, position: float, begin: float, end: float) -> Iterable[str]:
        invalid = [text for x, text in line.invalid if begin <= self.left(x) < end]
        if invalid:
            yield f"{line.label}: {', '.join(dict.fromkeys(invalid))}"
        points = line.points
        if not points or invalid:
            return
        i = bisect_left(points, position, key=lambda point: point.x)
        if line.steps:
            i -= i == len(points) or (i > 0 and points[i].x > position)
        elif i == len(points) or (i > 0 and position - points[i - 1].x < points[i].x - position):
            i -= 1
        point = points[i]
        text = f"{line.label}: {short(point.y)}"
        if point.low < point.high:
            text += f" ({short(point.low)} to {short(point.high)})"
        if not line.steps and abs(self.left(point.x) - self.left(position)) > _GAP:
            text += f" at {short(point.x)}"
        yield text
