"""The definition of a sink, read from TOML (`[secrets]`, `[sinks.NAME]`) or, if added live, from JSON. It has the
queries wanted, grouping, backlog limits, and the options of its kind. Also the waits for retries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from fnmatch import translate
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast, get_args
from urllib.parse import SplitResult, urlsplit
from zoneinfo import ZoneInfo

from common.dates import DAY, EPOCH, HOUR, MINUTE, SECOND
from common.errors import InvalidValue
from common.files import with_home
from feeds.documents import from_datetime, parse_iso
from mmqjp.answers.output import BodyForm
from mmqjp.sinks.secrets import BadSink, OptionTable, SecretName, SecretSource, read_sources

_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(:00)?")
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """An endpoint that messages are posted to. `secret` names the secrets that sign them."""

    url: str | SecretName
    secret: tuple[SecretName, ...] = ()
    format: Literal["json", "text"] = "json"
    allow_private: bool = False
    body: BodyForm = "xml"


@dataclass(frozen=True, slots=True)
class MailOptions:
    """A digest by mail, sent daily `at` minutes after midnight in `zone`, or `every_us` after its first output. `tls`
    is "at once", "starttls", or "none". `ca` is a file of certificates to trust instead of the well-known ones. With
    `by` it shows the outputs with the greatest numbers of that name."""

    host: str
    port: int
    tls: Literal["at once", "starttls", "none"]
    sender: str
    to: tuple[str, ...]
    user: str = ""
    password: SecretName | None = None
    at: int | None = None
    zone: ZoneInfo | None = None
    every_us: int = DAY
    ca: Path | None = None
    by: str = ""


@dataclass(frozen=True, slots=True)
class CommandOptions:
    command: tuple[str, ...]
    body: BodyForm = "xml"


@dataclass(frozen=True, slots=True)
class JsonlOptions:
    path: Path
    body: BodyForm = "xml"


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """A directory of Parquet files. Each is closed after a number of rows, or microseconds after its first."""

    path: Path
    rows: int = 100_000
    every_us: int = HOUR


@dataclass(frozen=True, slots=True)
class AtomOptions:
    """A directory with an Atom feed and its archives, served at the address `url`."""

    path: Path
    url: str
    title: str = ""


Options = WebhookOptions | MailOptions | CommandOptions | JsonlOptions | ParquetOptions | AtomOptions


def named_secrets(options: Options) -> tuple[SecretName, ...]:
    values = [getattr(options, one.name) for one in fields(options)]
    each = (one for value in values for one in (value if isinstance(value, tuple) else (value,)))
    return tuple(one for one in each if isinstance(one, SecretName))


def path_of(options: Options) -> Path | None:
    """Returns the file or directory that a sink has to itself; None for a push kind."""
    return options.path.absolute() if isinstance(options, JsonlOptions | ParquetOptions | AtomOptions) else None


def _webhook(keys: OptionTable, base: Path) -> WebhookOptions:
    if keys.has("allow_private") and keys.live:
        raise keys.bad("allow_private", "only a sink of the configuration file may have this key")
    url = keys.text_or_secret("url")
    if isinstance(url, str):
        check_web_address(url, keys, "url")
    form: Literal["json", "text"] = "text" if keys.choice("format", ("json", "text"), "json") == "text" else "json"
    return WebhookOptions(url, keys.secrets("secret"), form, keys.flag("allow_private"), _body(keys))


def _body(keys: OptionTable) -> BodyForm:
    """How output documents are delivered."""
    return "json" if keys.choice("body", get_args(BodyForm), "xml") == "json" else "xml"


def check_deliverable(found: SinkDefinition) -> None:
    """Raises BadSink for a webhook whose host is written as an address inside the network and may not be."""
    from feeds.fetch.http import is_public  # its HTTP client takes long to import

    if isinstance(found.options, WebhookOptions) and isinstance(found.options.url, str):
        host = (urlsplit(found.options.url).hostname or "").rstrip(".")
        is_inside = host == "localhost" or host.endswith(".localhost")
        with suppress(ValueError):
            is_inside |= not is_public(str(ip_address(host)))
        if is_inside and not found.options.allow_private:
            rule = "only a sink in the configuration file may deliver to it, with allow_private = true"
            raise BadSink(f"the sink {found.name}: url: {host} is not a public address, and {rule}")


def check_web_address(url: str, keys: OptionTable, key: str = "url") -> None:
    """Raises BadSink if a text is not an http(s) URL, or has a user name or password. The message never shows it."""
    parts = _split_address(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise keys.bad(key, "write an http or https address")
    if parts.username is not None or parts.password is not None:
        advice = 'make the address a secret, and write { secret = "NAME" }'
        raise keys.bad(key, f"an address with a user name or password is not written here; {advice}")


_TLS: Mapping[str, tuple[Literal["at once", "starttls"], int]] = {"smtps": ("at once", 465), "smtp": ("starttls", 587)}


def _mail(keys: OptionTable, base: Path) -> MailOptions:
    if keys.live:
        raise keys.bad("kind", "only the configuration file may have sinks of kind mail, since it names their servers")
    parts = _split_address(keys.text("server"))
    if parts is None or parts.scheme not in _TLS or not parts.hostname or parts.path.strip("/") or parts.query:
        raise keys.bad("server", "write smtps://HOST or smtp://HOST, with :PORT where it is another")
    if parts.username is not None or parts.password is not None:
        raise keys.bad("server", "write the user as user, and name the password as password")
    tls: Literal["at once", "starttls", "none"]
    tls, port = _TLS[parts.scheme]
    if not keys.flag("starttls", default=True):
        if parts.scheme == "smtps":
            raise keys.bad("starttls", "smtps encrypts from the start")
        tls = "none"
    user, password = keys.text("user", ""), keys.secret("password")
    if (user == "") != (password is None):
        raise keys.bad("user", "user and password go together")
    if tls == "none" and password is not None:
        raise keys.bad("starttls", "a password is not sent without encryption")
    to = keys.texts("to")
    if not to:
        raise keys.bad("to", "name at least one address")
    sender = keys.text("sender", user if "@" in user else to[0])
    for key, address in (*(("to", one) for one in to), ("sender", sender)):
        if not _MAIL_ADDRESS.fullmatch(address):
            raise keys.bad(key, "write addresses like ann@example.org")
    at, zone, every = _times(keys)
    ca = base / keys.text("ca") if keys.has("ca") else None
    by = keys.text("by", "")
    if (by == "") == keys.has("top"):
        raise keys.bad("top", 'top and by go together, as in top = 10 and by = "members"')
    if by and keys.has("most"):
        raise keys.bad("most", "write either top or most")
    return MailOptions(parts.hostname, parts.port or port, tls, sender, to, user, password, at, zone, every, ca, by)


_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_MAIL_ADDRESS = re.compile(rf"{_ATOM}(?:\.{_ATOM})*@(?:{_ATOM}(?:\.{_ATOM})*|\[[0-9.]+\])")
"""In ASCII, since others need a server with SMTPUTF8; without quotes, spaces and comments, which nobody means."""


def _times(keys: OptionTable) -> tuple[int | None, ZoneInfo | None, int]:
    if not keys.has("at"):
        if keys.has("zone"):
            raise keys.bad("zone", 'a zone belongs to at = "07:00"')
        return None, None, keys.duration("every", DAY, least=MINUTE) or DAY
    if keys.has("every"):
        raise keys.bad("every", "write either at or every")
    found = _TIME.fullmatch(keys.word("at", ""))
    if found is None:
        raise keys.bad("at", 'write a time like "07:00"')
    name = keys.text("zone", "UTC")
    try:
        zone = ZoneInfo(name)
    except (ValueError, KeyError, OSError):  # what it raises depends on how wrong the name is
        raise keys.bad("zone", 'write the name of a time zone, like "Europe/Berlin"') from None
    return int(found[1]) * 60 + int(found[2]), zone, DAY


def _command(keys: OptionTable, base: Path) -> CommandOptions:
    if keys.live:
        raise keys.bad("kind", "only the configuration file may have sinks of kind command")
    command = keys.texts("command")
    if not command:
        raise keys.bad("command", 'write the program and its arguments, as in ["notify", "--title", "News"]')
    return CommandOptions(command, _body(keys))


def _jsonl(keys: OptionTable, base: Path) -> JsonlOptions:
    return JsonlOptions(_path(keys, base), _body(keys))


def _parquet(keys: OptionTable, base: Path) -> ParquetOptions:
    rows = keys.number("rows", 100_000, 1, 10_000_000)
    return ParquetOptions(_path(keys, base), rows, keys.duration("every", HOUR, least=SECOND) or HOUR)


def _atom(keys: OptionTable, base: Path) -> AtomOptions:
    url = keys.text("url", most=2_000)
    check_web_address(url, keys)
    return AtomOptions(_path(keys, base), url.rstrip("/") + "/", keys.text("title", ""))


def _path(keys: OptionTable, base: Path) -> Path:
    """Returns the path of a file or directory; that of a live sink is below the state."""
    text = keys.text("path")
    if keys.live and not _FILE_NAME.fullmatch(text):
        advice = "to write elsewhere, define the sink in the configuration file"
        raise keys.bad("path", f"write a file name without a directory: it is made in {base}; {advice}")
    return base / with_home(text)


def _split_address(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        return parts if not any(char.isspace() for char in url) and parts.port != 0 else None
    except ValueError:
        return None


KINDS: Mapping[str, Callable[[OptionTable, Path], Options]] = MappingProxyType(
    {"webhook": _webhook, "mail": _mail, "command": _command, "jsonl": _jsonl, "parquet": _parquet, "atom": _atom}
)
"""Reads the options of each kind. Paths are relative to the given directory."""

PUSH_KINDS = ("webhook", "mail", "command")  # the kinds that send messages; the others write files


RESERVED_SINK_NAMES = frozenset({"output"})  # names that no sink may have: `output` is the sink of `--output`

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_DIGITS = re.compile(r"\d{1,17}")


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new sink begins: at the output number `seq`, or at the commit `time` in microseconds; else now."""

    seq: int | None = None
    time: int | None = None


@dataclass(frozen=True, slots=True)
class SinkDefinition:
    """The definition of a sink. `queries` are shell patterns of query names, () for all. A push sink groups outputs
    within `wait_us` after the first; a message shows the first or the greatest `most`. Outputs older than `backlog_us`
    (None: unlimited), or in excess of `backlog_outputs`, are given up. `start` applies when the sink is new. `file` is
    the configuration file, "" if live."""

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
        return self.kind in PUSH_KINDS

    @property
    def is_live(self) -> bool:
        return not self.file

    def wants(self, query: str) -> bool:
        return not self.queries or _matcher(self.queries).match(query) is not None

    @property
    def by(self) -> str | None:
        """The name of the numbers that choose what a digest shows, "" for none; None if it is not a digest."""
        return self.options.by if isinstance(self.options, MailOptions) else None

    def closes(self, opened: int) -> int | None:
        """Returns when a group opened by a commit at `opened` closes, in microseconds; None: each is a message."""
        options = self.options
        if not isinstance(options, MailOptions):
            return opened + self.wait_us if self.wait_us else None
        if options.at is None or options.zone is None:
            return opened + options.every_us
        return _next_time(opened, options.at, options.zone)


def read_sink(name: str, table: Mapping[str, Any], base: Path, *, file: str = "") -> SinkDefinition:
    """Returns a table's definition; of a live sink without `file`. Paths are relative to `base`. Raises BadSink."""
    place = f"the configuration {file}: sinks.{name}" if file else f"the sink {name}"
    check_sink_name(name, f"the configuration {file}: " if file else "")
    keys = OptionTable(table, f"{place}." if file else f"{place}: ", live=not file)
    kind = keys.choice("kind", KINDS)
    options = KINDS[kind](keys, base)
    is_push = kind in PUSH_KINDS
    waits = is_push and kind != "mail"
    backlog = keys.duration("backlog", 7 * DAY, least=DAY // 24, endless=True)
    backlog_outputs = keys.number("backlog_outputs", 100_000 if is_push else 1_000_000, 1_000, 1_000_000_000)
    if isinstance(options, ParquetOptions):  # rows waiting in an open file must not count as given up
        if 2 * options.rows > backlog_outputs:
            raise keys.bad("rows", f"a file may have at most half of backlog_outputs, which is {backlog_outputs:,}")
        if backlog is not None and 2 * options.every_us > backlog:
            raise keys.bad("every", "a file may be open for at most half of backlog")
    try:
        start = read_start(keys.word("from", "now"))
    except BadSink as error:
        raise keys.bad("from", str(error)) from None
    queries, wait = keys.texts("queries", most=1_000), cast(int, keys.duration("wait", 0)) if waits else 0
    most = keys.number("most", 100, 1, 1_000) if is_push else 1_000
    if isinstance(options, MailOptions) and options.by:
        most = keys.number("top", 10, 1, 100)
    if wait > DAY:
        raise keys.bad("wait", "write at most 1d")
    keys.end()
    limits = wait, most, backlog, backlog_outputs
    return SinkDefinition(name, kind, options, queries, *limits, start, file, dict(table))


def check_sink_name(name: str, place: str = "") -> None:
    if not _NAME.fullmatch(name):
        rule = "a sink's name begins with a letter, and has letters, digits, - and _, at most 40"
        raise BadSink(f"{place}{name[:60]!r} cannot be a sink's name: {rule}")
    if name in RESERVED_SINK_NAMES:
        raise BadSink(f"{place}the name {name} is reserved for --output: choose another one")


def refuse_same_path(definition: SinkDefinition, others: Iterable[SinkDefinition]) -> None:
    """Raises BadSink if another sink writes to the same file or directory."""
    path = path_of(definition.options)
    for other in others:
        if path is not None and other.name != definition.name and path_of(other.options) == path:
            raise BadSink(f"the sinks {definition.name} and {other.name} have the same path {path}: change one")


def read_start(text: str) -> Start:
    """Parses `now`, `start`, the number of an output, or a time. Raises BadSink."""
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
    """Returns the next time after `after` when clocks in a zone show `minutes` past midnight."""
    day = (EPOCH + timedelta(microseconds=after)).astimezone(zone).date()
    for _ in range(3):
        # Of a time that a change of clocks skips or repeats, this is the first one that exists.
        moment = from_datetime(datetime(day.year, day.month, day.day, minutes // 60, minutes % 60, tzinfo=zone))
        if moment > after:
            return moment
        day += timedelta(days=1)
    raise AssertionError("a day has less than two days")


TABLES = ("secrets", "sinks")


@dataclass(frozen=True, slots=True)
class SinkTables:
    """The sinks of configuration files and the sources of secrets, both by name."""

    sinks: Mapping[str, SinkDefinition] = field(default_factory=dict)
    secrets: Mapping[str, SecretSource] = field(default_factory=dict)

    def over(self, lower: SinkTables) -> SinkTables:
        """Merges two tables; this one takes precedence."""
        return SinkTables({**lower.sinks, **self.sinks}, {**lower.secrets, **self.secrets})


def read_tables(settings: Mapping[str, Any], path: Path) -> SinkTables:
    """Returns the sinks and secrets of a configuration file. Paths are relative to its directory. Raises BadSink."""
    base, file = path.parent, str(path)
    tables = {name: settings.get(name, {}) for name in TABLES}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise BadSink(f"the configuration {file}: {name}: write tables, as in [{name}.NAME]")
    for name, table in tables["sinks"].items():
        if not isinstance(table, Mapping):
            raise BadSink(f"the configuration {file}: sinks.{name[:60]}: write a table, as in [sinks.NAME]")
    sinks = {name: read_sink(name, table, base, file=file) for name, table in tables["sinks"].items()}
    for sink in sinks.values():
        try:
            refuse_same_path(sink, sinks.values())
        except BadSink as error:
            raise BadSink(f"the configuration {file}: {error}") from None
    return SinkTables(sinks, read_sources(tables["secrets"], base, file=file))
