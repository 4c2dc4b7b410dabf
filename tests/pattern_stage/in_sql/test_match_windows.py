"""Patterns in two phases, windows by SQL and then matches, find what the oracle does in the windows of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from pattern_stage.columns import Columns
from pattern_stage.in_sql.kernel import (
    Database,
    DuckDBDatabase,
    IntervalMatcher,
    ReplayKernel,
    SparkDatabase,
    has_match_windows,
)
from pattern_stage.kernel import Kernel, Results
from pattern_stage.lineage import Lineage
from pattern_stage.partition.kernel import PartitionedKernel, SparkRunner
from pattern_stage.values import Texts
from tests.generate.seeds import seeds
from tests.oracle import pattern_cases
from tests.oracle.event_syntax import Both, Cmp, Of, Window
from tests.oracle.pattern_cases import Given, brief, text
from tests.oracle.pattern_matches import Match
from tests.oracle.pattern_syntax import STRATEGIES, Absent, AnyOrder, Near, One, Pattern
from tests.oracle.test_pattern_sets import CHEMO, Q1
from tests.pattern_stage.test_exact_patterns import LATE, cases
from tests.pattern_stage.test_patterns import END, patterns
from tests.support.event_agreement import AnyKernel, MakeKernel, Run, Runner, assert_finds, lowered_texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Matching = Callable[[Texts, Lineage], IntervalMatcher]


def in_two_phases(database: Database, matching: Matching = Kernel) -> MakeKernel:
    def make(texts: Texts, lineage: Lineage, run: Run) -> AnyKernel:
        return ReplayKernel(texts, database, Kernel(texts, lineage), lambda: matching(texts, lineage))

    return make


class Recording(Kernel):
    """A matcher that remembers how many events it gets."""

    fed: list[int]

    def feed(self, events: Mapping[str, Columns]) -> list[Results]:
        Recording.fed = [number for some in events.values() for number in some.parts[:, 0].tolist()]
        return super().feed(events)


def matched(statement: Pattern | Near, *given: Given, database: Database) -> tuple[list[str], list[int]]:
    """What is told, and the events in windows that may have a match, by their numbers."""
    Recording.fed = []
    runner = Runner(pattern_cases._world(statement, given), Run((LATE,)), in_two_phases(database, Recording))
    runner.results()
    told = [brief(Match(bound, known, errors)) for bound, known, errors, _ in runner.told[0]]
    names = sorted(int(pattern_cases.number(runner.numbers.events[number])) for number in Recording.fed)
    return sorted(told, key=pattern_cases._numbers), names


# ---------------------------------------------------------------- the matches are those of the definition


@pytest.mark.parametrize("kind", ["run", "set"])
@pytest.mark.parametrize("seed", seeds(4, 1_500, first=60_000))
def test_random_patterns_on_duckdb(seed: int, kind: str):
    assert_finds(patterns(seed, kind), Run((END,)), in_two_phases(DuckDBDatabase()))


@pytest.mark.parametrize(("module", "test"), [one for one in cases() if "include_each_other" not in str(one.id)])
def test_two_phases_tell_what_the_case_says(module: ModuleType, test: Callable[[], None], monkeypatch):
    database = DuckDBDatabase()
    monkeypatch.setattr(module, "told", lambda statement, *given: matched(statement, *given, database=database)[0])
    test()


# ---------------------------------------------------------------- the windows are those of the paper


def test_m5_windows_of_patients(database: Database):
    told, fed = matched(Q1, CHEMO, database=database)
    assert len(told) == 11
    # Of the first patient the window of 1, of the second one those of 5 and 7: 4 begins none, 6 is nothing, 14 is late.
    assert fed == [1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13]


def test_each_way_to_prune_leaves_less():
    database = DuckDBDatabase()

    single = Pattern((AnyOrder((One("Chemo", "c"), One("Chemo", "p"))), One("Chemo", "b")), Q1.within)
    kinds = [text(name, "l", name.upper()) for name in "cpb"]
    patient = [Cmp("=", Of("c", "pid"), Of(other, "pid")) for other in "pb"]

    def left(*conditions: Cmp, **changed: object) -> list[int]:
        cond = Both("AND", conditions) if conditions else None
        return matched(replace(single, cond=cond, **changed), CHEMO, database=database)[1]  # type: ignore[arg-type]

    assert left() == [*range(1, 15)]
    assert left(*kinds) == [number for number in range(1, 15) if number != 6]
    assert left(*kinds, *patient) == left(*kinds, keys=("pid",)) == [1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13]
    assert left(*kinds, *patient, within=None) == [1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14]
    assert left(*kinds, *patient, within=Window("13")) == [5, 7, 8, 10, 12, 13]


def test_a_window_needs_as_many_events_as_variables():
    two = Pattern((AnyOrder((One("A", "a"), One("A", "b"))),), Q1.within)
    assert matched(two, ("A", "x", "- @1 | - @30 | - @40"), database=DuckDBDatabase()) == (
        ["2 | 3 @40", "3 | 2 @40"],
        [2, 3],
    )


def test_what_must_not_come_is_kept_by_its_own_equalities():
    about = Both("AND", (Cmp("=", Of("n", "x"), Of("a", "x")), Cmp("=", Of("b", "x"), Of("a", "x"))))
    guarded = Pattern((Absent("N", "n"), One("A", "a"), One("B", "b")), Q1.within, cond=about)
    given = ("A", "x", "p @20 | q @20"), ("B", "x", "p @30 | q @30"), ("N", "x", "p @16 | q @4 | r @16 | p @25")
    assert matched(guarded, *given, database=DuckDBDatabase()) == (["2 | 4 @30"], [1, 2, 3, 4, 5, 8])


def test_what_must_not_come_before_a_match_is_kept_for_the_next_start():
    guarded = Pattern((Absent("N", "n"), One("A", "a"), One("B", "b")), Q1.within)
    given = ("A", "x", "- @20 | - @100"), ("B", "x", "- @30 | - @110"), ("N", "x", "- @16 | - @70")
    assert matched(guarded, *given, database=DuckDBDatabase()) == (["2 | 4 @110"], [1, 2, 3, 4, 5])


def on_executors(spark: SparkSession) -> MakeKernel:
    runner = SparkRunner(spark.sparkContext, 2, least=1)
    return in_two_phases(SparkDatabase(spark), lambda texts, lineage: PartitionedKernel(texts, lineage, runner))


def test_both_phases_on_executors(spark: SparkSession):
    by_patient = replace(Q1, keys=("pid",), maximal=True)
    runner = Runner(pattern_cases._world(by_patient, [CHEMO]), Run((LATE,)), on_executors(spark))
    runner.results()
    found = [brief(Match(bound, known, errors)) for bound, known, errors, _ in runner.told[0]]
    assert sorted(found) == ["1 | 3 9 | 11 @17", "7 | 5 8 | 12 @18", "7 | 8 | 12 @18"]


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["run", "set"])
@pytest.mark.parametrize("seed", range(70_000, 70_020))
def test_random_patterns_on_executors(seed: int, kind: str, spark: SparkSession):
    assert_finds(patterns(seed, kind), Run((END,)), on_executors(spark))


def test_only_what_skips_events_has_windows():
    one = Pattern((One("A", "a"), One("A", "b")), Q1.within, keys=("x",))
    made, _ = lowered_texts([replace(one, strategy=some).text() for some in STRATEGIES], {"A": (("x", "string"),)})
    assert [has_match_windows(pattern) for pattern in made] == [False, False, True, True]
