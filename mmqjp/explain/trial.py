"""Tries the queries of a script on a sample of documents: counts their outputs, and what passes each stage. Renders the
counts as rows, with a note for each stage that nothing passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TypeVar

from common.tools import gathered, reachable
from feeds.documents import Document, Reject, SourceItem, Visit
from mmqjp.documents.record import record_of
from mmqjp.engine import Session
from mmqjp.explain.evidence import Evidence, Stage, steps_for
from mmqjp.explain.retrace.stages import DocumentEvents
from mmqjp.explain.terms import ReadableQuery, TooLong
from mmqjp.process import printable_line
from xpath_stage.documents import DocumentError, parse_document
from xscl.check_expressions import blocks
from xscl.parser import located_queries
from xscl.syntax import EventQuery, Query, Script
from xscl.text import Lines, Problem, XsclError

T = TypeVar("T")

MOST_TRIED_QUERIES, MOST_PUBLISHED, MOST_BYTES = 100, 1_000, 32 << 20
"""Maximum number of a script's queries tried, of documents of a PUBLISHed stream for that, and of bytes of a sample."""


@dataclass
class Sample:
    """Readable documents, each once. `refused` counts unreadable ones."""

    documents: list[Document] = field(default_factory=list)
    refused: int = 0

    @property
    def streams(self) -> Counter[str]:
        return Counter(document.stream for document in self.documents)


def sample_of(items: Iterable[SourceItem], most: int) -> Sample:
    sample, met, size = Sample(), set[tuple[str, str]](), 0
    for item in items:
        if isinstance(item, Reject):
            sample.refused += 1
            continue
        if isinstance(item, Visit) or (item.stream, item.id) in met:
            continue
        met.add((item.stream, item.id))
        xml = item.xml_bytes()
        try:
            parse_document(xml)
        except DocumentError:
            sample.refused += 1
            continue
        sample.documents.append(item)
        size += len(xml)
        if len(sample.documents) == most or size > MOST_BYTES:
            break
    return sample


def in_turns(sources: Iterable[Iterable[T]]) -> Iterator[T]:
    """Yields items of the sources round-robin, until all are empty: a sample then has some of each."""
    left = [iter(source) for source in sources]
    while left:
        going = []
        for source in left:
            for item in islice(source, 1):
                yield item
                going.append(source)
        left = going


@dataclass(frozen=True, slots=True)
class QueryTrial:
    """The result of a query, or of a definition of events, on a sample: its outputs, with those of other queries of its
    name, or its events; and the stages, none for an event query. `paused` says why it was paused, `left_out` counts
    documents that are too large to search."""

    name: str
    found: int
    noun: str = "outputs"
    paused: str = ""
    query: ReadableQuery | None = None
    stages: tuple[Stage, ...] = ()
    left_out: int = 0


def try_queries(script: Script, text: str, sample: Sample) -> list[QueryTrial]:
    """Tries the first queries of a script, which has this text, and all its event statements."""
    queries = list(located_queries(text, range(min(len(script.queries), MOST_TRIED_QUERIES))))
    part = script if script.has_events else _with_upstream(script, len(queries))
    namespaces = dict(script.namespaces)
    with Session("duckdb", settle=None) as engine:
        engine.ensure(part)
        outputs = Counter(one.query for one in chain(engine.process(sample.documents), engine.finish()))
        paused = engine.take_paused()
        records = list(map(record_of, engine.sql(_DOCUMENTS, trusted=True).to_pylist()))
        defined = {one.name: DocumentEvents(one) for one in engine.registry.events.definitions.values()}
    events = Counter[str]()
    tried = [ReadableQuery.in_place(text, query, namespaces) for query in queries]
    tried += [ReadableQuery.in_place(text, Query(one.block), namespaces) for one in script.definitions]
    evidences = [Evidence(query, steps=steps_for(len(tried))) for query in tried]
    for record in records:
        for evidence in evidences:
            evidence.look(record, range(len(evidence.query.blocks)))
        for name, one in defined.items():
            with suppress(TooLong):
                events[name] += len(one.of(record))
        record.__dict__.pop("tree", None)

    named = zip(script.all_queries, script.names(), strict=True)
    every = [(query, QueryTrial(name, outputs[name], "outputs", paused.get(name, ""))) for query, name in named]
    trials = [trial for query, trial in every if isinstance(query, Query)][: len(queries)]
    trials += [QueryTrial(one.name, events[one.name], "events") for one in script.definitions]
    trials = list(map(_told, trials, tried, evidences))
    return trials + [trial for query, trial in every if isinstance(query, EventQuery)]


_DOCUMENTS = f"""SELECT * FROM (
    SELECT *, row_number() OVER (PARTITION BY kind, stream ORDER BY docid) AS place FROM documents
) WHERE kind = 'external' OR kind = 'published' AND place <= {MOST_PUBLISHED} ORDER BY docid"""


def _told(trial: QueryTrial, query: ReadableQuery, evidence: Evidence) -> QueryTrial:
    """Adds the stages of a query; of an absence those of a partner, and those of blocks that are none of these."""
    found = evidence.result()
    stages = list((found.partners or found).stages)
    for block in evidence.blocks:
        if all(stage.counted.block != block.number + 1 for stage in stages):
            stages += block.told()
    return replace(trial, query=query, stages=tuple(stages), left_out=found.left_out)


def _with_upstream(script: Script, first: int) -> Script:
    """A script's first queries, whose names stay, and those that PUBLISH what they read."""
    writers = gathered((query.publish, number) for number, query in enumerate(script.queries))

    def upstream(number: int) -> list[int]:
        return [writer for block in blocks(script.queries[number].source) for writer in writers.get(block.stream, ())]

    found = reachable(range(first), upstream)
    return Script(tuple(script.queries[number] for number in sorted(found)), script.namespaces)


def table_rows(trials: Sequence[QueryTrial]) -> Iterator[tuple[str, str, str]]:
    for trial in trials:
        paused = f", then paused: {printable_line(trial.paused)}" if trial.paused else ""
        left_out = f"; {trial.left_out:,} documents are too large to search" if trial.left_out else ""
        yield trial.name, trial.noun, f"{trial.found:,}{paused}{left_out}"
        stages = [stage.counted for stage in trial.stages]
        for number, block in enumerate(trial.query.blocks if trial.query else (), 1):
            counts = [stage.found for stage in stages if stage.block == number and stage.kind != "asked"]
            if counts and trial.query:
                yield "", trial.query.part(block.span), f"{counts[-1]:,} of {counts[0]:,} documents"
        yield from (("", stage.part, stage.count_text) for stage in stages if not stage.block)


def trial_notes(trials: Sequence[QueryTrial], text: str) -> list[XsclError]:
    """Returns a note for each stage of a query that nothing passes, in text order."""
    lines, found = Lines(text), list[XsclError]()
    for stage in (stage for trial in trials for stage in trial.stages if not stage.counted.found):
        shown = stage.shown()
        is_named = shown.block or shown.message.startswith(shown.part)
        message = shown.message if is_named else f"{shown.part}: {shown.message}"
        found.append(XsclError(Problem(message, stage.span, shown.hint), lines))
    return sorted(found, key=lambda note: (note.span.start, note.span.end))
