"""What event statements count is what DuckDB's own SQL counts, whatever the intervals, the m-rules and restarts."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from common.bounds import END
from tests.generate.events import LENGTH, events
from tests.generate.seeds import seeds
from tests.oracle import event_syntax as cel
from tests.oracle.event_values import DISTINCT
from tests.oracle.events import Event, World, event
from tests.pattern_stage.partition.test_partition import in_parts, on_spark
from tests.support.event_agreement import MakeKernel, Runner, random_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA: cel.Schema = {"a": "string", "b": "string", "x": "number"}
OPS: tuple[cel.Relation | None, ...] = (None, None, "<=", "!=")
Question = tuple[cel.Stream, tuple[str, ...], str]
"""A stream, attributes of its results, and SQL with their intervals and these attributes."""


def counted(rng: Random) -> Question:
    x, share = cel.Ref("x"), rng.choice(("0", "10", "33.3", "90", "95", "99.9", "100"))
    calls = {
        "xs": cel.Fn(DISTINCT, (x,)),
        "bs": cel.Fn(DISTINCT, (cel.Ref("b"),)),
        "mid": cel.Fn("median", (x,)),
        "high": cel.Fn("percentile", (x, cel.Num(share))),
    }
    by = rng.choice(((), ("a",), ("a", "b")))
    over, is_session = rng.choice((None, 1, 3, 5, 20)), rng.randrange(2) > 0
    window = 10**6 * over if over else 1
    values = f"count(DISTINCT e.x), count(DISTINCT e.b), median(e.x), quantile_cont(e.x, {share}::DOUBLE / 100)"
    if over and is_session:
        group = f"PARTITION BY {', '.join(by) or 'true'} ORDER BY t1"
        sql = f"""SELECT min(t1), max(t1) + {window}, {"".join(f"{name}, " for name in by)}{values}
            FROM (SELECT *, sum(CASE WHEN gap < {window} THEN 0 ELSE 1 END) OVER ({group}) AS number
                FROM (SELECT *, t1 - lag(t1) OVER ({group}) AS gap FROM A)) e
            GROUP BY {", ".join(("number", *by))}"""
        items = tuple(cel.Item(call, name) for name, call in calls.items())
        return cel.Aggregate(items, by, cel.Window(f"{over}"), cel.Name("A"), session=True), (*by, *calls), sql
    same = " AND ".join(f"e.{name} IS NOT DISTINCT FROM g.{name}" for name in by) or "true"
    sql = f"""SELECT g.t1 AS t0, g.t1, {"".join(f"g.{name}, " for name in by)}
{values}
        FROM (SELECT DISTINCT {", ".join(("t1", *by))} FROM A) g
            JOIN A e ON {same} AND e.t1 > g.t1 - {window} AND e.t1 <= g.t1
        GROUP BY {", ".join(("g.t1", *(f"g.{name}" for name in by)))}"""
    items = tuple(cel.Item(call, name) for name, call in calls.items())
    return cel.Aggregate(items, by, cel.Window(f"{over}") if over else None, cel.Name("A")), (*by, *calls), sql


def latest(rng: Random) -> Question:
    """ASOF JOIN finds one of several left events at the latest time, and a join with these all of them."""
    by, op = rng.choice(((), ("a",), ("a", "b"))), rng.choice(OPS)
    same = " AND ".join(("b.t0 > a.t1", *(f"a.{name} = b.{name}" for name in by)))
    kept, more = (f"AND a.x {op} 1", (cel.Cmp(op, cel.Ref("x", "$1"), cel.Num("1")),)) if op else ("", ())
    left = f"(SELECT * FROM A a WHERE true {kept})"
    within = rng.choice((None, 2, 5, 30))
    sql = f"""SELECT a.t0, b.t1, a.a, a.x, b.a, b.x, a.n, b.n
        FROM (SELECT b.*, a.t1 AS last FROM B b ASOF JOIN {left} a ON {same}) b
            JOIN {left} a ON {same} AND a.t1 = b.last
        WHERE b.t1 - a.t0 <= {10**6 * within if within else 2**62}"""
    conds = (*(cel.Cmp("=", cel.Ref(name, "$1"), cel.Ref(name, "$2")) for name in by), *more)
    cond = conds[0] if len(conds) == 1 else cel.Both("AND", conds) if conds else None
    stream = cel.Next(cel.Name("A"), cond, cel.Name("B"), latest=True)
    return cel.Cel(stream, None, cel.Window(f"{within}") if within else None), ("a_1", "x_1", "a", "x", "n_1", "n"), sql


def check(seed: int, make: MakeKernel | None = None) -> None:
    rng = Random(seed)
    given = {name: events(rng, name, SCHEMA, 24) for name in ("A", "B")}
    given = {name: [_numbered(one, at) for at, one in enumerate(some)] for name, some in given.items()}
    questions = [make(rng) for make in (counted, counted, latest, latest)]
    statements = [one if isinstance(one, cel.Cel) else cel.Cel(one) for one, _, _ in questions]
    world = World(dict.fromkeys(given, SCHEMA | {"n": "number"}), given, statements)
    run = random_run(rng, len(questions), LENGTH)
    run = replace(run, lives={}, cuts=(*run.cuts, END))
    with duckdb.connect() as db:
        for name, some in given.items():
            db.register(name, pa.Table.from_pylist([{"t0": one.t0, "t1": one.t1, **one.values} for one in some], TABLE))
        for found, (stream, names, sql) in zip(Runner(world, run, make).results(), questions, strict=True):
            ours = [(one.t0, one.t1, *(one.values[name] for name in names)) for one in found]
            theirs: list[Any] = db.sql(sql).fetchall()
            assert sorted(ours, key=repr) == sorted(map(_floats, theirs), key=repr), f"{stream.text()}\n{sql}"


def _numbered(one: Event, number: int) -> Event:
    return event({**one.values, "n": float(number)}, one.t0, one.t1, one.parts)


TEXT, INT, NUMBER = pa.string(), pa.int64(), pa.float64()
TABLE = pa.schema([("t0", INT), ("t1", INT), ("a", TEXT), ("b", TEXT), ("x", NUMBER), ("n", NUMBER)])


def _floats(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*row[:2], *(float(value) if isinstance(value, int) else value for value in row[2:]))


@pytest.mark.parametrize("seed", seeds(5, 1_000))
def test_duckdb_counts_the_same(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", seeds(1, 100, first=5_000))
def test_executors_count_the_same(seed: int, spark: SparkSession) -> None:
    check(seed, in_parts(on_spark(Random(seed), spark)))
