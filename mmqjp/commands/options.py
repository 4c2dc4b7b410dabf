"""Options that several commands share, and the parsing of their values: engine, plan, query files, durations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from feeds.history import MOST_VERSIONS
from join_stage.joiner import DEFAULT_PLAN, PLANS
from mmqjp.answers.patterns.places import DRIVER, EXECUTORS, SQL
from mmqjp.answers.quota import BLOCK, MAX_MATCHES, MAX_OUTPUTS, MAX_PARTIAL, MAX_WORK
from mmqjp.commands.failure import Failure, ScriptFailure
from mmqjp.commands.progress import progress_shown
from mmqjp.garbage import gc_paused
from mmqjp.state.choice import AUTO, ENGINES
from xscl import Script, XsclErrors, parse_script
from xscl.windows import duration_us

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
    """The option --engine."""
    return click.option(
        "--engine",
        type=click.Choice(ENGINES),
        envvar="MMQJP_ENGINE",
        default=AUTO,
        help="The engine. auto: that of the state; without one, spark with --master, in spark-submit, or for documents "
        "of more than 256 MiB, else duckdb. Default: MMQJP_ENGINE, else the configuration, else auto.",
    )(command)


def plan_option(command: Decorated) -> Decorated:
    """The option --plan."""
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
    """The option --feeds."""
    return click.option(
        "--feeds",
        is_flag=False,
        flag_value="item",
        type=click.Choice(FEED_FORMS),
        help="The input is feeds. Each entry becomes a document: an <item> or, with raw, its own XML.",
    )(command)


def versions_option(command: Decorated) -> Decorated:
    """The option --versions."""
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
    """The option --most-versions."""
    return click.option(
        "--most-versions", metavar="N", type=AtLeast(1), default=MOST_VERSIONS, show_default=True,
        help="How many versions of a feed's entry become documents, and how many entries that differ only in their "
        "guids. The others are dead letters.",
    )(command)  # fmt: skip


def time_xpath_option(command: Decorated) -> Decorated:
    """The option --time-xpath."""
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


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """A duration, written like the window of a query, in microseconds; None for INF."""
    try:
        return duration_us(value or "INF")
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """A duration, written as for `duration`, in seconds; None for INF."""
    found = duration(context, parameter, value)
    return None if found is None else found / 1_000_000


def shared_option(command: Decorated) -> Decorated:
    """The option --shared."""
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
