"""What a script's event statements change: which definitions come and go, and its event queries compiled.

Raises InvalidEvents where they do not fit what is registered. The script alone was checked when it was parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from common.errors import InputError
from mmqjp.queries.event_compile import CompiledEvents, definition_text
from mmqjp.queries.event_statements import BEGINNING, Definition
from mmqjp.queries.model import Subscription
from mmqjp.queries.registry import Registry
from mmqjp.queries.stored_definitions import made
from xscl import Script
from xscl.algebra.events import Schema
from xscl.event_check import schemas_of
from xscl.event_forms import unequal
from xscl.event_syntax import EventQuery, names_read


class InvalidEvents(InputError, ValueError):
    """Event statements do not fit those that are registered."""


EventTime = Callable[[Collection[str]], int]
"""Returns the time since which new event queries see events that are defined from some streams of documents."""


@dataclass(slots=True)
class DefinitionChanges:
    """The definitions that come with a script, and those that go. One that changes is in both."""

    added: list[Definition] = field(default_factory=list)
    removed: list[Definition] = field(default_factory=list)

    def concerns(self, script: Script) -> set[str]:
        """Returns the names whose events are others now: those that are defined otherwise, and those that a script
        makes of them."""
        found = {definition.name for definition in self.removed}
        waiting = list(script.event_queries) if found else []
        while readers := [query for query in waiting if any(name.name in found for name in names_read(query.stream))]:
            waiting = [query for query in waiting if query not in readers]
            found |= {query.publish for query in readers if query.publish is not None}
        return found


class EventCompiler:
    """Compiles the event queries of a script, which read what it defines and what is registered. `since` is the time
    after which they see events: before all, if they are answered over stored documents: `backfills`."""

    def __init__(self, script: Script, registry: Registry, event_time: EventTime, *, backfills: bool) -> None:
        self.since, self._schemas = BEGINNING, dict[str, Schema]()
        if script.event_queries:
            self._schemas = schemas_of(script, registry.events.streams())
            if backfills:
                return
            streams = {name: one.pattern.stream for name, one in registry.events.definitions.items()}
            streams |= {one.name: one.block.stream for one in script.definitions}
            read = {name.name for query in script.event_queries for name in names_read(query.stream)}
            self.since = event_time({streams[name] for name in read if name in streams})

    def compile(self, query: EventQuery) -> CompiledEvents:
        """Returns a compiled query."""
        return CompiledEvents(query, self._schemas)


def streams_behind(queries: Iterable[Subscription], registry: Registry) -> set[str]:
    """Returns the streams of documents that the events which queries read are defined from."""
    definitions = registry.events.definitions
    read = {name for query in queries if query.is_events for name in registry.events.reads(query)}
    return {definitions[name].pattern.stream for name in read if name in definitions}


def definition_changes(script: Script, registry: Registry, first_id: int) -> DefinitionChanges:
    """Returns what the definitions of a script change. New ones are numbered from `first_id`."""
    changes, known = DefinitionChanges(), registry.events.definitions
    for definition in script.definitions:
        text = definition_text(definition, script)
        before = known.get(definition.name)
        if before is not None and before.text == text:
            continue
        if before is not None:
            changes.removed.append(before)
        changes.added.append(made(first_id + len(changes.added), text, definition, script.namespaces))
    return changes


def unused(script: Script, registry: Registry, gone: Collection[Subscription]) -> list[Definition]:
    """Returns the definitions that a script does not have, and that only queries read that are about to go."""
    kept = {definition.name for definition in script.definitions}
    return [
        definition
        for name, definition in registry.events.definitions.items()
        if name not in kept and all(query in gone for query in registry.events.readers(name))
    ]


def refuse_misfits(
    changes: DefinitionChanges, fresh: Iterable[Subscription], gone: Collection[Subscription], registry: Registry
) -> None:
    """Raises InvalidEvents if definitions or queries do not fit what stays: changed definitions that others read, or a
    name for two things."""
    for definition in changes.removed:
        if left := [query.name for query in registry.events.readers(definition.name) if query not in gone]:
            raise InvalidEvents(
                f"the event {definition.name} is defined otherwise, and read by {_few(left)}; choose another name, or "
                "change them together"
            )
    replaced = {definition.name for definition in changes.removed}
    for definition in changes.added:
        if definition.name not in replaced:
            _refuse_taken(definition.name, registry, gone)
        if definition.pattern.stream in registry.events.definitions:
            raise InvalidEvents(f"{definition.pattern.stream} is a defined event, no stream of documents")
    defined = {**registry.events.definitions, **{one.name: one for one in changes.added}}
    schemas: dict[str, Schema] = {}
    for query in fresh:
        if query.publishes:
            _refuse_clash(query, registry, gone, defined, schemas)
        if not query.is_events:
            for conjunct in query.conjuncts:
                for side in conjunct.sides():
                    if side.stream in defined:
                        raise InvalidEvents(f"{side.stream} is a defined event, no stream of documents")


def _refuse_taken(name: str, registry: Registry, gone: Collection[Subscription]) -> None:
    """Raises InvalidEvents if the name of a new definition is that of a stream."""
    if left := [query for query in registry.named(name) if query.publishes and query not in gone]:
        kind = "event queries" if left[0].is_events else "queries"
        raise InvalidEvents(f"{name} is what registered {kind} PUBLISH; define the event under another name")
    if registry.is_read(name):
        raise InvalidEvents(f"{name} is a stream of documents that queries read; define the event under another name")


def _refuse_clash(
    query: Subscription,
    registry: Registry,
    gone: Collection[Subscription],
    defined: Mapping[str, Definition],
    schemas: dict[str, Schema],
) -> None:
    """Raises InvalidEvents if others publish other things under the name of a query."""
    name = query.name
    if name in defined:
        raise InvalidEvents(f"{name} is a defined event; PUBLISH under another name")
    left = [other for other in registry.named(name) if other.publishes and other not in gone]
    if any(other.is_events != query.is_events for other in left):
        raise InvalidEvents(
            f"{name} is what registered {'queries' if query.is_events else 'event queries'} PUBLISH; all that PUBLISH "
            "a name read documents, or all read events"
        )
    if not query.is_events:
        return
    schema: Schema = query.compiled.stream.schema  # type: ignore[attr-defined]  # event queries are compiled to one
    known = schemas.setdefault(name, schema)
    readers = [reader.name for reader in registry.events.readers(name) if reader not in gone]
    registered = registry.events.published(name) if left or readers else None
    for other in (known, registered):
        if other is not None and other != schema:
            difference = unequal(schema, other) or "the order of its attributes"
            raise InvalidEvents(
                f"{name} is published with other attributes: {difference}; SELECT the same ones in the same order, or "
                "PUBLISH under another name"
            )


def _few(names: list[str]) -> str:
    distinct = list(dict.fromkeys(names))
    return ", ".join(distinct[:3]) + (f" and {len(distinct) - 3} more" if len(distinct) > 3 else "")
