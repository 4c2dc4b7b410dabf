"""Registered event statements: definitions, event queries and what they read and publish, in step with those that run.

Event queries of one form are run as one: by its id, and if a member with an AGGREGATE was paused, by the time since
which it sees events, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mmqjp.queries.event_compile import minds_since, read_by
from mmqjp.queries.event_registry import NEVER, EventForm, EventRegistry, Publisher
from mmqjp.queries.few import Few
from mmqjp.queries.model import Owner, Subscription
from templates.catalog import Catalog
from xpath_stage.evaluator import XPathStage
from xscl.algebra.event_pattern import EventPattern
from xscl.algebra.event_sequences import Statement
from xscl.algebra.events import Schema
from xscl.script import EventStreams

BEGINNING = -(2**62)
"""A time before all others."""

_RESUMED = "@"


@dataclass(frozen=True, slots=True)
class Definition:
    """A registered definition: its number in the store, its text as a script of its own, the attributes of its events,
    and what stage 1 evaluates."""

    id: int
    name: str
    text: str
    schema: Schema
    pattern: EventPattern


@dataclass(slots=True)
class _Form:
    """What the event queries of a form share. `queries` are all of them, also those that are paused; `resumed` are the
    members that were paused before."""

    stream: Statement
    reads: tuple[str, ...]
    documents: tuple[str, ...]
    minds_since: bool
    queries: Few[Subscription]
    resumed: Few[Subscription]


class EventStatements:
    """The event statements of a store. `running` has those that are run; `settle` brings it up to date."""

    def __init__(self, catalog: Catalog, stage1: XPathStage) -> None:
        self.running = EventRegistry(catalog, stage1)
        self.definitions: dict[str, Definition] = {}
        self._forms: dict[str, _Form] = {}
        self._members: dict[str, Few[Subscription]] = {}
        self._changed: dict[str, None] = {}
        self._readers: Counter[str] = Counter()
        self._published: dict[str, tuple[Schema, int]] = {}

    # ------------------------------------------------------------ definitions

    def redefine(self, gone: Iterable[Definition], new: Iterable[Definition]) -> None:
        """Removes definitions that no active query reads, and adds others. Leaves out those to remove that are not
        there."""
        self.settle()
        for definition in gone:
            if self.definitions.get(definition.name) is definition:
                del self.definitions[definition.name]
                self.running.undefine(definition.name)
        for definition in new:
            self.definitions[definition.name] = definition
            self.running.define(definition.name, definition.pattern, definition.id)

    def streams(self) -> EventStreams:
        """Returns the event streams that queries can read, with their attributes. Another thread may ask."""
        return EventStreams(
            {name: definition.schema for name, definition in self.definitions.copy().items()},
            {name: schema for name, (schema, _) in self._published.copy().items()},
        )

    def published(self, name: str) -> Schema | None:
        """Returns the attributes of what event queries publish under a name, or None."""
        found = self._published.get(name)
        return None if found is None else found[0]

    def is_read(self, name: str) -> bool:
        """Returns whether an event query reads the events of a name."""
        return name in self._readers

    def runs(self, stream: Statement) -> bool:
        """Returns whether an event query has these operators, since whatever time it sees events."""
        return any(form.stream == stream for form in self._forms.values())

    def readers(self, name: str) -> list[Subscription]:
        """Returns the event queries that read the events of a name."""
        if name not in self._readers:
            return []
        return [query for form in self._forms.values() if name in form.reads for query in form.queries]

    # ------------------------------------------------------------ queries

    def add(self, query: Subscription) -> tuple[str, ...]:
        """Adds an event query, as a member. Returns the streams of documents that its events are defined from."""
        form = self._forms.get(query.form_id)
        if form is None:
            stream: Statement = query.compiled.stream  # type: ignore[attr-defined]  # event queries are compiled to one
            reads = tuple(read_by(stream))
            streams = dict.fromkeys(self.definitions[name].pattern.stream for name in reads if name in self.definitions)
            form = _Form(stream, reads, tuple(streams), minds_since(stream), Few(), Few())
            self._forms[query.form_id] = form
        form.queries.add(query)
        for name in form.reads:
            self._readers[name] += 1
        if query.publishes:
            schema, count = self._published.get(query.name, (form.stream.schema, 0))
            self._published[query.name] = schema, count + 1
        self.join(query)
        return form.documents

    def remove(self, query: Subscription) -> tuple[str, ...]:
        """Removes an event query, which is a member no more. Returns what `add` did."""
        form = self._forms[query.form_id]
        form.queries.discard(query)
        if not form.queries:
            del self._forms[query.form_id]
        for name in form.reads:
            self._readers[name] -= 1
            if not self._readers[name]:
                del self._readers[name]
        if query.publishes:
            schema, count = self._published.pop(query.name)
            if count > 1:
                self._published[query.name] = schema, count - 1
        return form.documents

    def join(self, query: Owner) -> None:
        """Makes an event query one of those that its form is run for. Other plan nodes are left alone."""
        if not (isinstance(query, Subscription) and query.is_events):
            return
        id = self._running_id(query)
        self._members.setdefault(id, Few()).add(query)
        if query.gaps:
            self._forms[query.form_id].resumed.add(query)
        self._changed[id] = None

    def leave(self, query: Owner) -> None:
        """Undoes `join`."""
        if not (isinstance(query, Subscription) and query.is_events):
            return
        id = self._running_id(query)
        members = self._members[id]
        members.discard(query)
        self._forms[query.form_id].resumed.discard(query)
        if not members:
            del self._members[id]
        self._changed[id] = None

    def _running_id(self, query: Subscription) -> str:
        if query.gaps and self._forms[query.form_id].minds_since:
            return f"{query.form_id}{_RESUMED}{since_of(query)}"
        return query.form_id

    def settle(self) -> None:
        """Brings what is run up to date. If the catalog has no number left for a definition, raises TooManyChains; what
        has changed is then brought up to date later."""
        for id in list(self._changed):
            members = self._members.get(id)
            known = self.running.forms.get(id)
            if members is None:
                if known is not None:
                    self.running.remove(id)
            else:
                form = self._forms[form_of(id)]
                since = min(map(since_of, members))
                publishers = sorted(
                    Publisher(query.name, query.new_identity().text, since_of(query))
                    for query in members
                    if query.publishes
                )
                new = EventForm(id, form.stream, since, tuple(publishers))
                if new != known:
                    self.running.put(new)
            del self._changed[id]

    # ------------------------------------------------------------ what is behind and before

    def behind(self, query: Subscription) -> set[str]:
        """Returns the streams of documents that the events of a query are defined from, and the names of events that
        others publish for it."""
        return {
            self.definitions[name].pattern.stream if name in self.definitions else name
            for name in self._forms[query.form_id].reads
        }

    def reads(self, query: Subscription) -> tuple[str, ...]:
        """Returns the names of the events that a query reads."""
        return self._forms[query.form_id].reads

    def stream_of(self, form_id: str) -> Statement:
        """Returns what the queries of a form tell."""
        return self._forms[form_id].stream

    def members(self, running_id: str) -> list[Subscription]:
        """Returns the queries that something is run for."""
        return list(self._members.get(running_id, ()))

    def withheld(self, running_id: str) -> list[tuple[int, int]]:
        """Returns the resumed queries of a form, as qid and the time after which the first event ended of results that
        it gets: of what is run here, if it is run apart for some."""
        id = form_of(running_id)
        form = self._forms[id]
        if not form.minds_since:
            return [(query.qid, since_of(query)) for query in form.resumed]
        if not form.resumed:
            return []
        return [
            (query.qid, since_of(query) if self._running_id(query) == running_id else NEVER)
            for query in form.queries
            if query.active
        ]


def since_of(query: Subscription) -> int:
    """Returns the time after which the first event of a result ends that a query gets: that of its last resumption, or
    of its subscription.

    Pauses of event queries are between times, in microseconds, where those of others are between documents.
    """
    resumed = query.gaps[-1][1] if query.gaps else None
    return query.since if resumed is None else max(query.since, resumed)


def form_of(running_id: str) -> str:
    """Returns the id of the form that something is run for."""
    return running_id.partition(_RESUMED)[0]
