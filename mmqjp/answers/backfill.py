"""Answers new queries over the documents that are kept: what these hold for them, and all pairs among them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from join_stage.batch_sql import TemplateTable
from join_stage.duckdb_engine import DuckDBEngine
from join_stage.joiner import JoinEngine, Matches
from join_stage.state_tables import by_edges
from mmqjp.documents.records import Records
from mmqjp.queries.model import Owner
from mmqjp.queries.registry import Registry
from mmqjp.state.join_state import JoinState, arriving
from mmqjp.tables.documents import tuples
from xpath_stage.evaluator import XPathStage


class Backfill:
    """Kept documents seen with the eyes of a few owners of rows, whose rows are joined apart from all others.

    The pairs are found in a join engine of their own, in memory, whatever the store's is. What the documents hold for
    the owners enters the store's join state too, so that documents to come meet it.
    """

    def __init__(
        self,
        owners: Collection[Owner],
        registry: Registry,
        state: JoinState,
        records: Records,
    ) -> None:
        self._registry, self._state, self._records = registry, state, records
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
            for docids in self._state.kept(self._streams):
                self._records.load(docids)
                witnesses = self._own_stage1.evaluate(arriving(self._records[docid]) for docid in docids)
                self._own_stage1.finish_batch(committed=True)
                self._own_store.begin()
                yield self._own_store.join(witnesses, docids[0], self._registry.scope)
                self._own_store.commit()
                self._state.extend(by_edges(self._own_store, witnesses.r_bin), witnesses.r_doc, witnesses.r_docts)
                self._records.rest()
        finally:
            self._own_stage1.close()
            self._own_store.close()


def known_tuples(store: JoinEngine, streams: Collection[str]) -> Iterator[tuple[str, tuple[int, ...], object]]:
    """The tuples of hidden streams that are kept: their stream, parts, and what is bound, as (docid, node)."""
    for row in tuples(store, streams).to_pylist():
        nodes = ((node & 0xFFFFFFFF, node >> 32) for node in row["bound_nodes"])
        yield row["stream"], tuple(row["parts"]), tuple(zip(row["bound_docids"], nodes, strict=True))
