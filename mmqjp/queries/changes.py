"""Queries that come, go, are replaced, paused and resumed: each change is committed whole, and then takes effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from common.errors import InputError
from feeds.document import Clock
from join_stage.joiner import JoinEngine
from join_stage.store.protocol import whole_batch
from mmqjp.queries.model import NUMBERED, Subscription
from mmqjp.queries.prepared import Preparation
from mmqjp.queries.registry import Registry
from mmqjp.queries.saved import KeptQueries
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.notes import Notes
from templates.witness import NO_WITNESSES
from xscl import Script

How = Literal["ensure", "add", "replace", "renew", "exact"]
"""What becomes of queries that are registered, and of the same name and text as one of a script, or without a name of
the same text: with "add" the script's is another one, as with "replace" one without a name is; else it is that one.

Of those that the script does not have, "replace" and "renew" remove the ones under names that it PUBLISHes, "exact" all
of them."""

Noting = Callable[[list[str]], Notes]
"""What is committed along with a change of queries, given their names."""

Within = Callable[[list[Subscription]], None]
"""What is done for new queries within the batch that keeps them."""


class UnknownQuery(InputError, KeyError):
    """No query has the name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"no query is named {self.name!r}"


class PublishCycle(InputError, ValueError):
    """A PUBLISHed stream would be made of itself, through queries registered earlier."""


def nothing_noted(names: list[str]) -> Notes:
    """No notes."""
    return Notes()


def nothing_done(subscriptions: list[Subscription]) -> None:
    """Nothing within the batch."""


class Subscribing:
    """The registered queries of a store, changed."""

    def __init__(
        self,
        store: JoinEngine,
        ledger: Ledger,
        saved: KeptQueries,
        registry: Registry,
        preparation: Preparation,
        now: Clock,
    ) -> None:
        """The queries of the store are registered."""
        self._store, self._ledger, self._saved, self._registry, self._now = store, ledger, saved, registry, now
        self._preparation = preparation
        for subscription in registry.subscriptions.values():
            if subscription.paused is not None:
                registry.deactivate(subscription)
        numbers = map(NUMBERED.fullmatch, saved.take_names())
        self._highest_number = max((int(found[1]) for found in numbers if found), default=0)

    def save_pauses(self, qids: Iterable[int], docid: int, reason: str | None) -> None:
        """Writes, within a batch, that queries rest for a reason from behind a document on, or, for None, go on."""
        self._saved.save_pauses(qids, docid, reason, self._now(), self._ledger.batch)

    def subscribe(
        self,
        script: Script,
        how: How,
        *,
        since: int | None = None,
        noting: Noting = nothing_noted,
        within: Within = nothing_done,
    ) -> list[str]:
        """Registers the queries of a script and returns their names.

        They see documents with ids greater than `since`: those that arrive from now on, if it is None. Raises
        PublishCycle for a cycle of PUBLISHed names; then nothing is registered.
        """
        names, fresh, kept = self._sorted_out(script, how, since)
        gone = list(self._gone(script, how, kept))
        self._register(fresh, gone, lambda: self._ledger.save_notes(noting(names)), within)
        self._highest_number = max([self._highest_number, *(int(s.name[1:]) for s in fresh if not s.publishes)])
        return names

    def unsubscribe(self, name: str, noting: Noting = nothing_noted) -> None:
        """Removes all queries of a name. Raises UnknownQuery if there is none."""
        gone = self._named(name)
        with whole_batch(self._store):
            self._saved.save_removals([s.qid for s in gone], self._now())
            self._ledger.save_notes(noting([name]))
        for subscription in gone:
            self._registry.remove(subscription.qid)

    def pause(self, name: str, reason: str, noting: Noting = nothing_noted) -> None:
        """Lets the queries of a name rest. Raises UnknownQuery if there is none."""
        self._set_paused([s for s in self._named(name) if s.paused is None], reason, [name], noting)

    def resume(self, name: str, noting: Noting = nothing_noted) -> None:
        """Lets the queries of a name go on, with documents that arrive from now on and those from before they were
        paused. Raises UnknownQuery if there is none."""
        self._set_paused([s for s in self._named(name) if s.paused is not None], None, [name], noting)

    def _named(self, name: str) -> list[Subscription]:
        found = self._registry.named(name)
        if not found:
            raise UnknownQuery(name)
        return found

    def _set_paused(
        self, subscriptions: Sequence[Subscription], reason: str | None, names: list[str], noting: Noting
    ) -> None:
        docid = self._ledger.next_docid - 1
        with whole_batch(self._store):
            if reason is None:
                self._store.extend(NO_WITNESSES)  # what plans hold of older documents may lack what nobody asked for
            self.save_pauses([s.qid for s in subscriptions], docid, reason)
            self._ledger.save_notes(noting(names))
        for subscription in subscriptions:
            if reason is None:
                subscription.resume(docid)
                self._registry.activate(subscription)
            else:
                self._registry.deactivate(subscription)
                subscription.pause(docid, reason)

    def _sorted_out(
        self, script: Script, how: How, since: int | None
    ) -> tuple[list[str], list[Subscription], set[Subscription]]:
        """The names of a script's queries, those of them that are to be registered, and those that are already there.

        Unless all are added, the n-th of a name and text is registered only if there are fewer than n of them. One
        that is to see older documents takes the place of an equal one.
        """
        last = self._ledger.next_docid - 1
        met: Counter[tuple[str | None, str]] = Counter()
        left: dict[tuple[str | None, str], Iterator[Subscription]] = {}
        names: list[str] = []
        fresh: list[Subscription] = []
        kept: set[Subscription] = set()
        highest = self._highest_number
        for place, query in enumerate(script.queries, 1):
            ready = self._preparation.prepared(query, script.namespaces)
            text = ready.text
            key = query.publish, text
            known = () if how == "replace" and since is not None else self._registry.equal(*key)
            # A query without a name has none to be replaced under: it is another one.
            joins = how == "add" or (how == "replace" and query.publish is None)
            occurrence = met[key] + (len(self._registry.equal(*key)) if joins else 0)
            met[key] += 1
            if occurrence < len(known):
                same = next(left.setdefault(key, iter(known)))
                kept.add(same)
                names.append(same.name)
                continue
            name = query.publish or f"q{max(place, highest + 1)}"
            if query.publish is None:
                highest = int(name[1:])
            qid = self._saved.next_qid + len(fresh)
            fresh.append(Subscription(qid, name, text, occurrence, last if since is None else since, ready))
            names.append(name)
        return names, fresh, kept

    def _gone(self, script: Script, how: How, kept: set[Subscription]) -> Iterator[Subscription]:
        """The queries that a script puts an end to."""
        if how == "exact":
            yield from (s for s in self._registry.subscriptions.values() if s not in kept)
        if how not in ("replace", "renew"):
            return
        for name in dict.fromkeys(query.publish for query in script.queries if query.publish is not None):
            yield from (s for s in self._registry.named(name) if s not in kept)

    def _register(
        self, fresh: list[Subscription], gone: list[Subscription], note: Callable[[], None], within: Within
    ) -> None:
        # What takes the place of others is added before they go: what they share keeps its ids, and with them its
        # join state, also if it comes to nothing. The others are answered no more meanwhile.
        added: list[Subscription] = []
        try:
            for subscription in fresh:
                self._registry.add(subscription)
                added.append(subscription)
            without = frozenset(gone)
            for subscription in added:
                self._refuse_cycle(subscription, without)
            if within is not nothing_done:
                self._registry.flush()  # rows of R_T that are put within the batch would go with it
            with whole_batch(self._store):
                self._saved.save(fresh, self._registry, self._now())
                self._saved.save_removals([s.qid for s in gone], self._now())
                note()
                self._silence(gone)
                within(fresh)
        except BaseException:
            self._unsilence(gone)
            for subscription in added:
                self._registry.remove(subscription.qid)
            raise
        self._saved.saved(fresh, self._registry.catalog)
        for subscription in gone:
            self._registry.remove(subscription.qid)

    def _silence(self, subscriptions: Iterable[Subscription]) -> None:
        """Has queries that are about to go answered no more."""
        for subscription in subscriptions:
            if subscription.active:
                self._registry.deactivate(subscription)
            subscription.removed = True

    def _unsilence(self, subscriptions: Iterable[Subscription]) -> None:
        """Takes back what `_silence` has done, as far as it came."""
        for subscription in subscriptions:
            if subscription.removed:
                subscription.removed = False
                if subscription.active:
                    self._registry.activate(subscription)

    def _refuse_cycle(self, subscription: Subscription, gone: frozenset[Subscription]) -> None:
        """Raises PublishCycle if a PUBLISHed stream would be made of itself, through queries registered earlier."""
        if subscription.publishes and (cycle := self._registry.cycle_of(subscription.name, gone)):
            path = " -> ".join(cycle)
            raise PublishCycle(f"a cycle of PUBLISHed names: {path}, with queries registered earlier")
