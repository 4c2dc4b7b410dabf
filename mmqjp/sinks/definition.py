"""The definition of a sink: what it wants, how it groups and how far it may fall behind. Read from a table of TOML or
JSON, of the configuration file or live."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

from common.errors import InvalidValue
from feeds.dates import EPOCH, from_datetime, parse_iso
from mmqjp.sinks.keys import BadSink, Keys
from mmqjp.sinks.options import DAY, KINDS, PUSH_KINDS, MailOptions, Options, ParquetOptions, path_of

RESERVED = frozenset({"output"})
"""Names that no sink may have: `output` is that of the sink of `--output`."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_DIGITS = re.compile(r"\d{1,17}")


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new sink begins: with the output number `seq`, or with what was committed from `time` on (microseconds);
    with neither, now."""

    seq: int | None = None
    time: int | None = None


@dataclass(frozen=True, slots=True)
class SinkDefinition:
    """What a sink is.

    - `queries`: shell patterns of the names of the queries that it wants; () for all.
    - `wait_us`, `most`: a push sink groups what comes within `wait_us` after the first output; a message shows `most`.
    - `backlog_us`, `backlog_outputs`: what is older (None: never too old) or more is given up.
    - `start`: where it begins when it is new.
    - `file`: the configuration file that defines it; "" for a live one.
    - `table`: what it was read from. It has secrets by their names only.
    """

    name: str
    kind: str
    options: Options
    queries: tuple[str, ...] = ()
    wait_us: int = 0
    most: int = 100
    backlog_us: int | None = 7 * DAY
    backlog_outputs: int = 100_000
    start: Start = Start()
    file: str = ""
    table: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_push(self) -> bool:
        """Whether it sends messages, rather than writing files."""
        return self.kind in PUSH_KINDS

    @property
    def is_live(self) -> bool:
        """Whether it was added by a command, and not by the configuration file."""
        return not self.file

    def wants(self, query: str) -> bool:
        """Returns whether the sink gets the outputs of a query."""
        return not self.queries or _matcher(self.queries).match(query) is not None

    def closes(self, opened: int) -> int | None:
        """Returns when a group closes whose first output was committed at `opened`, or None if each output is a message
        of its own. Both in microseconds."""
        options = self.options
        if not isinstance(options, MailOptions):
            return opened + self.wait_us if self.wait_us else None
        if options.at is None or options.zone is None:
            return opened + options.every_us
        return _next_time(opened, options.at, options.zone)


def read_sink(name: str, table: Mapping[str, Any], base: Path, *, file: str = "") -> SinkDefinition:
    """Returns the definition that a table has. Without `file`, it is that of a live sink. Paths are relative to `base`.

    Raises BadSink.
    """
    place = f"the configuration {file}: sinks.{name}" if file else f"the sink {name}"
    check_sink_name(name, f"the configuration {file}: " if file else "")
    keys = Keys(table, f"{place}." if file else f"{place}: ", live=not file)
    kind = keys.choice("kind", KINDS)
    options = KINDS[kind](keys, base)
    is_push = kind in PUSH_KINDS
    waits = is_push and kind != "mail"
    backlog = keys.duration("backlog", 7 * DAY, least=DAY // 24, endless=True)
    backlog_outputs = keys.number("backlog_outputs", 100_000 if is_push else 1_000_000, 1_000, 1_000_000_000)
    if isinstance(options, ParquetOptions):
        _check_parquet(options, backlog, backlog_outputs, keys)
    found = SinkDefinition(
        name,
        kind,
        options,
        keys.texts("queries", most=1_000),
        cast(int, keys.duration("wait", 0)) if waits else 0,
        keys.number("most", 100, 1, 1_000) if is_push else 1_000,
        backlog,
        backlog_outputs,
        _start(keys),
        file,
        dict(table),
    )
    if found.wait_us > DAY:
        raise keys.bad("wait", "write at most 1d")
    keys.end()
    return found


def check_sink_name(name: str, place: str = "") -> None:
    """Raises BadSink if a text cannot be the name of a sink."""
    if not _NAME.fullmatch(name):
        rule = "a sink's name begins with a letter, and has letters, digits, - and _, at most 40"
        raise BadSink(f"{place}{name[:60]!r} cannot be a sink's name: {rule}")
    if name in RESERVED:
        raise BadSink(f"{place}the name {name} is reserved for --output: choose another one")


def refuse_same_path(definition: SinkDefinition, others: Iterable[SinkDefinition]) -> None:
    """Raises BadSink if another sink writes to the same file or directory: each would take the other's for its own."""
    path = path_of(definition.options)
    for other in others:
        if path is not None and other.name != definition.name and path_of(other.options) == path:
            raise BadSink(f"the sinks {definition.name} and {other.name} have the same path {path}: change one")


def _check_parquet(options: ParquetOptions, backlog: int | None, backlog_outputs: int, keys: Keys) -> None:
    """What waits in a file that is not yet closed must not count as given up."""
    if 2 * options.rows > backlog_outputs:
        raise keys.bad("rows", f"a file may have at most half of backlog_outputs, which is {backlog_outputs:,}")
    if backlog is not None and 2 * options.every_us > backlog:
        raise keys.bad("every", "a file may be open for at most half of backlog")


def _start(keys: Keys) -> Start:
    try:
        return read_start(keys.word("from", "now"))
    except BadSink as error:
        raise keys.bad("from", str(error)) from None


def read_start(text: str) -> Start:
    """Returns where a new sink begins: `now`, `start`, the number of an output, or a time. Raises BadSink."""
    if text == "now":
        return Start()
    if text == "start":
        return Start(seq=0)
    if _DIGITS.fullmatch(text):
        return Start(seq=int(text))
    try:
        return Start(time=parse_iso(text))
    except InvalidValue:
        raise BadSink("write now, start, the seq of an output, or a time like 2026-05-04T10:30:00Z") from None


@lru_cache(maxsize=1_000)
def _matcher(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)))


def _next_time(after: int, minutes: int, zone: ZoneInfo) -> int:
    """The next time that a clock in a zone shows so many minutes past midnight, after a time."""
    day = (EPOCH + timedelta(microseconds=after)).astimezone(zone).date()
    for _ in range(3):
        # Of a time that a change of clocks skips or repeats, this is the first one that exists.
        moment = from_datetime(datetime(day.year, day.month, day.day, minutes // 60, minutes % 60, tzinfo=zone))
        if moment > after:
            return moment
        day += timedelta(days=1)
    raise AssertionError("a day has less than two days")
