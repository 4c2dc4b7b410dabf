"""Python's collector of cyclic garbage, kept from going through a great many objects that are there to stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Nothing is collected inside: going through all that was made so far, again and again, takes half the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def collector_passes_over() -> Iterator[None]:
    """Nothing is collected inside, and what is made inside is taken to be there to stay: it is not gone through at
    once."""
    with collector_paused():
        yield
        gc.freeze()
        gc.unfreeze()  # to the oldest, which are seldom gone through


@contextmanager
def collector_spared() -> Iterator[None]:
    """Nothing that is there now is gone through inside."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
