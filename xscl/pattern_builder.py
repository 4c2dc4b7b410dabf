"""Builds the syntax tree of PATTERN statements while the parser reduces the rules of events.lark."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from lark import Token

from xscl.algebra.expressions import NOWHERE, Span
from xscl.event_builder import Clause, EventBuilder, span_of, text_of
from xscl.event_expressions import Alike, ItemReference, Place, Reference, StreamName
from xscl.event_syntax import AllAttributes, EventQuery, Named
from xscl.pattern_syntax import (
    Alternatives,
    AnyOrder,
    Component,
    Errors,
    LetterOf,
    ListedVariable,
    Mode,
    NoEvent,
    OneEvent,
    Repetition,
    Sequenced,
    StrategyName,
)
from xscl.problems import Problem

_ORDER = ("WHERE", "ERRORS", "WITHIN", "HAVING", "RETURN", "ALL", "EARLIEST", "NON", "PUBLISH")
"""The words with which the clauses of a PATTERN begin, in the order in which they are written."""

_MOST_DIGITS = 6
_PLACES: Mapping[str, Place] = {"CURRENT": "i", "PREVIOUS": "i-1", "LAST": "LEN"}


class PatternBuilder(EventBuilder):
    """The parser's callbacks for patterns, and those that it has from EventBuilder."""

    def pattern(self, children: list[Any]) -> EventQuery:
        clauses: list[Clause] = children[5:]
        _check_order(clauses)
        found: dict[str, Any] = {clause.word: clause.value for clause in clauses}
        strategy, where = found.get("WHERE", (None, None))
        span = next((clause.span for clause in clauses if clause.word in ("EARLIEST", "NON", "ALL")), NOWHERE)
        mode = Mode("EARLIEST" in found, "NON" in found, span)
        body = Sequenced(
            tuple(children[3]),
            strategy,
            where,
            found.get("ERRORS"),
            found.get("HAVING"),
            mode,
            span_of(children[0], children[4]),
        )
        select: tuple[Named | AllAttributes, ...] | None = found.get("RETURN")
        end = clauses[-1].span.end if clauses else body.span.end
        return EventQuery(body, select, found.get("WITHIN"), found.get("PUBLISH"), Span(body.span.start, end))

    # ------------------------------------------------------------ components

    def components(self, children: list[Any]) -> tuple[Component, ...]:
        return tuple(children[::2])

    def stream_of(self, children: list[Token]) -> StreamName:
        return StreamName(text_of(children[0]), span_of(children[0], children[0]))

    def one_event(self, children: list[Any]) -> OneEvent:
        return OneEvent(children[0], text_of(children[1]), False, span_of(children[0], children[1]))

    def many_events(self, children: list[Any]) -> OneEvent:
        return OneEvent(children[0], text_of(children[2]), True, span_of(children[0], children[4]))

    def no_event(self, children: list[Any]) -> NoEvent:
        return NoEvent(children[2], span_of(children[0], children[3]))

    def any_order(self, children: list[Any]) -> AnyOrder:
        return AnyOrder(children[2], span_of(children[0], children[3]))

    def letter(self, children: list[Any]) -> LetterOf:
        return LetterOf(children[0], len(children) > 1, span_of(children[0], children[-1]))

    def repeated_letter(self, children: list[Any]) -> Repetition:
        *letter, times = children
        return Repetition(self.letter(letter), times.value, span_of(children[0], times))

    def alternatives(self, children: list[Any]) -> Alternatives:
        return Alternatives(tuple(children[1:-1:2]), span_of(children[0], children[-1]))

    def repetition(self, children: list[Any]) -> Repetition:
        return Repetition(children[0], children[1].value, span_of(children[0], children[1]))

    def times(self, children: list[Token]) -> Clause:
        least = _whole(children[1]) if len(children) > 1 else int(children[0] == "+")
        return Clause("", least, span_of(children[0], children[-1]))

    # ------------------------------------------------------------ clauses

    def where(self, children: list[Any]) -> Clause:
        strategy = children[1] if isinstance(children[1], StrategyName) else None
        condition = children[-2] if not isinstance(children[-2], Token) else None
        span = span_of(children[0], children[-1])
        if strategy is None and condition is None:
            raise Problem("empty braces", span, "write a condition, or leave WHERE out")
        return Clause("WHERE", (strategy, condition), span)

    def strategy(self, children: list[Any]) -> StrategyName:
        return StrategyName(text_of(children[0]), tuple(children[2:-1:2]), span_of(children[0], children[-1]))

    def listed(self, children: list[Token]) -> ListedVariable:
        return ListedVariable(text_of(children[0]), len(children) > 1, span_of(children[0], children[-1]))

    def errors(self, children: list[Token]) -> Clause:
        if children[1] != "<=":
            raise Problem("ERRORS has an upper bound", span_of(children[1], children[1]), "write ERRORS <= 1")
        budget = _whole(children[4]) if len(children) > 3 else None
        if budget == 0:
            raise Problem("BUDGET 0 keeps nothing", span_of(children[4], children[4]), "write a greater number")
        span = span_of(children[0], children[-1])
        return Clause("ERRORS", Errors(_whole(children[2]), budget, span), span)

    def having(self, children: list[Any]) -> Clause:
        return Clause("HAVING", children[1], span_of(children[0], children[1]))

    def returned(self, children: list[Any]) -> Clause:
        items: tuple[Named | AllAttributes, ...] = children[1]
        return Clause("RETURN", items, span_of(children[0], items[-1]))

    def mode(self, children: list[Token]) -> Clause:
        return Clause(children[0].upper(), None, span_of(children[0], children[1]))

    # ------------------------------------------------------------ expressions

    def item(self, children: list[Any]) -> ItemReference:
        variable, attribute = children[0], children[-1]
        place: Place = ""
        if len(children) > 3:
            place = _place(variable, children[2])
        return ItemReference(text_of(variable), place, text_of(attribute), span_of(variable, attribute))

    def place(self, children: list[Token]) -> Token:
        return children[0]

    def items_of(self, children: list[Token]) -> ItemReference:
        place: Place = "..i-1" if children[2].type == "EARLIER" else "[]"
        name = text_of(children[-1]) if children[-1].type == "ATTRIBUTE" else ""
        return ItemReference(text_of(children[0]), place, name, span_of(children[0], children[-1]))

    def alike(self, children: list[Token]) -> Alike:
        names = tuple(Reference("", text_of(token), span_of(token, token)) for token in children[1::2])
        return Alike(names, span_of(children[0], children[-1]))


def _place(variable: Token, place: Token) -> Place:
    """Which event a word in brackets means."""
    span = span_of(place, place)
    if place.type == "NUMBER":
        if place != "1":
            hint = f"the first is {variable}[1], the last {variable}[{variable}.LEN]"
            raise Problem(f"there is no {variable}[{place}]", span, hint)
        return "1"
    if place.type == "LAST" and place.partition(".")[0].strip() != variable:
        raise Problem(f"{variable}[{place}] is of two variables", span, f"write {variable}[{variable}.LEN]")
    return _PLACES[place.type]


def _whole(token: Token) -> int:
    """A number that has to be whole."""
    if not token.isdecimal() or len(token) > _MOST_DIGITS:
        raise Problem("this has to be a whole number", span_of(token, token), "such as 1 or 2")
    return int(token)


def _check_order(clauses: list[Clause]) -> None:
    """Raises Problem if a clause stands behind one that comes later, or is there twice."""
    for before, clause in pairwise(clauses):
        one, other = _ORDER.index(before.word), _ORDER.index(clause.word)
        if one == other:
            raise Problem(f"{clause.word} is there twice", clause.span, "remove one of them")
        if one > other:
            hint = "the order is WHERE, ERRORS, WITHIN, HAVING, RETURN, EARLIEST MAXIMAL, NON OVERLAPPING, PUBLISH"
            raise Problem(f"{clause.word} stands behind {before.word}", clause.span, hint)
        if "ALL" in (before.word, clause.word) and other < _ORDER.index("PUBLISH"):
            raise Problem("ALL MATCHES beside another mode", clause.span, "write one of them")
