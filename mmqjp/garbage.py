"""Controls Python's cyclic garbage collector, which is slow with many long-lived objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

LEAST_GROWTH = 500_000
"""At least so many objects must have come, beyond those that have gone, before all are scanned for garbage."""


class _Heap:
    """What is known of the objects that the collector tracks."""

    def __init__(self) -> None:
        self.frozen = False
        """Whether `gc_frozen` keeps them from being scanned."""
        self._grown = 0
        self._bearable = LEAST_GROWTH
        self._scanned = 0
        """So many there were after the last scan, and those that came to last."""

    def put_away(self, *, lasting: bool) -> None:
        """Moves young objects to those that are rarely scanned, without a look at them. Scans all of them if those that
        are not known to be `lasting` have become more by a quarter: some may be garbage."""
        young = gc.get_count()[0]
        gc.freeze()
        if lasting:
            self._scanned += young
            young = 0
        self._grown += young
        if self._grown > self._bearable:  # or so it seems: of old ones that have gone, few were subtracted
            self._grown = gc.get_freeze_count() - self._scanned
        if self._grown > self._bearable:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._grown, self._scanned = 0, gc.get_freeze_count()
            self._bearable = max(LEAST_GROWTH, self._scanned // 4)
        if not self.frozen:
            gc.unfreeze()  # to the oldest generation


_HEAP = _Heap()


@contextmanager
def gc_paused(*, lasting: bool = False) -> Iterator[None]:
    """Disables collection inside. What is made inside and remains is not scanned at the end: that takes a tenth of the
    time of a batch. `lasting` is for code that makes very many objects to last, such as queries."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        _HEAP.put_away(lasting=lasting)
        gc.enable()


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Excludes the objects that exist now from collection inside."""
    before, _HEAP.frozen = _HEAP.frozen, True
    gc.freeze()
    try:
        yield
    finally:
        _HEAP.frozen = before
        if not before:
            gc.unfreeze()
