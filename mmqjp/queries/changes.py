"""Subscribes, unsubscribes, pauses and resumes queries; each change is committed before it takes effect. Compares a
script's event statements with the registered ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from typing import Literal

from common.bounds import BEGINNING, NO_DOCUMENT, DocId, Micros
from common.errors import InputError
from common.tools import reachable, track_progress
from feeds.documents import Now
from join_stage.plans import JoinEngine
from join_stage.store.protocol import StoreError, whole_batch
from mmqjp.queries import stored
from mmqjp.queries.model import EventSubscription, JoinSubscription, Pause, Subscription, generated_name_number
from mmqjp.queries.registry import RegisteredDefinition, Registry, cannot_be_read, cycle_of
from mmqjp.tables.schema import CommitMetadata, Ledger
from xscl.algebra.events import Schema
from xscl.event_forms import unequal
from xscl.event_lower import schemas_of
from xscl.story_queries import PAIRS
from xscl.syntax import EventQuery, Script, free_number, names_read


class InvalidEvents(InputError, ValueError):
    """Event statements conflict with registered ones."""


MOST_COMPARED = 10_000  # maximum number of queries whose names are compared with an unknown one

EventTime = Callable[[Collection[str]], Micros]
"""Returns the time from which new event queries over these document streams see events."""


@dataclass(slots=True)
class DefinitionChanges:
    """Definitions that a script adds and removes; a changed one is in both."""

    added: list[RegisteredDefinition] = field(default_factory=list)
    removed: list[RegisteredDefinition] = field(default_factory=list)
    typed: list[tuple[RegisteredDefinition, str]] = field(default_factory=list)

    def concerns(self, script: Script) -> set[str]:
        """Returns the names whose events change: redefined, or derived from these by the script."""
        if not self.removed:
            return set()
        published: dict[str, list[str]] = {}
        for query in script.event_queries:
            for name in names_read(query.stream):
                if query.publish is not None:
                    published.setdefault(name.name, []).append(query.publish)
        return set(reachable([one.name for one in self.removed], lambda name: published.get(name, ())))


def _few(names: list[str]) -> str:
    distinct = list(dict.fromkeys(names))
    return ", ".join(distinct[:3]) + (f" and {len(distinct) - 3} more" if len(distinct) > 3 else "")


SubscribeMode = Literal["ensure", "add", "replace", "renew", "exact"]
"""How a script's queries relate to those registered.

Queries are *the same* if both PUBLISH name (or none) and text are equal. A query is registered unless the same one is;
but "add" registers all, and "replace" all without PUBLISH name. Then "replace" and "renew" remove the other queries
under the script's PUBLISH names, and "exact" removes all others.
"""

MetadataFor = Callable[[list[str]], CommitMetadata]
"""Returns the metadata to commit with a change, given the query names; none for a change that the system makes."""

WithinBatch = Callable[[list[Subscription]], None]
"""Called with the new queries within the batch that stores them."""


class UnknownQuery(InputError, KeyError):
    """No query has this name; `close` is a similar name, or ""."""

    def __init__(self, name: str, close: str = "") -> None:
        super().__init__(name, close)
        self.name, self.close = name, close

    def __str__(self) -> str:
        return f"no query is named {self.name!r}" + (f"; did you mean {self.close!r}?" if self.close else "")


def unknown_query(name: str, registry: Registry) -> UnknownQuery:
    known = (query.name for query in islice(registry.subscriptions.values(), MOST_COMPARED))
    close = get_close_matches(name, {*known, *registry.events.definitions}, 1)
    return UnknownQuery(name, *close)


class PublishCycle(InputError, ValueError):
    """A PUBLISHed stream would depend on itself, through registered queries."""


class NameTaken(InputError, ValueError):
    """A query PUBLISHes the name of a query without PUBLISH."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name} is already the name of a query without PUBLISH; PUBLISH under another name, or remove it"


def no_metadata(names: list[str]) -> CommitMetadata:
    return CommitMetadata()


def no_action(subscriptions: list[Subscription]) -> None: ...


@dataclass(eq=False)
class QueryChanges:
    """`_keep_waiting` commits what event statements wait with."""

    _store: JoinEngine
    _ledger: Ledger
    _stored: stored.StoredQueries
    _registry: Registry
    _compiler: stored.Compiler
    _now: Now
    _event_time: EventTime
    _keep_waiting: Callable[[], None]
    metadata_for: MetadataFor = no_metadata

    def __post_init__(self) -> None:
        for subscription in self._registry.subscriptions.values():
            if subscription.paused is not None:
                self._registry.deactivate(subscription)
        self._highest_number = self._stored.highest_number()

    def save_pauses(self, pauses: Iterable[Pause]) -> None:
        """Writes pauses and resumptions, within a batch."""
        self._stored.save_pauses(list(pauses), self._now(), self._ledger.batch)

    def apply(self, pauses: Iterable[Pause]) -> dict[str, str]:
        """Pauses and resumes queries, after the commit. Returns the reasons by name."""
        reasons = {}
        for one in pauses:
            if one.reason is not None:
                self._registry.deactivate(one.query)
                reasons[one.query.name] = one.reason
            one.query.set_paused(one.last, one.reason, self._ledger.batch)
            if one.reason is None:
                self._registry.activate(one.query)
        return reasons

    def subscribe(
        self, script: Script, mode: SubscribeMode, *, backfills: bool = False, within: WithinBatch = no_action
    ) -> list[str]:
        """Registers a script's queries and returns their names. They see what comes from now on, with `backfills`
        what is stored too. Raises PublishCycle, NameTaken and InvalidEvents; then nothing is registered."""
        typed = stored.TypedTexts(script)
        definitions = self._definition_changes(script, typed)
        changed = definitions.concerns(script)
        names, fresh, kept, sources = self._diff(script, mode, changed, typed, backfills=backfills)
        gone = list(self._removed_by(script, mode, kept))
        without = frozenset(gone)
        for name in {s.name for s in fresh if s.publishes and generated_name_number(s.name)}:
            if any(not s.publishes for s in self._registry.named(name) if s not in gone):
                raise NameTaken(name)
        self._refuse_misfits(definitions, fresh, without)
        if mode == "exact":  # removes definitions too if only the removed queries read them
            events, defined = self._registry.events, {definition.name for definition in script.definitions}
            others = [one for name, one in events.definitions.items() if name not in defined]
            definitions.removed += [one for one in others if without.issuperset(events.readers(one.name))]
        self._register(fresh, gone, definitions, names, within, sources)
        self._highest_number = max([self._highest_number, *(generated_name_number(s.name) for s in fresh)])
        return names

    def unsubscribe(self, name: str) -> None:
        """Removes all queries with a name, including the hidden ones behind stories, or a definition. Raises
        UnknownQuery, or InvalidEvents if the definition is in use."""
        events = self._registry.events
        undefined = [events.definitions[name]] if name in events.definitions else []
        if undefined and (readers := [query.name for query in events.readers(name)]):
            raise InvalidEvents(f"the event {name} is read by {_few(readers)}; remove them first")
        gone = [] if undefined else self._named(name)
        if any(one.is_events for one in gone) and (pairs := self._pairs_of(name)):
            gone += pairs
            made = (one for one in events.definitions.values() if one.pattern.stream == name + PAIRS)
            undefined = [one for one in made if set(gone).issuperset(events.readers(one.name))]
        self._before_stop(gone)
        with whole_batch(self._store):
            self._stored.save_definitions((), undefined, self._now())
            self._stored.save_removals(gone, self._now(), self._ledger.batch)
            self._ledger.save_metadata(self.metadata_for([name]))
        for subscription in gone:
            self._registry.remove(subscription.qid)
        if undefined:
            events.redefine(undefined, ())

    def _pairs_of(self, name: str) -> list[Subscription]:
        """The hidden query of stories that PUBLISH a name."""
        return [one for one in self._registry.named(name + PAIRS) if one.is_hidden]

    def pause(self, name: str, reason: str) -> None:
        """Raises UnknownQuery."""
        stopping = {s: reason for s in self._named(name) if s.paused is None}
        self._before_stop(stopping)
        self._set_paused(stopping, [name])

    def resume(self, name: str) -> None:
        """Resumed queries see later documents and those from before the pause. For stories, the hidden query behind
        them is resumed too, since it may have exceeded a limit. Raises UnknownQuery and StoreError."""
        unreadable, named = self._registry.unreadable(), [*self._named(name), *self._pairs_of(name)]
        if reason := next((unreadable[query] for query in named if query in unreadable), None):
            raise StoreError(f"{name}: {reason}")
        self._set_paused({s: None for s in named if s.paused is not None}, [name])

    def pause_queries(self, reasons: Mapping[Subscription, str]) -> None:
        with suppress(Exception):  # the cause may be in the waiting state
            self._before_stop(reasons)
        self._set_paused(reasons, [])

    def _before_stop(self, queries: Iterable[Subscription]) -> None:
        if self._registry.events.stops(queries):
            self._keep_waiting()

    @contextmanager
    def without(self, queries: Iterable[Subscription]) -> Iterator[None]:
        left_out = list(queries)
        self._mark_removed(left_out)
        try:
            yield
        finally:
            self._unmark_removed(left_out)

    def _named(self, name: str) -> list[Subscription]:
        if not (found := self._registry.named(name)):
            raise unknown_query(name, self._registry)
        return found

    def _set_paused(self, reasons: Mapping[Subscription, str | None], names: list[str]) -> None:
        """Pauses queries for reasons, or resumes those without one."""
        readers = (query for query in reasons if isinstance(query, EventSubscription))
        time = self._event_time({stream for query in readers for stream in self._registry.events.documents(query)})
        document, never = DocId(self._ledger.next_docid - 1), stored.NO_ARRIVAL
        pauses = [Pause(one, time if one.is_events else document, never, reason) for one, reason in reasons.items()]
        with whole_batch(self._store):
            if None in reasons.values():
                self._store.plan.forget()  # its state may lack rows that paused queries need
            self.save_pauses(pauses)
            self._ledger.save_metadata(self.metadata_for(names))
        self.apply(pauses)

    def _diff(
        self, script: Script, mode: SubscribeMode, others: Collection[str], typed: stored.TypedTexts, *, backfills: bool
    ) -> tuple[list[str], list[Subscription], set[Subscription], dict[Subscription, str]]:
        """Returns a script's names, its queries to register, those registered already, and the original text of each.

        Unless all are added, the n-th query of a name and text is new only if fewer than n exist. With `backfills`,
        "replace" registers all again, so that they see older documents. An event query that reads any of `others` also
        counts as different.
        """
        last = NO_DOCUMENT if backfills else DocId(self._ledger.next_docid - 1)
        events_since, schemas = self._visible_events(script, backfills=backfills)
        met, left = Counter[str](), dict[str, Iterator[Subscription]]()
        names, fresh, kept, sources = list[str](), list[Subscription](), set[Subscription](), dict[Subscription, str]()
        highest, published = self._highest_number, script.published()
        for position, query in enumerate(track_progress("compiling", script.all_queries), 1):
            compiled: stored.CompiledQuery | stored.CompiledEvents
            if isinstance(query, EventQuery):
                compiled = stored.CompiledEvents(query, schemas)
                form_id = compiled.form_since(events_since)
                is_other = any(name.name in others for name in names_read(query.stream))
            else:
                compiled = self._compiler.compile(query, script.namespaces)
                is_other = False
            text = compiled.text
            source = typed.of(query)
            # Nothing can be replaced without a name, so the query is added.
            joins = mode == "add" or (mode == "replace" and query.publish is None)
            is_other = is_other or joins or (mode == "replace" and backfills)
            known = () if is_other else [one for one in self._registry.equal(text) if not cannot_be_read(one)]
            before = met.get(text, 0)
            occurrence = before + (len(self._registry.equal(text)) if joins else 0)
            met[text] = before + 1
            if occurrence < len(known):
                same = next(left.setdefault(text, iter(known)))
                kept.add(same)
                if source is not None:
                    sources[same] = source
                names.append(same.name)
                continue
            if query.publish is None:
                highest = free_number(max(position, highest + 1), published)
            name = query.publish or f"q{highest}"
            qid = self._stored.next_qid + len(fresh)
            parts, window, begun = (qid, name, text, occurrence), compiled.normal.window, self._ledger.batch
            if isinstance(query, EventQuery):
                if backfills:
                    read = {one.name for one in names_read(query.stream)} - {one.name for one in script.definitions}
                    form_id = self._registry.events.apart(form_id, read, qid)
                fresh.append(EventSubscription(*parts, events_since, window, form_id, begun, compiled))
            else:
                fresh.append(JoinSubscription(*parts, last, window, compiled.form_id, begun, compiled))
            if source is not None:
                sources[fresh[-1]] = source
            names.append(name)
        return names, fresh, kept, sources

    def _visible_events(self, script: Script, *, backfills: bool) -> tuple[Micros, dict[str, Schema]]:
        """Returns the time after which a script's event queries see events (all, if it `backfills` them over stored
        documents), and the attributes of the events that they may read."""
        if not script.event_queries:
            return BEGINNING, {}
        schemas = schemas_of(script, self._registry.events.streams())
        if backfills:
            return BEGINNING, schemas
        streams = {name: one.pattern.stream for name, one in self._registry.events.definitions.items()}
        streams |= {one.name: one.block.stream for one in script.definitions}
        read = {name.name for query in script.event_queries for name in names_read(query.stream)}
        return self._event_time({streams[name] for name in read if name in streams}), schemas

    def _definition_changes(self, script: Script, typed: stored.TypedTexts) -> DefinitionChanges:
        changes, known = DefinitionChanges(), self._registry.events.definitions
        for definition in script.definitions:
            text = stored.definition_text(definition, script)
            if (before := known.get(definition.name)) is None or before.text != text:
                number = self._stored.next_definition + len(changes.added)
                changes.added.append(stored.made(number, text, definition, script.namespaces))
                changes.removed += [] if before is None else [before]
                before = changes.added[-1]
            if (source := typed.of(definition)) is not None:
                changes.typed.append((before, source))
        return changes

    def _refuse_misfits(
        self, changes: DefinitionChanges, fresh: Iterable[Subscription], gone: Collection[Subscription]
    ) -> None:
        """Raises InvalidEvents if a changed definition is read by others, or a name stands for two things."""
        registry = self._registry
        for definition in changes.removed:
            if left := [query.name for query in registry.events.readers(definition.name) if query not in gone]:
                cause = f"the event {definition.name} has another definition, which {_few(left)} read"
                raise InvalidEvents(f"{cause}; choose another name, or change them together")
        replaced = {definition.name for definition in changes.removed}
        for definition in changes.added:
            name = definition.name
            if name not in replaced:
                what = "a stream of documents that queries read" if registry.is_read(name) else ""
                if makers := [query for query in registry.named(name) if query.publishes and query not in gone]:
                    what = f"what registered {'event queries' if makers[0].is_events else 'queries'} PUBLISH"
                if what:
                    raise InvalidEvents(f"{name} is {what}; define the event under another name")
            if definition.pattern.stream in registry.events.definitions:
                raise InvalidEvents(f"{definition.pattern.stream} is a defined event, not a stream of documents")
        defined = {**registry.events.definitions, **{one.name: one for one in changes.added}}
        schemas: dict[str, Schema] = {}
        for query in fresh:
            if query.publishes:
                self._refuse_clash(query, gone, defined, schemas)
            sides = () if query.is_events else (side for one in query.conjuncts for side in one.sides())
            for side in sides:
                if side.stream in defined:
                    raise InvalidEvents(f"{side.stream} is a defined event, not a stream of documents")

    def _refuse_clash(
        self,
        query: Subscription,
        gone: Collection[Subscription],
        defined: Mapping[str, RegisteredDefinition],
        schemas: dict[str, Schema],
    ) -> None:
        """Raises InvalidEvents if others publish different events under a query's name."""
        name = query.name
        if name in defined:
            raise InvalidEvents(f"{name} is a defined event; PUBLISH under another name")
        left = [other for other in self._registry.named(name) if other.publishes and other not in gone]
        if any(other.is_events != query.is_events for other in left):
            cause = f"{name} is what registered {'queries' if query.is_events else 'event queries'} PUBLISH"
            raise InvalidEvents(
                f"{cause}; queries that PUBLISH the same name must all read documents or all read events"
            )
        if not query.is_events:
            return
        schema: Schema = query.compiled.stream.schema  # type: ignore[attr-defined]  # event queries are compiled to one
        known = schemas.setdefault(name, schema)
        readers = [reader.name for reader in self._registry.events.readers(name) if reader not in gone]
        registered = self._registry.events.published(name) if left or readers else None
        for other in (known, registered):
            if other is not None and other != schema:
                difference = unequal(schema, other) or "the order of its attributes"
                advice = "SELECT the same ones in the same order, or PUBLISH under another name"
                raise InvalidEvents(f"{name} is published with other attributes: {difference}; {advice}")

    def _removed_by(self, script: Script, mode: SubscribeMode, kept: set[Subscription]) -> Iterator[Subscription]:
        if mode == "exact":
            yield from (s for s in self._registry.subscriptions.values() if s not in kept)
        if mode not in ("replace", "renew"):
            return
        names = script.published()
        for name in sorted(names):
            yield from (s for s in self._registry.named(name) if s.publishes and s not in kept)
            if name + PAIRS not in names and any(one.is_events for one in self._registry.named(name)):
                yield from self._pairs_of(name)

    def _register(
        self,
        fresh: list[Subscription],
        gone: list[Subscription],
        definitions: DefinitionChanges,
        names: list[str],
        within: WithinBatch,
        sources: Mapping[Subscription, str],
    ) -> None:
        # Replacements are added before the old queries go, so that shared patterns keep their ids and join state, even
        # if this fails. The old queries are not answered meanwhile.
        self._before_stop(gone)
        events = self._registry.events
        with ExitStack() as undo:
            undo.callback(events.settle)
            undo.callback(self._unmark_removed, gone)  # after the replacements are gone
            # But event queries go first, because the events they read may have new definitions.
            self._mark_removed(subscription for subscription in gone if subscription.is_events)
            undo.callback(events.redefine, definitions.added, definitions.removed)
            events.redefine(definitions.removed, definitions.added)
            for subscription in track_progress("registering", fresh):
                self._registry.add(subscription)
                undo.callback(self._registry.remove, subscription.qid)
            events.settle()
            without = frozenset(gone)
            for name in dict.fromkeys(subscription.name for subscription in fresh if subscription.publishes):
                if cycle := cycle_of(self._registry, name, without):
                    path = " -> ".join(cycle)
                    raise PublishCycle(f"a cycle of PUBLISHed names: {path}, with queries registered earlier")
            if within is not no_action:
                self._registry.flush()  # a rollback would take rows of R_T with it
            with whole_batch(self._store):
                now = self._now()
                self._stored.save(fresh, self._registry, now)
                self._stored.save_removals(gone, now, self._ledger.batch)
                self._stored.save_definitions(definitions.added, definitions.removed, now)
                self._save_sources(sources, definitions, now)
                self._ledger.save_metadata(self.metadata_for(names))
                self._mark_removed(gone)
                if within is not no_action:
                    with self._registry.without_readers(without):
                        within(fresh)
            undo.pop_all()
        self._stored.committed(fresh, self._registry.catalog, definitions.added)
        for subscription in gone:
            self._registry.remove(subscription.qid)

    def _save_sources(self, sources: Mapping[Subscription, str], definitions: DefinitionChanges, now: int) -> None:
        """Writes original texts that differ from the stored ones, within a batch."""
        first, first_definition = self._stored.next_qid, self._stored.next_definition
        noted = self._stored.sources("qid", [one.qid for one in sources if one.qid < first])
        of_queries = {one.qid: text for one, text in sources.items() if noted.get(one.qid, one.text) != text}
        known = [one.id for one, _ in definitions.typed if one.id < first_definition]
        noted = self._stored.sources("definition", known)
        of_definitions = {one.id: text for one, text in definitions.typed if noted.get(one.id, one.text) != text}
        self._stored.save_sources(of_queries, of_definitions, now, self._ledger.batch)

    def _mark_removed(self, subscriptions: Iterable[Subscription]) -> None:
        for subscription in subscriptions:
            if subscription.active:
                self._registry.deactivate(subscription)
            subscription.removed = True

    def _unmark_removed(self, subscriptions: Iterable[Subscription]) -> None:
        for subscription in subscriptions:
            if subscription.removed:
                subscription.removed = False
                if subscription.active:
                    self._registry.activate(subscription)
