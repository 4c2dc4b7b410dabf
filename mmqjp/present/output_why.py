"""Explains a stored output: its match with the full reason, and the outputs of other queries behind it. For an event
query or PATTERN, recomputes the events near it from the store, and finds those that caused it."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from common.bounds import BEGINNING, END
from common.dates import iso_utc
from common.errors import InputError
from common.tools import from_json
from mmqjp.answers.bindings import read_nodes
from mmqjp.answers.events_run import LATE, PATTERNS, PatternTime
from mmqjp.answers.output import Output
from mmqjp.documents.record import Record, record_of
from mmqjp.explain import terms
from mmqjp.explain.evidence import STEPS_FOR_A_DOCUMENT
from mmqjp.explain.reasons import build_part, explain_event, output_match, shown, source_places, story_links, tested
from mmqjp.explain.retrace import values as traced
from mmqjp.explain.retrace.search import GivenEvents, missing_letters
from mmqjp.explain.retrace.stages import DocumentEvents, Evaluator
from mmqjp.present.item import ShownMatch, reason_dict
from mmqjp.present.newest import MOST_MATCHES, UnexplainedOutput, explained_matches, stored_parts
from mmqjp.present.query_lookup import KnownEvents, affordable, known_event_queries, stored_records
from mmqjp.present.recent import RecentAnswers, RememberedDocuments
from mmqjp.queries.model import EventSubscription, is_event_form
from mmqjp.queries.registry import life_at, since_of
from mmqjp.tables import lookup
from mmqjp.tables.lookup import Row, SelectFn
from pattern_stage.columns import Columns
from pattern_stage.kernel import Kernel
from pattern_stage.lineage import Lineage
from pattern_stage.values import Texts
from xpath_stage.documents import element_text, parse_document
from xscl.algebra import events as algebra
from xscl.story_queries import PAIRS
from xscl.text import XsclErrors

MOST_DOCUMENTS = MOST_OUTPUTS = 10_000  # maximum number of stored documents read, and of outputs of a query

MAX_EVENT_STEPS = 3_000_000  # step limit, about a microsecond each, in all and per document

FOR_EVER = 2**61


class Interval(NamedTuple):
    """End times of documents and outputs to read, and a time among them: if too many, those nearest come first."""

    t0: int
    t1: int
    near: int


class EventSources:
    """The events that a query reads. `records` are always read; `interval` selects further documents and outputs, at
    most `most` documents and `most` outputs of each query; None: no others. For a query that was paused, these are the
    events between the pauses around `at`, the end of the explained result."""

    def __init__(
        self,
        select: SelectFn,
        known: KnownEvents,
        records: Sequence[Record],
        interval: Interval | None,
        work: terms.StepBudget,
        most: int = MOST_DOCUMENTS,
        at: int = END,
    ) -> None:
        self._select, self._known, self._work, self._most = select, known, work, most
        self._since, self._until = life_at(known.query, at)
        self._makers = {name: DocumentEvents(one) for name, one in known.definitions.items()}
        self._events: dict[str, list[traced.Event]] = {name: [] for name in algebra.read_by(known.stream)}
        self._unseen: dict[str, list[traced.Event]] = {name: [] for name in self._events}
        self.read, self.left_out, self.unseen = 0, 0, 0
        """Numbers of documents and outputs that were read, omitted because of the limits, and older than the query."""
        self._take([record for record in records if refusal(select, record) is None])
        if interval is not None:
            self._take_kept({record.docid for record in records}, interval)
            for name, schema in algebra.read_by(known.stream).items():
                if name not in self._makers:
                    self._take_outputs(name, schema, interval)
        for events in self._events.values():
            events.sort(key=lambda one: one.t1)

    def given(self, name: str) -> Sequence[traced.Event]:
        return self._events[name]

    def _take_kept(self, known: Container[int], interval: Interval) -> None:
        streams = {one.pattern.stream for one in self._known.definitions.values()}
        if not streams:
            return
        sizes = lookup.find_nearest_documents(self._select, streams, *interval, self._most + 1, LATE)
        wanted = affordable(sizes[: self._most])
        self.left_out += len(sizes) - len(wanted)
        self._take(stored_records(self._select, [one for one in wanted if one[0] not in known]))

    def _take(self, records: Iterable[Record]) -> None:
        for record in records:
            self.read += 1
            self.unseen += not self._sees(record.t1)
            for name, maker in self._makers.items():
                if record.stream == maker.definition.pattern.stream and self._sees(record.t1):
                    self._work.here = STEPS_FOR_A_DOCUMENT
                    try:
                        self._events[name] += maker.of(record, self._work.take_here)
                    except terms.TooLong:
                        self.left_out += 1
            record.__dict__.pop("tree", None)

    def _take_outputs(self, name: str, schema: algebra.Schema, interval: Interval) -> None:
        rows = lookup.outputs_between_times(self._select, name, *interval, self._most + 1)
        self.left_out += len(rows) > self._most
        for row in rows[: self._most]:
            self.read += 1
            # Events published by a backfill were seen only by it and later queries.
            is_seen = self._sees(row["t1"]) and row["first_qid"] <= self._known.query.qid
            self.unseen += not is_seen
            (self._events if is_seen else self._unseen)[name].append(_published(name, schema, row))

    def _sees(self, time: int) -> bool:
        return self._since < time <= self._until

    def why_none(self, name: str, record: Record) -> Iterator[terms.FunnelStage]:
        """Yields the stages up to the first that keeps a document from having an event of a stream."""
        if name not in self._makers:
            yield self._without_output(name, (record.id, record.stream))
            return
        stages = list(self._makers[name].why_none(record))
        yield from stages
        if not stages[-1].found:
            return
        yield terms.FunnelStage("event", name, 1, "events")
        if not self._sees(record.t1):
            yield terms.FunnelStage("unseen", name, 0, "events").told(*_unseen(self._known.query, record.t1))
            return
        reason = refusal(self._select, record) or "the document is too large to search"
        yield terms.FunnelStage("late", name, 0, "events").told(reason)

    def _without_output(self, name: str, source: traced.DocumentRef) -> terms.FunnelStage:
        parts = ((one, part) for one in self._unseen[name] for part in traced.given_parts(one))
        unseen = [one for one, part in parts if source in (part.source, *part.behind)]
        if not unseen:
            what = f"none of the outputs of {name} is derived from the document"
            return terms.FunnelStage("event", name, 0, "events").told(what)
        reason = _unseen(self._known.query, time := max(one.t1 for one in unseen))
        if self._sees(time):
            reason = "a backfill published it, and the query, which is older, did not get it", ""
        return terms.FunnelStage("unseen", name, 0, "events").told(*reason)


def refusal(select: SelectFn, record: Record) -> str | None:
    """Returns why no event query received the events of a document; None if they did."""
    reason = lookup.reason_refused(select, record.stream, record.id, f"{LATE}%")
    if reason is not None:
        behind = reason.partition(": ")[2].split(" ")[0]
        far = f"{terms.duration_text(int(behind))} " if behind.isdecimal() else ""
        return f"it came too late for patterns: {far}behind what had been released"
    return lookup.reason_refused(select, record.stream, record.id, "more than % events %, for patterns")


def horizon(select: SelectFn) -> int:
    """Returns the time up to which event queries have been evaluated."""
    return PatternTime.from_setting(lookup.latest_setting(select, PATTERNS)).horizon


def interval_of(stream: algebra.Statement, t0: int, t1: int, *, around: bool) -> Interval:
    """Returns end times of documents that affect an event from `t0` to `t1`; `around`: one with a part this long."""
    length = _longest(stream) if around else 0
    return Interval(max(t0 - _before(stream) - length, -FOR_EVER), min(t1 + length, FOR_EVER), t1)


def _longest(stream: algebra.Statement) -> int:
    """The maximum duration of a stream's events; FOR_EVER if unbounded."""
    match stream:
        case algebra.Pattern(within=within) | algebra.NearPattern(within=within):
            return FOR_EVER if within is None else 2 * within  # events that are too far apart are shown, too
        case algebra.Sessions() | algebra.Stories():
            return FOR_EVER
        case algebra.Events() | algebra.Aggregate():
            return 0
        case algebra.Select(source=source) | algebra.Filter(source=source):
            return _longest(source)
        case algebra.Union(left=left, right=right):
            return max(_longest(left), _longest(right))
        case algebra.Next(within=within) | algebra.Fold(within=within):
            return FOR_EVER if within is None else within


def _before(stream: algebra.Statement) -> int:
    """How long before the start of an event others that affect it may end; FOR_EVER or more if unbounded."""
    match stream:
        case algebra.Events() | algebra.Pattern() | algebra.NearPattern():
            return 0
        case algebra.Select(source=source) | algebra.Filter(source=source) | algebra.Stories(source=source):
            return _before(source)
        case algebra.Aggregate(source=source, over=over):
            return _before(source) + _longest(source) + (over or 0)
        case algebra.Latest(
            left=left, right=right
        ):  # an earlier start may mean a longer event, which may be the latest
            return max(_before(left), _before(right)) + _longest(left)
        case algebra.Union() | algebra.Next() | algebra.Fold():
            return max(_before(stream.left), _before(stream.right))


def _unseen(query: EventSubscription, time: int) -> tuple[str, str]:
    if time <= query.since:
        return f"the query sees events that end after {iso_utc(query.since)}", "mmqjp subscribe --backfill answers it"
    return f"the query was paused, and started over at {iso_utc(since_of(query))}", ""


def output_attributes(xml: str) -> dict[str, str]:
    return {str(child.tag): element_text(child) for child in parse_document(xml.encode(), trusted=True).root}


def _published(name: str, schema: algebra.Schema, row: Row) -> traced.Event:
    texts = output_attributes(row["xml"])
    values: dict[str, terms.Plain] = {
        attribute: traced.as_number(text) if kind == "number" and text is not None else text
        for attribute, kind in schema
        for text in [texts.get(attribute)]
    }
    behind = tuple(zip(row["documents"], row["streams"], strict=True))
    source = traced.SourceEvent(name, (row["id"], name), behind, tuple(read_nodes(row["nodes"]).values()), output=True)
    return traced.Event(values, row["t0"], row["t1"], source)


def output_of_row(row: Row) -> Output:
    documents, streams, nodes = tuple(row["documents"]), tuple(row["streams"]), read_nodes(row["nodes"])
    return Output(row["query"], row["t0"], row["t1"], documents, streams, nodes, row["xml"], row["id"], row["seq"])


def event_why(select: SelectFn, shown: ShownMatch, form: str) -> OutputWhy | None:
    """Explains an event query's output. None if its sources are no longer stored, or too many. Raises as `select`."""
    output = shown.output
    sources = list(zip(output.documents, output.streams, strict=True))
    for known in known_event_queries(select, output.query, form):
        rows = lookup.document_rows_by_id(select, output.documents)
        records = [record_of(row) for row in rows if (row["id"], row["stream"]) in set(sources)]
        around = interval_of(known.stream, output.t0, output.t1, around=False)
        defined = {one.pattern.stream for one in known.definitions.values()} <= {record.stream for record in records}
        # If all events of the output are in its documents, no others are needed.
        for interval in (None, around) if defined and _is_simple(known.stream, known) else (around,):
            with suppress(terms.Exhausted):
                work = terms.StepBudget(MAX_EVENT_STEPS)
                events = EventSources(select, known, records, interval, work, at=output.t1)
                if (traced := _told_by(known.stream, events, work, output)) is not None:
                    filling, reason = traced
                    seen = (one for part in filling.parts for one in part.events if one.output)
                    fed = {one.output: Fed(one.output, one.query, one.documents) for one in seen}
                    return OutputWhy(replace(shown, reason=reason), tuple(fed.values()), known.query.text, filling)
    return None


def _told_by(
    stream: algebra.Statement, events: EventSources, work: terms.StepBudget, output: Output
) -> tuple[terms.Filling, terms.Reason] | None:
    if isinstance(stream, algebra.Together):
        return _told_together(stream, events.given, output)
    if isinstance(stream, algebra.Pattern | algebra.NearPattern):
        match = output_match(stream, events.given, output, work.take) if output.documents else None
        return None if match is None else _told(stream, match, output)
    sources, values = list(zip(output.documents, output.streams, strict=True)), output_attributes(output.xml)
    for event in Evaluator(events.given, work.take, list(dict.fromkeys(sources))).trace(stream).events:
        if is_output(event, output, values):
            return explain_event(event, sources)
    return None


def is_output(event: traced.Event, output: Output, values: Mapping[str, str]) -> bool:
    """Whether an event is an output. `values` are its non-NULL attributes."""
    own = {name: text for name, value in event.values.items() if (text := terms.as_text(value)) is not None}
    if (event.t0, event.t1, own) != (output.t0, output.t1, values):
        return False
    parts = list(traced.given_parts(event))
    behind = {source for part in parts for source in part.behind}
    roots = {root for part in parts for root in part.roots}
    return behind == set(zip(output.documents, output.streams, strict=True)) and roots == set(output.nodes.values())


def _is_simple(stream: algebra.Statement, known: KnownEvents) -> bool:
    """Whether events can combine to one of a stream in one way only."""
    match stream:
        case algebra.Events(stream=name):
            return name in known.definitions
        case algebra.Select(source=source) | algebra.Filter(source=source):
            return _is_simple(source, known)
        case algebra.Next(left=left, right=right):
            return _is_simple(left, known) and _is_simple(right, known)
    return isinstance(stream, algebra.Pattern | algebra.NearPattern)  # whose outputs have nodes for each event


def _told(
    pattern: algebra.Pattern | algebra.NearPattern, match: traced.MatchBindings, output: Output
) -> tuple[terms.Filling, terms.Reason]:
    places = source_places(list(zip(output.documents, output.streams, strict=True)))
    parts: list[terms.FilledPart] = []
    conditions = list(_equal_keys(pattern, next(event for events in match.values() for event in events)))
    if isinstance(pattern, algebra.NearPattern):
        parts += [build_part(name, events, places) for name, events in match.items()]
        errors = parse_document(output.xml.encode(), trusted=True).root.get(algebra.ERRORS) or 0
        conditions.append(terms.ShownCondition((f"{missing_letters(int(errors))}, of {pattern.errors} allowed",)))
    else:
        taking = (one for one in pattern.variables if not one.negated)
        parts += [build_part(traced.component_text(one), match[one.name], places) for one in taking]
        operator = pattern.variables[0].source
        conditions += [shown(operator, condition, scope) for condition, scope in tested(pattern, match)]
        conditions += _absent(pattern)
    span = terms.PartDuration("PATTERN", output.t1 - output.t0, None, pattern.within)
    return terms.Filling(tuple(parts), (span,)), terms.Reason((), tuple(dict.fromkeys(conditions)))


def _told_together(
    pattern: algebra.Together, given: GivenEvents, output: Output
) -> tuple[terms.Filling, terms.Reason] | None:
    """The event that ends all matches, which are not enumerated."""
    sources, variable = list(zip(output.documents, output.streams, strict=True)), pattern.variables[-1]
    for one in given(variable.source.stream):
        parts = list(traced.given_parts(one))
        behind = {source for part in parts for source in part.behind}, {root for part in parts for root in part.roots}
        if (one.t0, one.t1, *behind) == (output.t0, output.t1, set(sources), set(output.nodes.values())):
            within = "" if pattern.within is None else f" within {terms.format_window(pattern.within)}"
            texts = [f"all matches{within} that end with it", traced.all_written(pattern.conjuncts, pattern)]
            texts += [f"HAVING {asked.text}" for asked in traced.having_of(pattern)]
            conditions = [*_equal_keys(pattern, one), *(terms.ShownCondition((text,)) for text in texts if text)]
            filled = build_part(traced.component_text(variable), (one,), source_places(sources))
            return terms.Filling((filled,), ()), terms.Reason((), tuple(conditions))
    return None


def _equal_keys(pattern: algebra.Pattern | algebra.NearPattern, event: traced.Event) -> Iterator[terms.ShownCondition]:
    for key in pattern.keys:
        name, value = f"[{key}]", event.values[key]
        part = terms.Operand(name, value) if isinstance(value, str) else f"{name} {terms.as_text(value)}"
        yield terms.ShownCondition((part,))


def _absent(pattern: algebra.Pattern) -> Iterator[terms.ShownCondition]:
    window = "" if pattern.within is None else f" in {terms.format_window(pattern.within)}"
    where = {0: f"before{window}", pattern.groups: f"afterwards{window}"}
    for at, one in enumerate(pattern.variables):
        if one.negated:
            text = traced.all_written([kill for kill in pattern.kills if kill.variable == at], pattern)
            what = f"no {one.source.stream} {one.name} {where.get(one.group, 'in between')}"
            yield terms.ShownCondition((f"{what}: {text}" if text else what,))


def told_ends(pattern: algebra.Pattern, given: GivenEvents) -> set[int]:
    """Returns the identities of the events that ALL MATCHES TOGETHER has an output for, as the engine computes them."""
    texts, lineage, columns = Texts(), Lineage(), dict[str, Columns]()
    events: list[traced.Event] = []  # by number
    for name, schema in pattern.streams.items():
        some = given(name)
        t0, t1 = (np.array([getattr(one, end) for one in some], np.int64) for end in ("t0", "t1"))
        values = [
            texts.codes([one.values[key] for one in some])  # type: ignore[misc]  # texts
            if kind == "string"
            else np.array([np.nan if one.values[key] is None else one.values[key] for one in some], np.float64)
            for key, kind in schema
        ]
        numbers = lineage.of_documents(name, np.arange(len(some)), t0, t1, np.zeros((len(some), 1), np.int64))
        columns[name] = Columns(t0, t1, tuple(values), numbers.reshape(-1, 1))
        events += some
    kernel = Kernel(texts, lineage)
    kernel.add(0, pattern, BEGINNING)
    found = kernel.run(columns, max((one.t1 for one in events), default=0) + 1)
    return {id(events[number]) for results in found for number in results.events.parts[:, 0].tolist()}


MAX_LINK_STEPS = 2_000_000  # maximum number of steps for the pairs of a story

ID_LENGTH, LISTED = 32, 5
"""Length of an id in hexadecimal digits, and maximum number of ids that an ambiguity error lists."""

RECENT = 100_000  # number of newest outputs searched first: most requests are for these

_ID = re.compile(r"[0-9a-f]{1,32}")


class NoOutput(InputError, LookupError):
    """No output has this id or number, or several ids begin so."""


@dataclass(frozen=True, slots=True)
class Fed:
    """An output of another query that fed this one: its id and query. `documents` are indexes into the match's."""

    id: str
    query: str
    documents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoryLink:
    """Why a document joined a story: it matches one before it. Both are indexes into the match's items."""

    member: int
    other: int
    why: terms.Reason


@dataclass(frozen=True, slots=True)
class OutputWhy:
    """Why an output exists. `text` is its query's ("": unknown), `events` has an event query's, if known, and `links` a
    story's."""

    match: ShownMatch
    fed: tuple[Fed, ...] = ()
    text: str = ""
    events: terms.Filling | None = None
    links: tuple[StoryLink, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        events = None if self.events is None else self.events.to_dict()
        found = {"fed": [asdict(one) for one in self.fed], "text": self.text, "events": events}
        links = [{"member": one.member, "other": one.other, "why": reason_dict(one.why)} for one in self.links]
        return self.match.to_dict() | found | {"links": links}

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> OutputWhy:
        fed, filling = from_json(tuple[Fed, ...], found["fed"]), found["events"]
        events = None if filling is None else from_json(terms.Filling, filling)
        links = from_json(tuple[StoryLink, ...], found["links"])
        return OutputWhy(ShownMatch.from_dict(found), fed, found["text"], events, links)


def why_output(
    select: SelectFn,
    asked: str,
    group: int | None = None,
    recent: RecentAnswers | None = None,
    documents: RememberedDocuments | None = None,
) -> OutputWhy:
    """Explains an output, given its id, a unique prefix of it, or its number (`seq`). `group`, the number of the first
    output of its group, speeds up the lookup; `recent` and `documents` are caches of the store. Takes at most a few
    seconds: if the search would be too large, the reason is missing. Raises NoOutput, and what `select` raises."""
    asked = asked.strip().lower()
    row, documents = None, documents or RememberedDocuments(select)
    if group is not None and _ID.fullmatch(asked):
        row = (recent and recent.output(asked, group)) or lookup.output_by_id(select, asked, group)
    row = row or found_output(select, asked)
    output = output_of_row(row)
    docids = (lookup.matches_of(select, row) if "behind" not in row else row["behind"])[:MOST_MATCHES]
    texts = row.get("texts") or lookup.query_texts(select, output.query, row["form"], terms.MOST_QUERIES, row["qid"])
    unexplained = UnexplainedOutput(output, tuple(docids), tuple(texts), row["form"])
    ((match, text),) = explained_matches([unexplained], documents, whole=True)
    text = text or next(iter(texts), "")
    if match.story is not None:
        return OutputWhy(match, (), text, links=tuple(_links(documents, match)))
    if is_event_form(row["form"] or ""):
        return event_why(select, match, row["form"]) or OutputWhy(match, (), text)
    return OutputWhy(match, _fed(next(filter(None, stored_parts(documents, docids)), ())), text)


def _links(documents: RememberedDocuments, match: ShownMatch) -> Iterator[StoryLink]:
    """The pairs behind a story, of those members that are still stored."""
    places = {(item.id, item.stream): place for place, item in enumerate(match.items)}
    rows = lookup.document_rows_by_id(documents.select, {id for id, _ in places})
    at = {place: record_of(row) for row in rows if (place := places.get((row["id"], row["stream"]))) is not None}
    order, found = sorted(at), set[tuple[int, int]]()
    for text in lookup.query_texts(documents.select, match.output.query + PAIRS, None, terms.MOST_QUERIES):
        with suppress(XsclErrors):
            query = terms.ReadableQuery.of(text)
            for last, first, why in story_links(query, [at[place] for place in order], MAX_LINK_STEPS):
                if (pair := (order[last], order[first])) not in found:
                    found.add(pair)
                    yield StoryLink(*pair, why)


def found_output(select: SelectFn, asked: str) -> Row:
    """Returns an output by its id, a unique prefix of it, or its number. Raises NoOutput."""
    is_number = asked.isdecimal() and len(asked) < ID_LENGTH - 13
    if is_number and (row := lookup.output_by_seq(select, int(asked))) is not None:
        return row
    if not _ID.fullmatch(asked):
        raise NoOutput(f"{asked!r:.80} is neither the id of an output, nor the beginning of one, nor its number (seq)")
    found = list[tuple[str, int, str]]()
    if len(asked) == ID_LENGTH:  # a complete id is unique
        oldest, newest = lookup.span_of_outputs(select)
        found = lookup.outputs_by_id(select, asked, 1, newest - RECENT) if newest - RECENT > oldest else []
    found = found or lookup.outputs_by_id(select, asked, LISTED + 1)
    if not found:
        raise NoOutput(f"no output has the id {asked}, or one that begins with it; mmqjp matches lists the outputs")
    if len(found) > 1:
        listed = ", ".join(f"{id} of {query}" for id, _, query in found[:LISTED])
        more = " and others" if len(found) > LISTED else ""
        raise NoOutput(f"several outputs have ids that begin with {asked}: {listed}{more}")
    id, seq, _ = found[0]
    if (row := lookup.output_by_id(select, id, seq)) is None:
        raise NoOutput(f"the output {id} was dropped in the meantime")
    return row


def _fed(parts: Sequence[Record]) -> tuple[Fed, ...]:
    found, place = list[Fed](), 0
    for part in parts:
        if part.kind == "published":
            found.append(Fed(part.id, part.stream, tuple(range(place, place + len(part.sources)))))
        place += len(part.sources)
    return tuple(found)
