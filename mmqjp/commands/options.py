"""Options that several commands share, and the parsing of their values: engine, plan, query files, durations.

The options --lateness and --settle: one value for all streams, and others for single streams.

The configuration: a TOML file whose keys are options, of all commands that have them or of one command.

engine = "duckdb"

[stream]
source = ["drops/"]
state = "state/"
keep = "30d"

Its tables `[secrets]` and `[sinks.NAME]` are read by `mmqjp.sinks.tables`.

Keys and values on the command line, as a configuration file would have them.
"""

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
"""The largest number of an option. Ten times as many fit into the 64 bits that a store has for a number."""

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class AtLeast(click.IntRange):
    """The type of a whole number from a least one on. It is not so large that a store could not hold it."""

    def __init__(self, least: int) -> None:
        super().__init__(least)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Reads the number."""
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
    """The option --patterns, which takes these places."""
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
    """What --patterns asks of Spark, for `chosen_engine`."""
    return {"--patterns executors": True} if patterns == EXECUTORS else {}


class FeedsBeforePaths(click.Command):
    """A command in which a path may stand behind `--feeds`: it is not taken for the option's value."""

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
    """The options --max-matches, --max-outputs, --max-work and --max-partial."""
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
    """The text of a query file, and the script parsed from it. Raises Failure."""
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
    """The text of a query file for a store. What it lacks may be there, which judges that then. Raises Failure."""
    try:
        return read_script(path)[0]
    except ScriptFailure as failure:
        if not failure.lacks_events:
            raise
        return path.read_text("utf-8")


def parse_duration(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """A duration, written like the window of a query, in microseconds; None for INF."""
    try:
        return duration_us(value or "INF")
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """A duration, written as for `parse_duration`, in seconds; None for INF."""
    found = parse_duration(context, parameter, value)
    return None if found is None else found / 1_000_000


def shared_option(command: Decorated) -> Decorated:
    return click.option(
        "--shared", is_flag=True,
        help="Let the umask decide who may read and write the state, which otherwise only you can.",
    )(command)  # fmt: skip


def key_values(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """The options of a source, by name."""
    for value in values:
        if not value.partition("=")[1]:
            raise click.BadParameter(f"write KEY=VALUE, not {value!r}")
    return {key: value for key, _, value in (value.partition("=") for value in values)}


class LatenessType(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """`1h`, for all streams, or `STREAM=2h`. In a configuration file, also a table."""

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
    """The option --lateness. `default` applies to streams that are not named."""
    return _option(
        "--lateness",
        default,
        f"How late a document may arrive, like 1h, or on one stream, like news=2h. INF: no limit. {_REPEATED}",
    )


def settle_option(default: str) -> Callable[[Decorated], Decorated]:
    """The option --settle. `default` applies to streams that are not named."""
    return _option(
        "--settle",
        default,
        "How long events wait for earlier ones before event queries are answered, like 10min, or on one stream, like "
        f"news=2h. INF: to the end of the run. {_REPEATED}",
    )


def settle_is_given() -> bool:
    """Whether the command that runs was given --settle, also in a configuration file."""
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
    from mmqjp.sinks.definition import read_tables
    from mmqjp.sinks.secrets import BadSink

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
        found = _option_value(path, key, self.option, value)
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


def _option_value(path: Path, key: str, option: click.Option | click.Argument, value: Any) -> Any:
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
