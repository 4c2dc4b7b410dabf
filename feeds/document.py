"""The input of the system: timestamped documents, and rejects."""

from __future__ import annotations

import re
import time as clock
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from common.errors import InvalidValue
from feeds.dates import from_datetime, iso_utc, parse_iso

DEFAULT_STREAM = "S"

TimePoint = str | int | datetime
TimeValue = TimePoint | tuple[TimePoint, TimePoint] | list[TimePoint]
Clock = Callable[[], int]

_INT64 = range(-(2**63), 2**63)
_DECLARED_ENCODING = re.compile(r"""(\A\ufeff?<\?xml\s[^>]*?)\sencoding\s*=\s*(?:"[^">]*"|'[^'>]*')""")


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
        if value not in _INT64:
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


def is_text(value: str) -> bool:
    """Whether `value` can be written as UTF-8 (it holds no lone surrogate)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True, init=False)
class Document:
    """An XML document of a stream, valid from `t0` to `t1` (microseconds of UTC, `t0 <= t1`).

    `time` is anything `parse_time` takes; without it the document's time is `now()`. `xml` is not checked here:
    stage 1 parses it once and says what is wrong with it.
    Raises InvalidValue for an id or a stream that is no text, and for a time that is none.
    """

    id: str
    stream: str
    t0: int
    t1: int
    xml: bytes | str = field(repr=False)

    def __init__(
        self,
        id: str,
        xml: bytes | str,
        stream: str = DEFAULT_STREAM,
        time: TimeValue | None = None,
        *,
        now: Clock = now_us,
    ) -> None:
        for name, value in (("id", id), ("stream", stream)):
            if not isinstance(value, str) or not value or not is_text(value):
                raise InvalidValue(f"a document's {name} is a non-empty text, not {value!r:.80}")
        if not isinstance(xml, (bytes, str)):
            raise InvalidValue(f"a document's xml is bytes or text, not {type(xml).__name__}")
        t0, t1 = parse_time(now() if time is None else time)
        fields: dict[str, object] = {"id": id, "stream": stream, "t0": t0, "t1": t1, "xml": xml}
        for name, content in fields.items():
            object.__setattr__(self, name, content)

    def xml_bytes(self) -> bytes:
        """The document as bytes for a parser.

        Bytes are passed on as they are, with the encoding they declare. Text is already decoded: it becomes UTF-8
        and loses the encoding its declaration names. (A lone surrogate stays invalid UTF-8, for the parser to report.)
        """
        if isinstance(self.xml, bytes):
            return self.xml
        return _DECLARED_ENCODING.sub(r"\1", self.xml, count=1).encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Reject:
    """Input that could not be made a document: where it was (`id`, `stream`, `time` as far as known) and why.

    `reason` names the file (and line) and the cause; `raw` is what was read, or its beginning.
    """

    id: str
    stream: str
    time: int | None
    reason: str
    raw: bytes | str = field(repr=False)

    def __post_init__(self) -> None:
        """Makes the fields fit to be stored, since rejected input may be anything."""
        for name in ("id", "stream", "reason"):
            text: str = getattr(self, name)
            if not is_text(text):
                object.__setattr__(self, name, text.encode("utf-8", "backslashreplace").decode())
        if self.time is not None and self.time not in _INT64:
            object.__setattr__(self, "time", None)
