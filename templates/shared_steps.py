"""What stage 1 evaluates for all that is registered: shared steps, edges between them, and values of them."""

from __future__ import annotations

from dataclasses import dataclass

from common.quick import quick
from templates.shared_rows import Row
from xscl.algebra.pattern import PatternNode

Edge = tuple[int, int]

Functions = tuple[str, ...]
"""The names of a chain of functions, in the order of application."""


@quick
@dataclass(frozen=True, slots=True)
class SharedStep:
    """A shared variable, which is a step of a definition. `parent` is the step above it, None for a step from the
    document. `node` has axis, test, conditions and functions, and as children the branches that must exist. `chain` is
    the number of its chain of functions, 0 if it has none."""

    id: int
    stream: str
    parent: int | None
    node: PatternNode
    chain: int = 0

    @property
    def key(self) -> tuple[str, int | None, str]:
        return self.stream, self.parent, str(self.node)


@quick
@dataclass(frozen=True, slots=True)
class Change:
    """What stages 1 and 2 must add or drop: steps, edges, variables whose values are needed; and rows of R_T."""

    steps: tuple[SharedStep, ...] = ()
    edges: tuple[Edge, ...] = ()
    values: tuple[int, ...] = ()
    rows: tuple[Row, ...] = ()
