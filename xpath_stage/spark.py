"""Stage 1 on Spark executors: the same evaluator inside `mapInArrow`, with broadcast patterns.

A Python worker compiles a version of the patterns once, however many tasks it runs. Group numbers in its results derive
from the edges, and so do not depend on the process. Executors need this package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.arrays import Ints, packed, unpacked
from common.executors import Shipped, in_task, run_tasks
from templates.catalog import Change, StepEdge
from templates.witness import R_BIN, R_DOC, R_DOCTS, Witnesses, edges_by_group
from xpath_stage.documents import (
    DEFAULT,
    Arriving,
    DocumentError,
    Limits,
    ParsedDocument,
    StreamDocument,
    parse_documents,
)
from xpath_stage.evaluator import XPathStage
from xpath_stage.filters import Failures
from xscl.algebra.weights import use_weights, weights_file

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

FOUND = "r_bin", "r_doc", "r_group", "error", "failed"
"""Columns added to each document: its rows of R_bin and R_doc, or its error; and whether a condition or function of a
pattern raised in its rows, so that the results are not complete. A group's number derives from its
edges. `r_group` has the edges of each group in some row of the frame, not necessarily in the row that uses it."""

TEXTS = "text", "unread"  # columns added on demand: the document as read, or the bytes of an unreadable one

PACKED = "packed"
"""The only column of a data frame whose values are several rows each, as Arrow streams. Of others, Spark's JVM copies
each value between Arrow and rows of its own, on each way to and from Python."""


def packed_rows(rows: pa.RecordBatch, compression: str | None = None) -> pa.RecordBatch:
    stream = bytes(packed(pa.Table.from_batches([rows]), compression))
    return pa.RecordBatch.from_pydict({PACKED: pa.array([stream], pa.binary())})


def unpacked_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a data frame, whether they are packed or not."""
    for batch in batches:
        if batch.schema.names == [PACKED]:
            for one in batch[PACKED]:
                yield from unpacked(memoryview(one.as_buffer())).to_batches()
        else:
            yield batch


PatternsVersion = tuple[str, int]  # the id of a stage, and the number of changes of its patterns

PatternUpdate = tuple[Change, Limits, Path | None]
"""All registered patterns, the limits, and the file of the table that weighs words, unless it is the package's."""

_workers: dict[PatternsVersion, _Worker] = {}  # this process's evaluator, of the version used last; at most one


@in_task
def evaluate_batches(
    version: PatternsVersion,
    patterns: Broadcast[PatternUpdate],
    trusted: bool,
    texts: bool,
    max_nodes: int | None,
    documents: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Evaluates rows with `stream` and `xml`, packed or not. Yields packed rows with FOUND, and TEXTS if `texts`,
    instead of `xml`."""
    worker = _workers.get(version)
    if worker is None:
        _workers.clear()
        worker = _workers[version] = _Worker(*patterns.value)
    for batch in unpacked_rows(documents):
        # Spark fetches results of more than 1 MB in a way that takes 20 ms longer.
        yield packed_rows(worker.evaluate(batch, trusted, texts, max_nodes), "lz4")


class TaskReads(NamedTuple):
    """Rows that tasks read by themselves, a part each: without rows of Spark, that takes half the CPU."""

    read: Callable[[Any], Iterable[pa.RecordBatch]]
    parts: Sequence[Any]


def _evaluate_part(
    work: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], read: Callable[[Any], Any], part: Any
) -> list[pa.RecordBatch]:
    return list(work(read(part)))


class _Worker:
    def __init__(self, change: Change, limits: Limits, weights: Path | None) -> None:
        self._weights = weights
        self._failures: Failures = {}
        self._stage = XPathStage(limits=limits, failures=self._failures)
        self._stage.add(change)
        self._edges: list[list[StepEdge]] = []
        self._keys: list[int] = []

    def evaluate(self, documents: pa.RecordBatch, trusted: bool, texts: bool, max_nodes: int | None) -> pa.RecordBatch:
        """The first row has the edges of all groups."""
        use_weights(self._weights)
        errors: list[str | None] = [None] * len(documents)
        read: list[str | None] = [None] * len(documents)
        # The docid of a document is its index in the batch.
        trees = parse_documents((xml.as_py() or b"" for xml in documents["xml"]), trusted=trusted, max_nodes=max_nodes)
        found = self._stage.evaluate(_parsed(documents, trees, errors, read if texts else None))
        self._stage.finish_batch(committed=True)
        for number, group in edges_by_group(found.r_group).items():
            assert number == len(self._keys), "groups are handed out in the order of their numbers"
            self._edges.append(group)
            self._keys.append(edge_group_key(group))
        grp = found.r_bin["grp"].to_numpy()
        edges = [(0, self._keys[number], *edge) for number in np.unique(grp) for edge in self._edges[number]]
        r_bin = {"grp": np.array(self._keys, np.int64)[grp]}
        r_bin |= {name: found.r_bin[name].to_numpy() for name in ("node1", "node2")}
        r_doc = {"node": found.r_doc["node"].to_numpy(), "strval": found.r_doc["strval"].combine_chunks()}
        first, key, var1, var2 = np.array(edges, np.int64).reshape(-1, 4).T
        r_group = {"grp": key, "var1": var1.astype(np.int32), "var2": var2.astype(np.int32)}
        columns = {name: documents[name] for name in documents.schema.names if name != "xml"}
        columns["r_bin"] = _nested(len(documents), found.r_bin["docid"].to_numpy(), r_bin)
        columns["r_doc"] = _nested(len(documents), found.r_doc["docid"].to_numpy(), r_doc)
        columns["r_group"] = _nested(len(documents), first, r_group)
        columns["error"] = pa.array(errors, pa.string())
        columns["failed"] = pa.repeat(bool(self._failures), len(documents))
        self._failures.clear()
        if texts:
            columns["text"] = pa.array(read, pa.string())
            columns["unread"] = pc.if_else(columns["error"].is_valid(), documents["xml"], None)
        return pa.RecordBatch.from_pydict(columns)


def _parsed(
    documents: pa.RecordBatch,
    trees: Iterable[ParsedDocument | DocumentError],
    errors: list[str | None],
    texts: list[str | None] | None,
) -> Iterator[StreamDocument]:
    """The readable documents, with indices as docids. Fills in `errors` of the others, and `texts` of these."""
    for place, (stream, tree) in enumerate(zip(documents["stream"].to_pylist(), trees, strict=True)):
        if isinstance(tree, DocumentError):
            errors[place] = str(tree)
            continue
        if texts is not None:
            texts[place] = tree.xml()
        yield StreamDocument(place, stream, 0, 0, tree)


def _nested(number: int, places: Ints, columns: Mapping[str, Ints | pa.Array]) -> pa.ListArray:
    order = pa.array(np.argsort(places, kind="stable"))
    rows = pa.StructArray.from_arrays([pa.array(column).take(order) for column in columns.values()], list(columns))
    offsets = np.cumsum([0, *np.bincount(places, minlength=number)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), rows)


def edge_group_key(edges: Iterable[StepEdge]) -> int:
    digest = blake2b(repr(sorted(edges)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


SPREAD = 8 << 20
"""Bytes of XML in a batch past which the executors of a cluster evaluate it.

CPU seconds for 19 MB in 20,000 feed items that the driver has parsed. 1,000 plain patterns: 0.3 on the driver; or 0.2
on the driver, 0.7 in the workers and 1.0 in the JVM. Twenty conditions in XPath: 1.1 on the driver; or 0.15, 1.7 and
0.3. So it pays if patterns are expensive and cores are many, and never on the driver's cores."""


def spread_past(session: SparkSession) -> int:
    """The threshold of a session; unlimited on a local master."""
    return sys.maxsize if (session.sparkContext.master or "local").startswith("local") else SPREAD


_SETTINGS = {
    # Past this size, Spark partitions a batch by a number of documents, whatever their sizes and the number of cores.
    "spark.sql.execution.arrow.localRelationThreshold": "256m"
}


class SparkStage(XPathStage):
    """Stage 1 that leaves batches of more than `spread` bytes of XML to executors; counts `spread_documents`."""

    def __init__(
        self,
        session: SparkSession,
        groups: Iterable[tuple[int, Iterable[StepEdge]]] = (),
        *,
        spread: int = SPREAD,
        limits: Limits = DEFAULT,
        max_nodes: int | None = None,
        failures: Failures | None = None,
    ) -> None:
        """Executors refuse documents with more than `max_nodes` elements and attributes."""
        super().__init__(groups, limits=limits, failures=failures)
        self._max_nodes = max_nodes
        self._session = session.newSession()
        for key, value in _SETTINGS.items():
            self._session.conf.set(key, value)
        self._spread = spread
        self._shipped, self._id = Shipped[PatternUpdate](session.sparkContext), uuid4().hex
        self.spread_documents = 0

    def counters(self) -> dict[str, int]:
        return super().counters() | {"spread_documents": self.spread_documents, "broadcasts": self._shipped.count}

    def close(self) -> None:
        self._shipped.drop()

    def read(self, documents: DataFrame | TaskReads) -> pa.Table:
        """Adds FOUND and TEXTS to rows (stream STRING, xml BINARY, others), perhaps packed. Rows without `xml` are not
        documents. Without rows, there are no columns."""
        found = self._mapped(documents, trusted=False, texts=True, max_nodes=self._max_nodes)
        if len(found):
            self.spread_documents += len(found) - found["text"].null_count
        return found

    def evaluate(self, documents: Iterable[Arriving]) -> Witnesses:
        batch = list(documents)
        if sum(tree.size for *_, tree in batch) <= self._spread:
            return super().evaluate(batch)
        self.spread_documents += len(batch)
        docids, streams, starts, ends, trees = zip(*batch, strict=True)
        # A serialised tree is read as the same tree.
        xml = pa.array((tree.xml().encode() for tree in trees), pa.binary())
        rows = pa.table({"docid": docids, "stream": streams, "t0": starts, "t1": ends, "xml": xml})
        frame = self._session.createDataFrame(rows)
        found = self._mapped(frame, trusted=True)
        if pc.any(found["failed"]).as_py():
            return super().evaluate(batch)
        return self.witnesses(found, collect_edge_groups(found))

    def _mapped(
        self, documents: DataFrame | TaskReads, *, trusted: bool, texts: bool = False, max_nodes: int | None = None
    ) -> pa.Table:
        version = self._id, self._changes
        patterns = self._shipped.of(version, lambda: (self._automaton.registered(), self._limits, weights_file()))
        work = partial(evaluate_batches, version, patterns.broadcast, trusted, texts, max_nodes)
        if isinstance(documents, TaskReads):
            evaluate = partial(_evaluate_part, work, documents.read)
            found = chain.from_iterable(run_tasks(self._session.sparkContext, evaluate, documents.parts))
        else:
            found = documents.mapInArrow(work, f"{PACKED} BINARY").toArrow().to_batches()
        batches = list(unpacked_rows(found))
        return pa.Table.from_batches(batches) if batches else pa.table({})

    def witnesses(self, found: pa.Table, groups: Mapping[int, Collection[StepEdge]]) -> Witnesses:
        """Witness relations of rows, with this process's groups. `groups`: see `collect_edge_groups`."""
        errors = found["error"].drop_null()
        assert not len(errors), f"a document that was read here cannot be read there: {errors[0]}"
        r_bin = self.regrouped(_unnested(found, "r_bin", "docid"), groups).cast(R_BIN)
        r_doc = _unnested(found, "r_doc", "docid", "stream").select(R_DOC.names).cast(R_DOC)
        return Witnesses(r_bin, self.new_groups(), r_doc, found.select(R_DOCTS.names).cast(R_DOCTS))


def collect_edge_groups(rows: pa.Table) -> dict[int, list[StepEdge]]:
    found = edges_by_group(_unnested(rows, "r_group"))
    for key, edges in found.items():
        assert edge_group_key(edges) == key, "two groups have one key"
    return found


def _unnested(frame: pa.Table, lists: str, *names: str) -> pa.Table:
    tables = []
    for batch in frame.to_batches():
        places, rows = pc.list_parent_indices(batch[lists]), pc.list_flatten(batch[lists])
        columns = [*(batch[name].take(places) for name in names), *rows.flatten()]
        tables.append(pa.table(columns, [*names, *(field.name for field in rows.type)]))
    return pa.concat_tables(tables)
