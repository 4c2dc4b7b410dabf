"""Parses many documents. Small ones are parsed several at a time, as children of one root element.

Up to a third of the time for a feed item goes by before the parser reads its first byte. The results are those of
`parse_document` for each document: if the tree does not prove that, each document is parsed alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter
from secrets import token_hex
from typing import NamedTuple

from lxml import etree

from xpath_stage.extent import NODE_BYTES
from xpath_stage.parse import PARSERS, ROOM_FOR_MANY_ATTRIBUTES, DocumentError, ParsedDocument, parse_document

MOST, MOST_BYTES = 32, 1 << 14
"""The largest number of documents that are parsed together, and of their bytes. More exceed the caches of the
processor: 256 documents take as long on a quiet machine, and up to 20 % longer on a busy one."""

SMALL = ROOM_FOR_MANY_ATTRIBUTES
"""The size in bytes up to which documents are parsed together. The larger one is, the less is gained."""

_BREAK = "break" + token_hex(8)
"""The name of an element that no document has, because it is random. There is one for the process, because libxml2
never frees a name."""

_OPEN, _BETWEEN, _CLOSE = f"<{_BREAK}>".encode(), f"<{_BREAK}/>".encode(), f"</{_BREAK}>".encode()
_DECLARATION = re.compile(
    rb"""<\?xml\s+version\s*=\s*(?:"1\.0"|'1\.0')(?:\s+encoding\s*=\s*(?:"utf-8"|'utf-8'))?\s*\?>[ \t\r\n]*""", re.I
)
_LESS_THAN, _A, _Z, _GREATER_THAN = b"<Az>"
_ENDS = itemgetter(0, 1, -2, -1)
_NO_TAG_ENDS = b"-?]"
"""The characters before the last `>` of a comment, a processing instruction or CDATA."""

_AS_EXPECTED = etree.XPath(f"count({_BREAK}) = $breaks and count(*) = 2 * $breaks + 1 and not(text())")


def parse_documents(
    xmls: Iterable[bytes], *, trusted: bool = False, max_nodes: int | None = None
) -> Iterator[ParsedDocument | DocumentError]:
    """What `parse_document` returns or raises for each document, in the same order."""
    bounds = _Bounds(trusted, max_nodes, SMALL if max_nodes is None else min(SMALL, NODE_BYTES * max_nodes))
    waiting = iter(xmls)
    batches = iter(lambda: list(islice(waiting, MOST)), [])
    return chain.from_iterable(_parsed(batch, bounds) for batch in batches)


class _Bounds(NamedTuple):
    """The options for all documents. Those of up to `small` bytes are parsed together."""

    trusted: bool
    max_nodes: int | None
    small: int


def _parsed(xmls: list[bytes], bounds: _Bounds) -> Iterable[ParsedDocument | DocumentError]:
    sizes = list(map(len, xmls))
    small = xmls if max(sizes) <= bounds.small else [xml for xml in xmls if len(xml) <= bounds.small]
    if sum(sizes if small is xmls else map(len, small)) > MOST_BYTES:
        half = len(xmls) // 2
        return chain.from_iterable(_parsed(part, bounds) for part in (xmls[:half], xmls[half:]))
    together = _together(small, bounds.trusted) if len(small) > 1 else None
    if together is None:
        return (_alone(xml, bounds) for xml in xmls)
    if small is xmls:
        return together
    some = iter(together)
    return (next(some) if len(xml) <= bounds.small else _alone(xml, bounds) for xml in xmls)


def _alone(xml: bytes, bounds: _Bounds) -> ParsedDocument | DocumentError:
    try:
        return parse_document(xml, trusted=bounds.trusted, max_nodes=bounds.max_nodes)
    except DocumentError as error:
        return error


def _together(xmls: list[bytes], trusted: bool) -> list[ParsedDocument] | None:
    """The documents; None if it is not certain that each of them is exactly one element.

    If all breaks are children of the root element, the parser was at that level wherever a document began or ended.
    Then a document begins with an element. Its last `>` ends an element, or is text at that level, of which there is
    none. There are as many other children as documents, so each document has one, which begins and ends with it.
    """
    sizes = map(len, xmls)
    if not _all_elements(xmls):
        xmls = [_trimmed(xml) for xml in xmls]
        if not _all_elements(xmls):
            return None
    parser = PARSERS[trusted]
    try:
        # In one pass, because the joined bytes do not fit into the caches of the processor twice.
        root = etree.fromstring(_BETWEEN.join((_OPEN + xmls[0], *xmls[1:-1], xmls[-1] + _CLOSE)), parser)
    except (etree.XMLSyntaxError, ValueError):
        return None
    # Documents with warnings, or errors that lxml ignores, are parsed one by one.
    if parser.error_log or not _AS_EXPECTED(root, breaks=len(xmls) - 1):
        return None
    # Serializing all of them together takes half the time.
    text = etree.tostring(root, encoding="unicode")
    texts = text[len(_OPEN) : -len(_CLOSE)].split(_BETWEEN.decode())
    return list(map(ParsedDocument, root[::2], sizes, texts))  # type: ignore[index]  # the stubs know no slices


def _all_elements(xmls: Sequence[bytes]) -> bool:
    """Whether each document begins with a start tag, and none ends with a comment, a processing instruction or
    CDATA."""
    if min(map(len, xmls)) < len(b"<a/>"):
        return False
    return all(
        first == _LESS_THAN and (_A <= second <= _Z) and last == _GREATER_THAN and last_but_one not in _NO_TAG_ENDS
        for first, second, last_but_one, last in set(map(_ENDS, xmls))
    )


def _trimmed(xml: bytes) -> bytes:
    """A document without its XML declaration and surrounding white space."""
    declaration = _DECLARATION.match(xml)
    return (xml[declaration.end() :] if declaration else xml).strip(b" \t\r\n")
