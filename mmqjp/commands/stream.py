"""`mmqjp stream`: the service that reads sources until it is stopped."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from pathlib import Path

import click

from common.private import is_shared, make_inside
from feeds.document import DEFAULT_STREAM
from feeds.entries import EntryForm
from feeds.history import History, Versions
from feeds.tail import Tail
from mmqjp.answers.quota import Quota
from mmqjp.commands.debug import debug_option
from mmqjp.commands.failure import Failure
from mmqjp.commands.fetching import FetchOptions, feeds_to_fetch, fetch_source_options
from mmqjp.commands.interrupts import hangups, stopping
from mmqjp.commands.lateness import lateness_option
from mmqjp.commands.open import chosen_engine, open_engine, start_session, subscribe
from mmqjp.commands.options import (
    AtLeast,
    bounds_options,
    duration,
    engine_option,
    feeds_option,
    key_values,
    most_versions_option,
    plan_option,
    read_script,
    seconds,
    shared_option,
    time_xpath_option,
    versions_option,
)
from mmqjp.commands.sinks import check_output
from mmqjp.documents.batching import BATCH_BYTES, BATCH_DOCUMENTS
from mmqjp.documents.watermarks import Lateness, Timing, lateness_of
from mmqjp.garbage import gc_frozen
from mmqjp.service.commands import CommandQueue
from mmqjp.service.drops import FETCHED, DropDirectory
from mmqjp.service.fetched_feeds import DROPS
from mmqjp.service.fetching import Fetching
from mmqjp.service.log import JsonLog, Log, SharedLog, TextLog
from mmqjp.service.loop import Service, ServiceOptions
from mmqjp.service.metrics import LOOPBACK, Metrics
from mmqjp.service.question_runner import MAX_RUNNING, RUN_BESIDE, QuestionRunner
from mmqjp.service.spool import Spool
from mmqjp.service.status import status
from mmqjp.service.watcher import Polling
from mmqjp.service.watching import watch
from mmqjp.session import Session
from mmqjp.sinks.delivery import OUTPUT_SINK
from mmqjp.sinks.jsonl import open_sink

AVAILABLE_NOW = "available-now"
CHECKPOINT, FILES = "checkpoint", "files"
LATENESS = "1d"


def trigger(context: click.Context, parameter: click.Parameter, value: str) -> float | None:
    """The time between two looks at the sources, in seconds; None for a single look."""
    if value == AVAILABLE_NOW:
        return None
    found = duration(context, parameter, value)
    if found is None:
        raise click.BadParameter(f"write a duration like 10s, or {AVAILABLE_NOW} to read what is there and stop")
    return found / 1_000_000


@click.command()
@click.option(
    "--source",
    "paths",
    metavar="PATH",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A directory that files are moved into, or a .jsonl file that grows. May be repeated.",
)
@click.option(
    "--source-format", metavar="NAME",
    help="Instead of --source: a streaming source of Spark, like kafka, whose values are documents.",
)  # fmt: skip
@click.option(
    "--source-option", "source_options", metavar="KEY=VALUE", multiple=True, callback=key_values,
    help="An option of the source of --source-format. May be repeated.",
)  # fmt: skip
@click.option(
    "--state",
    "--warehouse",
    "state",
    metavar="DIR",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to keep queries, documents, matches and offsets.",
)
@click.option(
    "--queries",
    "queries_path",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Queries to start with, in XSCL. They replace those of the same names. To change them later, use subscribe "
    "and unsubscribe.",
)
@fetch_source_options
@click.option(
    "--checkpoint", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
    help="Where Spark keeps the state of its streaming query. Default: in the directory of --state.",
)  # fmt: skip
@feeds_option
@versions_option
@most_versions_option
@time_xpath_option
@click.option(
    "--trigger",
    metavar="DURATION",
    default="1s",
    show_default=True,
    callback=trigger,
    help="Longest time between two looks for new documents, and on Spark the time between any two; "
    f"{AVAILABLE_NOW}: read what is there and stop.",
)
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="Where to append the output lines. Default, or with -: standard output.",
)
@lateness_option(LATENESS)
@click.option(
    "--idle-after", callback=duration, metavar="DURATION", default="1h", show_default=True,
    help="How long a stream must be silent before it advances with the clock. INF: never.",
)  # fmt: skip
@click.option(
    "--max-ahead", callback=duration, metavar="DURATION", default="1d", show_default=True,
    help="How far ahead of the clock a document may be. INF: no limit.",
)  # fmt: skip
@click.option(
    "--keep", callback=duration, metavar="DURATION", default="INF", show_default=True,
    help="How long to keep documents, matches, outputs and dead letters that no join needs.",
)  # fmt: skip
@click.option(
    "--keep-ids", callback=duration, metavar="DURATION", default="30d", show_default=True,
    help="How long to recognize a document by its id.",
)  # fmt: skip
@click.option(
    "--metrics-port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="Where to serve Prometheus metrics. 0: any free port.",
)
@click.option(
    "--metrics-address", metavar="ADDRESS", default=LOOPBACK, show_default=True, help="The address of that port."
)
@click.option(
    "--batch-size", metavar="N", type=AtLeast(1), default=BATCH_DOCUMENTS, show_default=True,
    help="Most documents to process and commit together.",
)  # fmt: skip
@click.option(
    "--batch-bytes", metavar="N", type=AtLeast(1), default=BATCH_BYTES, show_default=True,
    help="Bytes of XML after which a batch ends early.",
)  # fmt: skip
@click.option(
    "--max-document", metavar="N", type=AtLeast(1),
    help="Largest document, in bytes.  [default: 16 MiB]",
)  # fmt: skip
@click.option(
    "--max-nodes", metavar="N", type=AtLeast(1), default=1_000_000, show_default=True,
    help="Most elements and attributes of a document.",
)  # fmt: skip
@bounds_options
@click.option(
    "--log", "log_form", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="The format of the events on standard error.",
)  # fmt: skip
@click.option(
    "--question-timeout", callback=seconds, metavar="DURATION", default="5min", show_default=True,
    help="Longest time for a mmqjp query, whatever it asks for. INF: no limit.",
)  # fmt: skip
@shared_option
@plan_option
@click.option("--master", metavar="URL", help="The Spark master. Default: Spark runs on this machine.")
@engine_option
@debug_option
def stream(
    paths: tuple[Path, ...],
    source_format: str | None,
    source_options: dict[str, str],
    state: Path,
    queries_path: Path | None,
    lists: tuple[str, ...],
    keep_drops: int | None,
    options: FetchOptions,
    checkpoint: Path | None,
    feeds: EntryForm | None,
    versions: Versions,
    most_versions: int,
    time_xpath: str | None,
    trigger: float | None,
    output: Path | None,
    lateness: Lateness,
    idle_after: int | None,
    max_ahead: int | None,
    keep: int | None,
    keep_ids: int | None,
    metrics_port: int | None,
    metrics_address: str,
    batch_size: int,
    batch_bytes: int,
    max_document: int | None,
    max_nodes: int,
    max_matches: int,
    max_outputs: int,
    max_work: int,
    log_form: str,
    question_timeout: float | None,
    shared: bool,
    plan: str,
    master: str | None,
    engine: str,
) -> None:
    """Answer queries over documents as they arrive, until Ctrl-C or SIGTERM.

    \b
    Examples:
      mmqjp stream --engine duckdb --source drops/ --feeds --state state/ --output matches.jsonl
      mmqjp stream --engine duckdb --fetch subscriptions.opml --state state/ --output matches.jsonl

    The documents, matches and offsets of a batch are committed together, so a service that is killed continues where it
    stopped. If the output file is moved away, a new one is created with the next lines, or at once on SIGHUP.
    """
    only_spark = {"--checkpoint": checkpoint, "--source-format": source_format}
    choice = chosen_engine(engine, state, master, only_spark=only_spark)
    engine = choice.engine
    if bool(paths or lists) == (source_format is not None):
        raise click.UsageError("name what to read, with --source and --fetch, or with --source-format")
    if source_options and source_format is None:
        raise click.UsageError("--source-option is for the source that --source-format names")
    script = None if queries_path is None else read_script(queries_path)[1]
    history = History(versions, most_versions, lateness=lateness_of(lateness, DEFAULT_STREAM), keep=keep_ids)
    sources = [Tail(path, feeds=feeds, time_xpath=time_xpath) for path in paths]
    subscribed = feeds_to_fetch(lists, state)
    metrics = Metrics(SharedLog(service_log(log_form)))
    target = check_output(output)
    timing = Timing(lateness, idle_after, max_ahead)
    session = start_session(master, shared=shared or is_shared(state)) if engine == "spark" else None
    quota = Quota(max_matches, max_outputs, max_work)
    limited = open_engine(
        session or engine, None, plan, state, timing, quota=quota,
        max_document=max_document, max_nodes=max_nodes, shared=shared,
    )  # fmt: skip
    with limited as opened, stopping() as stop, hangups(stop) as should_reopen, ExitStack() as beside:
        if script is not None and queries_path is not None:
            for message in subscribe(opened, script, queries_path, "renew"):
                metrics.event("queries", what=message)
        sink = open_sink(target, opened.position(OUTPUT_SINK), lambda what: metrics.event("output", what=what))
        if metrics_port is not None:
            port = _served(metrics, metrics_port, metrics_address)
            metrics.event("metrics", url=f"http://{metrics_address}:{port}/metrics")
        drops = None
        if lists:
            drops = DropDirectory(make_inside(state, DROPS), keep_drops)
            sources.append(drops.tail(feeds or "item"))

        def on_idle(engine: Session) -> None:
            if metrics_port is not None:
                metrics.update(status(engine))
            if drops is not None:
                drops.sweep(engine)

        try:
            spool = Spool(state)
            # On Spark one question may use half of the cores: two would leave none for the batches.
            max_running = 1 if session is not None else MAX_RUNNING
            questions = QuestionRunner(opened, spool, metrics, question_timeout, max_running=max_running)
            common = opened, sources, sink, CommandQueue(spool, skip=RUN_BESIDE), metrics
            watches = session is None and trigger is not None
            watcher = beside.enter_context(closing(watch(sources, spool, metrics))) if watches else Polling()
            service_options = ServiceOptions(
                batch_size, batch_bytes, keep, keep_ids, history, on_idle, should_reopen, questions.free_memory, watcher
            )
            if session is None:
                service = Service(*common, service_options)
            else:
                from mmqjp.service.streaming import StreamingService
                from mmqjp.spark.files import FileSource, SourcePath
                from mmqjp.spark.frames import ValueSource, streaming_frame

                read = [SourcePath(path.absolute(), feeds) for path in paths]
                if drops is not None:
                    read.append(SourcePath(drops.directory.absolute(), feeds or "item", FETCHED))
                source = (
                    FileSource(tuple(read), time_xpath, batch_size, batch_bytes, max_document)
                    if source_format is None
                    else ValueSource(source_format, source_options, max_document)
                )
                kept = checkpoint or make_inside(state, CHECKPOINT, source_format or FILES)
                frame = streaming_frame(session, source, state, kept)
                service = StreamingService(*common, service_options, frame, kept)
            why = {"because": choice.why} if choice.why else {}
            metrics.event("started", engine=engine, **why, state=state, queries=len(opened.registry.subscriptions))
            if drops is not None:
                job = options.job(subscribed, drops.directory)
                fetch = beside.enter_context(Fetching(job, metrics, stop, watch=trigger is not None))
                if trigger is None:
                    fetch.wait()
            with questions, gc_frozen():
                service.run(trigger, stop)
            beside.close()
        except BrokenPipeError as error:
            if error.filename is None:  # the reader of standard error: there is nobody to tell
                raise
            raise Failure(
                f"the reader of {error.filename} has gone; what it missed is written after a restart"
            ) from error
        finally:
            sink.close()
        seen = opened.counters()
        metrics.event("stopped", documents=seen.documents, outputs=seen.outputs, dead_letters=seen.dead_letters)


def service_log(form: str) -> Log:
    """A log on standard error, as `text` or `json`."""

    def write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    return JsonLog(write) if form == "json" else TextLog(write, terminal=sys.stderr.isatty())


def _served(metrics: Metrics, port: int, address: str) -> int:
    """Serves the metrics and returns the port. Raises Failure if the port cannot be opened."""
    try:
        return metrics.serve(port, address)
    except OSError as error:
        cause = f"metrics cannot be served at {address}:{port}: {error.strerror or error}"
        raise Failure(f"{cause}; choose another address with --metrics-port and --metrics-address") from error
