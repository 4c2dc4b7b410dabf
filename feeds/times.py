"""Decides a document's time: the time given with it, the one in its XML, or when an entry came or changed."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from lxml import etree

from common.errors import InvalidValue
from common.xml_parser import xml_parser
from feeds.bad_input import SourceError
from feeds.dates import from_datetime, iso_utc, parse_date, parse_iso

TimePoint = str | int | datetime
TimeValue = TimePoint | tuple[TimePoint, TimePoint] | list[TimePoint]
Now = Callable[[], int]
TimeReader = Callable[[bytes], int]

INT64 = range(-(2**63), 2**63)
"""The times that can be stored."""


def now_us() -> int:
    """The system's clock in microseconds of UTC."""
    return clock.time_ns() // 1000


def parse_time(value: TimeValue) -> tuple[int, int]:
    """The interval `(t0, t1)` in microseconds of UTC that `value` stands for. Raises InvalidValue if it is no time.

    A point (ISO-8601 text, integer microseconds, a datetime; no zone means UTC) is an interval that begins and ends
    there. A pair of points is an interval in that order.
    """
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise InvalidValue(f"a time interval has two ends, not {len(value)}")
        t0, t1 = _point(value[0]), _point(value[1])
        if t0 > t1:
            raise InvalidValue(f"a time interval must not end before it starts: {value[0]!r} > {value[1]!r}")
        return t0, t1
    point = _point(value)
    return point, point


def _point(value: object) -> int:
    if isinstance(value, str):
        return parse_iso(value)
    if isinstance(value, datetime):
        return from_datetime(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if value not in INT64:
            raise InvalidValue("a time in microseconds must fit in 64 bits")
        return value
    raise InvalidValue(f"a time is ISO-8601 text, integer microseconds or a datetime, not {value!r:.80}")


_UNIX = {"seconds": 1_000_000, "milliseconds": 1_000}
_SINCE, _UNTIL = 1_000_000_000, 2_200_000_000
"""2001 and 2039 in Unix seconds; as microseconds, both are within an hour of 1970."""


def unix_time_refusal(value: object) -> str | None:
    """Why a number in a file is refused as a time: it can only be meant as Unix seconds or milliseconds of 2001 to
    2039. None for all other numbers, small ones too: they are microseconds."""
    if isinstance(value, (tuple, list)):
        return next(filter(None, map(unix_time_refusal, value)), None)
    if not isinstance(value, (int, float)):
        return None
    for unit, microseconds in _UNIX.items():
        second = 1_000_000 // microseconds
        if _SINCE * second <= value < _UNTIL * second:
            meant = round(value * microseconds)
            cause = f"{value} looks like Unix {unit}, and numbers are microseconds"
            return f'{cause}: write {meant}, or "{iso_utc(meant)}"'
    return None


def time_reader(expression: str) -> TimeReader:
    """A function from a document's bytes to the time at `expression`. It raises ValueError if there is none.

    The value of the first node found (or of the string computed) is an ISO-8601 or RFC 822 date. Raises SourceError if
    the expression is not XPath.
    """
    try:
        xpath = etree.XPath(expression)
    except etree.XPathError as error:
        raise SourceError(expression, f"not an XPath expression: {error}", "see --time-xpath in --help") from None

    def read(xml: bytes) -> int:
        try:
            found = xpath(etree.fromstring(xml, xml_parser()))
        except etree.XMLSyntaxError as error:
            raise InvalidValue(f"not well-formed: {error.msg}") from None
        except etree.XPathError as error:
            raise InvalidValue(f"{expression} cannot be evaluated: {error}") from None
        text = _first_text(found)
        if text is None:
            raise InvalidValue(f"{expression} finds nothing")
        time = parse_date(text)
        if time is None:
            raise InvalidValue(f"{expression} finds {text!r:.80}, which is no date")
        return time

    return read


def _first_text(found: Any) -> str | None:
    if isinstance(found, list):
        if not found:
            return None
        found = found[0]
    return "".join(map(str, found.itertext())) if isinstance(found, etree._Element) else str(found)


def first_time(date: int | None, fetched: int | None, modified: int, archive: int | None) -> int:
    """The time of an entry that is new: its own `date`, but no later than its feed was fetched.

    It is the time of the fetch (of the file's last change, if `fetched` is unknown) for an entry without a date, or
    with one before `archive`: then the entry was old when its feed was first read. All are microseconds.
    """
    seen = modified if fetched is None else fetched
    if date is None or (archive is not None and date < archive):
        return seen
    return date if fetched is None else min(date, fetched)


def change_time(dates: Iterable[int | None], before: int, seen: int) -> int:
    """When an entry changed: the latest of its own `dates` after its last version's time `before` and not after the
    fetch that shows it; else the time of that fetch, `seen`. All are microseconds."""
    return max((date for date in dates if date is not None and before < date <= seen), default=seen)
