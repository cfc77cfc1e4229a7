"""The measured step: a timeline of its parts, its stages, and time and traffic of instructions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cavs.inspect.explanation.elements import (
    SHORT,
    Measure,
    Row,
    bar_list,
    folded,
    number_text,
    paragraph,
    stage_text,
    time_text,
)
from cavs.inspect.explanation_report import ExplanationReport
from cavs.inspect.html import html_text, key
from cavs.inspect.measure import RunReport
from cavs.inspect.report.scale import Scale, short

_WIDTH, _HEIGHT, _LEFT, _RIGHT = 480, 88, 8, 472
_PARTS = ("packing of weights", "forward", "backward", "update", "rest")
_TRAFFIC = ("gather", "scatter", "other reads", "other writes")


class _Part(NamedTuple):
    label: str
    part: int  # index of _PARTS
    seconds: float


def _parts(e: ExplanationReport, run: RunReport) -> list[_Part]:
    """Return the parts of a step in the order they run, with the rest at the end."""
    t = run.times
    parts = [_Part("packing of weights", 0, t.packing)]
    for number, (stage, seconds) in enumerate(zip(e.order, t.each, strict=True)):
        label = stage_text(number, stage.type, stage.label)
        parts.append(_Part(label, 2 if stage.backward else 1, seconds))
    others = "" if t.update or not run.updated else "update, "
    rest = f"rest: {others}features to rows, plan, binding, threads, results"
    return [*parts, _Part("update", 3, t.update), _Part(rest, 4, t.rest)]


def timeline(e: ExplanationReport) -> Iterator[str]:
    """Yield the step as one bar of parts over time, and its stages as a list."""
    run = e.run
    if run is None:
        return
    t, parts = run.times, _parts(e, run)
    whole = max(t.wall, sum(p.seconds for p in parts)) or 1e-9
    yield paragraph(
        f"A step takes {time_text(t.wall)} on the clock, the median of {t.runs}. "
        "The rest is spent before and after the stages."
    )
    if t.collate is not None and t.prepare is not None:
        yield paragraph(
            f"Before it, in the background of a DataLoader: collation {time_text(t.collate)}, "
            f"copies and schedule {time_text(t.prepare)}."
        )
    if any(loop.gradient for loop in run.loops) and not run.updated:
        yield paragraph("The step updated nothing: loss or gradient is not finite.")
    yield '<figure><figcaption>Timeline of the step</figcaption><p class="keys">'
    for n, name in enumerate(_PARTS):
        seconds = sum(p.seconds for p in parts if p.part == n)
        if seconds:
            yield key(f"{name} {time_text(seconds)}, {100 * seconds / whole:.1f} %", n)
    yield "</p>"
    yield from _picture(parts, whole)
    yield "</figure><h3>Stages</h3>"
    longest = max((p.seconds for p in parts if p.part in (1, 2)), default=0) or 1e-9
    stages = [p for p in parts if p.part in (1, 2)]
    rows = [
        Row(
            p.label,
            [Measure(time_text(p.seconds), [(p.seconds / longest, p.part)])],
            "",
            [p.seconds],
        )
        for p in stages
        if p.seconds
    ]
    listed = bar_list("stages", rows, ["in the order they run", "longest first"])
    yield from folded(number_text(len(rows), "stage"), listed, shown=len(rows) <= SHORT)
    untimed = [p.label for p in stages if not p.seconds]
    if untimed:
        yield paragraph(
            "Without a time of their own, as they run together with the stage before, or have no "
            f"work: {'; '.join(untimed)}.",
            soft=True,
        )


def _picture(parts: list[_Part], whole: float) -> Iterator[str]:
    scale = Scale(0.0, 1e3 * whole)
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Timeline of the step">'
    bottom, left = _HEIGHT - 30, float(_LEFT)
    for tick in scale.ticks(6):
        x = _LEFT + (_RIGHT - _LEFT) * scale.fraction(tick)
        yield f'<line class="grid" x1="{x:.1f}" y1="4" x2="{x:.1f}" y2="{bottom + 4}"/>'
        anchor = "start" if x < 20 else "end" if x > _WIDTH - 24 else "middle"
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="{anchor}">{short(tick)}</text>'
    yield f'<text x="{_RIGHT}" y="{bottom + 29}" text-anchor="end">ms</text>'
    for part in parts:
        width = (_RIGHT - _LEFT) * part.seconds / whole
        if width:
            text = "&#10;".join(map(html_text, (part.label, time_text(part.seconds))))
            yield (
                f'<rect class="fill c{part.part}" x="{left:.2f}" y="8" '
                f'width="{max(width - 0.4, 0.3):.2f}" height="{bottom - 12}">'
                f"<title>{text}</title></rect>"
            )
        left += width
    yield "</svg>"


def instructions(e: ExplanationReport) -> Iterator[str]:
    """Yield time and traffic of every instruction that did some work."""
    run = e.run
    if run is None:
        return
    found = [i for i in run.instructions if i.seconds or i.total]
    if not found:
        yield paragraph("No instruction did any work.")
        return
    timed = any(i.seconds for i in found)
    threads = f", added up over {run.times.threads} threads" if run.times.threads > 1 else ""
    yield paragraph(
        f"Times are those of the stages{threads}. "
        if timed
        else "A device times stages, not instructions."
    )
    yield paragraph(
        f"gather reads {run.gather_bytes:,} bytes of states through edges, scatter writes "
        f"{run.scatter_bytes:,}; other reads through indices {run.other_read_bytes:,}, other "
        f"writes {run.other_write_bytes:,}. Operands that are read row by row are not counted."
    )
    yield '<p class="keys">'
    yield key("seconds", 5) if timed else ""
    yield "".join(key(name, n) for n, name in enumerate(_TRAFFIC)) + "</p>"
    longest = max(i.seconds for i in found) or 1e-9
    most = max(i.total for i in found) or 1
    rows = []
    for i in found:
        sizes = (i.gather, i.scatter, i.other_reads, i.other_writes)
        words = ", ".join(f"{n} {s:,}" for n, s in zip(_TRAFFIC, sizes, strict=True) if s)
        bars = [Measure(time_text(i.seconds), [(i.seconds / longest, 5)])] if timed else []
        parts = [(size / most, n) for n, size in enumerate(sizes)]
        bars.append(Measure(f"{i.total:,} bytes", parts, words))
        rows.append(Row(i.label, bars, i.kind, [i.seconds, i.total] if timed else [i.total]))
    orders = ["as in the program", *(["longest first"] if timed else []), "most bytes first"]
    listed = bar_list("instructions", rows, orders)
    yield from folded(number_text(len(rows), "instruction"), listed, shown=len(rows) <= SHORT)
