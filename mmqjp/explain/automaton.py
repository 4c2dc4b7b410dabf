"""Automata of event queries, after Cayuga, and of PATTERNs, after SASE+: states where events or runs wait, the edges
between them, and the index by which each edge finds its events. Also numbers documents by shape (set of paths)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice

import numpy as np
from lxml import etree

from common.bounds import BEGINNING, LONGEST_WINDOW
from common.tools import gathered
from mmqjp.explain.retrace.values import all_written, having_of
from mmqjp.explain.terms import format_window, list_with_and
from mmqjp.queries.model import Subscription
from mmqjp.queries.registry import Registry
from pattern_stage.clauses import (
    Clauses,
    common_equalities,
    constant_text,
    dnf_clauses,
    expression_text,
    has_parameters,
    split_condition,
    static_clauses,
)
from pattern_stage.definition import inputs, is_alone, of_event
from pattern_stage.index import clause_form
from pattern_stage.pattern.program import CompiledEdge as Compiled
from pattern_stage.pattern.program import EventSlots, MatchRole, PatternProgram, match_windows
from pattern_stage.pattern.program import LetterAutomaton as Letters
from pattern_stage.plan import RULE_NAMES, BoundForm, EventPlan, MOp, RuleName
from pattern_stage.statements import RowUsers, Statements, operator_text
from pattern_stage.values import Texts
from xscl.algebra import events as algebra
from xscl.event_lower import lower_statement, schemas_of
from xscl.printer import to_xscl
from xscl.syntax import EventQuery, Script


@dataclass(frozen=True, slots=True)
class DiagramEdge:
    """A transition between two states. `kind` is start, forward, feeds (delivers right events to a state), or, for
    FOLD, rebind (a loop). For a PATTERN it is begin, take, ignore, proceed, end, or unless (an event that stops runs).
    `stream` is read, `does` has the operators or conditions on the way, and `found_by` the indexes that find the
    events."""

    kind: str
    source: int
    target: int
    stream: str
    does: tuple[str, ...]
    found_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DiagramState:
    """The start, a state where events wait, at most for `keeps`, or the final state. `operator` is the number of the
    m-op that stores them (-1: none), `row` the statement's row of its `rows`, and `shared` names the other statements
    with this row."""

    number: int
    title: str
    keeps: str = ""
    operator: int = -1
    row: int = -1
    rows: int = 0
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StateDiagram:
    """A statement's states, from start to final, and their edges. `windows`: how match windows prefilter events."""

    states: tuple[DiagramState, ...]
    edges: tuple[DiagramEdge, ...]
    windows: tuple[str, ...] = ()


def static_index(clauses: Clauses) -> list[str]:
    """Describes the constant index that finds the statements an event concerns; `clauses` test the event alone."""
    if not clauses or () in clauses:
        return []
    keys: dict[str, None] = {}
    for clause in clauses:
        form = clause_form(clause)
        keys.update({f"{expression_text(key, str, True)} hashed": None for key, _ in form.keys})
        keys.update({f"{expression_text(limit.operand, str, True)} in order": None for limit in form.limits})
    return [f"static index: {', '.join(keys) or 'no attribute, each clause is tested'}"]


@dataclass(frozen=True, slots=True)
class NamedStatement:
    name: str
    text: str
    stream: algebra.Statement


class EventProgram:
    """Event queries, numbered from 0, in a private plan that is never run."""

    def __init__(self, statements: Sequence[NamedStatement], rules: Iterable[RuleName] = RULE_NAMES) -> None:
        self.statements = statements
        self.plan = EventPlan(Texts(), rules)
        self.added = Statements(self.plan)
        for number, one in enumerate(statements):
            self.added.add(number, one.stream, BEGINNING)
        self.added.settle()

    @cached_property
    def users(self) -> RowUsers:
        return RowUsers(self.added)

    def sharing(self, number: int) -> list[str]:
        return list(dict.fromkeys(self.statements[other].name for other in self.users.sharing(number)))

    def stored(self, number: int, mop: MOp, row: int, ever: str) -> tuple[str, int, int, int, tuple[str, ...]]:
        """Returns how long a row keeps events (`ever`: no end), where it is, and who shares it, as in DiagramState."""
        within = int(mop.rows.within[row])
        users = self.users.of(mop.number, row)
        shared = dict.fromkeys(self.statements[other].name for other in users if other != number)
        keeps = ever if within >= LONGEST_WINDOW else format_window(within)
        return keeps, mop.number, row, len(mop.rows), tuple(shared)

    def last(self, number: int) -> int:
        return self.added.bound(number).mops[-1].number

    def users_of_mops(self) -> Mapping[int, Sequence[str]]:
        bound = ((one.name, self.added.bound(number)) for number, one in enumerate(self.statements))
        found = gathered(dict.fromkeys((mop.number, name) for name, form in bound for mop in form.mops))
        for partial, mops in self.plan.partials().items():
            found[partial] = list(dict.fromkeys(name for mop in mops for name in found[mop.number]))
        return found

    @cached_property
    def readers(self) -> Mapping[str, Sequence[str]]:
        reads = ((name, one.name) for one in self.statements for name in algebra.read_by(one.stream))
        return gathered(dict.fromkeys(reads))


def compile_statements(script: Script) -> list[NamedStatement]:
    schemas = schemas_of(script)
    named = zip(script.all_queries, script.names(), strict=True)
    queries = [(query, name) for query, name in named if isinstance(query, EventQuery)]
    return [NamedStatement(name, to_xscl(query), lower_statement(query, schemas)) for query, name in queries]


def registered_statements(
    registry: Registry, first: Iterable[Subscription] = (), most: int | None = None
) -> list[NamedStatement]:
    queries = (query for query in registry.subscriptions.values() if query.is_events)
    chosen = dict.fromkeys(chain(first, islice(queries, most)))
    return [NamedStatement(query.name, query.text, registry.events.form(query.form_id).stream) for query in chosen]


def operators_of(stream: algebra.Statement) -> list[algebra.Statement]:
    """Returns a stream and all its inputs, inputs first."""
    inputs = () if isinstance(stream, algebra.Pattern | algebra.NearPattern) else algebra.sources_of(stream)
    return [*chain.from_iterable(map(operators_of, inputs)), stream]


def event_retention(stream: algebra.Statement) -> int | None:
    """Returns how long an event can matter to a stream, in microseconds: 0 if nothing is stored, None for ever."""
    longest = 0
    for one in operators_of(stream):
        if isinstance(one, algebra.Next | algebra.Fold | algebra.Pattern | algebra.NearPattern):
            if one.within is None:
                return None
            longest = max(longest, one.within)
        elif isinstance(one, algebra.Sessions):
            return None
        elif isinstance(one, algebra.Stories):
            longest = max(longest, one.lasting or 0)
        elif isinstance(one, algebra.Aggregate):
            longest = max(longest, one.over or 0)
    return longest


def automaton(program: EventProgram, number: int) -> StateDiagram:
    pattern = program.statements[number].stream
    if not isinstance(pattern, algebra.Pattern | algebra.NearPattern):
        return _AutomatonBuilder(program, number).made()
    building = _PatternAutomatonBuilder(program, number, pattern)
    if isinstance(pattern, algebra.NearPattern):
        building.add_letters(pattern)
        return building.made()
    building.add_absent(pattern)
    if building.is_of_sets:
        building.add_sets(pattern)
    else:
        building.add_runs(pattern)
    return building.made(_window_lines(pattern))


_TITLES = {
    algebra.Next: "waits for its first partner",
    algebra.Latest: "waits for what it is the latest before",
    algebra.Fold: "a run that may go on",
    algebra.Aggregate: "groups of events",
    algebra.Sessions: "open sessions, from the latest event on",
    algebra.Stories: "open stories, with their documents",
}


class _AutomatonBuilder:
    def __init__(self, program: EventProgram, number: int) -> None:
        self._program, self._number = program, number
        self._bound: BoundForm = program.added.bound(number)
        self._nodes = self._bound.form.nodes
        self._rows = program.users.rows(number)
        kinds = algebra.Next | algebra.Fold | algebra.Aggregate | algebra.Stories
        keeping = [place for place in range(len(self._nodes)) if isinstance(self._operator(place), kinds)]
        self._state_of = {place: state for state, place in enumerate(keeping, 1)}
        self._final = len(keeping) + 1

    def made(self) -> StateDiagram:
        states = [DiagramState(0, "start"), *map(self._state, self._state_of), DiagramState(self._final, "final")]
        edges: list[DiagramEdge] = []
        for place, state in self._state_of.items():
            edges += self._into(self._nodes[place].inputs[0], state)
            if not isinstance(self._operator(place), algebra.Aggregate | algebra.Stories):
                right = self._into(self._nodes[place].inputs[1], state)
                edges += [replace(edge, kind="feeds") for edge in right if edge.source]
            if isinstance(self._operator(place), algebra.Fold):
                edges.append(self._out(place, state, "rebind"))
        edges += self._into(len(self._nodes) - 1, self._final)
        return StateDiagram(tuple(states), tuple(sorted(edges, key=lambda edge: (edge.source, edge.target, edge.kind))))

    def _operator(self, place: int) -> object:
        definition = self._nodes[place].definition
        return None if definition is None else definition.operator

    def _state(self, place: int) -> DiagramState:
        ever = "ever"
        if isinstance(self._operator(place), algebra.Aggregate):
            ever = "simultaneous events only" if self._nodes[place].window < 0 else ""
        stored = self._program.stored(self._number, self._bound.mops[place], self._rows[place], ever)
        return DiagramState(self._state_of[place], _TITLES[type(self._operator(place))], *stored)

    def _into(self, place: int, target: int, behind: tuple[int, ...] = ()) -> Iterator[DiagramEdge]:
        """Yields the edges by which a node's output reaches a state. `behind` are the selections on the way."""
        operator = self._operator(place)
        inputs = self._nodes[place].inputs
        if isinstance(operator, algebra.Filter | algebra.Select):
            yield from self._into(inputs[0], target, (place, *behind))
        elif isinstance(operator, algebra.Union):
            for at in inputs:
                yield from self._into(at, target, behind)
        elif operator is None:
            yield self._edge("start", 0, target, self._nodes[place].stream, behind)
        else:
            yield self._out(place, target, "forward", behind)

    def _out(self, place: int, target: int, kind: str, behind: tuple[int, ...] = ()) -> DiagramEdge:
        is_alone = isinstance(self._operator(place), algebra.Aggregate | algebra.Stories)
        stream, before = ("", []) if is_alone else self._read(self._nodes[place].inputs[1])
        return self._edge(kind, self._state_of[place], target, stream, (*before, place, *behind))

    def _read(self, place: int) -> tuple[str, list[int]]:
        """Returns the stream that a node's events come from, and the selections on the way."""
        before: list[int] = []
        while isinstance(self._operator(place), algebra.Filter | algebra.Select):
            before.insert(0, place)
            (place,) = self._nodes[place].inputs
        if place in self._state_of:
            return f"results of state {self._state_of[place]}", before
        if self._operator(place) is None:
            return self._nodes[place].stream, before
        return " or ".join(self._read(at)[0] for at in self._nodes[place].inputs), before

    def _edge(self, kind: str, source: int, target: int, stream: str, places: Sequence[int]) -> DiagramEdge:
        found_by = chain.from_iterable(map(self._indexes, places))
        return DiagramEdge(kind, source, target, stream, tuple(map(self._text, places)), tuple(found_by))

    def _text(self, place: int) -> str:
        definition = self._nodes[place].definition
        assert definition is not None, "an operator has one"
        return operator_text(definition.operator, lambda parameter: self._constant(place, parameter))

    def _constant(self, place: int, parameter: algebra.Parameter) -> str:
        column = self._bound.mops[place].rows.parameters[self._bound.places[place][parameter.index]]
        value = column[self._rows[place]]
        if column.dtype == np.int64:
            return constant_text(self._program.plan.texts.text(int(value)) or "")
        return constant_text(float(value))

    def _indexes(self, place: int) -> tuple[str, ...]:
        match self._operator(place):
            case algebra.Filter(condition=condition):
                clauses, bare = split_condition(condition, "left"), True
            case algebra.Next(condition=condition) | algebra.Fold(chooses=condition):
                clauses, bare = split_condition(condition), False
            case _:
                return ()

        def text(value: algebra.Value) -> str:
            return expression_text(value, lambda parameter: self._constant(place, parameter), bare)

        placement = self._bound.mops[place].placement
        found = static_index(static_clauses(clauses)) if placement is not None and placement.hashed else []
        if common := common_equalities(clauses):
            found.append(f"hash: {' = '.join(map(text, common[0]))}")
        return tuple(found)


def _window_lines(pattern: algebra.Pattern) -> Iterator[str]:
    """Describes how match windows prefilter events: a filter, keys, and what each window must contain."""
    windows = match_windows(pattern)
    if windows is None:
        return
    tests = [
        f"{_role_name(pattern, role)}: {expression_text(algebra.AllOf(role.conditions), str, bare=True)}"
        for role in windows.roles
        if role.conditions
    ]
    if tests:
        yield f"filter  {'; '.join(tests)}"
    keys: dict[str, None] = {}
    for place in range(len(windows.roles[0].keys)):
        names = list(dict.fromkeys(role.keys[place].name for role in windows.roles))
        if len(names) > 1:
            names = [f"{_role_name(pattern, role)}.{role.keys[place].name}" for role in windows.roles]
        keys[" = ".join(names)] = None
    if keys:
        yield f"partition  equal in {', '.join(keys)}"
    name_of = [_role_name(pattern, role) for role in windows.roles]
    names = [name_of[at] for at in windows.firsts]
    needs = [f"candidates for {list_with_and(names)}"]
    needs += [f"{name_of[one]} before {name_of[other]}" for one, other in windows.in_order()]
    if len(names) > 1:
        needs.insert(0, f"{len(names)} events")
    yield f"necessary  {'; '.join(needs)}"


def _role_name(pattern: algebra.Pattern, role: MatchRole) -> str:
    variable = pattern.variables[role.variable]
    if not variable.kleene:
        return f"~{variable.name}" if variable.negated else variable.name
    return f"{variable.name}[1]" if role.unit == "first" else f"{variable.name}[i]"


_IGNORED = {
    "any": "any event",
    "next": "any event that the run cannot go on with",
    "partition": "any event that differs in {}",
}


class _PatternAutomatonBuilder:
    def __init__(self, program: EventProgram, number: int, pattern: algebra.Pattern | algebra.NearPattern) -> None:
        bound = program.added.bound(number)
        (row,) = program.users.rows(number).values()
        self._stored = program.stored(number, bound.mops[-1], row, "ever")
        definition = bound.form.nodes[-1].definition
        assert definition is not None
        self._template = definition.operator
        self._keys = ", ".join(pattern.keys)
        self.is_of_sets = isinstance(pattern, algebra.Pattern) and (pattern.has_sets or pattern.maximal)
        self._compiled: PatternProgram | None = None
        if isinstance(self._template, algebra.Pattern) and not self.is_of_sets:
            self._compiled = PatternProgram(self._template, program.plan.texts, EventSlots())
        self._states = [DiagramState(0, "start")]
        self._edges: list[DiagramEdge] = []

    def made(self, windows: Iterable[str] = ()) -> StateDiagram:
        ordered = sorted(self._edges, key=lambda edge: (edge.source, edge.target))
        return StateDiagram((*self._states, DiagramState(len(self._states), "final")), tuple(ordered), tuple(windows))

    def _add(self, title: str) -> int:
        number = len(self._states)
        alike = f", equal in {self._keys}" if self._keys and number == 1 else ""
        self._states.append(DiagramState(number, title + alike, *self._stored))
        return number

    def _lead(
        self, kind: str, source: int, target: int, stream: str, does: Iterable[str] = (), found_by: Iterable[str] = ()
    ) -> None:
        self._edges.append(DiagramEdge(kind, source, target, stream, tuple(filter(None, does)), tuple(found_by)))

    def add_absent(self, pattern: algebra.Pattern) -> None:
        for at, one in enumerate(pattern.variables):
            if one.negated:
                does = all_written([test for test in pattern.kills if test.variable == at], pattern)
                edges = () if self._compiled is None else self._compiled.negations
                by_hash = next((self._hash(edge.edge) for edge in edges if edge.variable == at), ())
                found_by = (*self._found_by(at, "complete"), *by_hash)
                self._lead("unless", one.group, one.group + 1, f"{one.source.stream} {one.name}", [does], found_by)

    def add_runs(self, pattern: algebra.Pattern) -> None:
        def tests(at: int, phase: algebra.Phase) -> str:
            return all_written([one for one in pattern.conjuncts if (one.variable, one.phase) == (at, phase)], pattern)

        assert self._compiled is not None
        positive = [at for at, one in enumerate(pattern.variables) if not one.negated]
        kind, complete = "begin", ""
        for at in positive:
            one, number = pattern.variables[at], self._add(_title(pattern.variables[at]))
            begins, takes = self._compiled.begins[number - 1], self._compiled.takes[number - 1]
            stream = self._compiled.streams[number - 1]
            found_by = self._found_by(at, "first") + self._hash_from(number - 2, stream, begins)
            does = [complete if kind == "proceed" else "", tests(at, "first")]
            self._lead(kind, number - 1, number, one.source.stream, does, found_by)
            if one.kleene:
                found_by = self._found_by(at, "each") + self._hash_from(number - 1, stream, takes)
                self._lead("take", number, number, one.source.stream, [tests(at, "each")], found_by)
            if (at != positive[-1] or one.kleene) and pattern.strategy != "strict":
                self._lead("ignore", number, number, _IGNORED[pattern.strategy].format(self._keys))
            kind, complete = "proceed" if one.kleene else "begin", tests(at, "complete")
        last = len(positive)
        self._lead("end" if kind == "begin" else kind, last, last + 1, "", [complete, *_having(pattern)])

    def add_sets(self, pattern: algebra.Pattern) -> None:
        """Adds a state for each set: its events are searched together."""
        alone = [one for one in pattern.conjuncts if is_alone(one, pattern)]
        for group in range(pattern.groups):
            places = [at for at, one in enumerate(pattern.variables) if one.group == group and not one.negated]
            titles = [_title(pattern.variables[at]) for at in places]
            number = self._add(f"{'; '.join(titles)}{', in any order' if len(titles) > 1 else ''}")
            for at in places:
                # What is said of each event is said of the first one, too.
                tests = [test for test in alone if test.variable == at and test.phase != "each"]
                stream = f"{pattern.variables[at].source.stream} {pattern.variables[at].name}"
                found_by = self._found_by(at, "first", "complete")
                self._lead("begin", number - 1, number, stream, [all_written(tests, pattern)], found_by)
        rest = [one for one in pattern.conjuncts if not is_alone(one, pattern)]
        last = pattern.groups
        self._lead("end", last, last + 1, "", [all_written(rest, pattern), *_having(pattern)])

    def _hash(self, edge: Compiled) -> tuple[str, ...]:
        assert isinstance(self._template, algebra.Pattern)
        return () if edge.equal_test is None else (f"hash: {all_written([edge.equal_test], self._template)}",)

    def _hash_from(self, state: int, stream: int, edge: Compiled) -> tuple[str, ...]:
        """Like `_hash` for an edge from a state, if events of its stream probe no other runs there."""
        assert self._compiled is not None
        return self._hash(edge) if state >= 0 and self._compiled.is_hashed(state, stream) else ()

    def _found_by(self, variable: int, *phases: algebra.Phase) -> tuple[str, ...]:
        template = self._template
        assert isinstance(template, algebra.Pattern)
        tests = [one for one in (*template.conjuncts, *template.kills) if one.variable == variable]
        of_phase = (one for one in tests if one.phase in phases and self._is_static(one, template))
        alone = tuple(of_event(one) for one in of_phase if has_parameters(one.condition))
        return tuple(static_index(dnf_clauses(algebra.AllOf(alone)))) if alone else ()

    def _is_static(self, one: algebra.WhereConjunct, template: algebra.Pattern) -> bool:
        """Whether the kernel tests a condition on an event before it reads the waiting runs."""
        if self.is_of_sets:
            return is_alone(one, template)
        own = {of.place for _, of in one.names if isinstance(of, algebra.OfItem) and of.variable == one.variable}
        others = any(not isinstance(of, algebra.OfItem) or of.variable != one.variable for _, of in one.names)
        return not others and own <= ({"each", "every"} if one.phase == "each" else {"only", "first", "every"})

    def add_letters(self, pattern: algebra.NearPattern) -> None:
        template = self._template
        assert isinstance(template, algebra.NearPattern)
        letters = Letters(template.letters, template.errors)
        names = [name for name, _ in inputs(pattern)]
        streams = [names[int(one.source.stream)] for one in letters.letters]
        for at in sorted(letters.first):
            self._lead("begin", 0, at + 1, streams[at])
        most = f"at most {pattern.errors} left out on the way"
        budget = "" if pattern.budget is None else f"BUDGET {pattern.budget}"
        end = [most, budget, "NON OVERLAPPING" if pattern.apart else ""]
        for at, one in enumerate(letters.letters):
            number = self._add(f"an event of {streams[at]}, which {'is needed' if one.needed else 'may be left out'}")
            for to in sorted(letters.follow[at]):
                self._lead("take" if to <= at else "begin", number, to + 1, streams[to])
            self._lead("ignore", number, number, "any event")
            if at in letters.last:
                self._lead("end", number, len(letters.letters) + 1, "", end)


def _having(pattern: algebra.Pattern) -> list[str]:
    having = "" if pattern.having == algebra.AllOf() else " AND ".join(one.text for one in having_of(pattern))
    modes = ["ALL MATCHES TOGETHER"] * isinstance(pattern, algebra.Together)
    modes += [*["EARLIEST MAXIMAL"] * pattern.maximal, *["NON OVERLAPPING"] * pattern.apart]
    return [f"HAVING {having}" if having else "", " ".join(modes)]


def _title(variable: algebra.Variable) -> str:
    if variable.kleene:
        return f"{variable.name}[], one event or more of {variable.source.stream}"
    return f"{variable.name}, an event of {variable.source.stream}"


MOST_SHAPES = 10_000  # maximum number of distinct shapes; documents of further shapes count as one


def document_shape(root: etree._Element) -> int:
    """A hash of the set of element and attribute paths in a document, which differs from process to process."""
    paths: set[int] = set()
    above = [0]
    for event, element in etree.iterwalk(root, events=("start", "end")):
        if event == "end":
            above.pop()
            continue
        above.append(hash((above[-1], str(element.tag))))
        paths.add(above[-1])
        paths.update(hash((above[-1], f"@{name}")) for name in element.attrib)
    return hash(frozenset(paths))


class Shapes:
    """Counts documents by shape, numbered from 1 in order of first occurrence."""

    def __init__(self) -> None:
        self._numbers: dict[int | None, int] = {}
        self.met: Counter[int] = Counter()  # documents of each shape
        self.shown: Counter[int] = Counter()  # documents of each shape that were shown, counted by the caller

    def number(self, root: etree._Element) -> int:
        """Counts the document; returns its shape's number."""
        shape: int | None = document_shape(root)
        if shape not in self._numbers and len(self._numbers) >= MOST_SHAPES:
            shape = None
        number = self._numbers.setdefault(shape, len(self._numbers) + 1)
        self.met[number] += 1
        return number
