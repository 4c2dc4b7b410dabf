"""Compiles a PATTERN: automata of variables and letters, match windows, and the values that events need. Without SET,
state `j` is that of a run whose last event is of variable `j`, negated ones aside. A run takes further events of a
Kleene variable, or proceeds to the next variable with its first event (`begin`) if the condition on the complete
variable holds: proceed and begin are one edge. With ERRORS, each letter of the regular expression is a position; an
event leads from a position, or the begin, to one of its stream, at the cost of the letters left out. A chain's vector
has the least cost of each possible position, so a chain has one vector, however it is read. Match windows (Cadonna,
Gamper, Boehlen): a match may begin with an event only if its window has candidates for all variables, in the order of
groups, once events that no variable accepts are filtered and the others partitioned by keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise, product
from typing import Any, Literal, NamedTuple, cast

from pattern_stage.clauses import has_parameters
from pattern_stage.definition import of_event, of_items
from pattern_stage.pattern import rows
from pattern_stage.pattern.cells import RegisterTest
from pattern_stage.pattern.rows import Register, RegisterRead, RowTest, TupleField
from pattern_stage.values import Texts, Writer
from xscl.algebra import events as algebra

Vector = tuple[tuple[int, int], ...]  # positions with their least number of left-out letters, in order

_NEVER = 1 << 30


class _Piece(NamedTuple):
    """A part of an expression: its first and last positions, and whether it accepts the empty word."""

    first: frozenset[int]
    last: frozenset[int]
    empty: bool


class LetterAutomaton:
    """An expression of whose words a maximum number of letters may be left out."""

    def __init__(self, letters: algebra.Letters, errors: int) -> None:
        self.errors = errors
        self.letters: list[algebra.Letter] = []  # the letter of each position
        self.follow: list[set[int]] = []  # by position, those that follow without leaving letters out
        whole = self._piece(letters)
        self.first, self.last = whole.first, whole.last
        after = [self._costs(follow) for follow in self.follow]
        self._ends = [
            0 if at in whole.last else min((costs[one] + self._cost(one) for one in whole.last), default=_NEVER)
            for at, costs in enumerate(after)
        ]
        self._steps: dict[int, list[list[tuple[int, int]]]] = {}
        """By input, from each position, and the begin (last): targets with costs."""
        for stream in {int(one.source.stream) for one in self.letters}:
            mine = [at for at, one in enumerate(self.letters) if int(one.source.stream) == stream]
            self._steps[stream] = [
                [(to, costs[to]) for to in mine if costs[to] <= errors] for costs in [*after, self._costs(whole.first)]
            ]

    def begin(self, stream: int) -> Vector:
        """Returns the vector of a one-event chain; empty if there is none."""
        return tuple(sorted(self._steps[stream][-1]))

    def step(self, vector: Vector, stream: int) -> Vector:
        """Returns the vector of a chain extended by an event."""
        found: dict[int, int] = {}
        steps = self._steps[stream]
        for at, cost in vector:
            for to, more in steps[at]:
                if cost + more <= self.errors and cost + more < found.get(to, _NEVER):
                    found[to] = cost + more
        return tuple(sorted(found.items()))

    def lacking(self, vector: Vector) -> int | None:
        """Returns the least number of letters that a chain lacks; None if too many."""
        least = min((cost + self._ends[at] for at, cost in vector), default=_NEVER)
        return least if least <= self.errors else None

    def _piece(self, letters: algebra.Letters) -> _Piece:
        match letters:
            case algebra.Letter():
                at = len(self.letters)
                self.letters.append(letters)
                self.follow.append(set())
                return _Piece(frozenset([at]), frozenset([at]), False)
            case algebra.OneOf(parts=parts):
                first, last, empty = zip(*map(self._piece, parts), strict=True)
                return _Piece(frozenset().union(*first), frozenset().union(*last), any(empty))
            case algebra.Word(parts=parts):
                return reduce(self._then, map(self._piece, parts))
            case algebra.Repeated(part=part, least=least):
                copies = [self._piece(part) for _ in range(max(least, 1))]
                whole = reduce(self._then, copies)
                self._then(copies[-1], copies[-1])
                return whole._replace(empty=whole.empty or least == 0)

    def _then(self, one: _Piece, other: _Piece) -> _Piece:
        for at in one.last:
            self.follow[at] |= other.first
        return _Piece(
            one.first | other.first if one.empty else one.first,
            other.last | one.last if other.empty else other.last,
            one.empty and other.empty,
        )

    def _cost(self, at: int) -> int:
        return _NEVER if self.letters[at].needed else 1

    def _costs(self, begins: Collection[int]) -> list[int]:
        costs = [_NEVER] * len(self.letters)
        waiting = list(begins)
        for at in begins:
            costs[at] = 0
        while waiting:
            at = waiting.pop(0)
            for to in self.follow[at]:
                cost = costs[at] + self._cost(at)
                if cost < costs[to]:
                    costs[to] = cost
                    waiting.append(to)
        return costs


_Unit = Literal["first", "further", "absent"]
"""The event of a variable: the first or only one, a further one, or a forbidden one."""

_Place = tuple[int, _Unit]  # a variable, and which event of it

_ALONE = {
    "first": ("first", {"only", "first", "every"}),
    "further": ("each", {"each", "every"}),
    "absent": ("complete", {"only", "every"}),
}
"""The phase of the conditions on an event alone, and the places that these are about."""

_UNITS: dict[str, tuple[_Unit, ...]] = {
    "only": ("first",),
    "first": ("first",),
    "each": ("further",),
    "every": ("first", "further"),
}


@dataclass(frozen=True, slots=True)
class MatchRole:
    """A role of an event in a match: it satisfies `conditions`, on the event as the left one, and its `keys` equal
    those of all other events of the match. They may be NULL in a match of one event."""

    variable: int
    unit: _Unit
    conditions: tuple[algebra.EventCondition, ...]
    keys: tuple[algebra.Attribute, ...]


@dataclass(frozen=True, slots=True)
class MatchWindows:
    """The roles of a pattern. Each event of a match has some role of its variable."""

    roles: tuple[MatchRole, ...]
    groups: tuple[int, ...]  # the group of each role's variable

    @property
    def firsts(self) -> list[int]:
        """The roles of first events: each needs a candidate."""
        return [at for at, role in enumerate(self.roles) if role.unit == "first"]

    def in_order(self) -> Iterator[tuple[int, int]]:
        """Yields pairs of roles: some candidate of the first ends before some candidate of the second begins."""
        for one in self.firsts:
            for other in self.firsts:
                if self.groups[other] == self.groups[one] + 1:
                    yield one, other


def match_windows(pattern: algebra.Pattern) -> MatchWindows | None:
    """Returns the roles of a pattern; None with contiguity, where matches depend on events without a role."""
    if pattern.strategy in ("strict", "partition"):
        return None
    places: list[_Place] = []
    for at, one in enumerate(pattern.variables):
        units: tuple[_Unit, ...] = ("absent",) if one.negated else ("first", "further") if one.kleene else ("first",)
        places += [(at, unit) for unit in units]
    kinds = [dict(one.source.schema) for one in pattern.variables]
    keys: list[dict[_Place, algebra.Attribute]] = [
        {(at, unit): algebra.Attribute("left", name, kinds[at][name]) for at, unit in places} for name in pattern.keys
    ]
    # With another strategy, an event of any key may be the next one, as long as its equality is not tested yet.
    if pattern.strategy == "any":
        keys += _equated(pattern, places)
    roles = [MatchRole(*one, _conditions(pattern, *one), tuple(key[one] for key in keys)) for one in places]
    return MatchWindows(tuple(roles), tuple(pattern.variables[role.variable].group for role in roles))


def _conditions(pattern: algebra.Pattern, variable: int, unit: _Unit) -> tuple[algebra.EventCondition, ...]:
    phase, own = _ALONE[unit]
    return tuple(
        of_event(one)
        for one in (pattern.kills if unit == "absent" else pattern.conjuncts)
        if (one.variable, one.phase) == (variable, phase)
        and all(isinstance(of, algebra.OfItem) and of.variable == variable and of.place in own for _, of in one.names)
    )


# ---------------------------------------------------------------- keys out of conditions

_Node = tuple[_Place, algebra.Attribute]


def _equated(pattern: algebra.Pattern, places: Sequence[_Place]) -> list[dict[_Place, algebra.Attribute]]:
    """Returns implied keys: attributes, at least one per role, that equalities make equal. Only first events are in
    every match: an equality with another one constrains that one alone."""
    absent = frozenset(at for at, unit in places if unit == "absent")
    pairs = [pair for one in (*pattern.conjuncts, *pattern.kills) for pair in _equal(one, absent)]
    found = [dict(sorted(some, key=repr)) for some in _classes(pairs)]
    return [key for key in found if key.keys() == set(places)]


def _classes(pairs: Sequence[tuple[_Node, _Node]]) -> list[set[_Node]]:
    classes: dict[_Node, set[_Node]] = {node: {node} for pair in pairs for node in pair if node[0][1] == "first"}
    for one, other in pairs:
        if one in classes and other in classes:
            merged = classes[one] | classes[other]
            classes |= dict.fromkeys(merged, merged)
    for one, other in (*pairs, *(pair[::-1] for pair in pairs)):
        if one in classes and other not in classes:
            classes[one].add(other)
    return list({id(some): some for some in classes.values()}.values())


def implied_equalities(pattern: algebra.Pattern) -> Iterator[algebra.WhereConjunct]:
    """Yields equalities of events with earlier ones that follow from equalities of both with later ones: of `c.x = a.x
    AND b.x = c.x` that of b and a, so that only such pairs wait for c. Where events may be skipped, that changes no
    match."""
    if pattern.strategy != "any" or pattern.has_sets:
        return
    pairs = [pair for one in pattern.conjuncts for pair in _equal(one, frozenset())]
    earlier = {later for pair in pairs for early, later in (pair, pair[::-1]) if early[0] < later[0]}
    for some in _classes(pairs):
        (first, value), *others = sorted(some, key=lambda node: (node[0], node[1].name))
        for place, other in others:
            if place[0] > first[0] and (place, other) not in earlier:
                names = _of_node(pattern, place, other.name), _of_node(pattern, first, value.name)
                sides = [algebra.Attribute("left", f"#{at}", value.kind) for at in range(2)]
                phase: algebra.Phase = "first" if place[1] == "first" else "each"
                yield algebra.WhereConjunct(
                    algebra.Comparison("=", *sides), tuple(zip(("#0", "#1"), names, strict=True)), place[0], phase
                )


def _of_node(pattern: algebra.Pattern, place: _Place, name: str) -> algebra.OfItem:
    of: algebra.ItemPosition = "each" if place[1] == "further" else "first"
    return algebra.OfItem(place[0], of if pattern.variables[place[0]].kleene else "only", name)


def _equal(one: algebra.WhereConjunct, absent: frozenset[int]) -> Iterator[tuple[_Node, _Node]]:
    names = dict(one.names)
    match one.condition:
        case algebra.Comparison("=", algebra.Attribute(_, left, kind), algebra.Attribute(_, right, its)) if kind == its:
            of, other = names[left], names[right]
        case _:
            return
    if not (isinstance(of, algebra.OfItem) and isinstance(other, algebra.OfItem)):
        return

    def nodes(of: algebra.OfItem) -> list[_Node]:
        units = ("absent",) if of.variable in absent else _UNITS.get(of.place, ())
        return [((of.variable, unit), algebra.Attribute("left", of.name, kind)) for unit in units]

    if {of.place, other.place} == {"each", "previous"} and (of.variable, of.name) == (other.variable, other.name):
        # Each event is equal to the one before: so all are equal to the first one.
        yield from pairwise(nodes(replace(of, place="every")))
    else:
        yield from product(nodes(of), nodes(other))


FIRST_SLOT = 3  # index of the first value in an event's tuple, behind t0, t1 and the number of its part


class EventSlots:
    """The needed values of events, by input: each is computed once for all events of an interval."""

    def __init__(self) -> None:
        self.values: dict[int, list[algebra.Value]] = {}

    def slot(self, stream: int, value: algebra.Value) -> int:
        """Returns the index of a value in the event's tuple."""
        known = self.values.setdefault(stream, [])
        if value not in known:
            known.append(value)
        return FIRST_SLOT + known.index(value)

    def of_schema(self, stream: int, schema: algebra.Schema) -> list[int]:
        return [self.slot(stream, algebra.Attribute("left", name, kind)) for name, kind in schema]


def aggregated_args(aggregated: algebra.Aggregated) -> list[algebra.Value]:
    """Returns an aggregate's arguments as computed: strings as numbers, where numbers are aggregated."""
    as_is = {"count": len(aggregated.args), "count distinct": 1, "argmax": 1}.get(aggregated.name, 0)
    return [
        algebra.Function("number", (arg,), "number") if algebra.value_kind(arg) == "string" and place >= as_is else arg
        for place, arg in enumerate(aggregated.args)
    ]


_Values = tuple[Any, ...]  # the registers of a run


@dataclass(slots=True)
class CompiledEdge:
    """The tests of an edge: of the event alone (`static`), and of the run in a state, -1 for none."""

    state: int
    static: list[algebra.EventCondition] = field(default_factory=list)
    dynamic: list[_Placed] = field(default_factory=list)
    holds: Callable[[_Values, _Values], bool] | None = None  # the row-independent tests; None without any
    by_row: list[RowTest] = field(default_factory=list)
    equal: RegisterTest | None = None  # an equality among the tests of run and event
    equal_test: algebra.WhereConjunct | None = None  # the condition behind `equal`
    role: int = -1  # index of an arrival's mask of the rows whose tests of the event alone hold


@dataclass(slots=True)
class Negation:
    """A negated variable before group `group`. `early`: its kills are known before that group's event comes."""

    variable: int
    stream: int
    group: int
    edge: CompiledEdge
    early: bool


@dataclass(frozen=True, slots=True)
class _Placed:
    """A condition with its attributes resolved; `sets` are those over all of whose tuples it quantifies."""

    test: algebra.WhereConjunct
    condition: algebra.EventCondition
    at: dict[str, int | RegisterRead | tuple[int, int]]
    sets: tuple[Register, ...]


class PatternProgram:
    """A compiled pattern. `streams` has the input of each variable."""

    def __init__(self, pattern: algebra.Pattern, texts: Texts, slots: EventSlots) -> None:
        self.pattern, self.slots, self._texts = pattern, slots, texts
        self._writer = Writer(rows.register_functions(texts))
        self.positive = [at for at, one in enumerate(pattern.variables) if not one.negated]
        self.kleene = [pattern.variables[at].kleene for at in self.positive]
        self._inputs = [int(one.source.stream) for one in pattern.variables]
        self.streams = [self._inputs[at] for at in self.positive]
        self.last = len(self.positive) - 1
        self._live: list[dict[Register, int]] = [{} for _ in self.positive]
        self.begins = [CompiledEdge(at - 1) for at in range(len(self.positive))]
        self.takes = [CompiledEdge(at) for at in range(len(self.positive))]
        self.completes = [CompiledEdge(at) for at in range(len(self.positive))]
        of_phase = {"first": self.begins, "each": self.takes, "complete": self.completes}
        for test in (*pattern.conjuncts, *implied_equalities(pattern)):
            at = self.positive.index(test.variable)
            self._add(of_phase[test.phase][at], test, None if test.phase == "complete" else self.streams[at])
        self.negations = [self._negation(at) for at, one in enumerate(pattern.variables) if one.negated]
        for live in self._live:
            live |= {register: place for place, register in enumerate(live)}
        self.layouts: list[tuple[Register, ...]] = [tuple(live) for live in self._live]
        for edge in (*self.begins, *self.takes, *self.completes, *(one.edge for one in self.negations)):
            self._finish(edge)
        self.begin = [self._moved(state - 1, state) for state in range(self.last + 1)]
        """By state, the registers of a run that enters it, from previous registers and the event."""
        self.take = [self._moved(state, state) for state in range(self.last + 1)]
        self.hashed = [self._hashed(state) for state in range(self.last + 1)]
        """By state, the registers whose hash finds all runs that an event may concern."""

    def _negation(self, variable: int) -> Negation:
        group, stream = self.pattern.variables[variable].group, self._inputs[variable]
        tests = [test for test in self.pattern.kills if test.variable == variable]
        others = [self.positive.index(of.variable) for test in tests for _, of in test.names if of.variable != variable]
        found = Negation(variable, stream, group, CompiledEdge(group - 1), early=all(at < group for at in others))
        for test in tests:
            if found.early or all(of.variable == variable for _, of in test.names):
                self._add(found.edge, test, stream)
        return found

    def _add(self, edge: CompiledEdge, test: algebra.WhereConjunct, stream: int | None) -> None:
        placed = self._placed(test, stream)
        if placed is None:
            edge.static.append(of_event(test))
            return
        edge.dynamic.append(placed)
        for read in placed.at.values():
            if isinstance(read, RegisterRead):
                self._keep(read.register, edge.state)
        for register in placed.sets:
            self._keep(register, edge.state)

    def _keep(self, register: Register, state: int) -> None:
        for at in range(register.variable, state + 1):
            self._live[at].setdefault(register, 0)
        for other in register.needs():
            self._keep(other, register.variable)

    def _placed(self, test: algebra.WhereConjunct, stream: int | None) -> _Placed | None:
        names, own = dict(test.names), test.variable
        at: dict[str, int | RegisterRead | tuple[int, int]] = {}
        gathered: dict[int, list[tuple[str, TupleField]]] = {}

        def role(name: str) -> tuple[str, int]:
            """The event of a name: the new one, or which one of a variable."""
            of = names[name]
            is_new = stream is not None and of.variable == own
            match of:
                case algebra.OfItem(place=place):
                    if is_new:
                        if test.phase == "first" or place in ("each", "every") or self.pattern.variables[own].negated:
                            return "new", own
                        return {"previous": "last", "only": "first"}.get(place, place), own
                    if place in ("each", "previous", "every"):
                        return f"set {place}", of.variable
                    return {"only": "first"}.get(place, place), of.variable
                case algebra.OfItems(earlier=True) if not is_new:
                    return "set earlier", of.variable
            return name, of.variable  # a value of its own

        def placed(part: algebra.EventCondition | algebra.Value) -> algebra.Value | None:
            """Places a part that is about one event."""
            if not isinstance(part, algebra.Value):
                return None
            every = list(algebra.leaves(part))
            found = [leaf for leaf in every if isinstance(leaf, algebra.Attribute)]
            if found and len(found) == len(every):
                roles = {role(leaf.name) for leaf in found}
                is_item = isinstance(part, algebra.Attribute) or isinstance(names[found[0].name], algebra.OfItem)
                if is_item and len(roles) == 1:
                    return place(part, *roles.pop())
            return None

        def place(value: algebra.Value, kind: str, variable: int) -> algebra.Value:
            key, vkind = f"x{len(at) + sum(map(len, gathered.values()))}", algebra.value_kind(value)
            of = names[value.name] if isinstance(value, algebra.Attribute) else None
            read, slot = None, -1
            if isinstance(of, algebra.Length | algebra.OfItems):
                read = self._read(of)
            else:
                slot = self.slots.slot(self._inputs[variable], of_items(value, names))
                if kind in ("first", "last", "set previous"):
                    which: Any = "last" if kind == "set previous" else kind
                    read = RegisterRead(Register(which, self.positive.index(variable), (slot,), (vkind,)))
            if kind.startswith("set "):
                gathered.setdefault(variable, []).append((key, TupleField(vkind, slot if read is None else -1, read)))
            else:
                at[key] = slot if read is None else read
            return algebra.Attribute("left", key, vkind)

        if stream is not None and all(role(name)[0] == "new" for name in names):
            return None
        condition = algebra.map_parts(test.condition, placed)
        sets: list[Register] = []
        for variable, parts in gathered.items():
            every = any(role(name)[0] == "set every" for name in names if names[name].variable == variable)
            fields = tuple(part for _, part in parts)
            at.update({key: (len(sets), place_) for place_, (key, _) in enumerate(parts)})
            sets.append(Register("every" if every else "each", self.positive.index(variable), parts=fields))
        return _Placed(test, condition, at, tuple(sets))

    def _read(self, of: algebra.Length | algebra.OfItems) -> RegisterRead:
        at = self.positive.index(of.variable)
        if isinstance(of, algebra.Length) or not of.aggregated.args:
            return RegisterRead(Register("count", at))
        name, args = of.aggregated.name, aggregated_args(of.aggregated)
        if name in ("median", "percentile"):
            share = 0.5 if name == "median" else float(args[1].value) / 100  # type: ignore[union-attr]  # a constant
            register = Register("numbers", at, (self.slots.slot(self._inputs[of.variable], args[0]),), ("number",))
            return RegisterRead(register, share=share)
        slots = tuple(self.slots.slot(self._inputs[of.variable], arg) for arg in args)
        kinds: tuple[algebra.Kind, ...] = tuple(map(algebra.value_kind, args))
        kind = {"count": "known", "count distinct": "distinct", "avg": "sum"}.get(name, name)
        return RegisterRead(Register(cast(Any, kind), at, slots, kinds), average=name == "avg")

    def _hashed(self, state: int) -> frozenset[int]:
        edges = [edge for _, edge in self._leaving(state)]
        edges += [one.edge for one in self.negations if one.group == state + 1]
        return frozenset(edge.equal.register for edge in edges if edge.equal is not None)

    def _leaving(self, state: int) -> list[tuple[int, CompiledEdge]]:
        found = [(self.streams[state], self.takes[state])] if self.kleene[state] else []
        return found + ([(self.streams[state + 1], self.begins[state + 1])] if state < self.last else [])

    def is_hashed(self, state: int, stream: int) -> bool:
        """Returns whether a hash finds all runs of a state that continue with an event of a stream."""
        return all(edge.equal is not None for of, edge in self._leaving(state) if of == stream)

    def _finish(self, edge: CompiledEdge) -> None:
        plain, state = [], edge.state
        for one in edge.dynamic:
            if has_parameters(one.condition):
                edge.by_row.append(self._row_test(one, state))
            else:
                code, loops = self._writer.condition(one.condition, self._leaf(one, state)), self._loops(one, state)
                plain.append(f"all({code} {loops})" if loops else code)
            if edge.equal is None and (equal := self._equal(one, state)) is not None:
                edge.equal, edge.equal_test = equal, one.test
        if plain:
            edge.holds = self._writer.compiled("V, E", " and ".join(plain))

    def _equal(self, placed: _Placed, state: int) -> RegisterTest | None:
        match placed.condition:
            case algebra.Comparison("=", algebra.Attribute(_, one, kind), algebra.Attribute(_, two, of)) if kind == of:
                pair = placed.at[one], placed.at[two]
                for read, slot in (pair, pair[::-1]):
                    match read:
                        case RegisterRead(Register("first" | "last" | "min" | "max") as register, False):
                            if isinstance(slot, int):
                                return RegisterTest(self._live[state][register], slot)
        return None

    def _at(self, state: int) -> Callable[[Register], str]:
        return lambda register: f"V[{self._live[state][register]}]"

    def _leaf(self, placed: _Placed, state: int) -> Callable[[algebra.Attribute], str]:
        def code(leaf: algebra.Attribute) -> str:
            found = placed.at[leaf.name]
            match found:
                case RegisterRead():
                    return found.code(self._at(state))
                case (set_, place):
                    return f"S{set_}[{place}]"
            return f"E[{found}]"

        return code

    def _loops(self, placed: _Placed, state: int) -> str:
        return " ".join(f"for S{at} in {self._at(state)(register)}" for at, register in enumerate(placed.sets))

    def _row_test(self, placed: _Placed, state: int) -> RowTest:
        names = list(placed.at)
        kinds = {one.name: one.kind for one in algebra.leaves(placed.condition) if isinstance(one, algebra.Attribute)}
        leaf = self._leaf(placed, state)
        code = ", ".join(leaf(algebra.Attribute("left", name, kinds[name])) for name in names)
        loops = self._loops(placed, state)
        gathered = f"[({code},) {loops}]" if loops else f"[({code},)]"
        scalar = self._writer.condition(placed.condition, lambda one: f"X[{names.index(one.name)}]")
        schema = tuple((name, kinds[name]) for name in names)
        values, holds = self._writer.compiled("V, E", gathered), self._writer.compiled("X, P", scalar)
        return RowTest(self._texts, placed.condition, schema, values, holds)

    def _moved(self, before: int, after: int) -> Callable[[_Values, _Values], _Values]:
        codes = []
        for register in self.layouts[after]:
            if register.variable == after:
                # What an update reads is as it was before the event.
                codes.append(rows.update_code(register, self._at(after), first=before != after))
            else:
                codes.append(self._at(before)(register))
        return self._writer.compiled("V, E", f"({', '.join(codes)}{',' * bool(codes)})")
