"""Writes a document for people: indented XML with the numbers of its elements, fit for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from lxml import etree
from rich.text import Text

SHORT_TEXT, SHORT_LINES = 160, 80
"""The characters of a text and the lines of a document that are shown where it is shortened."""

NUMBER, TAG, NAME, VALUE, MORE = "dim", "cyan", "yellow", "green", "dim italic"
"""The styles of the parts of a document."""

_XML = "http://www.w3.org/XML/1998/namespace"
_VISIBLE = {"\n": "↵", "\t": "⇥", "\r": "␍"}


def document_lines(root: etree._Element, *, full: bool = True) -> Iterator[Text]:
    """The lines of a document without comments and processing instructions. An element has its number in document
    order, from 0, in front of it. White space alone between elements is left out. Unless `full`, long texts and
    documents are shortened."""
    width = len(str(sum(1 for _ in root.iter())))
    for count, line in enumerate(_lines(root, width, full)):
        if not full and count == SHORT_LINES:
            yield Text(f"{' ' * width}  … the rest is left out", MORE)
            return
        yield line


def visible(text: str) -> str:
    """Text in which line breaks and tabs are signs, and what could change a terminal is replaced."""
    return "".join(char if char.isprintable() else _VISIBLE.get(char, "\ufffd") for char in text)


def _lines(root: etree._Element, width: int, full: bool) -> Iterator[Text]:
    number, depth = 0, 0
    for event, element in etree.iterwalk(root, events=("start", "end")):
        if event == "start":
            line = Text().append(f"{number:>{width}}  ", NUMBER).append("  " * depth)
            line.append_text(_start(element, full))
            number += 1
            depth += 1
            if not len(element):
                text = element.text or ""
                if text:
                    line.append_text(_text(text, full)).append(f"</{_name(element)}>", TAG)
                yield line
                continue
            yield line
            yield from _between(element.text, width, depth, full)
            continue
        depth -= 1
        if len(element):
            yield Text(" " * (width + 2) + "  " * depth).append(f"</{_name(element)}>", TAG)
        if element is not root:
            yield from _between(element.tail, width, depth, full)


def _between(text: str | None, width: int, depth: int, full: bool) -> Iterator[Text]:
    """The line of a text beside elements, if it is more than white space."""
    if text and text.strip():
        yield Text(" " * (width + 2) + "  " * depth).append_text(_text(text, full))


def _start(element: etree._Element, full: bool) -> Text:
    """The start tag, or the whole tag of an empty element."""
    tag = Text().append(f"<{_name(element)}", TAG)
    parent = element.getparent()
    above = {} if parent is None else parent.nsmap
    declared = [
        ("xmlns" + (f":{prefix}" if prefix else ""), uri)
        for prefix, uri in element.nsmap.items()
        if above.get(prefix) != uri
    ]
    own = [(_attribute(element, str(name)), str(value)) for name, value in element.attrib.items()]
    for name, value in [*declared, *own]:
        quoted = quoteattr(visible(_short(value, full)))
        tag.append(" ").append(visible(name), NAME).append("=", TAG).append(quoted, VALUE)
    return tag.append(">" if len(element) or element.text else "/>", TAG)


def _name(element: etree._Element) -> str:
    local = etree.QName(element).localname
    return visible(f"{element.prefix}:{local}" if element.prefix else local)


def _attribute(element: etree._Element, name: str) -> str:
    qname = etree.QName(name)
    if not qname.namespace:
        return name
    prefixes = {uri: prefix for prefix, uri in element.nsmap.items() if prefix} | {_XML: "xml"}
    return f"{prefixes.get(qname.namespace, '?')}:{qname.localname}"


def _text(text: str, full: bool) -> Text:
    short = _short(text, full)
    made = Text(escape(visible(short)))
    return made if short == text else made.append(f"… ({len(text):,} characters)", MORE)


def _short(text: str, full: bool) -> str:
    return text if full or len(text) <= SHORT_TEXT else text[:SHORT_TEXT]
