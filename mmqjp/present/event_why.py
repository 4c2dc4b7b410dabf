"""What made an output of an event query: finds the events again behind it, and how the query put them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mmqjp.answers.output import Output
from mmqjp.documents.record import Record
from mmqjp.documents.record_rows import record_of
from mmqjp.explain.reasons import Reason
from mmqjp.explain.retrace.event import Event, given_parts
from mmqjp.explain.retrace.filled import Filling, told
from mmqjp.explain.retrace.trial import Trial
from mmqjp.explain.retrace.values import text_of
from mmqjp.present.event_sources import EventSources, Exhausted, Work, interval_of, values_of
from mmqjp.present.known_event_queries import KnownEvents, known_event_queries
from mmqjp.tables.lookup import Select, documents_by_id
from xscl.algebra.events import Events, Filter, Next, Stream
from xscl.algebra.events import Select as Selection


@dataclass(frozen=True, slots=True)
class EventWhy:
    """What made an output of an event query, the conditions that held, and the query's text."""

    filling: Filling
    reason: Reason
    text: str


def event_why(select: Select, output: Output, form: str) -> EventWhy | None:
    """Returns what made an output of an event query of a form. None if it cannot be told: what it was made of is no
    longer stored, or is too much to look at. Raises what `select` does."""
    sources = list(zip(output.documents, output.streams, strict=True))
    for known in known_event_queries(select, output.query, form):
        if not isinstance(known, KnownEvents):
            continue
        rows = documents_by_id(select, output.documents)
        records = [record_of(row) for row in rows if (row["id"], row["stream"]) in set(sources)]
        for interval in (None, interval_of(known.stream, output.t0, output.t1, around=False)):
            if interval is None and not _is_of_documents(known, records):
                continue
            with suppress(Exhausted):
                work = Work()
                trial = Trial(EventSources(select, known, records, interval, work).given, work.take)
                for event in trial.events(known.stream, output.t0, output.t1):
                    if is_output(event, output, values_of(output.xml)):
                        return EventWhy(*told(event, sources), known.query.text)
    return None


def is_output(event: Event, output: Output, values: Mapping[str, str]) -> bool:
    """Returns whether an event is an output, whose `values` are those of its attributes that are not NULL."""
    own = {name: text for name, value in event.values.items() if (text := text_of(value)) is not None}
    if (event.t0, event.t1, own) != (output.t0, output.t1, values):
        return False
    parts = list(given_parts(event))
    behind = {source for part in parts for source in part.behind}
    roots = {root for part in parts for root in part.roots}
    sources = set(zip(output.documents, output.streams, strict=True))
    return behind == sources and roots == set(output.nodes.values())


def _is_of_documents(known: KnownEvents, records: Sequence[Record]) -> bool:
    """Returns whether the events of a query's outputs are all in their documents, so that no others have to be read."""
    return _is_simple(known.stream, known) and {one.pattern.stream for one in known.definitions.values()} <= {
        record.stream for record in records
    }


def _is_simple(stream: Stream, known: KnownEvents) -> bool:
    """Returns whether there is one way only in which events can have made one of a stream."""
    match stream:
        case Events(stream=name):
            return name in known.definitions
        case Selection(source=source) | Filter(source=source):
            return _is_simple(source, known)
        case Next(left=left, right=right):
            return _is_simple(left, known) and _is_simple(right, known)
        case _:
            return False
