"""What the event queries of a name read: definitions of events, and what other event queries PUBLISH."""

from __future__ import annotations

from dataclasses import dataclass

from mmqjp.present.known_events import definitions, event_streams
from mmqjp.tables.lookup import Select
from mmqjp.tables.page_sql import event_queries
from xscl import parse_script
from xscl.event_syntax import names_read


@dataclass(frozen=True, slots=True)
class EventsRead:
    """The `names` and `texts` of definitions, each a script of its own, and the names of queries that are `published`,
    in order."""

    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    published: tuple[str, ...] = ()


NOTHING = EventsRead()


def events_read(select: Select, name: str) -> EventsRead:
    """Returns what the registered event queries of a name read. `select` answers questions over the store. Raises what
    it does, and StoreError or XsclErrors if this version cannot read a text."""
    texts = select(event_queries(name))["text"].to_pylist()
    if not texts:
        return NOTHING
    script = parse_script(";\n".join(texts), stored=True, events=event_streams(select))
    read = {one.name for query in script.event_queries for one in names_read(query.stream)}
    defined = {key: definition.text for key, definition in sorted(definitions(select).items()) if key in read}
    return EventsRead(tuple(defined), tuple(defined.values()), tuple(sorted(read - defined.keys())))
