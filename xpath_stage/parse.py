"""Parses a document safely: nothing outside of it is read, and what could exhaust memory is refused."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

from lxml import etree

from common.errors import InputError
from common.lazy import lazy
from common.prolog import Prolog, read_prolog
from common.xml_parser import xml_parser
from xpath_stage.extent import NODE_BYTES, excess

if TYPE_CHECKING:
    from xpath_stage.outlines import Outline

MAX_BYTES = 16 << 20
"""The largest document from outside, in bytes. Its tree takes up to 75 times as much memory."""

MOST_NODES = MAX_BYTES // NODE_BYTES
"""The largest number of elements and attributes. Entities must not make a document larger than it could be without."""

MAX_ATTRIBUTES = 1_000
"""The largest number of attributes of an element: listing them takes quadratic time."""

ROOM_FOR_MANY_ATTRIBUTES = 5 * MAX_ATTRIBUTES
"""The least size in bytes of a document with so many attributes at an element."""

_HAS_MANY = etree.XPath(f"boolean(//@*[{MAX_ATTRIBUTES + 1}])")


class DocumentError(InputError, ValueError):
    """A document that cannot be read: the message tells the place and the cause."""


class ParsedDocument:
    """The tree of a document. Its elements are numbered in document order, from 0.

    `size` is the length of its XML in bytes. `top` is its root element, perhaps in a larger tree with other documents
    beside it, so it must only be used to look down from it. `text` is what `xml` returns, and `outline` what it
    shares with other documents, if they are known.
    """

    __slots__ = ("__dict__", "outline", "size", "text", "top")

    def __init__(self, top: etree._Element, size: int, text: str | None = None) -> None:
        self.top, self.size, self.text = top, size, text
        self.outline: Outline | None = None

    @lazy
    def root(self) -> etree._Element:
        """The root element, in a tree of its own."""
        return self.top if self.top.getparent() is None else deepcopy(self.top)

    def xml(self) -> str:
        """The document as it was read."""
        if self.text is not None:
            return self.text
        return etree.tostring(self.top, encoding="unicode", with_tail=False)

    @lazy
    def elements(self) -> list[etree._Element]:
        """The elements, by number."""
        return list(self.root.iter())

    @lazy
    def number(self) -> dict[etree._Element, int]:
        """The number of each element."""
        return {element: i for i, element in enumerate(self.elements)}

    @lazy
    def end(self) -> list[int]:
        """For each element, the number after that of its last descendant."""
        ends = list(range(1, len(self.elements) + 1))
        for i in range(len(self.elements) - 1, 0, -1):
            parent = self.parent[i]
            assert parent is not None, "only the root element has no parent"
            ends[parent] = max(ends[parent], ends[i])
        return ends

    @lazy
    def parent(self) -> list[int | None]:
        """For each element, the number of its parent; None for the root element."""
        if self.outline is not None:
            return self.outline.parents
        elements = list(self.top.iter())
        numbers: dict[etree._Element | None, int] = dict(zip(elements, range(len(elements)), strict=True))
        parents = [numbers.get(element.getparent()) for element in elements]
        parents[0] = None  # what is above the root element is not of this document
        return parents

    def attribute(self, element: int, place: int) -> tuple[str, str]:
        """The name and the value of the attribute of an element at a position from 1."""
        name, value = self.elements[element].attrib.items()[place - 1]
        return str(name), str(value)

    def string_value(self, element: int, attribute: int = 0) -> str:
        """The string value of XPath: the value of an attribute, or all text in an element (`attribute` 0)."""
        return self.attribute(element, attribute)[1] if attribute else text_of(self.elements[element])


class StreamDocument(NamedTuple):
    """A parsed document with its id, stream and interval. Times are in UTC microseconds."""

    docid: int
    stream: str
    t0: int
    t1: int
    tree: ParsedDocument


Arriving = tuple[int, str, int, int, ParsedDocument]
"""The fields of a `StreamDocument`, as any tuple."""


def text_of(element: etree._Element) -> str:
    """The string value of an element."""
    if len(element) == 0:
        return element.text or ""
    return etree.tostring(element, method="text", encoding="unicode", with_tail=False)


def parse_document(xml: bytes, *, trusted: bool = False, max_nodes: int | None = None) -> ParsedDocument:
    """Parses a document of at most `max_nodes` elements and attributes. Raises DocumentError.

    `trusted` is for documents that we wrote. It lifts our limits and those of libxml2 (256 levels of elements, 10 MB in
    a text node).
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
    # lxml ignores an error if a warning follows it.
    if errors := parser.error_log:
        _refuse_overlooked(errors)
    if not prolog.understood and root.getroottree().docinfo.doctype:  # type: ignore[union-attr]  # one exists
        raise DocumentError("the DOCTYPE cannot be read: write it in UTF-8")
    roomy = size > ROOM_FOR_MANY_ATTRIBUTES and not trusted and not (bare and _has_short_tags(xml))
    if roomy and _HAS_MANY(root):
        raise DocumentError(f"an element has more than {MAX_ATTRIBUTES:,} attributes")
    return ParsedDocument(root, size)


def _has_short_tags(xml: bytes) -> bool:
    """Whether every stretch of half the size of too many attributes has the start of a tag. Then no tag is that long.

    For documents in UTF-8 without a DOCTYPE, which could add attributes.
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
