"""Makes the tables of a store and our data sources available in any Spark session, also while a service writes."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from feeds.spark.sources import FeedSource, WarcSource, drops
from join_stage.store.protocol import StoreSchema
from join_stage.store.spark.attach import DATABASE
from join_stage.store.spark.attach import attach_store as _attach
from join_stage.tables import FLAT_STORE
from mmqjp.tables.schema import SCHEMA, SPARK_VIEWS

__all__ = ["attach", "drops", "register"]


def attach(spark: SparkSession, warehouse: Path | str, database: str = DATABASE) -> None:
    """Makes the store in the directory `warehouse` readable in a session, as a database.

    The database has the tables `documents`, `outputs`, `dead_letters`, `batches`, `r_bin`, `r_doc` and `r_docts`, and
    the views `queries`, `matches`, `costs` and `r_t_0`, `r_t_1`, ...

    The database exists for all sessions, but each session chooses, and may change, which store it shows. A query sees
    the batches committed when it is planned, including those after this call. Call again for the views of templates
    added later. Executors need this package. Raises StoreError if the directory holds no store, or if the database has
    a table that is not ours.
    """
    _attach(spark, FLAT_STORE | SCHEMA | StoreSchema(views=SPARK_VIEWS), Path(warehouse), database)


def register(spark: SparkSession) -> None:
    """Registers the data sources `mmqjp_warc` (WARC files) and `mmqjp_feeds` (live feeds) in a session, for
    `spark.read` and `spark.readStream`. Executors need this package."""
    for source in (WarcSource, FeedSource):
        spark.dataSource.register(source)
