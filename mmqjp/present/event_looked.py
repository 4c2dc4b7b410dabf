"""What is found of an event query for some documents, and what is said if that is an output, or something near."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from feeds.dates import iso_utc
from mmqjp.documents.record import Record
from mmqjp.explain.funnel_stage import Stage
from mmqjp.explain.retrace.event import Event, given_parts
from mmqjp.explain.verdict import MOST_LISTED
from mmqjp.present.event_sources import FOR_EVER, horizon
from mmqjp.present.item import Item, item_of
from mmqjp.present.known_event_queries import KnownEvents, KnownPattern
from mmqjp.present.why_not_result import Near, WhyNot
from mmqjp.queries.event_compile import read_by
from mmqjp.tables.event_lookup import span_of_outputs_with
from mmqjp.tables.lookup import Select, documents_by_id


@dataclass(frozen=True, slots=True)
class LookedAt:
    """What was found of one query: whether documents are in a result of it, and if not, the `stages`, of which the last
    has nothing, and what Looked says besides. So many documents were `read` for that; some were not if it is
    incomplete."""

    known: KnownEvents | KnownPattern
    is_found: bool
    stages: tuple[Stage, ...]
    rank: tuple[object, ...]
    near: tuple[Event, ...]
    without: tuple[int, ...]
    read: int
    is_incomplete: bool


def times_around(select: Select, known: KnownEvents | KnownPattern, records: Sequence[Record]) -> tuple[int, int]:
    """Returns when the first of documents begins and the last one ends, with what queries publish of them that a query
    reads."""
    times = [(one.t0, one.t1) for one in records]
    ids = {id for record in records for id, _ in record.sources}
    published = [name for name in read_by(known.stream) if name not in known.definitions]
    times += filter(None, (span_of_outputs_with(select, name, ids) for name in published))
    return min(time for time, _ in times), max(time for _, time in times)


def outputs_found(name: str, ids: Sequence[str], text: str, items: tuple[Item, ...]) -> WhyNot:
    """Returns that documents give outputs."""
    more = "more than " if len(ids) > MOST_LISTED else ""
    many = min(len(ids), MOST_LISTED)
    what = f"they give {more}{many} outputs" if many > 1 else "they give an output"
    return WhyNot(name, "output", what, text=text, items=items, outputs=tuple(ids[:MOST_LISTED]))


def shown_of(name: str, best: LookedAt, items: tuple[Item, ...]) -> WhyNot:
    """Returns what is shown of documents whatever is said of them."""
    return WhyNot(name, "", "", text=best.known.query.text, items=items, stages=best.stages, tried=best.read)


def untold(select: Select, best: LookedAt, known: int, shown: WhyNot) -> WhyNot | None:
    """Returns why a result that is known at a time is not told, as far as that has nothing to do with what it is."""
    query, until = best.known.query, horizon(select)
    if known >= until:
        far = f"have been answered up to {iso_utc(until)}" if until > -FOR_EVER else "have not been answered yet"
        what = f"event queries {far}, and this is known at {iso_utc(known)}"
        hint = "events wait for earlier ones as long as --settle says"
        return replace(shown, kind="waiting", message=what, hint=hint)
    if query.paused:
        return replace(shown, kind="paused", message=f"they match, but the query is paused: {query.paused}")
    if best.is_incomplete:
        return replace(shown, kind="too large", message="there is too much to look at around them")
    return None


def dropped(shown: WhyNot) -> WhyNot:
    """Returns that an output is not there."""
    what = "they match, but the output was dropped, or the query was paused before it"
    return replace(shown, kind="dropped", message=what, hint="mmqjp subscribe --backfill answers what is kept")


def near_items(select: Select, events: Iterable[Event], last: Stage) -> tuple[Near, ...]:
    """Returns the documents of events that stand in the way, or that came nearest."""
    ids = dict.fromkeys(source for event in events for part in given_parts(event) for source in part.behind)
    rows = {(row["id"], row["stream"]): row for row in documents_by_id(select, {id for id, _ in ids})}
    kept = [rows[source] for source in ids if source in rows]
    items = tuple(item_of(row["id"], row["stream"], row["t0"], row["xml"]) for row in kept)
    message = "it was first" if last.kind == "consumed" else last.message
    return (Near(items, last.kind, last.part, message, last.hint),) if items else ()
