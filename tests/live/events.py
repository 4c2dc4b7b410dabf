"""Event statements in the model of live use: which events each of them sees, and what it tells of them.

It follows docs/semantics.md, sections 19 to 21 and 29. After each change the oracle evaluates each statement over all
that it has ever seen, and what it told before is left out. What it reads of others is what they told while it was
there; a statement with backfill reads before its subscription what those that are there then would tell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import NamedTuple

from lxml import etree

from tests.generate.documents import SECOND
from tests.oracle import event_syntax
from tests.oracle.bindings import Stored
from tests.oracle.event_syntax import Aggregate, Cel, Cmp, Filter, Fn, Item, Name, Next, Of, Ref, Str, Window, reads
from tests.oracle.event_values import DISTINCT
from tests.oracle.events import Event, Events, event
from tests.oracle.pattern_syntax import Absent, AnyOrder, Letter, Many, Near, One, Pattern, Statement
from tests.oracle.pattern_world import PatternWorld, pattern_schema
from tests.pattern_stage.defined import Defined, defined_events
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import EventDefinition, EventQuery, EventStreams, Script

SETTLE = 3 * SECOND
BEGINNING, NEVER = -(2**62), 2**62

DEFINED = {
    "A": ("S//a->r (k := r/x)", "S//a->r (k := r/y)", "S//a->r (k := lower-case(r/x))"),
    "B": ("S//*->r (k := r/y)", "T//a->r (k := r/x)", "S//b->r (k := r/x)"),
}
"""Each event with texts of its definition."""

K: event_syntax.Schema = {"k": "string"}
SCHEMAS: dict[str, event_syntax.Schema] = {"A": K, "B": K, "E": K, "F": K, "P": {"k_1": "string", "k": "string"}}
SCHEMAS |= {"Q": SCHEMAS["P"], "M": {"p": "string", "q": "string"}, "N": {"p": "string", "q": "string"}}
"""The attributes of events by their name. Two names have equal statements each."""

_SAME = Cmp("=", Ref("k", "$1"), Ref("k", "$2"))
_ITEMS = Item(Of("a", "k"), "p"), Item(Of("b", "k"), "q")
_TWO = One("A", "a"), One("A", "b")
_BOTH = One("A", "a"), One("B", "b")


def _is(variable: str, text: str) -> Cmp:
    return Cmp("=", Of(variable, "k"), Str(text))


def _patterns(publish: str | None) -> Iterator[Statement]:
    """Patterns that differ in constants and windows only, of each way in which the pattern stage works."""
    for text, window in product("uv", (Window("4"), Window("7"))):
        silent = Absent("B", "n"), _is("n", text)
        yield Pattern(_TWO, window, cond=_is("a", text), select=_ITEMS, publish=publish)
        yield Pattern((silent[0], *_TWO), window, cond=silent[1], select=_ITEMS, publish=publish)
        yield Pattern((_TWO[0], silent[0], _TWO[1]), window, cond=silent[1], select=_ITEMS, publish=publish)
        yield Pattern((*_TWO, silent[0]), window, cond=silent[1], select=_ITEMS, publish=publish)
        yield Pattern((AnyOrder(_BOTH),), window, cond=_is("a", text), select=_ITEMS, publish=publish)
        yield Pattern(_TWO, window, cond=_is("a", text), select=_ITEMS, apart=True, publish=publish)


def _statements() -> Iterator[Statement]:
    a, b = Name("A"), Name("B")
    for name in ("E", "F"):
        yield Cel(a, publish=name)
        yield from (Cel(Filter(Cmp("=", Ref("k"), Str(text)), one), publish=name) for text in "uv" for one in (a, b))
        yield Cel(event_syntax.Union(a, b), publish=name)
    for name in ("P", "Q"):
        yield Cel(Next(a, _SAME, b), publish=name)
        yield Cel(Next(a, None, b), within=Window("6"), publish=name)
        yield Cel(Next(a, _SAME, b, latest=True), within=Window("6"), publish=name)
        yield Cel(
            event_syntax.Fold(a, Cmp("=", Ref("k", "$2"), Ref("k", "$")), None, (), a), within=Window("8"), publish=name
        )
        yield Cel(Next(Filter(Cmp("!=", Ref("k"), Str("v")), Name("E")), _SAME, b), publish=name)
    yield from (*_patterns("M"), *_patterns("N"), *_patterns(None))
    pair = Name("P"), Cmp("=", Ref("k"), Ref("k_1"))
    yield Cel(Aggregate((Item(Fn("count"), "n"),), ("k",), Window("5"), a))
    yield Cel(Aggregate((Item(Fn("count"), "n"),), (), Window("5"), Filter(Cmp("!=", Ref("k"), Str("")), Name("E"))))
    counts = Item(Fn("count"), "n"), Item(Fn(DISTINCT, (Ref("k"),)), "d"), Item(Fn("median", (Ref("k"),)), "m")
    yield from (
        Cel(Aggregate(counts, by, Window("3"), one, session=True)) for by in ((), ("k",)) for one in (a, Name("E"))
    )
    yield Cel(Next(pair[0], None, Filter(Cmp("!=", Ref("k"), Str("v")), Name("E")), latest=True), within=Window("9"))
    yield Cel(Filter(pair[1], pair[0]))
    items = Item(Of("m", "q"), "q"), Item(Of("b", "k"), "k")
    yield Pattern((One("M", "m"), One("B", "b")), Window("9"), select=items)
    many = (One("A", "a"), Many("B", "b"))
    yield from (
        Pattern(many, Window("6"), strategy, select=(_ITEMS[0], Item(event_syntax.Len("b"), "n")))
        for strategy in ("skip_till_next_match", "skip_till_any_match", "strict_contiguity")
    )
    counts = Item(Fn("count"), "n"), Item(Of("b", "k", "LEN"), "k"), Item(Fn("max", (Of("a", "k"),)), "m")
    rises = Cmp("!=", Of("b", "k", "i"), Of("b", "k", "i-1"))
    having = Cmp(">", Fn("count"), event_syntax.Num("1"))
    yield from (
        Pattern(many, Window("6"), keys=keys, cond=cond, having=having, select=counts, together=True)
        for keys, cond in ((("k",), None), ((), rises), ((), None))
    )
    yield Near((Letter("A"), Letter("B"), Letter("A")), 1, Window("5"), ("k",))


STATEMENTS: dict[str, Statement] = {}
"""Statements by their text as the language prints it."""


def text_of(statements: Iterable[Statement], definitions: Mapping[str, int]) -> str:
    """A script of event statements with the definitions of what they read."""
    defined = [f"DEFINE EVENT {name} FROM {DEFINED[name][n]}" for name, n in definitions.items()]
    return "; ".join([*defined, *(one.text() for one in statements)])


def streams_read(one: Statement) -> set[str]:
    return {*(reads(one) if isinstance(one, Cel) else one.streams)}


KNOWN = EventStreams({}, {name: tuple(schema.items()) for name, schema in SCHEMAS.items() if name not in DEFINED})


@cache
def parsed_events(text: str) -> Script:
    """A script, cached; what events can be published is known."""
    return parse_script(text, events=KNOWN)


def _known() -> Iterator[tuple[str, Statement]]:
    every = list(_statements())
    parsed = parsed_events(text_of(every, dict.fromkeys(DEFINED, 0)))
    for one, query in zip(every, parsed.event_queries, strict=True):
        yield to_xscl(query), one


STATEMENTS |= _known()


class EventRow(NamedTuple):
    """An output of an event statement."""

    query: str
    t0: int
    t1: int
    values: frozenset[tuple[str, str]]
    documents: tuple[str, ...]


def event_row(query: str, t0: int, t1: int, xml: str | bytes, documents: Iterable[str]) -> EventRow:
    root = etree.fromstring(xml)
    values = {(child.tag, child.text or "") for child in root if not len(child)}
    if errors := root.get("errors"):
        values.add(("errors", errors))
    return EventRow(query, t0, t1, frozenset(values), tuple(sorted(set(documents))))


class SourceEvent(NamedTuple):
    """What an event of a document is made of."""

    event: str
    stream: str
    id: str
    nodes: tuple[tuple[int, int], ...]


class PublishedEvent(NamedTuple):
    """What an event of a statement is made of: its name, text and occurrence, and the result."""

    name: str
    text: str
    occurrence: int
    made: Event


@dataclass(eq=False)
class EventStanding:
    """A registered event statement. It sees what ends at `begun` or later. `lives` are the times that it was there
    before its pauses."""

    name: str
    query: EventQuery
    occurrence: int
    begun: int
    defined: dict[str, EventDefinition]
    paused: int | None = None
    lives: list[tuple[int, int]] = field(default_factory=list)
    before: dict[str, Events] = field(default_factory=dict)
    """What a backfill finds of other statements, by name."""
    backfilled: int = BEGINNING
    """The time up to which it is that instead of what they told."""
    given: set[Event] = field(default_factory=set)
    seen: set[Stored] = field(default_factory=set)
    """What a backfill finds of documents that came too late for others."""

    @property
    def text(self) -> str:
        return to_xscl(self.query)

    @property
    def statement(self) -> Statement:
        return STATEMENTS[self.text]

    @property
    def key(self) -> object:
        return self.query.publish, self.text

    def pause(self, at: int) -> None:
        self.lives.append((self.begun, at))
        self.paused = at

    def resume(self, at: int) -> None:
        self.begun, self.paused, self.backfilled = at, None, BEGINNING
        self.before.clear()
        self.seen.clear()
        self.given.clear()

    def published(self, results: Iterable[Event]) -> Iterator[Event]:
        """What readers see of its results."""
        for one in results:
            part = PublishedEvent(self.name, self.text, self.occurrence, one)
            yield Event(one.attributes, one.t0, one.t1, frozenset({part}))

    def identity(self, made: Event) -> Hashable:
        return self.name, self.text, self.occurrence, made


class EventModel:
    """What is over for event statements, and what they have told. `documents` returns the external documents that are
    kept, in the order of arrival; `statements` the registered event statements; `progress` how far streams have
    come."""

    def __init__(
        self,
        documents: Callable[[], Iterable[Stored]],
        statements: Callable[[], list[EventStanding]],
        progress: Callable[[], Mapping[str, int]],
    ) -> None:
        self._documents, self._statements, self._progress = documents, statements, progress
        self.definitions: dict[str, EventDefinition] = {}
        self.horizon = BEGINNING
        self.missed: set[Stored] = set()
        """Documents that came too late for the statements that were there. A later backfill sees them."""
        self.refused: set[Stored] = set()
        """Documents that came too late and are dead letters."""
        self._log: dict[str, set[Event]] = {}

    # ------------------------------------------------------------ time

    def _active(self) -> list[EventStanding]:
        return [one for one in self._statements() if one.paused is None]

    def streams(self, some: Iterable[EventStanding]) -> set[str]:
        return {
            self.definitions[name].block.stream
            for one in some
            for name in streams_read(one.statement)
            if name in self.definitions
        }

    def behind(self, name: str) -> set[str]:
        """The streams of documents behind what event statements publish under a name."""
        makers = [one for one in self._statements() if one.query.publish == name]
        read = {of for one in makers for of in streams_read(one.statement)}
        return self.streams(makers).union(*(self.behind(of) for of in read))

    def _first_horizon(self, streams: Collection[str]) -> int:
        known = [time - SETTLE for stream, time in self._progress().items() if stream in streams]
        return min(known, default=BEGINNING)

    def _start(self) -> int:
        begun = [one.begun for one in self._active()]
        return max(self.horizon, min(begun)) if begun else self.horizon

    def first_seen(self, streams: Collection[str]) -> int:
        """The time from which a statement over some streams sees events, if it comes, pauses or goes on now."""
        if self.horizon > BEGINNING and self._active():
            return self._start()
        return max(self.horizon, self._first_horizon(streams))

    def follow(self) -> None:
        """Passes over the time before all statements."""
        self.horizon = self._start()

    def begin_backfill(self, new: Collection[object]) -> None:
        if self.horizon == BEGINNING and all(one in new for one in self._active()):
            self.horizon = self._first_horizon(self.streams(self._active()))
        self.follow()

    def advance(self) -> None:
        """Moves the horizon after a document or a visit."""
        greatest, streams = self._progress(), self.streams(self._active())
        if streams and all(stream in greatest for stream in streams):
            self.horizon = max(self.horizon, min(greatest[stream] for stream in streams) - SETTLE)

    def is_late(self, document: Stored) -> bool:
        """Whether a document has events that come too late for a statement."""
        used = {name for one in self._active() for name in streams_read(one.statement)} & self.definitions.keys()
        return document.t1 < self.horizon and any(
            definition.block.stream == document.stream and defined_events(definition, document.xml)
            for definition in (self.definitions[name] for name in used)
        )

    # ------------------------------------------------------------ events

    def _of_documents(self, name: str, definition: EventDefinition, unseen: Collection[Stored]) -> Events:
        found = set()
        for one in self._documents():
            if one.stream == definition.block.stream and one not in self.refused and one not in unseen:
                for nodes, values in _events_in(definition, one):
                    part = SourceEvent(name, one.stream, one.id, nodes)
                    found.add(event({"k": values[0]}, one.t0, one.t1, [part]))
        return frozenset(found)

    def _results(self, one: EventStanding, given: Mapping[str, Events], life: tuple[int, int]) -> Events:
        world = PatternWorld(SCHEMAS, given, [one.statement], {0: life}, order=_order)
        return world.results(0)

    def _given(self, one: EventStanding) -> dict[str, Events]:
        found: dict[str, Events] = {}
        for name in streams_read(one.statement):
            if name in one.defined:
                found[name] = self._of_documents(name, one.defined[name], self.missed - one.seen)
            else:
                later = frozenset(made for made in self._log.get(name, ()) if made.t1 >= one.backfilled)
                found[name] = one.before.get(name, frozenset()) | later
        return found

    def _again(self, name: str, new: Collection[EventStanding]) -> Events:
        """What registered statements would tell under a name, before the horizon. Those that are new see all."""
        found: set[Event] = set()
        for one in self._statements():
            if one.query.publish != name:
                continue
            given = {
                of: self._of_documents(of, one.defined[of], ()) if of in one.defined else self._again(of, new)
                for of in streams_read(one.statement)
            }
            for life in [*one.lives, *([(one.begun, NEVER)] if one.paused is None else [])]:
                found.update(one.published(self._results(one, given, life)))
        return frozenset(made for made in found if made.t1 < self.horizon)

    def told(self, one: EventStanding, new: Collection[EventStanding]) -> list[Event]:
        """What a statement tells now; those that are `new` have a backfill, and others tell nothing in it."""
        if one in new:
            one.before = {name: self._again(name, new) for name in streams_read(one.statement) - one.defined.keys()}
            one.backfilled, one.seen = self.horizon, set(self.missed)
            for other in self._active():  # equal statements have one state
                if other not in new and other.text == one.text and not self.missed <= other.seen:
                    other.seen |= self.missed
                    results = self._results(other, self._given(other), (other.begun, NEVER))
                    other.given.update(made for made in results if made.t1 < self.horizon)
        found = [
            made
            for made in self._results(one, self._given(one), (one.begun, NEVER))
            if made.t1 < self.horizon and made not in one.given
        ]
        one.given.update(found)
        if one.query.publish is not None and one not in new:
            self._log.setdefault(one.name, set()).update(one.published(found))
        return found

    def stored(self, one: EventStanding, made: Event) -> Stored:
        """A result as a document."""
        root = etree.Element("match", query=one.name, t0=str(made.t0), t1=str(made.t1))
        values = made.values
        if isinstance(one.statement, Near):
            root.set("errors", str(int(float(str(values["errors"])))))
        else:
            for name in pattern_schema(one.statement, SCHEMAS):
                if (value := values[name]) is not None:
                    etree.SubElement(root, name).text = str(int(value)) if isinstance(value, float) else value
        times = {(one.stream, one.id): (one.t1, one.t0) for one in self._documents()}
        behind = sorted((*times[one.stream, one.id], *one[1:]) for one in set(_behind(made.parts)))
        external = tuple((id, stream) for _, _, stream, id, _ in behind)
        return Stored(one.name, f"{one.text} {made!r}", made.t0, made.t1, etree.tostring(root), external)


@cache
def _events_in(definition: EventDefinition, document: Stored) -> Sequence[Defined]:
    return sorted(defined_events(definition, document.xml), key=repr)


def _order(one: Event) -> tuple[object, ...]:
    parts = [part for part in one.parts if isinstance(part, SourceEvent)]
    return one.t1, sorted((part.stream, part.id, part.nodes) for part in parts), sorted(map(repr, one.parts))


def _behind(parts: Iterable[Hashable]) -> Iterator[SourceEvent]:
    """What is behind some parts. The same nodes count once, whatever their event."""
    waiting = list(parts)
    while waiting:
        part = waiting.pop()
        if isinstance(part, SourceEvent):
            yield part._replace(event="")
        else:
            assert isinstance(part, PublishedEvent)
            waiting += part.made.parts
