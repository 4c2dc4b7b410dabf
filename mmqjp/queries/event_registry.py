"""Registered event statements: the forms that are run, and the definitions of events, held in stage 1 while read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mmqjp.queries.defined_events import DefinedEvents
from mmqjp.queries.event_compile import read_by
from templates.catalog import Catalog, Change
from templates.event_places import EventPlacement
from xpath_stage.evaluator import XPathStage
from xscl.algebra.event_pattern import EventPattern
from xscl.algebra.event_sequences import Statement

NEVER = 2**62
"""A time after all others."""


class Publisher(NamedTuple):
    """A statement that publishes its results as events of a `stream`: those whose first part ended after `since`, and
    that end at `until` or before. `identity` is the same for the same statement in every store."""

    stream: str
    identity: str
    since: int
    until: int = NEVER


@dataclass(frozen=True, slots=True)
class EventForm:
    """Event statements that differ in name only, which are run as one.

    `since` is the least time after which the first part of a result ended that any of them gets. `publishers` are those
    of them that publish.
    """

    id: str
    stream: Statement
    since: int
    publishers: tuple[Publisher, ...] = ()


class EventRegistry:
    """What is run of the event statements of a store. `changed` are the ids of forms that came, changed or went since
    somebody followed them last."""

    def __init__(self, catalog: Catalog, stage1: XPathStage) -> None:
        self._defined = DefinedEvents(catalog, stage1)
        self.definitions: dict[str, EventPattern] = {}
        self.ids: dict[str, int] = {}
        self.forms: dict[str, EventForm] = {}
        self.changed: dict[str, None] = {}

    @property
    def placements(self) -> Mapping[str, EventPlacement]:
        """The definitions that forms read, by name."""
        return self._defined.placements

    def needs_of(self, name: str) -> Change:
        """Returns all that a definition that is read needs of stage 1."""
        return self._defined.needs_of(name)

    def define(self, name: str, pattern: EventPattern, id: int = 0) -> None:
        """Adds a definition, with an id that no other definition of this name ever gets. It costs nothing until it is
        read."""
        self.definitions[name], self.ids[name] = pattern, id

    def undefine(self, name: str) -> None:
        """Removes a definition that no form reads."""
        assert name not in self.placements, "a definition in use does not go"
        del self.definitions[name], self.ids[name]

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
        self.changed[form.id] = None

    def remove(self, form_id: str) -> None:
        """Removes a form."""
        for name in read_by(self.forms.pop(form_id).stream):
            if name in self.definitions:
                self._defined.release(name)
        self.changed[form_id] = None
