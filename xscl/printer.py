"""Prints syntax trees as canonical text, which parses back to an equal tree."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from common.errors import InvalidValue
from common.remembered import Remembered
from xscl.algebra.comparisons import is_number
from xscl.algebra.expressions import (
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
)
from xscl.event_printer import event_query_text
from xscl.event_syntax import DefinedAttribute, EventDefinition, EventQuery
from xscl.script import Script
from xscl.syntax import (
    Block,
    Input,
    Join,
    Once,
    Query,
    Select,
    SelectItem,
    SelectItems,
    SelectStar,
    SubQuery,
    Window,
)
from xscl.windows import window_text

Node = (
    Script
    | Query
    | EventDefinition
    | DefinedAttribute
    | EventQuery
    | Once
    | Select
    | SelectItem
    | Input
    | Window
    | Expr
    | Step
    | NameTest
    | Hole
)

_TEXT_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "{": "{{", "}": "}}"}
_TO_ESCAPE = re.compile("[&<>{}\t\n\r\x85\u2028\u2029]")


def to_xscl(node: Node) -> str:
    """The node as XSCL text on one line.

    Raises:
        InvalidValue: if a string holds a line break, which no string literal can.

    >>> from xscl.parser import parse_script
    >>> to_xscl(parse_script("//book AS x1[author]"))
    'FROM S//book->x1[./author]'
    """
    return _PRINTERS[type(node)](node)


def around_window(script: Script) -> tuple[str, ...]:
    """The text of a script of one query: in two parts if it is a join, whose window stands between them."""
    (query,) = script.queries
    if query.publish is not None or not isinstance(query.source, Join):
        return (to_xscl(script),)
    return _beginning(script) + _selected(query) + _before_window(query.source), _behind_window(query.source)


def _beginning(script: Script) -> str:
    return "".join(f"DECLARE NAMESPACE {prefix} = {_string(uri)}; " for prefix, uri in script.namespaces)


def _script(script: Script) -> str:
    statements = script.statements
    if not statements:
        return _beginning(script).removesuffix("; ")
    return _beginning(script) + "; ".join(map(to_xscl, statements))


def _selected(query: Query) -> str:
    return "FROM " if query.select is None else f"SELECT {to_xscl(query.select)} FROM "


def _query(query: Query) -> str:
    publish = "" if query.publish is None else f" PUBLISH {query.publish}"
    if query.once is not None:
        publish += f" {_once(query.once)}"
    return f"{_selected(query)}{to_xscl(query.source)}{publish}"


def _definition(definition: EventDefinition) -> str:
    attributes = ", ".join(map(_attribute, definition.attributes))
    return f"DEFINE EVENT {definition.name} FROM {to_xscl(definition.block)} ({attributes})"


def _attribute(attribute: DefinedAttribute) -> str:
    operand = to_xscl(attribute.operand)
    if attribute.number and not is_number(attribute.operand):
        operand = f"number({operand})"
    return f"{attribute.name} {'IN' if attribute.each else ':='} {operand}"


def _once(once: Once) -> str:
    within = "" if once.window is None else f" WITHIN {_window(once.window)}"
    return f"ONCE PER ({', '.join(map(to_xscl, once.keys))}){within}"


def _item(item: SelectItem) -> str:
    operand = to_xscl(item.operand)
    return operand if operand == item.name else f"{operand} AS {item.name}"


def _join(join: Join) -> str:
    return _before_window(join) + _window(join.window) + _behind_window(join)


def _before_window(join: Join) -> str:
    return f"{to_xscl(join.left)} {join.op} {{{to_xscl(join.pred)}, "


def _behind_window(join: Join) -> str:
    right = to_xscl(join.right)
    return f"}} ({right})" if isinstance(join.right, Join) else f"}} {right}"


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


def _window(window: Window) -> str:
    return window_text(window.us)


def _element(node: ElementConstructor) -> str:
    attributes = "".join(
        f' {name}="{"".join(_text(part, quoted=True) if isinstance(part, str) else to_xscl(part) for part in parts)}"'
        for name, parts in node.attributes
    )
    children = "".join(_text(part) if isinstance(part, str) else to_xscl(part) for part in node.children)
    return f"<{node.name}{attributes}>{children}</{node.name}>" if children else f"<{node.name}{attributes}/>"


def _text(text: str, *, quoted: bool = False) -> str:
    escaped = _TO_ESCAPE.sub(lambda found: _TEXT_ESCAPES.get(found[0], f"&#{ord(found[0])};"), text)
    return escaped.replace('"', "&quot;") if quoted else escaped


_PRINTERS: dict[type, Callable[[Any], str]] = {
    Script: _script,
    Query: _query,
    EventDefinition: _definition,
    DefinedAttribute: _attribute,
    EventQuery: event_query_text,
    Once: _once,
    SelectStar: lambda _: "*",
    SelectItems: lambda node: ", ".join(map(_item, node.items)),
    SelectItem: _item,
    ElementConstructor: _element,
    Hole: lambda node: f"{{{to_xscl(node.operand)}}}",
    Block: lambda node: node.stream + _steps(node.steps),
    SubQuery: lambda node: f"(SELECT {to_xscl(node.select)} FROM {to_xscl(node.source)})",
    Join: _join,
    Window: _window,
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
"""What prints the nodes of each class."""
