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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from mmqjp.commands.lateness import Allowed

NAME = "mmqjp.toml"

DefaultMap = dict[str, dict[str, Any]]
"""Values of options by command and parameter, as click takes them."""


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
        for command, values in _defaults(group, settings, path).items():
            found[command] = values | found.get(command, {})
    return found


def _defaults(group: click.Group, settings: Mapping[str, Any], path: Path) -> DefaultMap:
    """The values of a file by command; a command's own table goes before what is said for all."""
    parameters = {name: _parameters(command) for name, command in group.commands.items()}
    known = {key for keys in parameters.values() for key in keys}
    found: DefaultMap = {name: {} for name in parameters}
    for key, value in settings.items():
        if isinstance(value, dict) and key in parameters:
            continue
        if key not in known:
            raise _unknown(path, key, [*known, *parameters])
        for name, keys in parameters.items():
            if key in keys:
                found[name][keys[key].name or key] = _value(path, key, keys[key], value)
    for name, keys in parameters.items():
        for key, value in settings.get(name, {}).items() if isinstance(settings.get(name), dict) else ():
            if key not in keys:
                raise _unknown(path, f"{name}.{key}", [f"{name}.{known}" for known in keys])
            found[name][keys[key].name or key] = _value(path, f"{name}.{key}", keys[key], value)
    return found


def _parameters(command: click.Command) -> dict[str, click.Option]:
    """A command's options by their long names, without the dashes."""
    options = [option for option in command.params if isinstance(option, click.Option) and option.expose_value]
    return {name.removeprefix("--"): option for option in options for name in option.opts if name.startswith("--")}


def _value(path: Path, key: str, option: click.Option, value: Any) -> Any:
    """A value as if it had been written on the command line."""
    if isinstance(option.type, Allowed):
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
