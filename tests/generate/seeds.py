"""How many random cases: a few for every run, many more for the long one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

AT_LENGTH = 1_000
"""So many examples hypothesis tries in the long run, where a test does not say how many."""


def seeds(few: int, many: int, first: int = 0) -> list[Any]:
    """So many numbers from `first` on as parameters of a test: a few, and those that are marked `soak`."""
    rest = range(first + few, first + many)
    return [*range(first, first + few), *(pytest.param(seed, marks=pytest.mark.soak) for seed in rest)]


def examples(few: int, many: int, **more: Any) -> settings:
    """How many examples hypothesis tries, for a test of which each takes long, or nearly no time; and more settings."""
    return settings(max_examples=many if settings().max_examples >= AT_LENGTH else few, **more)
