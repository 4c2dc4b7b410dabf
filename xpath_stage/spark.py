"""Stage 1 on Spark's executors: the same evaluator inside `mapInArrow`, its patterns broadcast once a version.

The Python workers import this module: on a cluster the wheel that the driver runs must be installed on them too. A
worker process compiles a version of the patterns once, however many tasks it runs. It numbers groups, and chains of
functions, by itself; the numbers in what it hands out do not depend on who found it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from templates.catalog import Change, Edge, Step
from templates.witness import R_BIN, R_DOC, R_DOCTS, Witnesses, node_id
from xpath_stage.emissions import Functions, Ints
from xpath_stage.evaluator import XPathStage
from xpath_stage.limits import DEFAULT, Limits
from xpath_stage.parse import Arriving, DocumentError
from xpath_stage.parse_many import parse_documents

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


FRAME = """docid BIGINT, stream STRING, t0 BIGINT, t1 BIGINT,
r_bin ARRAY<STRUCT<grp: BIGINT, node1: BIGINT, node2: BIGINT>>, r_doc ARRAY<STRUCT<node: BIGINT, strval: STRING>>,
r_group ARRAY<STRUCT<grp: BIGINT, var1: INT, var2: INT>>, error STRING"""
"""What documents become, a row each: the rows of R_bin and R_doc that are about it, or why it cannot be read.

A group's number follows from its edges. `r_group` has them, for each group of the frame in some row, not in its own.
"""

_PLAIN = node_id((1 << 32) - 1, (1 << 20) - 1)
"""The bits of a node's id that do not tell by which chain of functions its value is derived."""

_SETTINGS = {
    # Past it, a batch is cut by thousands of documents, whatever their sizes and the number of cores.
    "spark.sql.execution.arrow.localRelationThreshold": "256m",
}

Version = tuple[str, int]
"""A stage, and how many broadcasts it has made."""

Patterns = tuple[Change, dict[Functions, int], Limits]
"""All that is registered, the driver's bits in the ids of values that chains of functions derive, and limits."""


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
    ) -> None:
        super().__init__(groups, limits=limits)
        self._session = session.newSession()
        for key, value in _SETTINGS.items():
            self._session.conf.set(key, value)
        self._spread = spread
        self._registered = _Registered(session.sparkContext, limits)
        self._numbers: dict[int, int] = {}
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
        self._registered.drop()

    def frame(self, documents: DataFrame) -> DataFrame:
        """What the patterns that are registered now find in rows (docid BIGINT, stream STRING, t0 BIGINT, t1 BIGINT,
        xml BINARY), as `FRAME` says."""
        return _mapped(documents, *self._registered.lend(), trusted=False)

    def evaluate(self, documents: Iterable[Arriving]) -> Witnesses:
        batch = list(documents)
        if sum(tree.size for *_, tree in batch) <= self._spread:
            return super().evaluate(batch)
        self.spread_documents += len(batch)
        frame = self._session.createDataFrame(_table(batch))
        return self._witnesses(_mapped(frame, *self._registered.broadcast(), trusted=True).toArrow())

    def _witnesses(self, found: pa.Table) -> Witnesses:
        """The witness relations that a frame holds, with this process's numbers of the groups."""
        errors = found["error"].drop_null()
        assert not len(errors), f"a document that was read here cannot be read there: {errors[0]}"
        self._learn(_unnested(found, "r_group"))
        keys, numbers = (pa.array(list(column), pa.int64()) for column in (self._numbers, self._numbers.values()))
        r_bin = _unnested(found, "r_bin", "docid")
        grp = numbers.take(pc.index_in(r_bin["grp"], keys))
        return Witnesses(
            r_bin.set_column(1, "grp", grp).cast(R_BIN),
            self.new_groups(),
            _unnested(found, "r_doc", "docid", "stream").select(R_DOC.names).cast(R_DOC),
            found.select(R_DOCTS.names).cast(R_DOCTS),
        )

    def _learn(self, groups: pa.Table) -> None:
        """Numbers the groups that are new here, in an order that does not depend on who found them."""
        known = pc.is_in(groups["grp"], pa.array(list(self._numbers), pa.int64()))
        found: dict[int, set[Edge]] = {}
        for key, var1, var2 in _tuples(groups.filter(pc.invert(known))):
            found.setdefault(key, set()).add((var1, var2))
        for key, edges in sorted(found.items()):
            assert _key(edges) == key, "two groups have one key"
            self._numbers[key] = self._groups.number(frozenset(edges))


def _mapped(documents: DataFrame, version: Version, patterns: Broadcast[Patterns], *, trusted: bool) -> DataFrame:
    return documents.mapInArrow(partial(evaluated, version, patterns, trusted), FRAME)


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


def _tuples(table: pa.Table) -> Iterator[tuple[int, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _key(edges: Iterable[Edge]) -> int:
    """A group's number that follows from its edges."""
    digest = blake2b(repr(sorted(edges)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class _Registered:
    """What is registered, and its broadcast: made when it is asked for and there is none since the last change."""

    def __init__(self, context: SparkContext, limits: Limits) -> None:
        self._context, self._stage, self._limits = context, uuid4().hex, limits
        self._steps: dict[int, Step] = {}
        self._edges: set[Edge] = set()
        self._values: set[int] = set()
        self._broadcast: Broadcast[Patterns] | None = None
        self._lent = False
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
            chains = {step.node.functions for step in change.steps} - {()}
            bits = {chain: node_id(0, 0, chain) for chain in chains}
            self._broadcast = self._context.broadcast((change, bits, self._limits))
        return (self._stage, self.version), self._broadcast

    def lend(self) -> tuple[Version, Broadcast[Patterns]]:
        """The same, for use at any time."""
        lent = self.broadcast()
        self._lent = True
        return lent

    def drop(self) -> None:
        """Lets go of the broadcast. One that was lent is sent again if it is still used; any other is destroyed."""
        # A context that was stopped has taken its broadcasts along; their numbers may mean others by now.
        if self._broadcast is not None and self._context._active_spark_context is self._context:
            if self._lent:
                self._broadcast.unpersist()
            else:
                self._broadcast.destroy()
        self._broadcast, self._lent = None, False

    def _changed(self, change: Change) -> None:
        if change.steps or change.edges or change.values:
            self.drop()


# ------------------------------------------------------------ in a worker process

_workers: dict[Version, _Worker] = {}
"""The evaluator of this process: the last version's that it was asked for, and no other."""


def evaluated(
    version: Version, patterns: Broadcast[Patterns], trusted: bool, documents: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Rows of `FRAME` for batches of documents."""
    worker = _workers.get(version)
    if worker is None:
        _workers.clear()
        worker = _workers[version] = _Worker(*patterns.value)
    for batch in documents:
        yield worker.evaluate(batch, trusted)


class _Worker:
    """The evaluator of a process that Spark started, for one version of the patterns."""

    def __init__(self, change: Change, chains: Mapping[Functions, int], limits: Limits) -> None:
        self._stage = XPathStage(limits=limits)
        self._stage.add(change)
        bits_of = {node_id(0, 0, chain): bits for chain, bits in chains.items()}
        self._moved = {ours: bits for ours, bits in bits_of.items() if ours != bits}
        self._edges: list[list[Edge]] = []
        self._keys: list[int] = []

    def evaluate(self, documents: pa.RecordBatch, trusted: bool) -> pa.RecordBatch:
        """Rows of `FRAME`, the first with the edges of all groups."""
        errors: list[str | None] = [None] * len(documents)
        # Documents are numbered by their places here, so that these are the docids of what is found.
        found = self._stage.evaluate(_parsed(documents, trusted, errors))
        self._stage.finish_batch(committed=True)
        self._learn(found.r_group)
        grp = found.r_bin["grp"].to_numpy()
        edges = [(0, self._keys[number], *edge) for number in np.unique(grp) for edge in self._edges[number]]
        r_bin = {"grp": np.array(self._keys, np.int64)[grp]}
        r_bin |= {name: self._theirs(found.r_bin[name]) for name in ("node1", "node2")}
        r_doc = {"node": self._theirs(found.r_doc["node"]), "strval": found.r_doc["strval"].combine_chunks()}
        first, key, var1, var2 = np.array(edges, np.int64).reshape(-1, 4).T
        r_group = {"grp": key, "var1": var1.astype(np.int32), "var2": var2.astype(np.int32)}
        columns = {name: documents[name] for name in ("docid", "stream", "t0", "t1")}
        columns["r_bin"] = _nested(len(documents), found.r_bin["docid"].to_numpy(), r_bin)
        columns["r_doc"] = _nested(len(documents), found.r_doc["docid"].to_numpy(), r_doc)
        columns["r_group"] = _nested(len(documents), first, r_group)
        return pa.RecordBatch.from_pydict(columns | {"error": pa.array(errors, pa.string())})

    def _learn(self, groups: pa.Table) -> None:
        """Takes in the groups that are new in this process."""
        for number, rows in groupby(_tuples(groups), itemgetter(0)):
            assert number == len(self._keys), "groups are handed out in the order of their numbers"
            self._edges.append([(var1, var2) for _, var1, var2 in rows])
            self._keys.append(_key(self._edges[-1]))

    def _theirs(self, nodes: pa.ChunkedArray) -> Ints:
        """Ids of nodes with the driver's bits for chains of functions."""
        own: Ints = nodes.to_numpy()
        if not self._moved:
            return own
        theirs, chains = own.copy(), own & ~_PLAIN
        for ours, bits in self._moved.items():
            theirs[chains == ours] += bits - ours
        return theirs


def _parsed(documents: pa.RecordBatch, trusted: bool, errors: list[str | None]) -> Iterator[Arriving]:
    """The documents that can be read, numbered by their places; notes in `errors` why the others cannot."""
    trees = parse_documents((xml.as_py() or b"" for xml in documents["xml"]), trusted=trusted)
    for place, (stream, tree) in enumerate(zip(documents["stream"].to_pylist(), trees, strict=True)):
        if isinstance(tree, DocumentError):
            errors[place] = str(tree)
        else:
            yield place, stream, 0, 0, tree


def _nested(number: int, places: Ints, columns: Mapping[str, Ints | pa.Array]) -> pa.ListArray:
    """Rows as lists, one for each of a number of places."""
    order = pa.array(np.argsort(places, kind="stable"))
    rows = pa.StructArray.from_arrays([pa.array(column).take(order) for column in columns.values()], list(columns))
    offsets = np.cumsum([0, *np.bincount(places, minlength=number)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), rows)
