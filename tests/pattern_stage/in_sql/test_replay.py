"""Statements as SQL find what the oracle does; those that have no such form are told, and the kernel runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pytest

from pattern_stage.columns import Columns
from pattern_stage.in_sql.kernel import Database, DuckDBDatabase, ReplayKernel, SparkDatabase, runs_as_sql
from pattern_stage.kernel import Kernel
from pattern_stage.lineage import Lineage
from pattern_stage.values import Texts
from tests.generate.documents import SECOND
from tests.generate.event_worlds import world
from tests.generate.events import LENGTH
from tests.generate.seeds import at_length, seeds
from tests.oracle.event_cases import events, schema
from tests.oracle.event_syntax import Cel
from tests.oracle.events import Events, World
from tests.support.event_agreement import AnyKernel, MakeKernel, Run, Runner, assert_finds, lowered
from xscl.algebra.events import Statement

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
DIALECT = [
    one
    for one in STATEMENTS
    if any(sign in one for sign in ("/", "%", "*", "with(", "matches(", "number(", "coalesce("))
]
"""Those with operations that databases may understand differently."""

NO_SQL = [
    "FROM (SELECT a FROM E1) FOLD{$.a = $2.a, , } (SELECT b AS a FROM E2)",
    "FROM AGGREGATE{count() AS n BY a} E1",
    'FROM E1 NEXT{concat(a, b) = "pp"} E2',
    'FROM E1 NEXT{matches(concat(a, b), "p")} E2',
    "FROM E1 NEXT{lower-case(coalesce(a, b)) = b} E2",
]


@dataclass(frozen=True)
class Written:
    """A statement by its text, where the oracle has its own syntax."""

    words: str
    publish: None = None

    def text(self) -> str:
        return self.words


def written(statements: Sequence[str]) -> World:
    known = {name: schema(of) for name, of, _ in GIVEN}
    made = World(known, {name: events(known[name], text) for name, _, text in GIVEN}, [])
    made.statements = cast(Sequence[Cel], list(map(Written, statements)))
    return made


class Counting:
    """A database that counts."""

    def __init__(self, database: Database) -> None:
        self._database, self.questions = database, 0

    def ask(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        self.questions += 1
        return self._database.ask(sql, tables)


class Since:
    """A kernel whose statements are all since a time."""

    def __init__(self, kernel: AnyKernel, since: int) -> None:
        self._kernel, self._since = kernel, since
        self.remove, self.begin, self.feed, self.end = kernel.remove, kernel.begin, kernel.feed, kernel.end
        self.state, self.restore = kernel.state, kernel.restore

    def add(self, statement: int, stream: Statement, since: int) -> None:
        self._kernel.add(statement, stream, self._since)


def replaying(database: Database) -> MakeKernel:
    def replay(texts: Texts, lineage: Lineage, run: Run) -> AnyKernel:
        return ReplayKernel(texts, database, Kernel(texts, lineage), lambda: Kernel(texts, lineage))

    return replay


def replayed(made: World, database: Database) -> list[Events]:
    return Runner(made, Run(WHOLE), replaying(database)).results()


@pytest.mark.parametrize("seed", seeds(5, 500, first=40_000))
def test_random_statements_on_duckdb(seed: int):
    assert_finds(world(seed), Run(WHOLE), replaying(DuckDBDatabase()))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50_000, 50_020))
def test_random_statements_on_spark(seed: int, spark: SparkSession):
    assert_finds(world(seed, templates=3, statements=6), Run(WHOLE), replaying(SparkDatabase(spark)))


def check_written(database: Database, statements: Sequence[str]) -> None:
    made = written(statements)
    found = replayed(made, database)
    assert found == Runner(made, Run(WHOLE)).results()
    assert [bool(some) for some in found] == ["E3" not in one for one in statements]


def test_written_statements():
    check_written(DuckDBDatabase(), STATEMENTS)


def test_written_statements_on_spark(spark: SparkSession):
    check_written(SparkDatabase(spark), STATEMENTS if at_length() else [STATEMENTS[0], *DIALECT])


def test_statements_that_differ_in_constants_are_one_question(database: Database):
    counted = Counting(database)
    made = written([f'FROM FILTER{{a = "{a}" AND x >= {x}}} E1 NEXT{{y >= {x}}} E2' for a in "pq1" for x in range(4)])
    assert replayed(made, counted) == Runner(made, Run(WHOLE)).results()
    assert counted.questions == 1


def test_what_has_no_question_is_told():
    streams, _ = lowered(written([*STATEMENTS, *NO_SQL]))
    assert [runs_as_sql(stream) for stream in streams] == [True] * len(STATEMENTS) + [False] * len(NO_SQL)


def test_only_events_after_since_are_seen(database: Database):
    made = written([one for one in STATEMENTS if "E3" not in one][::4])

    def since_three(texts: Texts, lineage: Lineage, run: Run) -> AnyKernel:
        return Since(replaying(database)(texts, lineage, run), 3 * SECOND)

    kernel = Runner(made, Run(WHOLE), lambda texts, lineage, run: Since(Kernel(texts, lineage), 3 * SECOND))
    found = Runner(made, Run(WHOLE), since_three).results()
    assert found == kernel.results()
    assert found != Runner(made, Run(WHOLE)).results() and any(found)


def test_a_replay_ends_with_its_first_events():
    made = written(["FROM E1 NEXT{a = b} E2"])
    kernel = ReplayKernel(
        texts := Texts(), DuckDBDatabase(), Kernel(texts, Lineage()), lambda: Kernel(texts, Lineage())
    )
    (stream,), _ = lowered(made)
    kernel.add(0, stream, -1)
    for until in (5, 9):
        kernel.begin(until)
        assert not kernel.end()
    kernel.begin(12)
    one = np.array([9], np.int64)
    kernel.feed({"E1": Columns(one, one, (texts.codes(["p"]), np.ones(1), np.ones(1)), one.reshape(-1, 1))})
    kernel.end()
    with pytest.raises(RuntimeError, match="one interval"):
        kernel.begin(20)
