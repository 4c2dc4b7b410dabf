"""The automaton of an event query with CEL's operators, after Cayuga."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mmqjp.explain.event_program import EventProgram
from mmqjp.explain.states import Automaton, Edge, State, static_index
from mmqjp.explain.terms import window_text
from pattern_stage.clauses import split_condition, static_clauses
from pattern_stage.formula import condition_text, constant_text, value_text
from pattern_stage.plan import Bound
from pattern_stage.rows import NO_BOUND
from xscl.algebra.events import Aggregate, Condition, Filter, Fold, Next, Parameter, Select, Union, Value

_TITLES = {Next: "waits for its first partner", Fold: "a run that may go on", Aggregate: "groups of events"}


def operators_automaton(program: EventProgram, number: int) -> Automaton:
    """Returns the automaton of a statement that is no PATTERN, in its plan."""
    return _Making(program, number).made()


class _Making:
    """Makes the automaton of one statement from its normal form."""

    def __init__(self, program: EventProgram, number: int) -> None:
        self._program, self._number = program, number
        self._bound: Bound = program.users.bound(number)
        self._nodes = self._bound.form.nodes
        self._rows = program.users.rows(number)
        places = range(len(self._nodes))
        keeping = [place for place in places if isinstance(self._operator(place), Next | Fold | Aggregate)]
        self._state_of = {place: state for state, place in enumerate(keeping, 1)}
        self._final = len(keeping) + 1

    def made(self) -> Automaton:
        states = [State(0, "start"), *map(self._state, self._state_of), State(self._final, "final")]
        edges: list[Edge] = []
        for place, state in self._state_of.items():
            edges += self._into(self._nodes[place].inputs[0], state, ())
            if not isinstance(self._operator(place), Aggregate):
                right = self._into(self._nodes[place].inputs[1], state, ())
                edges += [replace(edge, kind="feeds") for edge in right if edge.source]
            if isinstance(self._operator(place), Fold):
                edges.append(self._out(place, state, "rebind", ()))
        edges += self._into(len(self._nodes) - 1, self._final, ())
        return Automaton(tuple(states), tuple(sorted(edges, key=lambda edge: (edge.source, edge.target, edge.kind))))

    def _operator(self, place: int) -> object:
        definition = self._nodes[place].definition
        return None if definition is None else definition.operator

    def _state(self, place: int) -> State:
        mop, row = self._bound.mops[place], self._rows[place]
        within = int(mop.rows.within[row])
        users = self._program.users.of(mop.number, row).tolist()
        shared = dict.fromkeys(self._program.statements[other].name for other in users if other != self._number)
        kept = "simultaneous events only" if self._nodes[place].window < 0 else ""
        if not isinstance(self._operator(place), Aggregate):
            kept = "ever"
        keeps = kept if within >= NO_BOUND else window_text(within)
        title = _TITLES[type(self._operator(place))]
        return State(self._state_of[place], title, keeps, mop.number, row, len(mop.rows), tuple(shared))

    # ------------------------------------------------------------ edges

    def _into(self, place: int, target: int, behind: tuple[int, ...]) -> Iterator[Edge]:
        """Yields the edges by which what a node makes reaches a state. `behind` are the selections on the way."""
        operator = self._operator(place)
        inputs = self._nodes[place].inputs
        if isinstance(operator, Filter | Select):
            yield from self._into(inputs[0], target, (place, *behind))
        elif isinstance(operator, Union):
            for at in inputs:
                yield from self._into(at, target, behind)
        elif operator is None:
            does, found = self._chain(behind)
            yield Edge("start", 0, target, self._nodes[place].stream, does, found)
        else:
            yield self._out(place, target, "forward", behind)

    def _out(self, place: int, target: int, kind: str, behind: tuple[int, ...]) -> Edge:
        """The edge out of a state, with the selections behind it."""
        does, found = self._chain(behind)
        state = self._state_of[place]
        if isinstance(self._operator(place), Aggregate):
            return Edge(kind, state, target, "", (self._text(place), *does), found)
        stream, before, found_before = self._read(self._nodes[place].inputs[1])
        does = (*before, self._text(place), *does)
        return Edge(kind, state, target, stream, does, (*found_before, *self._indexes(place), *found))

    def _read(self, place: int) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """What an edge reads: the stream, and the selections before it."""
        chain: list[int] = []
        while isinstance(self._operator(place), Filter | Select):
            chain.insert(0, place)
            (place,) = self._nodes[place].inputs
        does, found = self._chain(tuple(chain))
        if place in self._state_of:
            return f"results of state {self._state_of[place]}", does, found
        if self._operator(place) is None:
            return self._nodes[place].stream, does, found
        streams = [self._read(at)[0] for at in self._nodes[place].inputs]
        return " or ".join(streams), does, found

    def _chain(self, places: tuple[int, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        does = tuple(map(self._text, places))
        return does, tuple(text for place in places for text in self._indexes(place))

    # ------------------------------------------------------------ texts

    def _text(self, place: int) -> str:
        """An operator with the constants of the statement."""
        operator = self._operator(place)

        def value(one: Value, bare: bool = True) -> str:
            return value_text(one, lambda parameter: self._constant(place, parameter), bare)

        match operator:
            case Select(items=items):
                return f"SELECT {', '.join(_named(value(one), name) for name, one in items)}"
            case Filter(condition=condition):
                return f"FILTER{{{self._condition(place, condition, bare=True)}}}"
            case Next(condition=condition):
                text = self._condition(place, condition)
                return f"NEXT{{{text}}}" if text else "NEXT"
            case Fold(chooses=chooses, continues=continues, sets=sets):
                both = [self._condition(place, one) for one in (chooses, continues)]
                new = ", ".join(_named(value(one, False), name) for name, one in sets)
                return f"FOLD{{{', '.join([*both, new])}}}"
            case Aggregate(items=items, by=by):
                functions = [f"{one.name}({', '.join(map(value, one.args))}) AS {name}" for name, one in items]
                groups = f" BY {', '.join(by)}" if by else ""
                return f"AGGREGATE{{{', '.join(functions)}{groups}}}"
        return "UNION"

    def _condition(self, place: int, condition: Condition, *, bare: bool = False) -> str:
        text = condition_text(condition, lambda parameter: self._constant(place, parameter), bare)
        return "" if text == "TRUE" else text

    def _constant(self, place: int, parameter: Parameter) -> str:
        """A constant of the statement: it stands in its row."""
        mop = self._bound.mops[place]
        column = mop.rows.parameters[self._bound.places[place][parameter.index]]
        value = column[self._rows[place]]
        if column.dtype == np.int64:
            return constant_text(self._program.plan.texts.text(int(value)) or "")
        return constant_text(float(value))

    def _indexes(self, place: int) -> tuple[str, ...]:
        """How the events are found for which an operator's condition may hold."""
        operator, mop = self._operator(place), self._bound.mops[place]
        indexed = mop.placement is not None and mop.placement.hashed
        match operator:
            case Filter(condition=condition):
                clauses, bare = split_condition(condition, "left"), True
            case Next(condition=condition) | Fold(chooses=condition):
                clauses, bare = split_condition(condition), False
            case _:
                return ()

        def text(value: Value) -> str:
            return value_text(value, lambda parameter: self._constant(place, parameter), bare)

        found: list[str] = []
        if indexed:
            found += static_index(static_clauses(clauses))
        common = [one for one in clauses[0].equalities if all(one in other.equalities for other in clauses)]
        if common:
            found.append(f"hash: {' = '.join(map(text, common[0]))}")
        return tuple(found)


def _named(text: str, name: str) -> str:
    return text if text == name else f"{text} AS {name}"
