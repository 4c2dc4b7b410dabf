"""Explains why documents give no output of a query, and counts how many pass each stage (the funnel), for joins
(missing blocks are filled from stored documents), absences, event queries and PATTERN (events are recomputed)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, islice, permutations, product
from typing import Any

from common.bounds import EARLIEST
from common.dates import iso_utc
from common.tools import JsonRecord, gathered
from mmqjp.answers.absence import ABSENCES, AbsenceGroup, Decided, LeftMatch
from mmqjp.answers.bindings import BoundValue, text_of_operand
from mmqjp.answers.operators import OnceKey, once_key
from mmqjp.documents.record import Inputs, Record, record_of
from mmqjp.explain.evidence import STEPS, Evidence, EvidenceRow, Passing, steps_for
from mmqjp.explain.reasons import known_at
from mmqjp.explain.retrace.stages import Evaluator, Trace
from mmqjp.explain.retrace.values import Event, MatchBindings, event_text, given_parts
from mmqjp.explain.terms import Exhausted, FunnelStage, ReadableQuery, StepBudget
from mmqjp.present import output_why, query_lookup
from mmqjp.present.item import Near, ShownItem, WhyNot, record_items
from mmqjp.present.newest import StoryLists, stored_parts
from mmqjp.present.recent import RememberedDocuments
from mmqjp.queries.model import JoinSubscription, choice_of, is_event_form
from mmqjp.tables import lookup
from mmqjp.tables.lookup import SelectFn
from xscl.algebra.events import NearPattern, Pattern, Stories, Together, read_by
from xscl.algebra.joins import Term
from xscl.story_queries import PAIRS
from xscl.syntax import Join
from xscl.text import did_you_mean

MOST_ORDERS = 3
"""Queries with at most this many blocks try documents in every order, others only in the given one."""

MOST_LISTED = MOST_CHOICES = 20
"""Maximum number of outputs listed, and of matching choices of documents examined one by one."""


@dataclass(frozen=True, slots=True)
class GivenOutput:
    """An output: its id, the interval of its documents, and its ONCE value."""

    id: str
    t0: int
    t1: int
    keys: frozenset[OnceKey] = frozenset()


@dataclass(frozen=True, slots=True)
class Verdict:
    """A query's verdict on documents, each in the block at its position (None: no document). `why` has no items yet;
    its kind is "output" if there are outputs `given`. The greater the `rank`, the further they got. `found` counts rows
    that passed."""

    query: JoinSubscription
    documents: tuple[Record | None, ...]
    why: WhyNot
    rank: tuple[int, ...]
    found: Passing = field(default_factory=Passing)
    given: tuple[GivenOutput, ...] = ()

    def shown(self, **changes: Any) -> WhyNot:
        return replace(self.why, items=record_items(self.documents), **changes)


def orders(documents: Sequence[Record], blocks: int) -> Iterator[tuple[Record | None, ...]]:
    """Yields the assignments of documents to blocks, the given order first."""
    every = permutations(documents) if blocks <= MOST_ORDERS else iter((tuple(documents),))
    met = set[tuple[tuple[int, int], ...]]()
    for ordered in every:
        for places in combinations(range(blocks), len(documents)):
            at = dict(zip(places, ordered, strict=True))
            key = tuple((place, record.docid) for place, record in at.items())
            if key not in met:
                met.add(key)
                yield tuple(at.get(block) for block in range(blocks))


def placements(query: ReadableQuery, documents: Sequence[Record]) -> Iterator[tuple[Record | None, ...]]:
    """Yields the assignments of documents to the blocks of a query: in any order to the blocks that have a document in
    an output. As many documents as there are blocks with a partner of an absence stay in the given order."""
    blocks = len(query.blocks)
    if query.told < len(documents) == blocks:
        yield tuple(documents)
    elif len(documents) <= query.told:
        yield from ((*order, *[None] * (blocks - query.told)) for order in orders(documents, query.told))


def verdict(query: JoinSubscription, documents: Sequence[Record], steps: int = STEPS) -> Verdict:
    """Returns the verdict for documents of an output's blocks, in their order. `steps` bounds the work."""
    if (unseen := unseen_verdict(query, documents)) is not None:
        return unseen
    (said,) = _Scan(query, steps, documents).verdicts()
    return said


def unseen_verdict(query: JoinSubscription, documents: Sequence[Record]) -> Verdict | None:
    """Returns the verdict that a query did not see one of the documents; None if it saw all."""
    appeared = [at for record in documents for at in record.appeared]
    if query.sees(appeared):
        return None
    kind, message = "paused", "the query was paused when the document came"
    if min(appeared) <= query.since:
        kind, message = "newer", "the query was registered after the document came"
    return Verdict(query, tuple(documents), WhyNot(query.name, kind, message, text=query.text), (-1,))


@dataclass(frozen=True, slots=True)
class QueryFunnel:
    """How many stored documents pass each stage of a query. `found` counts document combinations that pass all, for an
    event query (`of_events`) its events, for a PATTERN the first events of matches; `ties` those that only equal times
    exclude (FOLLOWED BY). `unseen` documents precede the registration or fall into a pause, `left_out` are too large to
    search. `paused` is the reason of a pause. `incomplete`: the step limit was reached."""

    text: str
    stages: tuple[FunnelStage, ...]
    found: int = 0
    ties: int = 0
    unseen: int = 0
    left_out: int = 0
    incomplete: bool = False
    paused: str = ""
    of_events: bool = False
    of_pattern: bool = False

    @property
    def failed(self) -> FunnelStage | None:
        return next((stage for stage in self.stages if not stage.found), None)


@dataclass(frozen=True, slots=True)
class QueryFunnels(JsonRecord):
    """The funnels of a name's queries over stored documents. `documents` were read, `left_out` are too large; `outputs`
    are stored. If there is no such query, `message` and `hint` say so."""

    query: str
    documents: int = 0
    left_out: int = 0
    outputs: int = 0
    funnels: tuple[QueryFunnel, ...] = ()
    message: str = ""
    hint: str = ""


class _Scan:
    """A query with documents in some blocks: `placed` has one for each, or None for stored ones, by default in all;
    then outputs are not distinguished. `unseen` counts documents that the query did not see."""

    def __init__(self, query: JoinSubscription, steps: int, placed: Sequence[Record | None] = ()) -> None:
        self.query, self.readable, self.unseen = query, ReadableQuery.of(query.text), 0
        self.placed = tuple(placed) or (None,) * len(self.readable.blocks)
        self._evidence = Evidence(self.readable, selects=bool(placed), steps=steps)
        for place, record in enumerate(placed):
            if record is not None:
                self._evidence.look(record, (place,))

    def look(self, record: Record) -> None:
        free = (place for place, given in enumerate(self.placed) if given is None)
        wanted = [place for place in free if self.readable.blocks[place].stream == record.stream]
        if wanted and not self.query.sees(record.appeared):
            self.unseen += 1
        elif wanted:
            self._evidence.look(record, wanted)

    def verdicts(self) -> list[Verdict]:
        """Returns one verdict, or those of the first choices of documents that pass all."""
        found, fewest = self._evidence.result(), self.readable.told
        partners = found.partners
        if partners is not None and found.incomplete:
            return [self._failed(found)]
        if partners is not None and None not in self.placed[fewest:] and len(self.placed) > fewest:
            if partners.rows:
                return [self._partners(partners, "these documents are partners")]
            return [self._failed(partners)]
        if partners is not None and found.failed is not None and found.failed.counted.kind == "alone":
            count = len({row.docids for row in partners.rows})
            many = f"this is the nearest of {count:,} partners" if count > 1 else "this is a partner"
            return [self._partners(partners, many)]
        by_documents = gathered((row.docids, row) for row in found.rows)
        why = WhyNot(self.query.name, "output", "", text=self.query.text)
        return [
            Verdict(self.query, rows[0].documents, why, (9,), found, tuple(self._given(rows)))
            for rows in islice(by_documents.values(), MOST_CHOICES)
        ] or [self._failed(found)]

    def _partners(self, partners: Passing, message: str) -> Verdict:
        """The verdict that partners came, with the nearest one, or the earliest of several."""
        nearest = min(partners.rows, key=lambda row: (row.t1 - row.t0, row.docids))
        query, source = self.query, self.readable.query.source
        assert isinstance(source, Join), "partners are joined"
        placed = (record for record in self.placed if record is not None)
        documents = {record.docid: record for record in (*placed, *nearest.documents)}
        why = WhyNot(query.name, "partner", message, "", self.readable.part(source.pred.span), query.text)
        return Verdict(query, tuple(documents.values()), why, (9,), partners)

    def _failed(self, found: Passing) -> Verdict:
        query, failed, is_alone = self.query, found.failed, None not in self.placed
        if found.incomplete or failed is None or (is_alone and found.left_out):
            what = "a document is too large to search, or has too many bindings"
            if not is_alone:
                what = "the search in the stored documents is too large: name the other document too"
            why = WhyNot(query.name, "too large", what, text=query.text, stages=found.shown())
        else:
            *_, last = stages = found.shown(failed)
            why = WhyNot(query.name, last.kind, last.message, last.hint, last.part, query.text, stages=stages)
        return Verdict(query, self.placed, why, found.rank, found)

    def _given(self, rows: Iterable[EvidenceRow]) -> Iterator[GivenOutput]:
        """Yields the outputs of rows that bind all SELECT variables, each once."""
        normal = self.readable.normal
        terms = [entry.value for entry in normal.entries if isinstance(entry.value, Term)]
        found: dict[str, tuple[EvidenceRow, set[OnceKey]]] = {}
        for row in rows:
            bound = [(row.bound[term.var], term.functions) for term in terms]
            ids = json.dumps([id for record in row.documents for id in record.part_ids], ensure_ascii=False)

            def text_of(term: Term, row: EvidenceRow = row) -> str:
                return row.bound[term.var].value(term.functions)

            for values in product(*(BoundValue(one.record, one.node, functions).choices() for one, functions in bound)):
                nodes = ", ".join(map(BoundValue.json, values))
                id = self.query.identity.id(choice_of(ids, f"[{nodes}]").encode())
                keys = found.setdefault(id, (row, set()))[1]
                if normal.once is not None:
                    keys.add(once_key([text_of_operand(key, text_of) for key in normal.once.keys]))
        for id, (row, keys) in found.items():
            yield GivenOutput(id, row.t0, row.t1, frozenset(keys))

    def funnel(self, select: SelectFn) -> QueryFunnel:
        query, found = self.query, self._evidence.result()
        stages, count = found.shown(), found.found
        if found.partners is not None and found.rows:
            absence = _Absence(select, query)
            count = sum(map(absence.is_decided, {row.docids: row.documents for row in found.rows}.values()))
            still = "" if count else "nothing has come so far, and something in time still may"
            stages += (FunnelStage("decided", f"the watermark of {absence.stream}", count, message=still),)
        counts = count, found.ties, self.unseen, found.left_out
        return QueryFunnel(query.text, stages, *counts, found.incomplete, query.paused or "")


def _scanned(select: SelectFn, scans: Sequence[_Scan], most: int) -> tuple[int, int]:
    """Reads the newest `most` stored documents of all streams that scans need, newest first. Returns how many were
    read, and how many omitted because of their size or the total."""
    if not any(None in one.placed for one in scans):
        return 0, 0
    sizes = lookup.newest_documents(select, {block.stream for one in scans for block in one.readable.blocks}, most)
    wanted = query_lookup.affordable(sizes)
    for record in query_lookup.stored_records(select, wanted):
        for one in scans:
            one.look(record)
        record.__dict__.pop("tree", None)
    return len(wanted), len(sizes) - len(wanted)


class _Absence:
    """When an absence is decided: by the watermark of `stream`."""

    def __init__(self, select: SelectFn, query: JoinSubscription) -> None:
        assert query.normal.op is not None, "an absence is a join"
        self.stream = query.normal.conjuncts[1].left.stream
        self._qid, self._group = query.qid, AbsenceGroup(-1, query.normal.op, query.normal.window or 0, self.stream)
        self._decided = Decided.from_setting(lookup.latest_setting(select, ABSENCES))

    def tells(self, documents: Sequence[Record]) -> bool:
        """Whether left documents are reported, judging by when they came."""
        watermark = (inputs := Inputs(documents)).watermark
        return watermark is None or self._group.tells(watermark - inputs.t1)

    def is_decided(self, documents: Sequence[Record]) -> bool:
        entry = LeftMatch(min(one.t0 for one in documents), max(one.docid for one in documents), ())
        return self._decided.told_before(self._group, entry) > self._qid

    def waiting(self, documents: Sequence[Record]) -> str:
        least = self._group.decided_at(min(one.t0 for one in documents))
        now = self._decided.least(self.stream)
        with suppress(OverflowError):
            at = f"; it is at {iso_utc(now)}" if now > EARLIEST else ""
            return f"nothing has come so far: decided when the watermark reaches {iso_utc(least)}{at}"
        return "nothing has come so far, and something still may"


ALWAYS = output_why.Interval(-output_why.FOR_EVER, output_why.FOR_EVER, output_why.FOR_EVER)
"""All end times, the newest first."""


def event_funnels(select: SelectFn, name: str, known: Sequence[query_lookup.KnownEvents], most: int) -> QueryFunnels:
    """Returns the funnels of event queries over the newest `most` documents and outputs. Raises what `select` does."""
    read, left_out, funnels = 0, 0, list[QueryFunnel]()
    for one in known:
        work, paused = StepBudget(output_why.MAX_EVENT_STEPS // len(known)), one.query.paused or ""
        is_pattern = isinstance(one.stream, Pattern | NearPattern)
        funnel = QueryFunnel(one.query.text, (), incomplete=True, paused=paused, of_events=True, of_pattern=is_pattern)
        with suppress(Exhausted):
            sources = output_why.EventSources(select, one, (), ALWAYS, work, most)
            read, left_out = max(read, sources.read), max(left_out, sources.left_out)
            trace = _trace(one, sources, (), work)
            count = trace.starts if is_pattern else len(trace.events)
            funnel = replace(funnel, stages=trace.stages, found=count, unseen=sources.unseen, incomplete=False)
        funnels.append(funnel)
    return QueryFunnels(name, read, left_out, lookup.count_outputs(select, name), tuple(funnels))


def _trace(
    known: query_lookup.KnownEvents, sources: output_why.EventSources, records: Sequence[Record], work: StepBudget
) -> Trace:
    """Returns how far documents get in an event query; without documents, how far all events get."""
    documents = [(record.id, record.stream) for record in records]

    def why_none(name: str, number: int) -> Iterable[FunnelStage]:
        return sources.why_none(name, records[number])

    return Evaluator(sources.given, work.take, documents, why_none, output_why.told_ends).trace(known.stream)


@dataclass(frozen=True, slots=True)
class LookedAt:
    """How far documents get in a query. `read` counts the documents read; `is_incomplete`: some were not."""

    known: query_lookup.KnownEvents
    trace: Trace
    read: int
    is_incomplete: bool

    @property
    def rank(self) -> tuple[bool, int, tuple[int, ...]]:
        return bool(self.trace.events), self.trace.found, self.trace.rank


def outputs_found(
    name: str, ids: Sequence[str], text: str, items: tuple[ShownItem, ...], *, exact: bool = False, others: bool = False
) -> WhyNot:
    """`exact`: `ids` are all outputs, not just MOST_LISTED and one more; `others`: they have other documents too."""
    more = "more than " if len(ids) > MOST_LISTED and not exact else ""
    many = len(ids) if exact else min(len(ids), MOST_LISTED)
    what = f"they give {more}{many} outputs" if many > 1 else "they give an output"
    what += " with other documents" if others else ""
    return WhyNot(name, "output", what, text=text, items=items, outputs=tuple(ids[:MOST_LISTED]))


def untold(select: SelectFn, best: LookedAt, known: int, shown: WhyNot) -> WhyNot | None:
    """Returns why a result of a given time is not an output, for reasons other than its contents."""
    query, until = best.known.query, output_why.horizon(select)
    if known >= until:
        far = "have not been answered yet"
        if until > -output_why.FOR_EVER:
            far = f"have been answered up to {iso_utc(until)}"
        what = f"event queries {far}, and this result is due at {iso_utc(known)}"
        hint = "--settle sets how long events wait for earlier ones"
        return replace(shown, kind="waiting", message=what, hint=hint)
    if query.paused:
        return replace(shown, kind="paused", message=f"they match, but the query is paused: {query.paused}")
    if best.is_incomplete:
        return replace(shown, kind="too large", message="the search around them is too large")
    return None


def dropped(shown: WhyNot) -> WhyNot:
    what = "they match, but the output was dropped, or the query was paused before it"
    return replace(shown, kind="dropped", message=what, hint="mmqjp subscribe --backfill answers stored documents")


def near_items(select: SelectFn, events: Iterable[Event], last: FunnelStage) -> tuple[Near, ...]:
    ids = dict.fromkeys(source for event in events for part in given_parts(event) for source in part.behind)
    rows = {(row["id"], row["stream"]): row for row in lookup.document_rows_by_id(select, {id for id, _ in ids})}
    items = record_items([record_of(rows[source]) for source in ids if source in rows])
    message = {"consumed": "it was first", "later": "it was later"}.get(last.kind, last.message)
    return (Near(items, last.kind, last.part, message, last.hint),) if items else ()


def pattern_made(select: SelectFn, at: LookedAt, match: MatchBindings, shown: WhyNot) -> WhyNot:
    pattern = at.known.stream
    assert isinstance(pattern, Pattern | NearPattern), "only its matches have bindings"
    known = known_at(pattern, match)
    if (said := untold(select, at, known, shown)) is not None:
        return said
    t0 = min(one.t0 for events in match.values() for one in events)
    if pattern.apart and (earlier := lookup.outputs_between_times(select, shown.query, t0, known, known, 1)):
        what = f"a match from {iso_utc(earlier[0]['t0'])} to {iso_utc(earlier[0]['t1'])} was reported and overlaps"
        hint = f"NON OVERLAPPING reports the first of several; this is output {earlier[0]['id']}"
        return replace(shown, kind="overlapping", part="NON OVERLAPPING", message=what, hint=hint)
    last = list(match.values())[-1][-1]
    if isinstance(pattern, Together) and (
        earlier := lookup.outputs_between_times(select, shown.query, last.t1, last.t1, last.t1, 1)
    ):
        what = f"all matches that end at {iso_utc(last.t1)} with {event_text(last)} have one output"
        hint = f"its document is that of this event; see output {earlier[0]['id']}"
        return replace(shown, kind="counted", part="ALL MATCHES TOGETHER", message=what, hint=hint)
    if isinstance(pattern, NearPattern) and pattern.budget is not None:
        what = "they match, but a part of the match was dropped"
        return replace(shown, kind="budget", part=f"BUDGET {pattern.budget}", message=what)
    return dropped(shown)


_NO_TRACE = Trace([], (FunnelStage("event", "", 0),), 0, ())


def event_why_not(
    select: SelectFn, name: str, known: Sequence[query_lookup.KnownEvents], records: Sequence[Record]
) -> WhyNot:
    items, text = record_items(records), known[0].query.text
    if stored := lookup.ids_with(select, name, {id for record in records for id, _ in record.sources}, MOST_LISTED + 1):
        return outputs_found(name, stored, text, items)
    best = max((_looked_at(select, one, records) for one in known), key=lambda one: one.rank)
    text, trace = best.known.query.text, best.trace
    shown = WhyNot(name, "", "", text=text, items=items, stages=trace.stages, tried=best.read)
    if trace.match is not None:
        return pattern_made(select, best, trace.match, shown)
    if trace.events:
        return _made(select, best, trace.events[:MOST_LISTED], shown)
    if best.is_incomplete:
        return replace(shown, kind="too large", message="the search around them is too large", stages=())
    *passed, last = trace.stages
    others = query_lookup.known_event_queries(select, last.part) if last.part not in best.known.definitions else ()
    if trace.without and others:
        inner = event_why_not(select, last.part, others, [records[number] for number in trace.without])
        return replace(inner, query=name, message=f"{last.part} has no output with it: {inner.message}")
    if best.known.query.paused:
        last = last.told(f"{last.message}; the query is paused, too: {best.known.query.paused}", last.hint)
    near, stages = near_items(select, trace.near, last), (*passed, last)
    return WhyNot(name, last.kind, last.message, last.hint, last.part, text, items, (), stages, near, best.read)


def _looked_at(select: SelectFn, known: query_lookup.KnownEvents, records: Sequence[Record]) -> LookedAt:
    ids = {id for record in records for id, _ in record.sources}
    published = (name for name in read_by(known.stream) if name not in known.definitions)
    times = [(one.t0, one.t1) for one in records]
    times += filter(None, (lookup.span_of_outputs_with(select, name, ids) for name in published))
    t0, t1 = min(time for time, _ in times), max(time for _, time in times)
    interval = output_why.interval_of(known.stream, t0, t1, around=True)
    work, trace, sources = StepBudget(output_why.MAX_EVENT_STEPS), _NO_TRACE, None
    with suppress(Exhausted):
        sources = output_why.EventSources(select, known, records, interval, work, at=max(one.t1 for one in records))
        trace = _trace(known, sources, records, work)
    is_incomplete = trace is _NO_TRACE or (sources is not None and sources.left_out > 0)
    return LookedAt(known, trace, 0 if sources is None else sources.read, is_incomplete)


def _made(select: SelectFn, at: LookedAt, events: Sequence[Event], shown: WhyNot) -> WhyNot:
    stored = list[str]()
    for event in events:
        rows = lookup.outputs_between_times(select, shown.query, event.t1, event.t1, event.t1, output_why.MOST_OUTPUTS)
        outputs = (output_why.output_of_row({"query": shown.query, "seq": -1, **row}) for row in rows)
        same = (one.id for one in outputs if output_why.is_output(event, one, output_why.output_attributes(one.xml)))
        stored += islice(same, 1)
    if stored:
        return outputs_found(shown.query, stored, shown.text, shown.items)
    return untold(select, at, events[0].t1, shown) or dropped(shown)


MOST_KEPT, MOST_QUERIES_TRIED, MOST_NEAREST, MOST_NAMES = 10_000, 10, 3, 10_000
"""Maximum number of newest stored documents and of queries of a name that are tried, of nearest document combinations
shown, and of names searched for a similar one."""


def shown_verdict(select: SelectFn, name: str, verdicts: Sequence[Verdict]) -> WhyNot:
    """Returns the verdict that got furthest, after checking whether its outputs are stored."""
    made = sorted((one for one in verdicts if one.why.kind == "output"), key=lambda one: one.rank, reverse=True)
    for one in made:
        ids = {given.id for given in one.given}
        times = {(given.t0, given.t1) for given in one.given}
        found = {id for t0, t1 in times for id in lookup.ids_among(select, name, t0, t1, ids)}
        if stored := [given.id for given in one.given if given.id in found]:
            return outputs_found(name, stored, one.query.text, record_items(one.documents), exact=True)
    return _missing(select, made[0]) if made else max(verdicts, key=lambda one: one.rank).shown()


def _missing(select: SelectFn, one: Verdict) -> WhyNot:
    """Why expected outputs are missing: reported before (ONCE), or deleted."""
    normal, once = one.query.normal, one.query.normal.once
    records = [record for record in one.documents if record is not None]
    if normal.absent and not (absence := _Absence(select, one.query)).tells(records):
        return one.shown(kind="late", message="so late that its possible partners need no longer be stored")
    if normal.absent and not absence.is_decided(records):
        return one.shown(kind="waiting", message=absence.waiting(records))
    window = None if once is None else once.window
    for given in one.given if once is not None else ():
        times = {time for key in given.keys for time in lookup.times_told(select, one.query.qid, key)}
        near = [time for time in times if window is None or abs(time - given.t1) <= window]
        for time in sorted(near, key=lambda time: abs(time - given.t1))[:1]:
            ids = _told_by(select, one.query, given, time)
            which = f"the output {ids[0]}" if ids else "an output"
            what = f"ONCE PER: {which}, which ends at {iso_utc(time)}, reported it before"
            return one.shown(kind="told", message=what, part="ONCE PER", outputs=ids)
    gone = {record.docid for record in records} - lookup.joinable(select, [record.docid for record in records])
    what = "they match, but the output was dropped, or the query exceeded a limit and was paused before it"
    if normal.absent:
        what = "no stored document is a partner: one was dropped, or the query was paused, or the output was dropped"
    elif gone and len(records) > 1:
        what = "a document was no longer joinable when the other one came"
    hint = "" if normal.absent else "its documents are stored: mmqjp subscribe --backfill answers them"
    return one.shown(kind="dropped", message=what, hint=hint)


def _told_by(select: SelectFn, query: JoinSubscription, given: GivenOutput, time: int) -> tuple[str, ...]:
    """The id of the output that ends at a time with the same ONCE value; () if too many do, or documents are gone."""
    outputs = lookup.outputs_at(select, query.name, time, MOST_LISTED)
    if len(outputs) == 1:
        return (outputs[0]["id"],)
    for output in outputs:
        for parts in stored_parts(RememberedDocuments(select), lookup.matches_of(select, output)):
            said = verdict(query, parts, steps_for(MOST_LISTED)).given if parts else ()
            if any(other.id == output["id"] and other.keys & given.keys for other in said):
                return (output["id"],)
    return ()


def _nearest(best: Verdict) -> tuple[Near, ...]:
    chosen: dict[tuple[int, ...], tuple[Record, ...]] = {}
    for left, right in best.found.before():
        chosen.setdefault(left.docids + right.docids, left.documents + right.documents)
    found, blocks = [], len(ReadableQuery.of(best.query.text).blocks)
    for documents in islice(chosen.values(), MOST_NEAREST):
        is_whole = len(documents) == blocks
        why = verdict(best.query, documents, steps_for(MOST_NEAREST)).why if is_whole else best.why
        found.append(Near(record_items(documents), why.kind, why.part, why.message, why.hint))
    return tuple(found)


def explain_missing_output(select: SelectFn, name: str, asked: Sequence[str]) -> WhyNot:
    """Returns why documents give no output of the queries of a name. Each is given by its id, or by a URL or title that
    only one stored document has. Raises what `select` does."""
    known = query_lookup.known_queries(select, name)
    if not known and (events := query_lookup.known_event_queries(select, name)):
        if isinstance(events[0].stream, Stories):
            return story_why_not(select, name, asked, events[0].query.text)
        streams = {definition.pattern.stream for one in events for definition in one.definitions.values()}
        records = query_lookup.named_records(select, name, asked, streams, events[0].query.text)
        if isinstance(records, WhyNot):
            return records
        return event_why_not(select, name, events, list({record.docid: record for record in records}.values()))
    if not known:
        return WhyNot(name, "query", *no_query(select, name))
    readable = {query.qid: ReadableQuery.of(query.text) for query in known}
    streams = {block.stream for one in readable.values() for block in one.blocks}
    records = query_lookup.named_records(select, name, asked, streams, known[0].text)
    if isinstance(records, WhyNot):
        return records
    text, items, count = known[0].text, record_items(records), len(records)
    sizes = {qid: (one.told, len(one.blocks)) for qid, one in readable.items()}
    fitting = [query for query in known if any(True for _ in placements(readable[query.qid], records))]
    if not fitting:
        fewest, most = max(sizes.values())
        which = f": {fewest} in an output, {most - fewest} in a partner" if fewest < most else ""
        what = f"{count} documents are named, but the query reads {most}{which}"
        return WhyNot(name, "blocks", what, text=text, items=items)
    whole = [query for query in fitting if count in sizes[query.qid]]
    chosen = (whole or fitting)[:MOST_QUERIES_TRIED]
    tries = [(query, places) for query in chosen for places in placements(readable[query.qid], records)]
    if any(None in places for _, places in tries):
        sources = {id for record in records for id, _ in record.sources}
        if ids := lookup.ids_with(select, name, sources, MOST_LISTED + 1):
            return outputs_found(name, ids, text, items, others=not whole)
    found, scans = list[Verdict](), list[_Scan]()
    for query, places in tries:
        if (unseen := unseen_verdict(query, records)) is not None:
            found.append(replace(unseen, documents=places))
        else:
            scans.append(_Scan(query, steps_for(len(tries)), places))
    read, _ = _scanned(select, scans, MOST_KEPT)
    found += (said for scan in scans for said in scan.verdicts())
    shown = replace(shown_verdict(select, name, found), tried=read)
    best = max(found, key=lambda one: one.rank)
    return replace(shown, nearest=_nearest(best)) if read and best.why.kind != "output" else shown


def story_why_not(select: SelectFn, name: str, asked: Sequence[str], text: str) -> WhyNot:
    """Returns why documents are not together in a story of a name: usually, why they are not a pair."""
    found = replace(explain_missing_output(select, name + PAIRS, asked), query=name)
    ids = [lookup.ids_with(select, name, {item.id}, MOST_LISTED) for item in found.items]
    outputs = [output_why.found_output(select, id) for id in dict.fromkeys(chain(*ids))]
    of_form = gathered((row["form"], output_why.output_of_row(row).story) for row in outputs)
    wanted = {(item.id, item.stream) for item in found.items}
    for form, stories in of_form.items():
        lists = StoryLists(select, form, stories)
        if any(
            wanted <= {(one.id, one.stream) for one in lists.members(story, output_why.FOR_EVER)} for story in stories
        ):
            shown = outputs_found(name, list(dict.fromkeys(chain(*ids))), text, found.items, exact=True)
            return replace(shown, message="they are in a story" if len(wanted) > 1 else "it is in a story")
    if found.kind == "output":
        what = (
            "they match, but no story with them was reported (yet): because of HAVING or TELL, or because it had closed"
        )
        return replace(found, kind="dropped", message=what, outputs=(), text=text)
    return found


def no_query(select: SelectFn, name: str) -> tuple[str, str]:
    """Returns why there is no query of a name, and a hint."""
    for row in lookup.queries_named(select, name, 1):
        if row["removed_at"] is not None:
            return f"the query {name} was removed at {iso_utc(row['removed_at'])}", "subscribe it again"
        if not is_event_form(row["form"] or ""):
            what = f"{name} has an absence inside a longer query, which why-not does not support"
            return what, "try the operator without NOT: its matches are the partners"
        return f"this version cannot read {name}", "subscribe it again"
    names = lookup.names_of_queries(select, MOST_NAMES)
    listed = ", ".join(names[: query_lookup.LISTED]) + (" and others" if len(names) > query_lookup.LISTED else "")
    hint = f"there are {listed}" if names else "subscribe one"
    return f"no query is called {name}", did_you_mean(name, names) or hint


def query_funnel(select: SelectFn, name: str, most: int = MOST_KEPT) -> QueryFunnels:
    """Returns the funnels of a name's queries over the newest documents of their streams. Raises what `select` does."""
    known = query_lookup.known_queries(select, name)[:MOST_QUERIES_TRIED]
    if not known and (events := query_lookup.known_event_queries(select, name)[:MOST_QUERIES_TRIED]):
        if isinstance(events[0].stream, Stories):
            return replace(
                query_funnel(select, name + PAIRS, most), query=name, outputs=lookup.count_outputs(select, name)
            )
        return event_funnels(select, name, events, most)
    scans = [_Scan(query, steps_for(len(known))) for query in known]
    if not scans:
        return QueryFunnels(name, 0, 0, 0, (), *no_query(select, name))
    read, left_out = _scanned(select, scans, most)
    funnels = tuple(one.funnel(select) for one in scans)
    return QueryFunnels(name, read, left_out, lookup.count_outputs(select, name), funnels)
