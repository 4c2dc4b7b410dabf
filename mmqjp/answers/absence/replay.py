"""Replay: matches some rows of R_T in stored documents again, for what an engine has not seen or has dropped."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from join_stage.joiner import JoinEngine
from join_stage.signature.join import SignatureJoin
from mmqjp.answers.match import Match, matches_in
from mmqjp.answers.match_reader import MATCH_CHUNK
from mmqjp.documents.records import Records, kept_documents
from mmqjp.documents.watermarks import EARLIEST, LATEST
from mmqjp.queries.registry import Registry
from mmqjp.state.join_state import arriving
from xpath_stage.evaluator import XPathStage


def replayed(
    store: JoinEngine, registry: Registry, records: Records, rows: Collection[int], low: int, high: int = LATEST
) -> Iterator[Match]:
    """Yields the matches of rows that have no joins, in the stored documents that begin from `low` on and before
    `high`. A batch of documents is parsed at a time."""
    stage1, join = XPathStage(), SignatureJoin()
    needs = registry.catalog.needs_of(rows)
    stage1.add(needs)
    streams = sorted({step.stream for step in needs.steps})
    for row in needs.rows:
        join.put_rows(registry.catalog.templates[row.template], [row])
    try:
        for docids in kept_documents(store, streams, starts=range(max(low, EARLIEST), high)):
            witnesses = stage1.evaluate(map(arriving, records.parsed(docids)))
            stage1.finish_batch(committed=True)
            for chunk in join.join(witnesses, registry.scope).to_batches(max_chunksize=MATCH_CHUNK):
                yield from matches_in(chunk)
            records.release_trees()
    finally:
        stage1.close()
