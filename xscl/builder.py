"""Builds the syntax tree while the parser reduces the rules of xscl.lark: one method per rule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import Any, cast

from lark import Token, Transformer

from common.tools import quick
from xscl.algebra.joins import JoinOp
from xscl.algebra.values import (
    DERIVED,
    NUMBERS,
    WITH_LITERAL,
    And,
    Axis,
    Call,
    Compare,
    ElementConstructor,
    Expr,
    Hole,
    NameTest,
    Not,
    Number,
    Or,
    Rel,
    Span,
    Step,
    String,
    VarPath,
)
from xscl.check_expressions import name_span
from xscl.problems import Problem
from xscl.syntax import (
    DEFAULT_STREAM,
    Block,
    Input,
    Join,
    Once,
    Query,
    SelectItem,
    SelectItems,
    SelectStar,
    SubQuery,
    Window,
)
from xscl.text import UNITS, unescaped, unit_hint, window_us

# Functions of a filter that apply to the filtered node when they are written without an argument. As a condition,
# those whose value is a string stand for `!= ""`.
_OF_CONTEXT = frozenset({"normalize-space", "string", "string-length", "number"})
_STRING_VALUED = ({"string"} | DERIVED.keys() | WITH_LITERAL.keys()) - NUMBERS - {"date"}


@quick
@dataclass(frozen=True, slots=True)
class Declaration:
    """`DECLARE NAMESPACE prefix = "uri"`."""

    prefix: str
    uri: str
    span: Span


@quick
@dataclass(frozen=True, slots=True)
class _Binding:
    var: Token
    span: Span


@quick
@dataclass(frozen=True, slots=True)
class _Filter:
    condition: Expr
    span: Span


@quick
@dataclass(frozen=True, slots=True)
class _Published:
    name: str
    once: Once | None
    span: Span


def _query(source: Input, select: Any, publish: list[_Published], span: Span) -> Query:
    if not publish:
        return Query(source, select, None, span)
    return Query(source, select, publish[0].name, span, publish[0].once)


def _span(first: Any, last: Any) -> Span:
    start: int = first.start_pos if isinstance(first, Token) else first.span.start  # type: ignore[assignment]  # made-up tokens have none
    end: int = last.end_pos if isinstance(last, Token) else last.span.end  # type: ignore[assignment]  # the same
    return _shared_span(start, end)


_shared_span = lru_cache(maxsize=65536)(Span)
"""A cached Span: very many statements have the same ones."""


def _name(token: Token) -> str:
    """Interns a token's text, so that equal names share an object."""
    return intern(str(token))


class Builder(Transformer[Token, Any]):
    """The parser's callbacks: each receives the children of its rule (tokens and nodes) and returns a node. Raises
    Problem for what the grammar accepts but the language does not."""

    # ------------------------------------------------------------ statements and queries

    def statement(self, children: list[Any]) -> Any:
        return children[0]

    def prolog(self, children: list[Token]) -> Declaration:
        return Declaration(str(children[2]), unquoted(children[4]), _span(children[0], children[4]))

    def select_query(self, children: list[Any]) -> Query:
        _, select, _, source, *publish = children
        return _query(source, select, publish, _span(children[0], children[-1]))

    def plain_query(self, children: list[Any]) -> Query:
        source, *publish = children[1:] if isinstance(children[0], Token) else children
        return _query(source, None, publish, _span(children[0], children[-1]))

    def publish(self, children: list[Any]) -> _Published:
        name, *once = children[1:]
        span = _span(name, children[-1])
        return _Published(str(name), Once(once[0].keys, once[0].window, span) if once else None, span)

    def once(self, children: list[Any]) -> Once:
        window = children[-1] if isinstance(children[-1], Window) else None
        keys = children[3:-3] if window else children[3:-1]
        return Once(tuple(keys[::2]), window, _span(children[0], children[-1]))

    def group(self, children: list[Any]) -> Input:
        query = cast(Query, children[1])
        if query.publish is not None:
            raise Problem(
                "PUBLISH is not allowed inside parentheses",
                name_span(query),
                "PUBLISH the inner query as its own query",
            )
        if isinstance(query.select, ElementConstructor):
            hint = "write SELECT with a list of items here, and the constructor in the outermost SELECT"
            raise Problem("an element constructor is not allowed inside parentheses", query.select.span, hint)
        if query.select is None:
            return query.source
        return SubQuery(query.select, query.source, _span(children[0], children[2]))

    def join(self, children: list[Any]) -> Join:
        left, right, window, pred = children[0], children[-1], children[-3], children[-5]
        op = cast(JoinOp, " ".join(word.type for word in children[1:-6]))  # terminals are called as they are written
        if window.us is None and op in ("NOT FOLLOWED BY", "NOT JOIN"):
            hint = "write how long to wait, such as 7 d; only what came before needs no end: NOT PRECEDED BY {.., INF}"
            raise Problem(f"{op} without end would never be decided", window.span, hint)
        return Join(op, left, right, pred, window, _span(left, right))

    def window(self, children: list[Token]) -> Window:
        span = _span(children[0], children[-1])
        if children[0].type == "INF":
            return Window(None, span)
        unit = str(children[1]) if len(children) > 1 else "s"
        if unit not in UNITS:
            raise Problem(f"unknown unit of time {unit}", _span(children[1], children[1]), unit_hint(unit))
        us = window_us(str(children[0]), unit, span)
        return Window(us, span)

    # ------------------------------------------------------------ paths

    def block(self, children: list[Any]) -> Block:
        first, span = children[0], _span(children[0], children[-1])
        if not isinstance(first, Token):
            return Block(DEFAULT_STREAM, tuple(children), span)
        if len(children) > 1 and isinstance(children[1], Step):
            return Block(_name(first), tuple(children[1:]), span)
        var = _name(children[-1]) if len(children) > 1 else None
        return Block(_name(first), (Step("/", NameTest("element", "*"), (), var, span),), span)

    def step(self, children: list[Any]) -> Step:
        return _step(cast(Axis, _name(children[0])), children[1], children[2:], _span(children[0], children[-1]))

    def first_step(self, children: list[Any]) -> Step:
        return _step("/", children[0], children[1:], _span(children[0], children[-1]))

    def test(self, children: list[Token]) -> NameTest:
        span = _span(children[0], children[-1])
        if children[0].type == "AT":
            prefix = _name(children[1]) if len(children) == 4 else None
            return NameTest("attribute", _name(children[-1]), prefix, span)
        prefix = _name(children[0]) if len(children) == 3 else None
        return NameTest("element", _name(children[-1]), prefix, span)

    def binding(self, children: list[Token]) -> _Binding:
        return _Binding(children[1], _span(children[0], children[1]))

    def filter(self, children: list[Any]) -> _Filter:
        return _Filter(_condition(children[1]), _span(children[0], children[2]))

    def rel(self, children: list[Any]) -> Rel:
        steps = children[1:] if isinstance(children[0], Token) else children
        return Rel(tuple(steps), _span(children[0], children[-1]))

    # ------------------------------------------------------------ expressions

    def or_(self, children: list[Any]) -> Or:
        return Or(_arms(children, Or), _span(children[0], children[-1]))

    def and_(self, children: list[Any]) -> And:
        return And(_arms(children, And), _span(children[0], children[-1]))

    def either(self, children: list[Any]) -> Or:
        return self.or_([_condition(child) for child in children])

    def both(self, children: list[Any]) -> And:
        return self.and_([_condition(child) for child in children])

    def compare(self, children: list[Any]) -> Compare:
        left, op, right = children
        return Compare(_name(op), left, right, _span(left, right))  # type: ignore[arg-type]  # the grammar has no others

    def parentheses(self, children: list[Any]) -> Expr:
        return cast(Expr, children[1])

    def call(self, children: list[Any]) -> Call | Not:
        name, args = _name(children[0]), tuple(children[2:-1:2])
        span = _span(children[0], children[-1])
        if name.lower() == "not" and len(args) == 1:
            return Not(_condition(args[0]), span)
        if not args and name in _OF_CONTEXT:
            args = (Rel((), span),)
        return Call(name, args, span)

    def var_path(self, children: list[Any]) -> VarPath:
        return VarPath(_name(children[0]), tuple(children[1:]), _span(children[0], children[-1]))

    def string(self, children: list[Token]) -> String:
        return String(unquoted(children[0]), _span(children[0], children[0]))

    def number(self, children: list[Token]) -> Number:
        return Number(str(children[0]), _span(children[0], children[0]))

    # ------------------------------------------------------------ SELECT

    def star(self, children: list[Token]) -> SelectStar:
        return SelectStar(_span(children[0], children[0]))

    def items(self, children: list[Any]) -> SelectItems:
        return SelectItems(tuple(children[::2]), _span(children[0], children[-1]))

    def item(self, children: list[Any]) -> SelectItem:
        operand, span = children[0], _span(children[0], children[-1])
        if len(children) > 1:
            return SelectItem(operand, str(children[2]), span)
        if not isinstance(operand, VarPath) or operand.steps:
            raise Problem("this SELECT item needs a name", span, "write AS and a name after it")
        return SelectItem(operand, operand.var, span)

    def element(self, children: list[Any]) -> ElementConstructor:
        name, span = children[1], _span(children[0], children[-1])
        attributes: dict[str, tuple[str | Hole, ...]] = {}
        at = 2
        while isinstance(children[at], _Attribute):
            attribute = children[at]
            if attribute.name in attributes:
                raise Problem(f"the attribute {attribute.name} is written twice", attribute.span, "remove one of them")
            attributes[attribute.name] = attribute.parts
            at += 1
        content: tuple[Any, ...] = ()
        if children[at].type == "TAG_CLOSE":
            content, end = tuple(children[at + 1 : -3]), children[-2]
            if str(end) != str(name):
                message = f"the end tag </{end}> does not match <{name}>"
                raise Problem(message, Span(end.start_pos, end.end_pos), f"write </{name}>")
        return ElementConstructor(str(name), tuple(attributes.items()), content, span)

    def attribute(self, children: list[Any]) -> _Attribute:
        return _Attribute(str(children[0]), tuple(children[3:-1]), _span(children[0], children[-1]))

    def qname(self, children: list[Token]) -> Token:
        text = ":".join(children[::2])
        return Token("QNAME", text, start_pos=children[0].start_pos, end_pos=children[-1].end_pos)

    def text(self, children: list[Token]) -> str:
        start = cast(int, children[0].start_pos)
        return unescaped(str(children[0]), start)

    def hole(self, children: list[Any]) -> Hole:
        return Hole(children[1], "", _span(children[0], children[2]))


@quick
@dataclass(frozen=True, slots=True)
class _Attribute:
    name: str
    parts: tuple[str | Hole, ...]
    span: Span


def unquoted(literal: str) -> str:
    quote = literal[0]
    return literal[1:-1].replace(quote * 2, quote)


def _step(axis: Axis, test: NameTest, suffixes: list[_Binding | _Filter], span: Span) -> Step:
    bindings = [suffix for suffix in suffixes if isinstance(suffix, _Binding)]
    filters = tuple(suffix.condition for suffix in suffixes if isinstance(suffix, _Filter))
    if not bindings:
        return Step(axis, test, filters, None, span)
    if len(bindings) > 1:
        raise Problem("a step can be bound to one variable only", bindings[1].span, "use the first variable for both")
    if bindings[0] is not suffixes[0] and bindings[0] is not suffixes[-1]:
        raise Problem("this binding stands between two filters", bindings[0].span, "move it before them or behind them")
    return Step(axis, test, filters, _name(bindings[0].var), span)


def _condition(expr: Expr) -> Expr:
    """An expression as a condition of a filter: a string is true if it is not empty."""
    if isinstance(expr, Call) and expr.name in _STRING_VALUED:
        return Compare("!=", expr, String("", expr.span), expr.span)
    return expr


def _arms(children: list[Any], kind: type[And] | type[Or]) -> tuple[Expr, ...]:
    arms: list[Expr] = []
    for child in children[::2]:
        arms.extend(child.args if isinstance(child, kind) else [child])
    return tuple(arms)
