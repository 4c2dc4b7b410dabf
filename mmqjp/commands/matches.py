"""Commands that read a store: `matches`, `query` (SQL), `show` (documents), `why` and `why-not`. If a running service
holds the store, it answers; otherwise this process opens the store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.text import Text

from common.tools import gathered
from feeds.documents import Document, Reject, Visit
from feeds.feed import EntryForm
from feeds.tail import read_documents
from mmqjp.commands import formats, options
from mmqjp.commands.command_line import Failure, debug_option
from mmqjp.commands.console import console
from mmqjp.commands.formats import check_output, data_file, time_since, write_rows
from mmqjp.commands.manage_queries import client, print_found, store_options
from mmqjp.explain.automaton import Shapes
from mmqjp.explain.svg import document_lines, visible
from mmqjp.present import terminal
from mmqjp.present.item import MatchFilter, ShownMatch, TimeFormat, WhyNot, format_rows
from mmqjp.present.newest import shown_outputs
from mmqjp.present.output_why import OutputWhy
from mmqjp.present.why_not import QueryFunnels
from mmqjp.process import pluralise
from mmqjp.service.commands import Client, paged_matches
from mmqjp.service.sql_question import MAX_BYTES, MAX_ROWS, MAX_SECONDS, QUERY, WHY, WHY_NOT
from mmqjp.state.engine_choice import AUTO, DUCKDB, ENGINES, SPARK, stored_engine
from mmqjp.tables.lookup import quote_literal
from xpath_stage.documents import DocumentError, parse_document
from xscl.text import did_you_mean

LISTED = 10


@click.command()
@click.option("--query", "name", metavar="NAME", help="Only the matches of this query.")
@click.option(
    "--since", metavar="TIME|DURATION",
    help="Only matches whose last document is since this time, such as 2026-07-16, or within a duration, such as 2d.",
)  # fmt: skip
@click.option(
    "--limit", metavar="N", type=options.AtLeast(1),
    help=f"Only the newest N. Default: {formats.SHOWN:,} in table, html and markdown, else all.",
)  # fmt: skip
@formats.format_option
@formats.tz_option
@formats.output_option
@store_options
def matches(
    name: str | None, since: str | None, limit: int | None, form: str | None, clock: TimeFormat, output: Path | None,
    state: Path, wait: float,
) -> None:  # fmt: skip
    """Show what the queries of a store have matched, when and why.

    \b
    Examples:
      mmqjp matches --state state/ --since 2d
      mmqjp matches --state state/ --format html --output matches.html

    For each match: the documents with title, site and link, the values that made them match, and what the query
    SELECTs. table, html and markdown group matches by query, newest first; csv, json and jsonl list them oldest first,
    with times in UTC. A running service answers between two batches.
    """
    chosen = formats.chosen_format(form, output)
    most = formats.SHOWN if limit is None and chosen in formats.FOR_PEOPLE else limit
    wanted = MatchFilter(name, None if since is None else time_since(since, clock), most)
    with store_of(client(state, wait)) as (select, matches_after):
        if name is not None:
            _check_name(select, name, state)
        found = matches_after(wanted, wanted.start(select))
        total = wanted.count(select) if chosen in formats.FOR_PEOPLE else 0
        formats.show_matches(
            found, chosen, output, formats.clock_of(chosen, clock), total=total, texts=registered_texts(select, name)
        )


SelectRows = Callable[[str], list[dict[str, Any]]]
MatchesAfter = Callable[[MatchFilter, int], Iterator[ShownMatch]]
"""Yields the matches that pass a filter and are numbered above a number."""


@contextmanager
def store_of(asked: Client) -> Iterator[tuple[SelectRows, MatchesAfter]]:
    """Reads a store in this process, or through the service that holds it."""

    def select(sql: str) -> list[dict[str, Any]]:
        found = asked.ask(QUERY, {"sql": sql, "seconds": None})
        return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]

    with asked.reading() as engine:
        if engine is None:
            yield select, partial(paged_matches, asked.ask)
        else:
            shown, outputs = partial(shown_outputs, engine), engine.outputs
            yield (
                lambda sql: engine.sql(sql, trusted=True).to_pylist(),
                lambda wanted, after: shown(wanted.among(outputs(after))),
            )


def registered_texts(select: SelectRows, name: str | None) -> dict[str, list[str]]:
    """Returns the texts of registered queries by name: of one name, or of all unless there are too many."""
    condition = "" if name is None else f" AND name = '{name}'"
    most = formats.MOST_TEXTS + 1
    rows = select(f"SELECT name, text FROM queries WHERE removed_at IS NULL{condition} ORDER BY qid LIMIT {most}")
    return formats.few_texts(gathered((row["name"], row["text"]) for row in rows))


def _check_name(select: SelectRows, name: str, state: Path) -> None:
    """Raises Failure if a name was never registered."""
    known = sorted(row["name"] for row in select("SELECT DISTINCT name FROM queries"))
    if name in known:
        return
    there = f"there are: {formats.listed_names(known, LISTED)}" if known else "it has no queries"
    raise Failure(f"no query of {state} is called {name!r}; {did_you_mean(name, known) or there}")


@click.command()
@click.argument("sql")
@formats.format_option
@click.option("--raw", is_flag=True, help="Leave values as stored: times in microseconds, nodes as text.")
@formats.tz_option
@formats.output_option
@click.option(
    "--timeout", metavar="DURATION", callback=options.seconds, default=f"{MAX_SECONDS:g}s", show_default=True,
    help="Longest time for the query, in addition to --wait. INF: no limit.",
)  # fmt: skip
@click.option(
    "--most-rows", metavar="N", type=options.AtLeast(1), default=MAX_ROWS, show_default=True,
    help="Most rows of the answer.",
)  # fmt: skip
@click.option(
    "--most-bytes", metavar="N", type=options.AtLeast(1), default=MAX_BYTES, show_default=True,
    help="Largest answer, in bytes.",
)  # fmt: skip
@click.option(
    "--engine", type=click.Choice(ENGINES), default=AUTO, show_default=True,
    help="The SQL dialect. auto: DuckDB's, which needs no Java; spark: Spark's, for stores on Spark.",
)  # fmt: skip
@store_options
@click.pass_context
def query(
    context: click.Context, sql: str, form: str | None, raw: bool, clock: TimeFormat, output: Path | None,
    timeout: float | None, most_rows: int, most_bytes: int, engine: str, state: Path, wait: float,
) -> None:  # fmt: skip
    """Query a store in SQL, and print the rows of the answer.

    \b
    Examples:
      mmqjp query "SELECT query, count(*) AS outputs FROM outputs GROUP BY query" --state state/
      mmqjp query "SELECT id, t0 FROM documents ORDER BY t0" --state state/ --format csv --output documents.csv

    Columns named like times (t0, t1, added_at, ...) are shown as times, in csv, json and jsonl in UTC. A running
    service answers at low priority, without interrupting its work. The tables are read-only, as of one batch.
    """
    chosen = formats.chosen_format(form, output)
    asked = {"sql": sql, "seconds": timeout, "most_rows": most_rows, "most_bytes": most_bytes}
    longest = float("inf") if timeout is None else wait + timeout
    check_output(output)
    # A configuration with spark for all commands must not keep a store on DuckDB from being queried.
    given = context.get_parameter_source("engine") is ParameterSource.COMMANDLINE
    stored = stored_engine(state)
    if given and engine == SPARK and stored == DUCKDB:
        raise Failure(f"the store in {state} is on duckdb and takes DuckDB's SQL: leave out --engine spark")
    found = client(state, longest, reader=SPARK if engine == stored == SPARK else DUCKDB).ask(QUERY, asked)
    columns = found["columns"]
    rows = found["rows"] if raw else format_rows(columns, found["rows"], formats.clock_of(chosen, clock))
    with data_file(check_output(output)) as file:
        write_rows(columns, rows, chosen, sql, output, file)


OF_EACH_SHAPE, MOST_SHAPES = 2, 12  # default limits: documents per shape, and shapes
DEAD_LETTERS = 5  # default limit of dead letters shown

RAW_SHOWN = 200

MOST_STORED = 1_000  # default limit of stored documents read


@click.command(cls=options.FeedsBeforePaths)
@click.argument("paths", nargs=-1, metavar="PATH...", type=click.Path(path_type=Path))
@options.feeds_option
@options.time_xpath_option
@click.option("--limit", metavar="N", type=options.AtLeast(1), help="Show the first N documents, regardless of shape.")
@click.option("--full", is_flag=True, help="Shorten nothing on a terminal.")
@click.option("--id", "identity", metavar="ID", help="Only documents with this id.")
@click.option("--stream", metavar="NAME", help="Only documents of this stream.")
@options.state_option(
    "Show the documents of a store instead of paths: the first 1,000 without --limit. A service may be running on it."
)
@options.wait_option()
@formats.tz_option
@debug_option
def show(
    paths: tuple[Path, ...], feeds: EntryForm | None, time_xpath: str | None, limit: int | None, full: bool,
    identity: str | None, stream: str | None, state: Path | None, wait: float, clock: TimeFormat,
) -> None:  # fmt: skip
    """Show documents as queries see them: indented, with the number of each element, and with stream, id and time.

    \b
    Examples:
      mmqjp show feeds/ --feeds
      mmqjp show --state state/ --stream S --limit 3

    Documents with the same set of paths have one shape. A few of each shape are shown, and the others counted.
    """
    if state is not None and paths:
        raise click.UsageError("give paths or --state; the queries of a name are shown by mmqjp list NAME --state DIR")
    if state is None and not paths:
        raise click.UsageError("name the documents: files or directories, or a store with --state")
    items = (
        read_documents(paths, feeds=feeds, time_xpath=time_xpath)
        if state is None
        else _stored(state, wait, identity, stream, limit or MOST_STORED)
    )
    documents = (item for item in items if not isinstance(item, Visit))
    chosen = (i for i in documents if (identity is None or i.id == identity) and (stream is None or i.stream == stream))
    shower = _Shower(console(), limit, clock, full=full or not sys.stdout.isatty(), trusted=state is not None)
    for item in chosen:
        if shower.is_done:
            break
        shower.take(item)
    shower.finish()


class _Shower:
    """Prints documents and dead letters up to a limit of each kind."""

    def __init__(self, out: Console, limit: int | None, clock: TimeFormat, *, full: bool, trusted: bool) -> None:
        self._out, self._limit, self._clock, self._full, self._trusted = out, limit, clock, full, trusted
        self._shapes = Shapes()
        self._documents = self._dead = 0

    @property
    def is_done(self) -> bool:
        return self._limit is not None and self._documents >= self._limit

    def take(self, item: Document | Reject) -> None:
        if isinstance(item, Reject):
            self._dead_letter(item)
            return
        try:
            root = parse_document(item.xml_bytes(), trusted=self._trusted).root
        except DocumentError as error:
            self._dead_letter(Reject(item.id, item.stream, item.t0, str(error), item.xml))
            return
        self._documents += 1
        shape = self._shapes.number(root)
        if self._limit is None and (shape > MOST_SHAPES or self._shapes.shown[shape] >= OF_EACH_SHAPE):
            return
        self._shapes.shown[shape] += 1
        time = " to ".join(map(self._clock.iso, dict.fromkeys((item.t0, item.t1))))
        head = Text(visible(item.stream), "bold").append(f"  {visible(item.id)}", "bold cyan")
        self._line(head.append(f"  {time}  shape {shape}", "dim"))
        for line in document_lines(root, full=self._full):
            self._line(line)
        self._line(Text())

    def _dead_letter(self, reject: Reject) -> None:
        self._dead += 1
        if self._limit is None and self._dead > DEAD_LETTERS:
            return
        head = Text().append("dead letter", "bold red").append(f"  {visible(reject.id)}", "bold cyan")
        self._line(head.append(f"  {visible(reject.reason)}"))
        raw = reject.raw[: 4 * RAW_SHOWN]
        text = visible(raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw)
        if text:
            self._line(Text(f"  {text[:RAW_SHOWN]}{'…' if len(text) > RAW_SHOWN else ''}", "dim"))
        self._line(Text())

    def finish(self) -> None:
        """Prints a summary of what was not shown."""
        met, shown = self._shapes.met, self._shapes.shown
        shapes = range(1, min(len(met), MOST_SHAPES) + 1)
        lines = [f"shape {shape}: {more:,} more" for shape in shapes if (more := met[shape] - shown[shape])]
        if len(met) > MOST_SHAPES:
            others = sum(count for shape, count in met.items() if shape > MOST_SHAPES)
            kinds = pluralise(len(met) - MOST_SHAPES, "other shape")
            lines.append(f"{pluralise(others, 'document')} of {kinds}: --limit N shows the first N documents")
        if self._dead > DEAD_LETTERS:
            lines.append(f"{pluralise(self._dead - DEAD_LETTERS, 'more dead letter')}")
        for line in lines if self._limit is None else ():
            self._line(Text(line, "dim"))
        if not self._documents and not self._dead:
            self._line(Text("no documents"))

    def _line(self, line: Text) -> None:
        self._out.print(line, soft_wrap=True)


def _stored(state: Path, wait: float, identity: str | None, stream: str | None, most: int) -> Iterator[Document]:
    conditions = ["kind <> 'hidden'"]
    conditions += [f"{name} = {quote_literal(it)}" for name, it in (("id", identity), ("stream", stream)) if it]
    sql = f"SELECT id, stream, t0, t1, xml FROM documents WHERE {' AND '.join(conditions)} ORDER BY docid LIMIT {most}"
    asked = {"sql": sql, "seconds": MAX_SECONDS, "most_rows": most, "most_bytes": MAX_BYTES}
    for name, of_stream, t0, t1, xml in client(state, wait + MAX_SECONDS).ask(QUERY, asked)["rows"]:
        yield Document(name, xml, of_stream, (t0, t1))


@click.command()
@click.argument("id")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@formats.tz_option
@store_options
def why(id: str, as_json: bool, clock: TimeFormat, state: Path, wait: float) -> None:
    """Show why an output came about: its documents, the values that joined them, the conditions that held.

    \b
    Examples:
      mmqjp why e3c019be --state state/
      mmqjp why 9 --state state/ --json

    ID is the id of an output, as in output lines, the beginning of one, or its number (seq). A running service answers
    without interrupting its work.
    """
    found = client(state, wait).ask(WHY, {"id": id})
    print_found(found, lambda _: terminal.print_why(OutputWhy.from_dict(found), clock, console()), as_json=as_json)


@click.command("why-not")
@click.argument("query")
@click.argument("documents", nargs=-1, metavar="[DOC]...")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@formats.tz_option
@store_options
def why_not(query: str, documents: tuple[str, ...], as_json: bool, clock: TimeFormat, state: Path, wait: float) -> None:
    """Show why documents give no output of a query, or how far the stored documents get in it.

    \b
    Examples:
      mmqjp why-not same_story "Old pier reopens" https://example.org/pier --state state/
      mmqjp why-not same_story --state state/

    QUERY is a name. A DOC is a document's id, as in output lines, or the address or title of an item if it is unique.
    The first condition that fails is shown; for a single DOC also which stored documents came nearest, and without any
    DOC, how many of the newest 10,000 documents get past each part of the query. A running service answers without
    interrupting its work.
    """

    def show(found: Any) -> None:
        if documents:
            terminal.print_why_not(WhyNot.from_dict(found), clock, console())
        else:
            terminal.print_funnels(QueryFunnels.from_dict(found), console())

    print_found(client(state, wait).ask(WHY_NOT, {"query": query, "documents": list(documents)}), show, as_json=as_json)
