"""The log of a service, one event at a time: as JSON lines, or as text for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Lock
from typing import Protocol

from feeds.times import Now, now_us
from mmqjp.text import printable_line

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
