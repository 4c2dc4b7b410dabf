"""The times of texts for the oracle: ISO 8601, RFC 3339 and RFC 822, read word by word.

It shares nothing with `xscl.algebra.values`, which is made of regular expressions.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from string import ascii_letters, digits

_DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_MONTHS = ["january", "february", "march", "april", "may", "june", "july", "august", "september", "october"]
_MONTHS += ["november", "december"]
_WEST = {"EST": 5, "EDT": 4, "CST": 6, "CDT": 5, "MST": 7, "MDT": 6, "PST": 8, "PDT": 7}
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND


@dataclass(frozen=True, slots=True)
class Moment:
    """The value of `date(...)`: microseconds since 1970 in UTC; None if the text says no time."""

    at: int | None

    def text(self) -> str:
        if self.at is None:
            return ""
        days, rest = divmod(self.at, _DAY)
        seconds, micro = divmod(rest, _SECOND)
        fraction = f".{micro:06}" if micro else ""
        day = date.fromordinal(date(1970, 1, 1).toordinal() + days).isoformat()
        return f"{day}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}Z"


def moment(text: str) -> Moment:
    """The time that a text says."""
    words = text.strip(" \t\r\n")
    if len(words) > 80:
        return Moment(None)
    try:
        at = _iso(words) if words[4:5] == "-" else _mail(words)
    except (ValueError, IndexError):
        return Moment(None)
    first, last = (date(year, 1, 1).toordinal() - date(1970, 1, 1).toordinal() for year in (1, 9999))
    return Moment(at if first * _DAY <= at < (last + 365) * _DAY else None)


def _iso(text: str) -> int:
    day = _days(_number(text[:4], 4), _number(text[5:7], 2), _number(text[8:10], 2))
    if len(text) < 10 or text[7] != "-" or text[10:11] not in tuple("Tt "):
        return _end(day * _DAY, text[10:])
    clock = text[11:]
    at = next((at for at, char in enumerate(clock) if char in "Zz+-"), len(clock))
    clock, zone = clock[:at], clock[at:]
    if zone and clock.endswith(" "):
        clock = clock[:-1]
    hours, minutes, *more = clock.replace(",", ".").split(":")
    whole, point, fraction = (more.pop() if more else "00").partition(".")
    if more or (point and not fraction):
        raise ValueError(clock)
    micro = _number(fraction[:6].ljust(6, "0"), 6) if fraction else 0
    _number(fraction or "0", len(fraction) or 1)
    time = _clock(_number(hours, 2), _number(minutes, 2), _number(whole, 2), micro)
    return day * _DAY + time - _ahead(zone.replace(":", "") if zone[3:4] == ":" else zone, short=True)


def _mail(text: str) -> int:
    if text.endswith(")"):
        text = text[: text.index("(")].rstrip()
    words = text.split()
    if words[0][0] in ascii_letters:
        _place(words.pop(0).removesuffix(","), _DAYS)
    if "-" in words[0]:
        words[:1] = words[0].split("-")
    day, month, year, clock, *zone = words
    if len(year) == 2:
        year = ("20" if _number(year, 2) < 50 else "19") + year
    hours, minutes, *seconds = clock.split(":")
    if len(zone) > 1 or len(seconds) > 1:
        raise ValueError(text)
    time = _clock(_number(hours, len(hours)), _number(minutes, 2), _number("".join(seconds) or "00", 2), 0)
    if len(day) > 2 or len(hours) > 2:
        raise ValueError(text)
    days = _days(_number(year, 4), _place(month, _MONTHS) + 1, _number(day, len(day)))
    return days * _DAY + time - _ahead("".join(zone), short=False)


def _number(text: str, length: int) -> int:
    if len(text) != length or not text or not set(text) <= set(digits):
        raise ValueError(text)
    return int(text)


def _place(name: str, names: list[str]) -> int:
    return [one for full in names for one in (full, full[:3])].index(name.lower()) // 2


def _days(year: int, month: int, day: int) -> int:
    return date(year, month, day).toordinal() - date(1970, 1, 1).toordinal()


def _clock(hours: int, minutes: int, seconds: int, micro: int) -> int:
    at = (hours * 3600 + minutes * 60 + seconds) * _SECOND + micro
    if minutes > 59 or seconds > 60 or (hours > 23 and at != _DAY) or (hours == 24 and minutes + seconds + micro):
        raise ValueError(hours)
    return at


def _ahead(zone: str, *, short: bool) -> int:
    """How far a zone is ahead of UTC. Minutes may be left out if it may be `short`."""
    if zone[:1] in ("+", "-") and zone:
        minutes = _number(zone[3:], 2) if not short or zone[3:] else 0
        hours = _number(zone[1:3], 2)
        if hours > 23 or minutes > 59:
            raise ValueError(zone)
        return int(zone[0] + "1") * (hours * 60 + minutes) * 60 * _SECOND
    if short and zone not in ("", "Z", "z"):
        raise ValueError(zone)
    if not set(zone) <= set(ascii_letters) or len(zone) > 5 or zone.lower() in ("am", "pm"):
        raise ValueError(zone)
    return -_WEST.get(zone.upper(), 0) * 3600 * _SECOND


def _end(value: int, rest: str) -> int:
    if rest:
        raise ValueError(rest)
    return value
