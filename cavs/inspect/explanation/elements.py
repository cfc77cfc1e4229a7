"""Elements of the page: lists with bars, figures, and numbers as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cavs.inspect.html import COLORS, html_lines, html_text

STYLE = """
nav,.keys{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin-bottom:.8rem}
a{color:var(--c0)}h2{font-size:1.1rem;margin:2rem 0 .5rem}h3{font-size:1rem;margin:1rem 0 .3rem}
p{margin:.4rem 0}li,p,h3,figcaption,summary{overflow-wrap:anywhere}
a:focus-visible,summary:focus-visible,pre:focus-visible{outline:2px solid var(--c0);
outline-offset:2px}
summary{cursor:pointer;padding:.15rem 0}details{border-bottom:1px solid var(--grid)}
pre{overflow-x:auto;margin:.4rem 0;padding:.6rem;border:1px solid var(--grid);border-radius:.3rem;
font:13px/1.45 ui-monospace,monospace;max-height:80vh}
pre span{display:block;width:max-content;min-width:100%}
.added{color:var(--c2);background:color-mix(in srgb,var(--c2) 5%,var(--back))}
.removed{color:var(--bad);background:color-mix(in srgb,var(--bad) 5%,var(--back))}
.fold{color:var(--soft)}.count{font-variant-numeric:tabular-nums;margin-left:.6rem}
.key::before{height:.7rem;border-radius:.15rem}.keys .key{margin:0;white-space:normal}
figure{max-width:46rem}
.by0,.by1,.by2{position:absolute;opacity:0}label{display:inline-block;margin:.1rem .4rem .1rem 0;
padding:.1rem .7rem;border:1px solid var(--soft);border-radius:1rem;font-size:.9rem;cursor:pointer}
input:checked+label{background:var(--text);color:var(--back)}
input:focus-visible+label{outline:2px solid var(--c0);outline-offset:2px}
.fill{fill:var(--color)}.fill:hover{stroke:var(--text);stroke-width:1.5}
.faint{fill-opacity:.3;stroke:var(--color)}.peak{fill:none;stroke:var(--text);stroke-dasharray:4 3}
.rows{list-style:none;margin:.5rem 0;padding:0;display:flex;flex-direction:column}
.rows>li{display:grid;grid-template-columns:minmax(0,2fr) minmax(0,1fr) minmax(0,1fr);
gap:.1rem .8rem;
padding:.25rem 0;border-bottom:1px solid var(--grid);align-items:start}
.rows .two{grid-column:2/4}
.bar{display:flex;height:.5rem;margin-top:.15rem}.bar i{background:var(--color)}
.value{font-variant-numeric:tabular-nums;font-size:.9rem}
.small{font-size:.85rem;color:var(--soft)}
.by0:checked~.rows>li{order:var(--by0)}.by1:checked~.rows>li{order:var(--by1)}
.by2:checked~.rows>li{order:var(--by2)}
@media(max-width:700px){svg text{font-size:16px}.charts{grid-template-columns:minmax(0,1fr)}
.rows>li{grid-template-columns:minmax(0,1fr) minmax(0,1fr)}.rows>li>:first-child{grid-column:1/3}
.rows .two{grid-column:1/3}}
@media(prefers-color-scheme:dark){pre{background:#101215}}
"""


SHORT = 60  # lines of text, or rows of a list, that are not folded


class Measure(NamedTuple):
    """A number as text, and as a bar of parts: fractions of the row, each of a colour."""

    text: str
    parts: Sequence[tuple[float, int]]
    note: str = ""


class Row(NamedTuple):
    """A row of a list. keys: what the list can be sorted by, the largest first."""

    label: str
    bars: Sequence[Measure]
    note: str = ""
    keys: Sequence[float] = ()


def bar_list(name: str, rows: Sequence[Row], orders: Sequence[str] = ()) -> Iterator[str]:
    """Yield a list of rows with bars. orders: titles of orders, the first as given."""
    yield "<div>"
    for n, title in enumerate(orders):
        checked = " checked" if n == 0 else ""
        yield f'<input type="radio" class="by{n}" name="{name}" id="{name}-{n}"{checked}>'
        yield f'<label for="{name}-{n}">{html_text(title)}</label>'
    ranks = [list(range(len(rows)))] if orders else []
    for k in range(len(orders) - 1):
        by_size = sorted(range(len(rows)), key=lambda n, k=k: -rows[n].keys[k])  # type: ignore[misc]
        rank = [0] * len(rows)
        for position, n in enumerate(by_size):
            rank[n] = position
        ranks.append(rank)
    yield '<ol class="rows">'
    for n, row in enumerate(rows):
        style = ";".join(f"--by{k}:{rank[n]}" for k, rank in enumerate(ranks))
        yield f'<li style="{style}">' if style else "<li>"
        note = f'<br><span class="small">{html_text(row.note)}</span>' if row.note else ""
        yield f"<div>{html_text(row.label)}{note}</div>"
        wide = ' class="two"' if len(row.bars) == 1 else ""
        for bar in row.bars:
            note = f'<div class="small">{html_text(bar.note)}</div>' if bar.note else ""
            yield f'<div{wide}><span class="value">{html_text(bar.text)}</span>'
            parts = "".join(_part(*part) for part in bar.parts)
            yield f'<div class="bar">{parts}</div>{note}</div>'
        yield "</li>"
    yield "</ol></div>"


def _part(fraction: float, color: int) -> str:
    width = 100 * min(max(fraction, 0.0), 1.0)
    return f'<i class="c{color % COLORS}" style="width:{width:.2f}%"></i>' if width else ""


def folded(summary: str, body: Iterable[str], *, shown: bool = False) -> Iterator[str]:
    """Yield HTML below a summary, which is HTML too, that opens and closes it."""
    yield f"<details{' open' if shown else ''}><summary>{summary}</summary>"
    yield from body
    yield "</details>"


def code(text: str) -> str:
    """Return text as a block that scrolls, also by keys."""
    return f'<pre tabindex="0">{html_lines(text)}</pre>'


def paragraph(text: str, *, soft: bool = False) -> str:
    """Return a paragraph of text."""
    return f'<p class="soft">{html_text(text)}</p>' if soft else f"<p>{html_text(text)}</p>"


def stage_text(number: int, type_: str, label: str) -> str:
    """Return a stage with its number and type."""
    return f"stage {number}, {label if label.startswith(type_) else f'{type_}: {label}'}"


def number_text(number: int, noun: str) -> str:
    """Return a number of things: ``1 task``, ``2 vertices``."""
    if number != 1:
        noun = "vertices" if noun == "vertex" else f"{noun}s"
    return f"{number:,} {noun}"


def size_text(size: float) -> str:
    """Return a number of bytes: ``512 B``, ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


def time_text(seconds: float) -> str:
    """Return a time: ``12.5 µs``, ``3.21 ms``, ``1.5 s``."""
    for scale, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
