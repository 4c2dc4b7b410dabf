"""Dates as integer microseconds of UTC, read from the spellings that documents use."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from time import struct_time

from common.errors import InvalidValue

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# datetime.fromisoformat takes a lone week date or a run of eight digits too; a document's date that short is more
# likely a number than a day, so only the spellings with separators are dates here.
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def from_datetime(value: datetime) -> int:
    """Microseconds since 1970 in UTC; no zone means UTC. Raises InvalidValue outside of the years 1 to 9999 of UTC."""
    try:
        utc = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    except OverflowError:
        raise InvalidValue(f"{value} is outside of the years 1 to 9999 of UTC") from None
    return (utc - EPOCH) // _MICROSECOND


def parse_iso(text: str) -> int:
    """Microseconds of an ISO-8601 date or date-time. Raises InvalidValue if `text` is neither."""
    stripped = text.strip()
    if not _ISO_DATE.match(stripped):
        raise InvalidValue(f"{text!r} is not an ISO-8601 date (such as 2026-05-04T10:30:00Z)")
    try:
        return from_datetime(datetime.fromisoformat(stripped))
    except ValueError as error:
        raise InvalidValue(f"{text!r} is not an ISO-8601 date: {error}") from None


def parse_date(text: str) -> int | None:
    """Microseconds of an ISO-8601 or RFC 822 date; None if `text` is neither."""
    try:
        return parse_iso(text)
    except ValueError:
        pass
    try:
        return from_datetime(parsedate_to_datetime(text.strip()))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def from_struct(parsed: struct_time | None) -> int | None:
    """Microseconds of a UTC time tuple, or None if it is missing or no date of the calendar."""
    if parsed is None:
        return None
    try:
        return from_datetime(datetime(*parsed[:5], min(parsed.tm_sec, 59), tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


def iso_utc(microseconds: int) -> str:
    """ISO-8601 with `Z`, and with a fraction only if there is one."""
    moment = EPOCH + timedelta(microseconds=microseconds)
    return moment.isoformat().replace("+00:00", "Z")
