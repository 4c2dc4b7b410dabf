"""The input of the system: timestamped documents, and rejects."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from common.errors import InvalidValue
from feeds.times import INT64, Now, TimeValue, now_us, parse_time

DEFAULT_STREAM = "S"

_DECLARED_ENCODING = re.compile(r"""(\ufeff?<\?xml\s[^>]*?)\sencoding\s*=\s*(?:"[^">]*"|'[^'>]*')""")


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
        now: Now = now_us,
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
        declared = _DECLARED_ENCODING.match(self.xml)
        text = self.xml if declared is None else declared[1] + self.xml[declared.end() :]
        return text.encode("utf-8", "surrogatepass")


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
        if self.time is not None and self.time not in INT64:
            object.__setattr__(self, "time", None)
