"""Tells whoever waits how far a long loop has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

EVERY = 256
"""After how many items the watcher is told."""

T = TypeVar("T")

Watcher = Callable[[str, int, int], None]
"""Is told what is done, how many items of it are done, and how many there are."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Tells `watcher` of the loops inside that are `followed`."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def followed(what: str, items: Sequence[T]) -> Iterator[T]:
    """Iterates over items. If somebody watches, tells them how far it is. Costs nothing otherwise."""
    watcher = _watcher.get()
    return iter(items) if watcher is None else _told(what, items, watcher)


def _told(what: str, items: Sequence[T], watcher: Watcher) -> Iterator[T]:
    for number, item in enumerate(items):
        if number % EVERY == 0:
            watcher(what, number, len(items))
        yield item
