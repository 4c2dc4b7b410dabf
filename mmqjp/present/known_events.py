"""The events of a store, read by SELECTs: what is defined, and what event queries PUBLISH, with their attributes."""

from __future__ import annotations

from mmqjp.queries.event_compile import compile_stored, stored_definition
from mmqjp.queries.event_statements import Definition
from mmqjp.queries.stored_definitions import made
from mmqjp.tables.lookup import Select
from xscl.script import EventStreams

_DEFINITIONS = """SELECT id, text FROM definitions
WHERE id NOT IN (SELECT id FROM removed_definitions) ORDER BY id"""

_PUBLISHING = """SELECT min(text) AS text FROM added_queries
WHERE form LIKE 'events-%' AND qid NOT IN (SELECT qid FROM removed_queries) GROUP BY name ORDER BY name"""


def definitions(select: Select) -> dict[str, Definition]:
    """Returns the definitions of a store by name. `select` answers questions over it. Raises what it does, and
    StoreError if this version cannot read one."""
    found = {}
    for row in select(_DEFINITIONS).to_pylist():
        definition, script = stored_definition(row["text"])
        found[definition.name] = made(row["id"], row["text"], definition, script.namespaces)
    return found


def event_streams(select: Select) -> EventStreams:
    """Returns the event streams of a store. Raises what `definitions` does."""
    defined = {name: definition.schema for name, definition in definitions(select).items()}
    texts = select(_PUBLISHING)["text"].to_pylist()
    compiled = compile_stored(texts, defined)
    published = {one.publish: one.stream.schema for one in compiled if one.publish is not None}
    return EventStreams(defined, published)
