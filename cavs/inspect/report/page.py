"""`page`: a report as one HTML page that loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cavs.inspect.report.charts import OVER, Chart, axis_of, charts_of
from cavs.inspect.report.facts import facts_of, time_text, title_of
from cavs.inspect.report.run_log import RunLog
from cavs.inspect.report.scale import short
from cavs.inspect.report.svg import chart_svg, html_text

_MAX_ROWS = 200  # in a table
_STYLE = """
:root{--back:#fff;--text:#1c1e21;--soft:#667;--grid:#e2e4e8;--c0:#0072b2;--c1:#d55e00;--c2:#009e73;
--c3:#b03080;--c4:#8a6d00;--c5:#555;--bad:#c62828;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--back:#15171a;--text:#e6e7e9;--soft:#9aa0a8;--grid:#2c3036;
--c0:#56b4e9;--c1:#ff9a4d;--c2:#3ecf9f;--c3:#e58ac0;--c4:#e3c64a;--c5:#bbb;--bad:#ff6b6b}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:80rem;padding:1rem;background:var(--back);color:var(--text);
font:16px/1.4 system-ui,sans-serif}
h1{font-size:1.3rem;margin:0 0 .5rem;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:auto 1fr;gap:.15rem .8rem;margin:0 0 1rem}
dt,.soft{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
label{margin-right:1rem}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem;
margin-top:1rem}
#over-steps:not(:checked)~.steps,#over-time:not(:checked)~.time{display:none}
figure{margin:0;min-width:0}figcaption{font-weight:600}
.key{font-weight:400;color:var(--soft);margin-left:.6rem;white-space:nowrap}
.key::before{content:"";display:inline-block;width:.9rem;height:.2rem;margin-right:.3rem;
vertical-align:middle;background:var(--color)}
svg{display:block;width:100%;height:auto;touch-action:pan-y}
svg text{font-size:12.5px;fill:var(--soft)}
.grid{stroke:var(--grid)}.axis{stroke:var(--soft)}
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
.c0{--color:var(--c0)}.c1{--color:var(--c1)}.c2{--color:var(--c2)}.c3{--color:var(--c3)}
.c4{--color:var(--c4)}.c5{--color:var(--c5)}
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
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_KEY = "dashed: a change; ticks: checkpoints; dotted: resumed; red: interrupted or failed; ring: "
_KEY += "the best epoch; crosses: NaN or infinity; band: lowest and highest of averaged values"


def page(log: RunLog, over: str) -> str:
    """Return the report of a run as HTML. over: ``"steps"`` or ``"time"``, shown at first."""
    title = html_text(title_of(log))
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>",
            "<dl>",
            *(f"<dt>{html_text(k)}</dt><dd>{html_text(v)}</dd>" for k, v in facts_of(log).items()),
            "</dl>",
            *_charts(log, over),
            *_tables(log),
            f"<script>{_SCRIPT}</script></body></html>",
            "",
        ]
    )


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
    keys = (
        f'<span class="key c{i % 6}">{html_text(line.label)}</span>'
        for i, line in enumerate(chart.lines)
    )
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
