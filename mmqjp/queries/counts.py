"""Counts of what is in use."""

from __future__ import annotations

from collections import Counter
from typing import Any


def decrease(counter: Counter[Any], key: Any) -> None:
    """Decreases a count, and forgets the key when it is 0."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
