"""Items that each require a set of filters, as bit masks, indexed so that the satisfied ones are found quickly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class MaskIndex(Generic[T]):
    """Items keyed under one of the bits they require: look-up touches only items under satisfied bits."""

    def __init__(self) -> None:
        self.need = 0
        """All bits that some item requires (or required: it never shrinks)."""
        self._by_bit: dict[int, dict[T, int]] = {}
        self._bit_of: dict[T, int] = {}

    def __contains__(self, item: T) -> bool:
        return item in self._bit_of

    def __bool__(self) -> bool:
        return bool(self._bit_of)

    def add(self, item: T, required: int) -> None:
        self.need |= required
        # The least crowded bit: a literal that few patterns ask for, rather than a branch that most do.
        bit = min(bits(required), key=lambda b: len(self._by_bit.get(b, ())), default=-1)
        self._by_bit.setdefault(bit, {})[item] = required
        self._bit_of[item] = bit

    def remove(self, item: T) -> None:
        bit = self._bit_of.pop(item)
        del self._by_bit[bit][item]
        if not self._by_bit[bit]:
            del self._by_bit[bit]

    def satisfied(self, mask: int) -> Iterator[T]:
        """The items whose required bits are all in `mask`."""
        return (item for item, _ in self.satisfied_with(mask))

    def satisfied_with(self, mask: int) -> Iterator[tuple[T, int]]:
        """The same with what they require."""
        yield from self._by_bit.get(-1, {}).items()
        for bit in bits(mask & self.need):
            for item, required in self._by_bit.get(bit, {}).items():
                if required & ~mask == 0:
                    yield item, required
