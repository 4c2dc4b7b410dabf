"""Options shared by commands, and the configuration file. Parses engine, plan, query files, durations, and values by
stream. A configuration is a TOML file whose keys are options, for all commands that have them (`engine = "duckdb"`) or
in a command's own table (`[stream]`). Its tables `[secrets]` and `[sinks.NAME]` are read by `mmqjp.sinks.definition`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import field, fields
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from common.bounds import duration_us
from common.tools import gc_paused
from feeds.confined import LEAST_MEMORY, MEMORY, MEMORY_VARIABLE
from feeds.history import MOST_VERSIONS
from feeds.json_documents import JsonForm
from join_stage.plans import DEFAULT_PLAN, PLANS
from mmqjp.answers.events_run import DRIVER, EXECUTORS, SQL
from mmqjp.commands.command_line import Decorated, Failure, ScriptFailure
from mmqjp.commands.console import progress_shown
from mmqjp.documents.watermarks import BELATED
from mmqjp.state.engine_choice import AUTO, ENGINES
from pattern_stage.assemble import OTHER_STREAMS
from xscl.parser import may_lack_events, parse_script
from xscl.syntax import Script
from xscl.text import XsclErrors

FEED_FORMS = ("item", "raw")

LARGEST = 10**17  # largest number of an option; ten times as much fits into a store's 64 bits
ADDS = "adds"  # key in the metadata of a field: the decorator that adds its option to a command


def given_by(adds: Callable[[Any], Any]) -> Any:
    """Returns a field of a dataclass of options; a decorator adds its option."""
    return field(metadata={ADDS: adds})


def option(*names: str, **settings: Any) -> Any:
    """Returns a field of a dataclass of options, as `click.option` describes it."""
    return given_by(click.option(*names, **settings))


def with_options(kind: type, name: str = "given") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the options that a dataclass describes; the command gets them as one argument called `name`."""
    described = [one for one in fields(kind) if ADDS in one.metadata]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def gathered(**values: Any) -> Any:
            return command(**values | {name: kind(**{one.name: values.pop(one.name) for one in described})})

        for one in reversed(described):
            gathered = one.metadata[ADDS](gathered)
        return gathered

    return decorate


class AtLeast(click.IntRange):
    """Click type of an integer with a minimum, capped at LARGEST."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number > LARGEST:
            self.fail(f"{number} is too large: the most is {LARGEST}", param, ctx)
        return number


def number(name: str, default: int, text: str, kind: click.IntRange | None = None) -> Any:
    """Returns a field for an option that is a number, by default a positive one."""
    return option(name, metavar="N", type=kind or AtLeast(1), default=default, show_default=True, help=text)


engine_option = click.option(
    "--engine", type=click.Choice(ENGINES), envvar="MMQJP_ENGINE", default=AUTO,
    help="The engine. auto: that of the state; without one, spark with --master, in spark-submit, or for documents "
    "of more than 256 MiB, else duckdb. Default: MMQJP_ENGINE, else the configuration, else auto.",
)  # fmt: skip

plan_option = click.option(
    "--plan", type=click.Choice(PLANS), default=DEFAULT_PLAN, show_default=True,
    help="How joins are computed. All plans give the same matches.",
)  # fmt: skip


def patterns_option(*places: str) -> Callable[[Decorated], Decorated]:
    """Adds --patterns with these choices."""
    sql = " sql: in a database, as far as their operators allow it; only without --state." if SQL in places else ""
    return click.option(
        "--patterns", type=click.Choice(places), default=DRIVER, show_default=True,
        help="Where event queries are answered, with the same matches. executors: on Spark's, partitioned by a value "
        f"that all events of a match share.{sql}",
    )  # fmt: skip


def only_on_spark(patterns: str) -> dict[str, object]:
    return {"--patterns executors": True} if patterns == EXECUTORS else {}


class FeedsBeforePaths(click.Command):
    """A command in which a path may follow `--feeds` without becoming its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        pairs = zip(args, [*args[1:], ""], strict=False)
        args = [f"{arg}=item" if arg == "--feeds" and after not in FEED_FORMS else arg for arg, after in pairs]
        return super().parse_args(ctx, args)


def _limit_feed_memory(context: click.Context, parameter: click.Parameter, value: int | None) -> None:
    if value is not None:
        os.environ[MEMORY_VARIABLE] = str(value)


feed_memory_option = click.option(
    "--feed-memory", metavar="N", type=AtLeast(LEAST_MEMORY), envvar=MEMORY_VARIABLE, expose_value=False,
    callback=_limit_feed_memory,
    help="Memory limit of the process that parses feeds, in bytes. A feed that needs more is a dead letter. "
    f"Default: {MEMORY_VARIABLE}, else the configuration, else {MEMORY}.",
)  # fmt: skip


def feeds_option(command: Decorated) -> Decorated:
    """Adds --feeds and --feed-memory."""
    return click.option(
        "--feeds", is_flag=False, flag_value="item", type=click.Choice(FEED_FORMS),
        help="The input is feeds. Each entry becomes a document: an <item> or, with raw, its own XML.",
    )(feed_memory_option(command))  # fmt: skip


versions_option = click.option(
    "--versions", type=click.Choice(["keep", "ignore"]), default="keep", show_default=True,
    help="Whether a changed entry of a feed becomes a new document.",
)  # fmt: skip


def bound(name: str, default: int, text: str) -> Any:
    """Returns a field for an option that bounds what a query may do."""
    return number(name, default, f"{text} A query that would exceed it is paused.")


most_versions_option = click.option(
    "--most-versions", metavar="N", type=AtLeast(1), default=MOST_VERSIONS, show_default=True,
    help="How many versions of a feed's entry become documents, and how many entries that differ in their guids "
        "alone. The others are dead letters.",
)  # fmt: skip

time_xpath_option = click.option(
    "--time-xpath", metavar="XPATH", help="Where a document has its time: an XML file or, with --json, a line."
)  # fmt: skip

json_option = click.option(
    "--json", is_flag=False, flag_value="plain", type=click.Choice(get_args(JsonForm)),
    help="Each line of .jsonl or .ndjson is itself a document in JSON. typed: elements carry the types of values.",
)  # fmt: skip


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
        raise ScriptFailure(errors.render(str(path)), may_lack_events=may_lack_events(text, errors)) from None


def text_for_store(path: Path) -> str:
    """Returns a query file's text for a store, which resolves events that the file lacks. Raises Failure."""
    try:
        return read_script(path)[0]
    except ScriptFailure as failure:
        if not failure.may_lack_events:
            raise
        return path.read_text("utf-8")


def parse_duration(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Parses a duration, written like a query's window, into microseconds; None for INF."""
    try:
        return duration_us(value or "INF")
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def duration(name: str, default: str, text: str, callback: Callable[..., Any] = parse_duration) -> Any:
    """Returns a field for an option that is a duration."""
    return option(name, metavar="DURATION", callback=callback, default=default, show_default=True, help=text)


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    found = parse_duration(context, parameter, value)
    return None if found is None else found / 1_000_000


def state_option(text: str, *, exists: bool = False, required: bool = False) -> Callable[[Decorated], Decorated]:
    """Adds --state, the directory of a store, with this help."""
    kind = click.Path(exists=exists, file_okay=False, path_type=Path)
    return click.option("--state", metavar="DIR", required=required, type=kind, help=text)


def wait_option(text: str = "How long to wait if another process holds the store.") -> Callable[[Decorated], Decorated]:
    seconds = click.FloatRange(min=0)
    return click.option("--wait", metavar="SECONDS", type=seconds, default=30.0, show_default=True, help=text)


shared_option = click.option(
    "--shared", is_flag=True,
    help="Let the umask decide who may access the state; by default only you can.",
)  # fmt: skip


def key_values(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    for value in values:
        if not value.partition("=")[1]:
            raise click.BadParameter(f"write KEY=VALUE, not {value!r}")
    return {key: value for key, _, value in (value.partition("=") for value in values)}


class PerStreamType(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """Click type: `1h` for all streams, or `STREAM=2h`; in a configuration file also a table. `parse` reads a value."""

    name = "value of streams"
    takes_table = True  # see `mmqjp.commands.options`

    def __init__(self, parse: Callable[[click.Context, click.Parameter, str], Any]) -> None:
        self._parse = parse

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[str, Any]:
        """Returns the stream (OTHERS: all) and the value."""
        if isinstance(value, tuple):  # click may convert twice
            return value
        assert parameter is not None and context is not None, "click names what it converts"
        stream, _, text = str(value).rpartition("=")
        return stream or OTHER_STREAMS, self._parse(context, parameter, text)


def lateness_option(default: str) -> Callable[[Decorated], Decorated]:
    """Adds --lateness; `default` is for unnamed streams."""
    help = (
        "How far a watermark stays behind the visits of feeds, or behind the newest document of a stream without feeds,"
    )
    help = f"{help} like 1h, or for one stream, like news=2h. INF: no watermark."
    return _option("--lateness", default, help)


def settle_option(default: str) -> Callable[[Decorated], Decorated]:
    """Adds --settle; `default` is for unnamed streams."""
    help = (
        "How long events wait for earlier ones before event queries are answered, like 10min, or for one stream, like"
    )
    return _option("--settle", default, f"{help} news=2h. INF: to the end of the run.")


def is_given(name: str) -> bool:
    """Whether the running command was given an option, also by the configuration."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not None and source is not ParameterSource.DEFAULT


def parse_belated(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value not in BELATED:
        raise click.BadParameter(f"{value!r} is not one of {', '.join(BELATED)}")
    return value


def belated_option(command: Decorated) -> Decorated:
    """Adds --belated."""
    help = "What to do with documents that end before the watermark, or for one stream, like news=drop: take them, or"
    help = f"{help} drop them as dead letters."
    return _option("--belated", BELATED[0], help, f"[STREAM=]{'|'.join(BELATED)}", parse_belated)(command)


def _option(
    name: str,
    default: str,
    help: str,
    metavar: str = "[STREAM=]DURATION",
    parse: Callable[[click.Context, click.Parameter, str], Any] = parse_duration,
) -> Callable[[Decorated], Decorated]:
    def together(context: click.Context, parameter: click.Parameter, values: tuple[tuple[str, Any], ...]) -> Any:
        found = dict(values)
        if len(found) < len(values):
            value = metavar.removeprefix("[STREAM=]")
            advice = f"write {value} once for all streams, and STREAM={value} once for each exception"
            raise click.BadParameter(f"a stream is named twice; {advice}")
        others = found.pop(OTHER_STREAMS, parse(context, parameter, default))
        return {OTHER_STREAMS: others, **found} if found else others

    help += f" May be repeated.  [default: {default}]"
    kind = PerStreamType(parse)
    return click.option(name, metavar=metavar, multiple=True, type=kind, callback=together, help=help)
