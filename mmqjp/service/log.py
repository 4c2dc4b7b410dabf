"""The log of a service, one event at a time: as JSON lines, or as text for people.

Values of SQL as JSON has them: whatever a query answers can be written as JSON.

How far a service is behind: files waiting to be read, the age of the newest document, and the size of the state.

Puts what libraries log into the log of a service, so that it has one form.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from threading import Lock
from typing import Protocol

import pyarrow as pa

from feeds.documents import Now, now_us
from feeds.tail import WaitingFile
from mmqjp.engine import Session
from mmqjp.process import printable_line


def column_values(column: pa.ChunkedArray) -> list[object]:
    """Returns the values of a column: numbers, texts, booleans, None, and lists and objects of these.

    Decimals become numbers if these are equal to them; what else JSON lacks, such as dates, becomes text.

    >>> column_values(pa.chunked_array([[Decimal("3.0"), Decimal("4.5")]])), column_values(pa.chunked_array([[b"a"]]))
    ([3, 4.5], ['a'])
    """
    try:
        values: list[object] = column.to_pylist()
    except OverflowError:  # times that Python has not
        values = column.cast(pa.string()).to_pylist()
    kind = column.type
    while pa.types.is_list(kind):
        kind = kind.value_type
    is_plain = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)
    return values if is_plain else [_value(value) for value in values]


def _value(value: object) -> object:
    match value:
        case None | str() | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal():
            if value == value.to_integral_value():
                return int(value)
            return float(value) if Decimal(repr(float(value))) == value else str(value)
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case list() | tuple():
            return [_value(one) for one in value]
        case Mapping():
            return {str(name): _value(one) for name, one in value.items()}
    return str(value)


Write = Callable[[str], object]


class Log(Protocol):
    """Receives events: a name, and fields."""

    def event(self, name: str, /, **fields: object) -> None: ...


class NullLog:
    """Discards all events."""

    def event(self, name: str, /, **fields: object) -> None:
        pass


class JsonLog:
    """Writes one line of JSON for each event. Its first keys are `time` (ISO-8601, UTC) and `event`."""

    def __init__(self, write: Write, now: Now = now_us) -> None:
        self._write, self._now = write, now

    def event(self, name: str, /, **fields: object) -> None:
        line = {"time": _iso(self._now()), "event": name, **fields}
        self._write(json.dumps(line, ensure_ascii=False, default=str) + "\n")


class TextLog:
    """Writes one line of text for each event. With `terminal`, the line of a batch is overwritten by the next line."""

    def __init__(self, write: Write, now: Now = now_us, *, terminal: bool = False) -> None:
        self._write, self._now, self._terminal = write, now, terminal
        self._was_overwritable = False

    def event(self, name: str, /, **fields: object) -> None:
        text = printable_line(" ".join([name, *(f"{key}={_text(value)}" for key, value in fields.items())]))
        overwritable = self._terminal and name == "batch"
        start = "\r\x1b[K" if self._was_overwritable else ""
        self._write(f"{start}{_iso(self._now())} {text}" + ("" if overwritable else "\n"))
        self._was_overwritable = overwritable


class SharedLog:
    """A log that several threads may use. It passes on one event at a time."""

    def __init__(self, log: Log) -> None:
        self._log, self._lock = log, Lock()

    def event(self, name: str, /, **fields: object) -> None:
        with self._lock:
            self._log.event(name, **fields)


def standard_log(form: str) -> Log:
    """Returns a log on standard error, as `text` or `json`."""

    def write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    return JsonLog(write) if form == "json" else TextLog(write, terminal=sys.stderr.isatty())


def _iso(microseconds: int) -> str:
    moment = datetime.fromtimestamp(microseconds / 1e6, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(map(str.isspace, text)) else text


class InputBacklog:
    """The number of files waiting to be read, of those last listed. None if it is not known."""

    def __init__(self) -> None:
        self.waiting_files: int | None = None

    def counting(self, waiting: Sequence[WaitingFile]) -> Iterator[WaitingFile]:
        """Yields the files one by one, and counts down."""
        for number, file in enumerate(waiting, 1):
            self.waiting_files = len(waiting) - number
            yield file


def progress(engine: Session, backlog: InputBacklog) -> dict[str, object]:
    """The fields that are logged with each batch, as far as they are known.

    `waiting_files` is a count, `lag_seconds` the age of the newest document, and `state_bytes` the size of the state.
    """
    found: dict[str, object] = {}
    if backlog.waiting_files is not None:
        found["waiting_files"] = backlog.waiting_files
    if (lag := engine.lag()) is not None:
        found["lag_seconds"] = round(lag / 1e6, 3)
    if (size := engine.state_bytes()) is not None:
        found["state_bytes"] = size
    return found


_PLAIN = logging.Formatter()


class _Records(logging.Handler):
    """Makes events of records."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        more = {"traceback": _PLAIN.formatException(record.exc_info)} if record.exc_info else {}
        self._log.event("said", by=record.name, level=record.levelname.lower(), text=record.getMessage(), **more)


@contextmanager
def records_in(log: Log, *names: str) -> Iterator[None]:
    """Inside the block, warnings and errors of some loggers of Python's `logging` go to a log, and nowhere else."""
    handler, loggers = _Records(log), [logging.getLogger(name) for name in names]
    before = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagated in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagated
