"""Secrets: named in definitions, kept in files or in the environment, and read when they are used.

Tables, commands, logs and errors have their names only.
"""

from __future__ import annotations

import base64
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from common.errors import InputError
from common.private import make_inside, make_state
from common.whole_file import sync_directory
from mmqjp.sinks.keys import SECRET_NAME, BadSink, SecretName, check_secret_name

SECRETS = "secrets"
"""The directory, in that of the state, of the secrets that `mmqjp sinks secret` has made."""

RESERVED = frozenset({"token"})
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


Source = FileSecret | EnvSecret


def read_sources(table: Mapping[str, Any], base: Path, *, file: str) -> dict[str, Source]:
    """Returns where the secrets of a table `[secrets]` are. Paths are relative to `base`. Raises BadSink."""
    return {name: _source(name, given, base, f"the configuration {file}: secrets") for name, given in table.items()}


def _source(name: str, given: object, base: Path, place: str) -> Source:
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

    def __init__(self, sources: Mapping[str, Source] | None = None, state: Path | None = None) -> None:
        self._sources, self._state = dict(sources or {}), state

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self.names())})"

    def renew(self, sources: Mapping[str, Source]) -> None:
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
                yield from (name for name in names if SECRET_NAME.fullmatch(name) and name not in RESERVED)


def make_secret(state: Path, name: str) -> str:
    """Makes a secret in the directory of a state, and returns it: 32 random bytes, as Standard Webhooks writes them.

    Raises BadSink, SecretError if it exists, and OSError.
    """
    check_secret_name(name)
    if name in RESERVED:
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


def _value(name: str, source: Source) -> str:
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
        texts += _parts(urlsplit(value))
    for text in texts:
        if len(text) >= SHORTEST:
            yield from sorted({text, quote(text), base64.b64encode(text.encode()).decode()}, key=len, reverse=True)


def _parts(address: SplitResult) -> Iterator[str]:
    """Yields what is secret of an address, whole before its parts."""
    yield address._replace(scheme="", netloc="").geturl()
    user, password = (unquote(part or "") for part in (address.username, address.password))
    yield from (f"{user}:{password}", password or user)
    words = [*address.path.split("/"), *(word for _, word in parse_qsl(address.query))]
    yield from (word for word in words if len(word) >= LIKE_A_KEY)
