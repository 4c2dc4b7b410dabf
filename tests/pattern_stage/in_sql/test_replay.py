"""Statements as SQL, and patterns in two phases, windows by SQL and then matches, find what the oracle does; those that
have no such form are told, and the kernel runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from common.bounds import BEGINNING
from pattern_stage.columns import Columns
from pattern_stage.in_sql import Ask, ReplayKernel, ask_duckdb, asking_spark, has_match_windows, runs_as_sql
from pattern_stage.kernel import Kernel, Results
from pattern_stage.lineage import Lineage
from pattern_stage.partition.kernel import PartitionedKernel, SparkRunner
from pattern_stage.values import Texts
from tests.generate.documents import SECOND
from tests.generate.events import LENGTH, world
from tests.generate.seeds import at_length, seeds
from tests.oracle.cases import case, cases, written
from tests.oracle.events import Events, World
from tests.pattern_stage.test_exact import run, told
from tests.pattern_stage.test_patterns import END, patterns
from tests.support.event_agreement import MakeKernel, Run, Runner, assert_finds, lowered, lowered_texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WHOLE = ((LENGTH + 1) * SECOND,)
GIVEN = (
    ("E1", "a x:number m:number", "p 1 0.1 @1 | p 2 0.2 @2-3 | - 1 0.3 @2 | q - 0.1 @4 | 1 -1 0.7 @4"),
    ("E2", "b y:number", "p 3 @2 | p 0 @4 | q 1 @5 | - 2 @5 | 1.0 1 @6 | p 3 @6-7 | xpx 0 @7 | p 1 @7"),
    ("E3", "c z:number", ""),
)
STATEMENTS = [
    "FROM E1 NEXT{a = b} E2",
    "FROM E1 NEXT E2",
    "FROM E1 NEXT E3",
    "FROM E3 NEXT E1",
    "FROM E1 NEXT{a = b AND y >= 1} E2",
    "FROM E1 NEXT{a = b AND y >= 3} E2 WITHIN 3 s",
    'FROM FILTER{a = "p"} E1 NEXT{y > x AND GAP <= 2} E2',
    'FROM FILTER{a = "q"} E1 NEXT{y > x OR x IS NULL} E2',
    "FROM E1 NEXT{x / y >= 0.5} E2",
    "FROM E1 NEXT{5 % y = x} E2",
    "FROM E1 NEXT{m * 3 >= y AND DUR > 1} E2",
    "FROM E1 NEXT{contains(b, a)} E2",
    "FROM E1 NEXT{NOT starts-with(b, a)} E2",
    "FROM E1 NEXT{ends-with(b, a) AND $1.x != y} E2",
    'FROM E1 NEXT{starts-with(b, "x")} E2',
    'FROM E1 NEXT{matches(b, "^x")} E2',
    'FROM E1 NEXT{matches(b, "^p") AND a = b} E2',
    "FROM E1 NEXT{number(a) = number(b)} E2",
    "FROM E1 NEXT{coalesce(a, b) = b} E2",
    "FROM E1 NEXT{coalesce(x, y) + 1 > abs(y - 2)} E2",
    'SELECT concat(a, "!") AS shout, x + 1 AS more, DUR AS length FROM E1 NEXT{a = b} E2 WITHIN 9 s',
    'SELECT concat(a, "?") AS shout, x + 2 AS more, DUR AS length FROM E1 NEXT{a = b} E2 WITHIN 3 s',
    "FROM (SELECT a AS n, x AS v FROM E1) UNION (SELECT b AS n, y AS v FROM E2)",
    "FROM ((SELECT a AS n, x AS v FROM E1) UNION (SELECT a AS n, m AS v FROM E1)) NEXT{n = b AND v <= y} E2",
    "FROM E1 NEXT{a = b} E2 NEXT{$1.b = $2.b} (SELECT b, y AS w FROM E2)",
    "FROM E1 NEXT{a = n} (SELECT b AS n FROM E2 NEXT{b = a_2} (SELECT b AS a_2 FROM E2))",
    "FROM E1",
    "SELECT a FROM E1",
]
NO_SQL = [
    "FROM (SELECT a FROM E1) FOLD{$.a = $2.a, , } (SELECT b AS a FROM E2)",
    "FROM AGGREGATE{count() AS n BY a} E1",
    'FROM E1 NEXT{concat(a, b) = "pp"} E2',
    'FROM E1 NEXT{matches(concat(a, b), "p")} E2',
    "FROM E1 NEXT{lower-case(coalesce(a, b)) = b} E2",
]


class Counting:
    def __init__(self, database: Ask) -> None:
        self._database, self.questions = database, 0

    def __call__(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        self.questions += 1
        return self._database(sql, tables)


def replayed(made: World, database: Ask) -> list[Events]:
    return Runner(made, Run(WHOLE), replaying(database)).results()


@pytest.mark.parametrize("seed", seeds(3, 500, first=40_000))
def test_random_statements_on_duckdb(seed: int):
    assert_finds(world(seed), Run(WHOLE), replaying(ask_duckdb))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50_000, 50_020))
def test_random_statements_on_spark(seed: int, spark: SparkSession):
    assert_finds(world(seed, templates=3, statements=6), Run(WHOLE), replaying(asking_spark(spark)))


def test_written_statements(database: Ask):
    made = written(STATEMENTS, GIVEN)
    found = replayed(made, database)
    assert found == Runner(made, Run(WHOLE)).results()
    assert [bool(some) for some in found] == ["E3" not in one for one in STATEMENTS]


def test_statements_that_differ_in_constants_are_one_question(database: Ask):
    counted = Counting(database)
    made = written(
        [f'FROM FILTER{{a = "{a}" AND x >= {x}}} E1 NEXT{{y >= {x}}} E2' for a in "pq1" for x in range(4)], GIVEN
    )
    assert replayed(made, counted) == Runner(made, Run(WHOLE)).results()
    assert counted.questions == 1


def test_what_has_no_question_is_told():
    streams, _ = lowered(written([*STATEMENTS, *NO_SQL], GIVEN))
    assert [runs_as_sql(stream) for stream in streams] == [True] * len(STATEMENTS) + [False] * len(NO_SQL)


def test_a_replay_ends_with_its_first_events():
    made = written(["FROM E1 NEXT{a = b} E2"], GIVEN)
    kernel = ReplayKernel(texts := Texts(), Lineage(), ask_duckdb, Kernel)
    (stream,), _ = lowered(made)
    kernel.add(0, stream, BEGINNING)
    for until in (5, 9):
        kernel.begin(until)
        assert not kernel.end()
    kernel.begin(12)
    one = np.array([9], np.int64)
    kernel.feed({"E1": Columns(one, one, (texts.codes(["p"]), np.ones(1), np.ones(1)), one.reshape(-1, 1))})
    kernel.end()
    with pytest.raises(RuntimeError, match="one interval"):
        kernel.begin(20)


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.soak])])
def database(request: pytest.FixtureRequest) -> Ask:
    """DuckDB, and in the long run Spark."""
    if request.param == "duckdb":
        return ask_duckdb
    return asking_spark(request.getfixturevalue("spark"))


Matching = Callable[[Texts, Lineage], Kernel]


def replaying(database: Ask, matching: Matching = Kernel) -> MakeKernel:
    def make(texts: Texts, lineage: Lineage, run: Run) -> ReplayKernel:
        return ReplayKernel(texts, lineage, database, matching)

    return make


class Recording(Kernel):
    """A matcher that remembers how many events it gets."""

    fed: list[int]

    def feed(self, events: Mapping[str, Columns]) -> list[Results]:
        Recording.fed = [number for some in events.values() for number in some.parts[:, 0].tolist()]
        return super().feed(events)


def matched(statement: str, streams: str, database: Ask | None = None) -> tuple[list[str], list[int]]:
    """What is told, and the events in windows that may have a match, by their numbers."""
    Recording.fed = []
    runner = run(statement, streams, replaying(database or ask_duckdb, Recording))
    fed = [part for one in Recording.fed for part in runner.numbers.events[one].parts if isinstance(part, int)]
    return told(runner), sorted(fed)


# ---------------------------------------------------------------- the matches are those of the definition


@pytest.mark.parametrize("kind", ["run", "set"])
@pytest.mark.parametrize("seed", seeds(4, 1_500, first=60_000))
def test_random_patterns_on_duckdb(seed: int, kind: str):
    assert_finds(patterns(seed, kind), Run((END,)), replaying(ask_duckdb))


@pytest.mark.parametrize(("statement", "streams", "expected"), cases("patterns")[:: 1 if at_length() else 6])
def test_two_phases_tell_what_the_case_says(statement: str, streams: str, expected: list[str]):
    assert matched(statement, streams)[0] == expected


# ---------------------------------------------------------------- the windows are those of the paper

CHEMO = case("patterns", "Chemo")[1]
KINDS = 'c.l = "C" AND p.l = "P" AND b.l = "B"'
PATIENT = "c.pid = p.pid AND c.pid = b.pid"
NULLS = "A(x) - @0 | q @1 | q @3 ; B(x) - @2 | q @2"
PATIENTS = [1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13]
"""Of the first patient the window of 1, of the second one those of 5 and 7: 4 begins none, 6 is nothing, 14 is late."""


@pytest.mark.parametrize(
    ("member", "where", "within", "left"),
    [
        ("Chemo+ p[]", f"[pid] AND {KINDS.replace('p.l', 'p[].l')} AND p[i-1].v < p[i].v", "15 s", PATIENTS),
        ("Chemo p", "", "15 s", [*range(1, 15)]),
        ("Chemo p", KINDS, "15 s", [number for number in range(1, 15) if number != 6]),
        ("Chemo p", f"{KINDS} AND {PATIENT}", "15 s", PATIENTS),
        ("Chemo p", f"[pid] AND {KINDS}", "15 s", PATIENTS),
        ("Chemo p", f"{KINDS} AND {PATIENT}", "INF", [*PATIENTS, 14]),
        ("Chemo p", f"{KINDS} AND {PATIENT}", "13 s", [5, 7, 8, 10, 12, 13]),
    ],
)
def test_each_way_to_prune_leaves_less(member: str, where: str, within: str, left: list[int], database: Ask):
    condition = f" WHERE {{{where}}}" if where else ""
    statement = f"PATTERN SEQ(SET(Chemo c, {member}), Chemo b){condition} WITHIN {within}"
    assert matched(statement, CHEMO, database)[1] == left


@pytest.mark.parametrize(
    ("statement", "streams", "expected", "left"),
    [
        # A window needs as many events as variables.
        ("SET(A a, A b)) ", "A(x) - @1 | - @30 | - @40", ["2 | 3 @40", "3 | 2 @40"], [2, 3]),
        # What must not come is kept by its own equalities.
        (
            "~(N n), A a, B b) WHERE {n.x = a.x AND b.x = a.x} ",
            "A(x) p @20 | q @20 ; B(x) p @30 | q @30 ; N(x) p @16 | q @4 | r @16 | p @25",
            ["2 | 4 @30"],
            [1, 2, 3, 4, 5, 8],
        ),
        # What must not come before a match is kept for the next start.
        (
            "~(N n), A a, B b) ",
            "A(x) - @20 | - @100 ; B(x) - @30 | - @110 ; N(x) - @16 | - @70",
            ["2 | 4 @110"],
            [1, 2, 3, 4, 5],
        ),
        # Nothing equals NULL: no such event kills a match, or continues one.
        *(
            (
                f"{components}) WHERE {'skip_till_any_match ' * ('SET' not in components)}{{{where}}} ",
                NULLS,
                expected,
                left,
            )
            for components, where, expected, left in (
                ("A a, ~(A z)", "z.x = a.x", ["1 @15", "3 @18"], [1, 2, 3]),
                ("~(B z), A a", "z.x = a.x", ["1 @0", "2 @1"], [1, 2, 3, 5]),
                ("A+ p[]", "p[i].x = p[i-1].x", ["1 @0", "2 @1", "2 3 @3", "3 @3"], [1, 2, 3]),
                ("SET(A+ p[])", "p[i].x = p[i-1].x", ["1 @0", "2 @1", "2 3 @3", "3 @3"], [1, 2, 3]),
                ("A+ p[], ~(B z)", "p[i].x = p[i-1].x AND z.x = p[1].x", ["1 @15", "2 3 @16", "3 @18"], [1, 2, 3, 5]),
            )
        ),
    ],
)
def test_windows_have_what_a_match_needs(statement: str, streams: str, expected: list[str], left: list[int]):
    assert matched(f"PATTERN SEQ({statement}WITHIN 15 s", streams) == (expected, left)


def on_executors(spark: SparkSession) -> MakeKernel:
    runner = SparkRunner(spark.sparkContext, 2, least=1)
    return replaying(asking_spark(spark), lambda texts, lineage: PartitionedKernel(texts, lineage, runner))


def test_both_phases_on_executors(spark: SparkSession):
    statement, streams, expected = case("patterns", "[pid] AND")
    assert told(run(statement, streams, on_executors(spark))) == expected


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["run", "set"])
@pytest.mark.parametrize("seed", range(70_000, 70_020))
def test_random_patterns_on_executors(seed: int, kind: str, spark: SparkSession):
    assert_finds(patterns(seed, kind), Run((END,)), on_executors(spark))


def test_only_what_skips_events_has_windows():
    strategies = ("strict_contiguity", "partition_contiguity", "skip_till_next_match", "skip_till_any_match")
    texts = [f"PATTERN SEQ(A a, A b) WHERE {one} {{[x]}} WITHIN 15 s" for one in strategies]
    made, _ = lowered_texts(texts, {"A": (("x", "string"),)})
    assert [has_match_windows(pattern) for pattern in made] == [False, False, True, True]
