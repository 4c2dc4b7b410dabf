"""A store's tables in any Spark session, also while a pipeline writes, and the sources of documents."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from feeds.spark.drops import drops
from feeds.spark.live import FeedSource
from feeds.spark.warc import WarcSource
from join_stage.state_tables import FLAT_STORE
from join_stage.store.schema import StoreSchema
from join_stage.store.spark.attach import attach as _attach
from mmqjp.tables.schema import SCHEMA
from mmqjp.tables.settings import SPARK_VIEWS

__all__ = ["attach", "drops", "register"]

DATABASE = "mmqjp"


def attach(spark: SparkSession, warehouse: Path | str, database: str = DATABASE) -> None:
    """Makes the store in the directory `warehouse` readable in a session: as the tables `documents`, `outputs`,
    `dead_letters`, `batches`, `r_bin`, `r_doc`, `r_docts`, the views `queries`, `matches`, `costs` and `r_t_0`,
    `r_t_1`, ... of a database.

    The database is there for all sessions; which store it shows, each session settles for itself, and may change.
    Each query sees the batches that are committed when it is planned, also those after this call; templates that are
    new since get their views when it is called again. Executors need this package.

    Raises StoreError if the directory holds no store, or the database a table that is not ours.
    """
    _attach(spark, FLAT_STORE | SCHEMA | StoreSchema(views=SPARK_VIEWS), Path(warehouse), database)


def register(spark: SparkSession) -> None:
    """Makes the data sources `mmqjp_warc` (WARC files) and `mmqjp_feeds` (live feeds) known to a session, for
    `spark.read` and `spark.readStream`. Executors need this package."""
    for source in (WarcSource, FeedSource):
        spark.dataSource.register(source)
