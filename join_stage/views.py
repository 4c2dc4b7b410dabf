"""The engine-independent part of the `views` plan (thesis 6.5): the SQL of slices and their joins, and the cache bound.
A slice is R_L,s of the thesis (6.5): the rows of R_doc with one string value, joined with R_bin on node = node2, with
the stream and times of their document. The view cache has complete slices: all rows of both for the value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa

from common.bounds import INFINITE
from join_stage.protocol import APART, SPAN, Orientation, TemplateTable
from templates.catalog import TemplateRow
from templates.graph import Shape

CACHE_BYTES = 256 << 20
"""Maximum bytes of cached slices between batches; a batch may use more."""

ROW_BYTES = 72
"""Bytes of a row of a slice: nine columns, uncompressed."""

VALUE_BYTES = 64
"""Approximate bytes of a cached value beside its text and slice."""

SLICE = pa.schema(
    [
        ("value", pa.int64()),
        ("docid", pa.int64()),
        ("var1", pa.int32()),
        ("var2", pa.int32()),
        ("node1", pa.int64()),
        ("node2", pa.int64()),
        ("stream", pa.string()),
        ("t0", pa.int64()),
        ("t1", pa.int64()),
    ]
)
"""Rows of slices. `value` numbers the string value, in the cache and in a batch."""

JOINED_EDGES = pa.schema([(name, pa.int32()) for name in ("var1", "var2", "var3", "var4")])


class JoinedEdges:
    """The pairs of edges, left and right, that the value joins of the rows of R_T join."""

    def __init__(self) -> None:
        self._variables: dict[tuple[int, int], tuple[int, ...]] = {}
        self._users: Counter[tuple[int, ...]] = Counter()
        self._table: pa.Table | None = None

    def put(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        """Adds rows of a template, replacing rows with the same id."""
        self.drop(template, rows)
        for row in rows:
            self._variables[template.number, row.id] = row.variables
            self._users.update(_edge_pairs(template.shape, row.variables))

    def drop(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        self._table = None
        for row in rows:
            variables = self._variables.pop((template.number, row.id), None)
            for pair in () if variables is None else _edge_pairs(template.shape, variables):
                self._users[pair] -= 1
                if not self._users[pair]:
                    del self._users[pair]

    def table(self) -> pa.Table:
        if self._table is None:
            columns = list(zip(*self._users, strict=True)) or [()] * len(JOINED_EDGES)
            self._table = pa.table([pa.array(column, pa.int32()) for column in columns], schema=JOINED_EDGES)
        return self._table


def _edge_pairs(shape: Shape, variables: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for join in shape.joins:
        yield tuple(variables[node] for leaf in join for node in (_parent(shape, leaf), leaf))


def _parent(shape: Shape, leaf: int) -> int:
    parent = shape.parents[leaf]
    return leaf if parent is None else parent


def slices_statement(values: str, suffix: str) -> str:
    """The slices of the values in `values` (strval, value). `suffix` ends the names of R_doc, R_bin and R_docTS."""
    # The hint, which is a comment to DuckDB, spares Spark a shuffle of R_bin: few rows have these values.
    return f"""SELECT /*+ BROADCAST(n) */ n.value, n.docid, b.var1, b.var2, b.node1, b.node2, n.stream, n.t0, n.t1
FROM r_bin{suffix} b JOIN (
  SELECT m.value, m.docid, m.node, m.stream, t.t0, t.t1 FROM r_docts{suffix} t JOIN (
    SELECT v.value, d.docid, d.node, d.stream FROM r_doc{suffix} d JOIN {values} v ON v.strval = d.strval
  ) m ON m.docid = t.docid
) n ON n.docid = b.docid AND n.node = b.node2"""


def joined_slices_statement(side: Orientation, window: int, *, many: bool) -> str:
    """R_LR: pairs of rows of `slices`, left and right, with equal value, edges that some row of R_T joins, and
    documents that some query may join. With `many`, nodes may have several values, and each pair occurs once. The
    documents, `span` and `apart` are as in R_vj."""
    # All conditions on the left side come before the join with the right side, which makes the many pairs.
    within = "" if window == INFINITE else f" AND {SPAN} <= {window}"
    return f"""SELECT {"DISTINCT " if many else ""}l.docid AS docid1, l.var1, l.var2, l.node1, l.node2,
  r.docid AS docid2, r.var1 AS var3, r.var2 AS var4, r.node1 AS node3, r.node2 AS node4,
  {SPAN} AS span, {APART} AS apart
FROM slices{side.left} l JOIN joined_edges e ON e.var1 = l.var1 AND e.var2 = l.var2
JOIN joined_streams s ON s.stream1 = l.stream
JOIN slices{side.right} r ON r.value = l.value AND r.var1 = e.var3 AND r.var2 = e.var4 AND r.stream = s.stream2
WHERE l.docid <> r.docid{within}"""
