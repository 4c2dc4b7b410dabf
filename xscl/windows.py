"""The lengths of windows, and of other durations that are written like them, in microseconds."""

from __future__ import annotations

from fractions import Fraction

from common.errors import InvalidValue
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


def window_text(us: int | None) -> str:
    """A window as text, in its largest unit that is whole; INF for None."""
    if us is None:
        return "INF"
    unit = next((unit for unit, length in reversed(UNITS.items()) if us and us % length == 0), "s")
    return f"{us // UNITS[unit]} {unit}"


def duration_us(text: str) -> int | None:
    """The microseconds of a duration, written like the window of a query; None for INF. Raises InvalidValue."""
    text = text.strip()
    if text.upper() in ("INF", "INFINITY"):
        return None
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip()
    unit = text[len(number) :].strip() or "s"
    digits = number.replace(".", "", 1)
    if unit not in UNITS or not (digits.isascii() and digits.isdecimal()) or len(number) > 30:
        known = ", ".join(UNITS)
        raise InvalidValue(f"{text!r} is not a duration; write a number and a unit ({known}), like 1h, or INF")
    microseconds = int(Fraction(number.rstrip(".")) * UNITS[unit])
    if microseconds > LONGEST_WINDOW:
        raise InvalidValue(f"{text!r} is too long; write INF for no limit")
    return microseconds
