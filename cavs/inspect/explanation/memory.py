"""The memory of a step: values in the arena that are alive at each stage, and the rest."""

from __future__ import annotations

from collections.abc import Iterator

from cavs.inspect.explanation.elements import (
    Measure,
    Row,
    bar_list,
    paragraph,
    size_text,
    stage_text,
)
from cavs.inspect.explanation_report import BufferReport, ExplanationReport
from cavs.inspect.html import html_text, key
from cavs.inspect.report.scale import Scale

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 480, 236, 66, 470, 10, 196
_LARGEST = 12  # buffers that are listed


def live_bytes(e: ExplanationReport) -> list[tuple[int, int]]:
    """Return, for each stage, the live bytes that forward wrote and backward reads, and others."""
    start = next((n for n, stage in enumerate(e.order) if stage.backward), 0)
    live = [[0, 0] for _ in e.order]
    for b in e.buffers:
        other = not b.first < start <= b.last
        for at in range(b.first, b.last + 1) if b.bytes else ():
            live[at][other] += b.bytes
    return [(kept, other) for kept, other in live]


def memory(e: ExplanationReport) -> Iterator[str]:
    """Yield the live bytes over the stages as a picture, and the largest values at the peak."""
    live = live_bytes(e)
    totals = [sum(sizes) for sizes in live]
    most = max(totals, default=0)
    if not most:
        yield paragraph("No value is stored from one stage to another.")
        return
    at = totals.index(most)
    yield paragraph(
        f"Values in the arena take up to {most:,} bytes, at stage {at}: {e.order[at].label}."
    )
    yield "<figure><figcaption>Live bytes of the arena by stage</figcaption>"
    yield '<p class="keys">'
    if any(kept for kept, _ in live):
        yield key("computed in forward, read in backward", 0)
    yield key("other values", 1) + "</p>"
    yield from _picture(e, live, most)
    yield "</figure>"
    alive = [b for b in e.buffers if b.bytes and b.first <= at <= b.last]
    alive.sort(key=lambda b: -b.bytes)
    shown = alive[:_LARGEST]
    yield f"<h3>Largest of {len(alive)} values at stage {at}</h3>"
    yield from bar_list("buffers", [_row(b, shown[0].bytes) for b in shown])
    yield from _others(e)


def _row(buffer: BufferReport, most: int) -> Row:
    rows = f"{buffer.space}, {buffer.width} numbers a row, stages {buffer.first} to {buffer.last}"
    bar = Measure(f"{buffer.bytes:,} bytes", [(buffer.bytes / most, 0)])
    return Row(f"{buffer.name}: {buffer.value}", [bar], rows)


def _others(e: ExplanationReport) -> Iterator[str]:
    run = e.run
    if run is None:
        return
    sizes = {
        "peak of the run, with rows that wait for sums": run.peak_bytes,
        "arena, with padding": run.arena_bytes,
        "values that backward reads": run.kept_bytes,
        "scratch of a thread": run.scratch_bytes,
        "packed weights": run.packed_bytes,
        "dense gradients": run.gradient_bytes,
        "rows of sparse gradients": run.sparse_bytes,
        "states of the optimiser": run.state_bytes or 0,
    }
    most = max(sizes.values()) or 1
    rows = [
        Row(name, [Measure(f"{size:,} bytes", [(size / most, 2)])])
        for name, size in sizes.items()
        if size
    ]
    yield "<h3>Memory of the run</h3>"
    yield from bar_list("memories", rows)


def _picture(e: ExplanationReport, live: list[tuple[int, int]], most: int) -> Iterator[str]:
    unit = next((u for u in (1 << 30, 1 << 20, 1 << 10) if most >= u), 1)
    scale = Scale(0.0, 1.05 * most / unit)
    width = (_RIGHT - _LEFT) / len(live)

    def top(size: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * scale.fraction(size / unit)

    yield (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        'aria-label="Live bytes of the arena by stage">'
    )
    for tick in scale.ticks(5):
        y = f"{top(tick * unit):.1f}"
        yield f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{_RIGHT}" y2="{y}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y}" dy="4" text-anchor="end">'
        yield f"{size_text(tick * unit)}</text>"
    every = max(1, -(-len(live) // 12))
    for n, sizes in enumerate(live):
        left, low = _LEFT + n * width, 0
        words = [stage_text(n, e.order[n].type, e.order[n].label), f"{sum(sizes):,} bytes live"]
        if sizes[0]:
            words.append(f"{sizes[0]:,} computed in forward, read in backward")
        yield "<g>"
        for color, size in enumerate(sizes):
            high = top(low + size)
            if size:
                yield (
                    f'<rect class="fill c{color}" x="{left:.2f}" y="{high:.1f}" '
                    f'width="{max(width - 0.6, 0.4):.2f}" height="{top(low) - high:.1f}"/>'
                )
            low += size
        yield f"<title>{'&#10;'.join(map(html_text, words))}</title></g>"
        if n % every == 0:
            yield f'<text x="{left + width / 2:.1f}" y="{_BOTTOM + 16}" text-anchor="middle">{n}'
            yield "</text>"
    y = f"{top(most):.1f}"
    yield f'<line class="peak" x1="{_LEFT}" y1="{y}" x2="{_RIGHT}" y2="{y}"/>'
    yield f'<line class="axis" x1="{_LEFT}" y1="{_BOTTOM}" x2="{_RIGHT}" y2="{_BOTTOM}"/>'
    yield f'<text x="{(_LEFT + _RIGHT) / 2:g}" y="{_HEIGHT - 6}" text-anchor="middle">stage</text>'
    yield "</svg>"
