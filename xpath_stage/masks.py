"""An index of items by the filters that they require, and a linear-time check of a document's size.

The filters that hold at a node are a bit mask; an item requires a few of very many bits. `excess` refuses documents
that are too large for a tree, counting their parts without building one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from lxml import etree

from common.xml import Prolog, wide_encoding, xml_parser

T = TypeVar("T")

Bits = tuple[int, ...]
"""Ascending bit numbers."""


def bits(mask: int) -> Iterator[int]:
    """The numbers of the set bits, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def bit_mask(numbers: Iterable[int]) -> int:
    """The mask with these bits, in time linear in its length and their number."""
    known = list(numbers)
    octets = bytearray(max(known, default=-1) // 8 + 1)
    for number in known:
        octets[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(octets, "little")


class MaskIndex(Generic[T]):
    """Items, indexed by one of their required bits: a look-up visits only items under set bits. Built at the first
    look-up, because most items belong to documents that never arrive."""

    __slots__ = ("_bit_of", "_by_bit", "_items", "_need")
    _bit_of: dict[T, int]

    def __init__(self) -> None:
        self._items: dict[T, Bits] = {}
        self._by_bit: dict[int, dict[T, Bits]] | None = None
        self._need = 0

    @property
    def need(self) -> int:
        """The mask of all bits that some item requires or required: it does not shrink."""
        self._index()
        return self._need

    def __contains__(self, item: T) -> bool:
        return item in self._items

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, item: T, required: Bits) -> None:
        self._items[item] = required
        if self._by_bit is not None:
            self._need |= bit_mask(required)
            self._sort_in(item, required, self._by_bit)

    def remove(self, item: T) -> None:
        del self._items[item]
        if self._by_bit is not None:
            bit = self._bit_of.pop(item)
            del self._by_bit[bit][item]
            if not self._by_bit[bit]:
                del self._by_bit[bit]

    def satisfied(self, mask: int) -> Iterator[T]:
        return (item for item, _ in self.satisfied_with(mask))

    def satisfied_with(self, mask: int) -> Iterator[tuple[T, Bits]]:
        """`satisfied`, with the bits that each item requires."""
        by_bit = self._index()
        yield from by_bit.get(-1, {}).items()
        held = frozenset(bits(mask & self._need))
        for bit in sorted(held):
            for item, required in by_bit.get(bit, {}).items():
                if held.issuperset(required):
                    yield item, required

    def _index(self) -> dict[int, dict[T, Bits]]:
        if self._by_bit is None:
            self._by_bit, self._bit_of = {}, {}
            self._need = bit_mask(bit for required in self._items.values() for bit in required)
            for item, required in self._items.items():
                self._sort_in(item, required, self._by_bit)
        return self._by_bit

    def _sort_in(self, item: T, required: Bits, by_bit: dict[int, dict[T, Bits]]) -> None:
        # The bit with the fewest items: rather a literal of few patterns than a branch of most.
        bit = min(required, key=lambda b: len(by_bit.get(b, ())), default=-1)
        by_bit.setdefault(bit, {})[item] = required
        self._bit_of[item] = bit


NODE_BYTES = 4
"""Minimum size of an element or an attribute: `<a/>`."""

MAX_NAMESPACES = 1_000
"""Maximum number of namespace declarations in scope at an element: serialising it takes quadratic time in them."""

ROOM_FOR_MANY_NAMESPACES = 5 * MAX_NAMESPACES
"""Minimum size in bytes of a document with more, also if it uses entities."""

_SOME_IN_A_TAG = re.compile(rb"xmlns(?>[^<]*?xmlns){3}")
"""Matches a tag with four declarations or more, and its text. 256 levels with fewer have fewer than 1,000."""

_EXPANSION, _EXPANSION_FREE = 6, 1_000_000
"""The factor by which entities may enlarge a document before libxml2 gives up, and the bytes that it always allows."""


def excess(xml: bytes, prolog: Prolog, max_nodes: int) -> str:
    """Why a document is too large for a tree, or "", in linear time. It may have `max_nodes` elements and attributes.
    Ill-formed documents are left to the parser."""
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


class _EnoughError(Exception): ...


class _Counter:
    def __init__(self, max_nodes: int) -> None:
        self._left = self._most = max_nodes
        self._namespaces = 0
        self._declared: list[int] = []

    def start(self, _tag: str, attributes: dict[str, str], namespaces: dict[str | None, str]) -> None:
        self._left -= 1 + len(attributes)
        if self._left < 0:
            raise _EnoughError(f"more than {self._most:,} elements and attributes")
        self._declared.append(len(namespaces))
        self._namespaces += len(namespaces)
        if self._namespaces > MAX_NAMESPACES:
            raise _EnoughError(f"more than {MAX_NAMESPACES:,} declarations of namespaces at one element")

    def end(self, _tag: str) -> None:
        self._namespaces -= self._declared.pop()

    def close(self) -> None: ...
