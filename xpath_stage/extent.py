"""Refuses documents that are too large for a tree. It counts their parts without making one."""

from __future__ import annotations

import re

from lxml import etree

from common.prolog import Prolog, wide_encoding
from common.xml_parser import xml_parser

NODE_BYTES = 4
"""The least number of bytes of an element or an attribute: `<a/>`."""

MAX_NAMESPACES = 1_000
"""The largest number of namespace declarations in scope at an element: serializing it takes quadratic time in them."""

ROOM_FOR_MANY_NAMESPACES = 5 * MAX_NAMESPACES
"""The least size in bytes of a document with so many, also if it uses entities."""

_SOME_IN_A_TAG = re.compile(rb"xmlns(?>[^<]*?xmlns){3}")
"""Matches a tag with four declarations or more, and its text. 256 levels with fewer have fewer than 1,000."""

_EXPANSION, _EXPANSION_FREE = 6, 1_000_000
"""The factor by which entities may enlarge a document before libxml2 gives up, and the bytes that it always allows."""


def excess(xml: bytes, prolog: Prolog, max_nodes: int) -> str:
    """Why a document is too large for a tree, or "". Takes linear time.

    It may have `max_nodes` elements and attributes. Documents that are not well-formed are left to the parser.
    """
    if not _may_exceed(xml, prolog, max_nodes):
        return ""
    counter = _Counter(max_nodes)
    try:
        etree.fromstring(xml, xml_parser(target=counter))
    except _EnoughError as enough:
        return str(enough)
    except (etree.XMLSyntaxError, ValueError):
        return ""
    return ""


def _may_exceed(xml: bytes, prolog: Prolog, max_nodes: int) -> bool:
    """Whether a document may be too large, by upper bounds that are cheap to count."""
    size = len(xml)
    roomy = size >= ROOM_FOR_MANY_NAMESPACES
    if prolog.entities:
        return roomy or _EXPANSION * size + _EXPANSION_FREE >= NODE_BYTES * max_nodes
    if size < NODE_BYTES * max_nodes and not roomy:
        return False
    encoding = wide_encoding(xml)
    if size >= NODE_BYTES * max_nodes:
        tags = xml.count(b"<") - (0 if encoding else xml.count(b"</"))
        if tags + xml.count(b"=") > max_nodes:
            return True
    if not roomy or xml.count("xmlns".encode(encoding or "ascii")) <= MAX_NAMESPACES:
        return False
    return encoding is not None or _SOME_IN_A_TAG.search(xml) is not None


class _EnoughError(Exception):
    """A limit is exceeded."""


class _Counter:
    """A parser target that counts instead of making a tree."""

    def __init__(self, max_nodes: int) -> None:
        self._left = self._most = max_nodes
        self._namespaces = 0
        self._declared: list[int] = []

    def start(self, _tag: str, attributes: dict[str, str], namespaces: dict[str | None, str]) -> None:
        """Counts the start of an element. Raises _EnoughError past a limit."""
        self._left -= 1 + len(attributes)
        if self._left < 0:
            raise _EnoughError(f"more than {self._most:,} elements and attributes")
        self._declared.append(len(namespaces))
        self._namespaces += len(namespaces)
        if self._namespaces > MAX_NAMESPACES:
            raise _EnoughError(f"more than {MAX_NAMESPACES:,} declarations of namespaces at one element")

    def end(self, _tag: str) -> None:
        """Counts the end of an element."""
        self._namespaces -= self._declared.pop()

    def close(self) -> None:
        """Does nothing at the end of the document."""
