"""`page`: an explanation as one HTML page that loads nothing and needs no script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from cavs.compiler.pipeline import PIPELINE
from cavs.inspect.explanation.elements import (
    SHORT,
    STYLE,
    code,
    folded,
    number_text,
    paragraph,
    time_text,
)
from cavs.inspect.explanation.graph_difference import GraphDifference, graph_difference
from cavs.inspect.explanation.memory import memory
from cavs.inspect.explanation.schedule import schedule, task_numbers
from cavs.inspect.explanation.step import instructions, timeline
from cavs.inspect.explanation_report import ExplanationReport
from cavs.inspect.html import document, html_text

_SIGNS = {"+": "added", "-": "removed"}
_NOT_RUN = "No step was run: explain(..., run=False)."


def page(e: ExplanationReport) -> str:
    """Return an explanation as HTML."""
    body = ["<nav>"]
    body += [f'<a href="#{name}">{title}</a>' for name, (title, _) in _SECTIONS.items()]
    body += ["</nav>", *_facts(e), "<main>"]
    for name, (title, section) in _SECTIONS.items():
        found = list(section(e))
        body += [f'<section id="{name}"><h2>{title}</h2>']
        body += found or [paragraph(_NOT_RUN)]
        body.append("</section>")
    return document(f"{e.model}: how it is compiled and runs", STYLE, [*body, "</main>"])


def _facts(e: ExplanationReport) -> Iterator[str]:
    facts = {"model": e.model, "program": "training" if e.training else "inference"}
    if (run := e.run) is not None:
        facts["batch"] = (
            f"{number_text(run.graphs, 'graph')}, {number_text(run.vertices, 'vertex')} "
            f"({run.distinct:,} distinct), {number_text(run.edges, 'edge')}"
        )
        for name, (vertices, distinct) in run.structures.items():
            facts[name] = f"{number_text(vertices, 'vertex')} ({distinct:,} distinct)"
        facts["tasks"] = f"{run.tasks}; no policy of batching needs fewer than {run.task_bound}"
        if run.backward_tasks:
            facts["tasks of backward"] = f"{run.backward_tasks}; at least {run.backward_bound}"
        facts["time of a step"] = f"{time_text(run.times.wall)}, the median of {run.times.runs}"
        facts["products"] = run.products
        facts["peak of the arena"] = f"{run.peak_bytes:,} bytes"
    yield "<dl>"
    yield from (f"<dt>{html_text(k)}</dt><dd>{html_text(v)}</dd>" for k, v in facts.items())
    yield "</dl>"


def _function(e: ExplanationReport) -> Iterator[str]:
    if not e.functions:
        yield paragraph("The model has no vertex function.")
    for f in e.functions:
        cells = f"{', '.join(f.cells)}: " if any(f.cells) else ""
        yield f"<h3>{html_text(cells + f.name)}</h3>"
        yield paragraph(f.where, soft=True) if f.where else ""
        yield code(f.source) if f.source else paragraph("Python has no source of it.")
    if e.stages:
        name, text = e.stages[0]
        summary = f"The graph of the model after <b>{html_text(name)}</b>, {_lines(text)}"
        yield from folded(summary, [code(text)], shown=text.count("\n") < SHORT)


def _lines(text: str) -> str:
    return number_text(text.count("\n") + 1, "line")


def _passes(e: ExplanationReport) -> Iterator[str]:
    yield paragraph(
        "A pass maps a graph to the next one. Lines that it removed have the numbers of the graph "
        "after it; %3' is a value that this graph lacks, by its number before the pass.",
        soft=True,
    )
    about = {p.name: _first_paragraph(p.function.__doc__) for p in PIPELINE}
    same: list[str] = []
    found = 0
    for (_, before), (name, after) in pairwise(e.stages):
        diff = graph_difference(before, after)
        if not diff:
            same.append(name)
            continue
        counts = {"+": diff.added, "-": diff.removed, "±": diff.changed}
        signs = {"+": "added", "-": "removed", "±": "soft"}
        shown = "".join(
            f'<span class="count {signs[sign]}">{sign}{count}</span>'
            for sign, count in counts.items()
            if count
        )
        found += 1
        text = about.get(name, "")
        body = [paragraph(text)] if text and name != "trace" else []
        summary = f"<b>{html_text(name)}</b>{shown}"
        yield from folded(
            summary, [*body, _diff(diff)], shown=found == 1 and len(diff.lines) <= SHORT
        )
    if same:
        names = (f"<p><b>{html_text(n)}</b> {html_text(about.get(n, ''))}</p>" for n in same)
        number = "1 pass" if len(same) == 1 else f"{len(same)} passes"
        yield from folded(f"{number} changed nothing: {html_text(', '.join(same))}", names)
    if len(e.stages) > 1:
        text = e.stages[-1][1]
        yield from folded(f"The graph after all passes, {_lines(text)}", [code(text)])


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())


def _diff(diff: GraphDifference) -> str:
    lines = []
    for sign, text in diff.lines:
        if sign == "~":
            lines.append(f'<span class="fold">  … lines that stay: {text}</span>')
        else:
            of = f' class="{_SIGNS[sign]}"' if sign in _SIGNS else ""
            lines.append(f"<span{of}>{sign} {html_text(text)}</span>")
    return f'<pre tabindex="0">{"".join(lines)}</pre>'


def _program(e: ExplanationReport) -> Iterator[str]:
    when = "\n".join(
        f"{b.when:5} {b.where}: {b.why}\n      stage {b.stage}: {', '.join(b.nodes)}"
        for b in e.bodies
    )
    yield from folded(f"{len(e.bodies)} groups of nodes: when each runs, and why", [code(when)])
    sizes = f"{number_text(len(e.order), 'stage')}, {number_text(len(e.buffers), 'buffer')}"
    yield from folded(f"The program: {sizes}", [code(e.program)])
    if e.cuda:
        kernels = [code(text.rstrip()) for text in e.cuda.values()]
        yield from folded(f"Fused kernels as CUDA C: {len(e.cuda)}", kernels)
    if e.persistent:
        yield from folded("Persistent kernels", [code("\n".join(e.persistent))])


def _not_batched(e: ExplanationReport) -> Iterator[str]:
    if not e.not_batched:
        yield paragraph("All work of the batch ran in as few pieces as it can.")
        return
    yield "<ul>"
    yield from (f"<li>{html_text(line)}</li>" for line in e.not_batched)
    yield "</ul>"


_SECTIONS: dict[str, tuple[str, Callable[[ExplanationReport], Iterator[str]]]] = {
    "function": ("Vertex functions and trace", _function),
    "passes": ("Passes", _passes),
    "schedule": ("Schedule", schedule),
    "tasks": ("Number of tasks", task_numbers),
    "time": ("Timeline", timeline),
    "instructions": ("Time and traffic by instruction", instructions),
    "memory": ("Memory", memory),
    "not-batched": ("Not batched or merged", _not_batched),
    "program": ("Program", _program),
}
