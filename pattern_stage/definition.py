"""Normal forms of event statements: operators with parameters for constants, shared by statements of one shape. A
statement is split into constant-free pieces, which many statements share, and its constants; streams become numbered
inputs. Also: which conditions of a pattern are about single events alone."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from common.bounds import Micros
from common.tools import frozen
from pattern_stage.clauses import Ordered, chain, ordered
from xscl.algebra import events as algebra

AnyPattern = algebra.Pattern | algebra.NearPattern


def pattern_template(pattern: AnyPattern, leaf: Callable[[algebra.Value], algebra.Value]) -> AnyPattern:
    """Returns a pattern over inputs `0`, `1`, ..., with leaves replaced as by `with_leaves`; a window becomes 0."""
    numbers = {name: str(place) for place, (name, _) in enumerate(inputs(pattern))}
    numbered = algebra.map_events(pattern, lambda events: algebra.Events(numbers[events.stream], events.schema))
    return with_leaves(replace(numbered, within=None if pattern.within is None else 0), leaf)


def with_leaves(pattern: AnyPattern, leaf: Callable[[algebra.Value], algebra.Value]) -> AnyPattern:
    """Returns a pattern with the leaves of its conditions replaced, in a fixed order. RETURN and arguments of
    aggregates belong to the shape and stay. A condition on the first and on each other event is one condition."""
    if isinstance(pattern, algebra.NearPattern):
        return pattern

    def tests(some: tuple[algebra.WhereConjunct, ...]) -> tuple[algebra.WhereConjunct, ...]:
        found: list[algebra.WhereConjunct] = []
        for one in some:
            before = (made.condition for known, made in zip(some, found, strict=False) if _is_of_first(known, one))
            found.append(replace(one, condition=next(before, None) or algebra.map_leaves(one.condition, leaf)))
        return tuple(found)

    having = algebra.map_leaves(pattern.having, leaf)
    return replace(pattern, conjuncts=tests(pattern.conjuncts), kills=tests(pattern.kills), having=having)


def _is_of_first(known: algebra.WhereConjunct, one: algebra.WhereConjunct) -> bool:
    """Returns whether `known` says of the first event what `one` says of each other one."""
    if (known.phase, one.phase) != ("first", "each") or known.variable != one.variable:
        return False
    if known.condition != one.condition or len(known.names) != len(one.names):
        return False
    return all(
        of == other or (isinstance(of, algebra.OfItem) and of.place == "first" and other == replace(of, place="each"))
        for (_, of), (_, other) in zip(known.names, one.names, strict=True)
    )


def inputs(pattern: AnyPattern) -> tuple[tuple[str, algebra.Schema], ...]:
    """Returns the streams that a pattern reads, sorted by name, with their attributes."""
    return tuple(sorted(pattern.streams.items()))


def sees_before(operator: algebra.Statement) -> bool:
    """Returns whether results depend on earlier events: then statements that began at different times share no rows."""
    if isinstance(operator, algebra.NearPattern) or needs_order(operator):
        return needs_order(operator)
    if not isinstance(operator, algebra.Pattern):
        return isinstance(operator, algebra.Aggregate | algebra.Latest | algebra.Stories)
    return (
        isinstance(operator, algebra.Together)
        or operator.has_sets
        or any(one.negated and one.group == 0 for one in operator.variables)
    )


def needs_order(statement: algebra.Statement) -> bool:
    """Returns whether results may depend on the order of simultaneous events, by their names."""
    if isinstance(statement, algebra.NearPattern):
        return statement.apart or statement.budget is not None
    return isinstance(statement, algebra.Pattern) and (statement.apart or statement.maximal)


@dataclass(frozen=True, slots=True)
class TemplatePiece:
    """A source, an operator, or a chain of selections and renamings, over the pieces at the places `inputs`. `first` is
    the index of its first constant among all, `window` that of its window in the statement, -1 for none."""

    template: algebra.Statement
    """Over streams `left` and `right`, or `0`, `1`, ... of a PATTERN; parameters count from 0; window 0."""
    inputs: tuple[int, ...]
    first: int
    window: int


@dataclass(slots=True)
class SplitStatement:
    """A split stream: pieces, inputs first; its constants and distinct windows, in order."""

    pieces: list[TemplatePiece] = field(default_factory=list)
    constants: list[str | float] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    _first: int = 0

    def add(self, stream: algebra.Statement) -> int:
        """Splits a stream; returns the place of the piece with its events."""
        if isinstance(stream, algebra.Events):
            return self._piece(stream, ())
        if isinstance(stream, algebra.Pattern | algebra.NearPattern):
            places = tuple([self.add(algebra.Events(*one)) for one in inputs(stream)])
            self._first = len(self.constants)
            return self._piece(pattern_template(stream, self._leaf), places, stream.within)
        chain: list[algebra.Stream] = [stream]
        while isinstance(stream, algebra.Select | algebra.Filter) and isinstance(
            stream.source, algebra.Select | algebra.Filter
        ):
            stream = stream.source
            chain.append(stream)
        places = tuple([self.add(source) for source in algebra.sources_of(stream)])
        self._first, window = len(self.constants), algebra.window_of(stream)
        sources: list[algebra.Stream] = [*_inputs(stream)]
        for link in reversed(chain):
            sources = [algebra.with_parts(link, sources, None if window is None else 0, self._value, self._value)]
        return self._piece(sources[0], places, window)

    def _value(self, node: Any) -> Any:
        return algebra.map_leaves(node, self._leaf)

    def _piece(self, template: algebra.Statement, inputs: tuple[int, ...], window: int | None = None) -> int:
        if window is not None and window not in self.windows:
            self.windows.append(window)
        place = -1 if window is None else self.windows.index(window)
        self.pieces.append(TemplatePiece(template, inputs, self._first, place))
        return len(self.pieces) - 1

    def _leaf(self, value: algebra.Value) -> algebra.Value:
        if not isinstance(value, algebra.Constant):
            return value
        constant = value.value if isinstance(value.value, str) else float(value.value)
        self.constants.append(constant)
        kind: algebra.Kind = "string" if isinstance(constant, str) else "number"
        return algebra.Parameter(len(self.constants) - 1 - self._first, kind)


def _inputs(operator: algebra.Stream) -> list[algebra.Events]:
    return [
        algebra.Events(name, source.schema)
        for name, source in zip(("left", "right"), algebra.sources_of(operator), strict=False)
    ]


_OfOne = algebra.Select | algebra.Filter | algebra.Aggregate | algebra.Stories
_OfTwo = algebra.Union | algebra.Next | algebra.Fold
AlgebraOp = _OfOne | _OfTwo | AnyPattern


@frozen
class Definition:
    """An operator over schemas, with parameters for constants. Rows have the window: here it is None, and OVER 0."""

    operator: AlgebraOp
    kinds: tuple[algebra.Kind, ...]
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        """Caches the hash of its expressions: definitions are looked up often."""
        if not self._hash:
            object.__setattr__(self, "_hash", hash((self.operator, self.kinds)) or 1)
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        """Drops the cached hash, which is process-specific."""
        return Definition, (self.operator, self.kinds)

    @property
    def name(self) -> str:
        """A name that is the same in every process."""
        return hashlib.sha256(repr((self.operator, self.kinds)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class FormNode:
    """An operator of a normal form, or a source: then `definition` is None and `stream` its name. `inputs` are places
    in the normal form, `slots` the constants that are its parameters, `alike` the groups of interchangeable parameter
    vectors, inner groups first. `window` is its place among the statement's windows, -1 for none."""

    definition: Definition | None
    stream: str
    schema: algebra.Schema
    inputs: tuple[int, ...]
    slots: tuple[int, ...]
    alike: tuple[tuple[tuple[int, ...], ...], ...] = ()
    window: int = -1

    def sorted_values(self, parameters: Sequence[str | float]) -> list[str | float]:
        """Returns parameters with interchangeable ones sorted."""
        values = list(parameters)
        for group in self.alike:
            vectors = sorted(tuple(values[place] for place in places) for places in group)
            for places, vector in zip(group, vectors, strict=True):
                for place, value in zip(places, vector, strict=True):
                    values[place] = value
        return values


@dataclass(frozen=True, slots=True)
class StatementForm:
    """The normal form of statements that differ only in constants, of these `kinds`. The last node has the results."""

    nodes: tuple[FormNode, ...]
    schema: algebra.Schema
    kinds: tuple[algebra.Kind, ...]


@dataclass(slots=True)
class FormStatements:
    """Statements of one form: numbers, since, constants and windows."""

    form: StatementForm
    numbers: list[int] = field(default_factory=list)
    since: list[Micros] = field(default_factory=list)
    constants: list[tuple[str | float, ...]] = field(default_factory=list)
    windows: list[tuple[int, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, number: int, since: Micros, constants: tuple[str | float, ...], windows: tuple[int, ...]) -> None:
        self.numbers.append(number)
        self.since.append(since)
        self.constants.append(constants)
        self.windows.append(windows)


@dataclass(slots=True, eq=False)
class _Unit:
    number: int
    template: algebra.Statement
    nodes: list[FormNode]
    users: int = 0
    placed: dict[tuple[object, ...], FormNode] = field(default_factory=dict)

    def node(self, at: int, inputs: tuple[int, ...], first: int, window: int) -> FormNode:
        """Returns a node as placed in a form: with these inputs, this first constant and window."""
        key = at, inputs, first, window
        if (found := self.placed.get(key)) is None:
            node = self.nodes[at]
            slots, own = tuple([slot + first for slot in node.slots]), window if node.window >= 0 else -1
            found = self.placed[key] = replace(node, inputs=inputs, slots=slots, window=own)
        return found


class StatementForms:
    """Caches the normal forms of statement shapes, and of their pieces."""

    def __init__(self) -> None:
        self._units: dict[algebra.Statement, _Unit] = {}
        self._next = 0
        self._forms: dict[tuple[int, ...], StatementForm] = {}
        self._made_of: dict[int, tuple[tuple[int, ...], tuple[_Unit, ...]]] = {}
        """By the identity of a form: its key and units."""

    def form(self, stream: algebra.Statement) -> tuple[StatementForm, tuple[str | float, ...], tuple[int, ...]]:
        """Returns the normal form of a stream, its constants, and its windows in microseconds."""
        taken = SplitStatement()
        taken.add(stream)
        units, numbers = [], list[int]()
        for piece in taken.pieces:
            if (unit := self._units.get(piece.template)) is None:
                unit = _Unit(self._next, piece.template, [])
                _add(piece.template, unit.nodes)
                self._units[piece.template] = unit
                self._next += 1
            units.append(unit)
            numbers += (unit.number, *piece.inputs, piece.window)
        key = tuple(numbers)
        if (form := self._forms.get(key)) is None:
            form = self._forms[key] = _form(taken, units)
            self._made_of[id(form)] = key, tuple(units)
            for unit in units:
                unit.users += 1
        return form, tuple(taken.constants), tuple(taken.windows)

    def forget(self, form: StatementForm) -> None:
        key, units = self._made_of.pop(id(form))
        del self._forms[key]
        for unit in units:
            unit.users -= 1
            if unit.users == 0:
                del self._units[unit.template]


def _form(taken: SplitStatement, units: Sequence[_Unit]) -> StatementForm:
    nodes: list[FormNode] = []
    last: list[int] = []
    for piece, unit in zip(taken.pieces, units, strict=True):
        if not piece.inputs:
            last.append(_place(unit.nodes[0], nodes))
            continue
        places = [last[place] for place in piece.inputs]
        for at in range(len(places), len(unit.nodes)):
            node = unit.nodes[at]
            read = tuple([places[place] for place in node.inputs])
            if node.definition is not None and isinstance(node.definition.operator, algebra.Union):
                read = (min(read), max(read))
            places.append(_place(unit.node(at, read, piece.first, piece.window), nodes))
        last.append(places[-1])
    kinds: tuple[algebra.Kind, ...] = tuple("string" if isinstance(one, str) else "number" for one in taken.constants)
    return StatementForm(tuple(nodes), nodes[-1].schema, kinds)


def _add(stream: algebra.Statement, nodes: list[FormNode]) -> int:
    """Adds the nodes of a template, inputs first; returns the place of the last."""
    if isinstance(stream, algebra.Events):
        return _place(FormNode(None, stream.stream, stream.schema, (), ()), nodes)
    if isinstance(stream, algebra.Pattern | algebra.NearPattern):
        numbered = sorted(inputs(stream), key=lambda one: int(one[0]))
        places = tuple([_add(algebra.Events(*one), nodes) for one in numbered])
        slots = _Slots()
        return _node(with_leaves(stream, slots.value), places, slots, nodes, stream.within)
    if isinstance(stream, algebra.Select | algebra.Filter):
        source, condition, items = chain(stream)
        place, left = _add(source, nodes), algebra.Events("left", source.schema)
        if condition != algebra.AllOf():
            slots = _Slots()
            place = _node(algebra.Filter(left, slots.condition(condition)), (place,), slots, nodes)
        unchanged = tuple((name, algebra.Attribute("left", name, kind)) for name, kind in source.schema)
        if items is not None and items != unchanged:
            slots = _Slots()
            values = tuple((name, slots.value(value)) for name, value in items)
            place = _node(algebra.Select(left, values, stream.schema), (place,), slots, nodes)
        return place
    places = tuple([_add(source, nodes) for source in algebra.sources_of(stream)])
    if isinstance(stream, algebra.Union):
        places = min(places), max(places)
    slots, window = _Slots(), algebra.window_of(stream)
    over = 0 if isinstance(stream, algebra.Aggregate) and window is not None else None
    operator = algebra.with_parts(stream, _inputs(stream), over, slots.value, slots.condition)
    assert not isinstance(operator, algebra.Events), "that is no operator"
    return _node(operator, places, slots, nodes, window)


class _Slots:
    def __init__(self) -> None:
        self.slots: dict[int, algebra.Kind] = {}
        self._mentions = Counter[int]()
        self._ordered: list[Ordered] = []

    def value(self, value: algebra.Value) -> algebra.Value:
        return algebra.map_leaves(value, self._leaf)

    def condition(self, condition: algebra.EventCondition) -> algebra.EventCondition:
        found = ordered(condition)
        self._ordered.append(found)
        return algebra.map_leaves(found.condition, self._leaf)

    def alike(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Returns the interchangeable parameters; those mentioned twice are not."""
        at = {slot: place for place, slot in enumerate(self.slots)}
        groups = [group for one in self._ordered for group in one.alike]
        return tuple(
            tuple(tuple(at[slot] for slot in slots) for slots in group)
            for group in groups
            if all(self._mentions[slot] == 1 for slots in group for slot in slots)
        )

    def _leaf(self, leaf: algebra.Value) -> algebra.Value:
        if not isinstance(leaf, algebra.Parameter):
            return leaf
        self.slots.setdefault(leaf.index, leaf.kind)
        self._mentions[leaf.index] += 1
        return algebra.Parameter(list(self.slots).index(leaf.index), leaf.kind)


def _node(
    operator: AlgebraOp, inputs: tuple[int, ...], slots: _Slots, nodes: list[FormNode], window: int | None = None
) -> int:
    definition = Definition(operator, tuple(slots.slots.values()))
    number = -1 if window is None else window
    node = FormNode(definition, "", operator.schema, inputs, tuple(slots.slots), slots.alike(), number)
    return _place(node, nodes)


def _place(node: FormNode, nodes: list[FormNode]) -> int:
    for place, other in enumerate(nodes):
        if other is node or (other.inputs == node.inputs and other.slots == node.slots and other == node):
            return place
    nodes.append(node)
    return len(nodes) - 1


def is_alone(one: algebra.WhereConjunct, pattern: algebra.Pattern) -> bool:
    """Whether a conjunct is about each event of its own variable alone."""

    def places_of(some: algebra.WhereConjunct) -> set[str]:
        return {
            of.place if isinstance(of, algebra.OfItem) and of.variable == one.variable else "" for _, of in some.names
        }

    places = places_of(one)
    if places <= {"only", "every"}:
        return True
    if len(places) > 1 or not places <= {"first", "each"}:
        return False
    # What is said of the first event may be said of all others, too: then it is about each.
    twins = (other for other in pattern.conjuncts if other.variable == one.variable and other.phase != one.phase)
    return any(places_of(other) == {"first", "each"} - places and of_event(other) == of_event(one) for other in twins)


def of_event(one: algebra.WhereConjunct) -> algebra.EventCondition:
    found: algebra.EventCondition = of_items(one.condition, dict(one.names))
    return found


def of_items(node: Any, names: Mapping[str, algebra.Referent], part: algebra.Part = "left") -> Any:
    """Returns an expression with an event's attributes in place of the names that refer to them."""

    def leaf(value: Any) -> Any:
        of = names.get(value.name) if isinstance(value, algebra.Attribute) else None
        return algebra.Attribute(part, of.name, value.kind) if isinstance(of, algebra.OfItem) else value

    return algebra.map_leaves(node, leaf)
