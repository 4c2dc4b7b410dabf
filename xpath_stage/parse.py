"""Bytes to an element tree, safely: nothing outside is read, and what could exhaust memory is refused."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from functools import cached_property
from typing import NamedTuple

from lxml import etree

from common.prolog import Prolog, read_prolog
from common.xml_parser import xml_parser
from xpath_stage.extent import NODE_BYTES, excess

MAX_BYTES = 16 << 20
"""Largest document from outside: its tree takes up to 75 times as much memory."""

MOST_NODES = MAX_BYTES // NODE_BYTES
"""Most elements and attributes of one: entities must not make it larger than it could be without."""

MAX_ATTRIBUTES = 1_000
"""Most attributes of an element: to list them takes time in the square of their number."""

ROOM_FOR_MANY_ATTRIBUTES = 5 * MAX_ATTRIBUTES
"""Bytes that a document with so many must have."""

_HAS_MANY = etree.XPath(f"boolean(//@*[{MAX_ATTRIBUTES + 1}])")


class DocumentError(ValueError):
    """A document that cannot be read: the message tells the place and the cause."""


class ParsedDocument:
    """A document's tree: its elements are numbered in document order, from 0.

    `size` is the length of its XML, in bytes. `top` is its root element, maybe with other documents beside it in a
    larger tree: good for what looks down from it, and for nothing else.
    """

    __slots__ = ("__dict__", "size", "top")

    def __init__(self, top: etree._Element, size: int) -> None:
        self.top, self.size = top, size

    @cached_property
    def root(self) -> etree._Element:
        """The root element of a tree of its own."""
        return self.top if self.top.getparent() is None else deepcopy(self.top)

    def xml(self) -> str:
        """The document as it was read."""
        return etree.tostring(self.top, encoding="unicode", with_tail=False)

    @cached_property
    def elements(self) -> list[etree._Element]:
        """The elements."""
        return list(self.root.iter())

    @cached_property
    def number(self) -> dict[etree._Element, int]:
        """Element -> its number."""
        return {element: i for i, element in enumerate(self.elements)}

    @cached_property
    def end(self) -> list[int]:
        """For each element, the number after its last descendant's."""
        ends = list(range(1, len(self.elements) + 1))
        for i in range(len(self.elements) - 1, 0, -1):
            parent = self.parent[i]
            assert parent is not None, "only the root element has no parent"
            ends[parent] = max(ends[parent], ends[i])
        return ends

    @cached_property
    def parent(self) -> list[int | None]:
        """For each element the number of its parent; None for the root element."""
        numbers = self.number
        return [None, *(numbers[element.getparent()] for element in self.elements[1:])]  # type: ignore[index]

    def attribute(self, element: int, place: int) -> tuple[str, str]:
        """Name and value of an element's attribute by its place, from 1."""
        name, value = self.elements[element].attrib.items()[place - 1]
        return str(name), str(value)

    def string_value(self, element: int, attribute: int = 0) -> str:
        """XPath's string value: an attribute's value, an element's whole text."""
        return self.attribute(element, attribute)[1] if attribute else text_of(self.elements[element])


class StreamDocument(NamedTuple):
    """A parsed document on its way through stage 1. Times in UTC microseconds."""

    docid: int
    stream: str
    t0: int
    t1: int
    tree: ParsedDocument


Arriving = tuple[int, str, int, int, ParsedDocument]
"""The fields of a `StreamDocument`, be they one or not."""


def text_of(element: etree._Element) -> str:
    """The string value of an element."""
    if len(element) == 0:
        return element.text or ""
    return etree.tostring(element, method="text", encoding="unicode", with_tail=False)


def parse_document(xml: bytes, *, trusted: bool = False, max_nodes: int | None = None) -> ParsedDocument:
    """Parses a document of at most `max_nodes` elements and attributes. Raises DocumentError.

    `trusted`, for documents of our own making, lifts our limits and libxml2's (256 levels of elements, 10 MB a text
    node).
    """
    size = len(xml)
    if size > MAX_BYTES and not trusted:
        raise DocumentError(f"larger than {MAX_BYTES >> 20} MiB")
    # A document that starts with its root element is in UTF-8 and has no DOCTYPE.
    bare = size > 1 and xml[0] == _LESS_THAN and _FIRST_LETTER <= xml[1] <= _LAST_LETTER
    prolog = _BARE if bare else read_prolog(xml)
    if prolog.refused:
        raise DocumentError(prolog.refused)
    if not trusted and (cause := excess(xml, prolog, MOST_NODES if max_nodes is None else max_nodes)):
        raise DocumentError(cause)
    parser = PARSERS[trusted]
    try:
        root = etree.fromstring(xml, parser)
    except etree.XMLSyntaxError as error:
        line, column = error.position
        raise DocumentError(f"line {line}, column {column}: {_cause(error.msg)}") from None
    except ValueError as error:
        raise DocumentError(str(error)) from None
    # lxml overlooks an error that a warning follows.
    if errors := parser.error_log:
        _refuse_overlooked(errors)
    if not prolog.understood and root.getroottree().docinfo.doctype:  # type: ignore[union-attr]  # one exists
        raise DocumentError("the DOCTYPE cannot be read: write it in UTF-8")
    roomy = size > ROOM_FOR_MANY_ATTRIBUTES and not trusted and not (bare and _has_short_tags(xml))
    if roomy and _HAS_MANY(root):
        raise DocumentError(f"an element has more than {MAX_ATTRIBUTES:,} attributes")
    return ParsedDocument(root, size)


def _has_short_tags(xml: bytes) -> bool:
    """Whether some tag begins in every half of the room that too many attributes take: no tag is so long then.

    For documents in UTF-8 without a DOCTYPE, which could give attributes that stand nowhere.
    """
    step = ROOM_FOR_MANY_ATTRIBUTES // 2
    return all(xml.find(b"<", place, place + step) >= 0 for place in range(0, len(xml) - step, step))


def _cause(message: str | None) -> str:
    return (message or "not well-formed").split(", line ")[0].strip()


PARSERS = {trusted: xml_parser(elements_only=True, trusted=trusted) for trusted in (False, True)}
"""All documents are parsed with these, by whether they are trusted."""

_LESS_THAN, _FIRST_LETTER, _LAST_LETTER = b"<Az"
_BARE = Prolog(understood=True)


def _refuse_overlooked(errors: Iterable[etree._LogEntry]) -> None:
    for entry in errors:
        if entry.level >= etree.ErrorLevels.ERROR:
            raise DocumentError(f"line {entry.line}, column {entry.column}: {_cause(entry.message)}")
