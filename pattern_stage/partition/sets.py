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


def new_sets(lineage: Lineage) -> pa.Table | None:
    """Returns the sets of a part: `number`, and `refers`, their members. None if there are none."""
    table = lineage.table()
    new = table.filter(pa.array(table["number"].to_numpy() >= FIRST))
    return new.select(["number", "refers"]).combine_chunks() if len(new) else None


class SetNumbers:
    """The numbers of sets, in a part and in the driver."""

    def __init__(self, sets: pa.Table | None, lineage: Lineage) -> None:
        self._theirs = self._ours = np.zeros(0, np.int64)
        if sets is None:
            return
        members, sizes = flat(sets, "refers")
        groups = np.repeat(np.arange(len(sizes)), sizes)
        known = members >= 0
        ours = lineage.together(members[known].reshape(-1, 1), groups[known])
        order = np.argsort(theirs := ints(sets, "number"))
        self._theirs, self._ours = theirs[order], ours[order]

    def of(self, parts: Ints) -> Ints:
        """Returns parts with the driver's numbers."""
        if not len(self._theirs):
            return parts
        at = np.minimum(np.searchsorted(self._theirs, parts), len(self._theirs) - 1)
        return np.where(self._theirs[at] == parts, self._ours[at], parts)

    def in_state(self, state: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """Returns a saved state with the driver's numbers."""
        if not len(self._theirs):
            return dict(state)
        return {name: self._in_table(table) for name, table in state.items()}

    def _in_table(self, table: pa.Table) -> pa.Table:
        for place, name in enumerate(table.column_names):
            if name.endswith("parts"):
                numbers, sizes = flat(table, name)
                table = table.set_column(place, name, lists(self.of(numbers), sizes))
        return table
