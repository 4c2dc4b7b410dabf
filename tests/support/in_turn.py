"""Parameters of tests in pairs: one by one in turn by default, each with each in the long run."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def in_turn(many: Iterable[Any], few: Sequence[Any]) -> list[ParameterSet]:
    """All pairs of one of `many` and one of `few`. By default each of `many` is tried with one of `few`, and these take
    turns; the other pairs are marked `soak`."""
    return [
        pytest.param(one, other, marks=() if number % len(few) == place else pytest.mark.soak)
        for number, one in enumerate(many)
        for place, other in enumerate(few)
    ]
