"""Expansion: from matches to what they give the plan nodes that subscribe to their rows of R_T."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mmqjp.answers.match import Match
from mmqjp.answers.operators import Expanded, Operators, StepContext
from mmqjp.answers.quota import NEVER
from mmqjp.documents.record import Inputs
from mmqjp.documents.records import Records
from mmqjp.queries.registry import Registry
from mmqjp.queries.row_targets import RowPart


class Expansion:
    """Expands the matches of one step to the plan nodes that subscribe to their rows."""

    def __init__(self, registry: Registry, records: Records, operators: Operators, context: StepContext) -> None:
        self._registry, self._records, self._operators, self._context = registry, records, operators, context

    def expand(self, matches: Iterable[Match]) -> Iterator[tuple[Inputs, list[Expanded]]]:
        """Yields the documents of each match, and the results that it gives."""
        for match in matches:
            inputs = Inputs([self._records[docid] for docid in match.docids])
            found: list[Expanded] = []
            for part in self._registry.parts_of_row(match.row):
                operator = self._operators.of(part.first.owner)
                found += operator.on_match(part, self._context, match, inputs)
            yield inputs, found

    def closed(self, rows: Iterable[int]) -> dict[int, int]:
        """Maps rows of R_T to the arrival from which on nobody wants their matches. Rows without one are left out."""
        if not self._context.accounts.is_limited():
            return {}
        closed = {row: max(map(self._cutoff, self._registry.parts_of_row(row)), default=NEVER) for row in rows}
        return {row: arrival for row, arrival in closed.items() if arrival < NEVER}

    def _cutoff(self, part: RowPart) -> int:
        """Returns the arrival from which on the plan nodes of a part get nothing."""
        return self._operators.of(part.first.owner).cutoff(part, self._context)
