"""Builds the syntax tree of event queries while the parser reduces the rules of events.lark: one method for each
rule."""

from __future__ import annotations

from dataclasses import dataclass
from sys import intern
from typing import Any, cast

from lark import Token, Transformer

from common.quick import quick
from xscl.algebra.expressions import Number, Span, String
from xscl.builder import unquoted
from xscl.event_expressions import (
    Both,
    Either,
    EventCall,
    EventCompare,
    EventExpr,
    IsNull,
    ItemReference,
    Measure,
    Minus,
    Negated,
    Null,
    Operation,
    Percentage,
    Reference,
    Side,
    StreamName,
)
from xscl.event_syntax import (
    AllAttributes,
    EventQuery,
    EventStream,
    Filtered,
    Grouped,
    Inner,
    Iteration,
    Named,
    Sequence,
    Together,
)
from xscl.problems import Problem
from xscl.syntax import Window
from xscl.windows import window_us

_SIDES = ("$", "$1", "$2")


@quick
@dataclass(frozen=True, slots=True)
class Clause:
    """A word and what is behind it, such as WITHIN and a window, or PUBLISH and a name."""

    word: str
    value: Any
    span: Span


def span_of(first: Any, last: Any) -> Span:
    """The span from the start of one token or node to the end of another."""
    start: int = first.start_pos if isinstance(first, Token) else first.span.start  # type: ignore[assignment]  # made-up tokens have none
    end: int = last.end_pos if isinstance(last, Token) else last.span.end  # type: ignore[assignment]  # the same
    return Span(start, end)


def text_of(token: Token) -> str:
    """The text of a token that many statements have: trees of equal names have one object."""
    return intern(str(token))


class EventBuilder(Transformer[Token, Any]):
    """The parser's callbacks for what all event statements have, and for queries: each takes the children of its rule
    (tokens and nodes) and returns a node.

    They raise Problem for what the grammar accepts and the language does not. The span of an operator is its word, as
    far as parentheses are around its operands.
    """

    # ------------------------------------------------------------ queries

    def selected(self, children: list[Any]) -> EventQuery:
        _, items, _, stream, *clauses = children
        return _query(items, stream, clauses, span_of(children[0], children[-1]))

    def plain(self, children: list[Any]) -> EventQuery:
        stream, *clauses = children[1:] if isinstance(children[0], Token) else children
        return _query(None, stream, clauses, span_of(children[0], children[-1]))

    def within(self, children: list[Any]) -> Clause:
        return Clause("WITHIN", children[1], span_of(children[0], children[1]))

    def publish(self, children: list[Token]) -> Clause:
        return Clause("PUBLISH", text_of(children[1]), span_of(children[1], children[1]))

    def items(self, children: list[Any]) -> tuple[Named | AllAttributes, ...]:
        return tuple(children[::2])

    def star(self, children: list[Token]) -> AllAttributes:
        return AllAttributes(span_of(children[0], children[0]))

    def named(self, children: list[Any]) -> Named:
        expr, span = children[0], span_of(children[0], children[-1])
        if len(children) > 1:
            return Named(expr, text_of(children[2]), span)
        return Named(expr, expr.name if isinstance(expr, Reference | ItemReference) else "", span)

    # ------------------------------------------------------------ streams

    def stream_name(self, children: list[Token]) -> StreamName:
        return StreamName(text_of(children[0]), span_of(children[0], children[0]))

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

    def sequence(self, children: list[Any]) -> Sequence:
        condition = children[3] if len(children) > 3 else None
        return Sequence(children[0], children[-1], condition, span_of(children[1], children[1]))

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

    def together(self, children: list[Any]) -> Together:
        return Together(children[0], children[2], span_of(children[1], children[1]))

    def named_list(self, children: list[Any]) -> tuple[Named, ...]:
        return tuple(children[::2])

    def by(self, children: list[Token]) -> Clause:
        names = tuple(Reference("", text_of(token), span_of(token, token)) for token in children[1::2])
        return Clause("BY", names, span_of(children[0], children[-1]))

    def over(self, children: list[Any]) -> Clause:
        return Clause("OVER", children[1], span_of(children[0], children[1]))

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
        return EventCompare(text_of(op), left, right, span_of(left, right))  # type: ignore[arg-type]  # the grammar has no others

    def is_null(self, children: list[Any]) -> IsNull:
        return IsNull(children[0], len(children) > 3, span_of(children[0], children[-1]))

    def operation(self, children: list[Any]) -> Operation:
        left, op, right = children
        return Operation(text_of(op), left, right, span_of(left, right))  # type: ignore[arg-type]  # the grammar has no others

    def minus(self, children: list[Any]) -> Minus:
        return Minus(children[1], span_of(children[0], children[1]))

    def parentheses(self, children: list[Any]) -> EventExpr:
        return cast(EventExpr, children[1])

    def call(self, children: list[Any]) -> EventCall:
        return EventCall(text_of(children[0]), tuple(children[2:-1:2]), span_of(children[0], children[-1]))

    def bare(self, children: list[Token]) -> Reference:
        return Reference("", text_of(children[0]), span_of(children[0], children[0]))

    def reference(self, children: list[Token]) -> Reference:
        side, span = str(children[0]), span_of(children[0], children[0])
        if side not in _SIDES:
            hint = "$1 is the left event, $2 the right one, and $ the latest in FOLD"
            raise Problem(f"there is no {side}", span, hint)
        return Reference(cast(Side, side), text_of(children[2]), span_of(children[0], children[2]))

    def measure(self, children: list[Token]) -> Measure:
        return Measure("DUR" if children[0].upper() == "DUR" else "GAP", span_of(children[0], children[0]))

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


def _query(select: Any, stream: EventStream, clauses: list[Clause], span: Span) -> EventQuery:
    within = next((clause.value for clause in clauses if isinstance(clause.value, Window)), None)
    publish = next((clause.value for clause in clauses if isinstance(clause.value, str)), None)
    return EventQuery(stream, select, within, publish, span)


def _window(token: Token) -> Window:
    """A number with or without a unit, or INF."""
    text, span = str(token), span_of(token, token)
    if token.type == "INF":
        return Window(None, span)
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip()
    return Window(window_us(number, text[len(number) :].strip() or "s", span), span)


def _arms(children: list[Any], kind: type[Both] | type[Either]) -> tuple[EventExpr, ...]:
    """The operands of a chain of AND or of OR, those of the same operator in parentheses included."""
    arms: list[EventExpr] = []
    for child in children[::2]:
        arms.extend(child.args if isinstance(child, kind) else [child])
    return tuple(arms)
