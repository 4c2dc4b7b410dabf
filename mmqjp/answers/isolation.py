"""Finds the query whose own work fails: tries the batch again with some of the queries, and rolls it back each time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from graphlib import TopologicalSorter

from common.errors import InputError, OperationalError
from common.tools import reachable
from mmqjp.documents.record import Record
from mmqjp.queries.model import EventSubscription, Owner, Subscription, UnreadableQuery
from mmqjp.queries.registry import Registry
from mmqjp.state.eviction import arriving
from templates.catalog import Change
from xpath_stage.evaluator import XPathStage
from xpath_stage.filters import Failures

MOST_FAILING = 20  # maximum number of forms that are paused in one batch; a further failure is raised


def may_be_of_query(error: Exception) -> bool:
    """Whether a query may have caused an error, rather than the input or a resource."""
    others = InputError | OperationalError | OSError | MemoryError
    return isinstance(error, UnreadableQuery) or not isinstance(error, others)


def failure_reason(error: Exception) -> str:
    return f"it failed with {type(error).__name__}: {error}; please report this, with the query"


def failing_queries(
    registry: Registry,
    error: Exception,
    without: Callable[[Iterable[Subscription]], AbstractContextManager[None]],
    failure: Callable[[], Exception | None],
) -> list[Subscription]:
    """Returns the active queries of the form that makes a batch fail; none if it fails without queries, or no more.

    `failure` tries the batch and returns its error, and `without` leaves queries out. Publishers come before their
    readers, so the last query of the shortest failing prefix is to blame.
    """
    queries = _publishers_first(registry, [query for query in registry.subscriptions.values() if query.active])

    def fails(count: int) -> bool:
        with without(queries[count:]):
            return isinstance(failure(), type(error))

    if fails(0) or not fails(len(queries)):
        return []
    passing, failing = 0, len(queries)
    while failing - passing > 1:
        middle = (passing + failing) // 2
        passing, failing = (passing, middle) if fails(middle) else (middle, failing)
    form = queries[passing].form_id
    return [query for query in queries if query.form_id == form]


class FailedPatterns:
    """The queries to blame for what raised in stage 1, which evaluates the patterns of paused queries, too."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._asked: tuple[int, frozenset[str]] = 0, frozenset()
        self._forms: list[list[Subscription]] = []
        self.of_events = False
        """Whether a definition of events may have raised. Stage 1 has those that active queries read."""

    def blamed(self, failed: frozenset[str], records: Sequence[Record]) -> dict[Subscription, Exception]:
        """Returns active queries over documents whose patterns, alone, raise with these records."""
        registry = self._registry
        if self._asked != (registry.version, failed):
            forms: dict[str, list[Subscription]] = {}
            for query in registry.subscriptions.values():
                if query.active and not query.is_events and _uses(self._needs(query), failed):
                    forms.setdefault(query.form_id, []).append(query)
            self._asked, self._forms = (registry.version, failed), list(forms.values())
            events = registry.events
            self.of_events = any(_uses(events.needs_of(name), failed) for name in events.placements)
        found: dict[Subscription, Exception] = {}
        for queries in self._forms:
            failures: Failures = {}
            alone = XPathStage(failures=failures)
            alone.add(self._needs(queries[0]))
            alone.evaluate(map(arriving, records))
            for error in failures.values():
                found |= dict.fromkeys(queries, error)
        return found

    def _needs(self, query: Subscription) -> Change:
        owners: list[Owner] = [query, *self._registry.inner_joins(query)]
        return self._registry.catalog.needs_of({target.row for owner in owners for target in owner.targets})


def _uses(needs: Change, failed: Collection[str]) -> bool:
    nodes = [node for step in needs.steps for node in step.node.walk()]
    used = {name for node in nodes for name in (*(one.xpath for one in node.conditions), *node.functions)}
    return not used.isdisjoint(failed)


def _publishers_first(registry: Registry, queries: list[Subscription]) -> list[Subscription]:
    reads = {
        query.qid: registry.events.behind(query)
        if isinstance(query, EventSubscription)
        else {stream for target in query.targets for stream in target.streams}
        for query in queries
    }
    streams = {stream for read in reads.values() for stream in read}
    made_of = {stream: registry.made_of(stream) for stream in reachable(streams, registry.made_of)}
    rank = {stream: place for place, stream in enumerate(TopologicalSorter(made_of).static_order())}
    return sorted(queries, key=lambda query: (max((rank[one] for one in reads[query.qid]), default=0), query.qid))
