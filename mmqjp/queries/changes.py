"""Changes of the registered queries: subscribe, unsubscribe, pause, resume. Each is committed before it takes
effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Literal

from common.errors import InputError
from common.progress import followed
from feeds.times import Now
from join_stage.joiner import JoinEngine
from join_stage.store.protocol import whole_batch
from mmqjp.queries.compile import CompiledQuery, Compiler
from mmqjp.queries.event_changes import (
    DefinitionChanges,
    EventCompiler,
    EventTime,
    InvalidEvents,
    definition_changes,
    refuse_misfits,
    streams_behind,
    unused,
)
from mmqjp.queries.event_compile import CompiledEvents
from mmqjp.queries.lineage import cycle_of
from mmqjp.queries.model import Subscription, number_of
from mmqjp.queries.registry import Registry
from mmqjp.queries.stored import NO_ARRIVAL, StoredQueries
from mmqjp.tables.commit_metadata import CommitMetadata
from mmqjp.tables.ledger import Ledger
from templates.witness import NO_WITNESSES
from xscl import Script
from xscl.event_syntax import EventQuery, names_read
from xscl.script import free_number

SubscribeMode = Literal["ensure", "add", "replace", "renew", "exact"]
"""How a script's queries relate to those already registered.

A script's query is *the same* as a registered one if both have the same PUBLISH name, or none, and the same text. A
query is registered only if the same one is not registered yet; but "add" registers all of them, and "replace" all that
have no PUBLISH name. "replace" and "renew" then remove the other queries under the script's PUBLISH names, and "exact"
removes all other queries.
"""

MetadataFor = Callable[[list[str]], CommitMetadata]
"""Returns the metadata to commit with a change of queries, given their names."""

WithinBatch = Callable[[list[Subscription]], None]
"""Is called with the new queries within the batch that stores them."""


class UnknownQuery(InputError, KeyError):
    """No query has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"no query is named {self.name!r}"


class PublishCycle(InputError, ValueError):
    """A PUBLISHed stream would depend on itself, through queries registered earlier."""


class NameTaken(InputError, ValueError):
    """A query PUBLISHes a name that was given to a query without PUBLISH."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name} is already the name of a query without PUBLISH; PUBLISH under another name, or remove it"


def no_metadata(names: list[str]) -> CommitMetadata:
    """Returns empty metadata."""
    return CommitMetadata()


def no_action(subscriptions: list[Subscription]) -> None:
    """Does nothing within the batch."""


class QueryChanges:
    """Changes the registered queries of a store."""

    def __init__(
        self,
        store: JoinEngine,
        ledger: Ledger,
        stored: StoredQueries,
        registry: Registry,
        compiler: Compiler,
        now: Now,
        event_time: EventTime,
    ) -> None:
        """Takes over a registry with the store's queries."""
        self._event_time = event_time
        self._store, self._ledger, self._stored, self._registry, self._now = store, ledger, stored, registry, now
        self._compiler = compiler
        for subscription in registry.subscriptions.values():
            if subscription.paused is not None:
                registry.deactivate(subscription)
        self._highest_number = max(map(number_of, stored.take_names()), default=0)

    def save_pauses(self, qids: Sequence[int], docid: int, reason: str | None, arrival: int = NO_ARRIVAL) -> None:
        """Writes, within a batch, that queries are paused after a document, or, if `reason` is None, resumed. Paused
        queries get the answers of this batch for arrivals before `arrival`."""
        self._stored.save_pauses(qids, docid, reason, self._now(), self._ledger.batch, arrival)

    def subscribe(
        self,
        script: Script,
        mode: SubscribeMode,
        *,
        since: int | None = None,
        metadata_for: MetadataFor = no_metadata,
        within: WithinBatch = no_action,
    ) -> list[str]:
        """Registers the queries of a script and returns their names.

        They see documents with ids greater than `since`; by default, those that arrive from now on. Raises PublishCycle
        for a cycle of PUBLISHed names, NameTaken for the name of a query without PUBLISH, and InvalidEvents for event
        statements that do not fit those that are registered; then nothing is registered.
        """
        definitions = definition_changes(script, self._registry, self._stored.definitions.next_id)
        names, fresh, kept = self._diff(script, mode, since, definitions.concerns(script))
        gone = list(self._removed_by(script, mode, kept))
        without = frozenset(gone)
        self._refuse_taken_names(fresh, without)
        refuse_misfits(definitions, fresh, without, self._registry)
        if mode == "exact":
            definitions.removed += unused(script, self._registry, without)
        self._register(fresh, gone, definitions, lambda: self._ledger.save_metadata(metadata_for(names)), within)
        self._highest_number = max([self._highest_number, *(number_of(s.name) for s in fresh)])
        return names

    def unsubscribe(self, name: str, metadata_for: MetadataFor = no_metadata) -> None:
        """Removes all queries of a name, or the definition of an event that nothing reads. Raises UnknownQuery if there
        is none, and InvalidEvents if what it defines is read."""
        if name in self._registry.events.definitions:
            self._undefine(name, metadata_for)
            return
        gone = self._named(name)
        with whole_batch(self._store):
            self._stored.save_removals(gone, self._now(), self._ledger.batch)
            self._ledger.save_metadata(metadata_for([name]))
        for subscription in gone:
            self._registry.remove(subscription.qid)

    def _undefine(self, name: str, metadata_for: MetadataFor) -> None:
        events = self._registry.events
        if readers := list(dict.fromkeys(query.name for query in events.readers(name))):
            more = f" and {len(readers) - 3} more" if len(readers) > 3 else ""
            raise InvalidEvents(f"the event {name} is read by {', '.join(readers[:3])}{more}; remove them first")
        gone = [events.definitions[name]]
        with whole_batch(self._store):
            self._stored.definitions.save((), gone, self._now())
            self._ledger.save_metadata(metadata_for([name]))
        events.redefine(gone, ())

    def pause(self, name: str, reason: str, metadata_for: MetadataFor = no_metadata) -> None:
        """Pauses the queries of a name. Raises UnknownQuery if there is none."""
        self._set_paused([s for s in self._named(name) if s.paused is None], reason, [name], metadata_for)

    def resume(self, name: str, metadata_for: MetadataFor = no_metadata) -> None:
        """Resumes the queries of a name. They see documents that arrive from now on, and those from before the pause.
        Raises UnknownQuery if there is none."""
        self._set_paused([s for s in self._named(name) if s.paused is not None], None, [name], metadata_for)

    def _named(self, name: str) -> list[Subscription]:
        found = self._registry.named(name)
        if not found:
            raise UnknownQuery(name)
        return found

    def _set_paused(
        self, subscriptions: Sequence[Subscription], reason: str | None, names: list[str], metadata_for: MetadataFor
    ) -> None:
        behind = streams_behind(subscriptions, self._registry)
        last = {False: self._ledger.next_docid - 1, True: self._event_time(behind)}  # of documents, and of events
        with whole_batch(self._store):
            if reason is None:
                self._store.extend(NO_WITNESSES)  # cached plan state may lack what paused queries need
            for is_events, at in last.items():
                self.save_pauses([s.qid for s in subscriptions if s.is_events == is_events], at, reason)
            self._ledger.save_metadata(metadata_for(names))
        for subscription in subscriptions:
            at = last[subscription.is_events]
            if reason is None:
                subscription.resume(at, self._ledger.batch)
                self._registry.activate(subscription)
            else:
                self._registry.deactivate(subscription)
                subscription.pause(at, reason)

    def _diff(
        self, script: Script, mode: SubscribeMode, since: int | None, others: Collection[str]
    ) -> tuple[list[str], list[Subscription], set[Subscription]]:
        """Returns the names of a script's queries, those to register, and those that are already registered.

        Unless all are added, the n-th query of a name and text is registered only if fewer than n are. With `since`,
        "replace" registers all of them again, so that they see older documents. An event query is another one, too, if
        it reads any of `others`.
        """
        last = self._ledger.next_docid - 1
        events = EventCompiler(script, self._registry, self._event_time, backfills=since is not None)
        met: Counter[tuple[str | None, str]] = Counter()
        left: dict[tuple[str | None, str], Iterator[Subscription]] = {}
        names: list[str] = []
        fresh: list[Subscription] = []
        kept: set[Subscription] = set()
        highest, published = self._highest_number, script.published()
        for position, query in enumerate(followed("compiling", script.all_queries), 1):
            compiled: CompiledQuery | CompiledEvents
            if isinstance(query, EventQuery):
                compiled = events.compile(query)
                form_id, sees_after = compiled.form_since(events.since), events.since
                is_other = any(name.name in others for name in names_read(query.stream))
            else:
                compiled = self._compiler.compile(query, script.namespaces)
                form_id, sees_after, is_other = "", last if since is None else since, False
            text = compiled.text
            key = query.publish, text
            is_other = is_other or (mode == "replace" and since is not None)
            known = () if is_other else self._registry.equal(*key)
            # Nothing can be replaced without a name, so the query is added.
            joins = mode == "add" or (mode == "replace" and query.publish is None)
            before = met.get(key, 0)
            occurrence = before + (len(self._registry.equal(*key)) if joins else 0)
            met[key] = before + 1
            if occurrence < len(known):
                same = next(left.setdefault(key, iter(known)))
                kept.add(same)
                names.append(same.name)
                continue
            if query.publish is None:
                highest = free_number(max(position, highest + 1), published)
            name = query.publish or f"q{highest}"
            qid = self._stored.next_qid + len(fresh)
            fresh.append(
                Subscription(
                    qid,
                    name,
                    text,
                    occurrence,
                    sees_after,
                    compiled.normal.window,
                    form_id or compiled.form_id,
                    self._ledger.batch,
                    compiled,
                )
            )
            names.append(name)
        return names, fresh, kept

    def _refuse_taken_names(self, fresh: Iterable[Subscription], gone: frozenset[Subscription]) -> None:
        """Raises NameTaken if a new query PUBLISHes the name of one without PUBLISH that stays."""
        for name in {s.name for s in fresh if s.publishes and number_of(s.name)}:
            if any(not s.publishes for s in self._registry.named(name) if s not in gone):
                raise NameTaken(name)

    def _removed_by(self, script: Script, mode: SubscribeMode, kept: set[Subscription]) -> Iterator[Subscription]:
        """Yields the queries that a script removes."""
        if mode == "exact":
            yield from (s for s in self._registry.subscriptions.values() if s not in kept)
        if mode not in ("replace", "renew"):
            return
        for name in dict.fromkeys(query.publish for query in script.all_queries if query.publish is not None):
            yield from (s for s in self._registry.named(name) if s.publishes and s not in kept)

    def _register(
        self,
        fresh: list[Subscription],
        gone: list[Subscription],
        definitions: DefinitionChanges,
        note: Callable[[], None],
        within: WithinBatch,
    ) -> None:
        # Replacements are added before the old queries go, so that shared patterns keep their ids and join state, even
        # if this fails. The old queries are not answered meanwhile.
        added: list[Subscription] = []
        events = self._registry.events
        try:
            # But event queries go first, because what they read may be defined otherwise now.
            self._mark_removed([subscription for subscription in gone if subscription.is_events])
            events.redefine(definitions.removed, definitions.added)
            for subscription in followed("registering", fresh):
                self._registry.add(subscription)
                added.append(subscription)
            events.settle()
            without = frozenset(gone)
            for subscription in added:
                self._refuse_cycle(subscription, without)
            if within is not no_action:
                self._registry.flush()  # a rollback would take rows of R_T with it
            with whole_batch(self._store):
                self._stored.save(fresh, self._registry, self._now())
                self._stored.save_removals(gone, self._now(), self._ledger.batch)
                self._stored.definitions.save(definitions.added, definitions.removed, self._now())
                note()
                self._mark_removed(gone)
                within(fresh)
        except BaseException:
            for subscription in added:
                self._registry.remove(subscription.qid)
            events.redefine(definitions.added, definitions.removed)
            self._unmark_removed(gone)
            events.settle()
            raise
        self._stored.committed(fresh, self._registry.catalog)
        self._stored.definitions.committed(definitions.added)
        for subscription in gone:
            self._registry.remove(subscription.qid)

    def _mark_removed(self, subscriptions: Iterable[Subscription]) -> None:
        """Stops answering queries that are about to be removed."""
        for subscription in subscriptions:
            if subscription.active:
                self._registry.deactivate(subscription)
            subscription.removed = True

    def _unmark_removed(self, subscriptions: Iterable[Subscription]) -> None:
        """Undoes `_mark_removed`, as far as it got."""
        for subscription in subscriptions:
            if subscription.removed:
                subscription.removed = False
                if subscription.active:
                    self._registry.activate(subscription)

    def _refuse_cycle(self, subscription: Subscription, gone: frozenset[Subscription]) -> None:
        """Raises PublishCycle if a PUBLISHed stream would depend on itself."""
        if subscription.publishes and (cycle := cycle_of(self._registry, subscription.name, gone)):
            path = " -> ".join(cycle)
            raise PublishCycle(f"a cycle of PUBLISHed names: {path}, with queries registered earlier")
