"""Whether a document may become a tree: what it has too many of is counted without one."""

from __future__ import annotations

import re

from lxml import etree

from common.prolog import Prolog, wide_encoding
from common.xml_parser import xml_parser

NODE_BYTES = 4
"""What an element or an attribute takes at the least: `<a/>`."""

MAX_NAMESPACES = 1_000
"""Most declarations of namespaces that hold at one element: to write it down takes time in the square of them."""

ROOM_FOR_MANY_NAMESPACES = 5 * MAX_NAMESPACES
"""Bytes that a document with so many must have: an entity may spell `xmlns`, but not in fewer."""

_SOME_IN_A_TAG = re.compile(rb"xmlns(?>[^<]*?xmlns){3}")
"""A tag, with the text behind it, of four declarations or more: 256 levels of fewer are fewer than 1,000."""

_EXPANSION, _EXPANSION_FREE = 6, 1_000_000
"""How much longer entities may make a document before libxml2 gives up, and what it grants to any."""


def excess(xml: bytes, prolog: Prolog, max_nodes: int) -> str:
    """Why a document is too large for a tree, "" if it is not; in time linear in its bytes.

    It may have `max_nodes` elements and attributes. What is not well-formed is left to the parser to complain of.
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
    """Whether there may be too much: what is cheap to count, and never less than there is."""
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
    """There is more than is allowed."""


class _Counter:
    """What a parser tells of a document instead of making a tree of it."""

    def __init__(self, max_nodes: int) -> None:
        self._left = self._most = max_nodes
        self._namespaces = 0
        self._declared: list[int] = []

    def start(self, _tag: str, attributes: dict[str, str], namespaces: dict[str | None, str]) -> None:
        """An element begins."""
        self._left -= 1 + len(attributes)
        if self._left < 0:
            raise _EnoughError(f"more than {self._most:,} elements and attributes")
        self._declared.append(len(namespaces))
        self._namespaces += len(namespaces)
        if self._namespaces > MAX_NAMESPACES:
            raise _EnoughError(f"more than {MAX_NAMESPACES:,} declarations of namespaces at one element")

    def end(self, _tag: str) -> None:
        """It ends."""
        self._namespaces -= self._declared.pop()

    def close(self) -> None:
        """The document has ended."""
