"""`mmqjp query`: queries a store in SQL, and prints the rows in several formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import click
from click.core import ParameterSource
from rich import box
from rich.table import Table
from rich.text import Text

from mmqjp.commands.failure import Failure
from mmqjp.commands.formats import (
    chosen_format,
    clock_of,
    format_option,
    output_option,
    table_console,
    utc_option,
)
from mmqjp.commands.manage_queries import client, store_options
from mmqjp.commands.options import AtLeast, seconds
from mmqjp.commands.sinks import check_output, data_file
from mmqjp.present.data_formats import write_csv_rows, write_json_array
from mmqjp.present.markdown import write_markdown_rows
from mmqjp.present.page import write_page_rows
from mmqjp.present.rows import cell, distinct, readable, text
from mmqjp.service.question_runner import QUERY
from mmqjp.service.sql_question import MAX_BYTES, MAX_ROWS, MAX_SECONDS
from mmqjp.state.choice import AUTO, DUCKDB, ENGINES, SPARK, stored_engine
from mmqjp.text import json_line, printable_line


@click.command()
@click.argument("sql")
@format_option
@click.option("--raw", is_flag=True, help="Leave values as they are stored: times in microseconds, nodes as text.")
@utc_option
@output_option
@click.option(
    "--timeout", metavar="DURATION", callback=seconds, default=f"{MAX_SECONDS:g}s", show_default=True,
    help="Longest time for the query, in addition to --wait. INF: no limit.",
)  # fmt: skip
@click.option(
    "--most-rows", metavar="N", type=AtLeast(1), default=MAX_ROWS, show_default=True,
    help="Most rows of the answer.",
)  # fmt: skip
@click.option(
    "--most-bytes", metavar="N", type=AtLeast(1), default=MAX_BYTES, show_default=True,
    help="Largest answer, in bytes.",
)  # fmt: skip
@click.option(
    "--engine", type=click.Choice(ENGINES), default=AUTO, show_default=True,
    help="Whose SQL it is. auto: DuckDB's, which needs no Java; spark: that of Spark, for stores on Spark.",
)  # fmt: skip
@store_options
@click.pass_context
def query(
    context: click.Context, sql: str, form: str | None, raw: bool, utc: bool, output: Path | None,
    timeout: float | None, most_rows: int, most_bytes: int, engine: str, state: Path, wait: float,
) -> None:  # fmt: skip
    """Query a store in SQL, and print the rows of the answer.

    \b
    Examples:
      mmqjp query "SELECT query, count(*) AS outputs FROM outputs GROUP BY query" --state state/
      mmqjp query "SELECT id, t0 FROM documents ORDER BY t0" --state state/ --format csv --output documents.csv

    Columns with the names of times (t0, t1, added_at, ...) are shown as times: in csv, json and jsonl in UTC. A running
    service answers beside its work, which takes precedence. The tables are only read, as of one batch.
    """
    chosen = chosen_format(form, output)
    asked = {"sql": sql, "seconds": timeout, "most_rows": most_rows, "most_bytes": most_bytes}
    longest = float("inf") if timeout is None else wait + timeout
    check_output(output)
    # A configuration that says spark for all commands does not mean that a store on DuckDB cannot be queried.
    given = context.get_parameter_source("engine") is ParameterSource.COMMANDLINE
    stored = stored_engine(state)
    if given and engine == SPARK and stored == DUCKDB:
        raise Failure(f"the store in {state} is on duckdb, whose SQL it takes: leave out --engine spark")
    reader = SPARK if engine == stored == SPARK else DUCKDB
    found = client(state, longest, reader=reader).ask(QUERY, asked)
    columns = found["columns"]
    rows = found["rows"] if raw else readable(columns, found["rows"], clock_of(chosen, utc=utc))
    with data_file(check_output(output)) as file:
        write_rows(columns, rows, chosen, sql, output, file)


def write_rows(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]] | Iterator[list[object]],
    form: str,
    title: str,
    output: Path | None,
    file: BinaryIO,
) -> None:
    """Writes rows in a format."""
    match form:
        case "jsonl":
            keys = distinct(columns)
            for row in rows:
                file.write(json_line(dict(zip(keys, row, strict=True))))
        case "json":
            keys = distinct(columns)
            write_json_array((dict(zip(keys, row, strict=True)) for row in rows), file)
        case "csv":
            write_csv_rows(columns, (map(cell, row) for row in rows), file)
        case "html":
            write_page_rows(columns, (map(text, row) for row in rows), title, file)
        case "markdown":
            write_markdown_rows(columns, (map(text, row) for row in rows), file)
        case _:
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
            kept = list(rows)
            for place, name in enumerate(columns):
                numbers = bool(kept) and all(isinstance(row[place], int | float | None) for row in kept)
                table.add_column(Text(printable_line(name)), overflow="fold", justify="right" if numbers else "left")
            for row in kept:
                table.add_row(*(Text(printable_line(text(value))) for value in row))
            with table_console(output, file) as out:
                out.print(table)
