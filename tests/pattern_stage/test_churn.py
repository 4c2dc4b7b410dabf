"""What statements that were removed took is taken again by others: nothing grows with how many there have been."""

from __future__ import annotations

from tests.support.event_kernel import Trial
from xscl.algebra.events import ALWAYS, Comparison, Constant, Events, Filter, Next, Part, Schema, Stream
from xscl.algebra.events import Attribute as Value

SCHEMA: Schema = (("a", "string"), ("x", "number"))


def statement(number: int) -> Stream:
    """The first event after one with a text and a number of its own."""
    source = Events("S", SCHEMA)
    chosen = Filter(source, Comparison("=", Value("left", "a", "string"), Constant(f"text {number}")))
    schema = (*((f"{name}_1", kind) for name, kind in SCHEMA), *SCHEMA)
    names: tuple[tuple[Part, str], ...] = (("left", "a"), ("left", "x"), ("right", "a"), ("right", "x"))
    return Next(chosen, source, ALWAYS, None, names, schema)


def test_rows_and_texts_of_removed_statements_are_taken_again():
    trial = Trial({"S": SCHEMA})
    trial.kernel.add(0, statement(0), -1)
    for begin in range(1, 2_001, 100):
        added = range(begin, begin + 100)
        for number in added:
            trial.kernel.add(number, statement(number), -1)
        trial.kernel.instances()  # brings them into the plan
        trial.kernel.remove(list(added))
        trial.texts.keep(trial.kernel.codes())
    assert len(trial.kernel.statements) == 1
    assert len(trial.texts) == 1
    assert len(trial.kernel.statements.ids) <= 256
    assert [len(mop.rows) for mop in trial.kernel.plan if mop.placement] == [1, 1]
    assert max(mop.rows.end for mop in trial.kernel.plan) <= 101
    trial.kernel.remove([0])
    assert len(trial.kernel.plan.mops) == 0
