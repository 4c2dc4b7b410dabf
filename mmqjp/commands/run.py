"""`mmqjp run`: answers the queries of a file over documents, as JSON lines or a table. At the end it reports paused
queries, equal-time pairs that FOLLOWED BY excluded, entries from the future, and dead letters on standard error."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from functools import partial
from inspect import signature
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from common.limits import BLOCK
from common.tools import gc_frozen
from feeds.documents import SourceItem
from feeds.feed import EntryForm
from feeds.history import History, Versions
from feeds.json_documents import JsonForm
from feeds.tail import settled, tails_of
from mmqjp.answers.events_run import DRIVER, EXECUTORS, PLACES
from mmqjp.answers.quota import MAX_MATCHES, MAX_OUTPUTS, MAX_PARTIAL, MAX_WORK
from mmqjp.commands import formats, options
from mmqjp.commands.command_line import Failure, Interrupted, debug_option
from mmqjp.commands.console import interruptible, live_line
from mmqjp.commands.feeds import KEPT, KNOWN, FetchOptions, feeds_to_fetch, fetch_once, require_a_success
from mmqjp.commands.formats import DeadLetters, check_output
from mmqjp.commands.options import bound, duration, given_by, number, option, with_options
from mmqjp.documents.admission import BATCH_BYTES, BATCH_DOCUMENTS, batches
from mmqjp.documents.watermarks import SETTLE, Belated, Lateness
from mmqjp.engine import Session
from mmqjp.present.item import TimeFormat
from mmqjp.present.newest import shown_outputs
from mmqjp.process import pluralise, printable_line
from mmqjp.service.drops import FILES, DropDirectory, Rereading, fetch_directory, reading_of
from mmqjp.service.loop import PRUNE_INTERVAL, PRUNED_AT_BATCH, Intake
from mmqjp.sinks.deliverer import OUTPUT_SINK, OutputDelivery
from mmqjp.sinks.files import open_sink
from mmqjp.state.eviction import ID_RETENTION
from mmqjp.tables.schema import NO_METADATA, CommitMetadata, MetadataOf

LISTED = 3


def equal_time_lines(ties: Mapping[str, int], at_least: Collection[str] = ()) -> Iterator[str]:
    """Yields a line for each query with the most pairs, and one for the rest. `ties` counts pairs by query name,
    largest first; counts of names in `at_least` are lower bounds."""
    for name, count in islice(ties.items(), LISTED):
        pairs = f"{'at least ' * (name in at_least)}{pluralise(count, 'pair has', 'pairs have')} equal times"
        yield f"{name}: {pairs}, so that neither document follows the other; JOIN UNORDERED matches them, too"
    if rest := dict(islice(ties.items(), LISTED, None)):
        more = "at least " * any(name in at_least for name in rest)
        yield f"{more}{sum(rest.values()):,} more pairs with equal times of {len(rest):,} other queries"


LISTED_QUERIES = 10  # maximum number of paused, and of waiting, queries reported


def report_paused(engine: Session) -> None:
    paused = [query for query in engine.registry.subscriptions.values() if query.paused is not None]
    for query in paused[:LISTED_QUERIES]:
        _report(f"{query.name} is paused: {query.paused}")
    if len(paused) > LISTED_QUERIES:
        _report(f"and {len(paused) - LISTED_QUERIES:,} more are paused")


def report_waiting(engine: Session, *, is_over: bool) -> None:
    """Reports waiting queries. If the run `is_over` (no state), they stay undecided because the last visits of feeds
    were earlier."""
    waiting, never = engine.waiting_absences(), engine.never_decided()
    for name, pending in islice(waiting.items(), LISTED_QUERIES):
        count = pending.documents
        what = f"{count:,} documents wait for their deadline" if count > 1 else "a document waits for its deadline"
        if is_over:
            what += "; the last visits of the feeds were before"
        elif name in never:
            what += f"; {never[name]} may be late without a limit, so that it never comes: give --lateness"
        _report(f"{name}: {what}")
    if len(waiting) > LISTED_QUERIES:
        _report(f"and {len(waiting) - LISTED_QUERIES:,} more queries wait")


def report_dates(histories: Sequence[History]) -> None:
    """Reports entries dated after their fetch, or with an unreadable date."""
    future = sum((history.future for history in histories), Counter[str]())
    undated = sum((history.undated for history in histories), Counter[str]())
    for counts, how in ((future, "dated after the fetch"), (undated, "with a date that cannot be read")):
        for source, count in counts.most_common(1):
            what = f"{pluralise(counts.total(), 'feed entry', 'feed entries')} {how}"
            _report(f"{what}, given the time of the fetch; {count:,} from {source}")


def report_dead_letters(dead: DeadLetters, path: Path | None) -> None:
    """Reports the number of rejected documents, and the first reasons unless they are in the file `path`."""
    if not dead.count:
        return
    what = f"{pluralise(dead.count, 'dead letter')} (documents left out)"
    if path is not None:
        _report(f"{what} in {path}")
        return
    _report(f"{what}; --dead-letters FILE writes them to a file")
    for reason in dead.reasons:
        click.echo(f"  {printable_line(reason)}", err=True)
    if dead.count > len(dead.reasons):
        click.echo(f"  and {dead.count - len(dead.reasons):,} more", err=True)


NOT_KEPT = "without --state nothing is stored"

_InputBatch = tuple[Sequence[SourceItem], CommitMetadata | MetadataOf]
"""Items, and the metadata to commit with them."""

_OF_ENGINE = frozenset(signature(Session).parameters) - {"engine"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options shared by `run` and the services. Durations are microseconds. Subclasses add the options of fields
    without one, with different descriptions."""

    paths: tuple[Path, ...]
    queries_path: Path | None
    state: Path | None
    lists: tuple[str, ...] = option(
        "--fetch", "lists", metavar="LIST", multiple=True, is_flag=False, flag_value=KNOWN,
        help="Feeds to fetch and read: an OPML file, a text file with one address per line, or an address. May be "
        "repeated. Without a LIST: the feeds in the state.",
    )  # fmt: skip
    keep_drops: int | None = duration(
        "--keep-drops", "1d",
        "How long to keep fetched versions after they are read; a feed's newest always stays. INF: forever.",
    )  # fmt: skip
    fetching: FetchOptions = given_by(with_options(FetchOptions, "fetching"))
    feeds: EntryForm | None = given_by(options.feeds_option)
    versions: Versions = given_by(options.versions_option)
    most_versions: int = given_by(options.most_versions_option)
    time_xpath: str | None = given_by(options.time_xpath_option)
    json: JsonForm | None = given_by(options.json_option)
    output: Path | None
    lateness: Lateness
    belated: Belated = given_by(options.belated_option)
    idle_after: int | None
    settle: Lateness
    patterns: str = given_by(options.patterns_option(DRIVER, EXECUTORS))
    max_matches: int = bound("--max-matches", MAX_MATCHES, "Most matches of a query for one document, or at one time.")
    max_outputs: int = bound(
        "--max-outputs", MAX_OUTPUTS,
        f"Most outputs of an event query in 10,000 consecutive times, of any other in {BLOCK:,} consecutive documents.",
    )  # fmt: skip
    max_work: int = bound(
        "--max-work", MAX_WORK,
        "Most steps of a query for one document, or at one time; ten times as many in "
        f"{BLOCK:,} consecutive documents.",
    )  # fmt: skip
    max_partial: int = bound(
        "--max-partial", MAX_PARTIAL, "Most partial matches of an event query, of one operator and at one time.",
    )  # fmt: skip
    shared: bool = given_by(options.shared_option)
    plan: str = given_by(options.plan_option)
    master: str | None = option(
        "--master", metavar="URL", help="The Spark master. Default: Spark runs on this machine."
    )  # fmt: skip
    engine: str = given_by(options.engine_option)

    def of_engine(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name in _OF_ENGINE}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(EngineOptions):
    paths: tuple[Path, ...] = option(
        "--documents", "paths", metavar="PATH", multiple=True, type=click.Path(exists=True, path_type=Path),
        help="Documents: .jsonl[.gz], .xml, .warc[.gz], feeds with --feeds, or a directory. May be repeated.",
    )  # fmt: skip
    queries_path: Path | None = option(
        "--queries", "queries_path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The queries, in XSCL. Default: the queries of --state.",
    )  # fmt: skip
    state: Path | None = given_by(options.state_option("Where to store queries, documents and matches for later runs."))
    output: Path | None = option(
        "--output", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
        help="Where to write the output lines. With --state they are appended; otherwise, and in formats other than "
        "jsonl, the file is replaced. Default, or with -: standard output.",
    )  # fmt: skip
    lateness: Lateness = given_by(options.lateness_option("INF"))
    idle_after: int | None = duration(
        "--idle-after", "INF",
        "How long a feed may lack a complete visit before others proceed without it, at least twice its own "
        "interval. INF: as long as the run reads; 1h at its end.",
    )  # fmt: skip
    settle: Lateness = given_by(options.settle_option("INF"))
    patterns: str = given_by(options.patterns_option(*PLACES))
    form: str | None = given_by(formats.format_option)
    clock: TimeFormat = given_by(formats.tz_option)
    dead_letters_path: Path | None = option(
        "--dead-letters", "dead_letters_path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
        help="Where to write rejected documents, with the reasons, as JSON lines.",
    )  # fmt: skip
    batch_size: int = number("--batch-size", BATCH_DOCUMENTS, "How many documents to process and commit together.")


@click.command()
@with_options(RunOptions)
@debug_option
def run(given: RunOptions) -> None:
    """Run queries over documents and write one JSON line for each output, or show what matched and why.

    \b
    Examples:
      mmqjp run --queries stories.xscl --documents feeds/ --feeds --format table
      mmqjp run --queries stories.xscl --documents feeds/ --feeds --output matches.jsonl
      mmqjp run --queries stories.xscl --fetch subscriptions.opml --state state/ --output matches.jsonl

    A second run with the same --state continues where the first one ended. Queries that are still in the file continue;
    others in the state end. New outputs are appended to the output file. Unreadable documents are left out, counted and
    reported on standard error.

    On a terminal, the matches of this run are shown as a table; otherwise they are written as JSON lines. Only a run in
    jsonl counts as having written the output lines: with --state, outputs shown in other formats are written by the
    next run in jsonl.
    """
    paths, lists, state, queries_path, feeds = given.paths, given.lists, given.state, given.queries_path, given.feeds
    if not paths and not lists:
        raise click.UsageError("name documents with --documents, or feeds with --fetch")
    if queries_path is None and (state is None or not state.is_dir()):
        raise click.UsageError("name the queries with --queries, or a --state that has queries")
    script = None if queries_path is None else options.read_script(queries_path)[1]
    subscribed = feeds_to_fetch(lists, state)
    settings = given.of_engine()
    if lists and not options.is_given("settle"):
        settings["settle"] = SETTLE
    versions, most_versions, batch_size = given.versions, given.most_versions, given.batch_size
    new_history = partial(History, versions, most_versions, keep=ID_RETENTION)
    history, fetched_history = new_history(), new_history()
    of_json = () if given.json is None else (given.json,)  # without it, known documents are skipped
    reading = reading_of(feeds, given.time_xpath, versions, most_versions, *of_json)
    tails = tails_of(paths, feeds=feeds, time_xpath=given.time_xpath, json=given.json, prefix=FILES + reading)
    only_spark = options.only_on_spark(given.patterns)
    engine = formats.chosen_engine(given.engine, state, given.master, paths, only_spark, feeds=feeds is not None).engine
    dead, target = DeadLetters(given.dead_letters_path), check_output(given.output)
    chosen = formats.chosen_format(given.form, given.output)
    with formats.open_engine(engine, **settings) as opened, ExitStack() as here:
        before = opened.last_seq
        delivery = None
        if chosen == "jsonl":
            position = opened.position(OUTPUT_SINK)
            sink = here.enter_context(closing(open_sink(target, position, _report, growing=state is not None)))
            delivery = OutputDelivery(opened, sink)
            delivery.prepare()
        dead.begin()
        try:
            drops = intake = report = rereading = None
            if lists:
                fetched_into = fetch_directory(state) if state else Path(here.enter_context(TemporaryDirectory()))
                drops = DropDirectory(fetched_into, given.keep_drops)
                report = fetch_once(given.fetching.job(subscribed, drops.directory), KEPT if state else NOT_KEPT)
            with interruptible():
                if script is not None and queries_path is not None:
                    for message in formats.subscribe_file(opened, script, queries_path, "exact"):
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
                    written = delivery.write(opened.lines(delivery.acked))
                    if written:  # recorded only now: outputs count as delivered once written
                        delivery.save_position()
                else:
                    written = show_new(opened, before, chosen, given.output, given.clock)
                read = [source for source in (intake, rereading) if source is not None]
                if read and opened.batch - int(opened.ledger.setting(PRUNED_AT_BATCH) or 0) >= PRUNE_INTERVAL:
                    listings = [one.listing() for one in read]  # superseded reading progress is dropped
                    sources = [source for names, _ in listings for source in names]
                    opened.prune(None, None, sources, {file for _, files in listings for file in files})
                    opened.commit_metadata(CommitMetadata(settings={PRUNED_AT_BATCH: str(opened.batch)}))
        except KeyboardInterrupt:
            kept = f"{opened.counters().documents:,} documents are committed in {state}"
            raise Interrupted(f"{kept}; the same command continues from there" if state else NOT_KEPT) from None
        finally:
            dead.close()
            report_dead_letters(dead, given.dead_letters_path)
            report_dates((history, fetched_history))
            report_paused(opened)
        for line in equal_time_lines(opened.ties(here=True), opened.ties_at_least(here=True)):
            _report(line)
        report_waiting(opened, is_over=state is None)
        counters = opened.counters()
    if sys.stderr.isatty():
        known = f"{counters.documents:,} documents, {counters.duplicates:,} already known"
        _report(f"{_files(rereading)}{known}, {dead.count:,} dead letters, {written:,} outputs")
    if report is not None:
        require_a_success(report)
    unchanged = rereading is not None and rereading.unchanged
    if dead.count and not counters.documents and not counters.duplicates and not unchanged:
        raise Failure("no document was accepted: all are dead letters")


def fetched(intake: Intake) -> Iterator[_InputBatch]:
    for batch in intake.batches(wait=True):
        yield batch.items, intake.metadata(batch, {})
        intake.committed(batch)


def unreadable(file: str, reason: str) -> None:
    if reason:
        _report(f"{file} {reason}; the next run with the same --state reads it")


def process(
    engine: Session, found: Iterable[_InputBatch], dead: DeadLetters, rereading: Rereading | None = None
) -> None:
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
    if rereading is None:
        return ""
    parts = [f"{rereading.read:,} of {rereading.waiting:,} files read"] if rereading.waiting else []
    parts += [f"{pluralise(rereading.unchanged, 'file')} unchanged"] if rereading.unchanged else []
    return ", ".join([*parts, ""])


def show_new(engine: Session, before: int, form: str, output: Path | None, clock: TimeFormat) -> int:
    """Shows the outputs numbered above `before`, in formats for people only the newest. Returns their number."""
    count = engine.count_delivered(before)
    first = max(before, engine.last_seq - formats.SHOWN) if form in formats.FOR_PEOPLE else before
    found = shown_outputs(engine, engine.outputs(first))
    texts = formats.few_texts(engine.queries())
    formats.show_matches(found, form, output, formats.clock_of(form, clock), total=count, texts=texts)
    return count


def _report(message: str) -> None:
    click.echo(f"mmqjp: {printable_line(message)}", err=True)
