"""Reads the keys of a table that defines a sink: checks each one, and refuses those that are left over."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, time
from difflib import get_close_matches
from typing import Any

from common.errors import InputError, InvalidValue
from xscl.windows import duration_us

SECRET_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
"""The form of a secret's name."""

_NAME_ADVICE = "a secret's name is made of lower-case letters, digits, - and _, and has at most 40"


class BadSink(InputError, ValueError):
    """The definition of a sink or secret is at fault. The message names its place, and contains no secret."""


@dataclass(frozen=True, slots=True)
class SecretName:
    """Stands for a secret by its name."""

    name: str


class Keys:
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
