"""Controls Python's cyclic garbage collector, which is slow with many long-lived objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disables collection inside. Scanning all live objects again and again takes half the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def gc_paused_then_frozen() -> Iterator[None]:
    """Disables collection inside, and then moves all objects to the oldest generation, which is rarely scanned. For
    code that creates many long-lived objects."""
    with gc_paused():
        yield
        gc.freeze()
        gc.unfreeze()  # moves them to the oldest generation


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Excludes the objects that exist now from collection inside."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
