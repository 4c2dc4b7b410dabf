"""What a Python process of Spark's executors does for stage 1: it evaluates documents by a version of the patterns.

A process compiles a version of the patterns once, however many tasks it runs. It numbers groups by itself; the numbers
in what it hands out do not depend on who found it.
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
"""What documents become, beside the other columns of their rows: the rows of R_bin and R_doc that are about them, or
why they cannot be read.

A group's number follows from its edges. `r_group` has them, for each group of the frame in some row, not in its own.
"""

TEXTS = "text STRING, unread BINARY"
"""And, where they are wanted, the document as it was read, or the bytes of one that could not be."""

Version = tuple[str, int]
"""A stage, and how many broadcasts it has made."""

Patterns = tuple[Change, Limits]
"""All that is registered, and limits."""

_workers: dict[Version, _Worker] = {}
"""The evaluator of this process: the last version's that it was asked for, and no other."""


def evaluated(
    version: Version,
    patterns: Broadcast[Patterns],
    trusted: bool,
    texts: bool,
    max_nodes: int | None,
    documents: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """For batches of rows with `stream` and `xml` the others of their columns and those of `FOUND`, and of `TEXTS` if
    these are wanted."""
    worker = _workers.get(version)
    if worker is None:
        _workers.clear()
        worker = _workers[version] = _Worker(*patterns.value)
    for batch in documents:
        yield worker.evaluate(batch, trusted, texts, max_nodes)


class _Worker:
    """The evaluator of a process that Spark started, for one version of the patterns."""

    def __init__(self, change: Change, limits: Limits) -> None:
        self._stage = XPathStage(limits=limits)
        self._stage.add(change)
        self._edges: list[list[Edge]] = []
        self._keys: list[int] = []

    def evaluate(self, documents: pa.RecordBatch, trusted: bool, texts: bool, max_nodes: int | None) -> pa.RecordBatch:
        """The rows of a batch, the first with the edges of all groups."""
        errors: list[str | None] = [None] * len(documents)
        read: list[str | None] = [None] * len(documents)
        # Documents are numbered by their places here, so that these are the docids of what is found.
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
        """Takes in the groups that are new in this process."""
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
    """The documents that can be read, numbered by their places; notes in `errors` why the others cannot, and in
    `texts` what was read."""
    for place, (stream, tree) in enumerate(zip(documents["stream"].to_pylist(), trees, strict=True)):
        if isinstance(tree, DocumentError):
            errors[place] = str(tree)
            continue
        if texts is not None:
            texts[place] = tree.xml()
        yield StreamDocument(place, stream, 0, 0, tree)


def _nested(number: int, places: Ints, columns: Mapping[str, Ints | pa.Array]) -> pa.ListArray:
    """Rows as lists, one for each of a number of places."""
    order = pa.array(np.argsort(places, kind="stable"))
    rows = pa.StructArray.from_arrays([pa.array(column).take(order) for column in columns.values()], list(columns))
    offsets = np.cumsum([0, *np.bincount(places, minlength=number)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), rows)


def key_of(edges: Iterable[Edge]) -> int:
    """A group's number that follows from its edges."""
    digest = blake2b(repr(sorted(edges)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def tuples(table: pa.Table) -> Iterator[tuple[int, ...]]:
    """A table's rows."""
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
