"""Compiles event queries: from the syntax tree to the algebra of events, and the id of their form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property

from join_stage.store.protocol import StoreError
from mmqjp.queries.identity import digest
from mmqjp.queries.model import EVENT_FORM
from pattern_stage.matching.template import sees_before
from xscl import XsclErrors, parse_script, to_xscl
from xscl.algebra.event_sequences import NearPattern, Pattern, Statement
from xscl.algebra.events import Aggregate, Events, Filter, Fold, Next, Schema, Select, Union
from xscl.algebra.normal import NormalQuery
from xscl.event_check import schemas_of
from xscl.event_normal import lower_statement
from xscl.event_syntax import EventDefinition, EventQuery, names_read
from xscl.script import EventStreams, Script

NO_JOIN = NormalQuery(None, None, (), (), star=False)
"""The normal form of an event query, which joins no documents."""


_BARE = re.compile(r"(?:SELECT [^;]+ )?FROM [A-Za-z_]\w*(?: WITHIN [\w ]+)?(?: PUBLISH \S+)?")


class CompiledEvents:
    """An event query in the algebra of events. What it has of XSCL's normal form is empty."""

    normal = NO_JOIN

    def __init__(self, query: EventQuery, schemas: Mapping[str, Schema]) -> None:
        """`schemas` are the attributes of the event streams that it reads."""
        read = {name.name: schemas[name.name] for name in names_read(query.stream)}
        self.publish, self.stream = query.publish, lower_statement(query, read)
        self._query = query

    @cached_property
    def text(self) -> str:
        """The query as a script of its own."""
        return to_xscl(self._query)

    @property
    def form_id(self) -> str:
        """The id of its form, if it does not matter since when it sees events. See `form_since`."""
        return self.form_since(0)

    def form_since(self, since: int) -> str:
        """The id of its form if it sees events from after a time on. Stores keep it, and it is made of `repr`: no class
        or field that a stream is made of can be renamed.

        What an AGGREGATE has seen cannot be told apart afterwards, nor what kept a PATTERN from telling something, so
        queries that have one share a form only if they see the same events.
        """
        return EVENT_FORM + digest(repr(self.stream) + (f" since {since}" if minds_since(self.stream) else ""))


class StoredEvents:
    """An event query of a store, which `compile_stored` has compiled."""

    normal = NO_JOIN

    def __init__(self, form_id: str, compiled: CompiledEvents) -> None:
        self.form_id, self.stream = form_id, compiled.stream


def is_event_form(form_id: str) -> bool:
    """Returns whether the queries of a form are event queries."""
    return form_id.startswith(EVENT_FORM)


def is_bare(text: str) -> bool:
    """Returns whether the text of a registered query is that of an event query that is the bare name of a stream: of
    documents, a registered one has a path.

    >>> is_bare("FROM Post PUBLISH posts"), is_bare("FROM S/* PUBLISH posts"), is_bare("FROM A NEXT B")
    (True, False, False)
    """
    return _BARE.fullmatch(text) is not None


def minds_since(stream: Statement) -> bool:
    """Returns whether a stream is another one if it is of the events from another time on, and not only shorter: it has
    an AGGREGATE, or a PATTERN depends on what was there before a match.

    >>> minds_since(Filter(Aggregate(Events("A", ()), (), (), None, ()), None))
    True
    """
    match stream:
        case Pattern() | NearPattern():
            return sees_before(stream)
        case Aggregate():
            return True
        case Select(source=source) | Filter(source=source):
            return minds_since(source)
        case Union(left=left, right=right) | Next(left=left, right=right) | Fold(left=left, right=right):
            return minds_since(left) or minds_since(right)
        case _:
            return False


def read_by(stream: Statement) -> dict[str, Schema]:
    """Returns the event streams that a stream is made of, by name, with their attributes.

    >>> sorted(read_by(Union(Events("A", ()), Select(Events("B", ()), (), ()))))
    ['A', 'B']
    """
    match stream:
        case Events(stream=name, schema=schema):
            return {name: schema}
        case Pattern() | NearPattern():
            return stream.streams
        case Select(source=source) | Filter(source=source) | Aggregate(source=source):
            return read_by(source)
        case Union(left=left, right=right) | Next(left=left, right=right) | Fold(left=left, right=right):
            return read_by(left) | read_by(right)


def definition_text(definition: EventDefinition, script: Script) -> str:
    """Returns a definition of a script as a script of its own."""
    return to_xscl(Script((), script.namespaces, (definition,), (), ("definition",)))


def stored_definition(text: str) -> tuple[EventDefinition, Script]:
    """Returns a stored definition, and the script that it is. Raises StoreError if it cannot be parsed."""
    try:
        script = parse_script(text, stored=True)
    except XsclErrors as error:
        raise StoreError(f"the store has a definition that this version cannot read: {error}") from error
    (definition,) = script.definitions
    return definition, script


def compile_stored(texts: Sequence[str], defined: Mapping[str, Schema]) -> list[CompiledEvents]:
    """Compiles stored event queries, which may read each other in any order. Raises StoreError if one cannot be
    parsed."""
    known = EventStreams(defined)
    try:
        script = parse_script(";\n".join(texts), stored=True, events=known) if texts else Script(())
    except XsclErrors as error:
        raise StoreError(f"the store has an event query that this version cannot read: {error}") from error
    schemas = schemas_of(script, known)
    return [CompiledEvents(query, schemas) for query in script.event_queries]
