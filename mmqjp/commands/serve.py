"""`mmqjp serve`, `mmqjp stream` and `mmqjp feed-link`: run a service over a store, with or without a web page. The
service reads sources until it is stopped; metrics, sinks, fetching and the page run beside it. `serve` attaches the
page to a service that already runs. `feed-link` prints or revokes the link of a query's Atom feed."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from common.files import is_shared, make_inside
from common.tools import gc_frozen
from feeds.fetch.hubs import CALLBACK
from feeds.history import History
from feeds.tail import Tail
from mmqjp.commands import options
from mmqjp.commands.command_line import Failure, debug_option
from mmqjp.commands.console import hangups, stopping
from mmqjp.commands.feeds import configured_settings, feeds_to_fetch
from mmqjp.commands.formats import check_output, chosen_engine, open_engine, start_session, subscribe_file, tables_of
from mmqjp.commands.manage_queries import client, store_options
from mmqjp.commands.options import duration, given_by, number, option, with_options
from mmqjp.commands.run import EngineOptions
from mmqjp.documents.admission import BATCH_BYTES, BATCH_DOCUMENTS
from mmqjp.documents.watermarks import SETTLE as LEAST_SETTLE
from mmqjp.documents.watermarks import Lateness
from mmqjp.engine import Session
from mmqjp.service.commands import CommandQueue, opened_sinks
from mmqjp.service.drops import FETCHED, DropDirectory, fetch_directory, fetching
from mmqjp.service.log import Log, SharedLog, standard_log
from mmqjp.service.loop import Service, ServiceOptions, Watcher, watch
from mmqjp.service.pushes import PushQueue
from mmqjp.service.spool import PUSHES, Spool
from mmqjp.service.sql_question import MAX_RUNNING, RUN_BESIDE, QuestionRunner
from mmqjp.service.status import LOOPBACK, Metrics, store_status
from mmqjp.sinks.definition import SinkTables
from mmqjp.sinks.deliverer import OUTPUT_SINK
from mmqjp.sinks.files import Nowhere, open_sink
from mmqjp.sinks.sink import Sink
from mmqjp.state.engine_choice import SPARK, holder_of, stored_engine
from mmqjp.syndication.atom import feed_path, load_feed_links

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mmqjp.web.readers import StoreReader
    from mmqjp.web.serving import PageOptions

AVAILABLE_NOW = "available-now"
LATENESS, SETTLE = "1d", "10min"


def trigger(context: click.Context, parameter: click.Parameter, value: str) -> float | None:
    """Seconds between two polls of the sources; None for a single one."""
    if value == AVAILABLE_NOW:
        return None
    found = options.parse_duration(context, parameter, value)
    if found is None:
        raise click.BadParameter(f"write a duration like 10s, or {AVAILABLE_NOW} to read available documents and stop")
    return found / 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(EngineOptions):
    """Options of a service. Durations are microseconds unless noted."""

    paths: tuple[Path, ...] = option(
        "--source", "paths", metavar="PATH", multiple=True, type=click.Path(path_type=Path),
        help="A directory that files are moved into, or a .jsonl file that grows. May be repeated.",
    )  # fmt: skip
    queries_path: Path | None = option(
        "--queries", "queries_path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Queries to start with, in XSCL. They replace those with the same names. To change them later, use "
        "subscribe and unsubscribe.",
    )  # fmt: skip
    state: Path = option(
        "--state", "--warehouse", "state", metavar="DIR", required=True,
        type=click.Path(file_okay=False, path_type=Path),
        help="Where to store queries, documents, matches and offsets.",
    )  # fmt: skip
    output: Path | None = option(
        "--output", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
        help="Where to append the output lines. Default, or with -: standard output.",
    )  # fmt: skip
    lateness: Lateness = given_by(options.lateness_option(LATENESS))
    settle: Lateness = given_by(options.settle_option(SETTLE))
    source_format: str | None = option(
        "--source-format", metavar="NAME",
        help="Instead of --source: a streaming source of Spark, like kafka, whose values are documents.",
    )  # fmt: skip
    source_options: dict[str, str] = option(
        "--source-option", "source_options", metavar="KEY=VALUE", multiple=True, callback=options.key_values,
        help="An option of the source of --source-format. May be repeated.",
    )  # fmt: skip
    checkpoint: Path | None = option(
        "--checkpoint", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
        help="Where Spark keeps the state of its streaming query. Default: in the directory of --state.",
    )  # fmt: skip
    trigger: float | None = option(
        "--trigger", metavar="DURATION", default="1s", show_default=True, callback=trigger,
        help="Longest time between two polls for new documents, and on Spark between two micro-batches; "
        f"{AVAILABLE_NOW}: read available documents and stop.",
    )  # fmt: skip
    idle_after: int | None = duration(
        "--idle-after", "1h",
        "How long a stream must be silent before it advances with the clock, or a feed lack a complete visit before "
        "others proceed without it, at least twice its own interval. INF: never.",
    )  # fmt: skip
    max_ahead: int | None = duration(
        "--max-ahead", "1d", "How far ahead of the clock a document may be. INF: no limit."
    )
    keep: int | None = duration(
        "--keep", "INF", "How long to keep documents, matches, outputs and dead letters that no join needs."
    )
    keep_ids: int | None = duration("--keep-ids", "30d", "How long to recognize a document by its id.")
    metrics_port: int | None = option(
        "--metrics-port", metavar="PORT", type=click.IntRange(0, 65535),
        help="Where to serve Prometheus metrics. 0: any free port.",
    )  # fmt: skip
    metrics_address: str = option(
        "--metrics-address", metavar="ADDRESS", default=LOOPBACK, show_default=True, help="The address of that port."
    )  # fmt: skip
    batch_size: int = number("--batch-size", BATCH_DOCUMENTS, "Most documents to process and commit together.")
    batch_bytes: int = number("--batch-bytes", BATCH_BYTES, "Bytes of XML after which a batch ends early.")
    max_document: int | None = option(
        "--max-document", metavar="N", type=options.AtLeast(1), help="Largest document, in bytes.  [default: 16 MiB]"
    )  # fmt: skip
    max_nodes: int = number("--max-nodes", 1_000_000, "Most elements and attributes of a document.")
    log_form: str = option(
        "--log", "log_form", type=click.Choice(["text", "json"]), default="text", show_default=True,
        help="The format of the events on standard error.",
    )  # fmt: skip
    question_timeout: float | None = duration(
        "--question-timeout", "5min", "Longest time for a mmqjp query, whatever its --timeout. INF: no limit.",
        options.seconds,
    )  # fmt: skip

    def of_engine(self) -> dict[str, Any]:
        settings = EngineOptions.of_engine(self)
        if self.lists and not options.is_given("settle"):
            settings["settle"] = max(LEAST_SETTLE, 2 * self.fetching.interval)
        return settings


CHECKPOINT, FILES = "checkpoint", "files"

FreeMemory = Callable[[], bool]

_BackgroundTask = Callable[[Session, Log, Event], AbstractContextManager[FreeMemory]]
"""Runs beside a service; receives the engine, the log and the stop event."""


def run_service(given: StreamOptions, beside: _BackgroundTask | None = None, public_url: str = "") -> None:
    """Runs a service until Ctrl-C or SIGTERM, or until its sources are read. With `beside`, sources and `--output` are
    optional, and feeds added later are fetched too; with `public_url`, it subscribes at the hubs of feeds."""
    only_spark: dict[str, object] = {"--checkpoint": given.checkpoint, "--source-format": given.source_format}
    only_spark |= options.only_on_spark(given.patterns)
    choice = chosen_engine(given.engine, given.state, given.master, only_spark=only_spark)
    if (beside is None or given.source_format) and bool(given.paths or given.lists) == bool(given.source_format):
        raise click.UsageError("name a source, with --source, --fetch or --source-format")
    if given.source_options and given.source_format is None:
        raise click.UsageError("--source-option is for the source that --source-format names")
    script = None if given.queries_path is None else options.read_script(given.queries_path)[1]
    fetches = bool(given.lists) or (beside is not None and given.source_format is None)
    subscribed = feeds_to_fetch(given.lists, given.state) if fetches else None
    metrics, read_tables = Metrics(SharedLog(standard_log(given.log_form))), tables_of(click.get_current_context())
    read_tables()  # raises early for errors in the sinks of the configuration
    target = check_output(given.output)
    session = None
    if choice.engine == SPARK:
        session = start_session(given.master, shared=given.shared or is_shared(given.state))
    limited = open_engine(session or choice.engine, **given.of_engine() | {"master": None})
    with limited as opened, stopping() as stop, hangups(stop) as should_reopen:
        if beside is not None and given.output is None:
            sink: Sink = Nowhere(lambda: opened.last_seq)
        else:
            sink = open_sink(target, opened.position(OUTPUT_SINK), lambda what: metrics.event("output", what=what))
        with _pipe_that_may_break(), closing(sink), ExitStack() as around:
            if script is not None and given.queries_path is not None:
                for message in subscribe_file(opened, script, given.queries_path, "renew"):
                    metrics.event("queries", what=message)
            if given.metrics_port is not None:
                _serve_metrics(metrics, given.metrics_port, given.metrics_address)
            drops = None if subscribed is None else DropDirectory(fetch_directory(given.state), given.keep_drops)
            spool = Spool(given.state)
            # On Spark one question may use half of the cores: two would leave none for batches.
            max_running = MAX_RUNNING if session is None else 1
            questions = QuestionRunner(opened, spool, metrics, given.question_timeout, max_running=max_running)
            frees = [questions.free_memory]
            if beside is not None:
                frees.append(around.enter_context(beside(opened, metrics, stop)))
            service = _service(
                given, opened, session, sink, spool, metrics, drops, read_tables, around, should_reopen=should_reopen,
                free_memory=lambda: True in [free() for free in frees],
            )  # fmt: skip
            if session is None:  # on Spark an empty batch takes as long as any other
                opened.load()
            why = {"because": choice.why} if choice.why else {}
            queries = len(opened.registry.subscriptions)
            metrics.event("started", engine=choice.engine, **why, state=given.state, queries=queries)
            if drops is not None and subscribed is not None:
                job = given.fetching.job(subscribed, drops.directory)
                if public_url:
                    job = replace(job, settings=replace(job.settings, callback=public_url + CALLBACK))
                around.enter_context(fetching(job, metrics, stop, watch=given.trigger is not None))
            with questions, gc_frozen():
                service.run(given.trigger, stop)
        seen = opened.counters()
        metrics.event("stopped", documents=seen.documents, outputs=seen.outputs, dead_letters=seen.dead_letters)


@contextmanager
def _pipe_that_may_break() -> Iterator[None]:
    """Raises Failure if a pipe's reader has gone."""
    try:
        yield
    except BrokenPipeError as error:
        if error.filename is None:  # the reader of standard error: nobody could see a message
            raise
        raise Failure(
            f"the reader of {error.filename} has gone; lines that it missed are written after a restart"
        ) from error


def _serve_metrics(metrics: Metrics, port: int, address: str) -> None:
    """Raises Failure if the port cannot be opened."""
    try:
        served = metrics.serve(port, address)
    except OSError as error:
        cause = f"metrics cannot be served at {address}:{port}: {error.strerror or error}"
        raise Failure(f"{cause}; choose another address with --metrics-port and --metrics-address") from error
    metrics.event("metrics", url=f"http://{address}:{served}/metrics")


def _service(
    given: StreamOptions,
    engine: Session,
    session: SparkSession | None,
    sink: Sink,
    spool: Spool,
    metrics: Metrics,
    drops: DropDirectory | None,
    read_tables: Callable[[], SinkTables],
    around: ExitStack,
    **more: Any,
) -> Service:
    """Contexts entered into `around` exit before the store closes."""
    state, form = given.state, given.feeds or "item"
    sources = [Tail(path, feeds=given.feeds, time_xpath=given.time_xpath, json=given.json) for path in given.paths]
    sources += [] if drops is None else [drops.tail(form)]
    history = History(given.versions, given.most_versions, keep=given.keep_ids)
    sinks, sink_commands = around.enter_context(opened_sinks(engine, state, read_tables, metrics))
    queue = CommandQueue(spool, skip=RUN_BESIDE, run_sinks=lambda _, command: sink_commands.run(command))

    def on_idle(engine: Session) -> None:
        if given.metrics_port is not None:
            metrics.update(store_status(engine, sinks.list()))
        if drops is not None:
            drops.sweep(engine)

    pushed = Spool(state, commands=PUSHES)
    watcher = Watcher()
    if given.trigger is not None:
        watcher = around.enter_context(closing(watch(sources, (spool, pushed), metrics)))
    settings = ServiceOptions(
        given.batch_size, given.batch_bytes, given.keep, given.keep_ids, history, on_idle, watcher=watcher,
        sinks=sinks, pushes=PushQueue(pushed, engine), **more,
    )  # fmt: skip
    if session is None:
        return Service(engine, sources, sink, queue, metrics, settings)
    from mmqjp.service.streaming import StreamingService
    from mmqjp.spark.source import FileSource, SourcePath, ValueSource, file_reader, streaming_frame

    read = [SourcePath(path.absolute(), given.feeds) for path in given.paths]
    read += [] if drops is None else [SourcePath(drops.directory.absolute(), form, FETCHED)]
    files = FileSource(
        tuple(read), given.time_xpath, given.json, given.batch_size, given.batch_bytes, given.max_document,
        waits=given.trigger is not None,
    )  # fmt: skip
    values = ValueSource(given.source_format or "", given.source_options, given.max_document, given.json)
    source = files if given.source_format is None else values
    kept = given.checkpoint or make_inside(state, CHECKPOINT, given.source_format or FILES)
    frame = streaming_frame(session, source, state, kept)
    reader = file_reader(session, files, kept) if source is files else None
    return StreamingService(engine, sources, sink, queue, metrics, settings, frame, kept, reader)


ADDRESS = "127.0.0.1:8765"


def address(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, int]:
    """Parses an address like 127.0.0.1:8765 or [::1]:8765."""
    try:
        parts = urlsplit(f"//{value}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.netloc != value or parts.username is not None:
        raise click.BadParameter(f"{value!r:.80} is not an address: write HOST:PORT, such as {ADDRESS} (port 0: any)")
    return host, port


_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)*", re.ASCII)  # of a public URL


def public_url(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """Returns the page's public URL, which may have a path, without a trailing slash; "" for none."""
    if value is None:
        return ""
    try:
        parts = urlsplit(value)
        host = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
        path = parts.path.rstrip("/")
    except ValueError:
        host = path = ""
    is_whole = value[: len(host)].lower() == host and value[len(host) :].rstrip("/") == path
    if not value.isprintable() or not is_whole or not _PATH.fullmatch(path) or not host.startswith(("http:", "https:")):
        advice = "write one like https://stories.example.org or https://example.org/stories"
        raise click.BadParameter(f"{value!r:.80} is not a URL of a site; {advice}")
    return host + path


@click.command()
@with_options(StreamOptions)
@click.option(
    "--address", metavar="HOST:PORT", default=ADDRESS, show_default=True, callback=address,
    help="Where to serve the page.",
)  # fmt: skip
@click.option(
    "--public-url", metavar="URL", callback=public_url,
    help="The public URL of the page behind a proxy, with its path if it has one. Hubs of feeds push to it.",
)  # fmt: skip
@click.option("--no-token", is_flag=True, help="Let everybody on this machine use the page.")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@debug_option
def serve(given: StreamOptions, address: tuple[str, int], public_url: str, no_token: bool, opens: bool) -> None:
    """Show queries and their matches in a browser, and answer queries over documents as they arrive.

    \b
    Examples:
      mmqjp serve --state state/ --open
      mmqjp serve --state state/ --fetch subscriptions.opml --output matches.jsonl
      mmqjp serve --state state/ --address 0.0.0.0:8765 --public-url https://stories.example.org

    Takes the options of mmqjp stream, and also fetches feeds that are added in the page. Without sources, it shows
    existing data. If a service already runs on the state, the page is served beside it: name no sources then. Prints a
    link that logs in a browser once. Without --output, no output lines are written.
    """
    from mmqjp.web.serving import PageOptions, listen
    from mmqjp.web.site import is_loopback

    if given.trigger is None:
        raise click.UsageError("the page is served until stopped: here --trigger must be a duration")
    if no_token and not is_loopback(address[0]):
        raise click.UsageError(f"--no-token is only for loopback addresses, such as {ADDRESS}; others need the token")
    holder = holder_of(given.state)
    of_service = {
        "--source": given.paths or None, "--fetch": given.lists or None, "--source-format": given.source_format or None,
        "--queries": given.queries_path, "--output": given.output, "--checkpoint": given.checkpoint,
    }  # fmt: skip
    named = [name for name, value in of_service.items() if value is not None]
    if holder is not None and named:
        raise click.UsageError(f"{holder}, which reads the sources: leave out {', '.join(named)}")
    configured = configured_settings(click.get_current_context()).to_json()
    of_feeds = configured, given.fetching.allow_private
    page = PageOptions(str(given.state), address[0], public_url, no_token, opens, given.log_form, *of_feeds)
    with listen(*address) as listening:
        if holder is None:
            run_service(given, partial(_served_beside, page, listening), public_url)
        else:
            _serve_attached(page, listening)


@contextmanager
def _served_beside(
    page: PageOptions, listening: socket.socket, engine: Session, log: Log, stop: Event
) -> Iterator[FreeMemory]:
    from mmqjp.web.readers import CursorReader
    from mmqjp.web.serving import page_process
    from mmqjp.web.site import PUSH_TOKEN, TOKEN, token_of

    for name in () if page.no_token else (TOKEN, PUSH_TOKEN):
        token_of(
            Path(page.state), name
        )  # created before the service reports that it has started: programs may wait for that
    reader = None if stored_engine(Path(page.state)) == SPARK else CursorReader(engine)
    with page_process(page, listening, reader, log, stop):
        yield (lambda: False) if reader is None else reader.free_memory


def _serve_attached(page: PageOptions, listening: socket.socket) -> None:
    from mmqjp.web.readers import FilesReader, SpoolReader
    from mmqjp.web.serving import page_served
    from mmqjp.web.site import asking

    state = Path(page.state)
    asks = asking(lambda wait: client(state, wait))
    log = SharedLog(standard_log(page.log_form))
    reader: StoreReader = FilesReader(state) if stored_engine(state) == SPARK else SpoolReader(asks)
    with stopping() as stop, page_served(page, listening, reader, asks, log, stop, holds=False):
        stop.wait()
    log.event("stopped")


@click.command("feed-link")
@click.argument("name")
@click.option("--revoke", is_flag=True, help="Revoke the link first; a new one is printed.")
@click.option(
    "--public-url", metavar="URL", callback=public_url,
    help=f"The URL at which feed readers reach mmqjp serve. Default: http://{ADDRESS}.",
)  # fmt: skip
@store_options
def feed_link(name: str, revoke: bool, public_url: str, state: Path, wait: float) -> None:
    """Print the link of a query's feed, for a feed reader. mmqjp serve serves it.

    \b
    Examples:
      mmqjp feed-link same_story --state state/
      mmqjp feed-link same_story --state state/ --revoke

    Anybody with the link can read the feed, without a token. Each link can be revoked separately.
    """
    store = client(state, wait)
    if revoke:
        store.ask("revoke-feed-link", {"name": name})
    key = load_feed_links(state).key(name, store.ask("feed-link", {"name": name}))
    click.echo((public_url or f"http://{ADDRESS}") + feed_path(key, name))


@click.command()
@with_options(StreamOptions)
@debug_option
def stream(given: StreamOptions) -> None:
    """Answer queries over documents as they arrive, until Ctrl-C or SIGTERM.

    \b
    Examples:
      mmqjp stream --engine duckdb --source drops/ --feeds --state state/ --output matches.jsonl
      mmqjp stream --engine duckdb --fetch subscriptions.opml --state state/ --output matches.jsonl

    The documents, matches and offsets of a batch are committed together, so a killed service continues where it
    stopped. If the output file is moved away, a new one is created with the next lines, or at once on SIGHUP.
    """
    run_service(given)
