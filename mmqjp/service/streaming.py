"""The service on Spark: one Structured Streaming query from the sources to the tables.

Executors read documents and evaluate them. This process admits, joins and commits them, in batches as on DuckDB. Each
commit includes the offsets of the files and the number of the micro-batch, so if Spark repeats a micro-batch after a
crash, the part that was committed is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import perf_counter

import pyarrow as pa
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from common.errors import OperationalError
from feeds.document import Document, Reject
from feeds.offsets import Offset
from feeds.tail import ReadItem, Tail
from join_stage.store.protocol import StoreError
from join_stage.store.spark.tables import file_urls
from mmqjp.service.intake import ReadBatch
from mmqjp.service.log import Log
from mmqjp.service.loop import POLL, Commands, Service, ServiceOptions
from mmqjp.service.watcher import Stop
from mmqjp.session import Session
from mmqjp.sinks.sink import Sink
from mmqjp.spark.micro_batch import items_of, numbered, readable, uncommitted
from mmqjp.text import printable_line

MICRO_BATCHES = "micro-batches"
"""The file name of the offset that stores which micro-batches of a streaming query are done."""


class StreamFailed(OperationalError, RuntimeError):
    """A streaming query of Spark failed. The message is the cause."""


class Stopped(Exception):
    """Raised, to Spark alone, by a micro-batch that starts when the service is stopping. Spark will repeat it."""


class StreamingService(Service):
    """A service whose documents arrive in a streaming data frame, as rows of `mmqjp.spark.micro_batch.ROWS`.

    `checkpoint` is the directory where Spark keeps the state of the query. The rows carry the offsets of `sources`.
    """

    def __init__(
        self,
        engine: Session,
        sources: Sequence[Tail],
        sink: Sink,
        commands: Commands,
        log: Log,
        options: ServiceOptions,
        frame: DataFrame,
        checkpoint: Path,
    ) -> None:
        super().__init__(engine, sources, sink, commands, log, options)
        self._frame, self._checkpoint = frame, checkpoint.absolute()
        self._lock = Lock()
        self._failure: BaseException | None = None
        self._was_busy = True
        self._stop: Stop | None = None

    def run(self, trigger: float | None, stop: Stop) -> None:
        """Looks for documents every `trigger` seconds until `stop` is set. With None, looks once and returns.

        Raises StreamFailed, and any error of a batch.
        """
        self._stop = stop
        self._run_commands()
        query = self._start(trigger)
        try:
            try:
                self._watch(query, stop)
            finally:
                query.stop()
            if self._failure is None and (error := query.exception()) is not None and not stop.is_set():
                raise StreamFailed(cause(error)) from error
        except (Py4JNetworkError, ConnectionError) as error:
            raise StreamFailed("Spark has ended, or its JVM was killed; the same command goes on from here") from error
        if isinstance(self._failure, PySparkException):
            raise StreamFailed(cause(self._failure)) from self._failure
        if self._failure is not None:
            raise self._failure
        self._between(idle=True)
        self._close_sinks(trigger, stop)

    def _watch(self, query: StreamingQuery, stop: Stop) -> None:
        """Runs commands and does upkeep beside the query, until it ends or may be stopped."""
        with suppress(StreamingQueryException):  # the caller asks the query for its error
            while query.isActive:
                busy = bool(query.status["isTriggerActive"])
                if stop.is_set() and not busy:
                    return
                self._between(idle=not busy)
                query.awaitTermination(POLL)  # type: ignore[arg-type]  # it accepts fractions of a second

    def _start(self, trigger: float | None) -> StreamingQuery:
        writer = self._frame.writeStream.foreachBatch(self._micro_batch)
        writer = writer.option("checkpointLocation", file_urls([str(self._checkpoint)])[0])
        if trigger is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{max(round(trigger * 1000), 1)} milliseconds").start()

    def _between(self, *, idle: bool) -> None:
        """Runs commands between two micro-batches, and does the upkeep once all that has arrived is processed."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._run_commands()
            if idle:
                self._pass_time()
            if idle and self._was_busy:
                self._commit_settings()
                self._options.on_idle(self._engine)
                self._was_busy = False
        finally:
            self._lock.release()

    def _micro_batch(self, frame: DataFrame, number: int) -> None:
        """Processes a micro-batch. Spark calls it in a thread of its own, and calls it again if it did not finish."""
        with self._lock:
            if self._stop is None or self._stop.is_set():
                raise Stopped
            try:
                self._run_commands()
                self._process_rows(frame, number)
            except BaseException as error:
                self._failure = error
                raise

    def _process_rows(self, frame: DataFrame, number: int) -> None:
        """Evaluates a micro-batch on the executors and processes what of it is not yet committed."""
        self._was_busy = True
        done = Offset(f"spark {self._query_id()}", MICRO_BATCHES, (number + 1) << 32)
        if self._intake.position(done.source, done.file) >= done.position:
            return
        started = perf_counter()
        evaluated = self._engine.evaluate(frame)
        seconds = perf_counter() - started
        rows = evaluated.rows.sort_by("place")
        if not len(rows):  # as in the first micro-batch when nothing has arrived
            return
        if not rows["source"][0].as_py():
            rows = numbered(rows, done.source, done.file, number)
        rows, failed = readable(rows)
        for file, reason in failed.items():
            if reason:
                self._intake.fail(file, reason)
        rows = uncommitted(rows, self._intake.positions)
        items: list[int] = []
        count = 0

        def judged() -> Iterator[ReadItem[Document | Reject]]:
            nonlocal count
            for count, read in enumerate(self._intake.judged(items_of(rows)), 1):
                if read.item is not None:
                    items.append(count - 1)
                yield read

        first = 0
        for batch in self._intake.in_batches(judged()) if len(rows) else [ReadBatch()]:
            if count == len(rows):
                batch.offsets[done.source, done.file] = done
            batch.evaluated = evaluated.of(rows.take(pa.array(items[first:], pa.int64())))
            first = len(items)
            batch.seconds, seconds = seconds, 0.0
            self._process(batch)
            self._prune()

    def _query_id(self) -> str:
        """The id that Spark gave to the query. It stays the same as long as the checkpoint exists."""
        try:
            return str(json.loads((self._checkpoint / "metadata").read_text("utf-8"))["id"])
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(f"the checkpoint in {self._checkpoint} cannot be read: {error}") from error


def cause(error: PySparkException) -> str:
    """Why a query failed, in one line: the last error of a Python process, else the first line of Spark's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    if not errors:
        return printable_line(next(iter(lines), type(error).__name__))
    name, colon, text = errors[-1].partition(":")
    return printable_line(name.rpartition(".")[2] + colon + text)
