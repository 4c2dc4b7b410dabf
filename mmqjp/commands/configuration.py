"""Configuration files: the options of commands, sinks, and the settings of feeds, in TOML."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import click

from common.files import with_home

NAME = "mmqjp.toml"

SINK_TABLES = frozenset({"secrets", "sinks"})
FEED_TABLES = frozenset({"feed", "folder"})

DefaultMap = dict[str, Any]  # option values by command and parameter, nested for groups, in click's format


def configured(group: click.Group, chosen: Path | None) -> DefaultMap:
    """Returns the settings of a group's commands: of the chosen file, else of all existing default files, earlier ones
    first. Raises UsageError for an unreadable file or an unknown key."""
    found: DefaultMap = {}
    for path, settings in read_configurations(chosen):
        if SINK_TABLES & settings.keys():
            # Imported here because few configurations have sinks.
            from mmqjp.sinks.definition import read_tables
            from mmqjp.sinks.secrets import BadSink

            try:
                read_tables(settings, path)
            except BadSink as error:
                raise click.UsageError(str(error)) from None
        if FEED_TABLES & settings.keys():
            from feeds.fetch.settings import BadSettings, read_feed_tables  # as above

            try:
                read_feed_tables(settings, path)
            except BadSettings as error:
                raise click.UsageError(str(error)) from None
        options = {key: value for key, value in settings.items() if key not in SINK_TABLES | FEED_TABLES}
        found = _merged(_defaults(group, options, path), found)
    return found


def read_configurations(chosen: Path | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields the chosen file, else all existing default files, parsed: in the current directory, then in the user's
    configuration directory. Raises UsageError."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    home = base if base.is_absolute() else with_home("~/.config")
    for path in [Path(NAME), home / "mmqjp" / NAME] if chosen is None else [chosen]:
        try:
            yield path, tomllib.loads(path.read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            if chosen is not None:
                raise click.UsageError(f"the configuration {path} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise click.UsageError(f"the configuration {path} cannot be read: {error}; correct or remove it") from None


def _defaults(group: click.Group, settings: Mapping[str, Any], path: Path, prefix: str = "") -> DefaultMap:
    """Returns a table's values by command. A command's own table precedes keys for all that accept them."""
    tables = {key: value for key, value in settings.items() if isinstance(value, dict) and key in group.commands}
    found: DefaultMap = {name: {} for name in group.commands}
    for key in settings.keys() - tables.keys():
        found = _merged(_for_all(group, key, settings[key], path, prefix), found)
    for name, table in tables.items():
        command = group.commands[name]
        if isinstance(command, click.Group):
            found = _merged(found, {name: _defaults(command, table, path, f"{prefix}{name}.")})
            continue
        keys = _parameters(command)
        for key, value in table.items():
            if key not in keys:
                raise _unknown(path, f"{prefix}{name}.{key}", [f"{prefix}{name}.{known}" for known in keys])
            found[name] |= keys[key].default(path, f"{prefix}{name}.{key}", value)
    return found


def _for_all(group: click.Group, key: str, value: Any, path: Path, prefix: str) -> DefaultMap:
    """Applies a value to all commands of a group that have the option and accept the value: options with the same name
    may differ. Raises UsageError if none accepts it."""
    found: DefaultMap = {}
    refused: click.UsageError | None = None
    for names, command in _commands(group):
        if (setting := _parameters(command).get(key)) is not None:
            try:
                entry = setting.default(path, f"{prefix}{key}", value)
            except click.UsageError as error:
                refused = refused or error
            else:
                for name in reversed(names):
                    entry = {name: entry}
                found = _merged(found, entry)
    if found:
        return found
    known = {f"{prefix}{name}" for _, command in _commands(group) for name in _parameters(command)}
    raise refused or _unknown(path, f"{prefix}{key}", [*known, *(f"{prefix}{name}" for name in group.commands)])


def _commands(group: click.Group, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, (*names, name))
        else:
            yield (*names, name), command


def _merged(lower: DefaultMap, upper: DefaultMap) -> DefaultMap:
    both = {key: _merged(lower[key], upper[key]) for key in lower.keys() & upper.keys() if isinstance(lower[key], dict)}
    return {**lower, **upper, **both}


class _Setting(NamedTuple):
    """An option under one of its names. A flag's negative name, such as --watch for --once, negates the value."""

    option: click.Parameter
    opposite: bool = False

    def default(self, path: Path, key: str, value: Any) -> dict[str, Any]:
        """Raises UsageError for an invalid value."""
        found = _option_value(path, key, self.option, value)
        return {self.option.name or key: not found if self.opposite else found}


def _parameters(command: click.Command) -> dict[str, _Setting]:
    """Returns a command's options by long name without dashes, and optional argument lists by name."""
    found: dict[str, _Setting] = {}
    for one in command.params:
        if isinstance(one, click.Option):
            names = [(name, _Setting(one)) for name in one.opts]
            names += [(name, _Setting(one, True)) for name in one.secondary_opts]
            found |= {name.removeprefix("--"): setting for name, setting in names if name.startswith("--")}
        elif one.nargs == -1 and not one.required:
            found[one.name or ""] = _Setting(one)
    return found


def _option_value(path: Path, key: str, option: click.Parameter, value: Any) -> Any:
    """Converts a value to what the command line would give; a table to NAME=VALUE entries, if the type takes one."""
    if getattr(option.type, "takes_table", False):
        entries = [f"{name}={one}" for name, one in value.items()] if isinstance(value, dict) else value
        value = entries if isinstance(entries, list) else [entries]
    values = value if isinstance(value, list) else [value]
    several, is_flag = option.multiple or option.nargs == -1, getattr(option, "is_flag", False)
    expected = "a list of strings" if several else "a string, a number, or true or false"
    is_fit = all(isinstance(one, str | int | float) for one in values) and several == isinstance(value, list)
    if not is_fit or (is_flag and not isinstance(value, bool)):
        expected = "true or false" if is_fit else expected
        raise click.UsageError(f"the configuration {path} has {key} = {value!r}; write {expected}")
    if is_flag:
        return value
    context = click.Context(click.Command("mmqjp"))
    for one in values if not isinstance(option.type, click.Path) else ():  # a path is checked when it is used
        try:
            option.type.convert(str(one), option, context)
        except click.BadParameter as error:
            raise click.UsageError(f"the configuration {path} has {key} = {one!r}: {error.message}") from None
    return [str(one) for one in values] if several else str(value)


def _unknown(path: Path, key: str, known: Iterable[str]) -> click.UsageError:
    table, dot, last = key.rpartition(".")
    names = sorted({name.removeprefix(table + dot) for name in known})
    if close := get_close_matches(last, names, 1):
        advice = f'did you mean "{table}{dot}{close[0]}"?'
    else:
        advice = "the known ones are " + ", ".join(f'"{table}{dot}{name}"' for name in names)
    return click.UsageError(f'the configuration {path} has an unknown setting "{key}"; {advice}')


def table_of(given: Iterable[str], *, empty: bool = False) -> dict[str, Any]:
    """Parses texts like KEY=VALUE into a table. A value that begins with a bracket, a brace or a quote is TOML, and so
    are whole numbers, true and false; others are text. With `empty`, values may be empty, which gives None.

    >>> table_of(["kind=mail", 'to=["a@b.example"]', "most=5", "starttls=false"])
    {'kind': 'mail', 'to': ['a@b.example'], 'most': 5, 'starttls': False}
    """
    table: dict[str, Any] = {}
    for one in given:
        key, equals, value = one.partition("=")
        key = key.strip()
        # Messages do not quote values, which may be secrets.
        if not equals or not key.isprintable() or not key:
            raise click.UsageError("write KEY=VALUE for each key")
        if key in table:
            raise click.UsageError(f'{key[:60]} is given twice; write a list, as in \'queries=["a", "b"]\'')
        if not value and not empty:
            raise click.UsageError(f"{key[:60]} has no value")
        table[key] = value or None
        is_number = value.isascii() and value.isdecimal()
        if value[:1] in ("[", "{", '"', "'") or value in ("true", "false") or is_number:
            try:
                table[key] = tomllib.loads(f"value = {value.lstrip('0') or '0' if is_number else value}")["value"]
            except tomllib.TOMLDecodeError:
                raise click.UsageError(f"the value of {key[:60]} is no TOML; mind the quotes of the shell") from None
    return table
