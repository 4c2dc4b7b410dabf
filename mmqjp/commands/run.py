"""`mmqjp run`: answers the queries of a file over documents, and writes one JSON line for each output, or a table."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from feeds.document import DEFAULT_STREAM, Document, Reject
from feeds.entries import EntryForm
from feeds.history import History, Versions
from feeds.sources import settled, tails_of
from mmqjp.answers.patterns.places import PLACES
from mmqjp.answers.quota import Quota
from mmqjp.commands.console import counted
from mmqjp.commands.debug import debug_option
from mmqjp.commands.failure import Failure, Interrupted
from mmqjp.commands.fetching import (
    KEPT,
    FetchOptions,
    feeds_to_fetch,
    fetch_once,
    fetch_source_options,
    require_a_success,
)
from mmqjp.commands.formats import (
    FOR_PEOPLE,
    SHOWN,
    chosen_format,
    clock_of,
    few_texts,
    format_option,
    show_matches,
    utc_option,
)
from mmqjp.commands.interrupts import interruptible
from mmqjp.commands.lateness import lateness_option, settle_is_given, settle_option
from mmqjp.commands.open import chosen_engine, open_engine, subscribe
from mmqjp.commands.options import (
    AtLeast,
    bounds_options,
    engine_option,
    feeds_option,
    most_versions_option,
    only_on_spark,
    patterns_option,
    plan_option,
    read_script,
    shared_option,
    time_xpath_option,
    versions_option,
)
from mmqjp.commands.progress import live_line
from mmqjp.commands.run_reports import report_dead_letters, report_future, report_paused, report_ties, report_waiting
from mmqjp.commands.sinks import DeadLetters, check_output
from mmqjp.documents.batching import BATCH_BYTES, BATCH_DOCUMENTS, batches
from mmqjp.documents.watermarks import SETTLE, Lateness, Timing, lateness_of
from mmqjp.garbage import gc_frozen
from mmqjp.present.read import MatchReader
from mmqjp.service.drops import DropDirectory
from mmqjp.service.fetched_feeds import fetch_directory
from mmqjp.service.intake import Intake
from mmqjp.service.loop import PRUNE_INTERVAL, PRUNED_AT_BATCH
from mmqjp.service.rereading import FILES, Rereading, reading_of
from mmqjp.session import Session
from mmqjp.sinks.delivery import OUTPUT_SINK, Delivery
from mmqjp.sinks.jsonl import open_sink
from mmqjp.state.retention import ID_RETENTION
from mmqjp.tables.commit_metadata import NO_METADATA, CommitMetadata, MetadataOf
from mmqjp.text import printable_line

NOT_KEPT = "without --state nothing is kept"


Batch = tuple[Sequence[Document | Reject], CommitMetadata | MetadataOf]
"""Documents, and the notes to commit with them."""


@click.command()
@click.option(
    "--queries",
    "queries_path",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The queries, in XSCL. Default: the queries of --state.",
)
@click.option(
    "--documents",
    "paths",
    metavar="PATH",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Documents: .jsonl[.gz], .xml, .warc[.gz], feeds with --feeds, or a directory. May be repeated.",
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
    help="Where to write the output lines. With --state they are appended, else the file is written anew, as it is in "
    "other formats than jsonl. Default, or with -: standard output.",
)
@format_option
@utc_option
@click.option(
    "--dead-letters",
    "dead_letters_path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to write the documents that were rejected, with the reasons, as JSON lines.",
)
@click.option(
    "--state",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to keep queries, documents and matches for later runs.",
)
@click.option(
    "--batch-size", metavar="N", type=AtLeast(1), default=BATCH_DOCUMENTS, show_default=True,
    help="How many documents to process and commit together.",
)  # fmt: skip
@lateness_option("INF")
@settle_option("INF")
@patterns_option(*PLACES)
@bounds_options
@shared_option
@plan_option
@click.option("--master", metavar="URL", help="The Spark master. Default: Spark runs on this machine.")
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
    form: str | None,
    utc: bool,
    dead_letters_path: Path | None,
    state: Path | None,
    batch_size: int,
    lateness: Lateness,
    settle: Lateness,
    patterns: str,
    max_matches: int,
    max_outputs: int,
    max_work: int,
    max_partial: int,
    shared: bool,
    plan: str,
    master: str | None,
    engine: str,
) -> None:
    """Run queries over documents and write one JSON line for each output, or show what matched and why.

    \b
    Examples:
      mmqjp run --queries stories.xscl --documents feeds/ --feeds --format table
      mmqjp run --queries stories.xscl --documents feeds/ --feeds --output matches.jsonl
      mmqjp run --queries stories.xscl --fetch subscriptions.opml --state state/ --output matches.jsonl

    A second run with the same --state continues where the first one ended. Queries that are still in the file
    continue, and the others of the state end. New outputs are appended to the output file. A document that cannot be
    read is left out, counted and reported on standard error.

    On a terminal, the matches of this run are shown as a table; otherwise they are written as JSON lines. A run in
    another format than jsonl does not count as having written the lines: with --state, the next run in jsonl does.
    """
    if not paths and not lists:
        raise click.UsageError("name documents with --documents, or feeds with --fetch")
    if queries_path is None and (state is None or not state.is_dir()):
        raise click.UsageError("name the queries with --queries, or a --state that has queries")
    script = None if queries_path is None else read_script(queries_path)[1]
    subscribed = feeds_to_fetch(lists, state)
    if lists and not settle_is_given():
        settle = SETTLE
    archives = lateness_of(lateness, DEFAULT_STREAM)
    history, fetched_history = (
        History(versions, most_versions, lateness=archives, keep=ID_RETENTION) for _ in ("documents", "fetched")
    )
    reading = reading_of(feeds, time_xpath, versions, most_versions)
    tails = tails_of(paths, feeds=feeds, time_xpath=time_xpath, prefix=FILES + reading)
    only_spark = only_on_spark(patterns)
    engine = chosen_engine(engine, state, master, paths, only_spark, feeds=feeds is not None).engine
    dead, target, chosen = DeadLetters(dead_letters_path), check_output(output), chosen_format(form, output)
    quota = Quota(max_matches, max_outputs, max_work, max_partial)
    with (
        open_engine(
            engine, master, plan, state, Timing(lateness, settle=settle), quota=quota, patterns=patterns, shared=shared
        ) as opened,
        ExitStack() as here,
    ):
        growing = state is not None
        before = opened.last_seq
        delivery = None
        if chosen == "jsonl":
            position = opened.position(OUTPUT_SINK)
            sink = here.enter_context(closing(open_sink(target, position, _report, growing=growing)))
            delivery = Delivery(opened, sink)
            delivery.prepare()
        dead.begin()
        try:
            drops = intake = report = rereading = None
            if lists:
                fetched_into = fetch_directory(state) if state else Path(here.enter_context(TemporaryDirectory()))
                drops = DropDirectory(fetched_into, keep_drops)
                report = fetch_once(options.job(subscribed, drops.directory), KEPT if state else NOT_KEPT)
            with interruptible():
                if script is not None and queries_path is not None:
                    for message in subscribe(opened, script, queries_path, "exact"):
                        _report(message)
                    script = None  # its trees may take much memory
                elif not opened.registry.subscriptions:
                    raise Failure(f"{state} has no queries; name a file of queries with --queries")
                with gc_frozen():
                    if state is None:
                        found = batches(settled(tails, history), batch_size)
                        process(opened, ((batch, NO_METADATA) for batch in found), dead)
                    else:
                        rereading = Rereading(opened, tails, history, reading, batch_size)
                        process(opened, rereading.batches(), dead, rereading)
                    if drops is not None:
                        fetched_tail = drops.tail(feeds or "item")
                        intake = Intake(opened, [fetched_tail], fetched_history, batch_size, BATCH_BYTES, unreadable)
                        process(opened, fetched(intake), dead)
                        drops.sweep(opened)
                    opened.finish()
                    dead.add(opened.last_dead_letters())
                if delivery is not None:
                    written = deliver(opened, delivery)
                else:
                    written = show_new(opened, before, chosen, output, utc=utc)
                drop_superseded(opened, [source for source in (intake, rereading) if source is not None])
        except KeyboardInterrupt:
            raise Interrupted(_kept(opened.counters().documents, state)) from None
        finally:
            dead.close()
            report_dead_letters(dead, dead_letters_path)
            report_future(history.future + fetched_history.future)
            report_paused(opened)
        report_ties(opened)
        report_waiting(opened)
        counters = opened.counters()
    if sys.stderr.isatty():
        click.echo(
            f"mmqjp: {_files(rereading)}{counters.documents:,} documents, {counters.duplicates:,} already known, "
            f"{dead.count:,} dead letters, {written:,} outputs",
            err=True,
        )
    if report is not None:
        require_a_success(report)
    unchanged = rereading is not None and rereading.unchanged
    if dead.count and not counters.documents and not counters.duplicates and not unchanged:
        raise Failure("no document was accepted: all are dead letters")


def fetched(intake: Intake) -> Iterator[Batch]:
    """The batches of what was fetched and not yet read."""
    for batch in intake.batches():
        yield batch.items, intake.metadata(batch, {})
        intake.committed(batch)


def unreadable(file: str, reason: str) -> None:
    """Reports a fetched file that cannot be read now."""
    if reason:
        click.echo(f"mmqjp: {printable_line(file)} {reason}; the next run with the same --state reads it", err=True)


def drop_superseded(engine: Session, read: Sequence[Intake | Rereading]) -> None:
    """Every PRUNE_INTERVAL batches, drops the notes on what was read that later ones have superseded."""
    if read and engine.batch - int(engine.setting(PRUNED_AT_BATCH) or 0) >= PRUNE_INTERVAL:
        listings = [one.listing() for one in read]
        sources = [source for names, _ in listings for source in names]
        engine.prune(None, None, sources, {file for _, files in listings for file in files})
        engine.commit_metadata(CommitMetadata(settings={PRUNED_AT_BATCH: str(engine.batch)}))


def process(engine: Session, found: Iterable[Batch], dead: DeadLetters, rereading: Rereading | None = None) -> None:
    """Processes batches. On a terminal, shows the counts so far."""
    with live_line() as show:

        def so_far() -> None:
            seen = engine.counters()
            show(f"{_files(rereading)}{seen.documents:,} documents, {seen.outputs:,} outputs")

        if rereading is not None:
            rereading.told = so_far
        for documents, metadata in found:
            engine.process(documents, metadata)
            dead.add(engine.last_dead_letters())
            so_far()


def _files(rereading: Rereading | None) -> str:
    """How many files are read, and how many are unchanged, if that is known."""
    if rereading is None:
        return ""
    parts = [f"{rereading.read:,} of {rereading.waiting:,} files read"] if rereading.waiting else []
    parts += [f"{counted(rereading.unchanged, 'file')} unchanged"] if rereading.unchanged else []
    return ", ".join([*parts, ""])


def deliver(engine: Session, delivery: Delivery) -> int:
    """Writes the outputs that no run has written yet. Returns how many there were."""
    count = delivery.write(engine.lines(delivery.acked))
    if count:  # noted only now: what was not written is not delivered
        delivery.save_position()
    return count


def show_new(engine: Session, before: int, form: str, output: Path | None, *, utc: bool) -> int:
    """Shows the outputs with numbers greater than `before`, the newest ones if they are many and the format is for
    people. Returns how many there are."""
    count = engine.last_seq - before
    first = max(before, engine.last_seq - SHOWN) if form in FOR_PEOPLE else before
    found = MatchReader(engine).matches(engine.outputs(first))
    show_matches(found, form, output, clock_of(form, utc=utc), total=count, texts=few_texts(engine.queries()))
    return count


def _report(message: str) -> None:
    click.echo(f"mmqjp: {printable_line(message)}", err=True)


def _kept(documents: int, state: Path | None) -> str:
    if state is None:
        return NOT_KEPT
    return f"{documents:,} documents are committed in {state}; the same command continues from there"
