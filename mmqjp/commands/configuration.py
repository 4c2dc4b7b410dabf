"""The configuration: a TOML file whose keys are options, of all commands that have them or of one command.

engine = "duckdb"

[stream]
source = ["drops/"]
state = "state/"
keep = "30d"

Its tables `[secrets]` and `[sinks.NAME]` are read by `mmqjp.sinks.tables`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

NAME = "mmqjp.toml"

SINK_TABLES = frozenset({"secrets", "sinks"})
"""The tables that have no options."""

DefaultMap = dict[str, Any]
"""Values of options by command and parameter, in click's format. For a group, the value is a map of its commands."""


def configuration_files() -> list[Path]:
    """The default configuration files: in the current directory, then in the user's configuration directory."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    home = base if base.is_absolute() else Path("~/.config").expanduser()
    return [Path(NAME), home / "mmqjp" / NAME]


def configured(group: click.Group, chosen: Path | None) -> DefaultMap:
    """The settings for the commands of a group: of the chosen file, else of all default files that exist.

    An earlier file takes precedence. Raises UsageError for a file that cannot be read and for keys that are not
    options.
    """
    found: DefaultMap = {}
    for path, settings in read_configurations(chosen):
        if SINK_TABLES & settings.keys():
            _check_sinks(settings, path)
        options = {key: value for key, value in settings.items() if key not in SINK_TABLES}
        found = _merged(_defaults(group, options, path), found)
    return found


def read_configurations(chosen: Path | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The content of the chosen file, else of all default files that exist. Raises UsageError."""
    for path in configuration_files() if chosen is None else [chosen]:
        try:
            yield path, tomllib.loads(path.read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            if chosen is not None:
                raise click.UsageError(f"the configuration {path} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise click.UsageError(f"the configuration {path} cannot be read: {error}; correct or remove it") from None


def _check_sinks(settings: Mapping[str, Any], path: Path) -> None:
    # Imported here because few configurations have sinks.
    from mmqjp.sinks.keys import BadSink
    from mmqjp.sinks.tables import read_tables

    try:
        read_tables(settings, path)
    except BadSink as error:
        raise click.UsageError(str(error)) from None


def _defaults(group: click.Group, settings: Mapping[str, Any], path: Path, prefix: str = "") -> DefaultMap:
    """The values of a table by command.

    A key outside the commands' tables applies to all commands that accept it. A command's own table takes precedence.
    """
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
    """The value for all commands of a group that have the option and accept the value.

    Options of the same name may accept different values. Raises UsageError if no command accepts this one.
    """
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
    """The commands of a group and of its subgroups, each with the names that lead to it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, (*names, name))
        else:
            yield (*names, name), command


def _merged(lower: DefaultMap, upper: DefaultMap) -> DefaultMap:
    """Both maps together. Where they conflict, the upper one wins."""
    both = {key: _merged(lower[key], upper[key]) for key in lower.keys() & upper.keys() if isinstance(lower[key], dict)}
    return {**lower, **upper, **both}


@dataclass(frozen=True, slots=True)
class _Setting:
    """An option under one of its names. The negative name of a flag, like --watch of --once, has the opposite value."""

    option: click.Option | click.Argument
    opposite: bool = False

    def default(self, path: Path, key: str, value: Any) -> dict[str, Any]:
        """The option's parameter with a value. Raises UsageError for a value that it does not accept."""
        found = _value(path, key, self.option, value)
        return {self.option.name or key: not found if self.opposite else found}


def _parameters(command: click.Command) -> dict[str, _Setting]:
    """The options of a command by their long names, without the dashes, and optional lists of arguments by their
    names."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    arguments = [
        one for one in command.params if isinstance(one, click.Argument) and one.nargs == -1 and not one.required
    ]
    names = [(name, _Setting(option)) for option in options for name in option.opts]
    names += [(name, _Setting(option, True)) for option in options for name in option.secondary_opts]
    long = {name.removeprefix("--"): setting for name, setting in names if name.startswith("--")}
    return {argument.name or "": _Setting(argument) for argument in arguments} | long


def _value(path: Path, key: str, option: click.Option | click.Argument, value: Any) -> Any:
    """Converts a value to what the command line would give.

    An option whose type has `takes_table` also accepts a table; its entries become NAME=VALUE.
    """
    if getattr(option.type, "takes_table", False):
        entries = [f"{name}={one}" for name, one in value.items()] if isinstance(value, dict) else value
        value = entries if isinstance(entries, list) else [entries]
    values = value if isinstance(value, list) else [value]
    several = option.multiple or option.nargs == -1
    if any(not isinstance(one, str | int | float) for one in values) or (several != isinstance(value, list)):
        expected = "a list of strings" if several else "a string, a number, or true or false"
        raise click.UsageError(f"the configuration {path} has {key} = {value!r}; write {expected}")
    if isinstance(option, click.Option) and option.is_flag:
        if not isinstance(value, bool):
            raise click.UsageError(f"the configuration {path} has {key} = {value!r}; write true or false")
        return value
    context = click.Context(click.Command("mmqjp"))
    for one in values if not isinstance(option.type, click.Path) else ():  # a path is checked when it is used
        try:
            option.type.convert(str(one), option, context)
        except click.BadParameter as error:
            raise click.UsageError(f"the configuration {path} has {key} = {one!r}: {error.message}") from None
    return [str(one) for one in values] if several else str(value)


def _unknown(path: Path, key: str, known: Iterable[str]) -> click.UsageError:
    """The error for a key that is no setting: it names the nearest one, or all."""
    table, dot, last = key.rpartition(".")
    names = sorted({name.removeprefix(table + dot) for name in known})
    if close := get_close_matches(last, names, 1):
        advice = f'did you mean "{table}{dot}{close[0]}"?'
    else:
        advice = "the known ones are " + ", ".join(f'"{table}{dot}{name}"' for name in names)
    return click.UsageError(f'the configuration {path} has an unknown setting "{key}"; {advice}')
