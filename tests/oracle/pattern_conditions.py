"""The oracle's conditions of PATTERN statements: conjuncts, the units that they are about, and whether they hold
(docs/semantics.md, section 23).

In particular:
- `v[].x` outside aggregates means every event of v, and `v[i].x`, `v[i-1].x`, `v[..i-1]` every event but the first: a
  conjunct holds if it does for all of them, for all combinations if it mentions several variables so. One that is
  tested as its variable gets events is tested with the new one.
- A condition is cut into conjuncts after NOT has been pushed to the atoms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from tests.oracle.event_syntax import Both, Cmp, Cond, Expr, Fn, IsNull, Len, Not, Of, Op, Test
from tests.oracle.event_values import AGGREGATES, Bound, Scope, Values, holds, of_items
from tests.oracle.events import Event

Phase = Literal[0, 1, 2]
"""Of a unit: the first event of a variable, or its only one; a further one; all of them."""

Events = Mapping[str, Sequence[Event]]
"""The events of each variable."""


@dataclass(frozen=True)
class Conjunct:
    """A conjunct, or, `negated`, that it does not hold, as NOT is pushed to its atoms."""

    cond: Cond
    negated: bool = False

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(variable for variable, _ in self._mentions())

    def last(self, order: Sequence[str]) -> tuple[int, Phase] | None:
        """The last unit that it mentions, where `order` has the variables in their order."""
        return max(((order.index(variable), phase) for variable, phase in self._mentions()), default=None)

    def is_of_further(self, variable: str) -> bool:
        """Whether it is about the second and later events of a variable only."""
        places = ("i", "i-1", "..i-1")
        return any(of.variable == variable and of.place in places for one in leaves(self.cond) for of in of_items(one))

    def _mentions(self) -> Iterator[tuple[str, Phase]]:
        for one in leaves(self.cond):
            if isinstance(one, Len):
                yield one.variable, 2
            elif isinstance(one, Of):
                yield one.variable, {"": 0, "1": 0, "LEN": 2}.get(one.place, 1)  # type: ignore[misc]  # no others
            else:
                for of in of_items(one):
                    yield of.variable, 2 if of.place == "[]" else 1

    def holds(self, events: Events, new: str | None = None) -> bool:
        """Whether it holds for the events of the variables, for all that it may mean; `new` is the variable of which it
        means the last event only."""
        ranges: dict[str, range] = {}
        for one in leaves(self.cond):
            for of in of_items(one):
                count = len(events[of.variable])
                if of.variable == new:
                    ranges[of.variable] = range(count - 1, count)
                elif of.place in ("i", "i-1", "..i-1"):
                    ranges[of.variable] = range(1, count)
                elif of.place == "[]" and isinstance(one, Of):
                    ranges[of.variable] = range(count)
        values: dict[str, tuple[Values, ...]] = {
            variable: tuple(one.values for one in found) for variable, found in events.items()
        }
        for places in product(*ranges.values()):
            scope = Scope({}, 0, bound=Bound(values, dict(zip(ranges, places, strict=True))))
            if not holds(Not(self.cond) if self.negated else self.cond, scope):
                return False
        return True


def conjuncts(cond: Cond | None, *, negated: bool = False) -> list[Conjunct]:
    """The conjuncts of a condition."""
    match cond:
        case None:
            return []
        case Not():
            return conjuncts(cond.arg, negated=not negated)
        case Both() if (cond.word == "AND") is not negated:
            return [one for arg in cond.args for one in conjuncts(arg, negated=negated)]
    return [Conjunct(cond, negated)]


def leaves(node: Cond | Expr) -> Iterator[Expr]:
    """The references and aggregates in a condition."""
    match node:
        case Not():
            yield from leaves(node.arg)
        case Both():
            for arg in node.args:
                yield from leaves(arg)
        case Cmp() | Op():
            yield from leaves(node.left)
            yield from leaves(node.right)
        case IsNull():
            yield from leaves(node.value)
        case Fn() if node.name in AGGREGATES:
            yield node
        case Test() | Fn():
            for one in node.args:
                yield from leaves(one)
        case _:
            yield node
