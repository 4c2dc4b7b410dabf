"""Reads an XML file as one document, whose time is in the document or the file's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lxml import etree

from common.errors import InvalidValue
from common.xml_parser import xml_parser
from feeds.bad_input import SourceError
from feeds.dates import parse_date
from feeds.document import Document, Reject
from feeds.files import RAW_KEPT, TooLargeError, modified_us, read_file

TimeReader = Callable[[bytes], int]


def time_reader(expression: str) -> TimeReader:
    """A function from a document's bytes to the time at `expression`. It raises ValueError if there is none.

    The value of the first node found (or of the string computed) is an ISO-8601 or RFC 822 date. Raises SourceError if
    the expression is not XPath.
    """
    try:
        xpath = etree.XPath(expression)
    except etree.XPathError as error:
        raise SourceError(expression, f"not an XPath expression: {error}", "see --time-xpath in --help") from None

    def read(xml: bytes) -> int:
        try:
            found = xpath(etree.fromstring(xml, xml_parser()))
        except etree.XMLSyntaxError as error:
            raise InvalidValue(f"not well-formed: {error.msg}") from None
        except etree.XPathError as error:
            raise InvalidValue(f"{expression} cannot be evaluated: {error}") from None
        text = _first_text(found)
        if text is None:
            raise InvalidValue(f"{expression} finds nothing")
        time = parse_date(text)
        if time is None:
            raise InvalidValue(f"{expression} finds {text!r:.80}, which is no date")
        return time

    return read


def _first_text(found: Any) -> str | None:
    if isinstance(found, list):
        if not found:
            return None
        found = found[0]
    return "".join(map(str, found.itertext())) if isinstance(found, etree._Element) else str(found)


def read_xml_file(path: Path, id: str, stream: str, time: TimeReader | None) -> Document | Reject:
    """The document in the file; a Reject if it is too large or its time cannot be told. Raises OSError if it cannot be
    read."""
    raw = b""
    try:
        raw = read_file(path)
        return Document(id, raw, stream, time(raw) if time else modified_us(path))
    except TooLargeError as error:
        return Reject(id, stream, None, f"{id}: the file is {error}", error.head)
    except ValueError as error:
        return Reject(id, stream, None, f"{id}: {error}", raw[:RAW_KEPT])
