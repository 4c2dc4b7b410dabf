"""The automaton of a PATTERN, after SASE+: a state for each variable, or for each set of variables; with ERRORS, for
each letter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from mmqjp.explain.event_program import EventProgram
from mmqjp.explain.pattern_text import all_written, written
from mmqjp.explain.pattern_windows import window_lines
from mmqjp.explain.states import Automaton, Edge, State, static_index
from mmqjp.explain.terms import window_text
from pattern_stage.clauses import clauses_of
from pattern_stage.formula import has_parameters
from pattern_stage.matching.alone import is_alone, of_event
from pattern_stage.matching.letters import Automaton as Letters
from pattern_stage.matching.program import Edge as Compiled
from pattern_stage.matching.program import Program
from pattern_stage.matching.slots import Slots
from pattern_stage.matching.template import inputs
from pattern_stage.rows import NO_BOUND
from xscl.algebra.event_sequences import Conjunct, NearPattern, OfItem, Pattern, Phase, Variable
from xscl.algebra.events import AllOf

_IGNORED = {
    "any": "any event",
    "next": "any event that the run cannot go on with",
    "partition": "any event that differs in {}",
}


def pattern_automaton(program: EventProgram, number: int, pattern: Pattern | NearPattern) -> Automaton:
    """Returns the automaton of a PATTERN statement in its plan."""
    making = _OfLetters if isinstance(pattern, NearPattern) else _OfSets if _has_sets(pattern) else _OfRuns
    return making(program, number, pattern).made()  # type: ignore[arg-type]  # each takes its own


def _has_sets(pattern: Pattern) -> bool:
    return pattern.has_sets or pattern.maximal


class _Making:
    """What all of them have: the row of the plan, which every state stands for."""

    def __init__(self, program: EventProgram, number: int, pattern: Pattern | NearPattern) -> None:
        bound = program.users.bound(number)
        mop, (row,) = bound.mops[-1], program.users.rows(number).values()
        users = program.users.of(mop.number, row).tolist()
        shared = dict.fromkeys(program.statements[other].name for other in users if other != number)
        within = int(mop.rows.within[row])
        self._keeps = "ever" if within >= NO_BOUND else window_text(within)
        self._place = mop.number, row, len(mop.rows), tuple(shared)
        definition = bound.form.nodes[-1].definition
        assert definition is not None
        self._template = definition.operator
        self._keys = ", ".join(pattern.keys)

    def _state(self, number: int, title: str) -> State:
        alike = f", equal in {self._keys}" if self._keys and number == 1 else ""
        return State(number, title + alike, self._keeps, *self._place)


class _OfPattern(_Making, ABC):
    """What patterns without ERRORS have."""

    def __init__(self, program: EventProgram, number: int, pattern: Pattern) -> None:
        super().__init__(program, number, pattern)
        self._pattern = pattern
        self._positive = [at for at, one in enumerate(pattern.variables) if not one.negated]

    def _tests(self, variable: int, *phases: Phase) -> str:
        """Returns what is tested of a variable in some phases."""
        tests = [one for one in self._pattern.conjuncts if one.variable == variable and one.phase in phases]
        return all_written(tests, self._pattern)

    def _found_by(self, variable: int, *phases: Phase) -> tuple[str, ...]:
        """Returns how the events of a variable are found: by conditions on these alone, in the order of the plan."""
        template = self._template
        assert isinstance(template, Pattern)
        tests = [*template.conjuncts, *template.kills]
        alone = [
            of_event(one)
            for one in tests
            if one.variable == variable
            and one.phase in phases
            and self._is_static(one, template)
            and has_parameters(one.condition)
        ]
        return tuple(static_index(clauses_of(AllOf(tuple(alone))))) if alone else ()

    @abstractmethod
    def _is_static(self, one: Conjunct, template: Pattern) -> bool:
        """Whether the kernel tests a condition on an event before it looks at what waits."""

    def _unless(self) -> Iterator[Edge]:
        """Yields edges of negated variables."""
        for at, one in enumerate(self._pattern.variables):
            if one.negated:
                tests = [test for test in self._pattern.kills if test.variable == at]
                does = _some(all_written(tests, self._pattern))
                stream, found_by = f"{one.source.stream} {one.name}", self._found_by(at, "complete")
                yield Edge("unless", one.group, one.group + 1, stream, does, (*found_by, *self._runs_found_by(at)))

    def _runs_found_by(self, variable: int) -> tuple[str, ...]:
        """Returns how the runs are found that an event of a negated variable ends."""
        return ()

    def _having(self) -> tuple[str, ...]:
        """Returns what is asked at the end."""
        pattern = self._pattern
        having = written(pattern.having, pattern.having_names, pattern.variables)
        modes = [*["EARLIEST MAXIMAL"] * pattern.maximal, *["NON OVERLAPPING"] * pattern.apart]
        return (*_some(f"HAVING {having}" if having else ""), *_some(" ".join(modes)))


class _OfRuns(_OfPattern):
    """Makes the automaton of a pattern without SET: runs wait in its states."""

    def __init__(self, program: EventProgram, number: int, pattern: Pattern) -> None:
        super().__init__(program, number, pattern)
        assert isinstance(self._template, Pattern)
        self._compiled = Program(self._template, program.plan.texts, Slots())

    def _runs_found_by(self, variable: int) -> tuple[str, ...]:
        return next(self._hash(one.edge) for one in self._compiled.negations if one.variable == variable)

    def _hash(self, edge: Compiled) -> tuple[str, ...]:
        """Returns by what value an event finds the runs of an edge."""
        assert isinstance(self._template, Pattern)
        return () if edge.equal_test is None else (f"hash: {all_written([edge.equal_test], self._template)}",)

    def _hash_from(self, state: int, stream: int, edge: Compiled) -> tuple[str, ...]:
        """Returns the same for an edge from a state, if events of its stream look at no other runs there."""
        return self._hash(edge) if self._compiled.is_hashed(state, stream) else ()

    def _is_static(self, one: Conjunct, template: Pattern) -> bool:
        own = {of.place for _, of in one.names if isinstance(of, OfItem) and of.variable == one.variable}
        others = any(not isinstance(of, OfItem) or of.variable != one.variable for _, of in one.names)
        return not others and own <= ({"each", "every"} if one.phase == "each" else {"only", "first", "every"})

    def made(self) -> Automaton:
        variables = [self._pattern.variables[at] for at in self._positive]
        last = len(variables)
        states = [State(0, "start")]
        edges = list(self._unless())
        for number, (at, one) in enumerate(zip(self._positive, variables, strict=True), 1):
            states.append(self._state(number, _title(one)))
            does = _some(self._tests(at, "first"))
            if number > 1 and variables[number - 2].kleene:
                kind = "proceed"
                does = (*_some(self._tests(self._positive[number - 2], "complete")), *does)
            else:
                kind = "begin"
            compiled, stream = self._compiled, self._compiled.streams[number - 1]
            by_hash = self._hash_from(number - 2, stream, compiled.begins[number - 1]) if number > 1 else ()
            found_by = (*self._found_by(at, "first"), *by_hash)
            edges.append(Edge(kind, number - 1, number, one.source.stream, does, found_by))
            if one.kleene:
                does = _some(self._tests(at, "each"))
                by_hash = self._hash_from(number - 1, stream, compiled.takes[number - 1])
                found_by = (*self._found_by(at, "each"), *by_hash)
                edges.append(Edge("take", number, number, one.source.stream, does, found_by))
            if (number < last or one.kleene) and self._pattern.strategy != "strict":
                edges.append(
                    Edge("ignore", number, number, _IGNORED[self._pattern.strategy].format(self._keys), (), ())
                )
        end = (*_some(self._tests(self._positive[-1], "complete")), *self._having())
        edges.append(Edge("proceed" if variables[-1].kleene else "end", last, last + 1, "", end, ()))
        return _automaton(states, edges, last + 1, window_lines(self._pattern))


class _OfSets(_OfPattern):
    """Makes the automaton of a pattern with SET: a state for each set, whose events are looked for together."""

    def _is_static(self, one: Conjunct, template: Pattern) -> bool:
        return is_alone(one, template)

    def made(self) -> Automaton:
        groups = [
            [at for at in self._positive if self._pattern.variables[at].group == group]
            for group in range(self._pattern.groups)
        ]
        states = [State(0, "start")]
        edges = list(self._unless())
        alone = [one for one in self._pattern.conjuncts if is_alone(one, self._pattern)]
        for number, group in enumerate(groups, 1):
            variables = [self._pattern.variables[at] for at in group]
            titles = [_title(one) for one in variables]
            states.append(self._state(number, f"{'; '.join(titles)}{', in any order' if len(titles) > 1 else ''}"))
            for at, one in zip(group, variables, strict=True):
                # What is said of each event is said of the first one, too.
                tests = [test for test in alone if test.variable == at and test.phase != "each"]
                does, found_by = _some(all_written(tests, self._pattern)), self._found_by(at, "first", "complete")
                edges.append(Edge("begin", number - 1, number, f"{one.source.stream} {one.name}", does, found_by))
        rest = [one for one in self._pattern.conjuncts if not is_alone(one, self._pattern)]
        end = (*_some(all_written(rest, self._pattern)), *self._having())
        edges.append(Edge("end", len(groups), len(groups) + 1, "", end, ()))
        return _automaton(states, edges, len(groups) + 1, window_lines(self._pattern))


class _OfLetters(_Making):
    """Makes the automaton of a pattern with ERRORS: a state for each letter, of which some may be left out."""

    def __init__(self, program: EventProgram, number: int, pattern: NearPattern) -> None:
        super().__init__(program, number, pattern)
        self._pattern = pattern

    def made(self) -> Automaton:
        template = self._template
        assert isinstance(template, NearPattern)
        letters = Letters(template.letters, template.errors)
        names = [name for name, _ in inputs(self._pattern)]
        streams = [names[int(one.source.stream)] for one in letters.letters]
        states = [State(0, "start")]
        edges: list[Edge] = [Edge("begin", 0, at + 1, streams[at], (), ()) for at in sorted(letters.first)]
        for at, one in enumerate(letters.letters):
            left_out = "is needed" if one.needed else "may be left out"
            states.append(self._state(at + 1, f"an event of {streams[at]}, which {left_out}"))
            for to in sorted(letters.follow[at]):
                edges.append(Edge("take" if to <= at else "begin", at + 1, to + 1, streams[to], (), ()))
            edges.append(Edge("ignore", at + 1, at + 1, "any event", (), ()))
        most = f"at most {self._pattern.errors} left out on the way"
        budget = "" if self._pattern.budget is None else f"BUDGET {self._pattern.budget}"
        end = (most, *_some(budget), *_some("NON OVERLAPPING" if self._pattern.apart else ""))
        final = len(states)
        edges += [Edge("end", at + 1, final, "", end, ()) for at in sorted(letters.last)]
        return _automaton(states, edges, final)


def _automaton(states: Sequence[State], edges: Sequence[Edge], final: int, windows: tuple[str, ...] = ()) -> Automaton:
    ordered = sorted(edges, key=lambda edge: (edge.source, edge.target))
    return Automaton((*states, State(final, "final")), tuple(ordered), windows)


def _title(variable: Variable) -> str:
    if variable.kleene:
        return f"{variable.name}[], one event or more of {variable.source.stream}"
    return f"{variable.name}, an event of {variable.source.stream}"


def _some(text: str) -> tuple[str, ...]:
    return (text,) if text else ()
