"""Backfill: answers new queries over the documents that are already stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from join_stage.joiner import JoinEngine, Matches
from join_stage.signature.build_postings import groups_of
from join_stage.signature.flat_edges import flat
from join_stage.signature.join import SignatureJoin
from mmqjp.documents.records import Records
from mmqjp.queries.model import Owner
from mmqjp.queries.registry import Registry
from mmqjp.state.join_state import JoinState, arriving
from mmqjp.tables.documents import hidden_tuples
from templates.catalog import Edge
from xpath_stage.evaluator import XPathStage


class Backfill:
    """Evaluates stored documents for a few owners only, and joins their rows apart from all others.

    Pairs are found by the plan `signature` in memory, whatever plan and engine the store uses. The witnesses of the
    owners are also added to the join state of the store, so that later documents can match them.
    """

    def __init__(
        self,
        owners: Collection[Owner],
        registry: Registry,
        state: JoinState,
        records: Records,
    ) -> None:
        self._registry, self._state, self._records = registry, state, records
        self._own_stage1, self._own_join = XPathStage(), SignatureJoin()
        targets = [target for owner in owners for target in owner.targets]
        self._streams = sorted({stream for target in targets for stream in target.streams})
        needs = registry.catalog.needs_of(target.row for target in targets)
        self._own_stage1.add(needs)
        for row in needs.rows:
            self._own_join.put_rows(registry.catalog.templates[row.template], [row])

    def matches(self) -> Iterator[Matches]:
        """Yields the matches among stored documents, one batch of documents at a time."""
        edges: dict[int, list[Edge]] = {}
        try:
            for docids in self._state.kept_documents_of(self._streams):
                witnesses = self._own_stage1.evaluate(map(arriving, self._records.parsed(docids)))
                self._own_stage1.finish_batch(committed=True)
                yield self._own_join.join(witnesses, self._registry.scope)
                edges.update(groups_of(witnesses.r_group))
                self._state.extend(flat(witnesses.r_bin, edges), witnesses.r_doc, witnesses.r_docts)
                self._records.release_trees()
        finally:
            self._own_stage1.close()


def known_tuples(store: JoinEngine, streams: Collection[str]) -> Iterator[tuple[str, tuple[int, ...], object]]:
    """Yields the stored tuples of hidden streams as (stream, parts, bound), where `bound` has a (docid, node) for each
    variable."""
    for row in hidden_tuples(store, streams).to_pylist():
        nodes = ((node & 0xFFFFFFFF, node >> 32) for node in row["bound_nodes"])
        yield row["stream"], tuple(row["parts"]), tuple(zip(row["bound_docids"], nodes, strict=True))
