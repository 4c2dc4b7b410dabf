"""Which of some documents events are made of."""

from __future__ import annotations

from collections.abc import Sequence

from mmqjp.documents.record import Record
from mmqjp.explain.retrace.event import Event, Given


class Covering:
    """Tells of events which of some documents, by their numbers, they are made of."""

    def __init__(self, documents: Sequence[Record]) -> None:
        self._sources = [(record.id, record.stream) for record in documents]
        self._known: dict[int, tuple[Event, frozenset[int]]] = {}

    def of(self, event: Event) -> frozenset[int]:
        """Returns the documents that an event is made of."""
        known = self._known.get(id(event))
        if known is None:
            known = event, self._found(event)  # with the event, so that its id stays its own
            self._known[id(event)] = known
        return known[1]

    def _found(self, event: Event) -> frozenset[int]:
        if isinstance(event.made, Given):
            sources = {event.made.source, *event.made.behind}
            return frozenset(number for number, source in enumerate(self._sources) if source in sources)
        return frozenset().union(*map(self.of, event.inputs))
