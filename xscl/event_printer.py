"""Prints the syntax trees of event statements as canonical text, which parses back to an equal tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common.errors import InvalidValue
from xscl.algebra.expressions import Number, String
from xscl.event_expressions import (
    Alike,
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
from xscl.pattern_syntax import (
    Alternatives,
    AnyOrder,
    Component,
    LetterOf,
    NoEvent,
    OneEvent,
    Repetition,
    Sequenced,
    StrategyName,
)
from xscl.syntax import Window
from xscl.windows import window_text

_STRONG = {Either: 0, Both: 1, Negated: 2, EventCompare: 3, IsNull: 3, Minus: 6}
"""How strongly operators bind. What is not here binds strongest; operations have 4 and 5."""


def event_query_text(query: EventQuery) -> str:
    """An event query as text on one line.

    Raises:
        InvalidValue: if a string holds a line break, which no string literal can.
    """
    publish = "" if query.publish is None else f" PUBLISH {query.publish}"
    return _query(query) + publish


def _query(query: EventQuery | Inner) -> str:
    if isinstance(query.stream, Sequenced):
        return _pattern(query.stream, query.select, query.within)
    select = "" if query.select is None else f"SELECT {', '.join(map(_item, query.select))} "
    within = "" if query.within is None else f" WITHIN {window_text(query.within.us)}"
    return f"{select}FROM {_stream(query.stream)}{within}"


def _item(item: Named | AllAttributes) -> str:
    if isinstance(item, AllAttributes):
        return "*"
    text = _expr(item.expr)
    is_named = isinstance(item.expr, Reference | ItemReference) and item.expr.name == item.name
    return text if is_named else f"{text} AS {item.name}"


# ---------------------------------------------------------------- streams


def _stream(node: EventStream) -> str:
    match node:
        case StreamName(name=name):
            return name
        case Inner():
            return f"({_query(node)})"
        case Filtered(condition=condition, source=source):
            return f"FILTER{{{_expr(condition)}}} {_source(source)}"
        case Grouped(items=items, by=by, over=over, source=source):
            parts = [", ".join(map(_item, items))]
            parts += [f"BY {', '.join(one.name for one in by)}"] if by else []
            parts += [f"OVER {window_text(over.us)}"] if over else []
            return f"AGGREGATE{{{' '.join(parts)}}} {_source(source)}"
        case Sequence(left=left, right=right, condition=condition):
            braces = "" if condition is None else f"{{{_expr(condition)}}}"
            return f"{_stream(left)} NEXT{braces} {_source(right)}"
        case Iteration(left=left, right=right, chooses=chooses, continues=continues, sets=sets):
            ways = [("" if one is None else _expr(one)) for one in (chooses, continues)]
            braces = ", ".join([*ways, ", ".join(map(_item, sets))]).rstrip(" ")
            return f"{_stream(left)} FOLD{{{braces}}} {_source(right)}"
        case Together(left=left, right=right):
            return f"{_stream(left)} UNION {_source(right)}"


def _source(node: EventStream) -> str:
    """A stream where the grammar has a source."""
    return f"({_stream(node)})" if isinstance(node, Sequence | Iteration | Together) else _stream(node)


# ---------------------------------------------------------------- patterns


def _pattern(body: Sequenced, select: tuple[Named | AllAttributes, ...] | None, within: Window | None) -> str:
    strategy = "" if body.strategy is None else f" {_strategy(body.strategy)}"
    braces = "" if body.where is None else _expr(body.where)
    errors = body.errors
    parts = [f"PATTERN SEQ({_word(body.components)})"]
    parts += [f"WHERE{strategy} {{{braces}}}"] if strategy or braces else []
    parts += [f"ERRORS <= {errors.most}"] if errors else []
    parts += [f"BUDGET {errors.budget}"] if errors and errors.budget is not None else []
    parts += [f"WITHIN {window_text(within.us)}"] if within else []
    parts += [f"HAVING {_expr(body.having)}"] if body.having is not None else []
    parts += [f"RETURN {', '.join(map(_item, select))}"] if select is not None else []
    parts += ["EARLIEST MAXIMAL"] if body.mode.maximal else []
    parts += ["NON OVERLAPPING"] if body.mode.apart else []
    return " ".join(parts)


def _strategy(node: StrategyName) -> str:
    listed = ", ".join(f"{one.name}[]" if one.many else one.name for one in node.variables)
    return f"{node.name}({listed})" if listed else node.name


def _word(components: tuple[Component, ...]) -> str:
    return ", ".join(map(_component, components))


def _component(node: Component) -> str:
    match node:
        case OneEvent(stream=stream, variable=variable, many=many):
            return f"{stream.name}+ {variable}[]" if many else f"{stream.name} {variable}"
        case NoEvent(component=inner):
            return f"~({_component(inner)})"
        case AnyOrder(components=components):
            return f"SET({_word(components)})"
        case LetterOf(stream=stream, needed=needed):
            return f"{stream.name}!" if needed else stream.name
        case Alternatives(words=words):
            return f"({' | '.join(map(_word, words))})"
        case Repetition(part=part, least=least):
            return _component(part) + {0: "*", 1: "+"}.get(least, f"{{{least},}}")


# ---------------------------------------------------------------- expressions


def _expr(node: EventExpr) -> str:
    return _PRINTERS[type(node)](node)


def _strength(node: EventExpr) -> int:
    if isinstance(node, Operation):
        return 4 if node.op in "+-" else 5
    return _STRONG.get(type(node), 7)


def _at_least(strength: int, node: EventExpr) -> str:
    """An operand, in parentheses if it binds more weakly."""
    text = _expr(node)
    return text if _strength(node) >= strength else f"({text})"


def _operation(node: Operation) -> str:
    own = _strength(node)
    return f"{_at_least(own, node.left)} {node.op} {_at_least(own + 1, node.right)}"


def _reference(node: Reference) -> str:
    return f"{node.side}.{node.name}" if node.side else node.name


def _event_of(node: ItemReference) -> str:
    place = {"": "", "LEN": f"[{node.variable}.LEN]", "[]": "[]"}.get(node.place, f"[{node.place}]")
    return f"{node.variable}{place}.{node.name}" if node.name else f"{node.variable}{place}"


def _string(node: String) -> str:
    if "\n" in node.value:
        raise InvalidValue(f"a string literal cannot hold a line break: {node.value!r}")
    return '"' + node.value.replace('"', '""') + '"'


_PRINTERS: dict[type, Callable[[Any], str]] = {
    Reference: _reference,
    ItemReference: _event_of,
    Alike: lambda node: f"[{', '.join(one.name for one in node.names)}]",
    Measure: lambda node: node.name,
    String: _string,
    Number: lambda node: node.text,
    Percentage: lambda node: f"{node.text}%",
    Window: lambda node: window_text(node.us),
    Null: lambda _: "NULL",
    Operation: _operation,
    Minus: lambda node: f"-{_at_least(6, node.arg)}",
    EventCall: lambda node: f"{node.name}({', '.join(map(_expr, node.args))})",
    EventCompare: lambda node: f"{_at_least(4, node.left)} {node.op} {_at_least(4, node.right)}",
    IsNull: lambda node: f"{_at_least(4, node.value)} IS {'NOT ' if node.negated else ''}NULL",
    Both: lambda node: " AND ".join(_at_least(2, arg) for arg in node.args),
    Either: lambda node: " OR ".join(_at_least(1, arg) for arg in node.args),
    Negated: lambda node: f"NOT {_at_least(2, node.arg)}",
}
"""What prints the nodes of each class."""
