"""The oracle's event streams: sets of events, and the operators on them (docs/semantics.md, section 22).

Everything is computed as the definitions say it, from all events at once, in any order.
In particular:
- `WITHIN` bounds every NEXT and FOLD in its FROM, those in parentheses too.
- A statement without NEXT and FOLD keeps all its events, whatever its WITHIN says.
- NULL is a value of BY as any other: the events that have it are a group.
- Two iterations of a FOLD are one if they began with the same event, have the same latest event, and equal values.
- A published event is one part of its readers' events: its stream, the place of its statement, and the event itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tests.oracle import event_syntax as cel
from tests.oracle.event_values import Scope, Value, Values, evaluate, holds


@dataclass(frozen=True)
class Event:
    """An event: its attributes by name, its interval in microseconds, and the base events that it was made of."""

    attributes: frozenset[tuple[str, Value]]
    t0: int
    t1: int
    parts: frozenset[Hashable]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.attributes, self.t0, self.t1, self.parts))  # parts may be events of events

    @cached_property
    def values(self) -> Values:
        return dict(self.attributes)

    @property
    def duration(self) -> int:
        return self.t1 - self.t0


Events = frozenset[Event]


def event(values: Mapping[str, Value], t0: int, t1: int, parts: Iterable[Hashable]) -> Event:
    """An event with these values. A number is a float, so that equal ones are equal."""
    typed = ((name, float(value) if isinstance(value, int) else value) for name, value in values.items())
    return Event(frozenset(typed), t0, t1, frozenset(parts))


def before(one: Event, other: Event) -> bool:
    return one.t1 < other.t0


@dataclass(frozen=True)
class Iteration:
    """An iteration of a FOLD: what it began with, what came last, and the values then."""

    first: Event
    latest: Event
    values: frozenset[tuple[str, Value]]

    @property
    def t1(self) -> int:
        return self.latest.t1


Life = tuple[int, int]
"""From when on a statement is there, and until when: it sees the events with `from <= t1 < until`."""

EVER: Life = (-(2**62), 2**62)


class World:
    """Streams that are given, and statements over them. Those that `lives` has, by place, are not there for ever."""

    def __init__(
        self,
        schemas: Mapping[str, cel.Schema],
        events: Mapping[str, Iterable[Event]],
        statements: Sequence[cel.Cel],
        lives: Mapping[int, Life] | None = None,
    ) -> None:
        self.schemas = dict(schemas)
        self.statements = statements
        self.lives = lives or {}
        self.given = {name: frozenset(found) for name, found in events.items()}
        self._publishers: dict[str, list[int]] = {}
        self._streams: dict[str, Events] = {}
        for place, statement in enumerate(statements):
            if statement.publish is not None:
                self._publishers.setdefault(statement.publish, []).append(place)
        self._derive_schemas()
        for statement in statements:
            self._schema(statement)  # refuses what is malformed

    def _schema(self, statement: cel.Cel) -> cel.Schema:
        return cel.schema_of(statement, self.schemas)

    def _derive_schemas(self) -> None:
        waiting = dict(self._publishers)
        while waiting:
            done = []
            for name, publishers in waiting.items():
                try:
                    self.schemas[name] = self._schema(self.statements[publishers[0]])
                except KeyError:
                    continue
                done.append(name)
            assert done, f"a cycle, or unknown names, behind {list(waiting)}"
            for name in done:
                del waiting[name]

    def results(self, place: int, since: int | None = None) -> Events:
        """The results of a statement, during its life, or as if it were there from `since` on."""
        life = self.lives.get(place, EVER) if since is None else (since, EVER[1])
        return frozenset(one for one in self._of(self.statements[place], None, life) if one.t1 < life[1])

    def stream(self, name: str) -> Events:
        if name not in self._streams:
            published = (
                Event(made.attributes, made.t0, made.t1, frozenset({(name, place, made)}))
                for place in self._publishers.get(name, ())
                for made in self.results(place)
            )
            self._streams[name] = self.given.get(name, frozenset()) | frozenset(published)
        return self._streams[name]

    def _of(self, stream: cel.Stream, within: int | None, life: Life) -> Events:
        match stream:
            case cel.Name():
                return frozenset(one for one in self.stream(stream.name) if life[0] <= one.t1 < life[1])
            case cel.Cel():
                found = self._of(stream.stream, _least(within, stream), life)
                return frozenset(self._select(stream, found))
            case cel.Filter():
                source = self._of(stream.source, within, life)
                return frozenset(one for one in source if holds(stream.cond, Scope(one.values, one.duration)))
            case cel.Aggregate():
                return frozenset(_aggregated(stream, self._of(stream.source, within, life)))
        left, right = self._of(stream.left, within, life), self._of(stream.right, within, life)
        if isinstance(stream, cel.Union):
            return left | right
        schemas = cel.schema_of(stream.left, self.schemas), cel.schema_of(stream.right, self.schemas)
        make: Callable[..., Iterable[Event]] = _nexts if isinstance(stream, cel.Next) else _folds
        made = make(stream, left, right, schemas)
        return frozenset(one for one in made if within is None or one.duration <= within)

    def _select(self, statement: cel.Cel, found: Events) -> Iterable[Event]:
        if statement.select is None:
            yield from found
            return
        items = cel.items_of(statement.select, cel.schema_of(statement.stream, self.schemas))
        for one in found:
            values = {item.label: evaluate(item.expr, Scope(one.values, one.duration)) for item in items}
            yield event(values, one.t0, one.t1, one.parts)


def _least(within: int | None, statement: cel.Cel) -> int | None:
    own = statement.within.us if statement.within else None
    return min((bound for bound in (within, own) if bound is not None), default=None)


def pair(a: Event, b: Event) -> Scope:
    return Scope(a.values, b.t1 - a.t0, b.values, None, b.t0 - a.t1)


def _nexts(stream: cel.Next, left: Events, right: Events, schemas: tuple[cel.Schema, cel.Schema]) -> Iterable[Event]:
    names = cel.left_names(*schemas)
    pairs = [(a, b) for a in left for b in right if before(a, b) and holds(stream.cond, pair(a, b))]
    for a, b in pairs:
        if stream.latest:
            is_it = not any(other == b and c.t1 > a.t1 for c, other in pairs)
        else:
            is_it = not any(other == a and c.t1 < b.t1 for other, c in pairs)
        if is_it:
            values = {names[name]: value for name, value in a.values.items()}
            yield event({**values, **b.values}, a.t0, b.t1, a.parts | b.parts)


def _folds(stream: cel.Fold, left: Events, right: Events, schemas: tuple[cel.Schema, cel.Schema]) -> Iterable[Event]:
    changing = cel.changing_names(stream, *schemas)
    current = {Iteration(a, a, a.attributes) for a in left}
    while current:
        current = {more for one in current for more in iterated(stream, one, right)}
        for one in current:
            firsts = {f"{name}_1": one.first.values[name] for name in changing}
            parts = one.first.parts | one.latest.parts
            yield event({**firsts, **dict(one.values)}, one.first.t0, one.latest.t1, parts)


def chosen(stream: cel.Fold, one: Iteration, right: Events) -> list[tuple[Event, Scope]]:
    """The first events that an iteration chooses: those of one t1, each with what references mean."""
    values = dict(one.values)
    later = [b for b in right if before(one.latest, b)]
    scopes = [(b, Scope(one.first.values, b.t1 - one.first.t0, b.values, values, b.t0 - one.t1)) for b in later]
    found = [(b, scope) for b, scope in scopes if holds(stream.chooses, scope)]
    m = min((b.t1 for b, _ in found), default=None)
    return [(b, scope) for b, scope in found if b.t1 == m]


def iterated(stream: cel.Fold, one: Iteration, right: Events) -> Iterable[Iteration]:
    for b, scope in chosen(stream, one, right):
        if holds(stream.goes_on, scope):
            new = {item.label: evaluate(item.expr, scope) for item in stream.sets}
            yield Iteration(one.first, b, frozenset({**dict(one.values), **b.values, **new}.items()))


def _sessions(events: list[Event], gap: int) -> Iterable[list[Event]]:
    """The sessions of a group: what can be reached from one another by steps that are shorter than the gap."""
    rest = list(events)
    while rest:
        some = [rest.pop()]
        while near := [one for one in rest if any(abs(one.t1 - other.t1) < gap for other in some)]:
            some += near
            rest = [one for one in rest if one not in near]
        yield some


def _aggregated(stream: cel.Aggregate, source: Events) -> Iterable[Event]:
    groups: dict[tuple[Value, ...], list[Event]] = {}
    for one in source:
        groups.setdefault(tuple(one.values[name] for name in stream.by), []).append(one)
    for group, events in groups.items():
        for t0, t1, seen, told in _windows(stream, events):
            scopes = tuple(Scope(one.values, one.duration) for one in seen)
            values = {item.label: evaluate(item.expr, Scope({}, 0, group=scopes)) for item in stream.items}
            parts = [part for one in told for part in one.parts]
            yield event({**dict(zip(stream.by, group, strict=True)), **values}, t0, t1, parts)


def _windows(stream: cel.Aggregate, events: list[Event]) -> Iterable[tuple[int, int, list[Event], list[Event]]]:
    """The intervals of a group's results, with the events that each is of, and those that are its parts."""
    if stream.session and stream.over:
        for some in _sessions(events, stream.over.us):
            times = [one.t1 for one in some]
            yield min(times), max(times) + stream.over.us, some, some
        return
    for t in {one.t1 for one in events}:
        seen = [one for one in events if (t - stream.over.us < one.t1 <= t if stream.over else one.t1 == t)]
        yield t, t, seen, [one for one in events if one.t1 == t]
