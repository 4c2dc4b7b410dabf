"""Seeds of random cases: a few for every run, many more for the long one."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(few: int, many: int) -> list[Any]:
    """The numbers below `many` as parameters of a test; those from `few` on are marked `soak`."""
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(few, many))]
