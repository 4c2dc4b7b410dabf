"""Batches of what comes one by one, bounded by a number and by a size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def in_batches(
    items: Iterable[_T], most: int, most_bytes: int, size_of: Callable[[_T], int | None]
) -> Iterator[list[_T]]:
    """Lists of the items in their order. A list ends with the item that brings it to `most` items or to `most_bytes`.
    An item whose size is None does not count. An item is only taken once the lists before it are given.

    >>> list(in_batches(["a", "bcd", "e", "f", "g"], 2, 3, len))
    [['a', 'bcd'], ['e', 'f'], ['g']]
    """
    batch: list[_T] = []
    count = size = 0
    for item in items:
        batch.append(item)
        if (added := size_of(item)) is not None:
            count += 1
            size += added
        if count >= most or size >= most_bytes:
            yield batch
            batch, count, size = [], 0, 0
    if batch:
        yield batch
