"""The lengths of windows in microseconds."""

from __future__ import annotations

from fractions import Fraction

from xscl.algebra.expressions import Span
from xscl.problems import Problem

UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
"""Microseconds in each unit of a window."""

LONGEST_WINDOW = 2**63 - 1
"""Longest window, in microseconds: the greatest integer of the engines."""


def window_us(number: str, unit: str, span: Span) -> int:
    """The length of a window in microseconds. Raises Problem, at `span`, if it is negative or too long."""
    if number.startswith("-"):
        raise Problem("a window cannot be negative", span, "swap the two inputs, or use JOIN, which looks both ways")
    if len(number) < 5 and number.isdecimal():  # as most are
        return int(number) * UNITS[unit]
    # Any window can be written in thirty characters, to the microsecond. More would keep Fraction busy.
    us = int(Fraction(number.rstrip(".")) * UNITS[unit]) if len(number) <= 30 else LONGEST_WINDOW + 1
    if us > LONGEST_WINDOW:
        raise Problem("this window is too long", span, "write INF for a window without end")
    return us
