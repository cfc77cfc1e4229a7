"""The schedule of a batch: a picture of its tasks, and their number by loop and by policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cavs.inspect.explained_model import TaskReport
from cavs.inspect.explanation.elements import Measure, Row, bar_list, number_text, paragraph
from cavs.inspect.explanation_report import ExplanationReport
from cavs.inspect.html import COLORS, html_text, key

_WIDTH, _LEFT, _RIGHT = 480, 44, 420
_MAX_LEVELS = 120  # in a picture


def schedule(e: ExplanationReport) -> Iterator[str]:
    """Yield a picture for each structure that has vertices."""
    if not e.tasks:
        yield paragraph("The batch has no vertices.")
        return
    policy = e.run.scheduling.name if e.run is not None else "level"
    turns = policy != "level" and any(t.level for t in e.tasks)
    yield paragraph(
        "A row is a turn of the policy, after those above it; its tasks are ready together."
        if turns
        else "A row is a level: its tasks are ready together, after those of the levels above it."
    )
    yield '<div class="charts">'
    for structure in dict.fromkeys(kind.structure for kind in e.kinds):
        tasks = [t for t in e.tasks if e.kinds[t.kind].structure == structure]
        if tasks:
            yield from _figure(e, structure, tasks, "turn" if turns else "level")
    yield "</div>"


def _figure(
    e: ExplanationReport, structure: str, tasks: Sequence[TaskReport], unit: str
) -> Iterator[str]:
    levels: dict[int, list[TaskReport]] = {}
    for task in sorted(tasks, key=lambda t: t.level):
        levels.setdefault(task.level, []).append(task)
    title = f"Tasks of {structure}" if structure else "Tasks"
    shown = list(levels.items())[:_MAX_LEVELS]
    kinds = dict.fromkeys(t.kind for t in tasks)
    yield f"<figure><figcaption>{html_text(title)}, {len(tasks)} in "
    yield number_text(len(levels), unit)
    yield '</figcaption><p class="keys">'
    for kind in kinds:
        k = e.kinds[kind]
        no_loop = "" if k.looped else ", in no loop: one piece of work over all rows"
        yield key(f"kind {kind}: {k.text}, {number_text(k.vertices, 'vertex')}{no_loop}", kind)
    yield "</p>"
    yield from _picture(e, shown, title, unit)
    rest = len(levels) - len(shown)
    if rest:
        more = sum(len(of) for _, of in list(levels.items())[_MAX_LEVELS:])
        yield paragraph(f"{rest} more {unit}s with {more} tasks are not drawn.", soft=True)
    yield "</figure>"


def _picture(
    e: ExplanationReport, levels: Sequence[tuple[int, list[TaskReport]]], title: str, unit: str
) -> Iterator[str]:
    step = 24 if len(levels) <= 12 else 16 if len(levels) <= 40 else 9
    height = step * len(levels) + 24
    widest = max(sum(t.vertices for t in tasks) for _, tasks in levels)
    every = -(-len(levels) // max(1, len(levels) * step // 18))
    label = html_text(f"{title} by {unit}")
    yield f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">'
    yield f'<text x="2" y="12">{unit}</text>'
    yield f'<text x="{_LEFT + 14}" y="12">number of vertices</text>'
    for n, (level, tasks) in enumerate(levels):
        top, left = 20 + n * step, float(_LEFT)
        middle = top + step / 2 - 1
        if n % every == 0:
            yield f'<text x="{_LEFT - 8}" y="{middle:g}" dy="4" text-anchor="end">{level}</text>'
        for task in tasks:
            width = max(1.5, (_RIGHT - _LEFT) * task.vertices / widest)
            kind = e.kinds[task.kind]
            faint = "" if kind.looped else " faint"
            text = f"{unit} {level}, kind {task.kind}: {kind.text}\n"
            text += f"{number_text(task.vertices, 'vertex')}, {number_text(task.edges, 'edge')}"
            yield (
                f'<rect class="fill c{task.kind % COLORS}{faint}" x="{left:.1f}" y="{top}" '
                f'width="{max(width - 1, 1):.1f}" height="{step - 2}">'
                f"<title>{'&#10;'.join(map(html_text, text.splitlines()))}</title></rect>"
            )
            left += width
        if n % every == 0:
            count = sum(t.vertices for t in tasks)
            yield f'<text x="{left + 5:.1f}" y="{middle:g}" dy="4">{count}</text>'
    yield "</svg>"


def task_numbers(e: ExplanationReport) -> Iterator[str]:
    """Yield the tasks of each loop and policy as bars, next to the lower bound."""
    run = e.run
    if run is None:
        return
    if not run.loops:
        yield paragraph("The program has no loop over tasks: all work is over all rows.")
        return
    most = max(max(loop.tasks, loop.bound, 1) for loop in run.loops)
    rows = [
        Row(
            f"{loop.label} (stage {loop.stage})",
            [_tasks(loop.tasks, loop.bound, most)],
            f"widths {min(loop.widths)} to {max(loop.widths)}, "
            f"mean {sum(loop.widths) / loop.tasks:.1f}"
            if loop.widths
            else "no work in this batch",
        )
        for loop in run.loops
    ]
    yield "<h3>By loop</h3>"
    yield from bar_list("loops", rows)
    s = run.scheduling
    if not s.tasks:
        yield paragraph(
            "Vertices with children are of one kind: every policy of batching runs the same tasks."
        )
        return
    yield "<h3>By policy</h3>"
    most = max(*s.tasks.values(), s.bound, 1)
    yield from bar_list(
        "policies",
        [
            Row(
                f"{name}, which runs" if name == s.name else name,
                [_tasks(count, s.bound, most)],
            )
            for name, count in s.tasks.items()
        ],
    )


def _tasks(count: int, least: int, most: int) -> Measure:
    """Return tasks as a bar; those above the lower bound have a colour of their own."""
    needed = min(least, count)
    text = f"{number_text(count, 'task')}; no policy needs fewer than {least}"
    return Measure(text, [(needed / most, 0), ((count - needed) / most, 1)])
