"""The worker of stage 1 in a Python process of a Spark executor: evaluates documents on a version of the patterns.

A process compiles a version of the patterns once, however many tasks it runs. It numbers groups itself; the numbers in
its results follow from the edges, and do not depend on the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from templates.catalog import Change, Edge
from xpath_stage.emissions import Ints
from xpath_stage.evaluator import XPathStage
from xpath_stage.limits import Limits
from xpath_stage.parse import DocumentError, ParsedDocument, StreamDocument
from xpath_stage.parse_many import parse_documents

if TYPE_CHECKING:
    from pyspark import Broadcast

FOUND = """r_bin ARRAY<STRUCT<grp: BIGINT, node1: BIGINT, node2: BIGINT>>,
r_doc ARRAY<STRUCT<node: BIGINT, strval: STRING>>, r_group ARRAY<STRUCT<grp: BIGINT, var1: INT, var2: INT>>,
error STRING"""
"""The columns that are added to each document: its rows of R_bin and R_doc, or the error why it cannot be read.

The number of a group follows from its edges. `r_group` has the edges of each group in some row of the frame, not
necessarily in the row that uses it.
"""

TEXTS = "text STRING, unread BINARY"
"""The columns that are added on demand: the document as it was read, or the bytes of one that cannot be read."""

Version = tuple[str, int]
"""The id of a stage, and the number of its broadcast."""

Patterns = tuple[Change, Limits]
"""All registered patterns, and the limits."""

_workers: dict[Version, _Worker] = {}
"""The evaluator of this process, of the version that was used last. There is at most one."""


def evaluated(
    version: Version,
    patterns: Broadcast[Patterns],
    trusted: bool,
    texts: bool,
    max_nodes: int | None,
    documents: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Evaluates batches of rows with `stream` and `xml`. Returns their other columns and those of FOUND, and of TEXTS
    if `texts`."""
    worker = _workers.get(version)
    if worker is None:
        _workers.clear()
        worker = _workers[version] = _Worker(*patterns.value)
    for batch in documents:
        yield worker.evaluate(batch, trusted, texts, max_nodes)


class _Worker:
    """The evaluator of a worker process, for one version of the patterns."""

    def __init__(self, change: Change, limits: Limits) -> None:
        self._stage = XPathStage(limits=limits)
        self._stage.add(change)
        self._edges: list[list[Edge]] = []
        self._keys: list[int] = []

    def evaluate(self, documents: pa.RecordBatch, trusted: bool, texts: bool, max_nodes: int | None) -> pa.RecordBatch:
        """The rows of a batch. Its first row has the edges of all groups."""
        errors: list[str | None] = [None] * len(documents)
        read: list[str | None] = [None] * len(documents)
        # The docid of a document is its index in the batch.
        trees = parse_documents((xml.as_py() or b"" for xml in documents["xml"]), trusted=trusted, max_nodes=max_nodes)
        found = self._stage.evaluate(_parsed(documents, trees, errors, read if texts else None))
        self._stage.finish_batch(committed=True)
        self._learn(found.r_group)
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
        if texts:
            columns["text"] = pa.array(read, pa.string())
            columns["unread"] = pc.if_else(columns["error"].is_valid(), documents["xml"], None)
        return pa.RecordBatch.from_pydict(columns)

    def _learn(self, groups: pa.Table) -> None:
        """Adds the groups that are new in this process."""
        for number, rows in groupby(tuples(groups), itemgetter(0)):
            assert number == len(self._keys), "groups are handed out in the order of their numbers"
            self._edges.append([(var1, var2) for _, var1, var2 in rows])
            self._keys.append(key_of(self._edges[-1]))


def _parsed(
    documents: pa.RecordBatch,
    trees: Iterable[ParsedDocument | DocumentError],
    errors: list[str | None],
    texts: list[str | None] | None,
) -> Iterator[StreamDocument]:
    """The documents that can be read, with their indices as docids. Writes the errors of the others to `errors`, and
    the text of those that can be read to `texts`."""
    for place, (stream, tree) in enumerate(zip(documents["stream"].to_pylist(), trees, strict=True)):
        if isinstance(tree, DocumentError):
            errors[place] = str(tree)
            continue
        if texts is not None:
            texts[place] = tree.xml()
        yield StreamDocument(place, stream, 0, 0, tree)


def _nested(number: int, places: Ints, columns: Mapping[str, Ints | pa.Array]) -> pa.ListArray:
    """Rows as `number` lists. `places` has the index of the list of each row, and is as long as each column."""
    order = pa.array(np.argsort(places, kind="stable"))
    rows = pa.StructArray.from_arrays([pa.array(column).take(order) for column in columns.values()], list(columns))
    offsets = np.cumsum([0, *np.bincount(places, minlength=number)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), rows)


def key_of(edges: Iterable[Edge]) -> int:
    """A number of a group that follows from its edges."""
    digest = blake2b(repr(sorted(edges)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def tuples(table: pa.Table) -> Iterator[tuple[int, ...]]:
    """The rows of a table."""
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
