"""The chains of some rows that lack letters, by key and vector."""

from __future__ import annotations

from collections.abc import Iterator

from pattern_stage.limits import Meter
from pattern_stage.matching.ages import Ages
from pattern_stage.matching.arrivals import Key
from pattern_stage.matching.cells import Cell
from pattern_stage.matching.history import History
from pattern_stage.matching.kept_trails import KeptTrails
from pattern_stage.matching.letters import Vector
from pattern_stage.operators import RowVectors


class NearStore(KeptTrails):
    """The chains of some rows."""

    def __init__(self, meter: Meter, rows: RowVectors) -> None:
        super().__init__(0, meter, rows)
        self.cells: dict[Key, dict[Vector, Cell]] = {}
        self.history: History | None = None
        """What is learnt for a BUDGET."""

    def kept_cells(self) -> Iterator[Cell]:
        """See KeptTrails."""
        for cells in self.cells.values():
            yield from cells.values()

    def pass_until(self, time: int) -> None:
        """Forgets what began too long before a time."""
        if self.history is not None:
            self.history.pass_until(time)
        for start, some in self.expiring(time):
            for key, one, vector in some:
                cells = self.cells.get(key, {})
                if isinstance(one, Cell) and cells.get(vector) is one and one.entries[-1].top <= start:
                    del cells[vector]
                    if not cells:
                        del self.cells[key]

    def remove_rows(self, gone: int) -> None:
        """Forgets rows, and what is kept for them alone."""
        self.rows &= ~gone
        for key, cells in list(self.cells.items()):
            for vector, cell in list(cells.items()):
                cell.without(gone)
                if not cell.entries:
                    del cells[vector]
            if not cells:
                del self.cells[key]

    def kept_beside(self, ages: Ages) -> None:
        """See KeptTrails. There is nothing beside cells."""
