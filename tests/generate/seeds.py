"""How many random cases: a few for every run, many more for the long one."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

AT_LENGTH = 1_000
"""The number of examples of hypothesis in the long run, unless a test names one."""


def seeds(few: int, many: int, first: int = 0) -> range:
    """Numbers from `first` on as parameters of a test: a few, or in the long run many."""
    return range(first, first + (many if at_length() else few))


def examples(few: int, many: int, **more: Any) -> settings:
    """How many examples hypothesis tries, for a test of which each takes long, or nearly no time; and more settings."""
    return settings(max_examples=many if at_length() else few, **more)


def at_length() -> bool:
    """Whether this is the long run."""
    return settings().max_examples >= AT_LENGTH
