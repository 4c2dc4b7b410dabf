"""The streams of the public test suite of SASE 1.0, made anew: of java.util.Random, whose algorithm is published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_MASK = (1 << 48) - 1


class Random:
    """Java's generator of pseudorandom numbers."""

    def __init__(self, seed: int) -> None:
        self._state = (seed ^ 0x5DEECE66D) & _MASK

    def below(self, bound: int) -> int:
        """The next number from 0 on, less than a bound."""
        if not bound & (bound - 1):
            return (bound * self._bits()) >> 31
        while True:
            bits = self._bits()
            if bits - bits % bound + bound - 1 < 1 << 31:
                return bits % bound

    def _bits(self) -> int:
        self._state = (self._state * 0x5DEECE66D + 0xB) & _MASK
        return self._state >> 17


class Stock(NamedTuple):
    """An event. Its time is its number, in seconds."""

    number: int
    symbol: int
    price: int
    volume: int


def independent(size: int, prices: int, volumes: int, seed: int) -> Iterator[Stock]:
    """Events of 20 symbols, without any connection."""
    random = Random(seed)
    random.below(100)
    for number in range(size):
        yield Stock(number, random.below(20) + 1, random.below(prices) + 1, random.below(volumes) + 1)


def rising(size: int, seed: int, percent: int) -> Iterator[Stock]:
    """Events of 2 symbols, whose prices rise with a chance, and fall with half of what is left."""
    random = Random(seed)
    prices = [random.below(1000) for _ in range(2)]
    for number in range(size):
        symbol, chance = random.below(2) + 1, random.below(100) + 1
        if chance <= percent:
            prices[symbol - 1] += random.below(3) + 1
        elif chance > (100 + percent) // 2:
            prices[symbol - 1] -= random.below(3) + 1
        yield Stock(number, symbol, prices[symbol - 1], random.below(1000) + 1)
