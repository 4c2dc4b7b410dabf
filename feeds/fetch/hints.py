"""How often a server and a feed want to be asked, as they say."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from lxml import etree

from common.xml_parser import xml_parser
from feeds.dates import parse_date
from feeds.fetch.clock import DAY, HOUR, MINUTE, SECOND

_SYNDICATION = "{http://purl.org/rss/1.0/modules/syndication/}"
_PERIODS = {"hourly": HOUR, "daily": DAY, "weekly": 7 * DAY, "monthly": 30 * DAY, "yearly": 365 * DAY}
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MAX_AGE = re.compile(r"""(?:^|[,\s])max-age\s*=\s*"?(\d{1,10})\b""", re.IGNORECASE)
_LONGEST = 366 * DAY


@dataclass(frozen=True, slots=True)
class Hints:
    """The wishes in a feed's body: at least `interval` microseconds between fetches, and none in these hours (0 to 23,
    UTC) or on these days (0 is Monday)."""

    interval: int = 0
    skip_hours: frozenset[int] = frozenset()
    skip_days: frozenset[int] = frozenset()

    def to_json(self) -> str:
        return json.dumps([self.interval, sorted(self.skip_hours), sorted(self.skip_days)])

    @classmethod
    def from_json(cls, text: str) -> Hints:
        interval, hours, days = json.loads(text)
        return cls(interval, frozenset(hours), frozenset(days))


def body_hints(data: bytes) -> Hints:
    """RSS `ttl`, `skipHours`, `skipDays`, and `updatePeriod` of the syndication module; none if the body is not XML."""
    try:
        root = etree.fromstring(data.lstrip(), xml_parser(entities=False, recover=True))
    except (etree.XMLSyntaxError, ValueError):
        return Hints()
    if root is None:  # the recovering parser has found nothing at all
        return Hints()
    channel = next((child for child in root if child.tag in ("channel", "{http://purl.org/rss/1.0/}channel")), root)
    texts = {str(child.tag): (child.text or "").strip() for child in channel if isinstance(child.tag, str)}
    ttl = _number(texts.get("ttl", ""), 0) * MINUTE
    period = _PERIODS.get(texts.get(f"{_SYNDICATION}updatePeriod", "").lower(), 0)
    frequency = max(1, _number(texts.get(f"{_SYNDICATION}updateFrequency", ""), 1))
    # 24 is how some write midnight.
    hours = {_number(hour.text or "", -1) % 24 for hour in channel.iterfind("skipHours/hour") if _is_hour(hour.text)}
    named = {(day.text or "").strip().lower() for day in channel.iterfind("skipDays/day")}
    days = {number for number, name in enumerate(_DAYS) if name in named}
    return Hints(min(max(ttl, period // frequency), _LONGEST), frozenset(hours), frozenset(days))


def _is_hour(text: str | None) -> bool:
    return 0 <= _number(text or "", -1) <= 24


def _number(text: str, otherwise: int) -> int:
    stripped = text.strip()
    return int(stripped) if stripped.isascii() and stripped.isdecimal() and len(stripped) < 10 else otherwise


def fresh_for(headers: Mapping[str, str], now: int) -> int:
    """How long (microseconds) an answer is fresh: `Cache-Control: max-age` less `Age`, else `Expires`, else 0."""
    control = headers.get("Cache-Control", "")
    if re.search(r"(?:^|[,\s])no-(?:cache|store)\b", control, re.IGNORECASE):
        return 0
    found = _MAX_AGE.search(control)
    if found:
        return min(max(0, int(found[1]) - _number(headers.get("Age", ""), 0)) * SECOND, _LONGEST)
    expires = parse_date(headers.get("Expires", ""))
    return 0 if expires is None else min(max(0, expires - now), _LONGEST)


def retry_after(headers: Mapping[str, str], now: int) -> int | None:
    """The time (microseconds) before which `Retry-After` (seconds, or a date) wants no request; None if it is absent or
    neither.

    More than a year counts as a year.
    """
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdecimal():
        return now + min(int(text[:12]) * SECOND, _LONGEST)
    date = parse_date(text)
    return None if date is None else min(max(date, now), now + _LONGEST)
