"""Patterns without what differs from statement to statement: constants are parameters, streams are numbered inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pattern_stage.formula import rewritten_condition
from xscl.algebra.event_sequences import (
    Conjunct,
    Letter,
    Letters,
    NearPattern,
    OfItem,
    OneOf,
    Pattern,
    Repeated,
    Statement,
    Word,
)
from xscl.algebra.events import Events, Schema, Value

AnyPattern = Pattern | NearPattern
"""What a PATTERN statement looks for."""


def template(pattern: AnyPattern, leaf: Callable[[Value], Value]) -> AnyPattern:
    """Returns a pattern over inputs named `0`, `1`, ..., in the order of `inputs`, with its leaves replaced by `leaf`,
    as `with_leaves` does. Its window is 0, or None if it has none."""
    numbers = {name: str(place) for place, (name, _) in enumerate(inputs(pattern))}

    def source(events: Events) -> Events:
        return Events(numbers[events.stream], events.schema)

    within = None if pattern.within is None else 0
    if isinstance(pattern, NearPattern):
        return replace(pattern, letters=_over(pattern.letters, source), within=within)
    variables = tuple(replace(one, source=source(one.source)) for one in pattern.variables)
    return with_leaves(replace(pattern, variables=variables, within=within), leaf)


def with_leaves(pattern: AnyPattern, leaf: Callable[[Value], Value]) -> AnyPattern:
    """Returns a pattern with the leaves of its conditions replaced, always in the same order. What RETURN and the
    arguments of aggregates say stays as it is: it belongs to the shape of a statement.

    What is said of the first event of a variable and again of each other one is one condition, and is replaced once.
    """
    if isinstance(pattern, NearPattern):
        return pattern

    def tests(some: tuple[Conjunct, ...]) -> tuple[Conjunct, ...]:
        found: list[Conjunct] = []
        for one in some:
            before = (made for known, made in zip(some, found, strict=False) if _says_it_of_the_first(known, one))
            twin = next(before, None)
            condition = rewritten_condition(one.condition, leaf) if twin is None else twin.condition
            found.append(replace(one, condition=condition))
        return tuple(found)

    having = rewritten_condition(pattern.having, leaf)
    return replace(pattern, conjuncts=tests(pattern.conjuncts), kills=tests(pattern.kills), having=having)


def _says_it_of_the_first(known: Conjunct, one: Conjunct) -> bool:
    """Whether a conjunct says of the first event of a variable what another one says of each further one."""
    if (known.phase, one.phase) != ("first", "each") or known.variable != one.variable:
        return False
    if known.condition != one.condition or len(known.names) != len(one.names):
        return False
    return all(
        of == other or (isinstance(of, OfItem) and of.place == "first" and other == replace(of, place="each"))
        for (_, of), (_, other) in zip(known.names, one.names, strict=True)
    )


def inputs(pattern: AnyPattern) -> tuple[tuple[str, Schema], ...]:
    """Returns the streams that a pattern reads, sorted by name, each with its attributes."""
    return tuple(sorted(pattern.streams.items()))


def sees_before(pattern: AnyPattern) -> bool:
    """Returns whether what a statement tells depends on what was there before its first event: then statements that
    began at different times have nothing in common."""
    if isinstance(pattern, NearPattern):
        return pattern.apart or pattern.budget is not None
    leading = any(one.negated and one.group == 0 for one in pattern.variables)
    return pattern.apart or pattern.maximal or pattern.has_sets or leading


def needs_order(statement: Statement) -> bool:
    """Returns whether what a statement tells may depend on the order of events of one time, by what they are called."""
    if isinstance(statement, NearPattern):
        return statement.apart or statement.budget is not None
    return isinstance(statement, Pattern) and (statement.apart or statement.maximal)


def _over(letters: Letters, source: Callable[[Events], Events]) -> Letters:
    match letters:
        case Letter():
            return replace(letters, source=source(letters.source))
        case Repeated():
            return replace(letters, part=_over(letters.part, source))
        case Word() | OneOf():
            return replace(letters, parts=tuple(_over(part, source) for part in letters.parts))
