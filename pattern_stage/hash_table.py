"""Numbers found by hashes of what they stand for: a table in one array, with no object for each."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import numpy as np

from pattern_stage.columns import NULL_TEXT, Ints, Mask
from pattern_stage.flow import MIX, NULL_NUMBER, mixed

_EMPTY, _GONE = -1, -2
_HALF = 32
_NUMBER = (1 << _HALF) - 1

_SEED = secrets.randbits(63)
"""Differs in each process, so that nobody can choose values with equal hashes."""

Equal = Callable[[Ints, Ints], Mask]
"""Whether what is looked for, at these places, is what these numbers stand for."""


class HashTable:
    """Numbers from 0 on, by hashes. What has an equal hash is told apart by whoever asks.

    It is open addressing: an entry has a part of the hash and the number, and stands at the place that the hash names,
    or behind.
    """

    def __init__(self) -> None:
        self._table: Ints = np.full(16, _EMPTY, np.int64)
        self._count = self._taken = 0

    def __len__(self) -> int:
        """How many numbers there are."""
        return self._count

    def find(self, hashes: Ints, equal: Equal) -> Ints:
        """Returns the number of each of what is looked for, -1 for one that there is not."""
        found: Ints = np.full(len(hashes), -1, np.int64)
        if not self._count:
            return found
        marks, places = marks_of(hashes), np.arange(len(hashes))
        last = len(self._table) - 1
        at = marks & last
        while len(places):
            entries = self._table[at]
            is_open = entries != _EMPTY
            alike = np.flatnonzero(entries >> _HALF == marks[places])
            if len(alike):
                numbers = entries[alike] & _NUMBER
                held = equal(places[alike], numbers)
                alike = alike[held]
                found[places[alike]] = numbers[held]
                is_open[alike] = False
            places, at = places[is_open], (at[is_open] + 1) & last
        return found

    def add(self, hashes: Ints, numbers: Ints) -> None:
        """Adds numbers that are not there."""
        self._count += len(numbers)
        self._taken += len(numbers)
        if 3 * self._taken > 2 * len(self._table):
            entries = self._table[self._table >= 0]
            self._table = np.full(1 << (2 * self._count).bit_length(), _EMPTY, np.int64)
            self._taken = self._count
            self._put(entries)
        self._put(marks_of(hashes) << _HALF | numbers)

    def remove(self, hashes: Ints, numbers: Ints) -> None:
        """Removes numbers that are there."""
        entries, last = marks_of(hashes) << _HALF | numbers, len(self._table) - 1
        at = entries >> _HALF & last
        while len(at):
            there = self._table[at] == entries
            self._table[at[there]] = _GONE
            at, entries = (at[~there] + 1) & last, entries[~there]
        self._count -= len(numbers)

    def _put(self, entries: Ints) -> None:
        last = len(self._table) - 1
        at = entries >> _HALF & last
        while len(at):
            free = self._table[at] == _EMPTY
            # Where several want one place, one of them gets it.
            self._table[at[free]] = entries[free]
            lacking = self._table[at] != entries
            at, entries = (at[lacking] + 1) & last, entries[lacking]


def marks_of(hashes: Ints) -> Ints:
    """Returns 31 bits of each hash, all of which depend on all of its bits. Round numbers differ in the upper ones
    alone, and the lower ones are a place."""
    bits = hashes.view(np.uint64)
    return (((bits ^ (bits >> np.uint64(_HALF))) * MIX) >> np.uint64(_HALF + 1)).view(np.int64)


def hashes_of(keys: Sequence[Ints], parameters: Sequence[Ints] = ()) -> Ints:
    """Returns a hash of each row of columns, which is another one in each process.

    NULL makes no difference to that of parameters, so that a column which comes later, and is NULL for what was there,
    makes none.
    """
    hashes = mixed(keys, _SEED)
    for place, key in enumerate(parameters):
        there = np.flatnonzero((key != NULL_TEXT) & (key != NULL_NUMBER))
        if len(there) == len(key):
            hashes = mixed([hashes, key], place)
        else:
            hashes[there] = mixed([hashes[there], key[there]], place)
    return hashes
