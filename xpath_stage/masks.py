"""An index of items by the filters that they require, to find those that are satisfied.

The filters that hold at a node are a mask with a bit for each. The filters that an item requires are bit numbers: a few
of very many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

Bits = tuple[int, ...]
"""Bit numbers, ascending."""


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(numbers: Iterable[int]) -> int:
    """The mask with these bits. Takes time in its length and their number."""
    known = list(numbers)
    octets = bytearray(max(known, default=-1) // 8 + 1)
    for number in known:
        octets[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(octets, "little")


class MaskIndex(Generic[T]):
    """Items, indexed by one of the bits that they require: a look-up visits only items under bits that are set.

    The index is made at the first look-up, because most items belong to documents that never arrive.
    """

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
            self._need |= mask_of(required)
            self._sort_in(item, required, self._by_bit)

    def remove(self, item: T) -> None:
        del self._items[item]
        if self._by_bit is not None:
            bit = self._bit_of.pop(item)
            del self._by_bit[bit][item]
            if not self._by_bit[bit]:
                del self._by_bit[bit]

    def satisfied(self, mask: int) -> Iterator[T]:
        """The items whose required bits are all in `mask`."""
        return (item for item, _ in self.satisfied_with(mask))

    def satisfied_with(self, mask: int) -> Iterator[tuple[T, Bits]]:
        """The same with what they require."""
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
            self._need = mask_of(bit for required in self._items.values() for bit in required)
            for item, required in self._items.items():
                self._sort_in(item, required, self._by_bit)
        return self._by_bit

    def _sort_in(self, item: T, required: Bits, by_bit: dict[int, dict[T, Bits]]) -> None:
        # The bit with the fewest items: rather a literal of few patterns than a branch of most.
        bit = min(required, key=lambda b: len(by_bit.get(b, ())), default=-1)
        by_bit.setdefault(bit, {})[item] = required
        self._bit_of[item] = bit
