"""`mmqjp check`: finds every mistake in query files, warns, and summarizes or tries the queries of correct ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import click
from rich import box
from rich.table import Table
from rich.text import Text

from feeds.entries import EntryForm
from feeds.sources import read_documents
from mmqjp.commands.console import console, counted
from mmqjp.commands.debug import debug_option
from mmqjp.commands.failure import FAILED, Failure
from mmqjp.commands.options import AtLeast, FeedsBeforePaths, feeds_option, read_script, time_xpath_option
from mmqjp.commands.progress import progress_shown
from mmqjp.explain import trial_text
from mmqjp.explain.deciding import absences_in, answers_after
from mmqjp.explain.event_program import EventProgram, compiled
from mmqjp.explain.event_summary import DEFINITION_COLUMNS, QUERY_COLUMNS, definition_row, query_row
from mmqjp.explain.sample import Sample, in_turns, sample_of
from mmqjp.explain.terms import leaf_sides, names_of_others
from mmqjp.explain.trial import MOST_QUERIES, try_queries
from mmqjp.explain.warnings import warnings_of
from mmqjp.queries.model import HiddenStream, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.session import Session
from mmqjp.text import printable_line
from xscl import Query, Script
from xscl.parser import located_queries
from xscl.problems import rendered

MOST_LISTED = 1_000
"""How many queries of a file are listed. The others are counted."""

MOST_TRIED = 500
"""On how many documents queries are tried, if no limit is given."""

COLUMNS = ("query", "kind", "reads", "disjuncts", "value joins", "templates", "shares a row with")
NAME_WIDTH = 40


@click.command(cls=FeedsBeforePaths)
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@feeds_option
@click.option("--strict", is_flag=True, help="Fail if there are warnings.")
@click.option(
    "--against", metavar="PATH", multiple=True, type=click.Path(exists=True, path_type=Path),
    help="Try the queries on documents, and say what each part of them found. May be repeated.",
)  # fmt: skip
@click.option(
    "--limit", metavar="N", type=AtLeast(1), default=MOST_TRIED, show_default=True,
    help="Most documents to try the queries on.",
)  # fmt: skip
@time_xpath_option
@debug_option
def check(
    files: tuple[Path, ...],
    feeds: EntryForm | None,
    strict: bool,
    against: tuple[Path, ...],
    limit: int,
    time_xpath: str | None,
) -> None:
    """Check query files: print every mistake with its place and a hint, or a summary of the queries.

    \b
    Examples:
      mmqjp check stories.xscl
      mmqjp check --feeds stories.xscl
      mmqjp check stories.xscl --against feeds/ --feeds

    With --feeds, also warn of names that items do not have, of streams that nothing writes, and of comparisons that
    never hold. With --against, run the queries over some documents, and say which part of which query finds nothing.
    """
    sample = None
    if against:
        with progress_shown():
            sources = _spread(against) if feeds else against
            found = in_turns(read_documents([path], feeds=feeds, time_xpath=time_xpath) for path in sources)
            sample = sample_of(found, limit)
        if not sample.documents:
            raise Failure(f"{', '.join(map(str, against))}: there is no document to try the queries on")
    failed = False
    for path in files:
        try:
            text, script = read_script(path)
            summary = summarise(script) if script.queries else None
        except Failure as failure:
            failure.show()
            failed = True
            continue
        click.echo(f"{path}: {_counts(script)}, no mistakes")
        if summary is not None:
            if sample is None:
                _show(summary.table, len(script.queries), "query", "queries")
                click.echo("".join(f"{note}\n" for note in summary.notes), nl=False)
            else:
                _show_trial(path, text, script, sample)
        _show_events(script)
        if warnings := warnings_of(text, script, feeds):
            click.echo(rendered(warnings, str(path), "warning", "warning"), err=True)
            failed = failed or strict
    if failed:
        raise click.exceptions.Exit(FAILED)


def _counts(script: Script) -> str:
    counts = counted(len(script.all_queries), "query", "queries")
    return f"{counts}, {counted(len(script.definitions), 'event')} defined" if script.definitions else counts


def _show(table: Table, count: int, noun: str, several: str) -> None:
    """Prints a table, and how many rows it would have besides."""
    console().print(table)
    if more := count - table.row_count:
        click.echo(f"and {counted(more, noun, several)} more")


def _show_events(script: Script) -> None:
    """Prints what the event statements of a script are."""
    if not script.has_events:
        return
    program = EventProgram(compiled(script))
    if script.definitions:
        table = _table(DEFINITION_COLUMNS)
        for definition in script.definitions[:MOST_LISTED]:
            table.add_row(*map(Text, definition_row(definition, program)))
        _show(table, len(script.definitions), "event", "events")
    if program.statements:
        table = _table(QUERY_COLUMNS)
        for number in range(min(len(program.statements), MOST_LISTED)):
            table.add_row(*map(Text, query_row(number, program)))
        _show(table, len(program.statements), "event query", "event queries")


def _table(columns: Iterable[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _spread(paths: Iterable[Path]) -> Iterator[Path]:
    """The paths to feeds, with the directories inside a directory that holds nothing else: mostly one for each feed."""
    for path in paths:
        inside = sorted(path.iterdir()) if path.is_dir() else []
        yield from inside if inside and all(one.is_dir() for one in inside) else [path]


def _show_trial(path: Path, text: str, script: Script, sample: Sample) -> None:
    """Prints what the queries of a script find in a sample."""
    streams = ", ".join(f"{printable_line(stream)} {len(trees):,}" for stream, trees in sample.trees.items())
    refused = f"; {sample.refused:,} could not be read" if sample.refused else ""
    click.echo(f"tried on {counted(len(sample.documents), 'document')} (stream {streams}{refused})")
    first = range(min(len(script.queries), MOST_QUERIES))
    with progress_shown():
        trials, everything = try_queries(script, located_queries(text, first), sample)
    console().print(trial_text.table(trials, text))
    if more := len(script.queries) - len(trials):
        click.echo(f"and {counted(more, 'query', 'queries')} more, not tried")
    if notes := trial_text.notes(trials, text, everything):
        click.echo(rendered(notes, str(path), "note", "note"))


class Summary(NamedTuple):
    """A table with a row for each query of a script, but at most MOST_LISTED; and when absences of these are decided, a
    line for each."""

    table: Table
    notes: list[str]


def summarise(script: Script) -> Summary:
    """Summarises the queries of a script. All are registered in a new, empty engine."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    named = zip(script.all_queries, script.names(), strict=True)
    names = [name for query, name in named if isinstance(query, Query)]
    longest = max(map(len, names[:MOST_LISTED]))
    notes: list[str] = []
    for name in COLUMNS:
        width = min(longest, NAME_WIDTH) if name == "query" else None
        table.add_column(name, overflow="fold", min_width=width)
    with Session("duckdb") as engine:
        with progress_shown():
            engine.ensure(script)
        joins = (query for query in engine.registry.subscriptions.values() if not query.is_events)
        for subscription in islice(joins, MOST_LISTED):
            table.add_row(*map(Text, _row(engine.registry, subscription)))
            found = map(answers_after, absences_in(subscription.normal))
            notes += (f"{printable_line(subscription.name)}: {told}" for told in dict.fromkeys(found))
    return Summary(table, notes)


def _row(registry: Registry, subscription: Subscription) -> tuple[str, ...]:
    normal = subscription.normal
    owners: list[Subscription | HiddenStream] = [subscription, *registry.inner_joins(subscription)]
    blocks = list(leaf_sides(normal.conjuncts[0]))
    kind = f"chain of {len(blocks)}" if len(blocks) > 2 else normal.op or "filter"
    parts = normal.absent or normal.conjuncts
    joins = sorted({len(part.joins) for part in parts})
    templates = sorted({target.template for owner in owners for target in owner.targets})
    sharers = (t for owner in owners for target in owner.targets for t in registry.of_row(target.row))
    return (
        subscription.name,
        kind,
        ", ".join(dict.fromkeys(block.stream for block in blocks)),
        str(len(parts)),
        "-".join(map(str, dict.fromkeys((joins[0], joins[-1])))),
        ", ".join(map(str, templates)),
        names_of_others(sharers, owners) or "-",
    )
