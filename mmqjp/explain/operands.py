"""Operands and conditions as reasons have them: the nodes that took part, with their texts, and where they stand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from xpath_stage.binder import Node
from xpath_stage.parse import ParsedDocument
from xscl import to_xscl
from xscl.algebra.expressions import And, Call, Compare, Expr, Not, Or, VarPath
from xscl.algebra.functions import derive
from xscl.algebra.normal import variables_of

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Around the number of a variable in a text. They are no characters, so no query has them."""

_NUMBERED = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


@dataclass(frozen=True, slots=True)
class Operand:
    """A node that took part: the name of its element, or of an attribute like "link/@href", its text, and the functions
    applied to the text, the innermost first. `document` is the place of its document in the output's `documents`; None
    for a node of another query's output. `node` is its id, as output lines have it."""

    name: str
    text: str
    functions: tuple[str, ...] = ()
    document: int | None = None
    node: int | str | None = field(default=None, compare=False)

    @property
    def value(self) -> str:
        """The text with the functions applied."""
        value = self.text
        for name in self.functions:
            value = derive(name, value)
        return value


@dataclass(frozen=True, slots=True)
class JoinedValue:
    """A value join that held: its operands, whose values are equal."""

    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class Condition:
    """Another condition on the documents that held: its text in parts, with the nodes where the query has variables."""

    parts: tuple[str | Operand, ...]

    @property
    def text(self) -> str:
        """The condition, in which nodes stand by their names."""
        return "".join(part if isinstance(part, str) else part.name for part in self.parts)


def operand_of(
    tree: ParsedDocument, node: Node, functions: tuple[str, ...], place: int, text: str | None = None
) -> Operand:
    """Returns a node of a document as an operand. `place` is that of the document in the output's; -1 if it has none.
    `text` is its text, if that is known."""
    element, attribute = node
    name, id = _local(str(tree.elements[element].tag)), f"{element}"
    if attribute:
        full = tree.attribute(element, attribute)[0]
        name, id = f"{name}/@{_local(full)}", f"{element}/@{full}"
    value = tree.string_value(*node) if text is None else text
    return Operand(name, value, functions, None if place < 0 else place, id if attribute else element)


def in_parts(expr: Expr, operands: Mapping[str, Operand | str]) -> tuple[str | Operand, ...]:
    """Returns a condition as text in parts, with operands, or the names of nodes, where it has variables."""
    variables = list(dict.fromkeys(variables_of(expr)))
    text = to_xscl(_with_numbers(expr, variables))
    parts: list[str | Operand] = []
    for place, part in enumerate(_NUMBERED.split(text)):
        if place % 2:
            parts.append(operands[variables[int(part)]])
        elif part:
            parts.append(part)
    return tuple(parts)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _with_numbers(expr: Expr, variables: list[str]) -> Expr:
    """A condition in which the numbers of variables stand for them."""
    match expr:
        case VarPath(var=var):
            return VarPath(f"{_OPEN}{variables.index(var)}{_CLOSE}")
        case Call(name=name, args=args):
            return Call(name, tuple(_with_numbers(arg, variables) for arg in args))
        case Compare(op=op, left=left, right=right):
            return Compare(op, _with_numbers(left, variables), _with_numbers(right, variables))
        case And(args=args):
            return And(tuple(_with_numbers(arg, variables) for arg in args))
        case Or(args=args):
            return Or(tuple(_with_numbers(arg, variables) for arg in args))
        case Not(arg=arg):
            return Not(_with_numbers(arg, variables))
    return expr
