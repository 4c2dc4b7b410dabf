"""A PATTERN without SET as an automaton: what a run remembers in each state, and what its edges test.

State `j` is that of a run whose last event is of variable `j`, negated ones aside. A run begins in state 0; it takes a
further event of a Kleene variable, and proceeds to the next variable with that one's first event (`begin`), if what is
asked of the complete variable holds: proceed and begin are one edge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from pattern_stage.formula import has_parameters, leaves, rewritten, rewritten_condition, values_of
from pattern_stage.matching import registers
from pattern_stage.matching.cell_table import Equal
from pattern_stage.matching.changing import with_arguments, with_values
from pattern_stage.matching.registers import Part, Read, Register
from pattern_stage.matching.row_tests import RowTest
from pattern_stage.matching.scalar import Writer
from pattern_stage.matching.slots import Slots, as_aggregated
from pattern_stage.predicates import kind_of
from pattern_stage.values import Texts
from xscl.algebra.event_sequences import Conjunct, Length, OfItem, OfItems, Pattern, Referent
from xscl.algebra.events import Attribute, Comparison, Condition, Kind, Value

Values = tuple[Any, ...]
"""The registers of a run."""


@dataclass(slots=True)
class Edge:
    """What an edge tests: of the event alone (`static`, over its attributes), and of the run."""

    static: list[Condition] = field(default_factory=list)
    dynamic: list[_Placed] = field(default_factory=list)
    holds: Callable[[Values, Values], bool] | None = None
    """What is about no row, all at once; None if there is nothing."""
    by_row: list[RowTest] = field(default_factory=list)
    equal: Equal | None = None
    """An equality among what it tests of the run and the event."""
    equal_test: Conjunct | None = None
    """The condition that it is."""


@dataclass(slots=True)
class Negation:
    """A negated variable, before group `group`. `early`: what it kills is known before that group's event comes."""

    variable: int
    stream: int
    group: int
    edge: Edge
    early: bool


@dataclass(frozen=True, slots=True)
class _Placed:
    """A condition whose attributes are named for where they are; `sets` are those that it holds for all tuples of."""

    test: Conjunct
    condition: Condition
    at: dict[str, int | Read | tuple[int, int]]
    sets: tuple[Register, ...]

    @property
    def by_row(self) -> bool:
        return has_parameters(self.condition)


class Program:
    """A pattern, compiled. `streams` has the input of each variable."""

    def __init__(self, pattern: Pattern, texts: Texts, slots: Slots) -> None:
        self.pattern, self.slots, self._texts = pattern, slots, texts
        self._writer = Writer(texts, registers.functions(texts))
        self.positive = [at for at, one in enumerate(pattern.variables) if not one.negated]
        self.kleene = [pattern.variables[at].kleene for at in self.positive]
        self.streams = [int(pattern.variables[at].source.stream) for at in self.positive]
        self.last = len(self.positive) - 1
        self._live: list[dict[Register, int]] = [{} for _ in self.positive]
        self.begins = [Edge() for _ in self.positive]
        self.takes = [Edge() for _ in self.positive]
        self.completes = [Edge() for _ in self.positive]
        for test in pattern.conjuncts:
            self._place(test)
        self.negations = [self._negation(at) for at, one in enumerate(pattern.variables) if one.negated]
        self._compile()

    # ------------------------------------------------------------ where tests go

    def _place(self, test: Conjunct) -> None:
        at = self.positive.index(test.variable)
        match test.phase:
            case "first":
                edge, state = self.begins[at], at - 1
            case "each":
                edge, state = self.takes[at], at
            case "complete":
                edge, state = self.completes[at], at
        stream = None if test.phase == "complete" else self.streams[at]
        self._add(edge, test, stream, state)

    def _negation(self, variable: int) -> Negation:
        one = self.pattern.variables[variable]
        tests = [test for test in self.pattern.kills if test.variable == variable]
        stream = int(one.source.stream)
        others = [self.positive.index(of.variable) for test in tests for _, of in test.names if of.variable != variable]
        early = all(at < one.group for at in others)
        found = Negation(variable, stream, one.group, Edge(), early)
        for test in tests:
            if early:
                self._add(found.edge, test, stream, one.group - 1)
            elif all(of.variable == variable for _, of in test.names):
                self._add(found.edge, test, stream, -1)
        return found

    def _add(self, edge: Edge, test: Conjunct, stream: int | None, state: int) -> None:
        """Adds a test to an edge from a state. The event is of a stream; without one, it is about the run alone."""
        placed = self._placed(test, stream)
        if placed is None:
            names = dict(test.names)
            edge.static.append(
                rewritten_condition(
                    test.condition, lambda leaf: _own(leaf, names) if isinstance(leaf, Attribute) else leaf
                )
            )
            return
        edge.dynamic.append(placed)
        for read in placed.at.values():
            if isinstance(read, Read):
                self._keep(read.register, state)
        for register in placed.sets:
            self._keep(register, state)

    def _keep(self, register: Register, state: int) -> None:
        """Keeps a register from its variable on to a state."""
        for at in range(register.variable, state + 1):
            self._live[at].setdefault(register, 0)
        for other in register.needs():
            self._keep(other, register.variable)

    # ------------------------------------------------------------ names

    def _placed(self, test: Conjunct, stream: int | None) -> _Placed | None:
        """Returns a test with its names placed; None if it is about the event and constants alone."""
        names, own = dict(test.names), test.variable
        phase = test.phase
        at: dict[str, int | Read | tuple[int, int]] = {}
        gathered: dict[int, list[tuple[str, Part]]] = {}

        def role(name: str) -> tuple[str, int]:
            """Which event a name is of: the new one, or which one of a variable."""
            of = names[name]
            is_new = stream is not None and of.variable == own
            match of:
                case OfItem(place=place):
                    if is_new and (phase == "first" or place in ("each", "every") or self._is_negated(own)):
                        return "new", own
                    if is_new:
                        return {"previous": "last", "only": "first"}.get(place, place), own
                    if place in ("each", "previous", "every"):
                        return f"set {place}", of.variable
                    return {"only": "first"}.get(place, place), of.variable
                case OfItems(earlier=True) if not is_new:
                    return "set earlier", of.variable
            return name, of.variable  # a value of its own

        def value_of(value: Value) -> Value:
            found = [leaf for leaf in leaves(value) if isinstance(leaf, Attribute)]
            if found and len(found) == len(list(leaves(value))):
                roles = {role(leaf.name) for leaf in found}
                if len(roles) == 1 and (isinstance(value, Attribute) or isinstance(names[found[0].name], OfItem)):
                    return place(value, *roles.pop())
            return with_arguments(value, value_of)

        def place(value: Value, kind: str, variable: int) -> Value:
            key = f"x{len(at) + sum(map(len, gathered.values()))}"
            of = names[value.name] if isinstance(value, Attribute) else None
            if isinstance(of, Length | OfItems):
                read = self._read(of, stream_of=self._stream(of.variable))
                if kind == "set earlier":
                    gathered.setdefault(variable, []).append((key, Part(kind_of(value), read=read)))
                else:
                    at[key] = read
                return Attribute("left", key, kind_of(value))
            own_value = rewritten(value, lambda leaf: _own(leaf, names) if isinstance(leaf, Attribute) else leaf)
            slot, vkind = self.slots.slot(self._stream(variable), own_value), kind_of(value)
            position = -1 if self._is_negated(variable) else self.positive.index(variable)
            if kind == "new":
                at[key] = slot
            elif kind in ("first", "last"):
                at[key] = Read(Register(cast(Any, kind), position, (slot,), (vkind,)))
            elif kind == "set previous":
                last = Read(Register("last", position, (slot,), (vkind,)))
                gathered.setdefault(variable, []).append((key, Part(vkind, read=last)))
            else:
                gathered.setdefault(variable, []).append((key, Part(vkind, slot)))
            return Attribute("left", key, vkind)

        if stream is not None and all(role(name)[0] == "new" for name in names):
            return None
        condition = with_values(test.condition, value_of)
        sets: list[Register] = []
        for variable, parts in gathered.items():
            every = any(role(name)[0] == "set every" for name in names if names[name].variable == variable)
            register = Register(
                "every" if every else "each",
                self.positive.index(variable),
                parts=tuple(part for _, part in parts),
            )
            at.update({key: (len(sets), place_) for place_, (key, _) in enumerate(parts)})
            sets.append(register)
        return _Placed(test, condition, at, tuple(sets))

    def _is_negated(self, variable: int) -> bool:
        return self.pattern.variables[variable].negated

    def _stream(self, variable: int) -> int:
        return int(self.pattern.variables[variable].source.stream)

    def _read(self, of: Length | OfItems, stream_of: int) -> Read:
        at = self.positive.index(of.variable)
        if isinstance(of, Length) or not of.aggregated.args:
            return Read(Register("count", at))
        name = of.aggregated.name
        args = [as_aggregated(of.aggregated, place) for place in range(len(of.aggregated.args))]
        slots = tuple(self.slots.slot(stream_of, arg) for arg in args)
        kinds: tuple[Kind, ...] = tuple(map(kind_of, args))
        kind = {"count": "known", "avg": "sum"}.get(name, name)
        return Read(Register(cast(Any, kind), at, slots, kinds), average=name == "avg")

    # ------------------------------------------------------------ code

    def _compile(self) -> None:
        for live in self._live:
            for place, register in enumerate(live):
                live[register] = place
        self.layouts: list[tuple[Register, ...]] = [tuple(live) for live in self._live]
        for state, edge in enumerate(self.begins):
            self._finish(edge, state - 1)
        for state, edge in [*enumerate(self.takes), *enumerate(self.completes)]:
            self._finish(edge, state)
        for negation in self.negations:
            self._finish(negation.edge, negation.group - 1)
        self.begin = [self._moved(state - 1, state) for state in range(self.last + 1)]
        """For each state the registers of a run that begins it, from those before and the event."""
        self.take = [self._moved(state, state) for state in range(self.last + 1)]
        self.hashed = [self._hashed(state) for state in range(self.last + 1)]
        """For each state the registers of which a hash finds all runs that an event may concern."""

    def _hashed(self, state: int) -> frozenset[int]:
        edges = [edge for _, edge in self._leaving(state)]
        edges += [one.edge for one in self.negations if one.group == state + 1]
        return frozenset(edge.equal.register for edge in edges if edge.equal is not None)

    def _leaving(self, state: int) -> list[tuple[int, Edge]]:
        """Returns the edges that events lead a run along from a state, each with its stream."""
        found = [(self.streams[state], self.takes[state])] if self.kleene[state] else []
        return found + ([(self.streams[state + 1], self.begins[state + 1])] if state < self.last else [])

    def is_hashed(self, state: int, stream: int) -> bool:
        """Returns whether a hash finds the runs of a state that go on with an event of a stream, whatever it may be."""
        return all(edge.equal is not None for of, edge in self._leaving(state) if of == stream)

    def _finish(self, edge: Edge, state: int) -> None:
        plain = [self._code(one, state) for one in edge.dynamic if not one.by_row]
        if plain:
            edge.holds = self._writer.compiled("V, E", " and ".join(plain))
        edge.by_row = [self._row_test(one, state) for one in edge.dynamic if one.by_row]
        for one in edge.dynamic:
            if (equal := self._equal(one, state)) is not None:
                edge.equal, edge.equal_test = equal, one.test
                break

    def _equal(self, placed: _Placed, state: int) -> Equal | None:
        """Returns a test as an equality of a register and something of the event, if it is one, of values of one
        kind."""
        match placed.condition:
            case Comparison("=", Attribute(name=one, kind=kind), Attribute(name=other, kind=also)) if kind == also:
                match placed.at[one], placed.at[other]:
                    case (Read(Register("first" | "last" | "min" | "max") as register, False), int(slot)) | (
                        int(slot),
                        Read(Register("first" | "last" | "min" | "max") as register, False),
                    ):
                        return Equal(self._live[state][register], slot)
        return None

    def _at(self, state: int) -> Callable[[Register], str]:
        return lambda register: f"V[{self._live[state][register]}]"

    def _leaf(self, placed: _Placed, state: int) -> Callable[[Attribute], str]:
        def code(leaf: Attribute) -> str:
            found = placed.at[leaf.name]
            match found:
                case Read():
                    return found.code(self._at(state))
                case (set_, place):
                    return f"S{set_}[{place}]"
            return f"E[{found}]"

        return code

    def _code(self, placed: _Placed, state: int) -> str:
        code = self._writer.condition(placed.condition, self._leaf(placed, state))
        loops = self._loops(placed, state)
        return f"all({code} {loops})" if loops else code

    def _loops(self, placed: _Placed, state: int) -> str:
        place = self._at(state)
        return " ".join(f"for S{at} in {place(register)}" for at, register in enumerate(placed.sets))

    def _row_test(self, placed: _Placed, state: int) -> RowTest:
        names = list(placed.at)
        used = [leaf for value in values_of(placed.condition) for leaf in leaves(value) if isinstance(leaf, Attribute)]
        kinds: dict[str, Kind] = {leaf.name: leaf.kind for leaf in used}
        leaf = self._leaf(placed, state)
        code = ", ".join(leaf(Attribute("left", name, kinds[name])) for name in names)
        loops = self._loops(placed, state)
        gathered = f"[({code},) {loops}]" if loops else f"[({code},)]"
        scalar = self._writer.condition(placed.condition, lambda one: f"X[{names.index(one.name)}]")
        return RowTest(
            self._texts,
            placed.condition,
            tuple((name, kinds[name]) for name in names),
            self._writer.compiled("V, E", gathered),
            self._writer.compiled("X, P", scalar),
        )

    def _moved(self, before: int, after: int) -> Callable[[Values, Values], Values]:
        codes = []
        for register in self.layouts[after]:
            if register.variable == after:
                write = registers.take_code if before == after else registers.begin_code
                # What an update reads is as it was before the event.
                codes.append(write(register, self._at(after)))
            else:
                codes.append(self._at(before)(register))
        return self._writer.compiled("V, E", f"({', '.join(codes)}{',' * bool(codes)})")


def _own(leaf: Attribute, names: dict[str, Referent]) -> Attribute:
    of = names[leaf.name]
    assert isinstance(of, OfItem)
    return Attribute("left", of.name, leaf.kind)
