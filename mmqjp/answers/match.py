"""A match: what stage 2 finds for a row of R_T, before it is expanded to those who subscribe to the row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Match(NamedTuple):
    """A row of R_outT: the shared row of R_T, one or two documents, and their nodes in the template's numbering."""

    row: int
    docid1: int
    docid2: int | None
    nodes: Sequence[int]

    @property
    def docids(self) -> tuple[int, ...]:
        """The documents, in the query's order."""
        return (self.docid1,) if self.docid2 is None else (self.docid1, self.docid2)
