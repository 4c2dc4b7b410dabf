"""Tries the queries of a script on a sample of documents: what their blocks match, what joins, and how many outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mmqjp.explain.block_trial import BlockTrial, try_block
from mmqjp.explain.join_trial import JoinTrial, try_joins
from mmqjp.explain.sample import Sample
from mmqjp.session import Session
from xscl import Query, Script
from xscl.scope import blocks
from xscl.syntax import Join, Window

MOST_QUERIES = 100
"""How many queries of a script are tried."""


@dataclass(frozen=True, slots=True)
class QueryTrial:
    """What a query found in a sample. `outputs` are those of all queries of its name.

    `without_window` counts its outputs without the window of its last join, and `in_any_order` those with JOIN in place
    of FOLLOWED BY, too. They are counted for a query without outputs only.
    """

    name: str
    query: Query
    blocks: list[BlockTrial]
    joins: list[JoinTrial]
    outputs: int
    without_window: int = 0
    in_any_order: int = 0


def try_queries(script: Script, located: Iterable[Query], sample: Sample) -> tuple[list[QueryTrial], Sample]:
    """Tries the queries of a script. `located` are the first of them, with spans. Also returns the sample with what
    they PUBLISH."""
    namespaces = dict(script.namespaces)
    outputs, published = _outputs(script, sample)
    everything = sample.with_published(published)
    found = []
    for number, (name, query) in enumerate(zip(script.names(), located, strict=False)):
        trial = QueryTrial(
            name,
            query,
            [try_block(block, everything.of(block.stream), namespaces) for block in blocks(query.source)],
            try_joins(query.source, everything, namespaces),
            outputs[name],
        )
        found.append(_explained(trial, number, script, sample))
    return found, everything


def _outputs(script: Script, sample: Sample) -> tuple[Counter[str], Mapping[str, list[str]]]:
    """How many outputs the queries of each name have, and the documents of each stream that is PUBLISHed."""
    counts: Counter[str] = Counter()
    published: dict[str, list[str]] = {name: [] for name in script.published()}
    with Session("duckdb") as engine:
        engine.ensure(script)
        for output in engine.process(sample.documents):
            counts[output.query] += 1
            if output.query in published:
                published[output.query].append(output.xml)
    return counts, published


def _explained(trial: QueryTrial, number: int, script: Script, sample: Sample) -> QueryTrial:
    """The trial of a query without outputs, with those that wider joins would give."""
    source = trial.query.source
    possible = all(block.matched for block in trial.blocks) and all(join.shared for join in trial.joins)
    if trial.outputs or not isinstance(source, Join) or not possible:
        return trial

    def count(changed: Join) -> int:
        queries = list(script.queries)
        queries[number] = replace(trial.query, source=changed, publish=trial.name)
        return _outputs(replace(script, queries=tuple(queries)), sample)[0][trial.name]

    endless = replace(source, window=Window(None))
    ordered = count(endless)
    return replace(trial, without_window=ordered, in_any_order=ordered or count(replace(endless, op="JOIN")))
