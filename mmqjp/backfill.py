"""Answers new queries over the documents that are kept: what these hold for them, and all pairs among them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa

from join_stage.duckdb_engine import DuckDBEngine
from join_stage.engine import JoinEngine, Matches
from join_stage.plan import TemplateTable
from mmqjp.records import Records
from mmqjp.registry import Registry
from mmqjp.subscriptions import HiddenStream, Subscription
from templates.witness import R_BIN, Witnesses
from xpath_stage.evaluator import XPathStage
from xpath_stage.parse import Arriving

DOCUMENTS, CHARACTERS = 5_000, 16 << 20
"""Documents that are read at a time, and their text: all of them are in memory, parsed."""

_MISSING = {
    "r_bin": ("docid", "var1", "var2", "node1", "node2"),
    "r_doc": ("docid", "node"),
    "r_docts": ("docid",),
}
"""By which columns a row of the join state is found there."""


class Backfill:
    """Kept documents seen with the eyes of a few owners of rows, whose rows are joined apart from all others.

    The pairs are found in a join engine of their own, in memory, whatever the store's is. What the documents hold for
    the owners enters the store's join state too, so that documents to come meet it.
    """

    def __init__(
        self,
        owners: Collection[Subscription | HiddenStream],
        registry: Registry,
        stage1: XPathStage,
        store: JoinEngine,
        records: Records,
    ) -> None:
        self._registry, self._stage1, self._store, self._records = registry, stage1, store, records
        self._own_stage1, self._own_store = XPathStage(), DuckDBEngine()
        targets = [target for owner in owners for target in owner.targets]
        self._streams = sorted({stream for target in targets for stream in target.streams})
        needs = registry.catalog.needs_of(target.row for target in targets)
        self._own_stage1.add(needs)
        for row in needs.rows:
            self._own_store.put_rows(TemplateTable(row.template, registry.catalog.templates[row.template]), [row])

    def matches(self) -> Iterator[Matches]:
        """What the documents complete for the owners, some documents after the other."""
        try:
            for docids in self._docids():
                self._records.load(docids)
                witnesses = self._own_stage1.evaluate(map(self._document, docids))
                self._own_stage1.finish_batch(committed=True)
                self._own_store.begin()
                yield self._own_store.join(witnesses, docids[0], self._registry.scope)
                self._own_store.commit()
                self._extend(witnesses)
                self._records.rest()
        finally:
            self._own_stage1.close()
            self._own_store.close()

    def _docids(self) -> Iterator[list[int]]:
        """The documents of the streams that the owners read, oldest first."""
        streams = pa.table({"stream": self._streams})
        sql = """SELECT d.docid, length(d.xml) AS size FROM documents d JOIN streams s ON d.stream = s.stream
ORDER BY d.docid"""
        docids: list[int] = []
        size = 0
        for row in self._store.select(sql, {"streams": streams}).to_pylist():
            docids.append(row["docid"])
            size += row["size"]
            if len(docids) >= DOCUMENTS or size >= CHARACTERS:
                yield docids
                docids, size = [], 0
        if docids:
            yield docids

    def _document(self, docid: int) -> Arriving:
        record = self._records[docid]
        return docid, record.stream, record.t0, record.t1, record.tree

    def _extend(self, witnesses: Witnesses) -> None:
        """Adds to the store's join state what it lacks of the witnesses: others may have asked for the same."""
        flat = self._own_store.select(
            "SELECT docid, var1, var2, node1, node2 FROM w JOIN groups USING (grp)", {"w": witnesses.r_bin}
        )
        missing = {
            name: self._store.select(
                f"SELECT f.* FROM found f LEFT JOIN {name} s ON {' AND '.join(f'f.{c} = s.{c}' for c in columns)} "
                "WHERE s.docid IS NULL",
                {"found": rows},
            )
            for (name, columns), rows in zip(_MISSING.items(), (flat, witnesses.r_doc, witnesses.r_docts), strict=True)
        }
        # Each edge is a group of its own: which edges bind together was not known when the others came.
        edges = zip(*(missing["r_bin"][name].to_pylist() for name in ("var1", "var2")), strict=True)
        numbers = [self._stage1.group(edge) for edge in edges]
        grouped = missing["r_bin"].select(["docid", "node1", "node2"])
        r_bin = grouped.add_column(1, "grp", pa.array(numbers, pa.int32())).cast(R_BIN)
        self._store.extend(Witnesses(r_bin, self._stage1.new_groups(), missing["r_doc"], missing["r_docts"]))


def known_tuples(store: JoinEngine, streams: Collection[str]) -> Iterator[tuple[str, tuple[int, ...], object]]:
    """The tuples of hidden streams that are kept: their stream, parts, and what is bound, as (docid, node)."""
    views = {"streams": pa.table({"stream": pa.array(sorted(streams), pa.string())})}
    sql = (
        "SELECT d.stream, d.parts, d.bound_docids, d.bound_nodes FROM documents d JOIN streams s ON d.stream = s.stream"
    )
    for row in store.select(sql, views).to_pylist():
        nodes = ((node & 0xFFFFFFFF, node >> 32) for node in row["bound_nodes"])
        yield row["stream"], tuple(row["parts"]), tuple(zip(row["bound_docids"], nodes, strict=True))
