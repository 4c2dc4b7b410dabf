"""The events that an event query sees, made again of kept documents and stored outputs, which SELECTs read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from common.batches import in_batches
from feeds.dates import iso_utc
from mmqjp.answers.output import read_nodes
from mmqjp.answers.patterns.results import LATE
from mmqjp.answers.patterns.stored import PATTERNS, PatternTime
from mmqjp.documents.record import Record
from mmqjp.documents.record_rows import record_of
from mmqjp.explain.funnel_stage import Stage
from mmqjp.explain.retrace.document_events import DocumentEvents
from mmqjp.explain.retrace.event import Event, Given, Plain, Source, given_parts
from mmqjp.explain.retrace.values import number_of
from mmqjp.explain.sample import TooLong
from mmqjp.explain.terms import duration_text
from mmqjp.present.kept_documents import AT_ONCE, CHARACTERS_AT_ONCE, affordable
from mmqjp.present.known_event_queries import KnownEvents, KnownPattern
from mmqjp.queries.event_compile import read_by
from mmqjp.queries.event_statements import since_of
from mmqjp.queries.model import Subscription
from mmqjp.tables.event_lookup import documents_between, latest_setting, outputs_between_times, reason_refused
from mmqjp.tables.lookup import Row, Select, documents_by_docid
from xpath_stage.parse import parse_document, text_of
from xscl.algebra.events import Aggregate, Events, Filter, Fold, Next, Schema, Stream, Union
from xscl.algebra.events import Select as Selection

MOST_DOCUMENTS = MOST_OUTPUTS = 10_000
"""So many kept documents, and outputs of a query, are looked at."""

MOST_STEPS, STEPS_FOR_A_DOCUMENT = 3_000_000, 300_000
"""How many steps are taken, about as many microseconds; and how many in one document."""

FOR_EVER = 2**61


class Exhausted(Exception):
    """All steps have been taken."""


@dataclass
class Work:
    """The steps that remain: in all, and in the document that is looked at."""

    left: int = MOST_STEPS
    here: int = 0

    def take(self, steps: int) -> None:
        """Takes steps. Raises Exhausted."""
        self.left -= steps
        if self.left < 0:
            raise Exhausted

    def take_here(self, steps: int) -> None:
        """Takes steps in a document. Raises Exhausted, TooLong."""
        self.take(steps)
        self.here -= steps
        if self.here < 0:
            raise TooLong


class Interval(NamedTuple):
    """The times between which documents and outputs end that are looked at, and one of them: those nearest to it come
    first, if there are too many."""

    t0: int
    t1: int
    near: int


class EventSources:
    """The events that a query reads. `records` are documents that are looked at whenever they are; `interval` says
    which others are, `most` documents and `most` outputs of a query. Without an interval there are no others."""

    def __init__(
        self,
        select: Select,
        known: KnownEvents | KnownPattern,
        records: Sequence[Record],
        interval: Interval | None,
        work: Work,
        most: int = MOST_DOCUMENTS,
    ) -> None:
        self._select, self._known, self._work, self._most = select, known, work, most
        self._since = since_of(known.query)
        self._makers = {name: DocumentEvents(one) for name, one in known.definitions.items()}
        self._events: dict[str, list[Event]] = {name: [] for name in read_by(known.stream)}
        self._unseen: dict[str, list[Event]] = {name: [] for name in self._events}
        self.read, self.left_out, self.unseen = 0, 0, 0
        """How many documents and outputs were looked at, how many were not because there are too many, and how many
        came before the query."""
        self._take([record for record in records if refusal(select, record) is None])
        if interval is not None:
            self._take_kept({record.docid for record in records}, interval)
            for name, schema in read_by(known.stream).items():
                if name not in self._makers:
                    self._take_outputs(name, schema, interval)
        for events in self._events.values():
            events.sort(key=lambda one: one.t1)

    def given(self, name: str) -> Sequence[Event]:
        """Returns the events of a stream in the order of t1."""
        return self._events[name]

    def _take_kept(self, known: Iterable[int], interval: Interval) -> None:
        streams = {one.pattern.stream for one in self._known.definitions.values()}
        if not streams:
            return
        sizes = documents_between(self._select, streams, *interval, self._most + 1, LATE)
        wanted = affordable(sizes[: self._most])
        self.left_out += len(sizes) - len(wanted)
        wanted = [one for one in wanted if one[0] not in set(known)]
        for some in in_batches(wanted, AT_ONCE, CHARACTERS_AT_ONCE, lambda one: one[1]):
            rows = documents_by_docid(self._select, [docid for docid, _ in some])
            self._take(list(map(record_of, rows)))

    def _take(self, records: Iterable[Record]) -> None:
        for record in records:
            self.read += 1
            self.unseen += not self._sees(record.t1)
            for name, maker in self._makers.items():
                if record.stream == maker.definition.pattern.stream and self._sees(record.t1):
                    self._work.here = STEPS_FOR_A_DOCUMENT
                    try:
                        self._events[name] += maker.of(record, self._work.take_here)
                    except TooLong:
                        self.left_out += 1
            record.__dict__.pop("tree", None)

    def _take_outputs(self, name: str, schema: Schema, interval: Interval) -> None:
        rows = outputs_between_times(self._select, name, *interval, self._most + 1)
        self.left_out += len(rows) > self._most
        for row in rows[: self._most]:
            self.read += 1
            # What a backfill published, only it and later queries have seen.
            is_seen = self._sees(row["t1"]) and row["first_qid"] <= self._known.query.qid
            self.unseen += not is_seen
            (self._events if is_seen else self._unseen)[name].append(_published(name, schema, row))

    def _sees(self, time: int) -> bool:
        return time > self._since

    # ------------------------------------------------------------ why there is none

    def why_none(self, name: str, record: Record) -> Iterator[Stage]:
        """Yields the stages up to the first that a document does not pass of having an event of a stream."""
        if name not in self._makers:
            yield self._without_output(name, (record.id, record.stream))
            return
        maker = self._makers[name]
        stages = list(maker.why_none(record))
        yield from stages
        if not stages[-1].found:
            return
        yield Stage("event", name, 1, "events")
        if not self._sees(record.t1):
            yield Stage("unseen", name, 0, "events").told(*_unseen(self._known.query, record.t1))
            return
        reason = refusal(self._select, record) or "the document is too large to search"
        yield Stage("late", name, 0, "events").told(reason)

    def _without_output(self, name: str, source: Source) -> Stage:
        """Returns the stage of a document that no output is made of which the query sees."""
        unseen = [
            one for one in self._unseen[name] for part in given_parts(one) if source in (part.source, *part.behind)
        ]
        if not unseen:
            return Stage("event", name, 0, "events").told(f"none of the outputs of {name} is made of the document")
        time = max(one.t1 for one in unseen)
        if self._sees(time):
            what = "a backfill published it, and the query, which was there before, did not get it"
            return Stage("unseen", name, 0, "events").told(what)
        return Stage("unseen", name, 0, "events").told(*_unseen(self._known.query, time))


def refusal(select: Select, record: Record) -> str | None:
    """Returns why no event query got the events of a document; None if they did."""
    reason = reason_refused(select, record.stream, record.id, f"{LATE}%")
    if reason is not None:
        behind = reason.partition(": ")[2].split(" ")[0]
        far = f"{duration_text(int(behind))} " if behind.isdecimal() else ""
        return f"it came too late for patterns: {far}behind what had been released"
    return reason_refused(select, record.stream, record.id, "more than % events %, for patterns")


def horizon(select: Select) -> int:
    """Returns the time up to which event queries have been answered."""
    return PatternTime.from_setting(latest_setting(select, PATTERNS)).horizon


def interval_of(stream: Stream, t0: int, t1: int, *, around: bool) -> Interval:
    """Returns when documents end that an event of a stream depends on which takes from `t0` to `t1`; `around`, one of
    which a part takes that long."""
    length, before = _longest(stream), _before(stream)
    low = FOR_EVER if before is None or (around and length is None) else before + ((around and length) or 0)
    high = (FOR_EVER if length is None else length) if around else 0
    return Interval(max(t0 - low, -FOR_EVER), min(t1 + high, FOR_EVER), t1)


def _longest(stream: Stream) -> int | None:
    """Returns how long an event of a stream can take; None if there is no bound."""
    match stream:
        case Events() | Aggregate():
            return 0
        case Selection(source=source) | Filter(source=source):
            return _longest(source)
        case Union(left=left, right=right):
            both = _longest(left), _longest(right)
            return None if None in both else max(length for length in both if length is not None)
        case Next(within=within) | Fold(within=within):
            return within


def _before(stream: Stream) -> int | None:
    """Returns how long before the beginning of an event of a stream others may end on which it depends; None if there
    is no bound."""
    match stream:
        case Events():
            return 0
        case Selection(source=source) | Filter(source=source):
            return _before(source)
        case Aggregate(source=source, over=over):
            inner, length = _before(source), _longest(source)
            return None if inner is None or length is None else inner + length + (over or 0)
        case Union(left=left, right=right) | Next(left=left, right=right) | Fold(left=left, right=right):
            both = _before(left), _before(right)
            return None if None in both else max(length for length in both if length is not None)


def _unseen(query: Subscription, time: int) -> tuple[str, str]:
    if time <= query.since:
        return f"the query sees events that end after {iso_utc(query.since)}", "mmqjp subscribe --backfill answers it"
    return f"the query was paused, and has begun anew at {iso_utc(since_of(query))}", ""


def values_of(xml: str) -> dict[str, str]:
    """Returns the attributes of an output of an event query that are not NULL, as texts."""
    root = parse_document(xml.encode(), trusted=True).root
    return {str(child.tag): text_of(child) for child in root}


def _published(name: str, schema: Schema, row: Row) -> Event:
    texts = values_of(row["xml"])
    values: dict[str, Plain] = {
        attribute: number_of(text) if kind == "number" and text is not None else text
        for attribute, kind in schema
        for text in [texts.get(attribute)]
    }
    behind = tuple(zip(row["documents"], row["streams"], strict=True))
    roots = tuple(read_nodes(row["nodes"]).values())
    return Event(values, row["t0"], row["t1"], Given(name, (row["id"], name), behind, roots, output=True))
