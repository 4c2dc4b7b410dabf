"""Walks over documents: one for most steps, and one more from each node where a selective step matches.

Documents differ in their values, so value filters leave a different set of patterns in nearly every document. One walk
for all patterns would make new states for each document. Steps with the same value filters form a part. The states of a
part recur, and few parts begin in a document.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import compress, count
from operator import attrgetter
from typing import Protocol, cast

from xpath_stage.classes import NodeClass
from xpath_stage.columns import Columns
from xpath_stage.emissions import Walk
from xpath_stage.states import Label, State

_SELECTIVE = attrgetter("selective")


class Origins(Protocol):
    """Gives the states in which walks begin. The automaton does."""

    def root(self, stream: str, *, whole: bool = False) -> State: ...

    def parts(self, above: State, node: NodeClass) -> tuple[State, ...]: ...


def walk_over(
    root: State, documents: int, forest: Iterable[tuple[Label, int]], found: list[int], states: list[State] | None
) -> None:
    """Walks over the next documents of a forest of (label, number of children). Appends an entry for each element to
    `found` (see `Walk.elements`), and its state to `states`."""
    waiting: list[tuple[State, int]] = []
    state, left = root, 1
    for label, children in forest:
        below = state[label]
        if states is not None:
            states.append(below)
        left -= 1
        if children:
            found.append(below.inner)
            if left:
                waiting.append((state, left))
            state, left = below, children
        else:
            found.append(below.leaf)
            if not left:
                if waiting:
                    state, left = waiting.pop()
                else:
                    documents -= 1
                    if not documents:
                        return
                    state, left = root, 1


class PartWalks:
    """Walks for the selective steps, over columns that were walked without them."""

    def __init__(
        self, origins: Origins, columns: Columns, labels: Sequence[Label], attributes: Sequence[NodeClass]
    ) -> None:
        # Selective steps have filters, and then labels are classes.
        self._origins, self._columns = origins, columns
        self._labels, self._attributes = cast(Sequence[NodeClass], labels), attributes
        self._elements: list[tuple[int, int]] = []
        self._of_attributes: list[tuple[int, int]] = []
        self._matched: list[tuple[int, set[int | None]]] = []

    def walk(self, elements: list[int], states: list[State]) -> Walk:
        """The walk with what the parts find. `elements` and `states` are the result of the walk without them; both are
        changed."""
        first, past = self._columns.first, 0
        for number in compress(count(), map(_SELECTIVE, self._labels)):
            above = states[number].above
            if number < past or above is None:
                continue
            parts = self._origins.parts(above, self._labels[number])
            if parts and not self._begin(number, parts):
                place = bisect_right(first, number)
                begin = first[place - 1]
                past = first[place] if place < len(first) else len(states)  # a held document's end is not noted
                self._walk_whole(begin, past, elements, states)
        owners = zip(map(states.__getitem__, self._columns.owners), self._attributes, strict=True)
        found = [state[node].emission if state.reads_attributes else 0 for state, node in owners]
        columns = self._columns
        return Walk(elements, found, columns.owners, columns.places, self._elements, self._of_attributes)

    def _begin(self, number: int, parts: tuple[State, ...]) -> bool:
        """Walks over a node for the parts that begin there. False if one of their steps also matches a node around it:
        then nodes in both would be found twice."""
        matched = self._matched
        while matched and matched[-1][0] <= number:
            matched.pop()
        steps = {step for part in parts for step in part.contexts}
        if any(not steps.isdisjoint(around) for _, around in matched):
            return False
        end = number
        for part in parts:
            end = self._walk_part(part, number)
        matched.append((end, steps))
        return True

    def _walk_part(self, part: State, number: int) -> int:
        """Walks over an element and all in it. Returns the number after the last."""
        labels, counts = self._labels, self._columns.counts
        waiting: list[tuple[State, int]] = []
        state, left, below = part, 0, part
        while True:
            if below.binds:
                self._elements.append((number, below.emission))
            if below.reads_attributes:
                self._read_attributes(below, number)
            children = counts[number]
            number += 1
            if children:
                if left:
                    waiting.append((state, left))
                state, left = below, children
            elif not left:
                if not waiting:
                    return number
                state, left = waiting.pop()
            below = state[labels[number]]
            left -= 1

    def _read_attributes(self, state: State, number: int) -> None:
        for attribute in self._attributes_of(number, number + 1):
            if emission := state[self._attributes[attribute]].emission:
                self._of_attributes.append((attribute, emission))

    def _attributes_of(self, begin: int, end: int) -> range:
        """The attributes of a range of elements, by number."""
        owners = self._columns.owners
        return range(bisect_left(owners, begin), bisect_left(owners, end))

    def _walk_whole(self, begin: int, end: int, elements: list[int], states: list[State]) -> None:
        """Walks over a document again, for all steps together, and drops what was found in it before."""
        found: list[int] = []
        met: list[State] = []
        forest = zip(self._labels[begin:end], self._columns.counts[begin:end], strict=True)
        walk_over(self._origins.root(states[begin].stream, whole=True), 1, forest, found, met)
        elements[begin:end], states[begin:end] = found, met
        self._elements = [more for more in self._elements if more[0] < begin]
        attributes = self._attributes_of(begin, end)
        self._of_attributes = [more for more in self._of_attributes if more[0] < attributes.start]
        self._matched.clear()
