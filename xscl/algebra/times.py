"""The times that texts say: ISO 8601, RFC 3339 and RFC 822, as microseconds of UTC since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from xscl.algebra.expressions import CompareOp
from xscl.algebra.order import ORDER

MOST_CHARACTERS = 80
"""How long a text can be that says a time, without white space around it."""

_ISO = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]+))?)?[ ]?([Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_RFC_822 = re.compile(
    r"(?:[A-Za-z]{3,9},?[ \t\r\n]+)?"
    r"([0-9]{1,2})(?:-|[ \t\r\n]+)([A-Za-z]{3,9})(?:-|[ \t\r\n]+)([0-9]{2}|[0-9]{4})[ \t\r\n]+"
    r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?(?:[ \t\r\n]*([+-][0-9]{4}|[A-Za-z]{1,5}))?(?:[ \t\r\n]*\([^()]*\))?"
)
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS: tuple[str, ...] = ("january", "february", "march", "april", "may", "june", "july", "august", "september")
_MONTHS += ("october", "november", "december")
_ZONES = {"EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7}
"""The zones of RFC 822 that are not UTC, in hours. RFC 5322 says to take any other for UTC."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def parse_time(text: str) -> int | None:
    """The time of a text; None if it says none, or one outside of the years 1 to 9999 of UTC.

    A date alone is its midnight. Without a zone it is UTC. A leap second is the first second of the next minute. Of a
    fraction the first six digits count.

    >>> parse_time("2026-07-16") == parse_time("Thu, 16 Jul 2026 02:00:00 +0200") == 1784160000000000
    True
    """
    text = text.strip(" \t\r\n")
    return _parsed(text) if len(text) <= MOST_CHARACTERS else None


def time_text(text: str) -> str:
    """The time of a text, written as ISO 8601 in UTC; "" if it says none. Texts of one time have the same one.

    >>> time_text("Thu, 16 Jul 2026 10:30:00 +0200"), time_text("2026-07-16T08:30:00.5")
    ('2026-07-16T08:30:00Z', '2026-07-16T08:30:00.500000Z')
    """
    time = parse_time(text)
    if time is None:
        return ""
    return (_EPOCH + time * _MICROSECOND).isoformat().removesuffix("+00:00") + "Z"


def month_text(text: str) -> str:
    """The year and the month, in UTC, of the time of a text; "" if it says none.

    >>> month_text("Sat, 1 Aug 2026 01:00:00 +0200")
    '2026-07'
    """
    return time_text(text)[:7]


def compare_times(op: CompareOp, left: str, right: str) -> bool:
    """Whether a comparison of the times of two texts holds. With a text that says no time only `!=` does.

    >>> compare_times("<", "2026-07-16", "2026-07-16T00:00+02:00"), compare_times("!=", "soon", "soon")
    (False, True)
    """
    one, other = parse_time(left), parse_time(right)
    if one is None or other is None:
        return op == "!="
    return ORDER[op](one, other)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> int | None:
    found = _ISO.fullmatch(text)
    if found:
        year, month, day, hour, minute, second, fraction, zone = found.groups()
        return _time(year, int(month), day, hour or "0", minute or "0", second or "0", fraction or "", zone or "Z")
    found = _RFC_822.fullmatch(text)
    if found is None:
        return None
    day, name, year, hour, minute, second, zone = found.groups()
    month_number = _number_of(name, _MONTHS)
    day_name = re.match("[A-Za-z]+", text)
    if month_number is None or (day_name and _number_of(day_name[0], _DAYS) is None):
        return None
    if len(year) == 2:
        year = f"{'20' if year < '50' else '19'}{year}"  # as RFC 5322 says
    return _time(year, month_number, day, hour, minute, second or "0", "", zone or "Z")


def _number_of(name: str, names: tuple[str, ...]) -> int | None:
    """The number of a day or month, from 1, that is written out or as its first three letters."""
    short = name.lower()
    return next((number for number, full in enumerate(names, 1) if short in (full, full[:3])), None)


def _time(year: str, month: int, day: str, hour: str, minute: str, second: str, fraction: str, zone: str) -> int | None:
    offset = _offset(zone)
    h, m, s = int(hour), int(minute), int(second)
    microseconds = int(fraction[:6].ljust(6, "0"))
    last_midnight = h == 24 and m == s == microseconds == 0
    if offset is None or m > 59 or s > 60 or (h > 23 and not last_midnight):
        return None
    try:
        date = datetime(int(year), month, int(day), tzinfo=UTC)
        time = date + timedelta(hours=h, minutes=m - offset, seconds=s, microseconds=microseconds)
    except (ValueError, OverflowError):
        return None
    return (time - _EPOCH) // _MICROSECOND


def _offset(zone: str) -> int | None:
    """The minutes by which a zone is ahead of UTC; None if there is no such zone. AM and PM are of a clock of 12 hours,
    which no format of times has."""
    if zone[0] not in "+-":
        if zone.upper() in ("AM", "PM"):
            return None
        return 60 * _ZONES.get(zone.upper(), 0)
    hours, minutes = int(zone[1:3]), int(zone[-2:]) if len(zone) > 3 else 0
    if hours > 23 or minutes > 59:
        return None
    return (60 * hours + minutes) * (-1 if zone[0] == "-" else 1)
