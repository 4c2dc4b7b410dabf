"""What a service tells of its work, an event at a time: as JSON lines, or as lines for people."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Lock
from typing import Protocol

from feeds.document import Clock, now_us
from mmqjp.text import one_line

Write = Callable[[str], object]


class Log(Protocol):
    """Takes events: a name, and what belongs to it."""

    def event(self, name: str, /, **fields: object) -> None: ...


class Silence:
    """Tells nothing."""

    def event(self, name: str, /, **fields: object) -> None:
        pass


class JsonLog:
    """A line of JSON for each event, with `time` (ISO-8601, UTC) and `event`."""

    def __init__(self, write: Write, now: Clock = now_us) -> None:
        self._write, self._now = write, now

    def event(self, name: str, /, **fields: object) -> None:
        line = {"time": _iso(self._now()), "event": name, **fields}
        self._write(json.dumps(line, ensure_ascii=False, default=str) + "\n")


class TextLog:
    """A line for each event. On a terminal, `live`, that of a batch is overwritten by the next."""

    def __init__(self, write: Write, now: Clock = now_us, *, live: bool = False) -> None:
        self._write, self._now, self._live = write, now, live
        self._over = False

    def event(self, name: str, /, **fields: object) -> None:
        text = one_line(" ".join([name, *(f"{key}={_text(value)}" for key, value in fields.items())]))
        over = self._live and name == "batch"
        start = "\r\x1b[K" if self._over else ""
        self._write(f"{start}{_iso(self._now())} {text}" + ("" if over else "\n"))
        self._over = over


class SharedLog:
    """A log that several threads tell, one at a time."""

    def __init__(self, log: Log) -> None:
        self._log, self._lock = log, Lock()

    def event(self, name: str, /, **fields: object) -> None:
        with self._lock:
            self._log.event(name, **fields)


def _iso(microseconds: int) -> str:
    moment = datetime.fromtimestamp(microseconds / 1e6, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(map(str.isspace, text)) else text
