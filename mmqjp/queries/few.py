"""An ordered set that mostly has one item."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Few(Generic[T]):
    """Items in the order in which they were added, each once. One alone takes no container; none is a dict."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: T | dict[T, None] | None = None

    def __len__(self) -> int:
        """Returns the number of items."""
        items = self._items
        return len(items) if isinstance(items, dict) else int(items is not None)

    def __iter__(self) -> Iterator[T]:
        """Iterates over the items."""
        items = self._items
        if items is None:
            return iter(())
        return iter(items) if isinstance(items, dict) else iter((items,))

    def __contains__(self, item: T) -> bool:
        items = self._items
        return item in items if isinstance(items, dict) else items is not None and items == item

    def add(self, item: T) -> None:
        """Adds an item."""
        items = self._items
        if items is None:
            self._items = item
        elif isinstance(items, dict):
            items[item] = None
        elif items != item:
            self._items = {items: None, item: None}

    def discard(self, item: T) -> None:
        """Removes an item, if it is there."""
        items = self._items
        if isinstance(items, dict):
            items.pop(item, None)
        elif items == item:
            self._items = None
