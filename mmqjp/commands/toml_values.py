"""Keys and values on the command line, as a configuration file would have them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

import click


def table_of(given: Iterable[str], *, empty: bool = False) -> dict[str, Any]:
    """Returns the table that texts like KEY=VALUE make. A value that begins with a bracket, a brace or a quote is TOML,
    as are whole numbers, true and false; others are texts. An `empty` one may be given, and becomes None.

    >>> table_of(["kind=mail", 'to=["a@b.example"]', "most=5", "starttls=false"])
    {'kind': 'mail', 'to': ['a@b.example'], 'most': 5, 'starttls': False}
    """
    table: dict[str, Any] = {}
    for one in given:
        key, equals, value = one.partition("=")
        key = key.strip()
        # What was given is not shown: it may be a secret.
        if not equals or not key.isprintable() or not key:
            raise click.UsageError("write KEY=VALUE for each key of the sink")
        if key in table:
            raise click.UsageError(f'{key[:60]} is given twice; write a list, as in \'queries=["a", "b"]\'')
        if not value and not empty:
            raise click.UsageError(f"{key[:60]} has no value")
        table[key] = _value(key, value) if value else None
    return table


def _value(key: str, text: str) -> Any:
    if not (text[0] in "[{\"'" or text in ("true", "false") or (text.isascii() and text.isdecimal())):
        return text
    try:
        return tomllib.loads(f"value = {text.lstrip('0') or '0' if text.isdecimal() else text}")["value"]
    except tomllib.TOMLDecodeError:
        raise click.UsageError(f"the value of {key[:60]} is no TOML; mind the quotes of the shell") from None
