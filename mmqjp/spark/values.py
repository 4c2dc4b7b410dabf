"""Documents from any streaming source of Spark whose rows have a `value`: XML, or a record as in a .jsonl file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from feeds.bad_input import SourceError
from feeds.document import DEFAULT_STREAM, Document, Reject
from feeds.jsonl import read_line
from feeds.offsets import Offset
from feeds.tail import ReadItem
from feeds.times import now_us, unix_time_refusal
from join_stage.store.spark.tables import spark_columns
from mmqjp.spark.micro_batch import ROWS, row_of, to_batches

VALUES = ("value", "xml")
"""The columns that may hold a document. The first one present is used."""

_COLUMNS = ("value", "id", "stream", "time")


def values_frame(session: SparkSession, source: str, options: Mapping[str, str], max_document: int | None) -> DataFrame:
    """The documents of a streaming source as rows of `ROWS`. Documents of more than `max_document` bytes are rejects.

    The rows have no offsets: Spark keeps those of such sources itself. A document in XML has

    - as id the column `id`, else `topic/partition/offset`, which Kafka gives, else a hash;
    - as stream the column `stream`, else the `topic`, else S;
    - as time the column `time`, else the `timestamp`, else the time of reading.

    A JSON record contains all these itself. Raises SourceError.
    """
    try:
        frame = session.readStream.format(source).options(**options).load()
    except (PySparkException, Py4JJavaError) as error:
        message = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
        cause = message.strip().splitlines()[0].rstrip(".")
        raise SourceError(source, cause, "is its connector among the packages of this application?") from None
    return rows_frame(frame, source, max_document)


def rows_frame(frame: DataFrame, source: str, max_document: int | None) -> DataFrame:
    """A data frame as rows of `ROWS`. Raises SourceError if none of its columns holds documents."""
    value = next((name for name in VALUES if name in frame.columns), None)
    if value is None:
        hint = f"it has {', '.join(frame.columns) or 'none'}"
        raise SourceError(source, f"no column is called {' or '.join(VALUES)}", hint)
    id = _first(f.col("id").cast("string") if "id" in frame.columns else None, _kafka_id(frame))
    stream = _first(*(f.col(name).cast("string") for name in ("stream", "topic") if name in frame.columns))
    times = [name for name in ("time", "timestamp") if name in frame.columns]
    time = _first(*(_micros(frame, name) for name in times))
    is_number = any(map(partial(_is_number, frame), times))
    chosen = frame.select(
        f.col(value).cast("binary").alias("value"),
        id.cast("string").alias("id"),
        stream.cast("string").alias("stream"),
        time.cast("bigint").alias("time"),
    )

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        first = (0 if context is None else context.partitionId()) << 32
        return to_batches(_rows(batches, first, source, max_document, is_number))

    return chosen.mapInArrow(rows, spark_columns(ROWS))


def _rows(
    batches: Iterable[pa.RecordBatch], first: int, source: str, max_document: int | None, is_number: bool
) -> Iterator[tuple[Any, ...]]:
    place = first
    for batch in batches:
        for value, id, stream, time in zip(*(batch[name].to_pylist() for name in _COLUMNS), strict=True):
            if value is not None:
                item = _item(value, id, stream, time, source, is_number)
                yield row_of(place, 0, ReadItem(item, Offset("", "", 0)), max_document)
                place += 1


def _item(
    value: bytes, id: str | None, stream: str | None, time: int | None, source: str, is_number: bool
) -> Document | Reject:
    """The document or reject of a row. `is_number` says whether the column of the time is numeric."""
    read_at = now_us() if time is None else time
    name = id or blake2b(value + str(time).encode(), digest_size=16).hexdigest()
    if value.lstrip().startswith(b"{"):
        return read_line(value, f"{source}: {name}", lambda: read_at)
    try:
        if is_number and (refusal := unix_time_refusal(time)) is not None:
            raise ValueError(refusal)
        return Document(name, value, stream or DEFAULT_STREAM, read_at)
    except ValueError as error:
        return Reject(name, stream or DEFAULT_STREAM, None, f"{source}: {name}: {error}", value)


def _first(*columns: Column | None) -> Column:
    """The first column that is not null."""
    return f.coalesce(*(column for column in columns if column is not None), f.lit(None))


def _kafka_id(frame: DataFrame) -> Column | None:
    names = ("topic", "partition", "offset")
    if not set(names) <= set(frame.columns):
        return None
    return f.concat_ws("/", *(f.col(name).cast("string") for name in names))


def _micros(frame: DataFrame, name: str) -> Column:
    """A time in microseconds. Integers are taken as such; other columns are cast to a timestamp."""
    if _is_number(frame, name):
        return f.col(name).cast("bigint")
    return f.unix_micros(f.col(name).cast("timestamp"))


def _is_number(frame: DataFrame, name: str) -> bool:
    return dict(frame.dtypes)[name] in ("bigint", "int")
