"""Stage 1 on Spark's executors: the same evaluator inside `mapInArrow`, its patterns broadcast once a version.

The Python workers import `xpath_stage.spark_worker`: on a cluster the wheel that the driver runs must be installed on
them too.
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

from templates.catalog import Change, Edge, Step
from templates.witness import R_BIN, R_DOC, R_DOCTS, Witnesses
from xpath_stage.evaluator import XPathStage
from xpath_stage.limits import DEFAULT, Limits
from xpath_stage.parse import Arriving
from xpath_stage.spark_worker import FOUND, TEXTS, Patterns, Version, evaluated, key_of, tuples

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext
    from pyspark.sql import DataFrame, SparkSession

SPREAD = 8 << 20
"""Bytes of XML in a batch past which a cluster's executors get it.

CPU seconds for 19 MB in 20,000 feed items that the driver has parsed: 1,000 plain patterns take the driver's evaluator
0.3, and this way 0.2 on the driver, 0.7 in the workers and 1.0 in the JVM; twenty conditions in XPath 1.1, and this way
0.15, 1.7 and 0.3. So it pays where patterns are dear and cores are many, and never where they are the driver's own.
"""


def spread_past(session: SparkSession) -> int:
    """Bytes of XML in a batch past which executors get it: on a local master none do."""
    return sys.maxsize if (session.sparkContext.master or "local").startswith("local") else SPREAD


_SETTINGS = {
    # Past it, a batch is cut by thousands of documents, whatever their sizes and the number of cores.
    "spark.sql.execution.arrow.localRelationThreshold": "256m",
}


class SparkStage(XPathStage):
    """Stage 1 that leaves documents of more than `spread` bytes together to Spark's executors.

    `spread_documents` counts them.
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
        """Documents that executors read have at most `max_nodes` elements and attributes."""
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
        """How many were made: one for each version of the patterns that documents met on executors."""
        return self._registered.version

    def add(self, change: Change) -> None:
        super().add(change)
        self._registered.add(change)

    def remove(self, change: Change) -> None:
        super().remove(change)
        self._registered.remove(change)

    def counters(self) -> dict[str, int]:
        """Those of this process's evaluator, and `spread_documents` and `broadcasts`."""
        return super().counters() | {"spread_documents": self.spread_documents, "broadcasts": self.broadcasts}

    def close(self) -> None:
        with suppress(ConnectionError):  # Spark has ended, and what was broadcast with it
            self._registered.drop()

    def read(self, documents: DataFrame) -> pa.Table:
        """What the patterns find in rows (stream STRING, xml BINARY, and any others), as `FOUND` and `TEXTS` say. Rows
        without `xml` are no documents."""
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
        """The witness relations that rows of `docid`, `stream`, `t0`, `t1` and `FOUND` hold, in this process's groups;
        `groups` are those of the frame that they are from, see `groups_of`."""
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
    """The groups of all rows of a frame, by their numbers, which do not depend on who found them."""
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
    """The rows of a frame of documents. What is written of a tree is read as the same tree."""
    docids, streams, starts, ends, trees = zip(*documents, strict=True)
    xml = pa.array((tree.xml().encode() for tree in trees), pa.binary())
    return pa.table({"docid": docids, "stream": streams, "t0": starts, "t1": ends, "xml": xml})


def _unnested(frame: pa.Table, lists: str, *names: str) -> pa.Table:
    """The rows of a column of lists, behind other columns of the row that each is from."""
    tables = []
    for batch in frame.to_batches():
        places, rows = pc.list_parent_indices(batch[lists]), pc.list_flatten(batch[lists])
        columns = [*(batch[name].take(places) for name in names), *rows.flatten()]
        tables.append(pa.table(columns, [*names, *(field.name for field in rows.type)]))
    return pa.concat_tables(tables)


class _Registered:
    """What is registered, and its broadcast: made when it is asked for and there is none since the last change."""

    def __init__(self, context: SparkContext, limits: Limits) -> None:
        self._context, self._stage, self._limits = context, uuid4().hex, limits
        self._steps: dict[int, Step] = {}
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
        """The broadcast of what is registered, for use before that changes."""
        if self._broadcast is None:
            self.version += 1
            # In the order of their registration steps stand behind those above them.
            change = Change(tuple(self._steps.values()), tuple(self._edges), tuple(self._values))
            self._broadcast = self._context.broadcast((change, self._limits))
        return (self._stage, self.version), self._broadcast

    def drop(self) -> None:
        """Lets go of the broadcast."""
        # A context that was stopped has taken its broadcasts along; their numbers may mean others by now.
        if self._broadcast is not None and self._context._active_spark_context is self._context:
            self._broadcast.destroy()
        self._broadcast = None

    def _changed(self, change: Change) -> None:
        if change.steps or change.edges or change.values:
            self.drop()
