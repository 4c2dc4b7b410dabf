"""Lowers a checked DEFINE EVENT to what stage 1 evaluates, which `xscl.algebra.event_pattern` defines.

The block is one tree pattern. What an attribute with IN takes is a branch of it, which every match has. The path of an
attribute with := is none, because there is an event without such a node, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from xscl.algebra.comparisons import is_number
from xscl.algebra.event_pattern import ATTRIBUTE_END, EventAttribute, EventPattern
from xscl.algebra.events import Kind
from xscl.algebra.expressions import Call, Expr, VarPath
from xscl.algebra.functions import derivation
from xscl.algebra.normal import constant_text
from xscl.algebra.pattern import attach
from xscl.algebra.system_names import block_root, path_end
from xscl.event_syntax import EventDefinition
from xscl.lower_paths import PatternBuilder


def lower_definition(definition: EventDefinition, namespaces: Mapping[str, str]) -> EventPattern:
    """The pattern of a definition that `xscl.check` found no fault with. `namespaces` are the URIs of prefixes."""
    build = PatternBuilder(namespaces)
    block = definition.block
    root = block.steps[-1].var or block_root(0)
    pattern = build.path(block.steps, last_var=root)
    variables = [root]
    ends: list[str] = []
    attributes: list[EventAttribute] = []
    for number, attribute in enumerate(definition.attributes, 1):
        kind: Kind = "number" if attribute.number or is_number(attribute.operand) else "string"
        constant = constant_text(attribute.operand)
        if constant is not None:
            attributes.append(EventAttribute(attribute.name, kind, None, constant=constant))
            continue
        functions, operand = _functions(attribute.operand)
        variables.append(operand.var)
        if attribute.each:
            end = path_end(number)
            pattern = attach(pattern, operand.var, build.path(operand.steps, last_var=end))
            ends.append(end)
            attributes.append(EventAttribute(attribute.name, kind, end))
        else:
            path = build.path(operand.steps, last_var=ATTRIBUTE_END) if operand.steps else None
            attributes.append(EventAttribute(attribute.name, kind, operand.var, path, functions))
    return EventPattern(block.stream, pattern, tuple(dict.fromkeys((*variables, *ends))), tuple(attributes))


def _functions(operand: Expr) -> tuple[tuple[str, ...], VarPath]:
    """The functions of an operand, the innermost first, and what they are applied to."""
    if isinstance(operand, VarPath):
        return (), operand
    assert isinstance(operand, Call), "an attribute is a path, perhaps in functions"
    name = derivation(operand)
    assert name is not None, "its functions derive values"
    inner, path = _functions(operand.args[0])
    return (*inner, name), path
