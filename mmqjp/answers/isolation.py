"""Finds the query whose own work fails: tries the batch again with some of the queries, and rolls it back each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from graphlib import TopologicalSorter

from common.errors import InputError, OperationalError
from mmqjp.queries.compile import UnreadableQuery
from mmqjp.queries.model import Subscription
from mmqjp.queries.registry import Registry

MOST_FAILING = 20
"""Maximum number of forms that are paused in one batch; a further failure is raised."""


def may_be_of_query(error: Exception) -> bool:
    """Whether a query may have caused an error, rather than the input or a resource."""
    return isinstance(error, UnreadableQuery) or not isinstance(
        error, InputError | OperationalError | OSError | MemoryError
    )


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


def _publishers_first(registry: Registry, queries: list[Subscription]) -> list[Subscription]:
    reads = {query.qid: _streams(registry, query) for query in queries}
    made_of: dict[str, set[str]] = {}
    waiting = [stream for streams in reads.values() for stream in streams]
    while waiting:
        stream = waiting.pop()
        if stream not in made_of:
            made_of[stream] = registry.made_of(stream)
            waiting += made_of[stream]
    rank = {stream: place for place, stream in enumerate(TopologicalSorter(made_of).static_order())}
    return sorted(queries, key=lambda query: (max((rank[one] for one in reads[query.qid]), default=0), query.qid))


def _streams(registry: Registry, query: Subscription) -> set[str]:
    if query.is_events:
        return registry.events.behind(query)
    return {stream for target in query.targets for stream in target.streams}
