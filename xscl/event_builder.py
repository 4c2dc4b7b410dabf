"""Builds the syntax trees of event queries, patterns and definitions while the parser reduces the grammar's rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from sys import intern
from typing import Any, cast

from lark import Token, Transformer

from common.tools import quick
from xscl.algebra.values import NOWHERE, Call, Number, Span, String, is_number
from xscl.builder import Builder, unquoted
from xscl.problems import Problem
from xscl.syntax import (
    AllAttributes,
    Alternatives,
    AnyOrder,
    ArithmeticExpr,
    Both,
    Component,
    DefinedAttribute,
    Either,
    EquivalenceTest,
    Errors,
    EventCall,
    EventCompare,
    EventDefinition,
    EventExpr,
    EventQuery,
    EventStream,
    Filtered,
    Grouped,
    Inner,
    IsNull,
    ItemIndex,
    ItemReference,
    Iteration,
    LetterOf,
    ListedVariable,
    Minus,
    Mode,
    Named,
    Negated,
    NextStream,
    NoEvent,
    Null,
    OneEvent,
    Percentage,
    Qualifier,
    Reference,
    Repetition,
    Sequenced,
    StrategyName,
    StreamName,
    TimeMeasure,
    UnionStream,
    Window,
)
from xscl.text import window_us


class DefinitionBuilder(Builder):
    """The parser's callbacks for definitions, whose blocks and operands are built like those of queries."""

    def definition(self, children: list[Any]) -> EventDefinition:
        _, _, name, _, block, _, *attributes, end = children
        span = Span(children[0].start_pos, end.end_pos)
        return EventDefinition(str(name), block, tuple(attributes[::2]), span)

    def first_of(self, children: list[Any]) -> DefinedAttribute:
        operand = children[2]
        is_numeric = is_number(operand)
        if isinstance(operand, Call) and operand.name == "number" and len(operand.args) == 1:
            operand = operand.args[0]
        return DefinedAttribute(str(children[0]), operand, is_numeric, False, _span(children))

    def each_of(self, children: list[Any]) -> DefinedAttribute:
        return DefinedAttribute(str(children[0]), children[2], False, True, _span(children))


def _span(children: list[Any]) -> Span:
    name: Token = children[0]
    assert name.start_pos is not None, "the lexer gives it a place"
    return Span(name.start_pos, children[2].span.end)


_SIDES = ("$", "$1", "$2")


@quick
@dataclass(frozen=True, slots=True)
class KeywordClause:
    word: str
    value: Any
    span: Span


def span_of(first: Any, last: Any) -> Span:
    start: int = first.start_pos if isinstance(first, Token) else first.span.start  # type: ignore[assignment]  # made-up tokens have none
    end: int = last.end_pos if isinstance(last, Token) else last.span.end  # type: ignore[assignment]  # the same
    return Span(start, end)


def intern_token(token: Token) -> str:
    """Interns a token's text, so that equal names share an object."""
    return intern(str(token))


class EventBuilder(Transformer[Token, Any]):
    """The parser's callbacks shared by all event statements, and those of queries: each receives the children of its
    rule (tokens and nodes) and returns a node. Raises Problem for what the grammar accepts but the language does not.
    An operator's span is its keyword, as far as parentheses are around its operands."""

    # ------------------------------------------------------------ queries

    def selected(self, children: list[Any]) -> EventQuery:
        _, items, _, stream, *clauses = children
        return _query(items, stream, clauses, span_of(children[0], children[-1]))

    def plain(self, children: list[Any]) -> EventQuery:
        stream, *clauses = children[1:] if isinstance(children[0], Token) else children
        return _query(None, stream, clauses, span_of(children[0], children[-1]))

    def within(self, children: list[Any]) -> KeywordClause:
        return KeywordClause("WITHIN", children[1], span_of(children[0], children[1]))

    def publish(self, children: list[Token]) -> KeywordClause:
        return KeywordClause("PUBLISH", intern_token(children[1]), span_of(children[1], children[1]))

    def items(self, children: list[Any]) -> tuple[Named | AllAttributes, ...]:
        return tuple(children[::2])

    def star(self, children: list[Token]) -> AllAttributes:
        return AllAttributes(span_of(children[0], children[0]))

    def named(self, children: list[Any]) -> Named:
        expr, span = children[0], span_of(children[0], children[-1])
        if len(children) > 1:
            return Named(expr, intern_token(children[2]), span)
        return Named(expr, expr.name if isinstance(expr, Reference | ItemReference) else "", span)

    # ------------------------------------------------------------ streams

    def stream_name(self, children: list[Token]) -> StreamName:
        return StreamName(intern_token(children[0]), span_of(children[0], children[0]))

    def group(self, children: list[Any]) -> EventStream:
        query: EventQuery = children[1]
        stream: EventStream = query.stream  # type: ignore[assignment]  # no pattern stands in parentheses
        if query.publish is not None:
            span = Span(query.span.end - len(query.publish), query.span.end)
            hint = "PUBLISH the inner query as a statement of its own, and read its name"
            raise Problem("PUBLISH is not allowed inside parentheses", span, hint)
        if query.select is None and query.within is None:
            return stream
        return Inner(query.select, stream, query.within, span_of(children[0], children[2]))

    def filtered(self, children: list[Any]) -> Filtered:
        return Filtered(children[2], children[4], span_of(children[0], children[3]))

    def grouped(self, children: list[Any]) -> Grouped:
        _, _, items, *clauses, _, source = children
        over = clauses.pop().value if clauses and isinstance(clauses[-1].value, Window) else None
        by = clauses[0].value if clauses else ()
        return Grouped(items, by, over, source, span_of(children[0], children[-2]))

    def sequence(self, children: list[Any]) -> NextStream:
        condition = children[3] if len(children) > 3 else None
        return NextStream(children[0], children[-1], condition, span_of(children[1], children[1]))

    def iteration(self, children: list[Any]) -> Iteration:
        left, word, _, *parts, _, right = children
        found: list[Any] = [None]
        for part in parts:
            if isinstance(part, Token):  # a comma between the parts
                found.append(None)
            else:
                found[-1] = part
        chooses, continues, sets = found
        return Iteration(left, right, chooses, continues, sets or (), span_of(word, word))

    def together(self, children: list[Any]) -> UnionStream:
        return UnionStream(children[0], children[2], span_of(children[1], children[1]))

    def named_list(self, children: list[Any]) -> tuple[Named, ...]:
        return tuple(children[::2])

    def by(self, children: list[Token]) -> KeywordClause:
        names = tuple(Reference("", intern_token(token), span_of(token, token)) for token in children[1::2])
        return KeywordClause("BY", names, span_of(children[0], children[-1]))

    def over(self, children: list[Any]) -> KeywordClause:
        return KeywordClause("OVER", children[1], span_of(children[0], children[1]))

    def window(self, children: list[Token]) -> Window:
        return _window(children[0])

    # ------------------------------------------------------------ expressions

    def either_(self, children: list[Any]) -> Either:
        return Either(_arms(children, Either), span_of(children[0], children[-1]))

    def both_(self, children: list[Any]) -> Both:
        return Both(_arms(children, Both), span_of(children[0], children[-1]))

    def negated(self, children: list[Any]) -> Negated:
        return Negated(children[1], span_of(children[0], children[1]))

    def compare(self, children: list[Any]) -> EventCompare:
        left, op, right = children
        return EventCompare(intern_token(op), left, right, span_of(left, right))  # type: ignore[arg-type]  # the grammar has no others

    def is_null(self, children: list[Any]) -> IsNull:
        return IsNull(children[0], len(children) > 3, span_of(children[0], children[-1]))

    def operation(self, children: list[Any]) -> ArithmeticExpr:
        left, op, right = children
        return ArithmeticExpr(intern_token(op), left, right, span_of(left, right))  # type: ignore[arg-type]  # the grammar has no others

    def minus(self, children: list[Any]) -> Minus:
        return Minus(children[1], span_of(children[0], children[1]))

    def parentheses(self, children: list[Any]) -> EventExpr:
        return cast(EventExpr, children[1])

    def call(self, children: list[Any]) -> EventCall:
        return EventCall(intern_token(children[0]), tuple(children[2:-1:2]), span_of(children[0], children[-1]))

    def bare(self, children: list[Token]) -> Reference:
        return Reference("", intern_token(children[0]), span_of(children[0], children[0]))

    def reference(self, children: list[Token]) -> Reference:
        side, span = str(children[0]), span_of(children[0], children[0])
        if side not in _SIDES:
            hint = "$1 is the left event, $2 the right one, and $ the latest in FOLD"
            raise Problem(f"there is no {side}", span, hint)
        return Reference(cast(Qualifier, side), intern_token(children[2]), span_of(children[0], children[2]))

    def measure(self, children: list[Token]) -> TimeMeasure:
        return TimeMeasure("DUR" if children[0].upper() == "DUR" else "GAP", span_of(children[0], children[0]))

    def string(self, children: list[Token]) -> String:
        return String(unquoted(children[0]), span_of(children[0], children[0]))

    def number(self, children: list[Token]) -> Number:
        return Number(str(children[0]), span_of(children[0], children[0]))

    def percentage(self, children: list[Token]) -> Percentage:
        return Percentage(str(children[0])[:-1], span_of(children[0], children[0]))

    def duration(self, children: list[Token]) -> Window:
        return _window(children[0])

    def null(self, children: list[Token]) -> Null:
        return Null(span_of(children[0], children[0]))


def _query(select: Any, stream: EventStream, clauses: list[KeywordClause], span: Span) -> EventQuery:
    within = next((clause.value for clause in clauses if isinstance(clause.value, Window)), None)
    publish = next((clause.value for clause in clauses if isinstance(clause.value, str)), None)
    return EventQuery(stream, select, within, publish, span)


def _window(token: Token) -> Window:
    text, span = str(token), span_of(token, token)
    if token.type == "INF":
        return Window(None, span)
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip()
    return Window(window_us(number, text[len(number) :].strip() or "s", span), span)


def _arms(children: list[Any], kind: type[Both] | type[Either]) -> tuple[EventExpr, ...]:
    arms: list[EventExpr] = []
    for child in children[::2]:
        arms.extend(child.args if isinstance(child, kind) else [child])
    return tuple(arms)


_ORDER = ("WHERE", "ERRORS", "WITHIN", "HAVING", "RETURN", "ALL", "EARLIEST", "NON", "PUBLISH")
"""The keywords of a PATTERN's clauses, in order."""

_MOST_DIGITS = 6
_PLACES: Mapping[str, ItemIndex] = {"CURRENT": "i", "PREVIOUS": "i-1", "LAST": "LEN"}


class EventPatternBuilder(EventBuilder):
    """The parser's callbacks for patterns, on top of EventBuilder's."""

    def pattern(self, children: list[Any]) -> EventQuery:
        clauses: list[KeywordClause] = children[5:]
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
        return StreamName(intern_token(children[0]), span_of(children[0], children[0]))

    def one_event(self, children: list[Any]) -> OneEvent:
        return OneEvent(children[0], intern_token(children[1]), False, span_of(children[0], children[1]))

    def many_events(self, children: list[Any]) -> OneEvent:
        return OneEvent(children[0], intern_token(children[2]), True, span_of(children[0], children[4]))

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

    def times(self, children: list[Token]) -> KeywordClause:
        least = _whole(children[1]) if len(children) > 1 else int(children[0] == "+")
        return KeywordClause("", least, span_of(children[0], children[-1]))

    # ------------------------------------------------------------ clauses

    def where(self, children: list[Any]) -> KeywordClause:
        strategy = children[1] if isinstance(children[1], StrategyName) else None
        condition = children[-2] if not isinstance(children[-2], Token) else None
        span = span_of(children[0], children[-1])
        if strategy is None and condition is None:
            raise Problem("empty braces", span, "write a condition, or leave WHERE out")
        return KeywordClause("WHERE", (strategy, condition), span)

    def strategy(self, children: list[Any]) -> StrategyName:
        return StrategyName(intern_token(children[0]), tuple(children[2:-1:2]), span_of(children[0], children[-1]))

    def listed(self, children: list[Token]) -> ListedVariable:
        return ListedVariable(intern_token(children[0]), len(children) > 1, span_of(children[0], children[-1]))

    def errors(self, children: list[Token]) -> KeywordClause:
        if children[1] != "<=":
            raise Problem("ERRORS has an upper bound", span_of(children[1], children[1]), "write ERRORS <= 1")
        budget = _whole(children[4]) if len(children) > 3 else None
        if budget == 0:
            raise Problem("BUDGET 0 keeps nothing", span_of(children[4], children[4]), "write a greater number")
        span = span_of(children[0], children[-1])
        return KeywordClause("ERRORS", Errors(_whole(children[2]), budget, span), span)

    def having(self, children: list[Any]) -> KeywordClause:
        return KeywordClause("HAVING", children[1], span_of(children[0], children[1]))

    def returned(self, children: list[Any]) -> KeywordClause:
        items: tuple[Named | AllAttributes, ...] = children[1]
        return KeywordClause("RETURN", items, span_of(children[0], items[-1]))

    def mode(self, children: list[Token]) -> KeywordClause:
        return KeywordClause(children[0].upper(), None, span_of(children[0], children[1]))

    # ------------------------------------------------------------ expressions

    def item(self, children: list[Any]) -> ItemReference:
        variable, attribute = children[0], children[-1]
        place: ItemIndex = ""
        if len(children) > 3:
            place = _place(variable, children[2])
        return ItemReference(intern_token(variable), place, intern_token(attribute), span_of(variable, attribute))

    def place(self, children: list[Token]) -> Token:
        return children[0]

    def items_of(self, children: list[Token]) -> ItemReference:
        place: ItemIndex = "..i-1" if children[2].type == "EARLIER" else "[]"
        name = intern_token(children[-1]) if children[-1].type == "ATTRIBUTE" else ""
        return ItemReference(intern_token(children[0]), place, name, span_of(children[0], children[-1]))

    def alike(self, children: list[Token]) -> EquivalenceTest:
        names = tuple(Reference("", intern_token(token), span_of(token, token)) for token in children[1::2])
        return EquivalenceTest(names, span_of(children[0], children[-1]))


def _place(variable: Token, place: Token) -> ItemIndex:
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
    if not token.isdecimal() or len(token) > _MOST_DIGITS:
        raise Problem("this has to be a whole number", span_of(token, token), "such as 1 or 2")
    return int(token)


def _check_order(clauses: list[KeywordClause]) -> None:
    """Raises Problem if a clause is out of order or repeated."""
    for before, clause in pairwise(clauses):
        one, other = _ORDER.index(before.word), _ORDER.index(clause.word)
        if one == other:
            raise Problem(f"{clause.word} is there twice", clause.span, "remove one of them")
        if one > other:
            hint = (
                "the order is WHERE, ERRORS, WITHIN, HAVING, RETURN, ALL MATCHES or EARLIEST MAXIMAL and "
                "NON OVERLAPPING, PUBLISH"
            )
            raise Problem(f"{clause.word} stands behind {before.word}", clause.span, hint)
        if before.word == "ALL" and clause.word in ("EARLIEST", "NON"):
            raise Problem("ALL MATCHES beside another mode", before.span, "write one of them")
