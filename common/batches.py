"""Batches of what comes one by one, bounded by a number and by a size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def in_batches(
    items: Iterable[_T], most: int, most_bytes: int, size_of: Callable[[_T], int | None]
) -> Iterator[list[_T]]:
    """Lists of the items in their order. A list ends with the item that brings it to `most` items or to `most_bytes`,
    by the sizes that `size_of` gives; an item of which that is None does not count. Items are taken when they are
    needed: none beyond the end of the list that is given.

    >>> list(in_batches(["a", "bcd", "e", "f", "g"], 2, 3, len))
    [['a', 'bcd'], ['e', 'f'], ['g']]
    """
    batch: list[_T] = []
    count = size = 0
    for item in items:
        batch.append(item)
        if (bytes_ := size_of(item)) is not None:
            count += 1
            size += bytes_
        if count >= most or size >= most_bytes:
            yield batch
            batch, count, size = [], 0, 0
    if batch:
        yield batch
