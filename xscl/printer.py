"""Prints syntax trees as canonical text, which parses back to an equal tree."""

from __future__ import annotations

import re

from common.errors import InvalidValue
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
from xscl.builder import UNITS
from xscl.syntax import Block, Input, Join, Query, Script, Select, SelectItem, SelectItems, SelectStar, SubQuery, Window

Node = Script | Query | Select | SelectItem | Input | Window | Expr | Step | NameTest | Hole

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
    match node:
        case Script():
            declarations = [f"DECLARE NAMESPACE {prefix} = {_string(uri)}" for prefix, uri in node.namespaces]
            return "; ".join(declarations + [to_xscl(query) for query in node.queries])
        case Query():
            select = "" if node.select is None else f"SELECT {to_xscl(node.select)} "
            publish = "" if node.publish is None else f" PUBLISH {node.publish}"
            return f"{select}FROM {to_xscl(node.source)}{publish}"
        case SelectStar():
            return "*"
        case SelectItems():
            return ", ".join(to_xscl(item) for item in node.items)
        case SelectItem():
            operand = to_xscl(node.operand)
            return operand if operand == node.name else f"{operand} AS {node.name}"
        case ElementConstructor():
            return _element(node)
        case Hole():
            return f"{{{to_xscl(node.operand)}}}"
        case Block():
            return node.stream + _steps(node.steps)
        case SubQuery():
            return f"(SELECT {to_xscl(node.select)} FROM {to_xscl(node.source)})"
        case Join():
            return f"{to_xscl(node.left)} {node.op} {{{to_xscl(node.pred)}, {to_xscl(node.window)}{_right(node)}"
        case Window():
            return _window(node)
        case Step():
            binding = "" if node.var is None else f"->{node.var}"
            filters = "".join(f"[{to_xscl(condition)}]" for condition in node.filters)
            return f"{node.axis}{to_xscl(node.test)}{binding}{filters}"
        case NameTest():
            at = "@" if node.kind == "attribute" else ""
            return f"{at}{node.local}" if node.prefix is None else f"{at}{node.prefix}:{node.local}"
        case Rel():
            return "." + _steps(node.steps)
        case VarPath():
            return node.var + _steps(node.steps)
        case String():
            return _string(node.value)
        case Number():
            return node.text
        case Call():
            return f"{node.name}({', '.join(to_xscl(arg) for arg in node.args)})"
        case Compare():
            return f"{to_xscl(node.left)} {node.op} {to_xscl(node.right)}"
        case And():
            return " and ".join(_grouped(arg) for arg in node.args)
        case Or():
            return " or ".join(_grouped(arg) for arg in node.args)
        case Not():
            return f"not({to_xscl(node.arg)})"


def around_window(text: str, join: Join) -> tuple[str, str]:
    """What stands before and behind the window of a join, with which the `text` of a query ends."""
    behind = _right(join)
    return text.removesuffix(behind).removesuffix(_window(join.window)), behind


def _right(join: Join) -> str:
    """A join from behind its window on."""
    right = to_xscl(join.right)
    return f"}} ({right})" if isinstance(join.right, Join) else f"}} {right}"


def _steps(steps: tuple[Step, ...]) -> str:
    return "".join(to_xscl(step) for step in steps)


def _grouped(arm: Expr) -> str:
    return f"({to_xscl(arm)})" if isinstance(arm, And | Or) else to_xscl(arm)


def _string(value: str) -> str:
    if "\n" in value:
        raise InvalidValue(f"a string literal cannot hold a line break: {value!r}")
    return '"' + value.replace('"', '""') + '"'


def _window(window: Window) -> str:
    if window.us is None:
        return "INF"
    unit = next((unit for unit, us in reversed(UNITS.items()) if window.us and window.us % us == 0), "s")
    return f"{window.us // UNITS[unit]} {unit}"


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
