"""Prints syntax trees of queries and event statements as canonical text, which parses back to an equal tree."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from common.errors import InvalidValue
from common.tools import Remembered
from xscl import syntax
from xscl.algebra.values import (
    And,
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
    Step,
    String,
    VarPath,
    is_number,
)
from xscl.text import window_text

_STRONG = {Or: 0, And: 1, Not: 2, Compare: 3, syntax.IsNull: 3, syntax.Minus: 6}
"""Binding strengths of operators. Others bind strongest; operations have 4 and 5."""


def event_query_text(query: syntax.EventQuery) -> str:
    """An event query on one line. Raises InvalidValue if a string has a line break, which no string literal can."""
    publish = "" if query.publish is None else f" PUBLISH {query.publish}"
    return _event_query(query) + publish


def _event_query(query: syntax.EventQuery | syntax.Inner) -> str:
    if isinstance(query.stream, syntax.Sequenced):
        return _pattern(query.stream, query.select, query.within)
    select = "" if query.select is None else f"SELECT {', '.join(map(_event_item, query.select))} "
    within = "" if query.within is None else f" WITHIN {window_text(query.within.us)}"
    return f"{select}FROM {_stream(query.stream)}{within}"


def _event_item(item: syntax.Named | syntax.SelectStar) -> str:
    if isinstance(item, syntax.SelectStar):
        return "*"
    text = _expr(item.expr)
    is_named = isinstance(item.expr, syntax.Reference | syntax.ItemReference) and item.expr.name == item.name
    return text if is_named or not item.name else f"{text} AS {item.name}"


# ---------------------------------------------------------------- streams


def _stream(node: syntax.EventStream) -> str:
    match node:
        case syntax.StreamName(name=name):
            return name
        case syntax.Inner():
            return f"({_event_query(node)})"
        case syntax.Filtered(condition=condition, source=source):
            return f"FILTER{{{_expr(condition)}}} {_source(source)}"
        case syntax.Grouped(items=items, by=by, over=over, source=source):
            parts = [", ".join(map(_event_item, items))]
            parts += [f"BY {', '.join(one.name for one in by)}"] if by else []
            parts += [f"OVER {window_text(over.us)}"] if over else []
            return f"AGGREGATE{{{' '.join(parts)}}} {_source(source)}"
        case syntax.NextStream(left=left, right=right, condition=condition):
            braces = "" if condition is None else f"{{{_expr(condition)}}}"
            return f"{_stream(left)} NEXT{braces} {_source(right)}"
        case syntax.Iteration(left=left, right=right, chooses=chooses, continues=continues, sets=sets):
            ways = [("" if one is None else _expr(one)) for one in (chooses, continues)]
            braces = ", ".join([*ways, ", ".join(map(_event_item, sets))]).rstrip(" ")
            return f"{_stream(left)} FOLD{{{braces}}} {_source(right)}"
        case syntax.UnionStream(left=left, right=right):
            return f"{_stream(left)} UNION {_source(right)}"


def _source(node: syntax.EventStream) -> str:
    return (
        f"({_stream(node)})"
        if isinstance(node, syntax.NextStream | syntax.Iteration | syntax.UnionStream)
        else _stream(node)
    )


# ---------------------------------------------------------------- patterns


def _pattern(
    body: syntax.Sequenced, select: tuple[syntax.Named | syntax.SelectStar, ...] | None, within: syntax.Window | None
) -> str:
    strategy = "" if body.strategy is None else f" {_strategy(body.strategy)}"
    braces = "" if body.where is None else _expr(body.where)
    errors = body.errors
    parts = [f"PATTERN SEQ({_word(body.components)})"]
    parts += [f"WHERE{strategy} {{{braces}}}"] if strategy or braces else []
    parts += [f"ERRORS <= {errors.most}"] if errors else []
    parts += [f"BUDGET {errors.budget}"] if errors and errors.budget is not None else []
    parts += [f"WITHIN {window_text(within.us)}"] if within else []
    parts += [f"HAVING {_expr(body.having)}"] if body.having is not None else []
    parts += [f"RETURN {', '.join(map(_event_item, select))}"] if select is not None else []
    parts += ["EARLIEST MAXIMAL"] if body.mode.maximal else []
    parts += ["NON OVERLAPPING"] if body.mode.apart else []
    return " ".join(parts)


def _strategy(node: syntax.StrategyName) -> str:
    listed = ", ".join(f"{one.name}[]" if one.many else one.name for one in node.variables)
    return f"{node.name}({listed})" if listed else node.name


def _word(components: tuple[syntax.Component, ...]) -> str:
    return ", ".join(map(_component, components))


def _component(node: syntax.Component) -> str:
    match node:
        case syntax.OneEvent(stream=stream, variable=variable, many=many):
            return f"{stream.name}+ {variable}[]" if many else f"{stream.name} {variable}"
        case syntax.NoEvent(component=inner):
            return f"~({_component(inner)})"
        case syntax.AnyOrder(components=components):
            return f"SET({_word(components)})"
        case syntax.LetterOf(stream=stream, needed=needed):
            return f"{stream.name}!" if needed else stream.name
        case syntax.Alternatives(words=words):
            return f"({' | '.join(map(_word, words))})"
        case syntax.Repetition(part=part, least=least):
            return _component(part) + {0: "*", 1: "+"}.get(least, f"{{{least},}}")


# ---------------------------------------------------------------- expressions


def _expr(node: syntax.EventExpr) -> str:
    return _EVENT_PRINTERS[type(node)](node)


def _strength(node: syntax.EventExpr) -> int:
    if isinstance(node, syntax.ArithmeticExpr):
        return 4 if node.op in "+-" else 5
    return _STRONG.get(type(node), 7)


def _at_least(strength: int, node: syntax.EventExpr) -> str:
    text = _expr(node)
    return text if _strength(node) >= strength else f"({text})"


def _operation(node: syntax.ArithmeticExpr) -> str:
    own = _strength(node)
    return f"{_at_least(own, node.left)} {node.op} {_at_least(own + 1, node.right)}"


def _minus(node: syntax.Minus) -> str:
    arg = _at_least(6, node.arg)
    return f"- {arg}" if arg.startswith("-") else f"-{arg}"  # -- begins a comment


def _reference(node: syntax.Reference) -> str:
    return f"{node.side}.{node.name}" if node.side else node.name


def _event_of(node: syntax.ItemReference) -> str:
    place = {"": "", "LEN": f"[{node.variable}.LEN]", "[]": "[]"}.get(node.place, f"[{node.place}]")
    return f"{node.variable}{place}.{node.name}" if node.name else f"{node.variable}{place}"


_EVENT_PRINTERS: dict[type, Callable[[Any], str]] = {
    syntax.Reference: _reference,
    syntax.ItemReference: _event_of,
    syntax.EquivalenceTest: lambda node: f"[{', '.join(one.name for one in node.names)}]",
    syntax.TimeMeasure: lambda node: node.name,
    String: lambda node: _string(node.value),
    Number: lambda node: node.text,
    syntax.Percentage: lambda node: f"{node.text}%",
    syntax.Window: lambda node: window_text(node.us),
    syntax.Null: lambda _: "NULL",
    syntax.ArithmeticExpr: _operation,
    syntax.Minus: _minus,
    Call: lambda node: f"{node.name}({', '.join(map(_expr, node.args))})",
    Compare: lambda node: f"{_at_least(4, node.left)} {node.op} {_at_least(4, node.right)}",
    syntax.IsNull: lambda node: f"{_at_least(4, node.value)} IS {'NOT ' if node.negated else ''}NULL",
    And: lambda node: " AND ".join(_at_least(2, arg) for arg in node.args),
    Or: lambda node: " OR ".join(_at_least(1, arg) for arg in node.args),
    Not: lambda node: f"NOT {_at_least(2, node.arg)}",
}


_Node = (
    syntax.Script
    | syntax.Query
    | syntax.EventDefinition
    | syntax.DefinedAttribute
    | syntax.EventQuery
    | syntax.Once
    | syntax.SelectClause
    | syntax.SelectItem
    | syntax.Input
    | syntax.Window
    | Expr
    | Step
    | NameTest
    | Hole
)

_TEXT_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "{": "{{", "}": "}}"}
_TO_ESCAPE = re.compile("[&<>{}\t\n\r\x85\u2028\u2029]")


def to_xscl(node: _Node) -> str:
    """The node as XSCL on one line. Raises InvalidValue if a string has a line break, which no string literal can.

    >>> from xscl.parser import parse_script
    >>> to_xscl(parse_script("//book AS x1[author]"))
    'FROM S//book->x1[./author]'
    """
    return _PRINTERS[type(node)](node)


def around_window(script: syntax.Script) -> tuple[str, ...]:
    """The text of a script of one query: in two parts if it is a join, around its window."""
    (query,) = script.queries
    if query.publish is not None or not isinstance(query.source, syntax.Join):
        return (to_xscl(script),)
    return _beginning(script) + _selected(query) + _before_window(query.source), _behind_window(query.source)


def _beginning(script: syntax.Script) -> str:
    return "".join(f"DECLARE NAMESPACE {prefix} = {_string(uri)}; " for prefix, uri in script.namespaces)


def _script(script: syntax.Script) -> str:
    statements = script.statements
    if not statements:
        return _beginning(script).removesuffix("; ")
    return _beginning(script) + "; ".join(map(to_xscl, statements))


def _selected(query: syntax.Query) -> str:
    return "FROM " if query.select is None else f"SELECT {to_xscl(query.select)} FROM "


def _query(query: syntax.Query) -> str:
    publish = "" if query.publish is None else f" PUBLISH {query.publish}"
    if query.once is not None:
        publish += f" {_once(query.once)}"
    return f"{_selected(query)}{to_xscl(query.source)}{publish}"


def _definition(definition: syntax.EventDefinition) -> str:
    attributes = ", ".join(map(_attribute, definition.attributes))
    return f"DEFINE EVENT {definition.name} FROM {to_xscl(definition.block)} ({attributes})"


def _attribute(attribute: syntax.DefinedAttribute) -> str:
    operand = to_xscl(attribute.operand)
    stays = is_number(attribute.operand) and not operand.startswith("number(")  # the parser takes one number() off
    if attribute.number and not stays:
        operand = f"number({operand})"
    return f"{attribute.name} {'IN' if attribute.each else ':='} {operand}"


def _once(once: syntax.Once) -> str:
    within = "" if once.window is None else f" WITHIN {_window(once.window)}"
    return f"ONCE PER ({', '.join(map(to_xscl, once.keys))}){within}"


def _item(item: syntax.SelectItem) -> str:
    operand = to_xscl(item.operand)
    return operand if operand == item.name else f"{operand} AS {item.name}"


def _join(join: syntax.Join) -> str:
    return _before_window(join) + _window(join.window) + _behind_window(join)


def _before_window(join: syntax.Join) -> str:
    return f"{to_xscl(join.left)} {join.op} {{{to_xscl(join.pred)}, "


def _behind_window(join: syntax.Join) -> str:
    right = to_xscl(join.right)
    return f"}} ({right})" if isinstance(join.right, syntax.Join) else f"}} {right}"


def _steps(steps: tuple[Step, ...]) -> str:
    return "".join(map(_step, steps))


def _step(step: Step) -> str:
    binding = "" if step.var is None else f"->{step.var}"
    return f"{step.axis}{_test(step.test)}{binding}{''.join(map(_filter, step.filters))}"


def _bracketed(condition: Expr) -> str:
    return f"[{to_xscl(condition)}]"


_filter = Remembered(_bracketed)  # the parser gives equal filters one tree


def _test(test: NameTest) -> str:
    at = "@" if test.kind == "attribute" else ""
    return f"{at}{test.local}" if test.prefix is None else f"{at}{test.prefix}:{test.local}"


def _grouped(arm: Expr) -> str:
    return f"({to_xscl(arm)})" if isinstance(arm, And | Or) else to_xscl(arm)


def _string(value: str) -> str:
    if "\n" in value:
        raise InvalidValue(f"a string literal cannot hold a line break: {value!r}")
    return '"' + value.replace('"', '""') + '"'


def _window(window: syntax.Window) -> str:
    return window_text(window.us)


def _element(node: ElementConstructor) -> str:
    attributes = "".join(
        f' {name}="{"".join(_text(part, quoted=True) if isinstance(part, str) else to_xscl(part) for part in parts)}"'
        for name, parts in node.attributes
    )
    children = "".join(_text(part) if isinstance(part, str) else to_xscl(part) for part in node.children)
    end = f"{node.name} " if node.name.endswith("-") else node.name  # a hyphen before > is an arrow
    begin = f"{node.name}{attributes}" if attributes else end
    return f"<{begin}>{children}</{end}>" if children else f"<{node.name}{attributes}/>"


def _text(text: str, *, quoted: bool = False) -> str:
    escaped = _TO_ESCAPE.sub(lambda found: _TEXT_ESCAPES.get(found[0], f"&#{ord(found[0])};"), text)
    return escaped.replace('"', "&quot;") if quoted else escaped


_PRINTERS: dict[type, Callable[[Any], str]] = {
    syntax.Script: _script,
    syntax.Query: _query,
    syntax.EventDefinition: _definition,
    syntax.DefinedAttribute: _attribute,
    syntax.EventQuery: event_query_text,
    syntax.Once: _once,
    syntax.SelectStar: lambda _: "*",
    syntax.SelectItems: lambda node: ", ".join(map(_item, node.items)),
    syntax.SelectItem: _item,
    ElementConstructor: _element,
    Hole: lambda node: f"{{{to_xscl(node.operand)}}}",
    syntax.Block: lambda node: node.stream + _steps(node.steps),
    syntax.SubQuery: lambda node: f"(SELECT {to_xscl(node.select)} FROM {to_xscl(node.source)})",
    syntax.Join: _join,
    syntax.Window: _window,
    Step: _step,
    NameTest: _test,
    Rel: lambda node: "." + _steps(node.steps),
    VarPath: lambda node: node.var + _steps(node.steps),
    String: lambda node: _string(node.value),
    Number: lambda node: node.text,
    Call: lambda node: f"{node.name}({', '.join(map(to_xscl, node.args))})",
    Compare: lambda node: f"{to_xscl(node.left)} {node.op} {to_xscl(node.right)}",
    And: lambda node: " and ".join(map(_grouped, node.args)),
    Or: lambda node: " or ".join(map(_grouped, node.args)),
    Not: lambda node: f"not({to_xscl(node.arg)})",
}
