"""Tells whoever waits how far a long loop has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

EVERY = 256
"""After how many items the observer is told."""

T = TypeVar("T")

Observer = Callable[[str, int, int], None]
"""Is told what is done, how many items of it are done, and how many there are."""

_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Tells `observer` of the loops inside that are `followed`."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def followed(what: str, items: Sequence[T]) -> Iterator[T]:
    """Iterates over items. If somebody observes, tells them how far it is. Costs nothing otherwise."""
    observer = _observer.get()
    return iter(items) if observer is None else _told(what, items, observer)


def _told(what: str, items: Sequence[T], observer: Observer) -> Iterator[T]:
    for number, item in enumerate(items):
        if number % EVERY == 0:
            observer(what, number, len(items))
        yield item
