"""Secrets of sinks, which definitions name, and which are read from files or the environment when used. Tables,
commands, logs and errors contain only names. Also checks the keys of a sink's table, and signs messages as in Standard
Webhooks 1.0, which authenticates them and prevents replay."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from common.bounds import duration_us
from common.errors import InputError, InvalidValue
from common.files import SECRETS, make_inside, make_secret_file, make_state, with_home
from mmqjp.present.item import truncate
from mmqjp.process import printable_line

SECRET_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")  # the form of a secret's name

_NAME_ADVICE = "a secret's name is made of lower-case letters, digits, - and _, and has at most 40"


class BadSink(InputError, ValueError):
    """The definition of a sink or secret is invalid. The message names its place, and contains no secret."""


@dataclass(frozen=True, slots=True)
class SecretName:
    name: str


class OptionTable:
    """The keys of a table. `place` is the table's place in errors, ready for a key to follow: `the configuration
    x.toml: sinks.a.`. `live`: it is of a live sink. Readers raise BadSink for other values; a missing list is ()."""

    def __init__(self, table: Mapping[str, Any], place: str, *, live: bool = False) -> None:
        self._table, self._place, self.live = dict(table), place, live
        self._known: set[str] = set()

    def has(self, key: str) -> bool:
        self._known.add(key)
        return key in self._table

    def bad(self, key: str, cause: str) -> BadSink:
        return BadSink(f"{self._place}{key}: {cause}")

    def text(self, key: str, default: str | None = None, *, most: int = 1_000) -> str:
        """Returns a text, required unless there is a default. Raises BadSink."""
        if not self.has(key):
            if default is None:
                raise self.bad(key, "this key is missing")
            return default
        found = self._table[key]
        if not isinstance(found, str) or not found:
            raise self.bad(key, "write a text")
        if len(found) > most or not found.isprintable():
            raise self.bad(key, f"write a text of at most {most:,} characters, without line breaks")
        return found

    def word(self, key: str, default: str) -> str:
        """Returns a text, or a TOML number, date or time as text. Raises BadSink."""
        found = self._table[key] if self.has(key) else default
        if isinstance(found, int) and not isinstance(found, bool):
            return str(found)
        return found.isoformat() if isinstance(found, date | time) else self.text(key, default)

    def texts(self, key: str, *, most: int = 100) -> tuple[str, ...]:
        if not self.has(key):
            return ()
        found = self._table[key]
        texts = [found] if isinstance(found, str) else found
        if not isinstance(texts, list) or not texts or not all(isinstance(one, str) and one for one in texts):
            raise self.bad(key, "write a text, or a list of texts")
        if len(texts) > most or any(len(one) > 1_000 or not one.isprintable() for one in texts):
            raise self.bad(key, f"write at most {most:,} texts of at most 1,000 characters, without line breaks")
        return tuple(texts)

    def number(self, key: str, default: int, least: int, most: int) -> int:
        found = self._table[key] if self.has(key) else default
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            raise self.bad(key, f"write a whole number from {least:,} to {most:,}")
        return found

    def flag(self, key: str, *, default: bool = False) -> bool:
        found = self._table[key] if self.has(key) else default
        if not isinstance(found, bool):
            raise self.bad(key, "write true or false")
        return found

    def choice(self, key: str, known: Collection[str], default: str | None = None) -> str:
        found = self.text(key, default)
        if found not in known:
            raise self.bad(key, f"{_shown(found)} is unknown; {_advice(found, known)}")
        return found

    def duration(self, key: str, default: int | None, *, least: int = 0, endless: bool = False) -> int | None:
        """Returns microseconds, or None for INF, if `endless` allows it. Raises BadSink."""
        if not self.has(key):
            return default
        found = self._table[key]
        if isinstance(found, bool) or not isinstance(found, str | int | float):
            raise self.bad(key, 'write a duration like "30s"')
        try:
            length = duration_us(str(found))
        except InvalidValue as error:
            raise self.bad(key, str(error)) from None
        if length is None and not endless:
            raise self.bad(key, "INF is too long here")
        if length is not None and length < least:
            raise self.bad(key, f"write at least {least // 1_000_000} s")
        return length

    def secret(self, key: str) -> SecretName | None:
        if not self.has(key):
            return None
        found = self._table[key]
        if isinstance(found, Mapping) and found.keys() == {"secret"}:
            found = found["secret"]
        return self._named(key, found)

    def secrets(self, key: str) -> tuple[SecretName, ...]:
        if not self.has(key):
            return ()
        found = self._table[key]
        return tuple(self._named(key, one) for one in (found if isinstance(found, list) else [found]))

    def text_or_secret(self, key: str) -> str | SecretName:
        """Returns a text, or the secret of `{ secret = "NAME" }`. Raises BadSink."""
        if self.has(key) and isinstance(self._table[key], Mapping):
            if self._table[key].keys() != {"secret"}:
                raise self.bad(key, 'write a text, or { secret = "NAME" }')
            return self._named(key, self._table[key]["secret"])
        return self.text(key, most=2_000)

    def end(self) -> None:
        for key in sorted(self._table.keys() - self._known):
            raise self.bad(_shown(key).strip("'"), f"there is no such key; {_advice(key, self._known)}")

    def _named(self, key: str, found: object) -> SecretName:
        """The error never shows the value, which may be the secret itself."""
        if not isinstance(found, str) or not SECRET_NAME.fullmatch(found):
            raise self.bad(key, f"name a secret, do not write it here; {_NAME_ADVICE}")
        return SecretName(found)


def check_secret_name(name: str, place: str = "") -> None:
    if not SECRET_NAME.fullmatch(name):
        raise BadSink(f"{place}{_NAME_ADVICE}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")


def _advice(found: str, known: Collection[str]) -> str:
    if close := get_close_matches(found, known, 1):
        return f'did you mean "{close[0]}"?'
    return "the known ones are " + ", ".join(f'"{name}"' for name in sorted(known))


RESERVED_SECRET_NAMES = frozenset({"token", "push-token"})  # files there that no sink may name: of the page

MOST_BYTES = 64 << 10
SHORTEST = 4  # shorter values are not redacted: they are parts of words
LIKE_A_KEY = 16  # a part of a secret URL with this many characters may be a key by itself

_READ_BY_OTHERS = 0o044


class SecretError(InputError, ValueError):
    """A secret cannot be read. The message has its name, and never its value."""


@dataclass(frozen=True, slots=True)
class FileSecret:
    path: Path


@dataclass(frozen=True, slots=True)
class EnvSecret:
    variable: str


SecretSource = FileSecret | EnvSecret


def read_sources(table: Mapping[str, Any], base: Path, *, file: str) -> dict[str, SecretSource]:
    """Returns the sources of the secrets in a table `[secrets]`. Paths are relative to `base`. Raises BadSink."""
    sources: dict[str, SecretSource] = {}
    place = f"the configuration {file}: secrets"
    for name, given in table.items():
        check_secret_name(name, f"{place}: ")
        match given:
            case {"file": str(path), **more} if path and "\0" not in path and not more:
                sources[name] = FileSecret(base / with_home(path))
            case {"env": str(variable), **more} if variable and not more:
                sources[name] = EnvSecret(variable)
            case _:  # what was given is not shown: it may be the secret
                advice = 'write { file = "PATH" } or { env = "VARIABLE" }, not the secret itself'
                raise BadSink(f"{place}.{name}: {advice}")
    return sources


class Secrets:
    __slots__ = ("_sources", "_state")

    def __init__(self, sources: Mapping[str, SecretSource] | None = None, state: Path | None = None) -> None:
        self._sources, self._state = dict(sources or {}), state

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self.names())})"

    def renew(self, sources: Mapping[str, SecretSource]) -> None:
        self._sources = dict(sources)

    def names(self) -> list[str]:
        return sorted({*self._sources, *self._made()})

    def variables(self) -> set[str]:
        return {source.variable for source in self._sources.values() if isinstance(source, EnvSecret)}

    def value(self, name: str | SecretName) -> str:
        """Returns a secret, stripped of white space. Raises SecretError."""
        name = name.name if isinstance(name, SecretName) else name
        source = self._sources.get(name)
        if source is None and self._state is not None and name in self._made():
            source = FileSecret(self._state / SECRETS / name)
        if source is None:
            # The name is not shown: somebody may have written the secret in its place.
            known = ", ".join(self.names()) or "none"
            raise SecretError(f"a secret is named that is not known (known: {known}); mmqjp sinks secret makes one")
        return _value(name, source)

    def check(self, names: Iterable[SecretName]) -> None:
        for name in names:
            self.value(name)

    def address(self, url: str | SecretName) -> str:
        """Returns a URL, resolving a secret one. Raises SecretError."""
        if isinstance(url, str):
            return url
        found = self.value(url)
        if not _host(found):
            raise SecretError(f"the secret {url.name} is not an http or https address")
        return found

    def shown_address(self, url: str | SecretName) -> str:
        """Returns a URL for display; of a secret one only the host."""
        if isinstance(url, str):
            return url
        try:
            return _host(self.value(url)) or f"secret {url.name}"
        except SecretError:
            return f"secret {url.name}"

    def shown(self, text: str, most: int) -> str:
        """A text of somebody else on one line, without secrets and cut."""
        return truncate(printable_line(self.redacted(text)), most)

    def redacted(self, text: str) -> str:
        """Replaces secrets in a text by their names, as replies may repeat what we sent."""
        for name in self.names():
            with suppress(SecretError):
                for spelling in _spellings(self.value(name)):
                    text = text.replace(spelling, f"[secret {name}]")
        return text

    def _made(self) -> Iterator[str]:
        if self._state is not None:
            with suppress(OSError):
                names = [entry.name for entry in os.scandir(self._state / SECRETS)]
                yield from (name for name in names if SECRET_NAME.fullmatch(name) and name not in RESERVED_SECRET_NAMES)


def make_secret(state: Path, name: str) -> str:
    """Makes and returns 32 random bytes as in Standard Webhooks. Raises BadSink, SecretError if there, OSError."""
    value = f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"
    store_secret(state, name, value)
    return value


def store_secret(state: Path, name: str, value: str) -> None:
    """Raises BadSink, SecretError if there is one or the value cannot be one, OSError."""
    check_secret_name(name)
    if name in RESERVED_SECRET_NAMES:
        raise BadSink(f"the name {name} is reserved: choose another one")
    if not value or not value.isprintable() or len(value.encode("utf-8", "replace")) > MOST_BYTES:
        raise SecretError(f"the secret {name} is empty, too long, or has control characters; write one line")
    make_state(state)
    directory = make_inside(state, SECRETS)
    directory.chmod(0o700)  # also of a shared state
    if not make_secret_file(directory / name, f"{value}\n".encode()):
        raise SecretError(f"the secret {name} exists; remove {directory / name} to make it anew")


def _value(name: str, source: SecretSource) -> str:
    if isinstance(source, FileSecret):
        value = _from_file(name, source.path)
    elif (found := os.environ.get(source.variable)) is not None:
        value = found
    else:
        raise SecretError(f"the secret {name} is not there: the environment has no {source.variable}")
    if not (value := value.strip()):
        raise SecretError(f"the secret {name} is empty")
    if not value.isprintable():
        raise SecretError(f"the secret {name} has several lines, or control characters")
    return value


def _from_file(name: str, path: Path) -> str:
    try:
        # Does not wait for a writer if the path is a pipe.
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SecretError(f"the secret {name} cannot be read: {path} is not a file")
            if status.st_mode & _READ_BY_OTHERS:
                raise SecretError(f"the secret {name} is refused: others can read {path}; chmod 600 {path}")
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise SecretError(f"the secret {name} cannot be read: {path}: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise SecretError(f"the secret {name} is refused: {path} has more than {MOST_BYTES:,} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise SecretError(f"the secret {name} is refused: {path} is not UTF-8 text") from None


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        return (parts.hostname or "") if parts.scheme in ("http", "https") else ""
    except ValueError:
        return ""


def _spellings(value: str) -> Iterator[str]:
    """Yields the forms in which a secret may come back: literal, URL-encoded, Base64; for a secret URL also its path,
    the part before its host, and parts as long as a key."""
    texts = [value, value.removeprefix("whsec_")]
    if _host(value):
        texts += _secret_parts(urlsplit(value))
    for text in texts:
        if len(text) >= SHORTEST:
            yield from sorted({text, quote(text), base64.b64encode(text.encode()).decode()}, key=len, reverse=True)


def _secret_parts(address: SplitResult) -> Iterator[str]:
    yield address._replace(scheme="", netloc="").geturl()
    user, password = (unquote(part or "") for part in (address.username, address.password))
    yield from (f"{user}:{password}", password or user)
    words = [*address.path.split("/"), *(word for _, word in parse_qsl(address.query))]
    yield from (word for word in words if len(word) >= LIKE_A_KEY)


SECRET_PREFIX = "whsec_"


def signing_key(secret: str) -> bytes | None:
    """Returns the key of a secret, which is Base64 after a prefix; None for other secrets."""
    text = secret.removeprefix(SECRET_PREFIX)
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True) or None
    except (binascii.Error, ValueError):
        return None


def signature(keys: Iterable[bytes], id: str, timestamp: int, body: bytes) -> str:
    """Returns the header `webhook-signature` with a signature per key. `timestamp` is in seconds."""
    signed = f"{id}.{timestamp}.".encode() + body
    made = (base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys)
    return " ".join(f"v1,{one}" for one in made)
