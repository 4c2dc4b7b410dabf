"""What several commands take: engine, --debug, query files, durations."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import click

from join_stage.engine import DEFAULT_PLAN, PLANS
from mmqjp.commands.errors import DEBUG, Failure, ScriptFailure
from xscl import Script, XsclErrors, parse_script
from xscl.builder import LONGEST_WINDOW, UNITS

ENGINES = ("spark", "duckdb")
CONFIGURATION = "mmqjp.toml"

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def debug_option(command: Decorated) -> Decorated:
    """The option --debug, which the program takes before and after the command's name."""

    def note(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            context.meta[DEBUG] = True

    text = "Show a traceback with an error."
    return click.option("--debug", is_flag=True, expose_value=False, is_eager=True, callback=note, help=text)(command)


def engine_option(command: Decorated) -> Decorated:
    """The option --engine; its value is resolved, the configuration included."""

    def resolve(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
        return value or configured_engine(configuration_files()) or ENGINES[0]

    return click.option(
        "--engine",
        type=click.Choice(ENGINES),
        envvar="MMQJP_ENGINE",
        callback=resolve,
        help=f"The engine. Without it: MMQJP_ENGINE, else what {CONFIGURATION} says, else spark.",
    )(command)


def plan_option(command: Decorated) -> Decorated:
    """The option --plan."""
    return click.option(
        "--plan",
        type=click.Choice(PLANS),
        default=DEFAULT_PLAN,
        show_default=True,
        help="How the joins are done; all plans give the same matches.",
    )(command)


def configuration_files() -> list[Path]:
    """Where a configuration may be: the current directory, then the user's configuration directory."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    home = base if base.is_absolute() else Path("~/.config").expanduser()
    return [Path(CONFIGURATION), home / "mmqjp" / CONFIGURATION]


def configured_engine(files: list[Path]) -> str | None:
    """The engine that the first configuration file with one names."""
    for path in files:
        try:
            settings = tomllib.loads(path.read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise click.UsageError(f"the configuration {path} cannot be read: {error}; mend or remove it") from None
        unknown = sorted(settings.keys() - {"engine"})
        if unknown:
            raise click.UsageError(f'the configuration {path} has an unknown setting "{unknown[0]}"; it knows "engine"')
        engine = settings.get("engine")
        if engine is None:
            continue
        if engine not in ENGINES:
            raise click.UsageError(f'the configuration {path} has engine = {engine!r}; write "spark" or "duckdb"')
        return str(engine)
    return None


def read_script(path: Path) -> tuple[str, Script]:
    """A query file's text and what it says."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise Failure(f"{path}:{line}: the file is not UTF-8 text ({error.reason}); save it as UTF-8") from None
    try:
        return text, parse_script(text)
    except XsclErrors as errors:
        raise ScriptFailure(path, errors) from None


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """A length of time, written as a window of a query, in microseconds; None for INF."""
    text = (value or "INF").strip()
    if text.upper() in ("INF", "INFINITY"):
        return None
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip()
    unit = text[len(number) :].strip() or "s"
    digits = number.replace(".", "", 1)
    if unit not in UNITS or not (digits.isascii() and digits.isdecimal()) or len(number) > 30:
        known = ", ".join(UNITS)
        raise click.BadParameter(f"{text!r} is no duration; write a number and a unit ({known}), like 1h, or INF")
    microseconds = int(Fraction(number.rstrip(".")) * UNITS[unit])
    if microseconds > LONGEST_WINDOW:
        raise click.BadParameter(f"{text!r} is too long; write INF for no limit")
    return microseconds
