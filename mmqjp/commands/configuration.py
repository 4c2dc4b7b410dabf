"""The configuration: a TOML file whose keys are options, for all commands that have them or for one.

engine = "duckdb"

[stream]
source = ["drops/"]
state = "state/"
keep = "30d"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

NAME = "mmqjp.toml"

DefaultMap = dict[str, Any]
"""Values of options by command and parameter, as click takes them; a group has such a map of its commands."""


def configuration_files() -> list[Path]:
    """Where a configuration may be: the current directory, then the user's configuration directory."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    home = base if base.is_absolute() else Path("~/.config").expanduser()
    return [Path(NAME), home / "mmqjp" / NAME]


def configured(group: click.Group, chosen: Path | None) -> DefaultMap:
    """What the configuration says for the commands of a group: that in the file that was chosen, else what the files do
    that are there, the first of them first. UsageError for what cannot be read and for keys that are no options."""
    found: DefaultMap = {}
    for path in configuration_files() if chosen is None else [chosen]:
        try:
            settings = tomllib.loads(path.read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            if chosen is None:
                continue
            raise click.UsageError(f"the configuration {path} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise click.UsageError(f"the configuration {path} cannot be read: {error}; mend or remove it") from None
        found = _merged(_defaults(group, settings, path), found)
    return found


def _defaults(group: click.Group, settings: Mapping[str, Any], path: Path, prefix: str = "") -> DefaultMap:
    """The values of a table by command: what stands first in it is for all commands of the group that take it, and
    goes behind what a command's own table says."""
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
    """A value for all commands of a group that have such an option and take it: options of one name may want different
    things. UsageError if none takes it."""
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
    """The commands of a group and of the groups in it, by their names."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, (*names, name))
        else:
            yield (*names, name), command


def _merged(lower: DefaultMap, upper: DefaultMap) -> DefaultMap:
    """Both, where what the upper one says goes first."""
    both = {key: _merged(lower[key], upper[key]) for key in lower.keys() & upper.keys() if isinstance(lower[key], dict)}
    return {**lower, **upper, **both}


@dataclass(frozen=True, slots=True)
class _Setting:
    """An option by one of its names. That of two for one flag that says no has the opposite value."""

    option: click.Option
    opposite: bool = False

    def default(self, path: Path, key: str, value: Any) -> dict[str, Any]:
        """The option's parameter with a value. UsageError for one that it does not take."""
        found = _value(path, key, self.option, value)
        return {self.option.name or key: not found if self.opposite else found}


def _parameters(command: click.Command) -> dict[str, _Setting]:
    """A command's options by their long names, without the dashes."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    names = [(name, _Setting(option)) for option in options for name in option.opts]
    names += [(name, _Setting(option, True)) for option in options for name in option.secondary_opts]
    return {name.removeprefix("--"): setting for name, setting in names if name.startswith("--")}


def _value(path: Path, key: str, option: click.Option, value: Any) -> Any:
    """A value as if it had been written on the command line. A type with `takes_table` may have a table, whose entries
    are written as NAME=VALUE."""
    if getattr(option.type, "takes_table", False):
        entries = [f"{name}={one}" for name, one in value.items()] if isinstance(value, dict) else value
        value = entries if isinstance(entries, list) else [entries]
    values = value if isinstance(value, list) else [value]
    if any(not isinstance(one, str | int | float) for one in values) or (option.multiple != isinstance(value, list)):
        wanted = "a list of texts" if option.multiple else "a text, a number or a truth value"
        raise click.UsageError(f"the configuration {path} has {key} = {value!r}; write {wanted}")
    if option.is_flag:
        if not isinstance(value, bool):
            raise click.UsageError(f"the configuration {path} has {key} = {value!r}; write true or false")
        return value
    context = click.Context(click.Command("mmqjp"))
    for one in values if not isinstance(option.type, click.Path) else ():  # a path is looked at when it is needed
        try:
            option.type.convert(str(one), option, context)
        except click.BadParameter as error:
            raise click.UsageError(f"the configuration {path} has {key} = {one!r}: {error.message}") from None
    return [str(one) for one in values] if option.multiple else str(value)


def _unknown(path: Path, key: str, known: Iterable[str]) -> click.UsageError:
    names = ", ".join(f'"{name}"' for name in sorted(set(known)))
    return click.UsageError(f'the configuration {path} has an unknown setting "{key}"; it knows {names}')
