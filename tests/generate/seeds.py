"""How many random cases: a few for every run, many more for the long one, and those others each day."""

from __future__ import annotations

import os
from datetime import date
from typing import Any

from hypothesis import settings

AT_LENGTH = 200
"""The number of examples of hypothesis in the long run, unless a test names one."""

DAY = (date.fromisoformat(os.environ.get("MMQJP_TESTS_DAY", "2026-01-01")) - date(2026, 1, 1)).days
"""The day whose seeds the long run takes. `make soak` sets it to today; set it to repeat the run of another day."""

A_DAY = 10_000
"""The seeds of one day. What `first` says of a seed, its remainder says."""

SMALL = 100
"""With fewer seeds in the long run a test has the same ones each day: they number cases."""

DAYS = 20
"""In this many days the long run tries the number of cases that tests name. All on one day would take a day."""


def seeds(few: int, many: int, first: int = 0) -> range:
    """Numbers from `first` on as parameters of a test: a few, or in the long run many, which change by the day."""
    if not at_length():
        return range(first, first + few)
    begin = first + (DAY * A_DAY if many >= SMALL else 0)
    return range(begin, begin + _today(few, many))


def examples(few: int, many: int, **more: Any) -> settings:
    """How many examples hypothesis tries, for a test of which each takes long, or nearly no time; and more settings."""
    return settings(max_examples=_today(few, many) if at_length() else few, **more)


def _today(few: int, many: int) -> int:
    return many if many < SMALL else max(few, many // DAYS)


def expect_some(found: object) -> None:
    """What a test is about is there. A seed of the day, which nobody chose, need not have any."""
    assert found or at_length()


def at_length() -> bool:
    """Whether this is the long run."""
    return settings().max_examples >= AT_LENGTH
