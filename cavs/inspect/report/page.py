"""`page`: a report as one HTML page that loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cavs.inspect.html import document, html_text, key
from cavs.inspect.report.charts import OVER, Chart, axis_of, charts_of
from cavs.inspect.report.facts import facts_of, time_text, title_of
from cavs.inspect.report.run_log import RunLog
from cavs.inspect.report.scale import short
from cavs.inspect.report.svg import chart_svg

_MAX_ROWS = 200  # in a table
_STYLE = """
#over-steps:not(:checked)~.steps,#over-time:not(:checked)~.time{display:none}
.line{fill:none;stroke:var(--color);stroke-width:1.8;stroke-linejoin:round}
.band{fill:var(--color);opacity:.2}.dot{fill:var(--color)}
.invalid{fill:none;stroke:var(--color);stroke-width:2}
.best{fill:none;stroke:var(--text);stroke-width:1.5}
.mark{fill:none;stroke:var(--soft);stroke-dasharray:4 3}
.mark.checkpoint{stroke-dasharray:none;stroke-width:1.5}
.mark.resume{stroke:var(--c2);stroke-dasharray:1 3;stroke-width:2}
.mark.interrupt,.mark.error{stroke:var(--bad);stroke-dasharray:none}
.column rect{fill:transparent}.column path{stroke:none}
.column:hover path,.column.shown path{stroke:var(--soft)}
output{display:block;min-height:2.8em;font-size:.85rem;color:var(--soft);white-space:pre-line}
.table{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.15rem .6rem;border-bottom:1px solid var(--grid)}
td:last-child.text{text-align:left}
"""
# A touch shows no title of SVG, so that values are also written below the chart.
_SCRIPT = """
let last=null;
for(const name of["pointerover","pointerdown"])document.addEventListener(name,event=>{
const column=event.target.closest&&event.target.closest(".column");
if(!column)return;
if(last)last.classList.remove("shown");
(last=column).classList.add("shown");
column.closest("figure").querySelector("output").textContent=
column.querySelector("title").textContent.replaceAll("\\n","   ");
});
"""
_KEY = "dashed: a change; ticks: checkpoints; dotted: resumed; red: interrupted or failed; ring: "
_KEY += "the best epoch; crosses: NaN or infinity; band: lowest and highest of averaged values"


def page(log: RunLog, over: str) -> str:
    """Return the report of a run as HTML. over: ``"steps"`` or ``"time"``, shown at first."""
    body = [
        "<dl>",
        *(f"<dt>{html_text(k)}</dt><dd>{html_text(v)}</dd>" for k, v in facts_of(log).items()),
        "</dl>",
        *_charts(log, over),
        *_tables(log),
    ]
    return document(title_of(log), _STYLE, body, _SCRIPT)


def _charts(log: RunLog, over: str) -> Iterator[str]:
    for name in OVER:
        checked = " checked" if name == over else ""
        yield f'<input type="radio" name="over" id="over-{name}"{checked}>'
        yield f'<label for="over-{name}">over {name}</label>'
    yield f'<div class="soft">{_KEY}</div>'
    for name in OVER:
        axis = axis_of(log, name)
        yield f'<div class="charts {name}">'
        for chart in charts_of(log, axis):
            yield from _figure(chart, chart_svg(chart, axis), axis.unit or axis.title)
        yield "</div>"


def _figure(chart: Chart, svg: str, unit: str) -> Iterator[str]:
    shown = f"{chart.title}, {chart.unit}" if chart.unit else chart.title
    keys = (key(line.label, i) for i, line in enumerate(chart.lines))
    yield f"<figure><figcaption>{html_text(shown)}{''.join(keys)}</figcaption>"
    yield svg
    yield f"<output>{unit}</output></figure>"


def _tables(log: RunLog) -> Iterator[str]:
    events = [mark for mark in log.marks if mark.event != "checkpoint"]
    yield from _table(
        "Changes and interruptions",
        ["step", "time", "event"],
        ([short(m.step), time_text(m.seconds), m.text] for m in events),
        len(events),
    )
    names = list(dict.fromkeys(name for epoch in log.epochs for name in epoch))
    names = [name for name in names if name != "best"]
    yield from _table(
        "Epochs",
        [name.replace("_", " ") for name in names],
        ([short(e[name]) if name in e else "" for name in names] for e in log.epochs),
        len(log.epochs),
    )


def _table(title: str, head: list[str], rows: Iterable[list[str]], count: int) -> Iterator[str]:
    """Yield a table of the last rows; nothing for no row."""
    if count == 0:
        return
    left_out = max(0, count - _MAX_ROWS)
    note = f", the last {_MAX_ROWS} of {count}" if left_out else ""
    yield f'<details open><summary>{title}{note}</summary><div class="table"><table><tr>'
    yield "".join(f"<th>{html_text(name)}</th>" for name in head) + "</tr>"
    for i, row in enumerate(rows):
        if i >= left_out:
            cells = "".join(f"<td>{html_text(cell)}</td>" for cell in row[:-1])
            yield f'<tr>{cells}<td class="text">{html_text(row[-1])}</td></tr>'
    yield "</table></div></details>"
