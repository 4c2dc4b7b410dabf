"""The rows of R_T that queries share: identical conjunctive queries have one row."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from common.quick import quick
from templates.template import Canonical, Shape, canonical_row, canonical_shape

INFINITE = 2**63 - 1
"""The window `INF` in column `wl`, in microseconds."""

RowKey = tuple[int, tuple[int, ...]]
"""A row as it is stored: its template, and its variables in the order of the nodes of the template."""


@quick
@dataclass(frozen=True, slots=True)
class Row:
    """A row of R_T: the variables of the nodes of a template, and the largest window of its subscribers, in
    microseconds. `ordered` says that all of them are FOLLOWED BY: then the right document begins when the left one
    ends, or later.
    """

    id: int
    template: int
    variables: tuple[int, ...]
    window: int
    ordered: bool


class SharedRow:
    """A row of R_T with the windows and operators of its subscribers, counted."""

    __slots__ = (
        "_heap", "_unordered", "_window", "_windows", "id", "key", "slot_at", "subscribers", "template", "variables",
    )  # fmt: skip

    def __init__(self, row_id: int, template: int, variables: tuple[int, ...]) -> None:
        self.id, self.template, self.variables = row_id, template, variables
        self.key: tuple[object, ...] = ()
        """The key of all identical conjunctive queries; empty if the row was restored and not looked for yet."""
        self.slot_at: tuple[int, ...] = ()
        """The node of the template at each position of the canonical order."""
        self._window = 0
        # All windows, counted; None while all subscribers have had the same one.
        self._windows: Counter[int] | None = None
        # The windows in the counter, negated. One without subscribers is removed when it gets to the top.
        self._heap: list[int]
        self._unordered = 0
        self.subscribers = 0

    def subscribe(self, window: int, ordered: bool) -> None:
        self._unordered += not ordered
        self.subscribers += 1
        if self._windows is None:
            if self.subscribers == 1 or window == self._window:
                self._window = window
                return
            self._windows, self._heap = Counter({self._window: self.subscribers - 1}), [-self._window]
        if window not in self._windows:
            heapq.heappush(self._heap, -window)
        self._windows[window] += 1
        self._window = -self._heap[0]

    def unsubscribe(self, window: int, ordered: bool) -> bool:
        """Removes a subscriber. True if any is left."""
        self._unordered -= not ordered
        self.subscribers -= 1
        if self._windows is not None:
            self._windows[window] -= 1
            while self._heap and not self._windows[-self._heap[0]]:
                del self._windows[-heapq.heappop(self._heap)]
            self._window = -self._heap[0] if self._heap else 0
        return self.subscribers > 0

    def row(self) -> Row:
        window = self._window if self.subscribers else 0
        return Row(self.id, self.template, self.variables, window, not self._unordered)


class FoundRow(NamedTuple):
    """The row of a conjunctive query, whether it is new, and the node of the template for each node of the query."""

    row: SharedRow
    is_new: bool
    slots: tuple[int, ...]


class SharedRows:
    """The rows by id. A row of an earlier run gets its key when a row with the same variables is looked for."""

    def __init__(self) -> None:
        self._by_number: dict[int, SharedRow] = {}
        self._by_key: dict[tuple[object, ...], SharedRow] = {}
        self._restored: dict[RowKey, list[SharedRow]] = {}
        self._next = 0

    def __getitem__(self, number: int) -> SharedRow:
        return self._by_number[number]

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def restore(self, template: int, variables: tuple[int, ...]) -> int:
        """Restores a row of an earlier run, and returns its id."""
        shared = self._new(template, variables)
        self._restored.setdefault(_same_variables(template, variables), []).append(shared)
        return shared.id

    def find(self, shape: Shape, number: int, template: Shape, variables: tuple[int, ...]) -> FoundRow:
        """Finds or makes the row of a conjunctive query. `shape` is that of the query; `template` is the shape of its
        template, which has the number `number` and may have its nodes in another order."""
        same = self._restored.pop(_same_variables(number, variables), ()) if self._restored else ()
        for restored in same:
            self._index(restored, canonical_row(template, restored.variables), range(len(variables)))
        canonical = canonical_row(shape, variables)
        shared = self._by_key.get(canonical.key)
        is_new = shared is None
        if shared is None:
            slots = tuple(range(len(variables)))  # keeps the query's own order, as in Table 6.4(a)
            if shape != template:
                node_at = {place: node for node, place in enumerate(canonical_shape(template).position)}
                slots = tuple(node_at[place] for place in canonical_shape(shape).position)
            by_slot = [0] * len(slots)
            for node, slot in enumerate(slots):
                by_slot[slot] = variables[node]
            shared = self._new(number, tuple(by_slot))
            self._index(shared, canonical, slots)
        return FoundRow(shared, is_new, tuple(shared.slot_at[place] for place in canonical.position))

    def has(self, shape: Shape, number: int, template: Shape, variables: tuple[int, ...]) -> bool:
        """Whether `find` would find a row. Changes nothing."""
        key = canonical_row(shape, variables).key
        same = list(self._restored.get(_same_variables(number, variables), ()))
        return key in self._by_key or any(canonical_row(template, row.variables).key == key for row in same)

    def remove(self, number: int) -> None:
        """Removes a row."""
        shared = self._by_number.pop(number)
        if shared.key:
            del self._by_key[shared.key]
            return
        same = _same_variables(shared.template, shared.variables)
        self._restored[same].remove(shared)
        if not self._restored[same]:
            del self._restored[same]

    def _new(self, template: int, variables: tuple[int, ...]) -> SharedRow:
        shared = self._by_number[self._next] = SharedRow(self._next, template, variables)
        self._next += 1
        return shared

    def _index(self, shared: SharedRow, canonical: Canonical, slots: Sequence[int]) -> None:
        """Indexes a row by its canonical form. `slots` has the node of the template for each node of the form."""
        slot_at = [0] * len(slots)
        for node, slot in enumerate(slots):
            slot_at[canonical.position[node]] = slot
        shared.key, shared.slot_at = canonical.key, tuple(slot_at)
        self._by_key[shared.key] = shared


def _same_variables(template: int, variables: tuple[int, ...]) -> RowKey:
    """A key that is equal for rows that may be identical."""
    return template, tuple(sorted(variables))
