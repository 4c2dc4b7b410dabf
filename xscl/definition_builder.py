"""Builds the syntax tree of a definition of events: the rule `definition` of xscl.lark."""

from __future__ import annotations

from typing import Any

from lark import Token

from xscl.algebra.comparisons import is_number
from xscl.algebra.expressions import Call, Span
from xscl.builder import Builder
from xscl.event_syntax import DefinedAttribute, EventDefinition


class DefinitionBuilder(Builder):
    """The parser's callbacks for definitions. Their blocks and operands are built as those of queries are."""

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
