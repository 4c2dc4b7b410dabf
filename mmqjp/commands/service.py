"""Opens a store and runs the service that the options describe, and what is to run beside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

import click

from common.private import is_shared, make_inside
from feeds.document import DEFAULT_STREAM
from feeds.fetch.feed_state import FeedState
from feeds.history import History
from feeds.tail import Tail
from mmqjp.commands.configured_sinks import tables_of
from mmqjp.commands.failure import Failure
from mmqjp.commands.fetching import feeds_to_fetch
from mmqjp.commands.interrupts import hangups, stopping
from mmqjp.commands.open import chosen_engine, open_engine, start_session, subscribe
from mmqjp.commands.options import only_on_spark, read_script
from mmqjp.commands.sinks import check_output
from mmqjp.commands.stream_options import StreamOptions
from mmqjp.documents.watermarks import lateness_of
from mmqjp.garbage import gc_frozen
from mmqjp.service.commands import CommandQueue, RunSinks
from mmqjp.service.drops import FETCHED, DropDirectory
from mmqjp.service.fetched_feeds import fetch_directory
from mmqjp.service.fetching import Fetching
from mmqjp.service.log import Log, SharedLog, standard_log
from mmqjp.service.loop import Service, ServiceOptions
from mmqjp.service.metrics import Metrics
from mmqjp.service.question_runner import MAX_RUNNING, RUN_BESIDE, QuestionRunner
from mmqjp.service.sink_commands import SinkCommands, read_live
from mmqjp.service.spool import Spool
from mmqjp.service.status import status
from mmqjp.service.watcher import Polling
from mmqjp.service.watching import watch
from mmqjp.session import Session
from mmqjp.sinks.deliverer import Deliverer
from mmqjp.sinks.delivery import OUTPUT_SINK
from mmqjp.sinks.jsonl import open_sink
from mmqjp.sinks.kinds import Kinds
from mmqjp.sinks.manager import SinkManager
from mmqjp.sinks.nowhere import Nowhere
from mmqjp.sinks.secrets import Secrets
from mmqjp.sinks.sink import Sink
from mmqjp.sinks.tables import SinkTables
from mmqjp.state.choice import SPARK
from xscl import Script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT, FILES = "checkpoint", "files"

FreeMemory = Callable[[], bool]
"""Frees memory for a batch that has run out of it. Returns whether there was any."""

Beside = Callable[[Session, Log, Event], AbstractContextManager[FreeMemory]]
"""What runs beside a service: it gets the engine, the log, and the event that stops the service."""


def run_service(given: StreamOptions, beside: Beside | None = None) -> None:
    """Runs a service until Ctrl-C or SIGTERM, or until its sources are read. With `beside`, sources and `--output` are
    optional, and feeds that are added later are fetched too."""
    only_spark = {
        "--checkpoint": given.checkpoint,
        "--source-format": given.source_format,
        **only_on_spark(given.patterns),
    }
    choice = chosen_engine(given.engine, given.state, given.master, only_spark=only_spark)
    if (beside is None or given.source_format) and bool(given.paths or given.lists) == bool(given.source_format):
        raise click.UsageError("name what to read, with --source and --fetch, or with --source-format")
    if given.source_options and given.source_format is None:
        raise click.UsageError("--source-option is for the source that --source-format names")
    script = None if given.queries_path is None else read_script(given.queries_path)[1]
    fetches = bool(given.lists) or (beside is not None and given.source_format is None)
    prepared = _Prepared(
        given,
        beside,
        choice.engine,
        choice.why,
        script,
        feeds_to_fetch(given.lists, given.state) if fetches else None,
        Metrics(SharedLog(standard_log(given.log_form))),
        tables_of(click.get_current_context()),
    )
    prepared.read_tables()  # raises now what is wrong with the sinks of the configuration
    target = check_output(given.output)
    session = None
    if choice.engine == SPARK:
        session = start_session(given.master, shared=given.shared or is_shared(given.state))
    limited = open_engine(
        session or choice.engine, None, given.plan, given.state, given.timing, quota=given.quota,
        max_document=given.max_document, max_nodes=given.max_nodes, patterns=given.patterns, shared=given.shared,
    )  # fmt: skip
    with limited as opened, stopping() as stop, hangups(stop) as should_reopen, ExitStack() as around:
        running = _Running(prepared, opened, session, stop, should_reopen, around)
        if beside is not None and given.output is None:
            running.run(Nowhere(lambda: opened.last_seq))
        else:
            warn = prepared.metrics.event
            running.run(open_sink(target, opened.position(OUTPUT_SINK), lambda what: warn("output", what=what)))
        seen = opened.counters()
        prepared.metrics.event(
            "stopped", documents=seen.documents, outputs=seen.outputs, dead_letters=seen.dead_letters
        )


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What is known before the store is opened. `subscribed` are the feeds to fetch, None if none are fetched."""

    given: StreamOptions
    beside: Beside | None
    engine: str
    why: str
    script: Script | None
    subscribed: list[FeedState] | None
    metrics: Metrics
    read_tables: Callable[[], SinkTables]


@dataclass
class _Running:
    """A service over an open store. What is entered into `around` ends before the store is closed."""

    prepared: _Prepared
    opened: Session
    session: SparkSession | None
    stop: Event
    should_reopen: Callable[[], bool]
    around: ExitStack
    drops: DropDirectory | None = None
    sinks: SinkManager | None = None
    sources: list[Tail] = field(default_factory=list)

    def run(self, sink: Sink) -> None:
        """Runs the service."""
        given, metrics = self.prepared.given, self.prepared.metrics
        try:
            self._register_queries()
            self._serve_metrics()
            self._name_sources()
            spool = Spool(given.state)
            # On Spark one question may use half of the cores: two would leave none for the batches.
            max_running = MAX_RUNNING if self.session is None else 1
            questions = QuestionRunner(self.opened, spool, metrics, given.question_timeout, max_running=max_running)
            service = self._service(sink, spool, self._free_memory(questions))
            why = {"because": self.prepared.why} if self.prepared.why else {}
            queries = len(self.opened.registry.subscriptions)
            metrics.event("started", engine=self.prepared.engine, **why, state=given.state, queries=queries)
            self._fetch()
            with questions, gc_frozen():
                service.run(given.trigger, self.stop)
            self.around.close()
        except BrokenPipeError as error:
            if error.filename is None:  # the reader of standard error: there is nobody to tell
                raise
            raise Failure(
                f"the reader of {error.filename} has gone; what it missed is written after a restart"
            ) from error
        finally:
            sink.close()

    def _register_queries(self) -> None:
        script, path = self.prepared.script, self.prepared.given.queries_path
        if script is not None and path is not None:
            for message in subscribe(self.opened, script, path, "renew"):
                self.prepared.metrics.event("queries", what=message)

    def _serve_metrics(self) -> None:
        """Serves the metrics. Raises Failure if their port cannot be opened."""
        port, address = self.prepared.given.metrics_port, self.prepared.given.metrics_address
        if port is None:
            return
        try:
            served = self.prepared.metrics.serve(port, address)
        except OSError as error:
            cause = f"metrics cannot be served at {address}:{port}: {error.strerror or error}"
            raise Failure(f"{cause}; choose another address with --metrics-port and --metrics-address") from error
        self.prepared.metrics.event("metrics", url=f"http://{address}:{served}/metrics")

    def _name_sources(self) -> None:
        given = self.prepared.given
        self.sources = [Tail(path, feeds=given.feeds, time_xpath=given.time_xpath) for path in given.paths]
        if self.prepared.subscribed is not None:
            self.drops = DropDirectory(fetch_directory(given.state), given.keep_drops)
            self.sources.append(self.drops.tail(given.feeds or "item"))

    def _free_memory(self, questions: QuestionRunner) -> FreeMemory:
        """Begins what runs beside the service. Returns what frees memory."""
        if self.prepared.beside is None:
            return questions.free_memory
        frees = self.around.enter_context(self.prepared.beside(self.opened, self.prepared.metrics, self.stop))

        def both() -> bool:
            found = [questions.free_memory(), frees()]
            return any(found)

        return both

    def _service(self, sink: Sink, spool: Spool, free_memory: FreeMemory) -> Service:
        given, metrics = self.prepared.given, self.prepared.metrics
        history = History(
            given.versions,
            given.most_versions,
            lateness=lateness_of(given.lateness, DEFAULT_STREAM),
            keep=given.keep_ids,
        )
        sinks, run_sinks = self._sinks()
        common = self.opened, self.sources, sink, CommandQueue(spool, skip=RUN_BESIDE, run_sinks=run_sinks), metrics
        watches = self.session is None and given.trigger is not None
        watcher = self.around.enter_context(closing(watch(self.sources, spool, metrics))) if watches else Polling()
        options = ServiceOptions(
            given.batch_size, given.batch_bytes, given.keep, given.keep_ids, history, self._on_idle,
            self.should_reopen, free_memory, watcher, sinks,
        )  # fmt: skip
        if self.session is None:
            return Service(*common, options)
        from mmqjp.service.streaming import StreamingService
        from mmqjp.spark.files import FileSource, SourcePath
        from mmqjp.spark.frames import ValueSource, streaming_frame

        read = [SourcePath(path.absolute(), given.feeds) for path in given.paths]
        if self.drops is not None:
            read.append(SourcePath(self.drops.directory.absolute(), given.feeds or "item", FETCHED))
        source = (
            FileSource(tuple(read), given.time_xpath, given.batch_size, given.batch_bytes, given.max_document)
            if given.source_format is None
            else ValueSource(given.source_format, given.source_options, given.max_document)
        )
        kept = given.checkpoint or make_inside(given.state, CHECKPOINT, given.source_format or FILES)
        frame = streaming_frame(self.session, source, given.state, kept)
        return StreamingService(*common, options, frame, kept)

    def _sinks(self) -> tuple[SinkManager, RunSinks]:
        """Opens the sinks of the configuration and of the store, and what runs commands about them."""
        state, tables = self.prepared.given.state, self.prepared.read_tables()
        secrets = Secrets(tables.secrets, state)
        deliverer = Deliverer()
        self.around.callback(deliverer.close, 0.0)
        read, log = partial(read_live, state), self.prepared.metrics
        self.sinks = SinkManager(self.opened, tables.sinks.values(), Kinds(secrets), deliverer, log, read)
        commands = SinkCommands(self.opened, self.sinks, secrets, state, self.prepared.read_tables)
        return self.sinks, lambda engine, command: commands.run(command)

    def _on_idle(self, engine: Session) -> None:
        if self.prepared.given.metrics_port is not None:
            self.prepared.metrics.update(status(engine, () if self.sinks is None else self.sinks.list()))
        if self.drops is not None:
            self.drops.sweep(engine)

    def _fetch(self) -> None:
        """Begins to fetch feeds. If there is only one look at the sources, returns when all are fetched."""
        given = self.prepared.given
        if self.drops is None or self.prepared.subscribed is None:
            return
        job = given.options.job(self.prepared.subscribed, self.drops.directory)
        watch = given.trigger is not None
        fetch = self.around.enter_context(Fetching(job, self.prepared.metrics, self.stop, watch=watch))
        if not watch:
            fetch.wait()
