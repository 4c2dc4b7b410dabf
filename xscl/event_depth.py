"""Finds event queries that are nested so deep that they would exhaust the stack."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

from xscl.algebra.expressions import String
from xscl.event_expressions import EventExpr
from xscl.event_syntax import EventQuery, EventStream, Named
from xscl.pattern_syntax import Component, Sequenced
from xscl.problems import Problem

MAX_TREE_DEPTH = 100
"""How deep operators, and the operations of an expression, may be nested."""

_WITH_PARTS = frozenset(
    {"stream", "select", "source", "left", "right", "condition", "chooses", "continues", "sets", "items", "expr"}
    | {"arg", "args", "value", "where", "having", "components", "component", "words", "part"}
)
_PARTS = {
    kind: tuple(field.name for field in fields(kind) if field.name in _WITH_PARTS)
    for kind in (EventQuery, Sequenced, *get_args(Component), *get_args(EventStream), *get_args(EventExpr), Named)
    if kind is not String
}
"""The fields of each kind of node that have nodes."""


def too_deep(query: EventQuery) -> Problem | None:
    """The problem of a tree that would exhaust the stack."""
    waiting: list[tuple[Any, int]] = [(query, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_TREE_DEPTH:
            message = f"nested more than {MAX_TREE_DEPTH} levels deep"
            return Problem(message, node.span, "PUBLISH a part of it, and read that stream")
        if node.__class__ is tuple:  # a word of alternatives
            waiting += [(one, depth) for one in node]
        for name in _PARTS.get(node.__class__, ()):
            child = getattr(node, name)
            if child.__class__ is tuple:
                waiting += [(one, depth + 1) for one in child]
            elif child is not None:
                waiting.append((child, depth + 1))
    return None
