"""What each kind of sink has beside the keys that all have: one frozen dataclass a kind, read from its table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from email.errors import MessageError
from email.headerregistry import Address
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from urllib.parse import SplitResult, urlsplit
from zoneinfo import ZoneInfo

from mmqjp.sinks.keys import Keys, SecretName

SECOND, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000

COMMAND_SECONDS = 60.0
"""How long a command may take."""

_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(:00)?")
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """An endpoint that messages are posted to. `secret` has the names of the secrets that sign them."""

    url: str | SecretName
    secret: tuple[SecretName, ...] = ()
    format: Literal["json", "text"] = "json"
    allow_private: bool = False


@dataclass(frozen=True, slots=True)
class MailOptions:
    """A digest by mail: daily `at` so many minutes after midnight in `zone`, or `every_us` after its first output.

    `tls` is "at once", "starttls", or "none". `ca` is a file of certificates to trust instead of the well-known ones.
    """

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


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """A program that is run for each message: its argument vector."""

    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JsonlOptions:
    """A file of output lines."""

    path: Path


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """A directory of Parquet files. Each is closed after so many rows, or microseconds after its first."""

    path: Path
    rows: int = 100_000
    every_us: int = HOUR


@dataclass(frozen=True, slots=True)
class AtomOptions:
    """A directory with an Atom feed and its archives, for a server that shows it at the address `url`."""

    path: Path
    url: str
    title: str = ""


Options = WebhookOptions | MailOptions | CommandOptions | JsonlOptions | ParquetOptions | AtomOptions


def named_secrets(options: Options) -> tuple[SecretName, ...]:
    """Returns the secrets that options name."""
    values = [getattr(options, one.name) for one in fields(options)]
    each = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
    return tuple(one for one in each if isinstance(one, SecretName))


def path_of(options: Options) -> Path | None:
    """Returns the file or directory that a sink alone may write to; None for a push kind."""
    return options.path.absolute() if isinstance(options, JsonlOptions | ParquetOptions | AtomOptions) else None


def _webhook(keys: Keys, base: Path) -> WebhookOptions:
    keys.only_in_file("allow_private")
    url = keys.text_or_secret("url")
    if isinstance(url, str):
        check_web_address(url, keys, "url")
    form: Literal["json", "text"] = "text" if keys.choice("format", ("json", "text"), "json") == "text" else "json"
    return WebhookOptions(url, keys.secrets("secret"), form, keys.flag("allow_private"))


def check_web_address(url: str, keys: Keys, key: str = "url") -> None:
    """Raises BadSink if a text is no http(s) address, or has a user name or password. Never shows it."""
    parts = _parts(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise keys.bad(key, "write an http or https address")
    if parts.username is not None or parts.password is not None:
        advice = 'make the address a secret, and write { secret = "NAME" }'
        raise keys.bad(key, f"an address with a user name or password is not written here; {advice}")


_TLS: Mapping[str, tuple[Literal["at once", "starttls"], int]] = {"smtps": ("at once", 465), "smtp": ("starttls", 587)}


def _mail(keys: Keys, base: Path) -> MailOptions:
    if keys.live:
        raise keys.bad("kind", "only the configuration file may have sinks of kind mail, since it names their servers")
    parts = _parts(keys.text("server"))
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
        _check_mail_address(address, keys, key)
    at, zone, every = _times(keys)
    ca = Path(keys.text("ca")) if keys.has("ca") else None
    return MailOptions(
        parts.hostname, parts.port or port, tls, sender, to, user, password, at, zone, every,
        None if ca is None else base / ca,
    )  # fmt: skip


def _check_mail_address(text: str, keys: Keys, key: str) -> None:
    try:
        address = Address(addr_spec=text)
    except (ValueError, IndexError, MessageError):
        address = Address()
    # In ASCII, since others need a server with SMTPUTF8. Without quotes, spaces and comments, which nobody means.
    if not address.domain or address.addr_spec != text or not text.isascii() or set(text) & set(' "(),:;<>\\'):
        raise keys.bad(key, "write addresses like ann@example.org")


def _times(keys: Keys) -> tuple[int | None, ZoneInfo | None, int]:
    """When digests are sent: `at` with `zone`, or `every`."""
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


def _command(keys: Keys, base: Path) -> CommandOptions:
    if keys.live:
        raise keys.bad("kind", "only the configuration file may have sinks of kind command")
    command = keys.texts("command")
    if not command:
        raise keys.bad("command", 'write the program and its arguments, as in ["notify", "--title", "News"]')
    return CommandOptions(command)


def _jsonl(keys: Keys, base: Path) -> JsonlOptions:
    return JsonlOptions(_path(keys, base))


def _parquet(keys: Keys, base: Path) -> ParquetOptions:
    rows = keys.number("rows", 100_000, 1, 10_000_000)
    return ParquetOptions(_path(keys, base), rows, keys.duration("every", HOUR, least=SECOND) or HOUR)


def _atom(keys: Keys, base: Path) -> AtomOptions:
    url = keys.text("url", most=2_000)
    check_web_address(url, keys)
    return AtomOptions(_path(keys, base), url.rstrip("/") + "/", keys.text("title", "") if keys.has("title") else "")


def _path(keys: Keys, base: Path) -> Path:
    """The path of a sink's file or directory. What is added live lies in a directory of the state."""
    text = keys.text("path")
    if keys.live and not _FILE_NAME.fullmatch(text):
        advice = "to write elsewhere, define the sink in the configuration file"
        raise keys.bad("path", f"write a file name without a directory: it is made in {base}; {advice}")
    return base / Path(text).expanduser()


def _parts(url: str) -> SplitResult | None:
    """The parts of an address whose port is one; None for what is no address."""
    try:
        parts = urlsplit(url)
        return parts if not any(char.isspace() for char in url) and parts.port != 0 else None
    except ValueError:
        return None


KINDS: Mapping[str, Callable[[Keys, Path], Options]] = MappingProxyType(
    {
        "webhook": _webhook,
        "mail": _mail,
        "command": _command,
        "jsonl": _jsonl,
        "parquet": _parquet,
        "atom": _atom,
    }
)
"""Reads the options of each kind. Paths are relative to the directory that is given."""

PUSH_KINDS, FILE_KINDS = ("webhook", "mail", "command"), ("jsonl", "parquet", "atom")
"""The kinds that send messages, and those that write files."""
