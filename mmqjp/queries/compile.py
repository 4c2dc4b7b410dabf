"""Compiles queries to their value-join normal form, conjunctive queries over tree patterns, once for equal queries, and
event queries to the algebra of events. The registry places conjunctive queries in rows of R_T."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from operator import attrgetter

from mmqjp.queries.model import EVENT_FORM, UnreadableQuery, text_digest
from mmqjp.queries.registry import minds_since
from xscl.algebra.events import Schema
from xscl.algebra.joins import NormalQuery
from xscl.check_events import schemas_of
from xscl.event_lower import lower_statement
from xscl.lower import normalize
from xscl.parser import parse_script
from xscl.printer import around_window, to_xscl
from xscl.problems import LACKS_EVENTS, XsclErrors
from xscl.syntax import EventDefinition, EventQuery, EventStreams, Join, Query, Script, names_read
from xscl.text import window_text

MAX_COMPILED = 20_000
"""The cache is cleared at this many queries."""

Namespaces = tuple[tuple[str, str], ...]


class SharedQuery:
    """What queries share that differ only in PUBLISH name and join windows."""

    __slots__ = ("_form_id", "_namespaces", "_normals", "_once", "_parts", "_query")

    def __init__(self, query: Query, namespaces: Namespaces) -> None:
        self._query: Query | None = query
        self._namespaces = namespaces
        self._parts = around_window(Script((Query(query.source, query.select, None, query.span),), namespaces))
        self._once = "" if query.once is None else f" {to_xscl(query.once)}"
        self._normals: dict[int | None, NormalQuery] = {}
        self._form_id: str | None = None

    def text(self, window: int | None, publish: str | None) -> str:
        """A query as a script of its own."""
        text = window_text(window).join(self._parts)  # of a join; a filter has one part
        return text if publish is None else f"{text} PUBLISH {publish}{self._once}"

    def normal(self, window: int | None) -> NormalQuery:
        """The normal form for a join's window in microseconds. Registered queries may not need it."""
        if self._query is not None:
            first = normalize(self._query, dict(self._namespaces))
            self._query = None  # of very many queries, the trees take much memory
            self._normals[window] = _with_window(first, window) if len(self._parts) > 1 else first
        if (found := self._normals.get(window)) is None:
            found = self._normals[window] = _with_window(next(iter(self._normals.values())), window)
        return found

    def form_id(self, window: int | None) -> str:
        """Form id, persisted and derived from `repr`: renaming a class or field of a normal form would change it.
        Absences with different windows end at different times, so they have different forms."""
        normal = self.normal(window)
        if normal.absent:
            return text_digest(_described(normal))
        if self._form_id is None:
            self._form_id = text_digest(_described(_with_window(normal, None)))
        return self._form_id


def _described(normal: NormalQuery) -> str:
    return repr(normal) + "".join(repr(part) for part in (normal.once, normal.absent) if part)


_BEHIND_WINDOW = attrgetter("conjuncts", "entries", "star", "constructor", "holes", "namespaces", "once", "absent")


def _with_window(normal: NormalQuery, window: int | None) -> NormalQuery:
    # `replace` takes several times as long.
    return normal if normal.window == window else NormalQuery(normal.op, window, *_BEHIND_WINDOW(normal))


class CompiledQuery:
    __slots__ = ("_shared", "_window", "publish")

    def __init__(self, shared: SharedQuery, query: Query) -> None:
        """`query` is one of those that share `shared`."""
        self._shared, self.publish = shared, query.publish
        self._window = query.source.window.us if isinstance(query.source, Join) else None

    @property
    def normal(self) -> NormalQuery:
        return self._shared.normal(self._window)

    @property
    def form_id(self) -> str:
        return self._shared.form_id(self._window)

    @property
    def text(self) -> str:
        return self._shared.text(self._window, self.publish)


class StoredQuery:
    """A stored query, parsed when its normal form is first used, which raises StoreError if this version cannot parse
    the text. Then `error` is set."""

    def __init__(self, text: str, compiler: Compiler) -> None:
        self._text, self._compiler = text, compiler
        self.error: UnreadableQuery | None = None

    @cached_property
    def normal(self) -> NormalQuery:
        return self._compiled.normal

    @property
    def form_id(self) -> str:
        return self._compiled.form_id

    @cached_property
    def _compiled(self) -> CompiledQuery:
        try:
            return self._compiler.compile_text(self._text)
        except UnreadableQuery as error:
            self.error = error
            raise


class Compiler:
    """Compiles queries. The parser returns identical trees for equal text, so the cache is keyed by identity."""

    def __init__(self) -> None:
        # With its syntax tree, so that no others can have the identities of its parts.
        self._known: dict[tuple[object, ...], tuple[Query, SharedQuery]] = {}

    def compile(self, query: Query, namespaces: Namespaces) -> CompiledQuery:
        key = (*query.shared_parts(), namespaces)
        if (found := self._known.get(key)) is None:
            if len(self._known) >= MAX_COMPILED:
                self._known.clear()
            found = self._known[key] = query, SharedQuery(query, namespaces)
        return CompiledQuery(found[1], query)

    def compile_text(self, text: str) -> CompiledQuery:
        """Compiles a stored query. Raises UnreadableQuery if it cannot be parsed."""
        script = _stored_script(text, "query")
        return self.compile(script.queries[0], script.namespaces)


def _stored_script(text: str, what: str) -> Script:
    try:
        return parse_script(text, stored=True)
    except XsclErrors as error:
        raise UnreadableQuery(error.errors[0].message, what) from error


NO_JOIN = NormalQuery(None, None, (), (), star=False)
"""Empty normal form of event queries, which join no documents."""


class CompiledEvents:
    """An event query in the algebra of events; its XSCL normal form is empty."""

    normal = NO_JOIN

    def __init__(self, query: EventQuery, schemas: Mapping[str, Schema]) -> None:
        read = {name.name: schemas[name.name] for name in names_read(query.stream)}
        self.publish, self.stream = query.publish, lower_statement(query, read)
        self._query = query

    @cached_property
    def text(self) -> str:
        return to_xscl(self._query)

    @property
    def form_id(self) -> str:
        """Form id if it does not depend on when the query began; see `form_since`."""
        return self.form_since(0)

    def form_since(self, since: int) -> str:
        """Form id of a query that sees events after a time. Persisted and derived from `repr`: renaming a class or
        field of a stream would change it.

        Queries with an AGGREGATE, or a PATTERN that depends on earlier events, share a form only if they see the same
        events: their past cannot be separated afterwards.
        """
        return EVENT_FORM + text_digest(repr(self.stream) + (f" since {since}" if minds_since(self.stream) else ""))


class StoredEventQuery:
    """`error` says why it cannot be read; it then has no stream."""

    normal = NO_JOIN

    def __init__(self, form_id: str, compiled: CompiledEvents | UnreadableQuery) -> None:
        self.form_id = form_id
        self.error = compiled if isinstance(compiled, UnreadableQuery) else None
        self.stream = None if isinstance(compiled, UnreadableQuery) else compiled.stream


def definition_text(definition: EventDefinition, script: Script) -> str:
    return to_xscl(Script((definition,), script.namespaces))


def stored_definition(text: str) -> tuple[EventDefinition, Script]:
    """Parses a stored definition; returns it and its script. Raises UnreadableQuery."""
    script = _stored_script(text, "definition")
    (definition,) = script.definitions
    return definition, script


def compile_stored(texts: Sequence[str], defined: Mapping[str, Schema]) -> list[CompiledEvents]:
    """Compiles stored event queries, which may read each other in any order. Raises UnreadableQuery."""
    found = compile_readable(texts, defined)
    for error in found:
        if isinstance(error, UnreadableQuery):
            raise error
    return [one for one in found if isinstance(one, CompiledEvents)]


def compile_readable(texts: Sequence[str], defined: Mapping[str, Schema]) -> list[CompiledEvents | UnreadableQuery]:
    """Compiles stored event queries; returns errors for those that this version cannot read, and for their readers."""
    known, errors = EventStreams(defined), dict[int, UnreadableQuery]()
    while left := [number for number in range(len(texts)) if number not in errors]:
        script, found = _parsed_events([texts[number] for number in left], known)
        if script is not None and not found:
            schemas = schemas_of(script, known)
            made = iter([CompiledEvents(query, schemas) for query in script.event_queries])
            return [errors.get(number) or next(made) for number in range(len(texts))]
        errors |= {left[place]: UnreadableQuery(message) for place, message in found.items()}
    return [errors[number] for number in range(len(texts))]


def _parsed_events(texts: Sequence[str], known: EventStreams) -> tuple[Script | None, dict[int, str]]:
    """Parses event queries as one script. Also returns the first mistake of each, by place."""
    starts = [0, *accumulate(len(text) + len(_SEPARATOR) for text in texts)]
    found: dict[int, str] = {}
    try:
        script = parse_script(_SEPARATOR.join(texts), stored=True, events=known)
    except XsclErrors as errors:
        for error in errors.errors:
            found.setdefault(min(bisect_right(starts, error.span.start), len(texts)) - 1, error.message)
        return None, {place: _mistake(texts[place]) or message for place, message in found.items()}
    for place, query in enumerate(script.all_queries):
        if not isinstance(query, EventQuery):  # without its publisher, a bare name is a stream of documents
            found[place] = "it reads events that no query makes"
    return script, found


def _mistake(text: str) -> str:
    """The first mistake of an event query by itself, with places in its text; "" if it only lacks events."""
    try:
        parse_script(text, stored=True)
    except XsclErrors as errors:
        return next((one.message for one in errors.errors if not one.message.startswith(LACKS_EVENTS)), "")
    return ""


_SEPARATOR = ";\n"
