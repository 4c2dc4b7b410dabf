"""An engine of any plan beside one of the plan `basic` in memory: both find the same, whatever happens in between."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from common.bounds import INFINITE
from join_stage import duckdb, views
from join_stage.duckdb import DuckDBEngine
from join_stage.plans import PLANS, JoinEngine
from join_stage.protocol import JoinScope, runs_manifest
from join_stage.signature import disk, join
from join_stage.signature.join import SignatureJoin
from join_stage.signature.postings import digests
from join_stage.spark import tasks
from join_stage.spark.tasks import SpreadMatches
from join_stage.store import duckdb as duckdb_module
from join_stage.store.protocol import RUNS, StoreError
from join_stage.views import CACHE_BYTES, ROW_BYTES, VALUE_BYTES
from mmqjp.tables.schema import SCHEMA
from templates.catalog import TemplateRow
from templates.graph import Shape
from templates.witness import NO_WITNESSES, R_BIN, R_DOC, R_DOCTS, R_GROUP, Witnesses
from tests.generate.joins import SECOND, JoinCase, random_join_case, run_case, sorted_rows
from tests.generate.seeds import seeds
from tests.support.in_turn import in_turn
from tests.support.stores import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Step = tuple[str, int]
Opener = Callable[..., JoinEngine]

BOUNDS = (0, 300, 1_000, 3_000, 10_000, CACHE_BYTES)


def random_steps(rng: Random) -> list[Step]:
    kinds = ("roll back", "roll back", "reopen", "other plan", "drop", "put", "bound", "forget", "wait", "evict")
    chosen = rng.choices(kinds, k=rng.choice((0, 1, 1, 2, 3)))
    return [(kind, rng.randrange(30 if kind == "evict" else 6)) for kind in chosen]


class Twins:
    """An engine with a plan on disk, and one with `basic` in memory, which see the same."""

    def __init__(self, opener: Opener, directory: Path, case: JoinCase, plan: str, bound: int = CACHE_BYTES) -> None:
        self._opener, self._directory, self._case, self._plan, self.bound = opener, directory, case, plan, bound
        self._standing = dict.fromkeys(range(len(case.templates)))
        self.engine: Any = None
        self._open(plan)
        self._basic = DuckDBEngine(plan="basic", schema=SCHEMA)
        self._put(self._basic)
        self.spread = 0
        self._begins, self._evicted, self._unasked = dict[int, int](), set[int](), set[tuple[int, int | None]]()

    def _open(self, plan: str) -> None:
        self.engine = self._opener(self._directory, plan, cache_bytes=self.bound)
        self._put(self.engine)

    def _put(self, engine: JoinEngine) -> None:
        for number in self._standing:
            engine.plan.put_rows(*self._case.templates[number])

    def run(self, steps: Sequence[Sequence[Step]]) -> int:
        """Runs all batches, each after some steps. Returns the number of matches."""
        matches = 0
        try:
            for (first, witnesses), before in zip(self._case.batches, steps, strict=True):
                for step in before:
                    self._step(step, first, witnesses)
                matches += self._join(first, witnesses)
                assert not self._has_views or self.engine.plan.counters()["bytes"] <= self.bound
            self._check_files()
            return matches
        finally:
            self.engine.close()
            self._basic.close()

    def _step(self, step: Step, first: int, witnesses: Witnesses) -> None:
        kind, number = step
        place = number % len(self._case.templates)
        both: list[JoinEngine] = [self.engine, self._basic]
        match kind:
            case "roll back":
                self._join(first, witnesses, number % 2 * 10, commit=False)
            case "reopen" | "other plan":  # what was not committed and what was cached is gone
                self.engine.close()
                self._open(self._plan if kind == "reopen" else PLANS[number % len(PLANS)])
            case "drop" if place in self._standing:
                del self._standing[place]
                for engine in both:
                    engine.plan.drop_rows(*self._case.templates[place])
            case "put" if place not in self._standing:
                self._standing[place] = None
                for engine in both:
                    engine.plan.put_rows(*self._case.templates[place])
            case "evict":
                self._evicted |= {id for id, begins in self._begins.items() if begins < number * SECOND}
                for engine in both:
                    engine.begin()
                    engine.evict(number * SECOND)
                    engine.commit()
            case "bound" if self._has_views:
                self.bound = self.engine.plan._cache.bound = BOUNDS[number]
            case "forget":  # as after a commit that failed
                self.engine.begin()
                if isinstance(self.engine, DuckDBEngine):
                    self.engine._settle()
                    self.engine._connection.rollback()
                self.engine.rollback()
            case "wait":  # the next commit takes over what is being merged
                stored = getattr(getattr(self.engine.plan, "_join", None), "stored", None)
                for merge in stored._merges if stored else ():
                    if merge.ident is not None:
                        merge.join()

    def _join(self, first: int, witnesses: Witnesses, evicted: int = 0, *, commit: bool = True) -> int:
        found = []
        before = self._cached() if not commit else None
        for engine in (self.engine, self._basic):
            engine.begin()
            engine.append("documents", documents(witnesses))
            matches = engine.join(witnesses, first, self._case.scope)
            self.spread += isinstance(matches, SpreadMatches)
            found.append(sorted_rows(matches))
            if evicted:
                engine.evict(evicted * SECOND)
            engine.commit() if commit else engine.rollback()
        if commit:
            begins = dict(zip(*(witnesses.r_docts[name].to_pylist() for name in ("docid", "t0")), strict=True))
            self._begins |= begins
            for place in range(len(self._case.templates)):
                if place not in self._standing:
                    self._unasked.update((row.id, docid) for row in self._case.templates[place][1] for docid in begins)
        # A row need not find a document that came while it was dropped. On Spark, an evicted document may be found for
        # as long as others of its file stay.
        ours, theirs = (
            [one for one in some if self._unasked.isdisjoint(((one[0], one[1]), (one[0], one[2])))] for some in found
        )
        assert [one for one in ours if self._evicted.isdisjoint(one[1:3])] == theirs
        self._check_views()
        if before is not None:
            assert self._cached() <= before, "nothing is in the cache that was not there"
        return len(found[0])

    @property
    def _has_views(self) -> bool:
        return hasattr(self.engine.plan, "_cache")

    def _cached(self) -> Counter[tuple[object, ...]]:
        return rows(self._view_cache()) if self._has_views else Counter()

    def _view_cache(self) -> pa.Table:
        """The thesis' VC: the rows of the cached slices with their values."""
        now = self.engine.plan._cache._now
        values, found = {entry.number: value for value, entry in now.entries.items()}, now.live()
        texts = pa.array([values[number] for number in found["value"].to_pylist()], pa.string())
        return found.select(["docid", "var1", "var2", "node1", "node2"]).add_column(0, "strval", texts)

    def _check_views(self) -> None:
        """Each cached slice is what R_doc and R_bin say; together they take what is counted, within the bound."""
        if not self._has_views:
            return
        cached = self._view_cache()
        values = Counter(cached["strval"].to_pylist())
        defined = rows(
            self.engine.select(
                "SELECT d.strval, d.docid, b.var1, b.var2, b.node1, b.node2 "
                "FROM r_doc d JOIN r_bin b ON b.docid = d.docid AND b.node2 = d.node JOIN r_docts t "
                "ON t.docid = d.docid"
            )
        )
        assert rows(cached) == Counter({row: n for row, n in defined.items() if row[0] in values})
        counted = self.engine.plan.counters()
        size = sum(VALUE_BYTES + len(value.encode()) + n * ROW_BYTES for value, n in values.items())
        assert (counted["values"], counted["bytes"]) == (len(values), size)

    def _check_files(self) -> None:
        """Files are removed after the commit that no longer names them."""
        if self._plan == "signature":
            self.engine.begin()
            self.engine.join(NO_WITNESSES, 10**6, self._case.scope)  # which opens the runs
            self.engine.commit()
            manifest = runs_manifest(self.engine)
            named = set() if manifest is None else {name for name, _ in json.loads(manifest)["runs"]}
            folder = self._directory / RUNS
            assert named <= {path.name for path in folder.iterdir()} if folder.exists() else not named


def rows(table: pa.Table) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


def documents(witnesses: Witnesses) -> pa.Table:
    empty: dict[str, object] = {"id": "", "stream": "S", "xml": "", "kind": "external"}
    lists = ("parts", "part_ids", "source_ids", "source_streams", "bound_docids", "bound_nodes")
    found = [{**row, **empty, **{name: [] for name in lists}} for row in witnesses.r_docts.to_pylist()]
    return pa.Table.from_pylist(found, schema=TABLES["documents"])


@pytest.mark.parametrize(("seed", "plan"), in_turn(seeds(2, 600), ("signature", "views")))
def test_all_plans_find_the_same_whatever_happens(seed: int, plan: str, tmp_path: Path, monkeypatch):
    rng = Random(seed)
    monkeypatch.setattr(join, "MOST_IN_MEMORY", rng.choice([0, 0, 40, 200]))
    for name in ("CHUNK", "MOST_CUT"):
        monkeypatch.setattr(join, name, rng.choice([7, getattr(join, name)]))
    monkeypatch.setattr(join, "MORE_FORMED", (0, 100, join.MORE_FORMED)[seed // 2 % 3])
    monkeypatch.setattr(disk, "PIECE", 16)
    # Many digests share a half.
    few = np.array([(1 << 63, 1 << 63), (3, 1 << 63), (1 << 63, 3)][seed % 3], np.uint64)
    monkeypatch.setattr("join_stage.signature.postings.digests", lambda texts: digests(texts) % few)
    monkeypatch.setattr(views, "MERGE", rng.choice([1, views.MERGE]))
    monkeypatch.setattr("join_stage.store.duckdb.MAX_STATEMENTS", rng.choice([3, 200]))
    batches = rng.choice([4, 8])
    case = random_join_case(seed, templates=3, batches=batches, documents=rng.choice([3, 4]), in_order=seed % 3 == 0)
    steps = [random_steps(rng) for _ in range(batches)]
    Twins(partial(DuckDBEngine, schema=SCHEMA), tmp_path, case, plan, rng.choice(BOUNDS)).run(steps)


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["views", "signature"])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_on_spark(seed: int, plan: str, spark: SparkSession, tmp_path: Path, monkeypatch):
    """With 4 documents a batch, tasks join some batches, and the driver others alone."""
    from join_stage.spark.engine import SparkEngine

    rng = Random(seed)
    monkeypatch.setattr(views, "MERGE", 3)
    monkeypatch.setattr(join, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr(disk, "PIECE", 16)
    monkeypatch.setattr(tasks, "LEAST_DOCUMENTS", rng.choice([1, 1, 100]))
    monkeypatch.setattr("join_stage.signature.plan.READ_DOCUMENTS", 3)  # in small parts edges come in another order
    case = random_join_case(seed, templates=3, batches=5, documents=4, in_order=seed % 2 == 0)
    twins = Twins(partial(SparkEngine, spark, schema=SCHEMA), tmp_path, case, plan, rng.choice((10_000, CACHE_BYTES)))
    twins.run([random_steps(rng) for _ in case.batches])
    assert twins.spread or plan == "views" or tasks.LEAST_DOCUMENTS > 1


# ---------------------------------------------------------------- what the plan `signature` forms and keeps

S = JoinScope(INFINITE, frozenset({("S", "S")}))
SHAPE = Shape(3, (None, 0, 0, None, 3, 3), ((1, 4), (2, 5)))
CHANNEL_AND_TITLE = (0, 1, 2, 0, 1, 2)


def join_of(*rows: tuple[int, ...]) -> SignatureJoin:
    joined = SignatureJoin()
    for number, variables in enumerate(rows):
        joined.rows.put(SHAPE, TemplateRow(number, 0, variables, INFINITE, True))
    return joined


def test_more_than_64_edges_between_two_documents():
    leaves = range(1, 91)
    docs = [0] * 90 + [1] * 90
    batch = Witnesses(
        pa.table([docs, [*leaves] * 2, [0] * 180, [*leaves] * 2], R_BIN),
        pa.table([[*leaves], [0] * 90, [*leaves]], R_GROUP),
        pa.table([docs, [*leaves] * 2, [f"v{leaf}" for leaf in leaves] * 2, ["S"] * 180], R_DOC),
        pa.table([[0, 1], [0, SECOND], [0, SECOND]], R_DOCTS),
    )
    joined = join_of(*((0, leaf, leaf + 1, 0, leaf, leaf + 1) for leaf in range(1, 90)))
    assert [row[0] for row in sorted_rows(joined.join(batch, S))] == [*range(89)]


def crowd(count: int, first: int, titles: int) -> Witnesses:
    """Documents of one channel and one author, with so many titles in turn. Variables: 0 item, 1 channel, 2 title,
    3 author."""
    docids = range(first, first + count)
    nodes, of_each = [1, 2, 3] * count, [docid for docid in docids for _ in range(3)]
    texts = [text for docid in docids for text in ("channel", f"title {docid % titles}", "")]
    times = [docid * SECOND for docid in docids]
    return Witnesses(
        pa.table([of_each, nodes, [0] * len(nodes), nodes], R_BIN),
        pa.table([[1, 2, 3], [0, 0, 0], [1, 2, 3]], R_GROUP),
        pa.table([of_each, nodes, texts, ["S"] * len(nodes)], R_DOC),
        pa.table([[*docids], times, times], R_DOCTS),
    )


def test_pairs_of_a_value_that_all_share_are_formed_where_another_is_equal():
    found = join_of(CHANNEL_AND_TITLE).join(crowd(400, 0, 200), S)
    assert len(sorted_rows(found)) == 200
    formed = sum(len(part.several.key) for part in found._found if part.several)
    assert formed == 2 * 200, "for each pair of titles it and the channel; there are 79,800 pairs of channels"


def test_what_is_kept_is_counted_and_goes():
    joined = join_of(CHANNEL_AND_TITLE)
    for first in (0, 100, 200):
        joined.join(crowd(100, first, 1000), S)
    nothing = dict.fromkeys(("posting_bytes", "groups", "runs", "run_bytes", "merges"), 0)
    counted = {"documents": 300, "postings": 600, "values": 301}
    assert joined.counters() | {"posting_bytes": 0, "groups": 0} == nothing | counted
    joined.evict(250 * SECOND)
    assert joined.counters()["documents"] == 50
    found = sorted_rows(joined.join(crowd(10, 1250, 1000), S))
    assert [row[1:3] for row in found] == [(d, d + 1000) for d in range(250, 260)]


# ---------------------------------------------------------------- engines as stores


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.soak])])
def open_store(request: pytest.FixtureRequest) -> Opener:
    """Opens an engine, on a directory or without one: on DuckDB, and in the long run on Spark."""
    if request.param == "duckdb":
        return partial(DuckDBEngine, schema=SCHEMA)
    from join_stage.spark.engine import SparkEngine

    return partial(SparkEngine, request.getfixturevalue("spark"), schema=SCHEMA)


def table(name: str, *rows: tuple[object, ...]) -> pa.Table:
    schema = TABLES[name]
    # Columns that a row does not reach are null.
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=False)) for row in rows], schema=schema)


def test_the_rows_of_a_key_are_read_without_those_of_others(open_store: Opener, tmp_path: Path):
    engine = open_store(tmp_path)
    for batch, keys in enumerate((("k", "l"), ("it's", "k"), ("m",)), 1):
        engine.begin()
        engine.append("settings", table("settings", *((key, f"{key}{batch}", batch) for key in keys)))
        if batch < 3:
            engine.commit()

    def of(key: str) -> list[tuple[str, int]]:
        rows = engine.read("settings", ["value", "batch"], key).sort_by("batch")
        assert rows.column_names == ["value", "batch"]
        return list(zip(rows["value"].to_pylist(), rows["batch"].to_pylist(), strict=True))

    assert of("k") == [("k1", 1), ("k2", 2)] and of("it's") == [("it's2", 2)] and of("none") == []
    assert of("m") == [("m3", 3)]  # of the batch that is not committed
    assert len(engine.read("settings", ["value"])) == 5


def test_joins_that_run_apart_for_want_of_memory_find_the_same(monkeypatch: pytest.MonkeyPatch):
    case = random_join_case(7, templates=60, batches=2, documents=10, in_order=True)
    monkeypatch.setattr(duckdb_module, "MEMORY_LIMIT", "500MB")
    found = []
    for joins in (duckdb.JOINS, 1):
        monkeypatch.setattr(duckdb, "JOINS", joins)
        engine = DuckDBEngine()
        found.append(run_case(engine, case))
        engine.close()
    assert found[0] == found[1] and len({row[0] // 3 for row in found[0][1]}) > 20, "few templates matched"


def test_values_come_back_as_they_were(open_store: Opener):
    texts = ["", None, "\x01\t\n\r", "Ωß🎈\u2028", "'quoted' \\ \"twice\""]
    numbers = [-(2**63), 2**63 - 1, 0]
    row: tuple[object, ...] = (7, "ß", "S", 0, 0, "<a/>", "hidden", numbers, texts, [], ["S"], [], [1], 3, [], -9, 5)
    engine = open_store()
    engine.begin()
    engine.append(
        "dead_letters",
        table("dead_letters", *(("d", t, n, t, b"\x00\xff", n) for t, n in zip(texts, range(5), strict=True))),
    )
    engine.append("documents", table("documents", row))
    for _ in range(2):  # in the batch, then from the store
        dead = engine.select("SELECT * FROM dead_letters ORDER BY time")
        assert dead["stream"].to_pylist() == texts and dead["raw"].to_pylist() == [b"\x00\xff"] * 5
        (found,) = engine.select("SELECT * FROM documents").to_pylist()
        assert tuple(found.values()) == row
        engine.commit()
    engine.close()


def test_a_query_reads_views_given_along_and_orders_by_lists(open_store: Opener):
    engine = open_store()
    engine.begin()
    rows = [("q", 0, 1, [d], ["S"], "{}", "<a/>", 0) for d in ("b", "a", "c")]
    engine.append("earlier_outputs", table("earlier_outputs", *rows))
    wanted = pa.table({"name": ["b", "c", "x"]})
    sql = "SELECT o.documents FROM outputs o JOIN wanted w ON o.documents[{}] = w.name ORDER BY o.documents"
    found = engine.select(sql.format(1 if isinstance(engine, DuckDBEngine) else 0), {"wanted": wanted})
    assert found["documents"].to_pylist() == [["b"], ["c"]]
    assert engine.select("SELECT count(*) AS n FROM wanted", {"wanted": wanted.slice(2)})["n"].to_pylist() == [1]
    engine.rollback()
    engine.close()


def test_a_store_of_the_other_engine_is_refused(open_store: Opener, tmp_path: Path, request: pytest.FixtureRequest):
    of_duckdb = request.node.callspec.params["open_store"] == "duckdb"
    (tmp_path / ("manifests" if of_duckdb else "mmqjp.duckdb")).mkdir()
    with pytest.raises(StoreError, match="use that engine"):
        open_store(tmp_path)
