"""Compiles queries from text to rows of R_T, and event queries to the algebra of events. `xscl.parse_script` checks the
syntax, `xscl.lower.normalize` yields the value-join normal form (conjunctive queries over tree patterns), and `place`
puts each conjunctive query into a row of R_T of its template, through the shared catalog. `Compiler` does the first
two, once for equal queries; the registry does the third. Definitions of events stand in the catalog once for all
readers."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from join_stage.store.protocol import StoreError
from mmqjp.queries.model import EVENT_FORM, Owner, Target, text_digest, width_of
from pattern_stage.definition import sees_before
from templates.catalog import Catalog, Change
from templates.events import EventPlacement, place_events
from xpath_stage.evaluator import XPathStage
from xscl.algebra.events import (
    EVENTS,
    Aggregate,
    EventPattern,
    Events,
    Filter,
    Fold,
    Letter,
    Letters,
    NearPattern,
    Next,
    OneOf,
    Pattern,
    Repeated,
    Schema,
    Select,
    Statement,
    Union,
    Word,
    letters_of,
)
from xscl.algebra.joins import Conjunct, Hidden, JoinOp, NormalQuery
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
        """The normal form for a join's window in microseconds, computed on first use: a registered query does not need
        it."""
        if self._query is not None:
            first = normalize(self._query, dict(self._namespaces))
            self._query = None  # of very many queries, the trees take much memory
            self._normals[window] = _with_window(first, window) if len(self._parts) > 1 else first
        found = self._normals.get(window)
        if found is None:
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


def _with_window(normal: NormalQuery, window: int | None) -> NormalQuery:
    if normal.window == window:
        return normal
    # Written out, because `replace` takes several times as long.
    return NormalQuery(
        normal.op,
        window,
        normal.conjuncts,
        normal.entries,
        normal.star,
        normal.constructor,
        normal.holes,
        normal.namespaces,
        normal.once,
        normal.absent,
    )


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


CANNOT_READ = "this version cannot read"
"""Begins the reason for the pause of an unreadable query."""


class UnreadableQuery(StoreError):
    """A stored query or definition has a text that this version cannot read."""

    def __init__(self, mistake: str, what: str = "query") -> None:
        super().__init__(mistake, what)
        self.mistake, self.what = mistake, what

    def __str__(self) -> str:
        return f"{CANNOT_READ} the {self.what}: {self.mistake}; subscribe it in words that it reads"


class StoredQuery:
    """A stored query, parsed when its normal form is first used. `error` is set if it cannot be."""

    def __init__(self, text: str, compiler: Compiler) -> None:
        self._text, self._compiler = text, compiler
        self.error: UnreadableQuery | None = None

    @cached_property
    def normal(self) -> NormalQuery:
        """Raises StoreError if this version cannot parse the text."""
        return self._compiled.normal

    @property
    def form_id(self) -> str:
        """Raises StoreError if this version cannot parse the text."""
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
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_COMPILED:
                self._known.clear()
            found = self._known[key] = query, SharedQuery(query, namespaces)
        return CompiledQuery(found[1], query)

    def compile_text(self, text: str) -> CompiledQuery:
        """Compiles a stored query. Raises UnreadableQuery if it cannot be parsed."""
        try:
            script = parse_script(text, stored=True)
        except XsclErrors as error:
            raise UnreadableQuery(error.errors[0].message) from error
        return self.compile(script.queries[0], script.namespaces)


def place(
    owner: Owner, catalog: Catalog, conjuncts: Sequence[Conjunct], op: JoinOp | None, window: int | None
) -> Iterator[tuple[Target, Change]]:
    """Places a plan node's conjunctive queries in the catalog, in order. Yields each target, and the change for the
    stages. Raises TooManyChains."""
    width = width_of(op, window)
    for disjunct, conjunct in enumerate(conjuncts):
        placement, change = catalog.add(conjunct, width, op == "FOLLOWED BY")
        streams = tuple(side.stream for side in conjunct.sides())
        yield Target(owner, catalog, disjunct, placement.row, placement.template, op, width, streams), change


def inner_join(normal: NormalQuery, stream: str) -> Hidden:
    """Returns the inner join that produces a hidden stream. Raises StoreError if there is none."""
    waiting: list[Conjunct] = list(normal.conjuncts)
    while waiting:
        for side in waiting.pop().sides():
            if side.hidden is not None:
                if side.stream == stream:
                    return side.hidden
                waiting += side.hidden.conjuncts
    raise StoreError(f"the store's tables do not agree: no inner join of the query makes {stream}")


class DefinedEvents:
    """Reference-counted definitions in use. `version` changes with every change."""

    def __init__(self, catalog: Catalog, stage1: XPathStage) -> None:
        self._catalog, self._stage1 = catalog, stage1
        self._readers: Counter[str] = Counter()
        self.placements: dict[str, EventPlacement] = {}
        self.version = 0

    def use(self, name: str, pattern: EventPattern) -> None:
        """Adds a reader of a definition. Raises TooManyChains."""
        if name not in self.placements:
            self.placements[name], change = place_events(self._catalog, pattern)
            self._stage1.add(change)
            self.version += 1
        self._readers[name] += 1

    def release(self, name: str) -> None:
        self._readers[name] -= 1
        if not self._readers[name]:
            del self._readers[name]
            gone = self.placements.pop(name)
            self._stage1.remove(self._catalog.release(gone.variables, gone.edges, gone.values))
            self.version += 1

    def needs_of(self, name: str) -> Change:
        placement = self.placements[name]
        return self._catalog.held(placement.variables, placement.edges, placement.values)


NO_JOIN = NormalQuery(None, None, (), (), star=False)
"""Empty normal form of event queries, which join no documents."""


_BARE = re.compile(r"(?:SELECT [^;]+ )?FROM [A-Za-z_]\w*(?: WITHIN [\w ]+)?(?: PUBLISH \S+)?")


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


def is_event_form(form_id: str) -> bool:
    return form_id.startswith(EVENT_FORM)


def is_bare(text: str) -> bool:
    """Whether a registered query's text is that of an event query that is the bare name of a stream; over documents it
    has a path.

    >>> is_bare("FROM Post PUBLISH posts"), is_bare("FROM S/* PUBLISH posts"), is_bare("FROM A NEXT B")
    (True, False, False)
    """
    return _BARE.fullmatch(text) is not None


def minds_since(stream: Statement) -> bool:
    """Whether starting later changes a stream's results beyond shortening them: it has an AGGREGATE, or a PATTERN that
    depends on what preceded a match.

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
    """Returns the event streams that a stream derives from, by name, with attributes.

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
    return to_xscl(Script((), script.namespaces, (definition,), (), ("definition",)))


def stored_definition(text: str) -> tuple[EventDefinition, Script]:
    """Parses a stored definition; returns it and its script. Raises UnreadableQuery."""
    try:
        script = parse_script(text, stored=True)
    except XsclErrors as error:
        raise UnreadableQuery(error.errors[0].message, "definition") from error
    (definition,) = script.definitions
    return definition, script


def compile_stored(texts: Sequence[str], defined: Mapping[str, Schema]) -> list[CompiledEvents]:
    """Compiles stored event queries, which may read each other in any order. Raises UnreadableQuery."""
    found: list[CompiledEvents] = []
    for one in compile_readable(texts, defined):
        if isinstance(one, UnreadableQuery):
            raise one
        found.append(one)
    return found


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


@dataclass(frozen=True, slots=True)
class ReturnItem:
    """An item of RETURN: element name, column in `with_output_attributes`, and whether it has a value per event."""

    name: str
    column: int
    several: bool


@dataclass(frozen=True, slots=True)
class OutputVariable:
    """A non-negated variable: name, whether it has several events, and attribute names."""

    name: str
    several: bool
    attributes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """Content of a PATTERN's output documents: the items of RETURN or else the events.

    Each part of a match is that of one of `variables`. With ERRORS there is one part, whose events are distinguished by
    stream: `letters` maps these to variables.
    """

    items: tuple[ReturnItem, ...] | None
    variables: tuple[OutputVariable, ...]
    letters: dict[str, OutputVariable]
    events: int
    """Column of EVENTS; -1 if not selected."""


def with_output_attributes(stream: Statement) -> Statement:
    """Returns a statement with all attributes that its output documents need, its own first."""
    if not isinstance(stream, Pattern | NearPattern):
        return stream
    if stream.returned is None:
        return replace(stream, schema=(*stream.schema, (EVENTS, "string")))
    if isinstance(stream, NearPattern):
        return stream
    several: Schema = tuple((item.name, "string") for item in stream.returned if item.each is not None)
    return replace(stream, schema=(*stream.schema, *several))


def contents(stream: Pattern | NearPattern) -> Contents:
    """Returns the content of a pattern's output documents, in order, as columns of `with_output_attributes`."""
    columns = {name: place for place, (name, _) in enumerate(with_output_attributes(stream).schema)}
    events = columns.get(EVENTS, -1)
    if isinstance(stream, NearPattern):
        returned = (
            None
            if stream.returned is None
            else tuple(ReturnItem(name, columns[name], False) for name, _ in stream.returned)
        )
        several = Counter(_occurrences(stream.letters))
        letters = {
            one.source.stream: OutputVariable(
                one.source.stream, several[one.source.stream] > 1, _names(one.source.schema)
            )
            for one in letters_of(stream.letters)
        }
        return Contents(returned, (), letters, events)
    items = None
    if stream.returned is not None:
        items = tuple(ReturnItem(one.name, columns[one.name], one.each is not None) for one in stream.returned)
    variables = tuple(
        OutputVariable(one.name, one.kleene, _names(one.source.schema)) for one in stream.variables if not one.negated
    )
    return Contents(items, variables, {}, events)


def _names(schema: Schema) -> tuple[str, ...]:
    return tuple(name for name, _ in schema)


def _occurrences(letters: Letters) -> Iterator[str]:
    match letters:
        case Letter():
            yield letters.source.stream
        case Repeated():
            yield from (*_occurrences(letters.part), *_occurrences(letters.part))
        case Word() | OneOf():
            for part in letters.parts:
                yield from _occurrences(part)
