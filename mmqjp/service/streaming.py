"""The service on Spark: one query of Structured Streaming from the source to the tables.

Executors read what comes and evaluate it; this process admits it, joins it and commits it, in batches as without Spark,
along with how far each file is read and which micro-batch that was. So a micro-batch that Spark repeats after a crash
is passed over as far as it was done.
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
from mmqjp.service.intake import Taken
from mmqjp.service.log import Log
from mmqjp.service.loop import POLL, Commands, Rules, Service, Stop
from mmqjp.session import Session
from mmqjp.sinks.protocol import Sink
from mmqjp.spark.micro_batch import items_of, numbered, readable, uncommitted
from mmqjp.text import one_line

MICRO_BATCHES = "micro-batches"
"""The name under which an offset tells which micro-batches of a query are done."""


class StreamFailed(OperationalError, RuntimeError):
    """Spark could not go on with a streaming query; the message is the cause."""


class Stopped(Exception):
    """A micro-batch that begins when the service is to end: it comes again. Only Spark meets it, which ends for it."""


class StreamingService(Service):
    """A service whose documents come as rows of `mmqjp.spark.micro_batch.ROWS` in a streaming data frame.

    `checkpoint` is where Spark keeps the state of the query. `sources` are those whose offsets the rows have.
    """

    def __init__(
        self,
        engine: Session,
        sources: Sequence[Tail],
        sink: Sink,
        commands: Commands,
        log: Log,
        rules: Rules,
        frame: DataFrame,
        checkpoint: Path,
    ) -> None:
        super().__init__(engine, sources, sink, commands, log, rules)
        self._frame, self._checkpoint = frame, checkpoint.absolute()
        self._lock = Lock()
        self._failure: BaseException | None = None
        self._was_busy = True
        self._stop: Stop | None = None

    def run(self, trigger: float | None, stop: Stop) -> None:
        """Works until `stop` is set, looking for documents every `trigger` seconds; None: until all is read.

        Raises StreamFailed, and what a batch raises.
        """
        self._stop = stop
        self._obey()
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

    def _watch(self, query: StreamingQuery, stop: Stop) -> None:
        """Does what is to be done beside the query until that ends, or may be ended."""
        with suppress(StreamingQueryException):  # whoever asks the query is told
            while query.isActive:
                busy = bool(query.status["isTriggerActive"])
                if stop.is_set() and not busy:
                    return
                self._between(idle=not busy)
                query.awaitTermination(POLL)  # type: ignore[arg-type]  # it takes parts of seconds too

    def _start(self, trigger: float | None) -> StreamingQuery:
        writer = self._frame.writeStream.foreachBatch(self._micro_batch)
        writer = writer.option("checkpointLocation", file_urls([str(self._checkpoint)])[0])
        if trigger is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{max(round(trigger * 1000), 1)} milliseconds").start()

    def _between(self, *, idle: bool) -> None:
        """What is done while no micro-batch is: commands, and once all that had come is processed, notes."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._obey()
            if idle and self._engine.pass_time():
                self._prune()
            if idle and self._was_busy:
                self._settle()
                self._rules.on_idle(self._engine)
                self._was_busy = False
        finally:
            self._lock.release()

    def _micro_batch(self, frame: DataFrame, number: int) -> None:
        """Processes a micro-batch. Spark calls it in a thread of its own, and again with what it did not finish."""
        with self._lock:
            if self._stop is None or self._stop.is_set():
                raise Stopped
            try:
                self._obey()
                self._answer(frame, number)
            except BaseException as error:
                self._failure = error
                raise

    def _answer(self, frame: DataFrame, number: int) -> None:
        self._was_busy = True
        done = Offset(f"spark {self._query_id()}", MICRO_BATCHES, (number + 1) << 32)
        if self._intake.position(done.source, done.file) >= done.position:
            return
        started = perf_counter()
        evaluated = self._engine.evaluate(frame)
        seconds = perf_counter() - started
        rows = evaluated.rows.sort_by("place")
        if not len(rows):  # as the first is, where nothing has come
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
        for taken in self._intake.in_batches(judged()) if len(rows) else [Taken()]:
            if count == len(rows):
                taken.offsets[done.source, done.file] = done
            taken.found = evaluated.of(rows.take(pa.array(items[first:], pa.int64())))
            first = len(items)
            taken.seconds, seconds = seconds, 0.0
            self._process(taken)
            self._prune()

    def _query_id(self) -> str:
        """The id that Spark has given to the query, for as long as its checkpoint is there."""
        try:
            return str(json.loads((self._checkpoint / "metadata").read_text("utf-8"))["id"])
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(f"the checkpoint in {self._checkpoint} cannot be read: {error}") from error


def cause(error: PySparkException) -> str:
    """Why a query failed, in a line: what a Python process said last, else what Spark says first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    if not said:
        return one_line(next(iter(lines), type(error).__name__))
    name, colon, text = said[-1].partition(":")
    return one_line(name.rpartition(".")[2] + colon + text)
