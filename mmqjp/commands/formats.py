"""The formats in which commands print matches and rows: the options, and which is used when none is named."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click
from rich.console import Console

from mmqjp.commands.console import console, width
from mmqjp.commands.sinks import check_output, data_file
from mmqjp.present.data_formats import write_csv, write_json, write_json_lines
from mmqjp.present.groups import Spool
from mmqjp.present.markdown import write_markdown
from mmqjp.present.match import Match
from mmqjp.present.page import write_page
from mmqjp.present.report import Report
from mmqjp.present.terminal import print_report
from mmqjp.present.times import IN_UTC, Clock

FORMATS = ("table", "csv", "json", "jsonl", "html", "markdown")

FOR_PEOPLE = ("table", "html", "markdown")
"""Formats that show the newest SHOWN matches, in groups, unless told otherwise."""

SHOWN = 1_000

MOST_TEXTS = 20
"""The texts of queries are shown if there are at most this many."""

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def format_option(command: Decorated) -> Decorated:
    """The option --format."""
    return click.option(
        "--format", "form", type=click.Choice(FORMATS),
        help="The format. Default: table on a terminal, else jsonl.",
    )(command)  # fmt: skip


def utc_option(command: Decorated) -> Decorated:
    """The option --utc."""
    return click.option("--utc", is_flag=True, help="Show times in UTC instead of the local time zone.")(command)


def output_option(command: Decorated) -> Decorated:
    """The option --output of commands that write a whole file."""
    return click.option(
        "--output", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
        help="Where to write. The file is written anew. Default, or with -: standard output.",
    )(command)  # fmt: skip


def chosen_format(form: str | None, output: Path | None) -> str:
    """The format to use: the one named, else a table if it goes to a terminal, else JSON lines."""
    if form is not None:
        return form
    return "table" if output in (None, Path("-")) and sys.stdout.isatty() else "jsonl"


def clock_of(form: str, *, utc: bool) -> Clock:
    """The clock of a format: programs get UTC."""
    return Clock(UTC) if utc or form not in FOR_PEOPLE else Clock()


def few_texts(texts: dict[str, list[str]]) -> dict[str, list[str]]:
    """The texts of queries by name, if they are few."""
    return texts if sum(map(len, texts.values())) <= MOST_TEXTS else {}


def show_matches(
    matches: Iterable[Match],
    form: str,
    output: Path | None,
    clock: Clock,
    *,
    total: int,
    texts: Mapping[str, Sequence[str]],
) -> None:
    """Prints or writes matches. `total` is how many there are, and `texts` has the queries of each name."""
    with data_file(check_output(output)) as file:
        match form:
            case "jsonl":
                write_json_lines(matches, file)
            case "json":
                write_json(matches, file)
            case "csv":
                write_csv(matches, file, IN_UTC)
            case _:
                with Spool().add(matches) as spool:
                    _show_report(Report(spool.groups(), total, clock, texts), form, output, file)


def _show_report(report: Report, form: str, output: Path | None, file: BinaryIO) -> None:
    match form:
        case "html":
            write_page(report, file)
        case "markdown":
            write_markdown(report, file)
        case _:
            with table_console(output, file) as out:
                print_report(report, out)


@contextmanager
def table_console(output: Path | None, file: BinaryIO) -> Iterator[Console]:
    """The console for a table, on standard output or in a file."""
    if output in (None, Path("-")):
        yield console()
        return
    text = io.TextIOWrapper(file, "utf-8", write_through=True)
    try:
        yield Console(file=text, width=width(), color_system=None, highlight=False, emoji=False)
    finally:
        text.detach()  # whoever opened the file closes it
