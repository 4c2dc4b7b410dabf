"""`mmqjp run`: the queries of a file over documents, one JSON line for each output."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from common.private import make_inside
from feeds.document import DEFAULT_STREAM, Document, Reject
from feeds.entries import EntryForm
from feeds.history import History, Versions
from feeds.sources import read_documents
from mmqjp.answers.quota import Quota
from mmqjp.commands.debug import debug_option
from mmqjp.commands.failure import Failure, Interrupted
from mmqjp.commands.fetching import (
    DROPS,
    KEPT,
    FetchOptions,
    demand_some,
    fetch_once,
    fetch_source_options,
    listed_feeds,
)
from mmqjp.commands.interrupts import interruptible
from mmqjp.commands.lateness import lateness_option
from mmqjp.commands.open import open_engine, subscribe
from mmqjp.commands.options import (
    bounds_options,
    engine_option,
    feeds_option,
    most_versions_option,
    plan_option,
    read_script,
    shared_option,
    time_xpath_option,
    versions_option,
)
from mmqjp.commands.sinks import DeadLetters, checked
from mmqjp.documents.batching import BATCH_BYTES, BATCH_DOCUMENTS, batches
from mmqjp.documents.watermarks import Lateness, Timing, lateness_of
from mmqjp.garbage import gc_frozen
from mmqjp.service.drops import Drops
from mmqjp.service.intake import Intake
from mmqjp.service.loop import PRUNED, PRUNED_AT
from mmqjp.session import Session
from mmqjp.sinks.delivery import OUTPUT_SINK, Delivery
from mmqjp.sinks.jsonl import open_sink
from mmqjp.state.retention import ID_RETENTION
from mmqjp.tables.commit_metadata import NO_METADATA, CommitMetadata
from mmqjp.text import one_line

if TYPE_CHECKING:
    pass

REPORTED = 10
"""So many queries that are paused are named."""

NOT_KEPT = "without --state nothing is kept"


Batch = tuple[Sequence[Document | Reject], CommitMetadata]
"""Documents, and what is committed along with them."""


@click.command()
@click.option(
    "--queries",
    "queries_path",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The queries, in XSCL. Without it: those of --state.",
)
@click.option(
    "--documents",
    "paths",
    metavar="PATH",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Documents: .jsonl[.gz], .xml or a directory of them, .warc[.gz], feeds with --feeds. May be repeated.",
)
@fetch_source_options
@feeds_option
@versions_option
@most_versions_option
@time_xpath_option
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="Where the output lines go: appended with --state, else the file is written anew. Without it, or with -: "
    "standard output.",
)
@click.option(
    "--dead-letters",
    "dead_letters_path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the documents go that could not be taken in, with the reasons, as JSON lines.",
)
@click.option(
    "--state",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keeps queries, documents and matches for later runs.",
)
@click.option(
    "--batch-size", metavar="N", type=click.IntRange(min=1), default=BATCH_DOCUMENTS, show_default=True,
    help="How many documents are processed and committed together.",
)  # fmt: skip
@lateness_option("INF")
@bounds_options
@shared_option
@plan_option
@click.option("--master", metavar="URL", help="The Spark master. Without it Spark runs on this machine.")
@engine_option
@debug_option
def run(
    queries_path: Path | None,
    paths: tuple[Path, ...],
    lists: tuple[str, ...],
    keep_drops: int | None,
    options: FetchOptions,
    feeds: EntryForm | None,
    versions: Versions,
    most_versions: int,
    time_xpath: str | None,
    output: Path | None,
    dead_letters_path: Path | None,
    state: Path | None,
    batch_size: int,
    lateness: Lateness,
    max_matches: int,
    max_outputs: int,
    max_work: int,
    shared: bool,
    plan: str,
    master: str | None,
    engine: str,
) -> None:
    """Run queries over documents and write one JSON line for each output.

    \b
    Example:
      mmqjp run --queries stories.xscl --documents feeds/ --feeds --output matches.jsonl
      mmqjp run --queries stories.xscl --fetch subscriptions.opml --state state/ --output matches.jsonl

    A second run with the same --state goes on where the first one ended: queries that are the same in FILE go on, the
    others of the state end, and what is found now is appended to the output. A document that cannot be read is left
    out, counted, and named on standard error.
    """
    if master is not None and engine != "spark":
        raise click.UsageError(f"--master is for the engine spark, and the engine is {engine}")
    if not paths and not lists:
        raise click.UsageError("name documents with --documents, or feeds with --fetch")
    if queries_path is None and (state is None or not state.is_dir()):
        raise click.UsageError("name the queries with --queries, or a --state that has some")
    script = None if queries_path is None else read_script(queries_path)[1]
    subscribed = listed_feeds(lists)
    archives = lateness_of(lateness, DEFAULT_STREAM)
    history, lasting = (
        History(versions, most_versions, lateness=archives, keep=ID_RETENTION) for _ in ("documents", "fetched")
    )
    documents = read_documents(paths, feeds=feeds, time_xpath=time_xpath, history=history)
    dead, target = DeadLetters(dead_letters_path), checked(output)
    quota = Quota(max_matches, max_outputs, max_work)
    with (
        open_engine(engine, master, plan, state, Timing(lateness), quota=quota, shared=shared) as opened,
        ExitStack() as here,
    ):
        growing = state is not None
        sink = here.enter_context(closing(open_sink(target, opened.position(OUTPUT_SINK), _say, growing=growing)))
        delivery = Delivery(opened, sink)
        delivery.prepare()
        dead.begin()
        try:
            drops = intake = report = None
            if lists:
                fetched_into = make_inside(state, DROPS) if state else Path(here.enter_context(TemporaryDirectory()))
                drops = Drops(fetched_into, keep_drops)
                report = fetch_once(options.job(subscribed, drops.directory), KEPT if state else NOT_KEPT)
            with interruptible():
                if script is not None and queries_path is not None:
                    for what in subscribe(opened, script, queries_path, "exact"):
                        _say(what)
                elif not opened.registry.subscriptions:
                    raise Failure(f"{state} has no queries; name some with --queries")
                with gc_frozen():
                    process(opened, ((batch, NO_METADATA) for batch in batches(documents, batch_size)), dead)
                    if drops is not None:
                        tails = [drops.tail(feeds or "item")]
                        intake = Intake(opened, tails, lasting, batch_size, BATCH_BYTES, unreadable)
                        process(opened, fetched(intake), dead)
                        drops.sweep(opened)
                written = deliver(opened, delivery)
                if intake is not None:
                    drop_superseded(opened, intake)
        except KeyboardInterrupt:
            raise Interrupted(_kept(opened.counters().documents, state)) from None
        finally:
            dead.close()
            _report_dead_letters(dead, dead_letters_path)
            _report_future(history.future + lasting.future)
            _report_paused(opened)
        counters = opened.counters()
    if sys.stderr.isatty():
        click.echo(
            f"mmqjp: {counters.documents:,} documents, {counters.duplicates:,} met before, "
            f"{dead.count:,} dead letters, {written:,} outputs",
            err=True,
        )
    if report is not None:
        demand_some(report)
    if dead.count and not counters.documents and not counters.duplicates:
        raise Failure("no document could be taken in: all are dead letters")


def fetched(intake: Intake) -> Iterator[Batch]:
    """What was fetched and not read yet, with what is noted of it."""
    for taken in intake.batches():
        yield taken.items, intake.metadata(taken, {})
        intake.committed(taken)


def unreadable(file: str, reason: str) -> None:
    """Says that a fetched file cannot be read now."""
    if reason:
        click.echo(f"mmqjp: {one_line(file)} {reason}; the next run with the same --state reads it", err=True)


def drop_superseded(engine: Session, intake: Intake) -> None:
    """Drops, every PRUNED batches, what later notes of what was read have superseded."""
    if engine.batch - int(engine.setting(PRUNED_AT) or 0) >= PRUNED:
        engine.prune(None, None, *intake.there())
        engine.commit_metadata(CommitMetadata(settings={PRUNED_AT: str(engine.batch)}))


def process(engine: Session, found: Iterable[Batch], dead: DeadLetters) -> None:
    """Processes batches, with the count so far on a terminal."""
    live = sys.stderr.isatty()
    for documents, metadata in found:
        engine.process(documents, metadata)
        dead.add(engine.last_dead_letters())
        if live:
            seen = engine.counters()
            click.echo(f"\r{seen.documents:,} documents, {seen.outputs:,} outputs", nl=False, err=True)
    if live:
        click.echo("\r\x1b[K", nl=False, err=True)


def deliver(engine: Session, delivery: Delivery) -> int:
    """Writes the outputs that no run has written yet, and returns how many there were."""
    count = delivery.write(engine.lines(delivery.acked))
    if count:  # only what its reader has counts as delivered
        delivery.save_position()
    return count


def _say(what: str) -> None:
    click.echo(f"mmqjp: {one_line(what)}", err=True)


def _kept(documents: int, state: Path | None) -> str:
    if state is None:
        return NOT_KEPT
    return f"{documents:,} documents are committed in {state}; the same command goes on from there"


def _report_paused(engine: Session) -> None:
    """Says which queries rest: they were not answered for all documents."""
    paused = [query for query in engine.registry.subscriptions.values() if query.paused is not None]
    for query in paused[:REPORTED]:
        click.echo(f"mmqjp: {query.name} is paused: {one_line(str(query.paused))}", err=True)
    if len(paused) > REPORTED:
        click.echo(f"mmqjp: and {len(paused) - REPORTED:,} more are paused", err=True)


def _report_future(future: Counter[str]) -> None:
    """Says which entries claim to be from the future, of which each feed has so many."""
    for source, count in future.most_common(1):
        total = future.total()
        what = f"{total:,} feed entr{'ies' if total > 1 else 'y'} dated after the fetch"
        click.echo(f"mmqjp: {what}, taken as of then; {count:,} of {one_line(source)}", err=True)


def _report_dead_letters(dead: DeadLetters, path: Path | None) -> None:
    if not dead.count:
        return
    what = f"{dead.count:,} dead letter{'s' if dead.count > 1 else ''} (documents left out)"
    if path is not None:
        click.echo(f"mmqjp: {what} in {path}", err=True)
        return
    click.echo(f"mmqjp: {what}; --dead-letters FILE writes them to a file", err=True)
    for reason in dead.reasons:
        click.echo(f"  {one_line(reason)}", err=True)
    if dead.count > len(dead.reasons):
        click.echo(f"  and {dead.count - len(dead.reasons):,} more", err=True)
