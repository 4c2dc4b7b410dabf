"""From matches on rows of R_T to what each node of the plan gets (thesis, Algorithm 3): windows, bounds, bindings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mmqjp.answers.allowance import NEVER, Account, Steps, TooMuch
from mmqjp.answers.joint import JointBindings
from mmqjp.answers.operators import Expanded, Operators, Scope
from mmqjp.documents.records import Record, Records
from mmqjp.queries.model import Target
from mmqjp.queries.registry import Registry


@dataclass(frozen=True, slots=True)
class Match:
    """A row of R_outT: the shared row of R_T, the documents, the nodes by the template's numbering."""

    row: int
    docid1: int
    docid2: int | None
    nodes: Sequence[int]

    @property
    def docids(self) -> tuple[int, ...]:
        """The documents, in the query's order."""
        return (self.docid1,) if self.docid2 is None else (self.docid1, self.docid2)


class Expansion:
    """Expands the matches of one step to the nodes of the plan that subscribe to their rows."""

    def __init__(self, registry: Registry, records: Records, operators: Operators, scope: Scope) -> None:
        self._registry, self._records, self._operators, self._scope = registry, records, operators, scope
        self._bindings = JointBindings()

    def expand(self, matches: Iterable[Match]) -> Iterator[tuple[Match, list[Expanded]]]:
        """The matches, each with what it gives."""
        for match in matches:
            inputs = [self._records[docid] for docid in match.docids]
            arrival = max(record.arrival for record in inputs)
            found: list[Expanded] = []
            for target in self._registry.of_row(match.row):
                if self._scope.serves(target.owner) and _in_time(target, inputs):
                    takers = self._operators.of(target.owner).takers(target.owner, self._scope, inputs, arrival)
                    if takers:
                        found += self._taken(target, match, inputs, arrival, takers)
            yield match, found

    def closed(self, rows: Iterable[int]) -> dict[int, int]:
        """Those of rows of R_T of which nobody wants matches from some arrival on, and that arrival."""
        if not self._scope.accounts.is_cut():
            return {}
        closed = {row: max(map(self._until, self._registry.of_row(row)), default=NEVER) for row in rows}
        return {row: arrival for row, arrival in closed.items() if arrival < NEVER}

    def _until(self, target: Target) -> int:
        """The arrival from which on a target gets nothing."""
        return self._operators.of(target.owner).until(target.owner, self._scope)

    def _taken(
        self, target: Target, match: Match, inputs: list[Record], arrival: int, takers: list[Account]
    ) -> Iterator[Expanded]:
        """What a match gives a target, up to where it is too much for all that take it."""
        steps = Steps(allowed := max(account.steps(arrival) for account in takers))
        live = takers
        try:
            steps.take()
            for item in self._target(target, match, inputs, steps):
                if not item.again:
                    live = [account for account in live if account.take_output(arrival)]
                    if not live:
                        break
                yield item
        except TooMuch:
            pass
        for account in takers:
            account.take_steps(arrival, allowed - steps.left)

    def _target(self, target: Target, match: Match, inputs: list[Record], steps: Steps) -> Iterator[Expanded]:
        """What a match gives a target, without bounds."""
        operator = self._operators.of(target.owner)
        for place in self._bindings.of(target, inputs, match.nodes, steps):
            yield from operator.on_match(target.owner, self._scope, match.row, inputs, place, steps)


def _in_time(target: Target, inputs: list[Record]) -> bool:
    if len(inputs) == 1:
        return True
    left, right = inputs
    if target.op == "FOLLOWED BY" and not left.t1 < right.t0:
        return False
    return max(left.t1, right.t1) - min(left.t0, right.t0) <= target.window
