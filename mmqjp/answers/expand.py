"""Expands matches on rows of R_T to the plan nodes that subscribe to them (thesis, Algorithm 3): windows, bindings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mmqjp.answers.joint import JointBindings
from mmqjp.answers.operators import Expanded, Operators, StepContext
from mmqjp.answers.quota import NEVER, Account, OutOfSteps, Steps
from mmqjp.documents.records import Inputs, Records
from mmqjp.queries.model import Target
from mmqjp.queries.registry import Registry


@dataclass(frozen=True, slots=True)
class Match:
    """A row of R_outT: the shared row of R_T, one or two documents, and their nodes in the template's numbering."""

    row: int
    docid1: int
    docid2: int | None
    nodes: Sequence[int]

    @property
    def docids(self) -> tuple[int, ...]:
        """The documents, in the query's order."""
        return (self.docid1,) if self.docid2 is None else (self.docid1, self.docid2)


class Expansion:
    """Expands the matches of one step to the plan nodes that subscribe to their rows."""

    def __init__(self, registry: Registry, records: Records, operators: Operators, context: StepContext) -> None:
        self._registry, self._records, self._operators, self._context = registry, records, operators, context
        self._bindings = JointBindings()

    def expand(self, matches: Iterable[Match]) -> Iterator[tuple[Match, Inputs, list[Expanded]]]:
        """Yields each match with its documents and the results that it gives."""
        for match in matches:
            inputs = Inputs(self._records[docid] for docid in match.docids)
            arrival = inputs.arrival
            found: list[Expanded] = []
            for target in self._registry.of_row(match.row):
                if self._context.serves(target.owner) and _in_time(target, inputs):
                    accounts = self._operators.of(target.owner).accounts_for(
                        target.owner, self._context, inputs, arrival
                    )
                    if accounts:
                        found += self._within_quota(target, match, inputs, arrival, accounts)
            yield match, inputs, found

    def closed(self, rows: Iterable[int]) -> dict[int, int]:
        """Maps rows of R_T to the arrival from which on nobody wants their matches. Rows without one are left out."""
        if not self._context.accounts.is_limited():
            return {}
        closed = {row: max(map(self._cutoff, self._registry.of_row(row)), default=NEVER) for row in rows}
        return {row: arrival for row, arrival in closed.items() if arrival < NEVER}

    def _cutoff(self, target: Target) -> int:
        """Returns the arrival from which on a target gets nothing."""
        return self._operators.of(target.owner).cutoff(target.owner, self._context)

    def _within_quota(
        self, target: Target, match: Match, inputs: Inputs, arrival: int, accounts: list[Account]
    ) -> list[Expanded]:
        """Returns what a match gives a target, up to where all accounts have exceeded their quota."""
        found: list[Expanded] = []
        owner, on_match = target.owner, self._operators.of(target.owner).on_match
        steps = Steps(allowed := max(account.steps(arrival) for account in accounts))
        live = accounts
        try:
            steps.take()
            for binding in self._bindings.of(target, inputs, match.nodes, steps):
                item = on_match(owner, self._context, match.row, inputs, binding, steps)
                if item is None:
                    continue
                if not item.duplicate:
                    live = [account for account in live if account.take_output(arrival)]
                    if not live:
                        break
                found.append(item)
        except OutOfSteps:
            pass
        for account in accounts:
            account.take_steps(arrival, allowed - steps.left)
        return found


def _in_time(target: Target, inputs: Inputs) -> bool:
    if len(inputs) == 1:
        return True
    left, right = inputs
    if target.op == "FOLLOWED BY" and not left.t1 < right.t0:
        return False
    return inputs.t1 - inputs.t0 <= target.window
