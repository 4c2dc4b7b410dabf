"""Stage 1 on the executors of Spark: the same evaluator inside `mapInArrow`, with broadcast patterns.

The Python workers import `xpath_stage.spark_worker`, so the wheel of the driver must be installed on a cluster too.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from templates.catalog import Change, Edge, SharedStep
from templates.witness import R_BIN, R_DOC, R_DOCTS, Witnesses
from xpath_stage.evaluator import XPathStage
from xpath_stage.limits import DEFAULT, Limits
from xpath_stage.parse import Arriving
from xpath_stage.spark_worker import FOUND, TEXTS, Patterns, Version, evaluated, key_of, tuples

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext
    from pyspark.sql import DataFrame, SparkSession

SPREAD = 8 << 20
"""The bytes of XML in a batch past which the executors of a cluster evaluate it.

CPU seconds for 19 MB in 20,000 feed items that the driver has parsed. 1,000 plain patterns: 0.3 on the driver; or 0.2
on the driver, 0.7 in the workers and 1.0 in the JVM. Twenty conditions in XPath: 1.1 on the driver; or 0.15, 1.7 and
0.3. So it pays if patterns are expensive and cores are many, and never on the cores of the driver.
"""


def spread_past(session: SparkSession) -> int:
    """The bytes of XML in a batch past which executors evaluate it; never on a local master."""
    return sys.maxsize if (session.sparkContext.master or "local").startswith("local") else SPREAD


_SETTINGS = {
    # Past this size, Spark partitions a batch by a number of documents, whatever their sizes and the number of cores.
    "spark.sql.execution.arrow.localRelationThreshold": "256m",
}


class SparkStage(XPathStage):
    """Stage 1 that leaves batches of more than `spread` bytes of XML to the executors of Spark.

    `spread_documents` counts their documents.
    """

    def __init__(
        self,
        session: SparkSession,
        groups: Iterable[tuple[int, frozenset[Edge]]] = (),
        *,
        spread: int = SPREAD,
        limits: Limits = DEFAULT,
        max_nodes: int | None = None,
    ) -> None:
        """Executors refuse documents with more than `max_nodes` elements and attributes."""
        super().__init__(groups, limits=limits)
        self._max_nodes = max_nodes
        self._session = session.newSession()
        for key, value in _SETTINGS.items():
            self._session.conf.set(key, value)
        self._spread = spread
        self._registered = _Registered(session.sparkContext, limits)
        self.spread_documents = 0

    @property
    def broadcasts(self) -> int:
        """The number of broadcasts: one for each version of the patterns that executors evaluated."""
        return self._registered.version

    def add(self, change: Change) -> None:
        super().add(change)
        self._registered.add(change)

    def remove(self, change: Change) -> None:
        super().remove(change)
        self._registered.remove(change)

    def counters(self) -> dict[str, int]:
        """The counters of the evaluator of this process, `spread_documents` and `broadcasts`."""
        return super().counters() | {"spread_documents": self.spread_documents, "broadcasts": self.broadcasts}

    def close(self) -> None:
        with suppress(ConnectionError):  # Spark has ended, and what was broadcast with it
            self._registered.drop()

    def read(self, documents: DataFrame) -> pa.Table:
        """Evaluates rows (stream STRING, xml BINARY, and any others). Adds the columns FOUND and TEXTS. Rows without
        `xml` are no documents."""
        broadcast = self._registered.broadcast()
        found = _mapped(documents, *broadcast, trusted=False, texts=True, max_nodes=self._max_nodes).toArrow()
        self.spread_documents += len(found) - found["text"].null_count
        return found

    def evaluate(self, documents: Iterable[Arriving]) -> Witnesses:
        batch = list(documents)
        if sum(tree.size for *_, tree in batch) <= self._spread:
            return super().evaluate(batch)
        self.spread_documents += len(batch)
        frame = self._session.createDataFrame(_table(batch))
        found = _mapped(frame, *self._registered.broadcast(), trusted=True).toArrow()
        return self.witnesses(found, groups_of(found))

    def witnesses(self, found: pa.Table, groups: Mapping[int, Collection[Edge]]) -> Witnesses:
        """The witness relations in rows of `docid`, `stream`, `t0`, `t1` and FOUND, with the groups of this process.
        `groups` are those of the frame of the rows, see `groups_of`."""
        errors = found["error"].drop_null()
        assert not len(errors), f"a document that was read here cannot be read there: {errors[0]}"
        r_bin = self.regrouped(_unnested(found, "r_bin", "docid"), groups).cast(R_BIN)
        return Witnesses(
            r_bin,
            self.new_groups(),
            _unnested(found, "r_doc", "docid", "stream").select(R_DOC.names).cast(R_DOC),
            found.select(R_DOCTS.names).cast(R_DOCTS),
        )


def groups_of(rows: pa.Table) -> dict[int, set[Edge]]:
    """The groups in all rows of a frame, by numbers that do not depend on the process that found them."""
    found: dict[int, set[Edge]] = {}
    for key, var1, var2 in tuples(_unnested(rows, "r_group")):
        found.setdefault(key, set()).add((var1, var2))
    for key, edges in found.items():
        assert key_of(edges) == key, "two groups have one key"
    return found


def _mapped(
    documents: DataFrame,
    version: Version,
    patterns: Broadcast[Patterns],
    *,
    trusted: bool,
    texts: bool = False,
    max_nodes: int | None = None,
) -> DataFrame:
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(f"{FOUND}, {TEXTS}" if texts else FOUND)
    assert isinstance(found, StructType)
    columns = StructType([*(field for field in documents.schema.fields if field.name != "xml"), *found.fields])
    return documents.mapInArrow(partial(evaluated, version, patterns, trusted, texts, max_nodes), columns)


def _table(documents: list[Arriving]) -> pa.Table:
    """Documents as rows. A serialized tree is read as the same tree."""
    docids, streams, starts, ends, trees = zip(*documents, strict=True)
    xml = pa.array((tree.xml().encode() for tree in trees), pa.binary())
    return pa.table({"docid": docids, "stream": streams, "t0": starts, "t1": ends, "xml": xml})


def _unnested(frame: pa.Table, lists: str, *names: str) -> pa.Table:
    """The rows in a column of lists, after the columns `names` of the row that each is in."""
    tables = []
    for batch in frame.to_batches():
        places, rows = pc.list_parent_indices(batch[lists]), pc.list_flatten(batch[lists])
        columns = [*(batch[name].take(places) for name in names), *rows.flatten()]
        tables.append(pa.table(columns, [*names, *(field.name for field in rows.type)]))
    return pa.concat_tables(tables)


class _Registered:
    """What is registered, and its broadcast, which is made on demand after a change."""

    def __init__(self, context: SparkContext, limits: Limits) -> None:
        self._context, self._stage, self._limits = context, uuid4().hex, limits
        self._steps: dict[int, SharedStep] = {}
        self._edges: set[Edge] = set()
        self._values: set[int] = set()
        self._broadcast: Broadcast[Patterns] | None = None
        self.version = 0

    def add(self, change: Change) -> None:
        self._steps.update((step.id, step) for step in change.steps)
        self._edges.update(change.edges)
        self._values.update(change.values)
        self._changed(change)

    def remove(self, change: Change) -> None:
        for step in change.steps:
            del self._steps[step.id]
        self._edges.difference_update(change.edges)
        self._values.difference_update(change.values)
        self._changed(change)

    def broadcast(self) -> tuple[Version, Broadcast[Patterns]]:
        """The broadcast of what is registered, and its version. It is valid until the next change."""
        if self._broadcast is None:
            self.version += 1
            # Steps are registered after the steps above them.
            change = Change(tuple(self._steps.values()), tuple(self._edges), tuple(self._values))
            self._broadcast = self._context.broadcast((change, self._limits))
        return (self._stage, self.version), self._broadcast

    def drop(self) -> None:
        """Destroys the broadcast."""
        # The broadcasts of a stopped context are gone, and their numbers may be in use again.
        if self._broadcast is not None and self._context._active_spark_context is self._context:
            self._broadcast.destroy()
        self._broadcast = None

    def _changed(self, change: Change) -> None:
        if change.steps or change.edges or change.values:
            self.drop()
