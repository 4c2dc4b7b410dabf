"""Renders explanations. SVG that can be inlined in a page uses classes (`accent`, `quiet`, `box`, `curve`),
presentation attributes and `currentColor`, without scripts or references. Plain text: wrapped lines, columns, trees,
outlines of query blocks, and indented XML with element numbers."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from xml.sax.saxutils import escape as escape_text
from xml.sax.saxutils import quoteattr

from lxml import etree
from markupsafe import escape
from rich.text import Text

from common.tools import gathered
from mmqjp.process import printable_line
from mmqjp.queries.model import is_bare
from xscl.algebra.joins import PatternNode
from xscl.algebra.values import And, Expr, Or, Step, String
from xscl.lower import and_arms, path_and_literal
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Block, Input, Join, Script
from xscl.text import XsclErrors

SIZE, LINE, COLUMN = 12, 20, 7.3
"""Font size, line height, and width of a character (fonts differ by a few hundredths), in units of the picture."""

_FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"

_STYLE = """<style>
svg { color-scheme: light dark; color: #1c2024; background: #fff; }
.accent { fill: #0b5cad; } .curve { stroke: #0b5cad; }
@media (prefers-color-scheme: dark) {
  svg { color: #e6e8eb; background: #15181c; }
  .accent { fill: #7cb7ff; } .curve { stroke: #7cb7ff; }
}
</style>"""


def truncate_to_width(text: str, most: int) -> str:
    """Returns a text on one line, without control characters, cut to `most` columns."""
    line = Text(printable_line(text[: 4 * most]))
    line.truncate(most, overflow="ellipsis")
    return line.plain


def text_element(x: float, y: float, content: str, kind: str = "", *, anchor: str = "start", bold: bool = False) -> str:
    """Writes a line of text, preserving spaces. `kind` is its class; `anchor` says which part of it is at `x`."""
    more = f' class="{kind}"' if kind else ""
    more += ' fill-opacity="0.72"' if kind == "quiet" else ""
    more += "" if anchor == "start" else f' text-anchor="{anchor}"'
    more += ' font-weight="700"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}"{more} xml:space="preserve">{escape(content)}</text>'


def box(x: float, y: float, width: float, height: float) -> str:
    shape = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"'
    return f'<rect class="box" {shape} fill="none" stroke="currentColor" stroke-opacity="0.35"/>'


def bar(x: float, y: float, width: float, height: float, opacity: float = 0.08) -> str:
    shape = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"'
    return f'<rect class="bar" {shape} fill="currentColor" fill-opacity="{opacity:g}"/>'


def dot(x: float, y: float) -> str:
    return f'<circle class="accent" cx="{x:g}" cy="{y:g}" r="3"/>'


def curve(x1: float, y1: float, x2: float, y2: float, width: float = 1.5, opacity: float = 0.8) -> str:
    """Writes a curve that is level at both ends."""
    middle = (x1 + x2) / 2
    way = f"M{x1:g} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}"
    paint = f'fill="none" stroke="currentColor" stroke-width="{width:g}" stroke-opacity="{opacity:g}"'
    return f'<path class="curve" d="{way}" {paint}/>'


def line_element(way: str) -> str:
    return f'<path class="line" d="{way}" fill="none" stroke="currentColor" stroke-opacity="0.55"/>'


def picture(width: float, height: float, title: str, description: str, parts: Iterable[str]) -> str:
    """Writes a picture; screen readers read title and description."""
    body = "".join(parts)
    # Pictures of a page have different ids, and a picture has the same ones each time.
    key = "p" + hashlib.sha256(f"{title}\n{body}".encode()).hexdigest()[:12]
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    names = f'role="img" aria-labelledby="{key}t" aria-describedby="{key}d"'
    said = f'<title id="{key}t">{escape(title)}</title><desc id="{key}d">{escape(description)}</desc>'
    paint = f'class="picture" fill="currentColor" font-family="{_FONT}" font-size="{SIZE}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {names} {paint}>{said}{body}</svg>'


def as_file(svg: str) -> str:
    """Returns a picture as a standalone file, with light and dark colours."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + re.sub(">", f">{_STYLE}", svg, count=1) + "\n"


SWEEPS = 4  # number of passes that order columns by their neighbours; more change little


@dataclass(frozen=True, slots=True)
class LayerCell:
    """A place in a column: the box of a key, or the lane of its edges to columns farther right."""

    key: str
    column: int
    lane: bool = False


@dataclass(frozen=True, slots=True)
class Layers:
    """The cells of each column, from the top; edges between adjacent columns; and cells omitted per column."""

    columns: Sequence[Sequence[LayerCell]]
    steps: Sequence[tuple[LayerCell, LayerCell]]
    left_out: Mapping[int, int]


def layered(reads: Mapping[str, Sequence[str]], most: int, most_in_column: int) -> Layers:
    """Arranges the first `most` keys in columns of limited height, inputs first. Edges against that order are dropped.

    >>> found = layered({"a": [], "b": ["a"], "c": ["a", "b"]}, 9, 9)
    >>> [[place.key + "-" * place.lane for place in column] for column in found.columns]
    [['a'], ['b', 'a-'], ['c']]
    """
    depths: dict[str, int] = {}
    for key, others in reads.items():
        depths[key] = 1 + max((depths.get(other, -1) for other in others), default=-1)
    columns: list[list[LayerCell]] = []
    left_out: dict[int, int] = {}
    boxes: dict[str, LayerCell] = {}
    for key in list(reads)[:most]:
        depth = depths[key]
        columns += [[] for _ in range(depth + 1 - len(columns))]
        if len(columns[depth]) < most_in_column:
            boxes[key] = LayerCell(key, depth)
            columns[depth].append(boxes[key])
        else:
            left_out[depth] = left_out.get(depth, 0) + 1
    steps: dict[tuple[LayerCell, LayerCell], None] = {}
    for key, box in boxes.items():
        for other in reads[key]:
            if other in boxes and depths[other] < box.column:
                lanes = [LayerCell(other, column, True) for column in range(depths[other] + 1, box.column)]
                steps |= dict.fromkeys(zip([boxes[other], *lanes], [*lanes, box], strict=True))
    for place in dict.fromkeys(end for _, end in steps if end.lane):
        columns[place.column].append(place)
    return Layers(_ordered(columns, list(steps)), list(steps), left_out)


def _ordered(
    columns: Sequence[Sequence[LayerCell]], steps: Sequence[tuple[LayerCell, LayerCell]]
) -> list[list[LayerCell]]:
    """Orders each column by the places that its cells connect to, to reduce crossings."""
    before, after = gathered((end, start) for start, end in steps), gathered(steps)
    found = [list(column) for column in columns]
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 1  # the last one is: what is read tells best where what reads it belongs
        beside = before if forward else after
        for number in range(1, len(found)) if forward else range(len(found) - 2, -1, -1):
            neighbour = found[number - 1 if forward else number + 1]
            heights = {place: (n + 0.5) / len(neighbour) for n, place in enumerate(neighbour)}
            column = found[number]
            wanted = {}
            for n, place in enumerate(column):
                near = [heights[other] for other in beside.get(place, ())]
                wanted[place] = sum(near) / len(near) if near else (n + 0.5) / len(column)
            column.sort(key=wanted.__getitem__)
    return found


@dataclass(eq=False, slots=True)
class OutlineNode:
    """A path or, if it `is_condition`, a filter."""

    text: str
    var: str | None = None
    is_condition: bool = False
    children: list[OutlineNode] = field(default_factory=list)

    def __str__(self) -> str:
        if self.is_condition:
            return f"where {self.text}"
        return self.text if self.var is None else f"{self.text} as {self.var}"

    def walk(self) -> Iterator[OutlineNode]:
        yield self
        for child in self.children:
            yield from child.walk()


class OutlineLine(NamedTuple):
    depth: int
    node: OutlineNode


class Outline:
    """The outline of a block. Paths on its variables can be added."""

    def __init__(self, block: Block) -> None:
        self.stream = block.stream
        self.root, self._last = _chain(block.steps, is_root=True)

    def at(self, var: str | None, steps: tuple[Step, ...]) -> OutlineNode:
        """Returns the node of a path on a variable, or on the block's root (None); adds it if missing."""
        start = self._last if var is None else next(node for node in self.root.walk() if node.var == var)
        if not steps:
            return start
        first, last = _chain(steps)
        if first is last and not first.children:
            for child in start.children:
                if child.text == first.text and not (child.is_condition or child.children):
                    return child
        start.children.append(first)
        return last

    def rows(self, only: Collection[OutlineNode] | None = None) -> Iterator[OutlineLine]:
        """Yields the lines; `only` restricts them to these nodes and their ancestors."""

        def below(node: OutlineNode, depth: int) -> Iterator[OutlineLine]:
            yield OutlineLine(depth, node)
            for child in node.children:
                if only is None or any(one in only for one in child.walk()):
                    yield from below(child, depth + 1)

        yield from below(self.root, 0)


def _chain(steps: tuple[Step, ...], *, is_root: bool = False) -> tuple[OutlineNode, OutlineNode]:
    """The first and the last node of a path. Steps without variables and filters share a node."""
    nodes: list[OutlineNode] = []
    text = ""
    for place, step in enumerate(steps):
        is_plain = not nodes and not text and not is_root and step.axis == "/"
        text += f"{'' if is_plain else step.axis}{to_xscl(step.test)}"
        if step.var is None and not step.filters and place + 1 < len(steps):
            continue
        node = OutlineNode(text, step.var)
        for condition in step.filters:
            node.children += _filters(condition)
        if nodes:
            nodes[-1].children.append(node)
        nodes.append(node)
        text = ""
    return nodes[0], nodes[-1]


def _filters(condition: Expr) -> Iterator[OutlineNode]:
    for arm in and_arms(condition):
        path, literal = path_and_literal(arm)
        if path is None or not path.steps:
            yield OutlineNode(to_xscl(arm), is_condition=True)
            continue
        first, last = _chain(path.steps)
        if literal is not None:
            last.text += f" = {to_xscl(String(literal))}"
        yield first


WIDTH = 100

_TIED = re.compile(r"(?<!,) (?!AND )")


def indented(lines: Iterable[str], indent: int) -> Iterator[str]:
    return (" " * indent + line if line else "" for line in lines)


def wrapped(text: str, indent: int) -> list[str]:
    """Wraps text at blanks to WIDTH columns. Continuation lines are indented further."""
    first = " " * (indent + len(text) - len(text.lstrip()))
    return textwrap.wrap(
        text.strip(), WIDTH, initial_indent=first, subsequent_indent=first + "  ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def wrapped_lines(lines: Iterable[str], indent: int) -> Iterator[str]:
    for line in lines:
        yield from wrapped(line, indent)


def wrapped_sql(sql: str, indent: int) -> Iterator[str]:
    """Wraps the lines of SQL after commas and before AND only."""
    for line in sql.splitlines():
        tied = " " * (len(line) - len(line.lstrip())) + _TIED.sub("\u00a0", line.lstrip())
        yield from (part.replace("\u00a0", " ") for part in wrapped(tied, indent))


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def tree(pattern: PatternNode) -> Iterator[str]:
    yield str(replace(pattern, children=()))
    for place, child in enumerate(pattern.children, 1):
        last = place == len(pattern.children)
        first, *rest = tree(child)
        yield ("└─ " if last else "├─ ") + first
        yield from (("   " if last else "│  ") + line for line in rest)


def query_lines(script: Script, indent: int) -> Iterator[str]:
    """Yields a script's canonical text with one line per clause. The result parses again."""
    if script.namespaces:
        yield from wrapped(f"{to_xscl(Script((), script.namespaces))};", indent)
    for query in script.queries:
        select = [] if query.select is None else [f"SELECT {to_xscl(query.select)}"]
        first, *rest = _input(query.source)
        hidden = " HIDDEN" if query.hidden else ""
        publish = [] if query.publish is None else [f"PUBLISH {query.publish}{hidden}"]
        once = [] if query.once is None else [to_xscl(query.once)]
        yield from indented([*select, f"FROM {first}", *rest, *publish, *once], indent)


def text_lines(text: str) -> Iterator[str]:
    """Yields the text of a stored query with one line per clause; that of an event query unchanged."""
    script = Script(())
    with suppress(XsclErrors):
        script = script if is_bare(text) else parse_script(text, stored=True)
    yield from query_lines(script, 0) if script.queries else wrapped(text, 0)


def _input(source: Input) -> Iterator[str]:
    if not isinstance(source, Join):
        yield to_xscl(source)
        return
    yield from _input(source.left)
    pred, end = source.pred, f", {to_xscl(source.window)}}}"
    line = f"  {source.op} {{{to_xscl(pred)}{end}"
    if len(line) <= WIDTH // 5 * 4 or not isinstance(pred, And | Or):
        yield line
    else:
        word = "and" if isinstance(pred, And) else "or"
        arms = [f"({to_xscl(arm)})" if isinstance(arm, And | Or) else to_xscl(arm) for arm in pred.args]
        yield f"  {source.op} {{{arms[0]}"
        yield from (f"    {word} {arm}" for arm in arms[1:-1])
        yield f"    {word} {arms[-1]}{end}"
    right = to_xscl(source.right)
    yield f"  ({right})" if isinstance(source.right, Join) else f"  {right}"


SHORT_TEXT, SHORT_LINES = 160, 80  # characters of a text and lines of a document shown in short form

NUMBER, TAG, NAME, VALUE, MORE = "dim", "cyan", "yellow", "green", "dim italic"
"""The styles of the parts of a document."""

_XML = "http://www.w3.org/XML/1998/namespace"
_VISIBLE = {"\n": "↵", "\t": "⇥", "\r": "␍"}


def document_lines(root: etree._Element, *, full: bool = True) -> Iterator[Text]:
    """Yields the lines of a document without comments and processing instructions, each element preceded by its number
    in document order, from 0. Unless `full`, long texts and documents are shortened."""
    width = len(str(sum(1 for _ in root.iter())))
    for count, line in enumerate(_lines(root, width, full)):
        if not full and count == SHORT_LINES:
            yield Text(f"{' ' * width}  … the rest is left out", MORE)
            return
        yield line


def visible(text: str) -> str:
    return "".join(char if char.isprintable() else _VISIBLE.get(char, "\ufffd") for char in text)


def _lines(root: etree._Element, width: int, full: bool) -> Iterator[Text]:
    number, depth = 0, 0
    for event, element in etree.iterwalk(root, events=("start", "end")):
        text = element.text if event == "start" else element.tail if element is not root else None
        end = Text(f"</{_name(element)}>", TAG)
        if event == "start":
            line = Text().append(f"{number:>{width}}  ", NUMBER).append("  " * depth).append_text(_start(element, full))
            number += 1
            depth += 1
            if not len(element):
                yield line.append_text(_text(text, full)).append_text(end) if text else line
                continue
            yield line
        else:
            depth -= 1
            if len(element):
                yield Text(" " * (width + 2) + "  " * depth).append_text(end)
        if text and text.strip():
            yield Text(" " * (width + 2) + "  " * depth).append_text(_text(text, full))


def _start(element: etree._Element, full: bool) -> Text:
    tag = Text().append(f"<{_name(element)}", TAG)
    parent = element.getparent()
    above = {} if parent is None else parent.nsmap
    new = {prefix: uri for prefix, uri in element.nsmap.items() if above.get(prefix) != uri}
    attributes = [(f"xmlns:{prefix}" if prefix else "xmlns", uri) for prefix, uri in new.items()]
    prefixes = {uri: prefix for prefix, uri in element.nsmap.items() if prefix} | {_XML: "xml"}
    for name, value in element.attrib.items():
        qname = etree.QName(name)
        local = f"{prefixes.get(qname.namespace, '?')}:{qname.localname}" if qname.namespace else qname.localname
        attributes.append((local, str(value)))
    for name, value in attributes:
        quoted = quoteattr(visible(_short(value, full)))
        tag.append(" ").append(visible(name), NAME).append("=", TAG).append(quoted, VALUE)
    return tag.append(">" if len(element) or element.text else "/>", TAG)


def _name(element: etree._Element) -> str:
    local = etree.QName(element).localname
    return visible(f"{element.prefix}:{local}" if element.prefix else local)


def _text(text: str, full: bool) -> Text:
    short = _short(text, full)
    made = Text(escape_text(visible(short)))
    return made if short == text else made.append(f"… ({len(text):,} characters)", MORE)


def _short(text: str, full: bool) -> str:
    return text if full or len(text) <= SHORT_TEXT else text[:SHORT_TEXT]
