"""The streaming data frames that a service reads: of files that come, or of any source that Spark has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from mmqjp.spark.files import FORMAT, FileSource, file_source
from mmqjp.spark.positions import StoredPositions
from mmqjp.spark.values import values_frame

PLANS = "plans"
"""The folder of a checkpoint with the plans of micro-batches."""


@dataclass(frozen=True, slots=True)
class ValueSource:
    """A streaming source of Spark's by its name, with its options, and how large a document may be."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    max_document: int | None = None


def streaming_frame(
    session: SparkSession, source: FileSource | ValueSource, state: Path, checkpoint: Path
) -> DataFrame:
    """Rows of `mmqjp.spark.micro_batch.ROWS` as they come, in a session of their own. `state` is that of a store that
    is there, and `checkpoint` where Spark keeps that of the query. Raises SourceError."""
    own = session.newSession()
    if isinstance(source, ValueSource):
        own.conf.set("spark.sql.streaming.schemaInference", "true")
        return values_frame(own, source.name, source.options, source.max_document)
    tasks = 2 * session.sparkContext.defaultParallelism
    known = StoredPositions(state)
    own.dataSource.register(file_source(replace(source, tasks=tasks), known, checkpoint.absolute() / PLANS))
    return own.readStream.format(FORMAT).load()
