"""Options shared by commands, and the configuration file. Parses engine, plan, query files, durations, and per-stream
values of --lateness and --settle. A configuration is a TOML file whose keys are options, for all commands that have
them (`engine = "duckdb"`) or in a command's own table (`[stream]`). Its tables `[secrets]` and `[sinks.NAME]` are read
by `mmqjp.sinks.tables`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from feeds.history import MOST_VERSIONS
from join_stage.protocol import DEFAULT_PLAN, PLANS
from mmqjp.answers.events_run import DRIVER, EXECUTORS, SQL
from mmqjp.answers.quota import BLOCK, MAX_MATCHES, MAX_OUTPUTS, MAX_PARTIAL, MAX_WORK
from mmqjp.commands.console import Failure, ScriptFailure, progress_shown
from mmqjp.documents.watermarks import Lateness
from mmqjp.process import gc_paused
from mmqjp.state.choice import AUTO, ENGINES
from pattern_stage.assemble import OTHER_STREAMS
from xscl.parser import parse_script
from xscl.problems import XsclErrors
from xscl.syntax import Script
from xscl.text import duration_us

FEED_FORMS = ("item", "raw")

LARGEST = 10**17
"""Largest number of an option; ten times as much fits a store's 64 bits."""

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class AtLeast(click.IntRange):
    """Click type of an integer with a minimum, capped at LARGEST."""

    def __init__(self, least: int) -> None:
        super().__init__(least)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number > LARGEST:
            self.fail(f"{number} is too large: the most is {LARGEST}", param, ctx)
        return number


def engine_option(command: Decorated) -> Decorated:
    return click.option(
        "--engine",
        type=click.Choice(ENGINES),
        envvar="MMQJP_ENGINE",
        default=AUTO,
        help="The engine. auto: that of the state; without one, spark with --master, in spark-submit, or for documents "
        "of more than 256 MiB, else duckdb. Default: MMQJP_ENGINE, else the configuration, else auto.",
    )(command)


def plan_option(command: Decorated) -> Decorated:
    return click.option(
        "--plan",
        type=click.Choice(PLANS),
        default=DEFAULT_PLAN,
        show_default=True,
        help="How joins are computed. All plans give the same matches.",
    )(command)


def patterns_option(*places: str) -> Callable[[Decorated], Decorated]:
    """Adds --patterns with these choices."""
    sql = " sql: in a database, where their operators allow it; without --state only." if SQL in places else ""
    return click.option(
        "--patterns",
        type=click.Choice(places),
        default=DRIVER,
        show_default=True,
        help="Where event queries are answered, with the same matches. executors: on those of Spark, parted by a value "
        f"that all events of a match have in common.{sql}",
    )


def only_on_spark(patterns: str) -> dict[str, object]:
    return {"--patterns executors": True} if patterns == EXECUTORS else {}


class FeedsBeforePaths(click.Command):
    """A command in which a path may follow `--feeds` without becoming its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        pairs = zip(args, [*args[1:], ""], strict=False)
        return super().parse_args(
            ctx, [f"{arg}=item" if arg == "--feeds" and after not in FEED_FORMS else arg for arg, after in pairs]
        )


def feeds_option(command: Decorated) -> Decorated:
    return click.option(
        "--feeds",
        is_flag=False,
        flag_value="item",
        type=click.Choice(FEED_FORMS),
        help="The input is feeds. Each entry becomes a document: an <item> or, with raw, its own XML.",
    )(command)


def versions_option(command: Decorated) -> Decorated:
    return click.option(
        "--versions", type=click.Choice(["keep", "ignore"]), default="keep", show_default=True,
        help="Whether a changed entry of a feed is a new document.",
    )(command)  # fmt: skip


def bounds_options(command: Decorated) -> Decorated:
    bounds = (
        ("--max-partial", MAX_PARTIAL, "Most partial matches of an event query, of one operator and at one time."),
        ("--max-work", MAX_WORK, "Most steps of a query for one document; ten times as many for"),
        ("--max-outputs", MAX_OUTPUTS, "Most outputs of a query for"),
        ("--max-matches", MAX_MATCHES, "Most matches of a query for one document, or at one time."),
    )
    for name, default, text in bounds:
        whole = text if text.endswith(".") else f"{text} {BLOCK:,} documents in a row."
        whole += " A query that would have more is paused."
        command = click.option(name, metavar="N", type=AtLeast(1), default=default, show_default=True, help=whole)(
            command
        )
    return command


def most_versions_option(command: Decorated) -> Decorated:
    return click.option(
        "--most-versions", metavar="N", type=AtLeast(1), default=MOST_VERSIONS, show_default=True,
        help="How many versions of a feed's entry become documents, and how many entries that differ only in their "
        "guids. The others are dead letters.",
    )(command)  # fmt: skip


def time_xpath_option(command: Decorated) -> Decorated:
    return click.option("--time-xpath", metavar="XPATH", help="Where an XML document has its time.")(command)


def read_script(path: Path) -> tuple[str, Script]:
    """Returns a query file's text and parsed script. Raises Failure."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise Failure(f"{path}:{line}: the file is not UTF-8 text ({error.reason}); save it as UTF-8") from None
    try:
        with gc_paused(lasting=True), progress_shown():
            return text, parse_script(text)
    except XsclErrors as errors:
        raise ScriptFailure(path, errors) from None


def text_for_store(path: Path) -> str:
    """Returns a query file's text for a store, which resolves and judges missing events. Raises Failure."""
    try:
        return read_script(path)[0]
    except ScriptFailure as failure:
        if not failure.lacks_events:
            raise
        return path.read_text("utf-8")


def parse_duration(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Parses a duration, written like a query's window, into microseconds; None for INF."""
    try:
        return duration_us(value or "INF")
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    found = parse_duration(context, parameter, value)
    return None if found is None else found / 1_000_000


def shared_option(command: Decorated) -> Decorated:
    return click.option(
        "--shared", is_flag=True,
        help="Let the umask decide who may read and write the state, which otherwise only you can.",
    )(command)  # fmt: skip


def key_values(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    for value in values:
        if not value.partition("=")[1]:
            raise click.BadParameter(f"write KEY=VALUE, not {value!r}")
    return {key: value for key, _, value in (value.partition("=") for value in values)}


class LatenessType(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """Click type: `1h` for all streams, or `STREAM=2h`; in a configuration file also a table."""

    name = "lateness"
    takes_table = True  # see `mmqjp.commands.options`

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[str, int | None]:
        """Returns the stream (OTHERS: all) and the lateness in microseconds (None: INF)."""
        if isinstance(value, tuple):  # click may convert twice
            return value
        assert parameter is not None and context is not None, "click names what it converts"
        stream, _, text = str(value).rpartition("=")
        return stream or OTHER_STREAMS, parse_duration(context, parameter, text)


def lateness_option(default: str) -> Callable[[Decorated], Decorated]:
    """Adds --lateness; `default` is for unnamed streams."""
    return _option(
        "--lateness",
        default,
        f"How late a document may arrive, like 1h, or on one stream, like news=2h. INF: no limit. {_REPEATED}",
    )


def settle_option(default: str) -> Callable[[Decorated], Decorated]:
    """Adds --settle; `default` is for unnamed streams."""
    return _option(
        "--settle",
        default,
        "How long events wait for earlier ones before event queries are answered, like 10min, or on one stream, like "
        f"news=2h. INF: to the end of the run. {_REPEATED}",
    )


def settle_is_given() -> bool:
    source = click.get_current_context().get_parameter_source("settle")
    return source is not None and source is not ParameterSource.DEFAULT


_REPEATED = "May be repeated."


def _option(name: str, default: str, help: str) -> Callable[[Decorated], Decorated]:
    def together(
        context: click.Context, parameter: click.Parameter, values: tuple[tuple[str, int | None], ...]
    ) -> Lateness:
        found = dict(values)
        if len(found) < len(values):
            raise click.BadParameter(
                "a stream is named twice; write DURATION once for all streams, and STREAM=DURATION once for each other"
            )
        others = found.pop(OTHER_STREAMS, parse_duration(context, parameter, default))
        return {OTHER_STREAMS: others, **found} if found else others

    return click.option(
        name,
        metavar="[STREAM=]DURATION",
        multiple=True,
        type=LatenessType(),
        callback=together,
        help=f"{help}  [default: {default}]",
    )


NAME = "mmqjp.toml"

SINK_TABLES = frozenset({"secrets", "sinks"})

DefaultMap = dict[str, Any]
"""Option values by command and parameter, nested for groups, in click's format."""


def configuration_files() -> list[Path]:
    """Returns the default files: in the current directory, then in the user's configuration directory."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    home = base if base.is_absolute() else Path("~/.config").expanduser()
    return [Path(NAME), home / "mmqjp" / NAME]


def configured(group: click.Group, chosen: Path | None) -> DefaultMap:
    """Returns the settings of a group's commands: of the chosen file, else of all existing default files, earlier ones
    first. Raises UsageError for an unreadable file or an unknown key."""
    found: DefaultMap = {}
    for path, settings in read_configurations(chosen):
        if SINK_TABLES & settings.keys():
            _check_sinks(settings, path)
        options = {key: value for key, value in settings.items() if key not in SINK_TABLES}
        found = _merged(_defaults(group, options, path), found)
    return found


def read_configurations(chosen: Path | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields the chosen file, else all existing default files, parsed. Raises UsageError."""
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
    from mmqjp.sinks.definition import read_tables
    from mmqjp.sinks.secrets import BadSink

    try:
        read_tables(settings, path)
    except BadSink as error:
        raise click.UsageError(str(error)) from None


def _defaults(group: click.Group, settings: Mapping[str, Any], path: Path, prefix: str = "") -> DefaultMap:
    """Returns a table's values by command. A key outside command tables applies to all commands that accept it; a
    command's own table takes precedence."""
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
    """Applies a value to all commands of a group that have the option and accept the value, since options of one name
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


@dataclass(frozen=True, slots=True)
class _Setting:
    """An option under one of its names. A flag's negative name, such as --watch for --once, negates the value."""

    option: click.Option | click.Argument
    opposite: bool = False

    def default(self, path: Path, key: str, value: Any) -> dict[str, Any]:
        """Raises UsageError for an invalid value."""
        found = _option_value(path, key, self.option, value)
        return {self.option.name or key: not found if self.opposite else found}


def _parameters(command: click.Command) -> dict[str, _Setting]:
    """Returns a command's options by long name without dashes, and optional argument lists by name."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    arguments = [
        one for one in command.params if isinstance(one, click.Argument) and one.nargs == -1 and not one.required
    ]
    names = [(name, _Setting(option)) for option in options for name in option.opts]
    names += [(name, _Setting(option, True)) for option in options for name in option.secondary_opts]
    long = {name.removeprefix("--"): setting for name, setting in names if name.startswith("--")}
    return {argument.name or "": _Setting(argument) for argument in arguments} | long


def _option_value(path: Path, key: str, option: click.Option | click.Argument, value: Any) -> Any:
    """Converts a value to what the command line would give. A type with `takes_table` accepts a table, as NAME=VALUE
    entries."""
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
    table, dot, last = key.rpartition(".")
    names = sorted({name.removeprefix(table + dot) for name in known})
    if close := get_close_matches(last, names, 1):
        advice = f'did you mean "{table}{dot}{close[0]}"?'
    else:
        advice = "the known ones are " + ", ".join(f'"{table}{dot}{name}"' for name in names)
    return click.UsageError(f'the configuration {path} has an unknown setting "{key}"; {advice}')


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
        table[key] = _parse_value(key, value) if value else None
    return table


def _parse_value(key: str, text: str) -> Any:
    if not (text[0] in "[{\"'" or text in ("true", "false") or (text.isascii() and text.isdecimal())):
        return text
    try:
        return tomllib.loads(f"value = {text.lstrip('0') or '0' if text.isdecimal() else text}")["value"]
    except tomllib.TOMLDecodeError:
        raise click.UsageError(f"the value of {key[:60]} is no TOML; mind the quotes of the shell") from None
