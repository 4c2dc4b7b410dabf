"""Writes SVG that stands in a page as it is: classes and presentation attributes, no styles, no scripts, no references.

Colours are `currentColor`, so that a picture is legible on whatever it stands. A page may style the classes:
`accent` (what the picture is about), `quiet` (what explains it), `box` and `curve`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from unicodedata import east_asian_width

from markupsafe import escape

from mmqjp.text import printable_line

SIZE = 12
"""The size of text, in the units of the picture."""

LINE = 20
"""From one line to the next."""

COLUMN = 7.3
"""The width of a character. Fonts differ by a few hundredths of it."""

_FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"

_STYLE = """<style>
svg { color-scheme: light dark; color: #1c2024; background: #fff; }
.accent { fill: #0b5cad; } .curve { stroke: #0b5cad; }
@media (prefers-color-scheme: dark) {
  svg { color: #e6e8eb; background: #15181c; }
  .accent { fill: #7cb7ff; } .curve { stroke: #7cb7ff; }
}
</style>"""


def columns(text: str) -> int:
    """Returns how many columns a text takes. Chinese, Japanese and Korean characters take two."""
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def clipped(text: str, most: int) -> str:
    """Returns a text in one line, without control characters, cut so that it takes at most so many columns."""
    line = printable_line(text[: 4 * most])
    if len(text) <= 4 * most and columns(line) <= most:
        return line
    kept, width = "", 1
    for char in line:
        width += columns(char)
        if width > most:
            break
        kept += char
    return kept.rstrip() + "…"


def text(x: float, y: float, content: str, kind: str = "", *, anchor: str = "start", bold: bool = False) -> str:
    """Writes a line of text, whose spaces count. `kind` is its class; `anchor` says which part of it is at `x`."""
    more = f' class="{kind}"' if kind else ""
    more += ' fill-opacity="0.72"' if kind == "quiet" else ""
    more += "" if anchor == "start" else f' text-anchor="{anchor}"'
    more += ' font-weight="700"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}"{more} xml:space="preserve">{escape(content)}</text>'


def box(x: float, y: float, width: float, height: float) -> str:
    """Writes the outline of a box with round corners."""
    shape = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"'
    return f'<rect class="box" {shape} fill="none" stroke="currentColor" stroke-opacity="0.35"/>'


def bar(x: float, y: float, width: float, height: float, opacity: float = 0.08) -> str:
    """Writes a filled box, which marks what stands on it or shows an amount."""
    shape = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"'
    return f'<rect class="bar" {shape} fill="currentColor" fill-opacity="{opacity:g}"/>'


def dot(x: float, y: float) -> str:
    """Writes the end of a curve."""
    return f'<circle class="accent" cx="{x:g}" cy="{y:g}" r="3"/>'


def curve(x1: float, y1: float, x2: float, y2: float, width: float = 1.5, opacity: float = 0.8) -> str:
    """Writes a curve that leaves its left end and reaches its right end level."""
    middle = (x1 + x2) / 2
    way = f"M{x1:g} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}"
    paint = f'fill="none" stroke="currentColor" stroke-width="{width:g}" stroke-opacity="{opacity:g}"'
    return f'<path class="curve" d="{way}" {paint}/>'


def line(way: str) -> str:
    """Writes a thin line, given as the data of a path."""
    return f'<path class="line" d="{way}" fill="none" stroke="currentColor" stroke-opacity="0.55"/>'


def picture(width: float, height: float, title: str, description: str, parts: Iterable[str]) -> str:
    """Writes a picture with its title and what it shows in words, which screen readers read out."""
    body = "".join(parts)
    # Pictures of a page have different ids, and a picture has the same ones each time.
    key = "p" + hashlib.sha256(f"{title}\n{body}".encode()).hexdigest()[:12]
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    names = f'role="img" aria-labelledby="{key}t" aria-describedby="{key}d"'
    said = f'<title id="{key}t">{escape(title)}</title><desc id="{key}d">{escape(description)}</desc>'
    paint = f'class="picture" fill="currentColor" font-family="{_FONT}" font-size="{SIZE}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {names} {paint}>{said}{body}</svg>'


def as_file(svg: str) -> str:
    """Returns a picture as a file of its own, which has colours for light and for dark."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + re.sub(">", f">{_STYLE}", svg, count=1) + "\n"
