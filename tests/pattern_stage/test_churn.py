"""Rows and texts of removed statements are reused: nothing grows with the number of statements that there have been."""

from __future__ import annotations

from tests.support.event_agreement import Trial


def statement(number: int) -> str:
    return f'FROM FILTER{{a = "text {number}"}} S NEXT S'


def test_rows_and_texts_of_removed_statements_are_reused():
    trial = Trial({"S": (("a", "string"), ("x", "number"))}, statement(0))
    for begin in range(1, 2_001, 100):
        trial.add(begin, *map(statement, range(begin, begin + 100)))
        trial.kernel.remove(list(range(begin, begin + 100)))
        trial.texts.keep(trial.kernel.codes())
    assert len(trial.kernel.statements) == 1
    assert len(trial.texts) == 1
    assert len(trial.kernel.statements.ids) <= 256
    assert [len(mop.rows) for mop in trial.kernel.plan if mop.placement] == [1, 1]
    assert max(mop.rows.end for mop in trial.kernel.plan) <= 101
    trial.kernel.remove([0])
    assert len(trial.kernel.plan.mops) == 0
