"""The registry: all registered queries, their targets in the catalog, their hidden streams, and what each reads. It
keeps stage 1 and stage 2 in step. Event queries of one form run as one, except that members with an AGGREGATE that were
paused run apart, grouped by the time from which they see events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter
from typing import NamedTuple, Protocol

from common.bounds import BEGINNING, END, DocId, Micros
from common.tools import NumberSet, decrease, reachable
from join_stage.plans import JoinEngine
from join_stage.protocol import JoinScope, TemplateTable
from join_stage.store.protocol import StoreError
from mmqjp.queries import model
from mmqjp.queries.forms import Form, Forms, RowPart, RowTargets
from mmqjp.queries.model import CompactSet, EventSubscription, HiddenStream, Owner, Placed, Subscription, Target
from pattern_stage.assemble import EVENT_TIME
from pattern_stage.definition import sees_before
from templates.catalog import Catalog, Change, EventPlacement, TemplateRow, place_events
from xpath_stage.evaluator import XPathStage
from xscl.algebra import events as algebra
from xscl.algebra.joins import NEGATED, Conjunct, Hidden, NormalQuery, is_hidden
from xscl.syntax import EventStreams


class Publisher(NamedTuple):
    """A statement that publishes events of a `stream`: results whose first part ends after `since` and that end by
    `until`. `identity` is the same in every store."""

    stream: str
    identity: str
    since: Micros
    until: Micros = END


@dataclass(frozen=True, slots=True)
class EventForm:
    """Event statements that differ in name only and run as one. `since` is their least `since`; `publishers` are those
    that publish; `oldest` and `newest` are the least and greatest qid among the running ones."""

    id: str
    stream: algebra.Statement
    since: Micros
    publishers: tuple[Publisher, ...] = ()
    oldest: int = -1
    newest: int = -1


_RESUMED, _APART = "@", "+"
"""Separate the id of a form from a time of resumption, and a statement's form from the streams that it reads apart."""


@dataclass(frozen=True, slots=True)
class RegisteredDefinition:
    """A definition: number in the store, text as a script, attributes, and the pattern that stage 1 evaluates."""

    id: int
    name: str
    text: str
    schema: algebra.Schema
    pattern: algebra.EventPattern


@dataclass(slots=True)
class FormQueries:
    """`queries` are all of the form's event queries, including paused ones; `resumed` are members with past pauses.
    The kernel runs `source`: the statement, with names of its own for what it reads apart."""

    stream: algebra.Statement
    source: algebra.Statement
    reads: tuple[str, ...]
    documents: tuple[str, ...]
    minds_since: bool
    queries: CompactSet[EventSubscription]
    resumed: CompactSet[EventSubscription]


class EventStatements:
    """A store's event statements and the running ones, which `settle` updates. `changed` are the ids of running forms
    that were added, changed or removed since they were last followed."""

    def __init__(self, catalog: Catalog, stage1: XPathStage) -> None:
        self._catalog, self._stage1 = catalog, stage1
        self.definitions: dict[str, RegisteredDefinition] = {}
        self.placements: dict[str, EventPlacement] = {}
        """Placements of the definitions that a running form reads and stage 1 evaluates."""
        self.running, self.changed = dict[str, EventForm](), dict[str, None]()
        self._running_readers: Counter[str] = Counter()
        self._forms: dict[str, FormQueries] = {}
        self._members: dict[str, CompactSet[EventSubscription]] = {}
        self._changed: dict[str, None] = {}
        self._readers: Counter[str] = Counter()
        self._published: dict[str, tuple[algebra.Schema, int]] = {}
        self._read_apart: dict[str, int] = {}
        """By published name, the qid of the first query with a backfill since its publishers changed."""

    # ------------------------------------------------------------ definitions

    def redefine(self, gone: Iterable[RegisteredDefinition], new: Iterable[RegisteredDefinition]) -> None:
        """Removes definitions that no active query reads, and adds others. Ignores absent ones."""
        self.settle()
        for definition in gone:
            if self.definitions.get(definition.name) is definition:
                assert definition.name not in self.placements, "a definition in use is not removed"
                del self.definitions[definition.name]
        self.definitions |= {definition.name: definition for definition in new}

    def needs_of(self, name: str) -> Change:
        placement = self.placements[name]
        return self._catalog.held(placement.variables, placement.edges, placement.values)

    def _release(self, names: Iterable[str]) -> None:
        for name in names:
            decrease(self._running_readers, name)
            if name not in self._running_readers:
                gone = self.placements.pop(name)
                self._stage1.remove(self._catalog.release(gone.variables, gone.edges, gone.values))

    def _defined(self, form: EventForm) -> list[str]:
        return [name for name in algebra.read_by(form.stream) if name in self.definitions]

    def streams(self) -> EventStreams:
        """Returns the readable event streams with attributes. Thread-safe."""
        return EventStreams(
            {name: definition.schema for name, definition in self.definitions.copy().items()},
            {name: schema for name, (schema, _) in self._published.copy().items()},
        )

    def published(self, name: str) -> algebra.Schema | None:
        return self._published[name][0] if name in self._published else None

    def is_read(self, name: str) -> bool:
        return name in self._readers

    def runs(self, stream: algebra.Statement) -> bool:
        """Whether some event query has these operators, whatever its start."""
        return any(form.stream == stream for form in self._forms.values())

    def readers(self, name: str) -> list[EventSubscription]:
        if name not in self._readers:
            return []
        return [query for form in self._forms.values() if name in form.reads for query in form.queries]

    def stops(self, queries: Iterable[Subscription]) -> bool:
        """Whether others read events of one of these queries, which are about to stop: then they cannot be replayed."""
        return any(one.is_events and one.publishes and one.active and one.name in self._readers for one in queries)

    # ------------------------------------------------------------ queries

    def add(self, query: EventSubscription) -> tuple[str, ...]:
        """Adds an event query, if it can be read. Returns the document streams behind its events."""
        if cannot_be_read(query):
            return ()
        if (form := self._forms.get(query.form_id)) is None:
            stream: algebra.Statement = query.compiled.stream  # type: ignore[attr-defined]  # event queries are compiled to one
            reads = tuple(algebra.read_by(stream))
            streams = dict.fromkeys(self.definitions[name].pattern.stream for name in reads if name in self.definitions)
            source = self._source(stream, query.form_id)
            form = FormQueries(stream, source, reads, tuple(streams), minds_since(stream), CompactSet(), CompactSet())
            self._forms[query.form_id] = form
        form.queries.add(query)
        for name in form.reads:
            self._readers[name] += 1
        if query.publishes:
            schema, count = self._published.get(query.name, (form.stream.schema, 0))
            self._published[query.name] = schema, count + 1
            self._changed_publishers(query.name)
        self.set_running(query, runs=True)
        return form.documents

    def remove(self, query: EventSubscription) -> tuple[str, ...]:
        if cannot_be_read(query):
            return ()
        form = self._forms[query.form_id]
        form.queries.discard(query)
        if not form.queries:
            del self._forms[query.form_id]
        for name in form.reads:
            decrease(self._readers, name)
        if query.publishes:
            schema, count = self._published.pop(query.name)
            if count > 1:
                self._published[query.name] = schema, count - 1
            self._changed_publishers(query.name)
        return form.documents

    def apart(self, form_id: str, names: Iterable[str], qid: int) -> str:
        """Returns the form id of a new query with a backfill. It reads other events than queries before it, since
        publishers have changed, so it shares partial matches only with backfills since that change."""
        since = [self._read_apart.setdefault(name, qid) for name in names if name not in self.definitions]
        return f"{form_id}{_APART}{max(since)}" if since else form_id

    def _changed_publishers(self, name: str) -> None:
        if self._read_apart:  # mostly empty; finding readers visits all forms
            for other in reachable([name], lambda one: {query.name for query in self.readers(one) if query.publishes}):
                self._read_apart.pop(other, None)

    def _source(self, stream: algebra.Statement, form_id: str) -> algebra.Statement:
        _, apart, first = form_id.partition(_APART)
        if not apart:
            return stream

        def source(events: algebra.Events) -> algebra.Events:
            known = events.stream in self.definitions
            return events if known else replace(events, stream=f"{events.stream}{_APART}{first}")

        return algebra.map_events(stream, source)

    def set_running(self, query: Owner, *, runs: bool) -> None:
        """Makes an event query a running member of its form, or none. Ignores other plan nodes, and unreadable
        queries."""
        if not isinstance(query, EventSubscription) or cannot_be_read(query):
            return
        id, form = self._running_id(query), self._forms[query.form_id]
        members = self._members.setdefault(id, CompactSet())
        if runs:
            members.add(query)
            if query.gaps:
                form.resumed.add(query)
        else:
            members.discard(query)
            form.resumed.discard(query)
            if not members:
                del self._members[id]
        self._changed[id] = None

    def _running_id(self, query: EventSubscription) -> str:
        if query.gaps and self._forms[query.form_id].minds_since:
            return f"{query.form_id}{_RESUMED}{since_of(query)}"
        return query.form_id

    def settle(self) -> None:
        """Updates what runs. Raises TooManyChains if the catalog has no number left; changes are then retried."""
        for id in list(self._changed):
            members = self._members.get(id)
            known = self.running.get(id)
            if members is None:
                if known is not None:
                    self._release(self._defined(self.running.pop(id)))
                    self.changed[id] = None
            else:
                form = self._forms[running_form_id(id)]
                since = min(map(since_of, members))
                publishing = (query for query in members if query.publishes)
                publishers = sorted(Publisher(q.name, q.new_identity().text, since_of(q)) for q in publishing)
                qids = [query.qid for query in members]
                new = EventForm(id, form.source, since, tuple(publishers), min(qids), max(qids))
                if known is None:
                    self._use(self._defined(new))
                if new != known:
                    self.running[id] = new
                    self.changed[id] = None
            del self._changed[id]

    def _use(self, names: Iterable[str]) -> None:
        """Adds a running reader of definitions, or raises TooManyChains and adds none."""
        with ExitStack() as undo:
            for name in names:
                if name not in self.placements:
                    self.placements[name], change = place_events(self._catalog, self.definitions[name].pattern)
                    self._stage1.add(change)
                self._running_readers[name] += 1
                undo.callback(self._release, [name])
            undo.pop_all()

    def behind(self, query: EventSubscription) -> set[str]:
        """Returns the document streams behind a query's events, and the names of published events that it reads."""
        known = self.definitions
        return {known[name].pattern.stream if name in known else name for name in self.reads(query)}

    def reads(self, query: EventSubscription) -> tuple[str, ...]:
        return () if cannot_be_read(query) else self._forms[query.form_id].reads

    def documents(self, query: EventSubscription) -> tuple[str, ...]:
        """Returns the document streams behind a query's events."""
        return () if cannot_be_read(query) else self._forms[query.form_id].documents

    def form(self, form_id: str) -> FormQueries:
        """Raises StoreError if this version cannot read the statement."""
        if form_id not in self._forms:
            raise StoreError(f"{model.CANNOT_READ} the event query")
        return self._forms[form_id]

    def members(self, running_id: str) -> list[EventSubscription]:
        return list(self._members.get(running_id, ()))

    def withheld(self, running_id: str) -> list[tuple[int, Micros]]:
        """Returns the resumed queries of a form, or of its part that runs apart, as qid and the time after which the
        first event of their results ends."""
        id = running_form_id(running_id)
        form = self._forms[id]
        if not form.minds_since:
            return [(query.qid, since_of(query)) for query in form.resumed]
        if not form.resumed:
            return []
        active = (query for query in form.queries if query.active)
        return [(one.qid, since_of(one) if self._running_id(one) == running_id else END) for one in active]


def inner_join(query: Subscription, stream: str) -> Hidden:
    """Returns the inner join of a query that produces a hidden stream. Raises StoreError if there is none."""
    waiting: list[Conjunct] = list(query.normal.conjuncts)
    while waiting:
        for side in waiting.pop().sides():
            if side.hidden is not None:
                if side.stream == stream:
                    return side.hidden
                waiting += side.hidden.conjuncts
    raise StoreError(f"the store's tables contradict each other: no inner join of the query produces {stream}")


def minds_since(stream: algebra.Statement) -> bool:
    """Whether starting later changes a stream's results instead of just omitting the first ones: it has an AGGREGATE, a
    LATEST BEFORE, or a PATTERN that depends on events before a match.

    >>> minds_since(algebra.Filter(algebra.Aggregate(algebra.Events("A", ()), (), (), None, ()), None))
    True
    """
    if isinstance(stream, algebra.Pattern | algebra.NearPattern):
        return sees_before(stream)
    return sees_before(stream) or any(map(minds_since, algebra.sources_of(stream)))


def reading_error(query: Subscription) -> str | None:
    """Returns why this version cannot read a query's text; None if it can, or has not tried."""
    error = getattr(query.compiled, "error", None)
    return None if error is None else str(error)


def cannot_be_read(query: Subscription) -> bool:
    return reading_error(query) is not None


def since_of(query: EventSubscription) -> Micros:
    """Returns when a query began: its first event ends after its last resumption or subscription."""
    resumed = query.gaps[-1][1] if query.gaps else None
    return query.since if resumed is None else max(query.since, resumed)


def lives(query: EventSubscription) -> Iterator[tuple[Micros, Micros]]:
    """Yields the intervals (since, until] between a query's pauses: all events of a result end in the same one."""
    since = query.since
    for paused, resumed in query.gaps:
        yield since, paused
        if resumed is None:
            return
        since = max(query.since, resumed)
    yield since, END


def life_at(query: EventSubscription, time: int) -> tuple[Micros, Micros]:
    """Returns the life that contains a time; the last, without an end, if none does."""
    *earlier, (since, _) = lives(query)
    return next((one for one in earlier if one[0] < time <= one[1]), (since, END))


def running_form_id(running_id: str) -> str:
    return running_id.partition(_RESUMED)[0]


def published_name(name: str) -> str:
    """Returns the name under which others publish what a form reads, perhaps apart."""
    return name.partition(_APART)[0]


class Registry:
    def __init__(self, catalog: Catalog, stage1: XPathStage, stage2: JoinEngine) -> None:
        self.catalog = catalog
        self.stage1, self._stage2, self.events = stage1, stage2, EventStatements(catalog, stage1)
        self.subscriptions: dict[int, Subscription] = {}  # by qid, in ascending order
        self.version = 0  # changes with every change of the queries
        self._by_name, self._by_text = model.ByKey(), model.ByKey()
        self.rows, self._forms = dict[int, RowTargets](), Forms()  # `rows` has the targets of each row of R_T
        self.absent: Counter[int] = Counter()  # by row of R_T, the targets that find inputs of absences
        self._hidden, self._hidden_readers = dict[str, HiddenStream](), dict[str, Counter[Owner]]()
        self._windows: Counter[int] = Counter()
        self._joined, self._readers = Counter[tuple[str, str]](), Counter[str]()
        self._sources: dict[frozenset[str], frozenset[str]] = {}
        self._joined_streams: frozenset[str] | None = None
        self._read: dict[str, list[Subscription]] | None = None
        self._aside: set[int] = set()
        self._pending, self._live = dict[int, dict[int, None]](), NumberSet()

    @property
    def window(self) -> Micros:
        return Micros(max(self._windows, default=0))

    @property
    def scope(self) -> JoinScope:
        """Widest window, and pairs of streams that any query joins."""
        return JoinScope(self.window, frozenset(self._joined))

    def joined_streams(self) -> frozenset[str]:
        if self._joined_streams is None:
            of_absences = (one.streams for row in self.absent for one in self.rows[row] if one.op in NEGATED)
            self._joined_streams = frozenset().union(*self._joined, *of_absences)
        return self._joined_streams

    def outside(self) -> frozenset[str]:
        return self.sources_of(frozenset(self._readers))

    def sources(self, stream: str) -> frozenset[str]:
        """Returns the external streams behind a stream: itself unless PUBLISHed or hidden."""
        one = frozenset((stream,))
        if one not in self._sources and stream not in self._readers and not self.made_of(stream):
            return one  # not cached: there may be any number of unknown streams
        return self.sources_of(one)

    def sources_of(self, streams: frozenset[str]) -> frozenset[str]:
        """Cached until queries change."""
        if (found := self._sources.get(streams)) is None:
            made_of = cache(self.made_of)
            external = (stream for stream in reachable(streams, made_of) if not made_of(stream))
            found = self._sources[streams] = frozenset(external)
        return found

    def _forget_sources(self) -> None:
        self.version += 1
        self._sources.clear()
        self._joined_streams = self._read = None

    def named(self, name: str) -> list[Subscription]:
        return list(self._by_name.get(name))

    def unreadable(self) -> dict[Subscription, str]:
        """Returns the queries known to be unreadable, with the reason."""
        known = self.subscriptions.values()
        return {query: error for query in known if (error := reading_error(query)) is not None}

    def set_aside(self) -> None:
        """Deactivates paused queries that cannot be read, keeping their names."""
        for query in self.unreadable():
            if query.targets and not query.active:
                self._take_work(query)
                query.targets = ()
                self._aside.add(query.qid)

    def _take_work(self, query: Subscription) -> None:
        self._forms[query.form_id].remove(query)
        self._remove_targets(query)
        self._forms.forget(query)

    def equal(self, text: str) -> Collection[Subscription]:
        return self._by_text.get(text)

    def is_read(self, stream: str) -> bool:
        return stream in self._readers

    def made_of(self, stream: str, without: Container[Subscription] = frozenset()) -> set[str]:
        """Returns the streams that a stream's producers read; those of events also wait for EVENT_TIME."""
        named = (s for s in self._by_name.get(stream) if isinstance(s, EventSubscription))
        makers = [s for s in named if s.publishes and s not in without]
        made_of_events = {stream for maker in makers for stream in (*self.events.behind(maker), EVENT_TIME)}
        return made_of_events or self.joined_of(stream, without)

    def joined_of(self, stream: str, without: Container[Subscription] = frozenset()) -> set[str]:
        """Returns the streams from which document queries and inner joins derive a stream."""
        makers: list[Owner] = [s for s in self._by_name.get(stream) if s.publishes and s not in without]
        if stream in self._hidden:
            makers.append(self._hidden[stream])
        return {stream for maker in makers for target in maker.targets for stream in target.streams}

    def read_of(self, form_id: str) -> list[Subscription]:
        """Returns a form's queries whose streams are read, by name and qid."""
        if self._read is None:
            self._read = {}
            read = (s for stream in self._readers for s in self.named(stream) if s.publishes)
            for subscription in sorted(read, key=attrgetter("name", "qid")):
                self._read.setdefault(subscription.form_id, []).append(subscription)
        return self._read.get(form_id, [])

    @contextmanager
    def without_readers(self, gone: Collection[Subscription]) -> Iterator[None]:
        """Treats streams that only these queries read as unread inside the block."""
        inner = {stream for query in gone for stream in self.inner_joins(query)}
        unread = (one for one in inner if all(query in gone for query in self.readers(one.stream)))
        targets = (target for owners in (gone, unread) for owner in owners for target in owner.targets)
        read = Counter(stream for target in targets for stream in target.streams)
        events = (query for query in gone if isinstance(query, EventSubscription))
        read.update(stream for query in events for stream in self.events.documents(query))
        before, self._readers, self._read = self._readers, self._readers - read, None
        try:
            yield
        finally:
            self._readers, self._read = before, None

    def hidden(self, stream: str) -> HiddenStream:
        return self._hidden[stream]

    def readers(self, stream: str) -> list[Subscription]:
        """Returns the queries that read a hidden stream, transitively, each once."""
        found: dict[Subscription, None] = {}
        for owner in self._hidden_readers.get(stream, ()):
            found |= dict.fromkeys(self.readers_of(owner))
        return list(found)

    def readers_of(self, owner: Owner) -> list[Subscription]:
        """Returns the queries that get a plan node's results: itself, or its stream's readers."""
        return [owner] if isinstance(owner, model.Registered) else self.readers(owner.stream)

    def inner_joins(self, owner: Owner) -> list[HiddenStream]:
        def of(one: Owner) -> Iterator[HiddenStream]:
            return (stream for target in one.targets for stream in self.inner(target))

        return list(reachable(of(owner), of))

    def owners(self) -> Iterator[Owner]:
        yield from self.subscriptions.values()
        yield from self._hidden.values()

    def of_row(self, row: int) -> Iterator[Target]:
        yield from self.rows.get(row, ())

    def parts_of_row(self, row: int) -> Collection[RowPart]:
        """Returns a row's targets in the groups, and groups of groups, that are answered together."""
        return self.rows[row].parts if row in self.rows else ()

    def form(self, id: str) -> Form | None:
        return self._forms.get(id)

    def template_of(self, row: int) -> int:
        return self.rows[row].template

    def add(self, subscription: Subscription) -> None:
        """Registers a query, atomically."""
        try:
            if isinstance(subscription, model.JoinSubscription):
                self._add_targets(subscription, subscription.normal, subscription.since)
        except BaseException:
            self._remove_targets(subscription)
            self._forms.forget(subscription)
            raise
        self._index(subscription)

    def restore(self, query: Subscription, own: Sequence[Placed], inner: dict[str, list[Placed]]) -> None:
        """Registers a query of an earlier run, whose targets and hidden streams are in the catalog."""
        if isinstance(query, model.JoinSubscription):
            self._restore_targets(query, own, query, inner)
        self._index(query)

    def _restore_targets(
        self, owner: Owner, stored: Iterable[Placed], query: model.JoinSubscription, inner: dict[str, list[Placed]]
    ) -> None:
        for one in stored:
            row = self.catalog.subscribe(one.row, one.window, one.op == "FOLLOWED BY")
            self._add_target(Target(owner, one))
            self._queue_rows((row,))
            for stream in filter(is_hidden, one.streams):
                find = partial(inner_join, query, stream)
                add = partial(self._restore_targets, stored=inner[stream], query=query, inner=inner)
                self._attach(stream, find, query.since, add)

    def _index(self, subscription: Subscription) -> None:
        self._forget_sources()
        self.subscriptions[subscription.qid] = subscription
        self._by_name.add(subscription.name, subscription)
        self._by_text.add(subscription.text, subscription)  # which has the PUBLISH name, if any
        self._forms.add(subscription)
        if isinstance(subscription, EventSubscription):
            self._readers.update(self.events.add(subscription))

    def remove(self, qid: int) -> None:
        self._forget_sources()
        subscription = self.subscriptions.pop(qid)
        self._by_name.remove(subscription.name, subscription)
        self._by_text.remove(subscription.text, subscription)
        if qid in self._aside:
            self._aside.discard(qid)
        else:
            self._take_work(subscription)
        if isinstance(subscription, EventSubscription):
            for stream in self.events.remove(subscription):
                decrease(self._readers, stream)

    def flush(self) -> None:
        """Writes pending rows of R_T to stage 2, and prepares for documents."""
        self._forms.settle()
        self.events.settle()
        for number, rows in self._pending.items():
            if rows:
                self._stage2.plan.put_rows(self._table(number), [self.catalog.rows[row].row() for row in rows])
                for row in rows:
                    self._live.add(row)
        self._pending.clear()

    def _add_targets(self, owner: Owner, normal: NormalQuery | Hidden, since: DocId) -> None:
        """Places a plan node's conjunctive queries in the catalog, in order. Raises TooManyChains."""
        op, width = normal.op, model.width_of(normal.op, normal.window)
        for disjunct, conjunct in enumerate(normal.conjuncts):
            place, change = self.catalog.add(conjunct, width, op == "FOLLOWED BY")
            self.stage1.add(change)
            known, placed = self.rows.get(place.row), None
            if known is not None and (form := self._forms.of(owner)) is not None:
                placed = known.placed(form, disjunct, width)
            if placed is None:
                streams = tuple(side.stream for side in conjunct.sides())
                placed = Placed(self.catalog, disjunct, place.row, place.template, op, width, streams)
            self._add_target(Target(owner, placed))
            self._queue_rows(change.rows)
            for side in conjunct.sides():
                if (inner := side.hidden) is not None:
                    add = partial(self._add_targets, normal=inner, since=since)
                    self._attach(side.stream, lambda inner=inner: inner, since, add)  # type: ignore[misc]  # no inference with a default

    def _add_target(self, target: Target) -> None:
        self._forget_sources()
        row = target.row
        target.owner.targets += (target,)
        if row not in self.rows:
            self.rows[row] = RowTargets()
        self.rows[row].active += 1
        self.rows[row].add(target, self._forms)
        self._windows[target.reach] += 1
        if target.op in NEGATED:
            self.absent[row] += 1
        for stream in target.streams:
            self._readers[stream] += 1
            if is_hidden(stream):
                self._hidden_readers.setdefault(stream, Counter())[target.owner] += 1
        if len(target.streams) > 1:
            self._joined[target.streams[0], target.streams[1]] += 1

    def inner(self, target: Target) -> Iterator[HiddenStream]:
        return (self._hidden[stream] for stream in target.streams if is_hidden(stream))

    def deactivate(self, owner: Owner) -> None:
        """Drops rows of R_T that no other active plan node needs from stage 2. Stage 1 keeps the patterns."""
        self.version += 1
        self._forms.note(owner)
        self.events.set_running(owner, runs=False)
        for target in owner.targets:
            targets = self.rows[target.row]
            targets.active -= 1
            if not targets.active:
                row = self.catalog.rows[target.row].row()
                self._pending.get(row.template, {}).pop(row.id, None)
                if row.id in self._live:
                    self._live.discard(row.id)
                    self._stage2.plan.drop_rows(self._table(row.template), [row])
            for stream in self.inner(target):
                stream.active_reader_count -= 1
                if not stream.active:
                    self.deactivate(stream)

    def activate(self, owner: Owner) -> None:
        self.version += 1
        self._forms.note(owner)
        self.events.set_running(owner, runs=True)
        for target in owner.targets:
            self.rows[target.row].active += 1
            self._queue_rows((self.catalog.rows[target.row].row(),))
            for stream in self.inner(target):
                self._activate_stream(stream)

    def _activate_stream(self, stream: HiddenStream) -> None:
        stream.active_reader_count += 1
        if stream.active_reader_count == 1:
            self.activate(stream)

    def _remove_targets(self, owner: Owner) -> None:
        self._forget_sources()
        if owner.active:
            self.deactivate(owner)
        for target in owner.targets:
            gone, changed = self.catalog.remove(target.row, target.window, target.op == "FOLLOWED BY")
            self.stage1.remove(gone)
            self._queue_rows(changed.rows)
            self.rows[target.row].remove(target, self._forms)
            if not self.rows[target.row]:
                del self.rows[target.row]
            decrease(self._windows, target.reach)
            if target.op in NEGATED:
                decrease(self.absent, target.row)
            if len(target.streams) > 1:
                decrease(self._joined, target.streams)
            for stream in target.streams:
                decrease(self._readers, stream)
                if is_hidden(stream):
                    decrease(self._hidden_readers[stream], owner)
                    if not self._hidden_readers[stream]:
                        del self._hidden_readers[stream]
            for inner in list(self.inner(target)):
                inner.reader_count -= 1
                if not inner.reader_count:
                    del self._hidden[inner.stream]
                    self._remove_targets(inner)

    def _attach(self, name: str, find: Callable[[], Hidden], since: DocId, add: Callable[[HiddenStream], None]) -> None:
        """Adds a reader of a hidden stream; `add` registers the targets of a new one."""
        if (stream := self._hidden.get(name)) is None:
            stream = self._hidden[name] = HiddenStream(name, [find], since, active_reader_count=1)
            add(stream)
        else:
            if "hidden" not in stream.__dict__:
                stream.finds.append(find)
            stream.since = min(stream.since, since)
            self._activate_stream(stream)
        stream.reader_count += 1

    def _queue_rows(self, rows: tuple[TemplateRow, ...]) -> None:
        for row in rows:
            if row.id in self.rows and self.rows[row.id].active:
                self._pending.setdefault(row.template, {})[row.id] = None

    def _table(self, number: int) -> TemplateTable:
        return TemplateTable(number, self.catalog.templates[number])


class KnownQueries(Protocol):
    """The part of the registry that a step needs, which executors get too; see `Registry` for the methods."""

    @property
    def subscriptions(self) -> Mapping[int, Subscription]: ...

    def form(self, id: str) -> Form | None: ...

    def parts_of_row(self, row: int) -> Collection[RowPart]: ...

    def template_of(self, row: int) -> int: ...

    def read_of(self, form_id: str) -> list[Subscription]: ...

    def readers(self, stream: str) -> list[Subscription]: ...

    def named(self, name: str) -> list[Subscription]: ...

    def inner(self, target: Target) -> Iterator[HiddenStream]: ...


def cycle_of(registry: Registry, name: str, without: Container[Subscription] = frozenset()) -> list[str]:
    """Returns a path from a stream to itself that avoids the queries `without`; [] if none exists."""
    if not registry.is_read(name):
        return []
    ways, met = [[name]], set()
    while ways:
        way = ways.pop()
        for stream in registry.made_of(way[0], without):
            if stream == name:
                return [name, *way]
            if stream not in met:
                met.add(stream)
                ways.append([stream, *way])
    return []


def behind(registry: KnownQueries, owner: Owner) -> tuple[set[Subscription], set[HiddenStream]]:
    """Returns the queries and hidden streams that a plan node reads, transitively."""

    def read(one: Owner) -> Iterator[Subscription | HiddenStream]:
        for target in one.targets:
            yield from registry.inner(target)
            yield from (s for stream in target.streams for s in registry.named(stream) if s.publishes)

    found = reachable(read(owner), read)
    queries = {one for one in found if isinstance(one, model.Registered)}
    return queries, {one for one in found if isinstance(one, HiddenStream)}


def forms_to_backfill(
    new: Sequence[EventSubscription], registry: Registry
) -> tuple[dict[str, EventForm], frozenset[str]]:
    """Returns the forms of new event queries and of those that they depend on, by id, and the ids of the new ones.
    Events of older queries are recomputed between their pauses, exactly as originally output if their inputs are still
    stored.
    """
    forms: dict[str, EventForm] = {}
    for query in new:
        _add(forms, query.form_id, query, registry, BEGINNING, END)
    of_new, fresh = frozenset(forms), frozenset(query.qid for query in new)
    known: set[str] = set()
    while waiting := {published_name(name) for form in forms.values() for name in algebra.read_by(form.stream)} - known:
        for name in sorted(waiting):
            named = (one for one in registry.named(name) if isinstance(one, EventSubscription))
            for query in (one for one in named if one.publishes and not one.removed and one.qid not in fresh):
                for since, until in lives(query):
                    _add(forms, f"{query.form_id} {since}", query, registry, since, until)
        known |= waiting
    return forms, of_new


def _add(
    forms: dict[str, EventForm], id: str, query: EventSubscription, registry: Registry, since: Micros, until: Micros
) -> None:
    known = forms.get(id)
    publishers = known.publishers if known else ()
    if query.publishes:
        publishers += (Publisher(query.name, query.new_identity().text, since, until),)
    forms[id] = EventForm(id, registry.events.form(query.form_id).source, since, publishers)
