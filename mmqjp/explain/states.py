"""Automata of event statements: the states where events wait, the edges that lead from one to the next, and by what
index the events of an edge are found."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_stage.clauses import Clauses
from pattern_stage.formula import value_text
from pattern_stage.static_shape import form_of


@dataclass(frozen=True, slots=True)
class Edge:
    """What leads from one state to another.

    `kind` is start, forward, feeds, which gives a state its right events, or, of FOLD, rebind, which leads back to its
    state. What NEXT does not take stays where it is. Of a PATTERN it is begin, take, ignore, proceed, end, or unless:
    such an event keeps runs from going on. `stream` is read, `does` has the operators or conditions on the way, and
    `found_by` says how the events are found.
    """

    kind: str
    source: int
    target: int
    stream: str
    does: tuple[str, ...]
    found_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class State:
    """A state: the start, one where events wait, at most for `keeps`, or the final one.

    `operator` is the m-op that keeps them, -1 if there is none, `row` the statement's row of its `rows`, and `shared`
    has the names of the other statements with this row.
    """

    number: int
    title: str
    keeps: str = ""
    operator: int = -1
    row: int = -1
    rows: int = 0
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Automaton:
    """The states of a statement, the start first and the final one last, and the edges between them. Of a PATTERN,
    `windows` says what its match windows leave out before anything is matched."""

    states: tuple[State, ...]
    edges: tuple[Edge, ...]
    windows: tuple[str, ...] = ()


def static_index(clauses: Clauses) -> list[str]:
    """Returns by what an index over constants finds whom an event concerns, given conditions on the event alone;
    nothing if there are none."""
    if not clauses or () in clauses:
        return []
    keys: dict[str, None] = {}
    for clause in clauses:
        form = form_of(clause)
        keys.update({f"{value_text(key, str, True)} hashed": None for key in form.keys})
        keys.update({f"{value_text(limit.operand, str, True)} in order": None for limit in form.limits})
    return [f"static index: {', '.join(keys) or 'no attribute, each clause is tested'}"]
