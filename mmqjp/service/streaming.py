"""A service whose batches are micro-batches of Spark's Structured Streaming."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import perf_counter

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from common.errors import OperationalError
from feeds.documents import SourceItem
from feeds.readers import Offset
from feeds.tail import ReadItem, Tail
from join_stage.store.protocol import StoreError
from join_stage.store.spark.parquet_store import file_urls
from mmqjp.engine import Session
from mmqjp.process import printable_line
from mmqjp.service.commands import CommandQueue
from mmqjp.service.log import Log
from mmqjp.service.loop import POLL, SHARE, ReadBatch, Service, ServiceOptions, Stop
from mmqjp.sinks.sink import Sink
from mmqjp.spark.source import FileReader, assign_positions, decode_items, split_unreadable, uncommitted

MICRO_BATCHES = "micro-batches"  # the file name of the offset that records completed micro-batches


class StreamFailed(OperationalError, RuntimeError):
    """A streaming query of Spark failed. The message is the cause."""


class Stopped(Exception):
    """Raised, to Spark alone, by a micro-batch that starts during shutdown. Spark repeats it later."""


class StreamingService(Service):
    """A service whose documents arrive in a streaming data frame, as rows of `mmqjp.spark.source.ROWS`. `checkpoint` is
    Spark's directory for the query's state. The rows carry the offsets of `sources`; with a `reader`, tasks read them
    without the frame where they can. Between micro-batches, which take longer to begin than a few documents to be
    answered, it reads `sources` itself while there is little to read."""

    def __init__(
        self,
        engine: Session,
        sources: Sequence[Tail],
        sink: Sink,
        commands: CommandQueue,
        log: Log,
        options: ServiceOptions,
        frame: DataFrame,
        checkpoint: Path,
        reader: FileReader | None = None,
    ) -> None:
        super().__init__(engine, sources, sink, commands, log, options)
        self._frame, self._checkpoint = frame, checkpoint.absolute()
        self._reader, self._lock = reader, Lock()
        self._failure: BaseException | None = None
        self._was_busy = True
        self._stop: Stop | None = None
        self._trigger: float | None = None
        self._look_at = self._rest_until = 0.0

    def run(self, trigger: float | None, stop: Stop) -> None:
        """Polls every `trigger` seconds until `stop` is set; once if `trigger` is None. Raises StreamFailed, and any
        error of a batch."""
        self._stop, self._trigger = stop, trigger
        self._run_commands()
        query = self._start(trigger)
        try:
            try:
                self._watch(query, stop)
            finally:
                query.stop()
            if self._failure is None and (error := query.exception()) is not None and not stop.is_set():
                raise StreamFailed(spark_error_text(error)) from error
        except (Py4JNetworkError, ConnectionError) as error:
            raise StreamFailed("Spark has ended, or its JVM was killed; the same command goes on from here") from error
        if isinstance(self._failure, PySparkException | Py4JJavaError):
            raise StreamFailed(spark_error_text(self._failure)) from self._failure
        if self._failure is not None:
            raise self._failure
        self._between(idle=True)
        self._close_sinks(trigger, stop)

    def _watch(self, query: StreamingQuery, stop: Stop) -> None:
        has_news = False
        with suppress(StreamingQueryException):  # the caller asks the query for its error
            while query.isActive:
                busy = bool(query.status["isTriggerActive"])
                if stop.is_set() and not busy:
                    return
                has_news = self._between(idle=not busy, has_news=has_news)
                if stop.is_set():
                    query.awaitTermination(POLL)  # type: ignore[arg-type]  # it accepts fractions of a second
                elif self._options.watcher.wait(POLL, stop):
                    has_news = True

    def _start(self, trigger: float | None) -> StreamingQuery:
        writer = self._frame.writeStream.foreachBatch(self._micro_batch)
        writer = writer.option("checkpointLocation", file_urls([str(self._checkpoint)])[0])
        if trigger is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{max(round(trigger * 1000), 1)} milliseconds").start()

    def _between(self, *, idle: bool, has_news: bool = False) -> bool:
        """Returns whether there are news still, as a micro-batch is under way."""
        if not self._lock.acquire(blocking=False):
            return has_news
        try:
            self._run_commands()
            if self._stop is not None and not self._stop.is_set():
                has_news = self._read_here(self._stop, has_news=has_news)
            if idle:
                self._pass_time()
            if idle and self._was_busy:
                self._commit_settings()
                self._options.on_idle(self._engine)
                self._was_busy = False
        finally:
            self._lock.release()
        return has_news

    def _read_here(self, stop: Stop, *, has_news: bool) -> bool:
        """Processes pushes, and on news or when it is time, the documents in files if there is little. Returns whether
        there are news still, since a vain look was a moment ago."""
        started = perf_counter()
        has_pushes, is_due = self._take_pushes(stop), started >= self._look_at
        if self._trigger is None or (has_pushes and not is_due):
            return False  # most likely it was the pushes that changed
        if not (has_news or is_due) or started < self._rest_until:
            return has_news
        self._look_at = started + self._trigger
        if self.drain(stop, little=True):
            self._was_busy = True
        else:
            now = perf_counter()
            self._rest_until = now + SHARE * (now - started)
        return False

    def _micro_batch(self, frame: DataFrame, number: int) -> None:
        """Called by Spark in its own thread, and again if it did not finish."""
        with self._lock:
            if self._stop is None or self._stop.is_set():
                raise Stopped
            try:
                self._run_commands()
                self._take_pushes(self._stop)
                self._process_rows(frame, number)
            except BaseException as error:
                self._failure = error
                raise

    def _process_rows(self, frame: DataFrame, number: int) -> None:
        """Evaluates a micro-batch on the executors and commits what is not yet committed."""
        self._was_busy = True
        try:  # Spark's id of the query, which lives as long as the checkpoint
            query = str(json.loads((self._checkpoint / "metadata").read_text("utf-8"))["id"])
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(f"the checkpoint in {self._checkpoint} cannot be read: {error}") from error
        done = Offset(f"spark {query}", MICRO_BATCHES, (number + 1) << 32)
        known = self._intake.positions.get((done.source, done.file))
        if known is not None and known.position >= done.position:
            return
        started = perf_counter()
        parts = self._reader.parts(self._checkpoint, number) if self._reader else None
        evaluated = self._engine.evaluate(parts or frame)
        seconds = perf_counter() - started
        if not len(evaluated.rows):  # as in the first micro-batch when nothing has arrived
            return
        rows = evaluated.rows
        if (np.diff(rows["place"].to_numpy()) < 0).any():
            rows = rows.sort_by("place")
        if not rows["source"][0].as_py():
            rows = assign_positions(rows, done.source, done.file, number)
        rows, failed = split_unreadable(rows)
        for file, reason in failed.items():
            if reason:
                self._intake.fail(file, reason)
        rows = uncommitted(rows, self._intake.positions)
        items: list[int] = []
        count = 0

        def judged() -> Iterator[ReadItem[SourceItem]]:
            nonlocal count
            for count, read in enumerate(self._intake.judged(decode_items(rows)), 1):
                if read.item is not None:
                    items.append(count - 1)
                yield read

        first = 0
        for batch in self._intake.in_batches(judged()) if len(rows) else [ReadBatch()]:
            if count == len(rows):
                batch.offsets[done.source, done.file] = done
            some = items[first:]
            batch.evaluated = evaluated.of(rows if len(some) == len(rows) else rows.take(pa.array(some, pa.int64())))
            first = len(items)
            batch.seconds, seconds = seconds, 0.0
            self._process(batch)
            self._prune()


def spark_error_text(error: PySparkException | Py4JJavaError) -> str:
    """Returns the cause in one line: the last error of a Python process, else the first line of Spark's message."""
    text = str(error.java_exception if isinstance(error, Py4JJavaError) else error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    if not errors:
        return printable_line(next(iter(lines), type(error).__name__))
    name, colon, text = errors[-1].partition(":")
    return printable_line(name.rpartition(".")[2] + colon + text)
