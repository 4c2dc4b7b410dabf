"""Cuts a query block into stages: from its first step on, each asks for one more name or condition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from xscl.algebra.expressions import And, Compare, Expr, Rel, Span, Step


@dataclass(frozen=True, slots=True)
class Stage:
    """The beginning of a block, as a path whose `steps` bind nothing. `span` is that of what it asks for last.

    That is the name of the last step of the path `above`, or a `condition` on the node at its end.
    """

    steps: tuple[Step, ...]
    span: Span
    above: tuple[Step, ...]
    condition: Expr | None = None


def stages(steps: tuple[Step, ...]) -> list[Stage]:
    """The stages of a path from the document, in the order of the text. A document that matches one matches those
    before it, and one that matches the last matches the path."""
    return list(_stages(steps))


def _stages(steps: tuple[Step, ...]) -> Iterator[Stage]:
    done: tuple[Step, ...] = ()
    for step in steps:
        bare = replace(step, filters=(), var=None)
        yield Stage((*done, bare), Span(step.span.start, step.test.span.end), (*done, bare))
        kept: tuple[Expr, ...] = ()
        for arm in (arm for condition in step.filters for arm in _arms(condition)):
            here, found = (*done, replace(bare, filters=kept)), kept
            for path in _needed(arm):
                for stage in _stages(path.steps):
                    filters = (*found, Rel(stage.steps))
                    yield replace(stage, steps=(*done, replace(bare, filters=filters)), above=(*here, *stage.above))
                found = (*found, Rel(_unbound(path.steps)))
            if isinstance(arm, Rel):
                kept = found
            else:
                kept = (*kept, arm)
                yield Stage((*done, replace(bare, filters=kept)), arm.span, here, arm)
        done = (*done, replace(bare, filters=kept))


def _arms(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, And):
        for arg in expr.args:
            yield from _arms(arg)
    else:
        yield expr


def _needed(arm: Expr) -> Iterator[Rel]:
    """The paths that must match for an arm to hold: a comparison with a path that matches nothing is false."""
    match arm:
        case Rel():
            yield arm
        case Compare():
            yield from (side for side in (arm.left, arm.right) if isinstance(side, Rel))


def _unbound(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """A path that binds nothing."""
    return stages(steps)[-1].steps if steps else ()
