"""The outputs of a store by their numbers, which a site's reader reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from mmqjp.present.following import matches_between
from mmqjp.present.match import Match
from mmqjp.tables.lookup import span_of_outputs
from mmqjp.web.readers import Selects

MOST_ROWS, SECONDS = 100_000, 10.0
"""The bounds of the questions."""


@dataclass(frozen=True, slots=True)
class StoredOutputs:
    """The outputs of a store, as the hub reads them."""

    reader: Selects

    def version(self) -> object:
        """Returns something that is another once there are newer outputs."""
        return self.reader.version()

    def span(self) -> tuple[int, int]:
        """Returns the numbers of the oldest output that is kept and of the newest one; (0, -1) if there is none."""
        return span_of_outputs(self._select)

    def after(self, seq: int, until: int) -> Sequence[Match]:
        """Returns the outputs with greater numbers, up to one."""
        return matches_between(self._select, seq, until)

    def _select(self, sql: str) -> pa.Table:
        return self.reader.select(sql, MOST_ROWS, SECONDS)
