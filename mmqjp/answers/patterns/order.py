"""What has to come before what: which names of events are complete once which others are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from mmqjp.queries.event_compile import read_by
from mmqjp.queries.event_registry import EventForm
from templates.event_places import EventPlacement
from xscl.algebra.events import Schema

MadeOf = Callable[[str], Collection[str] | None]
"""Returns the streams of documents that XSCL queries make a stream of; None if it is external. What event queries alone
publish, paused ones, too, is made of none."""


class _Shape(NamedTuple):
    """What forms read, and where they publish."""

    reads: frozenset[str]
    publishes: frozenset[str]


class Order:
    """The forms by what they read and where they publish.

    Forms that read and publish the same names are one here, so that many forms cost no more than one.
    """

    def __init__(self, made_of: MadeOf) -> None:
        self._made_of = made_of
        self._shapes: Counter[_Shape] = Counter()
        self._shape_of: dict[str, _Shape] = {}
        self._schemas: dict[str, Schema] = {}

    def add(self, form: EventForm) -> None:
        """Adds a form, or follows a change of its publishers."""
        self.remove(form.id)
        read = read_by(form.stream)
        self._schemas |= read
        shape = _Shape(frozenset(read), frozenset(publisher.stream for publisher in form.publishers))
        self._shape_of[form.id] = shape
        self._shapes[shape] += 1

    def remove(self, form_id: str) -> None:
        """Removes a form, if it is there."""
        shape = self._shape_of.pop(form_id, None)
        if shape is not None:
            self._shapes[shape] -= 1
            if not self._shapes[shape]:
                del self._shapes[shape]

    def names(self) -> set[str]:
        """Returns the names of all events that are read."""
        return set().union(*(shape.reads for shape in self._shapes))

    def schema(self, name: str) -> Schema:
        """Returns the attributes of events that are read."""
        return self._schemas[name]

    def outside(self, placements: Mapping[str, EventPlacement], without: Collection[str] = ()) -> set[str]:
        """Returns the external streams behind any form but those `without`."""
        shapes = self._shapes - Counter(self._shape_of[form_id] for form_id in without)
        names = set[str]().union(*(shape.reads for shape in shapes))
        streams = (placements[name].stream for name in names if name in placements)
        return {stream for stream in self._behind(streams) if self._made_of(stream) is None}

    def ready(self, fed: Collection[str], placements: Mapping[str, EventPlacement]) -> list[str]:
        """Returns the names, not `fed` yet, whose events are complete once those that are fed have been answered."""
        return [name for name in sorted(self.names().difference(fed)) if self._is_complete(name, fed, placements)]

    def _is_complete(self, name: str, fed: Collection[str], placements: Mapping[str, EventPlacement]) -> bool:
        streams = self._behind([placements[name].stream]) if name in placements else {name}
        return all(shape.reads.issubset(fed) for stream in streams for shape in self._makers(stream))

    def _makers(self, stream: str) -> list[_Shape]:
        return [shape for shape in self._shapes if stream in shape.publishes]

    def _behind(self, streams: Iterable[str]) -> set[str]:
        """Returns streams of documents, and those that they are made of, up to those that forms publish."""
        found: set[str] = set()
        waiting = list(streams)
        while waiting:
            stream = waiting.pop()
            if stream not in found:
                found.add(stream)
                waiting += self._made_of(stream) or ()
        return found
