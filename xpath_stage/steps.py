"""An index of the registered steps by stream, step above, axis, name, and satisfied filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from templates.catalog import SharedStep
from xpath_stage.masks import Bits, MaskIndex
from xpath_stage.names import decrease, owner_test, split_name
from xscl.algebra.expressions import NodeKind
from xscl.algebra.pattern import Test

Above = int | None
"""A step, or None for the document."""

StepKey = tuple[str, str, Above]
"""(stream, axis, step above)"""

StepsBelow = list[tuple[str, dict[Above, MaskIndex[int]]]]
"""For each axis, the steps by the step above them."""


class StepIndex:
    """The steps of all patterns, by id. Steps on the self axis are found with their parents.

    The `selective` steps, which are elements with filters that depend on values, are indexed apart from the others.
    """

    def __init__(self) -> None:
        self._steps: dict[int, SharedStep] = {}
        self._below: dict[bool, dict[tuple[str, str, Test], dict[Above, MaskIndex[int]]]] = {False: {}, True: {}}
        self._on_self: dict[int, set[int]] = {}
        self._attributes: Counter[StepKey] = Counter()
        self.selective: set[int] = set()

    def __getitem__(self, step_id: int) -> SharedStep:
        return self._steps[step_id]

    def add(self, step: SharedStep, required: Bits, selective: set[int]) -> None:
        """Adds a step, whose parent is known. A node must satisfy the filters `required`; `selective` are all filters
        that depend on values."""
        self._steps[step.id] = step
        if step.node.axis == ".":
            self._on_self.setdefault(_parent(step), set()).add(step.id)
            return
        is_selective = step.node.test.kind == "element" and not selective.isdisjoint(required)
        if is_selective:
            self.selective.add(step.id)
        by_parent = self._below[is_selective].setdefault((step.stream, step.node.axis, step.node.test), {})
        below = by_parent.get(step.parent)
        if below is None:
            below = by_parent[step.parent] = MaskIndex()
        below.add(step.id, required)
        if step.node.test.kind == "attribute":
            self._attributes[_way(step)] += 1

    def remove(self, step: SharedStep) -> None:
        """Removes a step that is not the parent of another."""
        del self._steps[step.id]
        if step.node.axis == ".":
            self._on_self[_parent(step)].discard(step.id)
            return
        key = (step.stream, step.node.axis, step.node.test)
        below = self._below[step.id in self.selective]
        self.selective.discard(step.id)
        by_parent = below[key]
        by_parent[step.parent].remove(step.id)
        if not by_parent[step.parent]:
            del by_parent[step.parent]
        if not by_parent:
            del below[key]
        if step.node.test.kind == "attribute":
            decrease(self._attributes, _way(step))

    def below(self, stream: str, kind: NodeKind, name: str, *, selective: bool) -> StepsBelow:
        """The steps that a node of this kind and canonical name may match: the selective ones or the others."""
        ways = ((axis, test) for axis in ("/", "//") for test in _tests_of(kind, name))
        found = ((axis, self._below[selective].get((stream, axis, test))) for axis, test in ways)
        return [(axis, by_parent) for axis, by_parent in found if by_parent]

    def on_self(self, step_id: int) -> set[int]:
        """The ids of the steps on the self axis below a step."""
        return self._on_self.get(step_id, set())

    def leads_to_attributes(self, way: StepKey) -> bool:
        return way in self._attributes

    def test_of(self, step_id: int) -> Test:
        """The test that nodes must pass to match a step."""
        step = self._steps[step_id]
        while step.node.axis == ".":
            step = self._steps[_parent(step)]
        return step.node.test

    def owner_test(self, step: SharedStep) -> Test | None:
        """The test that the owner of the attribute of a step must pass. None: no test."""
        parent = None if step.parent is None else self._steps[step.parent].node.test
        return owner_test(parent, step.node.axis)


def _tests_of(kind: NodeKind, name: str) -> Iterator[Test]:
    """The tests that a node of this kind and canonical name passes, if they are registered."""
    uri, local = split_name(name)
    for one in (uri, "*"):
        for other in (local, "*"):
            yield Test(kind, one, other)


def _way(step: SharedStep) -> StepKey:
    return step.stream, step.node.axis, step.parent


def _parent(step: SharedStep) -> int:
    assert step.parent is not None, "a step on the self axis has a parent"
    return step.parent
