"""Numbers the string values of postings in memory, and computes the digests that stand for values on disk."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from join_stage.arrays import Ints

Digests = NDArray[np.uint64]
"""Digests of values, of shape (values, 2): the high half and the low half of each. Equal digests are taken for equal
values: with 128 bits, nobody knows two texts for which that is wrong."""

_BYTES = 16


class Values:
    """Numbers string values, from 0."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._digests: Digests = np.zeros((0, 2), np.uint64)
        self.version = 0
        """Changes when values are renumbered."""

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, texts: Iterable[str]) -> Ints:
        numbers = self._numbers
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)

    def digests(self, numbers: Ints) -> Digests:
        """The digests of values, by number."""
        known = len(self._digests)
        if known < len(self._numbers):
            self._digests = np.concatenate([self._digests, digests(islice(self._numbers, known, None))])
        return self._digests[numbers]

    def keep(self, used: Ints) -> Ints:
        """Drops all values but those with the numbers in `used`; returns the new number of each old one. The order of
        values stays."""
        stays = np.zeros(len(self._numbers), np.bool_)
        stays[used] = True
        self.version += 1
        texts = [text for text, number in self._numbers.items() if stays[number]]
        self._numbers = {text: number for number, text in enumerate(texts)}
        self._digests = self._digests[stays[: len(self._digests)]]
        new: Ints = np.cumsum(stays) - 1
        return new


def digests(texts: Iterable[str]) -> Digests:
    """The digests of texts. They are the same in every process and on every machine."""
    joined = b"".join([blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_BYTES).digest() for text in texts])
    return np.frombuffer(joined, "<u8").reshape(-1, 2)
