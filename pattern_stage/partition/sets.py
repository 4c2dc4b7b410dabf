"""The numbers of sets of events that a part has found: theirs are changed for those that the driver gives."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from pattern_stage.columns import Ints
from pattern_stage.lineage import Lineage
from pattern_stage.saved import flat, ints, lists

FIRST = 1 << 61
"""The first number of a set in a part: the driver gives none as great."""

_NONE = np.zeros(0, np.int64)


def new_sets(lineage: Lineage) -> pa.Table | None:
    """Returns the sets of a part: `number`, and `refers`, their members. None if there are none."""
    table = lineage.table()
    new = table.filter(pa.array(table["number"].to_numpy() >= FIRST))
    return new.select(["number", "refers"]).combine_chunks() if len(new) else None


class Numbers:
    """Numbers of events that others have given, and ours for them. Those that they do not give are left alone."""

    def __init__(self, theirs: Ints, ours: Ints) -> None:
        """`theirs` ascend."""
        self._theirs, self._ours = theirs, ours

    def of(self, parts: Ints) -> Ints:
        """Returns parts with our numbers."""
        if not len(self._theirs):
            return parts
        at = np.minimum(np.searchsorted(self._theirs, parts), len(self._theirs) - 1)
        return np.where(self._theirs[at] == parts, self._ours[at], parts)

    def in_state(self, state: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """Returns a saved state with our numbers."""
        if not len(self._theirs):
            return dict(state)
        return {name: self._in_table(table) for name, table in state.items()}

    def _in_table(self, table: pa.Table) -> pa.Table:
        for place, name in enumerate(table.column_names):
            if name.endswith("parts"):
                numbers, sizes = flat(table, name)
                table = table.set_column(place, name, lists(self.of(numbers), sizes))
        return table


def set_numbers(sets: pa.Table | None, lineage: Lineage) -> Numbers:
    """Returns the driver's numbers for the sets of a part."""
    if sets is None:
        return Numbers(_NONE, _NONE)
    members, sizes = flat(sets, "refers")
    groups = np.repeat(np.arange(len(sizes)), sizes)
    known = members >= 0
    ours = lineage.together(members[known].reshape(-1, 1), groups[known])
    order = np.argsort(theirs := ints(sets, "number"))
    return Numbers(theirs[order], ours[order])
