"""Why documents give no output of an event query: makes the events again, and says what the first is in the way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from mmqjp.answers.output import Output, read_nodes
from mmqjp.documents.record import Record
from mmqjp.explain.funnel_stage import Stage
from mmqjp.explain.retrace.event import Event
from mmqjp.explain.retrace.looking import Looking
from mmqjp.explain.retrace.stages import Looked
from mmqjp.explain.retrace.trial import Trial
from mmqjp.explain.verdict import MOST_LISTED
from mmqjp.present.event_looked import LookedAt, dropped, near_items, outputs_found, shown_of, times_around, untold
from mmqjp.present.event_sources import MOST_OUTPUTS, EventSources, Exhausted, Work, interval_of, values_of
from mmqjp.present.event_why import is_output
from mmqjp.present.item import Item
from mmqjp.present.known_event_queries import KnownEvents, KnownPattern, known_event_queries
from mmqjp.present.pattern_why_not import pattern_looked_at, pattern_made
from mmqjp.present.why_not_result import WhyNot, items_of
from mmqjp.tables.event_lookup import outputs_between_times
from mmqjp.tables.lookup import Select, ids_with

_NOTHING = Looked([], (Stage("event", "", 0),), 0, ())


def event_why_not(
    select: Select, name: str, known: Sequence[KnownEvents | KnownPattern], records: Sequence[Record]
) -> WhyNot:
    """Returns why documents give no output of the event queries of a name, of which there is one at least."""
    items, text = items_of(records), known[0].query.text
    ids = {id for record in records for id, _ in record.sources}
    if stored := ids_with(select, name, ids, MOST_LISTED + 1):
        return outputs_found(name, stored, text, items)
    every = [_looked(select, name, one, records, items) for one in known]
    best, said = max(every, key=lambda one: (one[0].is_found, one[0].rank))
    if said is not None:
        return said
    text = best.known.query.text
    if best.is_incomplete:
        what = "there is too much to look at around them"
        return WhyNot(name, "too large", what, text=text, items=items, tried=best.read)
    *passed, last = best.stages
    if best.without and (others := _publishing(select, last.part, best.known)):
        inner = event_why_not(select, last.part, others, [records[number] for number in best.without])
        return replace(inner, query=name, message=f"{last.part} has no output of it: {inner.message}")
    if best.known.query.paused:
        last = last.told(f"{last.message}; the query is paused, too: {best.known.query.paused}", last.hint)
    near = near_items(select, best.near, last)
    stages = (*passed, last)
    return WhyNot(name, last.kind, last.message, last.hint, last.part, text, items, (), stages, near, best.read)


def _looked(
    select: Select,
    name: str,
    known: KnownEvents | KnownPattern,
    records: Sequence[Record],
    items: tuple[Item, ...],
) -> tuple[LookedAt, WhyNot | None]:
    """Returns what is found of a query, and what is said if that is a result."""
    if isinstance(known, KnownPattern):
        at, match = pattern_looked_at(select, known, records)
        return at, None if match is None else pattern_made(select, at, match, shown_of(name, at, items))
    at, events = _looked_at(select, known, records)
    return at, _made(select, at, events[:MOST_LISTED], shown_of(name, at, items)) if events else None


def _looked_at(select: Select, known: KnownEvents, records: Sequence[Record]) -> tuple[LookedAt, Sequence[Event]]:
    """Looks for what a query makes of documents, among those around them."""
    interval = interval_of(known.stream, *times_around(select, known, records), around=True)
    work, found, sources = Work(), _NOTHING, None
    with suppress(Exhausted):
        sources = EventSources(select, known, records, interval, work)
        looking = Looking(Trial(sources.given, work.take), records, sources.why_none)
        found = looking.of(known.stream, tuple(range(len(records))))
    is_incomplete = found is _NOTHING or (sources is not None and sources.left_out > 0)
    read, rank = 0 if sources is None else sources.read, (found.found, found.rank)
    at = LookedAt(known, bool(found.events), found.stages, rank, found.near, found.without, read, is_incomplete)
    return at, found.events


def _made(select: Select, at: LookedAt, events: Sequence[Event], shown: WhyNot) -> WhyNot:
    """Returns what is said of documents that events are made of: their outputs, or why these are not there."""
    stored = [id for event in events if (id := _stored(select, shown.query, event)) is not None]
    if stored:
        return outputs_found(shown.query, stored, shown.text, shown.items)
    return untold(select, at, events[0].t1, shown) or dropped(shown)


def _stored(select: Select, name: str, event: Event) -> str | None:
    """Returns the id of the output that an event is; None if it is not stored."""
    for row in outputs_between_times(select, name, event.t1, event.t1, event.t1, MOST_OUTPUTS):
        output = Output(
            name, row["t0"], row["t1"], tuple(row["documents"]), tuple(row["streams"]), read_nodes(row["nodes"]), "",
            row["id"], -1,
        )  # fmt: skip
        if is_output(event, output, values_of(row["xml"])):
            return output.id
    return None


def _publishing(select: Select, name: str, known: KnownEvents | KnownPattern) -> list[KnownEvents | KnownPattern]:
    """Returns the event queries that publish what a query reads under a name; none if it is defined."""
    return [] if name in known.definitions else known_event_queries(select, name)
