"""What a backfill of event queries runs: the new ones, and those that publish the events that they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmqjp.queries.event_compile import read_by
from mmqjp.queries.event_registry import NEVER, EventForm, Publisher
from mmqjp.queries.event_statements import BEGINNING, since_of
from mmqjp.queries.model import Subscription
from mmqjp.queries.registry import Registry


def forms_to_backfill(new: Sequence[Subscription], registry: Registry) -> tuple[dict[str, EventForm], frozenset[str]]:
    """Returns the forms of new event queries, and of those behind them, by id, and which of these ids are of new ones.

    What an older query publishes is run again for each time between its pauses: as it was told, if all is still kept.
    """
    forms: dict[str, EventForm] = {}
    for query in new:
        _add(forms, query.form_id, query, registry, BEGINNING, NEVER)
    of_new, fresh = frozenset(forms), frozenset(query.qid for query in new)
    known: set[str] = set()
    while waiting := {name for form in forms.values() for name in read_by(form.stream)} - known:
        for name in sorted(waiting):
            for query in registry.named(name):
                if query.is_events and query.publishes and not query.removed and query.qid not in fresh:
                    for since, until in _lives(query):
                        _add(forms, f"{query.form_id} {since}", query, registry, since, until)
        known |= waiting
    return forms, of_new


def _lives(query: Subscription) -> Iterator[tuple[int, int]]:
    """Yields the times between the pauses of a query: after which the first part of a result ends, and until when the
    result does."""
    since = query.since
    for paused, resumed in query.gaps:
        yield since, paused
        if resumed is None:
            return
        since = max(query.since, resumed)
    yield since_of(query), NEVER


def _add(forms: dict[str, EventForm], id: str, query: Subscription, registry: Registry, since: int, until: int) -> None:
    known = forms.get(id)
    publishers = known.publishers if known else ()
    if query.publishes:
        publishers += (Publisher(query.name, query.new_identity().text, since, until),)
    forms[id] = EventForm(id, registry.events.stream_of(query.form_id), since, publishers)
