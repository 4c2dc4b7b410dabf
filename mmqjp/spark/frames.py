"""The streaming data frames that a service reads: of files as they arrive, or of any streaming source of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from mmqjp.spark.files import FORMAT, FileSource, file_source
from mmqjp.spark.positions import StoredPositions
from mmqjp.spark.values import values_frame

PLANS = "plans"
"""The folder inside a checkpoint that holds the read plans."""


@dataclass(frozen=True, slots=True)
class ValueSource:
    """A streaming source of Spark: its name, its options, and the largest document that is accepted, in bytes."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    max_document: int | None = None


def streaming_frame(
    session: SparkSession, source: FileSource | ValueSource, state: Path, checkpoint: Path
) -> DataFrame:
    """A streaming data frame of `mmqjp.spark.micro_batch.ROWS`, in a new session.

    `state` is the directory of an existing store, `checkpoint` the directory where Spark keeps the state of the query.
    Raises SourceError.
    """
    own = session.newSession()
    if isinstance(source, ValueSource):
        own.conf.set("spark.sql.streaming.schemaInference", "true")
        return values_frame(own, source.name, source.options, source.max_document)
    tasks = 2 * session.sparkContext.defaultParallelism
    known = StoredPositions(state)
    own.dataSource.register(file_source(replace(source, tasks=tasks), known, checkpoint.absolute() / PLANS))
    return own.readStream.format(FORMAT).load()
