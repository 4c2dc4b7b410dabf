"""`mmqjp show`: prints documents as queries see them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from feeds.dates import iso_utc
from feeds.document import Document, Reject
from feeds.entries import EntryForm
from feeds.sources import read_documents
from mmqjp.commands.console import console, counted
from mmqjp.commands.debug import debug_option
from mmqjp.commands.manage_queries import client
from mmqjp.commands.options import AtLeast, FeedsBeforePaths, feeds_option, time_xpath_option
from mmqjp.explain.document_text import document_lines, visible
from mmqjp.explain.shapes import Shapes
from mmqjp.service.question_runner import QUERY
from mmqjp.service.sql_question import MAX_BYTES, MAX_SECONDS
from xpath_stage.parse import DocumentError, parse_document

OF_EACH_SHAPE, MOST_SHAPES = 2, 12
"""How many documents of a shape, and of how many shapes, are shown if no limit is given."""

DEAD_LETTERS = 5
"""How many dead letters are shown if no limit is given."""

RAW_SHOWN = 200
"""How many characters of a dead letter's content are shown."""


MOST_STORED = 1_000
"""How many documents of a store are looked at if no limit is given."""


@click.command(cls=FeedsBeforePaths)
@click.argument("paths", nargs=-1, metavar="PATH...", type=click.Path(path_type=Path))
@feeds_option
@time_xpath_option
@click.option("--limit", metavar="N", type=AtLeast(1), help="Show the first N documents, whatever their shapes.")
@click.option("--full", is_flag=True, help="Shorten nothing on a terminal.")
@click.option("--id", "identity", metavar="ID", help="Only documents with this id.")
@click.option("--stream", metavar="NAME", help="Only documents of this stream.")
@click.option(
    "--state", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
    help="Show the documents that a store keeps, in place of those of paths: the first 1,000 without --limit. "
    "A service may be running on it.",
)  # fmt: skip
@click.option(
    "--wait", metavar="SECONDS", type=click.FloatRange(min=0), default=30.0, show_default=True,
    help="How long to wait if another process holds the store.",
)  # fmt: skip
@debug_option
def show(
    paths: tuple[Path, ...],
    feeds: EntryForm | None,
    time_xpath: str | None,
    limit: int | None,
    full: bool,
    identity: str | None,
    stream: str | None,
    state: Path | None,
    wait: float,
) -> None:
    """Show documents as queries see them: indented, with the number of each element, and with stream, id and time.

    \b
    Examples:
      mmqjp show feeds/ --feeds
      mmqjp show --state state/ --stream S --limit 3

    Documents with the same paths are of one shape. A few of each shape are shown, and the others are counted.
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
    chosen = (i for i in items if (identity is None or i.id == identity) and (stream is None or i.stream == stream))
    shower = _Shower(console(), limit, full=full or not sys.stdout.isatty(), trusted=state is not None)
    for item in chosen:
        if shower.is_done:
            break
        shower.take(item)
    shower.finish()


class _Shower:
    """Prints documents and dead letters until there are enough of each kind."""

    def __init__(self, out: Console, limit: int | None, *, full: bool, trusted: bool) -> None:
        self._out, self._limit, self._full, self._trusted = out, limit, full, trusted
        self._shapes = Shapes()
        self._documents = self._dead = 0

    @property
    def is_done(self) -> bool:
        """Whether no document can be shown any more, nor counted."""
        return self._limit is not None and self._documents >= self._limit

    def take(self, item: Document | Reject) -> None:
        """Prints a document or a dead letter, or counts it."""
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
        enough = shape > MOST_SHAPES or self._shapes.shown[shape] >= OF_EACH_SHAPE
        if self._limit is None and enough:
            return
        self._shapes.shown[shape] += 1
        time = _time(item.t0) if item.t0 == item.t1 else f"{_time(item.t0)} to {_time(item.t1)}"
        head = (
            Text(visible(item.stream), "bold").append(f"  {visible(item.id)}", "bold cyan").append(f"  {time}", "dim")
        )
        self._line(head.append(f"  shape {shape}", "dim"))
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
        """Prints what was not shown."""
        shapes = self._shapes
        for shape in range(1, min(len(shapes.met), MOST_SHAPES) + 1):
            if self._limit is None and (more := shapes.met[shape] - shapes.shown[shape]):
                self._line(Text(f"shape {shape}: {more:,} more", "dim"))
        if self._limit is None and len(shapes.met) > MOST_SHAPES:
            others = sum(count for shape, count in shapes.met.items() if shape > MOST_SHAPES)
            kinds = counted(len(shapes.met) - MOST_SHAPES, "other shape")
            self._line(Text(f"{counted(others, 'document')} of {kinds}: --limit N shows the first N documents", "dim"))
        if self._limit is None and self._dead > DEAD_LETTERS:
            self._line(Text(f"{counted(self._dead - DEAD_LETTERS, 'more dead letter')}", "dim"))
        if not self._documents and not self._dead:
            self._line(Text("no documents"))

    def _line(self, line: Text) -> None:
        self._out.print(line, soft_wrap=True)


def _stored(state: Path, wait: float, identity: str | None, stream: str | None, most: int) -> Iterator[Document]:
    """The first documents that a store keeps, published ones included."""
    conditions = ["kind <> 'hidden'"]
    conditions += [f"{name} = {_literal(value)}" for name, value in (("id", identity), ("stream", stream)) if value]
    sql = f"SELECT id, stream, t0, t1, xml FROM documents WHERE {' AND '.join(conditions)} ORDER BY docid LIMIT {most}"
    asked = {"sql": sql, "seconds": MAX_SECONDS, "most_rows": most, "most_bytes": MAX_BYTES}
    for name, of_stream, t0, t1, xml in client(state, wait + MAX_SECONDS).ask(QUERY, asked)["rows"]:
        yield Document(name, xml, of_stream, (t0, t1))


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _time(microseconds: int) -> str:
    try:
        return iso_utc(microseconds)
    except OverflowError:
        return str(microseconds)
