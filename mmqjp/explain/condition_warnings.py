"""Warns of conditions that can never hold, whatever the documents: of texts that no function gives, and of variables
that are taken for elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from xscl import to_xscl
from xscl.algebra.expressions import And, Call, Compare, Expr, Not, Or, Rel, Step, String, VarPath
from xscl.algebra.functions import derive
from xscl.problems import Problem
from xscl.scope import blocks
from xscl.syntax import Block, Input, Join, Query, SubQuery

_CASES = ("lower-case", "upper-case")
_PARTS = {"contains": "has {} in it", "starts-with": "begins with {}", "ends-with": "ends with {}"}
_TEXTS = (*_CASES, "normalize-space", "canonical-url", "host")
"""The functions that give a text, and that leave what they give as it is."""


def condition_warnings(query: Query) -> Iterator[Problem]:
    """The warnings for the conditions of a query with spans."""
    for condition in _conditions(query.source):
        for expr in _walk(condition):
            yield from _impossible(expr)
    for block in blocks(query.source):
        yield from _variables_in_filters(block)


def _conditions(source: Input) -> Iterator[Expr]:
    """The filters and predicates of a source."""
    match source:
        case Block():
            for step in source.steps:
                yield from step.filters
        case Join():
            yield from _conditions(source.left)
            yield from _conditions(source.right)
            yield source.pred
        case SubQuery():
            yield from _conditions(source.source)


def _parts(expr: Expr) -> Iterable[Expr]:
    """What a condition or an operand is made of, but for what stands in the filters of its paths."""
    match expr:
        case And() | Or() | Call():
            return expr.args
        case Not():
            return (expr.arg,)
        case Compare():
            return expr.left, expr.right
    return ()


def _walk(expr: Expr) -> Iterator[Expr]:
    """An expression and all in it."""
    yield expr
    parts = [condition for step in expr.steps for condition in step.filters] if isinstance(expr, Rel | VarPath) else ()
    for part in parts or _parts(expr):
        yield from _walk(part)


# ---------------------------------------------------------------- texts that no function gives


def _impossible(expr: Expr) -> Iterator[Problem]:
    """Warns if a function is compared with a text that it never gives."""
    match expr:
        case Compare(op="=" | "!=", left=Call(name=name), right=String() as literal):
            said, holds = "is {}", "always" if expr.op == "!=" else "never"
        case Compare(op="=" | "!=", left=String() as literal, right=Call(name=name)):
            said, holds = "is {}", "always" if expr.op == "!=" else "never"
        case Call(name="contains" | "starts-with" | "ends-with", args=(Call(name=name), String() as literal)):
            said, holds = _PARTS[expr.name], "never"
            if name not in _CASES:
                return
        case _:
            return
    text = literal.value
    if name not in _TEXTS or not text:
        return
    # A host alone is no address.
    given = derive(name, f"http://{text}/" if name == "host" and "/" not in text else text)
    if given != text:
        message = f"{name}(...) never {said.format(to_xscl(literal))}: this {holds} holds"
        hint = f"write {to_xscl(String(given))}" if given else f"{name}(...) is empty for such a text"
        yield Problem(message, literal.span, hint)


# ---------------------------------------------------------------- variables that are taken for elements


class _Bound(NamedTuple):
    """A node that a variable is bound to: by which step, and by which path from which step, if it is in a filter."""

    step: Step
    path: tuple[Step, ...]
    owner: Step | None


def _variables_in_filters(block: Block) -> Iterator[Problem]:
    names: dict[str, _Bound] = {}
    paths: list[tuple[Rel, Step]] = []
    _collect(block.steps, None, names, paths)
    for path, context in paths:
        first = path.steps[0] if path.steps else None
        if first is None or first.axis != "/" or first.test.kind != "element" or first.test.prefix is not None:
            continue
        name, bound = first.test.local, names.get(first.test.local)
        if bound is None or bound.step.test.local == name or path.span.start != first.test.span.start:
            continue  # it is no variable, or an element of that name is likely, or ./ in front of it says so
        hint = f"write the path from this filter's node to it, or ./{name} for an element"
        if bound.step is context or bound.owner is context:
            steps = (*(bound.path if bound.owner is context else ()), *path.steps[1:])
            meant = to_xscl(Rel(tuple(replace(step, filters=(), var=None) for step in steps)))
            hint = f"write {meant} (or ./{name}, if you mean an element of that name)"
        message = f"{name} is a variable, and filters know paths only: this is an element named {name}"
        yield Problem(message, first.test.span, hint)


def _collect(
    steps: tuple[Step, ...], owner: Step | None, names: dict[str, _Bound], paths: list[tuple[Rel, Step]]
) -> None:
    """Collects the variables of a path and of its filters, and the paths in its filters, each with its context."""
    for number, step in enumerate(steps, 1):
        if step.var is not None:
            names[step.var] = _Bound(step, steps[:number], owner)
        todo = list(step.filters)
        while todo:
            expr = todo.pop()
            if isinstance(expr, Rel):
                paths.append((expr, step))
                _collect(expr.steps, step, names, paths)
            todo += _parts(expr)
