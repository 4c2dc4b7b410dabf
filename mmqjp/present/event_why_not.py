"""Why documents give no output of an event query: makes the events again, and says what the first is in the way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from feeds.dates import iso_utc
from mmqjp.answers.output import Output, read_nodes
from mmqjp.documents.record import Record
from mmqjp.explain.funnel_stage import Stage
from mmqjp.explain.retrace.event import Event, given_parts
from mmqjp.explain.retrace.looking import Looking
from mmqjp.explain.retrace.stages import Looked
from mmqjp.explain.retrace.trial import Trial
from mmqjp.explain.verdict import MOST_LISTED
from mmqjp.present.event_sources import (
    MOST_OUTPUTS,
    EventSources,
    Exhausted,
    Work,
    horizon,
    interval_of,
    values_of,
)
from mmqjp.present.event_why import is_output
from mmqjp.present.item import Item, item_of
from mmqjp.present.known_event_queries import KnownEvents, known_event_queries
from mmqjp.present.why_not_result import Near, WhyNot, items_of
from mmqjp.queries.event_compile import read_by
from mmqjp.tables.event_lookup import outputs_between_times, span_of_outputs_with
from mmqjp.tables.lookup import Select, documents_by_id, ids_with

_NOTHING = Looked([], (Stage("event", "", 0),), 0, ())


@dataclass(frozen=True, slots=True)
class _Looked:
    """What was found of one query, how many documents were looked at for that, and whether some were not."""

    known: KnownEvents
    found: Looked
    read: int
    is_incomplete: bool


def event_why_not(select: Select, name: str, known: Sequence[KnownEvents], records: Sequence[Record]) -> WhyNot:
    """Returns why documents give no output of the event queries of a name, of which there is one at least."""
    items, text = items_of(records), known[0].query.text
    ids = {id for record in records for id, _ in record.sources}
    if stored := ids_with(select, name, ids, MOST_LISTED + 1):
        return _outputs(name, stored, text, items)
    best = max((_looked(select, one, records) for one in known), key=_rank)
    text = best.known.query.text
    if best.found.events:
        return _made(select, name, best, items)
    if best.is_incomplete:
        what = "there is too much to look at around them"
        return WhyNot(name, "too large", what, text=text, items=items, tried=best.read)
    *passed, last = best.found.stages
    if best.found.without and (others := _publishing(select, last.part, best.known)):
        inner = event_why_not(select, last.part, others, [records[number] for number in best.found.without])
        return replace(inner, query=name, message=f"{last.part} has no output of it: {inner.message}")
    if best.known.query.paused:
        last = last.told(f"{last.message}; the query is paused, too: {best.known.query.paused}", last.hint)
    near = _near(select, best.found, last)
    stages = (*passed, last)
    return WhyNot(name, last.kind, last.message, last.hint, last.part, text, items, (), stages, near, best.read)


def _rank(one: _Looked) -> tuple[object, ...]:
    return bool(one.found.events), one.found.found, one.found.rank


def _looked(select: Select, known: KnownEvents, records: Sequence[Record]) -> _Looked:
    """Looks for what a query makes of documents, among those around them."""
    times = [(one.t0, one.t1) for one in records]
    ids = {id for record in records for id, _ in record.sources}
    published = [name for name in read_by(known.stream) if name not in known.definitions]
    times += filter(None, (span_of_outputs_with(select, name, ids) for name in published))
    t0, t1 = min(time for time, _ in times), max(time for _, time in times)
    work, found, sources = Work(), _NOTHING, None
    with suppress(Exhausted):
        sources = EventSources(select, known, records, interval_of(known.stream, t0, t1, around=True), work)
        looking = Looking(Trial(sources.given, work.take), records, sources.why_none)
        found = looking.of(known.stream, tuple(range(len(records))))
    is_incomplete = found is _NOTHING or (sources is not None and sources.left_out > 0)
    return _Looked(known, found, 0 if sources is None else sources.read, is_incomplete)


def _outputs(name: str, ids: Sequence[str], text: str, items: tuple[Item, ...]) -> WhyNot:
    more = "more than " if len(ids) > MOST_LISTED else ""
    many = min(len(ids), MOST_LISTED)
    what = f"they give {more}{many} outputs" if many > 1 else "they give an output"
    return WhyNot(name, "output", what, text=text, items=items, outputs=tuple(ids[:MOST_LISTED]))


def _made(select: Select, name: str, best: _Looked, items: tuple[Item, ...]) -> WhyNot:
    """Returns what is said of documents that events are made of: their outputs, or why these are not there."""
    query, events = best.known.query, best.found.events[:MOST_LISTED]
    stored = [id for event in events if (id := _stored(select, name, event)) is not None]
    if stored:
        return _outputs(name, stored, query.text, items)
    shown = WhyNot(name, "", "", text=query.text, items=items, stages=best.found.stages, tried=best.read)
    until = horizon(select)
    if events[0].t1 >= until:
        what = f"event queries have been answered up to {iso_utc(until)}, and this ends at {iso_utc(events[0].t1)}"
        hint = "events wait for earlier ones as long as --settle says"
        return replace(shown, kind="waiting", message=what, hint=hint)
    if query.paused:
        return replace(shown, kind="paused", message=f"they match, but the query is paused: {query.paused}")
    if best.is_incomplete:
        return replace(shown, kind="too large", message="there is too much to look at around them")
    what = "they match, but the output was dropped, or the query was paused before it"
    return replace(shown, kind="dropped", message=what, hint="mmqjp subscribe --backfill answers what is kept")


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


def _publishing(select: Select, name: str, known: KnownEvents) -> list[KnownEvents]:
    """Returns the event queries that publish what a query reads under a name; none if it is defined."""
    return [] if name in known.definitions else known_event_queries(select, name)


def _near(select: Select, found: Looked, last: Stage) -> tuple[Near, ...]:
    """Returns the documents of the events that stand in the way, or that came nearest."""
    ids = dict.fromkeys(source for event in found.near for part in given_parts(event) for source in part.behind)
    rows = {(row["id"], row["stream"]): row for row in documents_by_id(select, {id for id, _ in ids})}
    kept = [rows[source] for source in ids if source in rows]
    items = tuple(item_of(row["id"], row["stream"], row["t0"], row["xml"]) for row in kept)
    message = "it was first" if last.kind == "consumed" else last.message
    return (Near(items, last.kind, last.part, message, last.hint),) if items else ()
