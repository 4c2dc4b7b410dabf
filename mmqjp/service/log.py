"""The log of a service: events as JSON lines or text, with records of `logging`. Also runs work in a logged thread."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from threading import Event, Lock, Thread
from typing import Protocol

import pyarrow as pa

from feeds.documents import Now, now_us
from mmqjp.process import printable_line


def column_values(column: pa.ChunkedArray) -> list[object]:
    """Returns the values of a column as JSON types. Decimals become numbers if exact; other types, such as dates,
    become text.

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
    def event(self, name: str, /, **fields: object) -> None:
        pass


class JsonLog:
    """Writes an event as a line of JSON. Its first keys are `time` (ISO 8601, UTC) and `event`."""

    def __init__(self, write: Write, now: Now = now_us) -> None:
        self._write, self._now = write, now

    def event(self, name: str, /, **fields: object) -> None:
        line = {"time": _iso(self._now()), "event": name, **fields}
        self._write(json.dumps(line, ensure_ascii=False, default=str) + "\n")


class TextLog:
    """Writes an event as a line of text. On a `terminal`, the next line overwrites that of a batch."""

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
    """A thread-safe log that passes on one event at a time."""

    def __init__(self, log: Log) -> None:
        self._log, self._lock = log, Lock()

    def event(self, name: str, /, **fields: object) -> None:
        with self._lock:
            self._log.event(name, **fields)


def standard_log(form: str) -> Log:
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


@contextmanager
def in_background(
    name: str, work: Callable[[], object], end: Callable[[], object], log: Log, failure: str, stop: Event
) -> Iterator[Thread]:
    """Runs `work` in a thread while the block runs; `end` makes it return. Its error is logged as the event `failure`,
    sets `stop`, and is raised at the end of the block."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
            log.event(failure, error=error)
            stop.set()

    thread = Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        end()
        thread.join()
    if failed:
        raise failed[0]


REPEATED_SECONDS = 60.0
"""Seconds in which a message is logged once: whoever may connect can bring about thousands."""

MOST_COUNTED = 100


class _Records(logging.Handler):
    def __init__(self, log: Log, clock: Callable[[], float]) -> None:
        super().__init__(logging.WARNING)
        self._log, self._clock = log, clock
        self._counted: dict[tuple[str, str], tuple[float, int, logging.LogRecord]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._tell(record, traceback=logging.Formatter().formatException(record.exc_info))
            return
        key, now = (record.name, str(record.msg)), self._clock()
        begun, count, _ = self._counted.get(key, (-math.inf, 0, record))
        if now < begun + REPEATED_SECONDS:
            self._counted[key] = begun, count + 1, record
            return
        if len(self._counted) >= MOST_COUNTED:
            self.flush()
        self._counted[key] = now, 0, record
        self._tell(record, **({"times": count + 1} if count else {}))

    def flush(self) -> None:
        """Logs what was only counted."""
        for _, count, record in self._counted.values():
            if count:
                self._tell(record, times=count)
        self._counted.clear()

    def _tell(self, record: logging.LogRecord, **more: object) -> None:
        self._log.event("said", by=record.name, level=record.levelname.lower(), text=record.getMessage(), **more)


@contextmanager
def records_in(log: Log, *names: str, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Inside the block, warnings and errors of these `logging` loggers go to `log` only. A message is logged once in
    REPEATED_SECONDS, with the number of `times` since."""
    handler, loggers = _Records(log, clock), [logging.getLogger(name) for name in names]
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
        handler.flush()
