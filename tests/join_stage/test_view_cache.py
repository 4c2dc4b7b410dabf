"""The view cache of the plan `views`: complete slices whatever happens, within its bound, and matches as of `basic`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from join_stage import duckdb
from join_stage.duckdb import DuckDBEngine
from join_stage.protocol import JoinEngine
from join_stage.views import CACHE_BYTES, ROW_BYTES, VALUE_BYTES
from mmqjp.tables.schema import SCHEMA
from templates.witness import Witnesses
from tests.generate.joins import SECOND, JoinCase, random_join_case, sorted_rows
from tests.generate.seeds import examples
from tests.support.stores import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Step = tuple[str, int]
Opener = Callable[[Path, str, int], JoinEngine]

STEPS = st.one_of(
    st.tuples(st.sampled_from(["roll back", "reopen", "drop", "put", "bound", "forget"]), st.integers(0, 5)),
    st.tuples(st.just("evict"), st.integers(0, 30)),
)
BOUNDS = (0, 300, 1_000, 3_000, 10_000, CACHE_BYTES)


def open_duckdb(directory: Path, plan: str, cache_bytes: int) -> JoinEngine:
    return DuckDBEngine(directory, plan, schema=SCHEMA, cache_bytes=cache_bytes)


class Pair:
    """An engine with the plan `views` beside one with `basic`, which see the same."""

    def __init__(self, opener: Opener, directory: Path, case: JoinCase, bound: int) -> None:
        self.opener, self.directory, self.case, self.bound = opener, directory, case, bound
        self.standing = dict.fromkeys(range(len(case.templates)))
        self.engines = [self.open(plan) for plan in ("views", "basic")]

    @property
    def views(self) -> Any:
        return self.engines[0]

    def open(self, plan: str) -> JoinEngine:
        engine = self.opener(self.directory / plan, plan, self.bound)
        for number in self.standing:
            engine.put_rows(*self.case.templates[number])
        return engine

    def step(self, step: Step, first: int, witnesses: Witnesses) -> None:
        """Something that happens between batches, or to a batch that is taken back."""
        kind, number = step
        place = number % len(self.case.templates)
        if kind == "roll back":
            self.join(first, witnesses, number % 2 * 10, commit=False)
        elif kind == "reopen":  # what was not committed and what was cached is gone
            self.views.close()
            self.engines[0] = self.open("views")
        elif kind == "drop" and place in self.standing:
            del self.standing[place]
            for engine in self.engines:
                engine.drop_rows(*self.case.templates[place])
        elif kind == "put" and place not in self.standing:
            self.standing[place] = None
            for engine in self.engines:
                engine.put_rows(*self.case.templates[place])
        elif kind == "evict":
            for engine in self.engines:
                engine.begin()
                engine.evict(number * SECOND)
                engine.commit()
        elif kind == "bound":
            plan = self.views._plan
            self.bound = getattr(plan, "_cache", plan).bound = BOUNDS[number]
        elif kind == "forget":  # as after a commit that failed
            self.views.begin()
            if isinstance(self.views, DuckDBEngine):
                self.views._settle()
                self.views._connection.rollback()
            self.views.rollback()

    def join(self, first: int, witnesses: Witnesses, evicted: int = 0, *, commit: bool = True) -> int:
        """Both join a batch alike; then the cache holds what it must."""
        found = []
        before = self.cache() if not commit else None
        for engine in self.engines:
            engine.begin()
            engine.append("documents", documents(witnesses))
            found.append(sorted_rows(engine.join(witnesses, first, self.case.scope)))
            if evicted:
                engine.evict(evicted * SECOND)
            engine.commit() if commit else engine.rollback()
        assert found[0] == found[1]
        self.check()
        if before is not None:
            assert self.cache() <= before, "nothing is in the cache that was not there"
        return len(found[0])

    def cache(self) -> Counter[tuple[object, ...]]:
        return rows(self.views._plan.view_cache())

    def check(self) -> None:
        """Each cached slice is what R_doc and R_bin say; together they take what is counted."""
        cached = self.views._plan.view_cache()
        values = Counter(cached["strval"].to_pylist())
        defined = rows(
            self.views.select(
                "SELECT d.strval, d.docid, b.var1, b.var2, b.node1, b.node2 "
                "FROM r_doc d JOIN r_bin b ON b.docid = d.docid AND b.node2 = d.node JOIN r_docts t "
                "ON t.docid = d.docid"
            )
        )
        assert rows(cached) == Counter({row: n for row, n in defined.items() if row[0] in values})
        counted = self.views.counters()
        size = sum(VALUE_BYTES + len(value.encode()) + n * ROW_BYTES for value, n in values.items())
        assert (counted["values"], counted["bytes"]) == (len(values), size)

    def close(self) -> None:
        for engine in self.engines:
            engine.close()


def rows(table: pa.Table) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


def documents(witnesses: Witnesses) -> pa.Table:
    empty: dict[str, object] = {"id": "", "stream": "S", "xml": "", "kind": "external"}
    lists = ("parts", "part_ids", "source_ids", "source_streams", "bound_docids", "bound_nodes")
    found = [{**row, **empty, **{name: [] for name in lists}} for row in witnesses.r_docts.to_pylist()]
    return pa.Table.from_pylist(found, schema=TABLES["documents"])


def check_case(opener: Opener, directory: Path, case: JoinCase, steps: list[list[Step]], bound: int) -> int:
    """Runs a case with steps before its batches; how many matches there were."""
    pair = Pair(opener, directory, case, bound)
    try:
        matches = 0
        for (first, witnesses), before in zip(case.batches, steps, strict=True):
            for step in before:
                pair.step(step, first, witnesses)
                pair.check()
            matches += pair.join(first, witnesses)
            assert pair.views.counters()["bytes"] <= pair.bound
        return matches
    finally:
        pair.close()


@given(
    st.integers(0, 999),
    st.booleans(),
    st.lists(st.lists(STEPS, max_size=3), min_size=5, max_size=5),
    st.sampled_from(BOUNDS),
)
@examples(4, 20)
def test_slices_stay_complete_whatever_happens(seed: int, in_order: bool, steps: list[list[Step]], bound: int):
    case = random_join_case(seed, templates=3, batches=5, documents=3, in_order=in_order)
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        if seed % 2:
            patch.setattr(duckdb, "STALE_ROWS", 1)
        check_case(open_duckdb, Path(directory), case, steps, bound)


EVICTING: list[list[Step]] = [[], [], [("roll back", 1)], [("evict", 4)], [("drop", 0), ("evict", 12)]]
"""Spark evicts files of the state: here those of the first batch, then of two more."""

MIXED: list[list[Step]] = [[], [("roll back", 0)], [("reopen", 0)], [("drop", 1)], [("put", 1), ("bound", 3)]]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("steps", "in_order", "bound"),
    [(EVICTING, True, CACHE_BYTES), (MIXED, False, 10_000)],
)
def test_slices_stay_complete_on_spark(
    steps: list[list[Step]],
    in_order: bool,
    bound: int,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    from join_stage.spark import views
    from join_stage.spark.engine import SparkEngine

    def opener(directory: Path, plan: str, cache_bytes: int) -> JoinEngine:
        return SparkEngine(spark, directory, plan, schema=SCHEMA, cache_bytes=cache_bytes)

    monkeypatch.setattr(views, "MERGE", 3)
    case = random_join_case(4, templates=3, batches=5, documents=4, in_order=in_order)
    assert check_case(opener, tmp_path, case, steps, bound) > 20
    assert not (tmp_path / "views" / "view_cache").exists(), "the files went with the engine"


@pytest.mark.parametrize("bound", BOUNDS)
def test_matches_and_counts(bound: int, tmp_path: Path):
    case = random_join_case(11, templates=4, batches=5)
    pair = Pair(open_duckdb, tmp_path, case, bound)
    assert sum(pair.join(*batch) for batch in case.batches) > 20
    counted = pair.views.counters()
    pair.close()
    if bound == CACHE_BYTES:
        assert counted["hits"] > 0 and counted["evictions"] == 0 and 0 < counted["misses"] <= counted["values"]
    else:
        assert counted["evictions"] > 0
    if not bound:
        assert (counted["hits"], counted["values"]) == (0, 0)
