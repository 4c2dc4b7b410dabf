"""Output of commands: formats, output files, dead letters and configured sinks; also opens the engine that the options
describe. By default, a terminal gets a table and everything else JSON lines."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.bounds import duration_us
from common.files import is_shared, umask_of, whole_file
from feeds.documents import now_us
from feeds.tail import input_bytes
from mmqjp.commands.command_line import Failure
from mmqjp.commands.configuration import read_configurations
from mmqjp.commands.console import console, live_line, progress_shown, width
from mmqjp.engine import Session
from mmqjp.present import terminal
from mmqjp.present.item import IN_UTC, MatchSpool, Report, ShownMatch, TimeFormat, cell, cell_text, unique_keys
from mmqjp.process import json_line, pluralise, printable_line, standard_output
from mmqjp.queries.changes import NameTaken, PublishCycle, SubscribeMode
from mmqjp.sinks.definition import SinkTables, read_tables
from mmqjp.sinks.files import is_stream, refuse_missing_directory
from mmqjp.sinks.secrets import BadSink
from mmqjp.state.engine_choice import AUTO, MOST_FOR_DUCKDB, SPARK, EngineChoice, choose_engine, open_session
from xscl.syntax import Script
from xscl.text import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("table", "csv", "json", "jsonl", "ndjson", "html", "markdown")

FOR_PEOPLE = ("table", "html", "markdown")  # formats that by default show the newest SHOWN matches, grouped

SHOWN = 1_000

JSON_WRITERS = {
    "jsonl": terminal.write_json_lines, "ndjson": terminal.write_json_bodies, "json": terminal.write_json_array,
}  # fmt: skip

MOST_TEXTS = 20  # maximum number of queries whose texts are shown

format_option = click.option(
    "--format", "form", type=click.Choice(FORMATS),
    help="The format. Default: table on a terminal, else jsonl.",
)  # fmt: skip

UTC_NAME, LOCAL = "UTC", "local"


class ZoneType(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """Click type of a time zone by name, or `local`; converts it to the format of times in that zone."""

    name = "zone"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> TimeFormat:
        if isinstance(value, TimeFormat):  # click may convert twice
            return value
        if value in (UTC_NAME, LOCAL):
            return IN_UTC if value == UTC_NAME else TimeFormat()
        try:
            return TimeFormat(ZoneInfo(value))
        except (ZoneInfoNotFoundError, ValueError, OSError):  # raised for names without a zone file
            known = available_timezones()
            advice = f"write a name like Europe/Berlin, {UTC_NAME} or {LOCAL}"
            missing = "" if known else "; this system knows no time zones: install tzdata"
            cause = f"there is no time zone {value!r:.80}"
            self.fail(f"{cause}{missing}; {did_you_mean(value, [*known, LOCAL]) or advice}", parameter, context)


tz_option = click.option(
    "--tz", "clock", metavar="ZONE", type=ZoneType(), envvar="MMQJP_TZ", default=UTC_NAME,
    help="The time zone of times shown, such as Europe/Berlin; local: that of this machine. Default: MMQJP_TZ, else "
    f"the configuration, else {UTC_NAME}.",
)  # fmt: skip

output_option = click.option(
    "--output", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="Where to write; an existing file is replaced. Default, or with -: standard output.",
)  # fmt: skip


def chosen_format(form: str | None, output: Path | None) -> str:
    if form is not None:
        return form
    return "table" if output in (None, Path("-")) and sys.stdout.isatty() else "jsonl"


def clock_of(form: str, clock: TimeFormat) -> TimeFormat:
    """Returns the format of times in a format of matches; formats for programs use UTC."""
    return clock if form in FOR_PEOPLE else IN_UTC


def few_texts(texts: dict[str, list[str]]) -> dict[str, list[str]]:
    return texts if sum(map(len, texts.values())) <= MOST_TEXTS else {}


def show_matches(
    matches: Iterable[ShownMatch],
    form: str,
    output: Path | None,
    clock: TimeFormat,
    *,
    total: int,
    texts: Mapping[str, Sequence[str]],
) -> None:
    with data_file(check_output(output)) as file:
        if form in JSON_WRITERS:
            JSON_WRITERS[form]((match.to_dict() for match in matches), file)
            return
        if form == "csv":
            terminal.write_csv(matches, file, IN_UTC)
            return
        with MatchSpool().add(matches) as spool:
            groups = spool.groups()
            report = Report(groups, total - sum(len(group.superseded) for group in groups), clock, texts)
            if form == "table":
                with table_console(output, file) as out:
                    terminal.print_report(report, out)
            else:
                (terminal.write_page if form == "html" else terminal.write_markdown)(report, file)


@contextmanager
def table_console(output: Path | None, file: BinaryIO) -> Iterator[Console]:
    if output in (None, Path("-")):
        yield console()
        return
    text = io.TextIOWrapper(file, "utf-8", write_through=True)
    try:
        yield Console(file=text, width=width(), color_system=None, highlight=False, emoji=False)
    finally:
        text.detach()  # the caller closes the file


LISTED_QUERIES = 5  # maximum number of ended or replaced queries in a message


def chosen_engine(
    engine: str,
    state: Path | None = None,
    master: str | None = None,
    paths: Sequence[Path] = (),
    only_spark: Mapping[str, object] | None = None,
    *,
    feeds: bool = False,
) -> EngineChoice:
    """Resolves --engine. Reports that "auto" chose Spark, which is slow to start; other choices on terminals only.
    `paths` are the documents whose size may decide. `only_spark` has the values of Spark-only options by name. Raises
    UsageError if one of them, or `master`, is given with another engine."""
    given = [name for name, value in {"--master": master, **(only_spark or {})}.items() if value is not None]
    documents = input_bytes(paths, MOST_FOR_DUCKDB, feeds=feeds) if engine == AUTO and paths and not given else None
    choice = choose_engine(engine, state, given[0] if given else None, documents)
    if given and choice.engine != SPARK:
        why = f" ({choice.why})" if choice.why else ""
        raise click.UsageError(f"{given[0]} is for the engine spark, but the engine is {choice.engine}{why}")
    if choice.why and (choice.engine == SPARK or sys.stderr.isatty()):
        click.echo(f"mmqjp: on {choice.engine}: {printable_line(choice.why)}", err=True)
    return choice


def start_session(master: str | None, *, shared: bool = False) -> SparkSession:
    with live_line() as show, umask_of(shared=shared):
        show("starting Spark ...")
        return open_session("spark", master)


def open_engine(engine: str | SparkSession, state: Path | None = None, *, shared: bool = False, **more: Any) -> Session:
    """Opens the engine, which logs no dead letters. A terminal shows the start of Spark and the opening of queries."""
    with live_line() as show, progress_shown(), umask_of(shared=shared or (state is not None and is_shared(state))):
        if engine == SPARK:
            show("starting Spark ...")
        return Session(engine, state=state, quiet=True, shared=shared, **more)


def subscribe_file(engine: Session, script: Script, path: Path, mode: SubscribeMode) -> list[str]:
    """Registers a file's new queries. Returns messages about those that end or change."""
    before = dict(engine.registry.subscriptions)
    try:
        with progress_shown():
            names = set(engine.ensure(script, mode))
    except PublishCycle as error:
        raise Failure(f"{path}: {error}; PUBLISH under another name, or use another --state") from error
    except NameTaken as error:
        raise Failure(f"{path}: {error}") from error
    gone = [before[qid].name for qid in before.keys() - engine.registry.subscriptions.keys()]
    ended, changed = (sorted(name for name in gone if (name in names) is again) for again in (False, True))
    what = ((ended, f"of the state ended (not in {path})"), (changed, f"replaced by those in {path}"))
    return [
        f"{pluralise(len(names), 'query', 'queries')} {how}: {listed_names(names, LISTED_QUERIES)}"
        for names, how in what if names
    ]  # fmt: skip


def listed_names(names: Sequence[str], most: int) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def check_output(output: Path | None) -> Path | None:
    """Returns the file of --output, or None for standard output. Raises OSError up front if it is not writable."""
    if output is None or str(output) == "-":
        standard_output()
        return None
    refuse_missing_directory(output)
    return output


@contextmanager
def data_file(path: Path | None) -> Iterator[BinaryIO]:
    """Yields standard output for None, a pipe or device, or a file that appears atomically at the end."""
    if path is None:
        file = standard_output()
        yield file
        file.flush()
    elif is_stream(path):
        with path.open("wb") as file:
            yield file
    else:
        with whole_file(path) as file:
            yield file


class DeadLetters:
    """Counts a run's dead letters, keeps the first reasons, and writes them to an optional file."""

    LISTED = 3

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            refuse_missing_directory(path)
        self.count, self._path = 0, path
        self.reasons: list[str] = []
        self._file: BinaryIO | None = None

    def begin(self) -> None:
        if self._path is not None and self._path.is_file():
            self._file = self._path.open("wb")

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Adds a committed batch's dead letters; the first one creates the file."""
        for row in rows:
            if len(self.reasons) < self.LISTED:
                known = row["reason"].startswith(f"{row['id']}:")
                self.reasons.append(row["reason"] if known else f"{row['id']}: {row['reason']}")
        self.count += len(rows)
        if self._path is None or not rows:
            return
        try:
            self._file = self._file or self._path.open("wb")
            for row in rows:
                shown = row | {"raw": row["raw"].decode("utf-8", "backslashreplace")}
                self._file.write(json_line({key: value for key, value in shown.items() if key != "noted_at"}))
            self._file.flush()
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


def tables_of(context: click.Context) -> Callable[[], SinkTables]:
    """Returns a function that reads the sinks and secrets of the command's configuration again on each call."""
    return partial(sinks_of, context.find_root().params.get("config"))


def sinks_of(chosen: Path | None) -> SinkTables:
    """Returns the sinks and secrets of a file, else of default files, earlier ones first. Raises BadSink."""
    found = SinkTables()
    try:
        for path, settings in read_configurations(chosen):
            found = found.over(read_tables(settings, path))
    except click.UsageError as error:
        raise BadSink(error.format_message()) from None
    return found


def write_rows(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]] | Iterator[list[object]],
    form: str,
    title: str,
    output: Path | None,
    file: BinaryIO,
) -> None:
    match form:
        case "jsonl" | "json":
            keys = unique_keys(columns)
            JSON_WRITERS[form]((dict(zip(keys, row, strict=True)) for row in rows), file)
        case "csv":
            terminal.write_csv_rows(columns, (map(cell, row) for row in rows), file)
        case "html":
            terminal.write_page_rows(columns, (map(cell_text, row) for row in rows), title, file)
        case "markdown":
            terminal.write_markdown_rows(columns, (map(cell_text, row) for row in rows), file)
        case _:
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
            kept = list(rows)
            for place, name in enumerate(columns):
                numbers = bool(kept) and all(isinstance(row[place], int | float | None) for row in kept)
                table.add_column(Text(printable_line(name)), overflow="fold", justify="right" if numbers else "left")
            for row in kept:
                table.add_row(*(Text(printable_line(cell_text(value))) for value in row))
            with table_console(output, file) as out:
                out.print(table)


LONG_AGO = -(1 << 62)  # before all times, in microseconds


def time_since(text: str, clock: TimeFormat, now: int | None = None) -> int:
    """Parses --since into microseconds: a date or time, by default in the clock's zone, or a duration before now."""
    if text[:1].isdigit() and text[4:5] == "-":
        try:
            return clock.read(text)
        except ValueError as error:
            raise click.BadParameter(f"{error}", param_hint="--since") from None
    try:
        found = duration_us(text)
    except ValueError:
        cause = f"{text!r} is neither a time, such as 2026-07-16 or 2026-07-16T14:00Z, nor a duration, such as 2d"
        raise click.BadParameter(cause, param_hint="--since") from None
    return LONG_AGO if found is None else (now_us() if now is None else now) - found
