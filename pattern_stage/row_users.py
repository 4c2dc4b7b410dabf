"""Which statements have a row of a plan: those that share it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from common.distinct import distinct
from pattern_stage.columns import Ints
from pattern_stage.plan import Bound, Plan
from pattern_stage.statements import Statements

_NONE = np.zeros(0, np.int64)


class RowUsers:
    """The rows of statements in a plan, and the statements of each row. It is made at once for all that are given."""

    def __init__(self, plan: Plan, statements: Statements, numbers: Iterable[int]) -> None:
        self._rows: dict[int, dict[int, int]] = {}
        self._bound: dict[int, Bound] = {}
        by_form: dict[int, tuple[Bound, list[int], list[int]]] = {}
        for number in numbers:
            bound, row = statements.bound(number)
            self._bound[number] = bound
            _, ids, rows = by_form.setdefault(id(bound), (bound, [], []))
            ids.append(number)
            rows.append(row)
        users: dict[int, list[tuple[Ints, Ints]]] = {}
        for bound, ids, rows in by_form.values():
            for place, of in plan.rows_of(bound, np.array(rows, np.int64)):
                if bound.mops[place].placement is None:
                    continue
                users.setdefault(bound.mops[place].number, []).append((of, np.array(ids, np.int64)))
                for number, row in zip(ids, of.tolist(), strict=True):
                    self._rows.setdefault(number, {})[place] = row
        self._users: dict[int, tuple[Ints, Ints]] = {}
        for mop, pairs in users.items():
            keys, values = (np.concatenate(column) for column in zip(*pairs, strict=True))
            order = np.lexsort((values, keys))
            self._users[mop] = keys[order], values[order]

    def bound(self, statement: int) -> Bound:
        """Returns the form of a statement in the plan."""
        return self._bound[statement]

    def rows(self, statement: int) -> dict[int, int]:
        """Returns the rows of a statement, by the places of the nodes of its form; sources have none."""
        return self._rows.get(statement, {})

    def of(self, mop: int, row: int) -> Ints:
        """Returns the statements that have a row, in the order of their numbers."""
        rows, ids = self._users.get(mop, (_NONE, _NONE))
        first, last = np.searchsorted(rows, [row, row + 1])
        return distinct(ids[first:last])

    def sharing(self, statement: int) -> list[int]:
        """Returns the other statements that have a row in common with one."""
        bound = self._bound[statement]
        found = [self.of(bound.mops[place].number, row) for place, row in self.rows(statement).items()]
        return [number for number in distinct(np.concatenate([_NONE, *found])).tolist() if number != statement]
