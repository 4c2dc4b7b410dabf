"""Expansion: from matches to what they give the plan nodes that subscribe to their rows of R_T."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mmqjp.answers.looking import Looking
from mmqjp.answers.match import Match
from mmqjp.answers.operators import Expanded, Operator, StepContext
from mmqjp.answers.quota import NEVER
from mmqjp.documents.record import Inputs
from mmqjp.documents.records import StoredRecords
from mmqjp.queries.known_queries import KnownQueries
from mmqjp.queries.row_targets import RowPart


class Expansion:
    """Expands the matches of one step to the plan nodes that subscribe to their rows."""

    def __init__(
        self,
        queries: KnownQueries,
        records: StoredRecords,
        operator_of: Callable[[RowPart], Operator],
        context: StepContext,
    ) -> None:
        """`operator_of` returns the operator of the plan nodes of a part of a row."""
        self._queries, self._records, self._operator_of, self._context = queries, records, operator_of, context

    def expand(self, matches: Iterable[Match]) -> Iterator[tuple[Inputs, list[Expanded]]]:
        """Yields the documents of each match, and the results that it gives."""
        for match in matches:
            inputs = Inputs([self._records[docid] for docid in match.docids])
            found: list[Expanded] = []
            for part in self._queries.parts_of_row(match.row):
                found += self._operator_of(part).on_match(part, self._context, match, inputs)
            yield inputs, found

    def closed(self, rows: Iterable[int]) -> dict[int, int]:
        """Maps rows of R_T to the arrival from which on nobody wants their matches. Rows without one are left out."""
        if not self._context.accounts.is_limited():
            return {}
        closed = {row: max(map(self._cutoff, self._queries.parts_of_row(row)), default=NEVER) for row in rows}
        return {row: arrival for row, arrival in closed.items() if arrival < NEVER}

    def looking(self, row: int) -> list[Looking] | None:
        """Returns what bounds the looking at pairs with equal times, of all parts of a row that look at them; None if
        the row has other uses for them, or if some are looked at without a bound so far."""
        parts = self._queries.parts_of_row(row)
        if any(part.op != "FOLLOWED BY" for part in parts):
            return None
        found = [self._operator_of(part).looking(part, self._context) for part in parts]
        looking = [one for one in found if one is not None]
        return looking if all(one.is_limited for one in looking) else None

    def _cutoff(self, part: RowPart) -> int:
        """Returns the arrival from which on the plan nodes of a part get nothing."""
        return self._operator_of(part).cutoff(part, self._context)
