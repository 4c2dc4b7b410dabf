"""What DEFINE EVENT means: a tree pattern over documents of a stream, and where an event's attributes come from."""

from __future__ import annotations

from dataclasses import dataclass

from common.quick import quick
from xscl.algebra.events import Kind, Schema
from xscl.algebra.pattern import PatternNode


@quick
@dataclass(frozen=True, slots=True)
class EventAttribute:
    """An attribute: the value of a node, with functions applied to it, the innermost first.

    The node is that of the variable `var` of the pattern, or, with `path`, the first that the path leads to from there,
    the end of which has the variable ATTRIBUTE_END. Without such a node the attribute is NULL. If `var` is None, the
    attribute is a constant.
    """

    name: str
    kind: Kind
    var: str | None
    path: PatternNode | None = None
    functions: tuple[str, ...] = ()
    constant: str = ""


ATTRIBUTE_END = "#end"
"""The variable at the end of an attribute's path."""


@quick
@dataclass(frozen=True, slots=True)
class EventPattern:
    """A definition of events. There is an event for each distinct choice of nodes of `variables` in a document that a
    match of the pattern has: the first is the block's root."""

    stream: str
    pattern: PatternNode
    variables: tuple[str, ...]
    attributes: tuple[EventAttribute, ...]

    @property
    def schema(self) -> Schema:
        """The names and kinds of the attributes."""
        return tuple([(attribute.name, attribute.kind) for attribute in self.attributes])
