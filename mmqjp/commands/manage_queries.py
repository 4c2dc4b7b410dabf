"""The commands for a store's queries, with or without a running service: subscribe, pause, list and others."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from rich import box
from rich.table import Table
from rich.text import Text

from common.private import share
from feeds.dates import iso_utc
from join_stage.joiner import DEFAULT_PLAN
from mmqjp.commands.console import console
from mmqjp.commands.debug import debug_option
from mmqjp.commands.failure import Failure
from mmqjp.commands.open import open_engine
from mmqjp.commands.options import engine_option, shared_option, text_for_store
from mmqjp.commands.progress import progress_shown
from mmqjp.service.client import Client
from mmqjp.service.commands import RunSinks, no_sinks
from mmqjp.state.choice import DUCKDB, SPARK, choose, stored_engine
from mmqjp.text import printable_line

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

TEXT_WIDTH = 60
"""How many characters of a query's text a list shows."""


def store_options(command: Decorated) -> Decorated:
    """The options of every command for a store: where it is, and how long to wait for an answer."""
    wait = click.option(
        "--wait", metavar="SECONDS", type=click.FloatRange(min=0), default=30.0, show_default=True,
        help="How long to wait if another process holds the store.",
    )  # fmt: skip
    state = click.option(
        "--state", metavar="DIR", required=True, type=click.Path(file_okay=False, path_type=Path),
        help="The state directory of the store. A service may be running on it.",
    )  # fmt: skip
    return state(wait(debug_option(command)))


def client(
    state: Path,
    wait: float,
    engine: str | None = None,
    *,
    reader: str = DUCKDB,
    shared: bool = False,
    run_sinks: RunSinks = no_sinks,
) -> Client:
    """A client of the store in a directory. With `engine`, the store is created if there is none. `reader` is the
    engine that reads, and DuckDB reads a store of Spark beside the process that holds it. `run_sinks` runs commands
    about sinks if no process holds the store."""
    kind = stored_engine(state) or (engine and choose(engine).engine)
    if kind is None:
        raise Failure(
            f"there is no store in {state}: check --state, or create one with mmqjp stream or mmqjp subscribe"
        )
    opens = partial(open_engine, kind, None, DEFAULT_PLAN, state)
    if shared:
        share(state)
    reads = partial(open_engine, reader, None, DEFAULT_PLAN, state, read_only=True)
    return Client(state, opens, wait, open_read_only=reads, reads_beside=kind == SPARK and reader == DUCKDB,
                  run_sinks=run_sinks)  # fmt: skip


def print_changed(names: list[str], word: str) -> None:
    """Prints what happened to which queries."""
    for name in names:
        click.echo(f"{name}: {word}")


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE")
@click.option("--add", is_flag=True, help="Keep the existing queries of the same names.")
@click.option("--backfill", is_flag=True, help="Also answer the queries over all documents that are kept.")
@shared_option
@store_options
@engine_option
def subscribe(file: Path, add: bool, backfill: bool, shared: bool, state: Path, wait: float, engine: str) -> None:
    """Register the queries of a file, in place of those of the same names.

    \b
    Example:
      mmqjp subscribe stories.xscl --state state/

    They are answered from the next batch on, for documents that arrive from then on. A running service keeps running.
    --engine is used only if the store does not exist yet.
    """
    text = text_for_store(file)
    arguments = {"text": text, "add": add, "backfill": backfill}
    with progress_shown():  # if no service runs, this process registers them
        changed = client(state, wait, engine, shared=shared).ask("subscribe", arguments)
    print_changed(changed, "subscribed")


@click.command()
@click.argument("name")
@store_options
def unsubscribe(name: str, state: Path, wait: float) -> None:
    """Remove all queries of a name.

    \b
    Example:
      mmqjp unsubscribe same_story --state state/
    """
    print_changed(client(state, wait).ask("unsubscribe", {"name": name}), "removed")


@click.command()
@click.argument("name")
@store_options
def pause(name: str, state: Path, wait: float) -> None:
    """Pause the queries of a name: they give no outputs, and never see the documents that arrive meanwhile.

    \b
    Example:
      mmqjp pause same_story --state state/
    """
    print_changed(client(state, wait).ask("pause", {"name": name}), "paused")


@click.command()
@click.argument("name")
@store_options
def resume(name: str, state: Path, wait: float) -> None:
    """Resume the paused queries of a name.

    \b
    Example:
      mmqjp resume same_story --state state/
    """
    print_changed(client(state, wait).ask("resume", {"name": name}), "resumed")


@click.command("list")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each name, or each query of NAME.")
@store_options
def list_queries(name: str | None, state: Path, as_json: bool, wait: float) -> None:
    """List the query names, the number of queries of each, and which are paused.

    \b
    Examples:
      mmqjp list --state state/
      mmqjp list same_story --state state/

    With NAME, list the queries of that name: their text, when they were added, and whether and why they are paused.
    """
    if name is not None:
        _list_named(client(state, wait).ask("show", {"name": name}), as_json)
        return
    found = client(state, wait).ask("list", {})
    if as_json:
        json_lines(found)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("name", "queries", "state", "text"):
        table.add_column(column, overflow="fold")
    for row in found:
        text = printable_line(row["text"])
        shown = text if len(text) <= TEXT_WIDTH else text[: TEXT_WIDTH - 1] + "…"
        cells = (row["name"], str(row["queries"]), _state(row), shown)
        table.add_row(*map(Text, cells))
    console().print(table)


def json_lines(rows: Any) -> None:
    """Prints a line of JSON for each row."""
    for row in rows:
        click.echo(json.dumps(row, ensure_ascii=False))


def _state(row: dict[str, Any]) -> str:
    return "active" if row["paused"] is None else f"paused: {printable_line(row['paused'])}"


def _list_named(found: Any, as_json: bool) -> None:
    """Prints the queries of one name."""
    if as_json:
        json_lines(found)
        return
    for row in found:
        click.echo(f"{row['name']}: {_state(row)}, since {iso_utc(row['added_at'])}")
        click.echo(f"  {row['text']}")
