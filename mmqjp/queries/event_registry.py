"""Registered event statements: the forms that are run, and the definitions of events, held in stage 1 while read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mmqjp.queries.defined_events import DefinedEvents
from templates.catalog import Catalog, Change
from templates.event_places import EventPlacement
from xpath_stage.evaluator import XPathStage
from xscl.algebra.event_pattern import EventPattern
from xscl.algebra.events import Aggregate, Events, Filter, Fold, Next, Schema, Select, Stream, Union


class Publisher(NamedTuple):
    """A statement that publishes its results as events of a `stream`: those whose first part ended after `since`.
    `identity` is the same for the same statement in every store."""

    stream: str
    identity: str
    since: int


@dataclass(frozen=True, slots=True)
class EventForm:
    """Event statements that differ in name only, which are run as one.

    `since` is the least time after which the first part of a result ended that any of them gets. `publishers` are those
    of them that publish.
    """

    id: str
    stream: Stream
    since: int
    publishers: tuple[Publisher, ...] = ()


def read_by(stream: Stream) -> dict[str, Schema]:
    """Returns the event streams that a stream is made of, by name, with their attributes.

    >>> sorted(read_by(Union(Events("A", ()), Select(Events("B", ()), (), ()))))
    ['A', 'B']
    """
    match stream:
        case Events(stream=name, schema=schema):
            return {name: schema}
        case Select(source=source) | Filter(source=source) | Aggregate(source=source):
            return read_by(source)
        case Union(left=left, right=right) | Next(left=left, right=right) | Fold(left=left, right=right):
            return read_by(left) | read_by(right)


class EventRegistry:
    """The event statements of a store. `version` changes with every change of them."""

    def __init__(self, catalog: Catalog, stage1: XPathStage) -> None:
        self._defined = DefinedEvents(catalog, stage1)
        self.definitions: dict[str, EventPattern] = {}
        self.forms: dict[str, EventForm] = {}
        self.version = 0

    @property
    def placements(self) -> Mapping[str, EventPlacement]:
        """The definitions that forms read, by name."""
        return self._defined.placements

    def needs_of(self, name: str) -> Change:
        """Returns all that a definition that is read needs of stage 1."""
        return self._defined.needs_of(name)

    def define(self, name: str, pattern: EventPattern) -> None:
        """Adds a definition. It costs nothing until it is read."""
        self.definitions[name] = pattern

    def undefine(self, name: str) -> None:
        """Removes a definition that no form reads."""
        assert name not in self.placements, "a definition in use does not go"
        del self.definitions[name]

    def put(self, form: EventForm) -> None:
        """Adds a form, whose names are all known, or changes its members. Raises TooManyChains."""
        if form.id not in self.forms:
            used: list[str] = []
            try:
                for name in read_by(form.stream):
                    if name in self.definitions:
                        self._defined.use(name, self.definitions[name])
                        used.append(name)
            except BaseException:
                for name in used:
                    self._defined.release(name)
                raise
        self.forms[form.id] = form
        self.version += 1

    def remove(self, form_id: str) -> None:
        """Removes a form."""
        for name in read_by(self.forms.pop(form_id).stream):
            if name in self.definitions:
                self._defined.release(name)
        self.version += 1
