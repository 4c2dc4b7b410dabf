"""Secrets: named in definitions, kept in files or in the environment, and read when they are used.

Tables, commands, logs and errors have their names only.

Reads the keys of a table that defines a sink: checks each one, and refuses those that are left over.

Signatures of Standard Webhooks 1.0: who holds a secret can tell that a message is ours, and not an old one.
"""

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

from common.errors import InputError, InvalidValue
from common.files import make_inside, make_state, sync_directory
from mmqjp.syndication.atom import SECRETS
from xscl.text import duration_us

SECRET_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
"""The form of a secret's name."""

_NAME_ADVICE = "a secret's name is made of lower-case letters, digits, - and _, and has at most 40"


class BadSink(InputError, ValueError):
    """The definition of a sink or secret is at fault. The message names its place, and contains no secret."""


@dataclass(frozen=True, slots=True)
class SecretName:
    """Stands for a secret by its name."""

    name: str


class OptionTable:
    """The keys of a table.

    `place` says in errors where the table is, and ends so that a key can follow: `the configuration x.toml: sinks.a.`.
    A live table may not have the keys that only the file may have.
    """

    def __init__(self, table: Mapping[str, Any], place: str, *, live: bool = False) -> None:
        self._table, self._place, self.live = dict(table), place, live
        self._known: set[str] = set()

    def has(self, key: str) -> bool:
        """Returns whether the table has a key."""
        self._known.add(key)
        return key in self._table

    def bad(self, key: str, cause: str) -> BadSink:
        """Returns the error about the value of a key."""
        return BadSink(f"{self._place}{key}: {cause}")

    def only_in_file(self, *keys: str) -> None:
        """Refuses keys of a live table that only the configuration file may have. Raises BadSink."""
        for key in keys:
            if self.has(key) and self.live:
                raise self.bad(key, "only a sink of the configuration file may have this key")

    def text(self, key: str, default: str | None = None, *, most: int = 1_000) -> str:
        """Returns a text. Without a default, it must be there. Raises BadSink."""
        if not self.has(key) and default is not None:
            return default
        found = self._given(key)
        if not isinstance(found, str) or not found:
            raise self.bad(key, "write a text")
        if len(found) > most or not found.isprintable():
            raise self.bad(key, f"write a text of at most {most:,} characters, without line breaks")
        return found

    def word(self, key: str, default: str) -> str:
        """Returns a text, also of a number, date or time, which TOML knows. Raises BadSink."""
        found = self._table[key] if self.has(key) else default
        if isinstance(found, int) and not isinstance(found, bool):
            return str(found)
        return found.isoformat() if isinstance(found, date | time) else self.text(key, default)

    def texts(self, key: str, *, most: int = 100) -> tuple[str, ...]:
        """Returns a list of texts, or of the one text that is given; () if the key is missing. Raises BadSink."""
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
        """Returns a whole number. Raises BadSink."""
        found = self._table[key] if self.has(key) else default
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            raise self.bad(key, f"write a whole number from {least:,} to {most:,}")
        return found

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Returns true or false. Raises BadSink."""
        found = self._table[key] if self.has(key) else default
        if not isinstance(found, bool):
            raise self.bad(key, "write true or false")
        return found

    def choice(self, key: str, known: Collection[str], default: str | None = None) -> str:
        """Returns one of the known texts. Raises BadSink."""
        found = self.text(key, default)
        if found not in known:
            raise self.bad(key, f"{_shown(found)} is none; {_advice(found, known)}")
        return found

    def duration(self, key: str, default: int | None, *, least: int = 0, endless: bool = False) -> int | None:
        """Returns a duration in microseconds, None for INF, which only an `endless` one may be. Raises BadSink."""
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
        """Returns the secret that a key names; None if the key is missing. Raises BadSink."""
        if not self.has(key):
            return None
        found = self._table[key]
        if isinstance(found, Mapping) and found.keys() == {"secret"}:
            found = found["secret"]
        return self._named(key, found)

    def secrets(self, key: str) -> tuple[SecretName, ...]:
        """Returns the secrets that a key names, one or a list; () if the key is missing. Raises BadSink."""
        if not self.has(key):
            return ()
        found = self._table[key]
        return tuple(self._named(key, one) for one in (found if isinstance(found, list) else [found]))

    def text_or_secret(self, key: str) -> str | SecretName:
        """Returns a text, or the secret that has it: `{ secret = "NAME" }`. Raises BadSink."""
        if self.has(key) and isinstance(self._table[key], Mapping):
            if self._table[key].keys() != {"secret"}:
                raise self.bad(key, 'write a text, or { secret = "NAME" }')
            return self._named(key, self._table[key]["secret"])
        return self.text(key, most=2_000)

    def end(self) -> None:
        """Refuses keys that nobody asked for. Raises BadSink."""
        for key in sorted(self._table.keys() - self._known):
            raise self.bad(_shown(key).strip("'"), f"there is no such key; {_advice(key, self._known)}")

    def _given(self, key: str) -> Any:
        if not self.has(key):
            raise self.bad(key, "this key is missing")
        return self._table[key]

    def _named(self, key: str, found: object) -> SecretName:
        """Never shows what was given: it may be the secret itself."""
        if not isinstance(found, str) or not SECRET_NAME.fullmatch(found):
            raise self.bad(key, f"name a secret, do not write it here; {_NAME_ADVICE}")
        return SecretName(found)


def check_secret_name(name: str, place: str = "") -> None:
    """Raises BadSink if a text cannot be the name of a secret."""
    if not SECRET_NAME.fullmatch(name):
        raise BadSink(f"{place}{_NAME_ADVICE}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")


def _advice(found: str, known: Collection[str]) -> str:
    if close := get_close_matches(found, known, 1):
        return f'did you mean "{close[0]}"?'
    return "the known ones are " + ", ".join(f'"{name}"' for name in sorted(known))


RESERVED_SECRET_NAMES = frozenset({"token"})
"""Files there that no sink may name: the token of the page."""

MOST_BYTES = 64 << 10
"""No secret is larger."""

SHORTEST = 4
"""Shorter values are not looked for in texts: they are parts of words."""

LIKE_A_KEY = 16
"""A part of a secret address with so many characters may be a key by itself."""

_READ_BY_OTHERS = 0o044


class SecretError(InputError, ValueError):
    """A secret cannot be read. The message has its name, and never its value."""


@dataclass(frozen=True, slots=True)
class FileSecret:
    """A secret that is the content of a file."""

    path: Path


@dataclass(frozen=True, slots=True)
class EnvSecret:
    """A secret that is the value of an environment variable."""

    variable: str


SecretSource = FileSecret | EnvSecret


def read_sources(table: Mapping[str, Any], base: Path, *, file: str) -> dict[str, SecretSource]:
    """Returns where the secrets of a table `[secrets]` are. Paths are relative to `base`. Raises BadSink."""
    return {name: _source(name, given, base, f"the configuration {file}: secrets") for name, given in table.items()}


def _source(name: str, given: object, base: Path, place: str) -> SecretSource:
    check_secret_name(name, f"{place}: ")
    match given:
        case {"file": str(path), **more} if path and not more:
            return FileSecret(base / Path(path).expanduser())
        case {"env": str(variable), **more} if variable and not more:
            return EnvSecret(variable)
    # What was given is not shown: it may be the secret.
    raise BadSink(f'{place}.{name}: write {{ file = "PATH" }} or {{ env = "VARIABLE" }}, not the secret itself')


class Secrets:
    """The secrets of a configuration, and those in the directory of a state."""

    __slots__ = ("_sources", "_state")

    def __init__(self, sources: Mapping[str, SecretSource] | None = None, state: Path | None = None) -> None:
        self._sources, self._state = dict(sources or {}), state

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self.names())})"

    def renew(self, sources: Mapping[str, SecretSource]) -> None:
        """Takes over the secrets of a configuration that was read anew."""
        self._sources = dict(sources)

    def names(self) -> list[str]:
        """Returns the names of the known secrets."""
        return sorted({*self._sources, *self._made()})

    def variables(self) -> set[str]:
        """Returns the environment variables that hold secrets."""
        return {source.variable for source in self._sources.values() if isinstance(source, EnvSecret)}

    def value(self, name: str | SecretName) -> str:
        """Returns a secret, without white space around it. Raises SecretError."""
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
        """Raises SecretError if one of the secrets is not known or cannot be read."""
        for name in names:
            self.value(name)

    def address(self, url: str | SecretName) -> str:
        """Returns an address, or the one that is a secret. Raises SecretError."""
        if isinstance(url, str):
            return url
        found = self.value(url)
        if not _host(found):
            raise SecretError(f"the secret {url.name} is no http or https address")
        return found

    def shown_address(self, url: str | SecretName) -> str:
        """Returns an address as it may be shown: of a secret one the host alone."""
        if isinstance(url, str):
            return url
        try:
            return _host(self.value(url)) or f"secret {url.name}"
        except SecretError:
            return f"secret {url.name}"

    def redacted(self, text: str) -> str:
        """Returns a text in which the names of secrets stand for them: what others say may repeat what we sent."""
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
    """Makes a secret in the directory of a state, and returns it: 32 random bytes, as Standard Webhooks writes them.

    Raises BadSink, SecretError if it exists, and OSError.
    """
    check_secret_name(name)
    if name in RESERVED_SECRET_NAMES:
        raise BadSink(f"the name {name} is reserved: choose another one")
    value = f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"
    make_state(state)
    directory = make_inside(state, SECRETS)
    directory.chmod(0o700)  # also of a shared state
    try:
        handle = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise SecretError(f"the secret {name} exists; remove {directory / name} to make it anew") from None
    with os.fdopen(handle, "w") as file:
        file.write(value + "\n")
        file.flush()
        os.fsync(file.fileno())
    sync_directory(directory)
    return value


def _value(name: str, source: SecretSource) -> str:
    value = _from_environment(name, source) if isinstance(source, EnvSecret) else _from_file(name, source.path)
    if not (value := value.strip()):
        raise SecretError(f"the secret {name} is empty")
    if not value.isprintable():
        raise SecretError(f"the secret {name} has several lines, or control characters")
    return value


def _from_environment(name: str, source: EnvSecret) -> str:
    found = os.environ.get(source.variable)
    if found is None:
        raise SecretError(f"the secret {name} is not there: the environment has no {source.variable}")
    return found


def _from_file(name: str, path: Path) -> str:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SecretError(f"the secret {name} cannot be read: {path} is no file")
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


def _open_at_once(path: str, flags: int) -> int:
    """Does not wait for a writer, should the path be a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        return (parts.hostname or "") if parts.scheme in ("http", "https") else ""
    except ValueError:
        return ""


def _spellings(value: str) -> Iterator[str]:
    """Yields the forms in which a secret may come back: as it is, in an address, and in Base64. Of a secret address
    also what follows its host, what stands before that, and what is as long as a key."""
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
    """Returns the key that a secret stands for, which is Base64 after its prefix. None if it is something else."""
    text = secret.removeprefix(SECRET_PREFIX)
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True) or None
    except (binascii.Error, ValueError):
        return None


def signature(keys: Iterable[bytes], id: str, timestamp: int, body: bytes) -> str:
    """Returns the header `webhook-signature`: one signature a key. `timestamp` is in seconds."""
    signed = f"{id}.{timestamp}.".encode() + body
    made = (base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys)
    return " ".join(f"v1,{one}" for one in made)
