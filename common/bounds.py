"""Numbers of documents, and times and lengths of time with their bounds, whose sums and differences have 64 bits."""

from fractions import Fraction
from typing import NewType

from common.errors import InvalidValue

DocId = NewType("DocId", int)
"""The number of a document in a store. A later document has a greater one."""

Micros = NewType("Micros", int)  # a time since 1970, in UTC, or a length of time, in microseconds

NO_DOCUMENT = DocId(-1)  # less than the number of any document

EARLIEST, LATEST = Micros(-(2**61)), Micros(2**61)  # times of documents lie between these

BEGINNING, END = Micros(-(2**62)), Micros(2**62)  # times before and after all others, deadlines included

LONGEST_WINDOW = 2**62
"""A window longer than any interval of documents. A window is at most as long: one without end, where it must have a
length, and a longer one in a text."""

INFINITE = 2**63 - 1
"""A number above all others. As a window, it is none."""


def deadline(time: int, window: int) -> int:
    """Returns the end of a window, at most the last time before END."""
    return min(time + window, END - 1)


UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
"""Microseconds per unit of a window."""

_OTHER_UNITS = {
    "min": "m mins minute minutes",
    "s": "sec secs second seconds",
    "h": "hr hrs hour hours",
    "d": "day days",
    "w": "wk wks week weeks",
    "ms": "msec msecs millis millisecond milliseconds",
    "us": "µs μs usec usecs micros microsecond microseconds",
    "d, such as 30 d": "mo mon month months",
    "d, such as 365 d": "y yr yrs year years",
}
MEANT_UNITS = {other: unit for unit, others in _OTHER_UNITS.items() for other in others.split()}


def window_text(us: int | None) -> str:
    """A window in its largest whole unit; INF for None."""
    if us is None:
        return "INF"
    unit = next((unit for unit, length in reversed(UNITS.items()) if us and us % length == 0), "s")
    return f"{us // UNITS[unit]} {unit}"


def duration_us(text: str) -> int | None:
    """The microseconds of a duration, written like a query's window; None for INF. Raises InvalidValue."""
    text = text.strip()
    if text.upper() in ("INF", "INFINITY"):
        return None
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip()
    unit = text[len(number) :].strip() or "s"
    digits = number.replace(".", "", 1)
    if unit not in UNITS or not (digits.isascii() and digits.isdecimal()) or len(number) > 30:
        known = ", ".join(UNITS)
        meant = MEANT_UNITS.get(unit.lower())
        hint = f"; write {meant} for {unit}" if meant and digits.isdecimal() else ""
        raise InvalidValue(f"{text!r} is not a duration{hint}; write a number and a unit ({known}), like 1h, or INF")
    microseconds = int(Fraction(number.rstrip(".")) * UNITS[unit])
    if microseconds > INFINITE:
        raise InvalidValue(f"{text!r} is too long; write INF for no limit")
    return min(microseconds, LONGEST_WINDOW)
