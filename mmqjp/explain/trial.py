"""Tries the queries of a script on a sample of documents: what their blocks match, what joins, and how many outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from mmqjp.answers.quota import MAX_OUTPUTS
from mmqjp.explain.block_trial import BlockTrial, try_block
from mmqjp.explain.join_trial import JoinTrial, try_joins
from mmqjp.explain.sample import Sample
from mmqjp.session import Session
from xscl import Query, Script
from xscl.algebra.normal import NEGATED
from xscl.scope import blocks
from xscl.syntax import Join, Window

MOST_QUERIES = 100
"""How many queries of a script are tried."""

MOST_COUNTED = 1_000
"""The outputs of a wider join are counted up to this number, which then means so many or more."""

MOST_PUBLISHED = 1_000
"""On how many documents of a PUBLISHed stream blocks are tried."""


@dataclass(frozen=True, slots=True)
class QueryTrial:
    """What a query found in a sample. `outputs` are those of the queries of its name that were run. If one of them was
    paused, `paused` says why.

    `without_window` counts its outputs without the window of its last join, and `in_any_order` those with JOIN in place
    of FOLLOWED BY, too: up to MOST_COUNTED. They are counted for a query without outputs only.
    """

    name: str
    query: Query
    blocks: list[BlockTrial]
    joins: list[JoinTrial]
    outputs: int
    paused: str = ""
    without_window: int = 0
    in_any_order: int = 0


def try_queries(script: Script, located: Iterable[Query], sample: Sample) -> tuple[list[QueryTrial], Sample]:
    """Tries the queries of a script. `located` are the first of them, with spans. Also returns the sample with what
    they PUBLISH."""
    namespaces = dict(script.namespaces)
    queries = list(located)
    upstream = _Upstream(script)
    numbers = sorted({*range(len(queries)), *upstream.of(queries)})
    part = replace(script, queries=tuple(script.queries[number] for number in numbers))
    names = script.names()
    renamed = dict(zip(part.names(), (names[number] for number in numbers), strict=True))
    run = _run(part, sample, keep={block.stream for query in queries for block in blocks(query.source)})
    outputs = {renamed[name]: count for name, count in run.outputs.items()}
    paused = {renamed[name]: reason for name, reason in run.paused.items()}
    everything = sample.with_published(run.published)
    found = [
        QueryTrial(
            name,
            query,
            [try_block(block, everything.of(block.stream), namespaces) for block in blocks(query.source)],
            try_joins(query.source, everything, namespaces),
            outputs.get(name, 0),
            paused.get(name, ""),
        )
        for name, query in zip(names, queries, strict=False)
    ]
    return _explained(found, script, upstream, sample), everything


class _Upstream:
    """Finds the queries of a script that write what others read."""

    def __init__(self, script: Script) -> None:
        self._queries = script.queries
        self._writers: dict[str, list[int]] = {}
        for number, query in enumerate(script.queries):
            if query.publish is not None:
                self._writers.setdefault(query.publish, []).append(number)

    def of(self, queries: Iterable[Query]) -> set[int]:
        """The numbers of all queries behind the streams that some queries read."""
        found: set[int] = set()
        met: set[str] = set()
        waiting = list(queries)
        while waiting:
            for stream in {block.stream for block in blocks(waiting.pop().source)} - met:
                met.add(stream)
                found.update(self._writers.get(stream, ()))
                waiting += (self._queries[number] for number in self._writers.get(stream, ()))
        return found


@dataclass
class _Run:
    """How many outputs queries had by name, why they were paused, and the documents of some streams they PUBLISH."""

    outputs: Counter[str] = field(default_factory=Counter)
    paused: dict[str, str] = field(default_factory=dict)
    published: dict[str, list[str]] = field(default_factory=dict)


def _run(script: Script, sample: Sample, *, keep: Container[str] = (), most_outputs: int = MAX_OUTPUTS) -> _Run:
    """Runs a script on a sample. A query with more than `most_outputs` is paused."""
    run = _Run(published={name: [] for name in script.published() if name in keep})
    with Session("duckdb", max_outputs=most_outputs) as engine:
        engine.ensure(script)
        for output in chain(engine.process(sample.documents), engine.finish()):
            run.outputs[output.query] += 1
            kept = run.published.get(output.query)
            if kept is not None and len(kept) < MOST_PUBLISHED:
                kept.append(output.xml)
        run.paused = engine.take_paused()
    return run


def _explained(trials: Sequence[QueryTrial], script: Script, upstream: _Upstream, sample: Sample) -> list[QueryTrial]:
    """The trials, those of queries without outputs with the numbers that wider joins would give. All wider joins run
    in one session, under names that nothing reads, with the queries behind the streams that they read."""
    empty = [trial for trial in trials if _might_join(trial)]
    if not empty:
        return list(trials)
    behind = [script.queries[number] for number in sorted(upstream.of(trial.query for trial in empty))]
    known = {block.stream for query in (*behind, *(t.query for t in empty)) for block in blocks(query.source)}
    known |= {query.publish for query in behind if query.publish is not None}
    fresh = (name for number in range(len(known) + 2 * len(empty)) if (name := f"wider{number}") not in known)
    names: list[tuple[str, str]] = []
    wider: list[Query] = []
    for trial in empty:
        assert isinstance(trial.query.source, Join)
        endless = replace(trial.query.source, window=Window(None))
        names.append((next(fresh), next(fresh)))
        for name, source in zip(names[-1], (endless, replace(endless, op="JOIN")), strict=True):
            wider.append(replace(trial.query, source=source, publish=name))
    run = _run(replace(script, queries=(*behind, *wider)), sample, most_outputs=MOST_COUNTED)
    counts = {
        id(trial): (_count(run, one), _count(run, other)) for trial, (one, other) in zip(empty, names, strict=True)
    }
    explained = []
    for trial in trials:
        ordered, either = counts.get(id(trial), (0, 0))
        explained.append(replace(trial, without_window=ordered, in_any_order=ordered or either))
    return explained


def _might_join(trial: QueryTrial) -> bool:
    """Whether a join without outputs may have some if it were wider."""
    possible = all(block.matched for block in trial.blocks) and all(join.shared for join in trial.joins)
    source = trial.query.source
    is_join = isinstance(source, Join) and source.op not in NEGATED
    return possible and not trial.outputs and not trial.paused and is_join


def _count(run: _Run, name: str) -> int:
    """The outputs of a query, at most MOST_COUNTED. Those of a paused query may be none: the next would be too many."""
    too_many = run.paused.get(name, "").startswith(f"more than {MOST_COUNTED:,} matches in ")
    return MOST_COUNTED if too_many else run.outputs[name]
