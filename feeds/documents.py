"""Timestamped documents and rejects, and the parsing of their times to integer microseconds of UTC.

A document's time is the one given with it, the one at an XPath in its XML, or when a feed's entry appeared or changed.
"""

from __future__ import annotations

import re
import time as clock
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from lxml import etree

from common.dates import EPOCH, MICROSECOND, parse_timestamp
from common.dates import iso_utc as iso_utc
from common.errors import InputError, InvalidValue
from common.xml import xml_parser


class SourceError(InputError, ValueError):
    """A source (path, address or option) that cannot be used; raised before a run starts. `source` is its name, `cause`
    the reason, and `hint` the remedy ("" if unknown)."""

    def __init__(self, source: str, cause: str, hint: str = "") -> None:
        super().__init__(source, cause, hint)
        self.source, self.cause, self.hint = source, cause, hint

    def __str__(self) -> str:
        return f"{self.source}: {self.cause}" + (f"; {self.hint}" if self.hint else "")


class FeedError(InputError, ValueError):
    """The bytes hold no readable feed; the message is the cause."""


# datetime.fromisoformat also accepts a bare week date or eight digits; those are more likely numbers than days, so only
# spellings with separators count as dates here.
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def from_datetime(value: datetime) -> int:
    """Microseconds since 1970 in UTC; no zone means UTC. Raises InvalidValue outside of the years 1 to 9999."""
    try:
        utc = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    except OverflowError:
        raise InvalidValue(f"{value} is outside of the years 1 to 9999 of UTC") from None
    return (utc - EPOCH) // MICROSECOND


def parse_iso(text: str) -> int:
    """Microseconds of an ISO-8601 date or date-time. Raises InvalidValue if `text` is neither."""
    stripped = text.strip()
    if not _ISO_DATE.match(stripped):
        raise InvalidValue(f"{text!r} is not an ISO-8601 date (such as 2026-05-04T10:30:00Z)")
    try:
        return from_datetime(datetime.fromisoformat(stripped))
    except ValueError as error:
        raise InvalidValue(f"{text!r} is not an ISO-8601 date: {error}") from None


TimePoint = str | int | datetime
TimeValue = TimePoint | tuple[TimePoint, TimePoint] | list[TimePoint]
Now = Callable[[], int]
TimeReader = Callable[[bytes], int]

INT64 = range(-(2**63), 2**63)


def now_us() -> int:
    return clock.time_ns() // 1000


def parse_time(value: TimeValue) -> tuple[int, int]:
    """The interval `(t0, t1)` of a time value, in microseconds of UTC. Raises InvalidValue. It is a pair of points or
    one point: ISO-8601 text, integer microseconds, a datetime (no zone means UTC)."""
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
    """Why a number in a file is refused as a time: it looks like Unix seconds or milliseconds of 2001 to 2039. None for
    any other number, which is taken as microseconds."""
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
    """A function from a document's bytes to the time at `expression`. It raises ValueError if there is none. The first
    node (or the computed string) must be a date. Raises SourceError for invalid XPath."""
    try:
        xpath = etree.XPath(expression)
    except etree.XPathError as error:
        raise SourceError(expression, f"not an XPath expression: {error}", "see --time-xpath in --help") from None

    def read(xml: bytes) -> int:
        try:
            found: Any = xpath(etree.fromstring(xml, xml_parser()))
        except etree.XMLSyntaxError as error:
            raise InvalidValue(f"not well-formed: {error.msg}") from None
        except etree.XPathError as error:
            raise InvalidValue(f"{expression} cannot be evaluated: {error}") from None
        if found == []:
            raise InvalidValue(f"{expression} finds nothing")
        first = found[0] if isinstance(found, list) else found
        text = "".join(map(str, first.itertext())) if isinstance(first, etree._Element) else str(first)
        time = parse_timestamp(text)
        if time is None:
            raise InvalidValue(f"{expression} finds {text!r:.80}, which is not a date")
        return time

    return read


def first_time(date: int | None, fetched: int | None, modified: int) -> int:
    """The time of a new entry: its own `date`, however old, capped at the fetch of its feed. An entry without a date
    gets the time of the fetch, or of the file's last change if `fetched` is unknown. All are microseconds."""
    if date is None:
        return modified if fetched is None else fetched
    return date if fetched is None else min(date, fetched)


def change_time(dates: Iterable[int | None], before: int, seen: int) -> int:
    """When an entry changed: the latest of its `dates` after its previous version (`before`) and not after the fetch
    (`seen`); else `seen`. All are microseconds."""
    return max((date for date in dates if date is not None and before < date <= seen), default=seen)


DEFAULT_STREAM = "S"

OWN_PREFIX = "mmqjp:"  # prefix of the streams that only mmqjp itself writes
VISITS_STREAM = "mmqjp:visits"  # documents about visits of feeds, created while a crawl is read

_DECLARED_ENCODING = re.compile(r"""(\ufeff?<\?xml\s[^>]*?)\sencoding\s*=\s*(?:"[^">]*"|'[^'>]*')""")


def refuse_own_stream(stream: object) -> None:
    """Raises InvalidValue for a stream that only mmqjp itself writes."""
    if isinstance(stream, str) and stream.startswith(OWN_PREFIX):
        raise InvalidValue(f"streams whose names begin with {OWN_PREFIX} are reserved")


def is_text(value: str) -> bool:
    """Whether `value` can be encoded as UTF-8 (has no lone surrogate)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True, init=False)
class Document:
    """An XML document of a stream, valid from `t0` to `t1` (microseconds of UTC, `t0 <= t1`). `time` is anything
    `parse_time` accepts, by default `now()`. `feed` is the address of the feed that showed it, "" if none did: the time
    of its stream then comes from visits. `xml` is not checked here: stage 1 parses it once and reports errors.
    Raises InvalidValue for an id or a stream that is not text, or an invalid time."""

    id: str
    stream: str
    t0: int
    t1: int
    xml: bytes | str = field(repr=False)
    feed: str = ""

    def __init__(
        self,
        id: str,
        xml: bytes | str,
        stream: str = DEFAULT_STREAM,
        time: TimeValue | None = None,
        *,
        feed: str = "",
        now: Now = now_us,
    ) -> None:
        for name, value in (("id", id), ("stream", stream)):
            if not isinstance(value, str) or not value or not is_text(value):
                raise InvalidValue(f"a document's {name} is a non-empty text, not {value!r:.80}")
        if not isinstance(xml, (bytes, str)):
            raise InvalidValue(f"a document's xml is bytes or text, not {type(xml).__name__}")
        t0, t1 = parse_time(now() if time is None else time)
        fields: dict[str, object] = {"id": id, "stream": stream, "t0": t0, "t1": t1, "xml": xml, "feed": feed}
        for name, content in fields.items():
            object.__setattr__(self, name, content)

    def xml_bytes(self) -> bytes:
        """The document as bytes for a parser. Bytes are passed on with the encoding they declare. Text becomes UTF-8
        without its declared encoding. (A lone surrogate stays invalid UTF-8, for the parser to report.)"""
        if isinstance(self.xml, bytes):
            return self.xml
        declared = _DECLARED_ENCODING.match(self.xml)
        text = self.xml if declared is None else declared[1] + self.xml[declared.end() :]
        return text.encode("utf-8", "surrogatepass")


VisitOutcome = Literal["complete", "awaited", "ended", "failed"]


@dataclass(frozen=True, slots=True)
class Visit:
    """How a visit of a feed moves time. `complete` at `time` (microseconds): all that the feed had published by then
    has been seen. `awaited`: the first visit is due, and the stream waits for it. `ended`: the stream no longer waits,
    because the first visit failed or the feed was removed. `failed`: no change.

    `documents` report on VISITS_STREAM what this visit changed, or earlier ones that become known with it.
    """

    feed: str
    time: int
    outcome: VisitOutcome = "complete"
    stream: str = DEFAULT_STREAM
    documents: tuple[Document, ...] = field(default=(), compare=False, repr=False)


def as_bytes(raw: bytes | str) -> bytes:
    """Rejected input in the form in which it is stored."""
    return raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Reject:
    """Input that could not become a document: its place (`id`, `stream`, `time` as far as known) and the reason.
    `reason` names the file (and line) and the cause; `raw` is the input, or its beginning."""

    id: str
    stream: str
    time: int | None
    reason: str
    raw: bytes | str = field(repr=False)

    def __post_init__(self) -> None:
        """Makes the fields storable: rejected input may be anything."""
        for name in ("id", "stream", "reason"):
            text: str = getattr(self, name)
            if not is_text(text):
                object.__setattr__(self, name, text.encode("utf-8", "backslashreplace").decode())
        if self.time is not None and self.time not in INT64:
            object.__setattr__(self, "time", None)


SourceItem = Document | Reject | Visit
"""What sources give and `Engine.process` takes, in order."""


def with_visit_documents(items: Iterable[SourceItem]) -> Iterator[SourceItem]:
    """Yields the documents of visits as items of their own, each before its visit."""
    for item in items:
        if isinstance(item, Visit):
            yield from item.documents
        yield item
