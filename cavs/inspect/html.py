"""Parts of pages that load nothing: the document, its colours by theme, and escaped text."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

COLORS = 6  # classes c0, c1, ... of elements
# Every colour of text and of data has a contrast of at least 4.5 to the background.
_STYLE = """
:root{--back:#fff;--text:#1c1e21;--soft:#5a5f6b;--grid:#e2e4e8;--c0:#0072b2;--c1:#b84c00;
--c2:#007a58;--c3:#b03080;--c4:#806500;--c5:#555;--bad:#c62828;color-scheme:light dark}
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
figure{margin:0;min-width:0}figcaption{font-weight:600}
.key{font-weight:400;color:var(--soft);margin-left:.6rem;white-space:nowrap}
.key::before{content:"";display:inline-block;width:.9rem;height:.2rem;margin-right:.3rem;
vertical-align:middle;background:var(--color)}
svg{display:block;width:100%;height:auto;touch-action:pan-y}
svg text{font-size:12.5px;fill:var(--soft)}
.grid{stroke:var(--grid)}.axis{stroke:var(--soft)}
.c0{--color:var(--c0)}.c1{--color:var(--c1)}.c2{--color:var(--c2)}.c3{--color:var(--c3)}
.c4{--color:var(--c4)}.c5{--color:var(--c5)}
"""


def html_text(text: str) -> str:
    """Return text as HTML, with characters that cannot be printed as escapes."""
    return escape("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))


def html_lines(text: str) -> str:
    """Return text of several lines as HTML, with its ends of lines."""
    return "\n".join(map(html_text, text.expandtabs(4).split("\n")))


def key(label: str, color: int) -> str:
    """Return an entry of the legend of a figure."""
    return f'<span class="key c{color % COLORS}">{html_text(label)}</span>'


def document(title: str, style: str, body: Iterable[str], script: str = "") -> str:
    """Return a page with a heading, for which a browser refuses to load anything.

    style: rules after those that all pages share. body: HTML.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    policy += "; script-src 'unsafe-inline'" if script else ""
    shown = html_text(title)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{shown}</title><style>{_STYLE}{style}</style></head><body><h1>{shown}</h1>",
            *body,
            f"<script>{script}</script></body></html>" if script else "</body></html>",
            "",
        ]
    )
