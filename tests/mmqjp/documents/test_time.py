"""Time (xscl.md, section 7): order of arrival, lateness, silence, the future, archives; and what is let go of."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.documents import Document
from feeds.history import History
from feeds.readers import Offset
from feeds.tail import Tail, judged, waiting_files
from join_stage.store.protocol import whole_batch
from mmqjp.answers.output import Output
from mmqjp.documents import watermarks
from mmqjp.engine import Session
from mmqjp.state.eviction import ID_RETENTION
from tests.generate.seeds import at_length, seeds
from tests.generate.strategies import random_case
from tests.oracle.evaluation import comparable
from tests.support.agreement import as_row
from tests.support.delivery import mark_delivered
from tests.support.faults import FaultySession
from tests.support.service import PAIRS, Directory, StopAfter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND, HOUR, DAY = 1_000_000, 3_600_000_000, 86_400_000_000
NOW = 1_800_000_000 * SECOND
WINDOW = "S/a->x JOIN {x = y, 10} S/a->y PUBLISH pairs"


def doc(seconds: float, stream: str = "S", text: str = "v", id: str | None = None) -> Document:
    return Document(id or f"{stream}{seconds}", f"<a>{text}</a>", stream, NOW + int(seconds * SECOND))


def arriving(documents: list[Document], seed: int, lateness: int) -> list[list[Document]]:
    """Documents in an order in which each is delayed by at most the lateness, in batches of any size."""
    rng = random.Random(seed)
    ordered = sorted(documents, key=lambda d: (d.t1 + rng.randint(0, lateness), rng.random()))
    batches: list[list[Document]] = [[]]
    for document in ordered:
        if rng.random() < 0.4:
            batches.append([])
        batches[-1].append(document)
    return batches


def assert_any_order(engine: object, seed: int, queries: int, documents: int) -> int:
    """Asserts that a random order within the lateness gives what the order of time gives; how much that is."""
    script, samples = random_case(seed, queries, documents)
    times = sorted(d.t1 for d in samples)
    lateness = (times[-1] - times[0]) // 3 + 1
    unique = list({(d.stream, d.id): d for d in samples}.values())
    found = []
    for batches in (arriving(unique, seed, lateness), [[d] for d in sorted(unique, key=lambda d: d.t1)]):
        # That of a stream is a bound like that of all.
        allowed = {"*": lateness, "S": lateness + seed} if seed % 2 else lateness
        with Session(engine, lateness=allowed) as opened:  # type: ignore[arg-type]
            opened.ensure(script)
            found.append(comparable(as_row(o) for batch in batches for o in opened.process(batch)))
            assert opened.counters().dead_letters == 0
    assert found[0] == found[1]
    return len(found[0])


@pytest.mark.parametrize("seed", seeds(3, 50))
def test_any_order_within_the_lateness_gives_the_same(seed: int):
    assert_any_order("duckdb", seed, 8, 12)


@pytest.mark.soak
@given(st.integers(0, 2**32))
def test_any_order_within_the_lateness_gives_the_same_at_length(seed: int):
    assert_any_order("duckdb", seed, 8, 12)


def test_any_order_within_the_lateness_gives_the_same_on_spark(spark: SparkSession):
    assert sum(assert_any_order(spark, seed, 8, 6) for seed in (3, 4)) > 0


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


def kept(engine: Session) -> int:
    return int(engine.sql("SELECT count(*) AS n FROM r_docts")["n"][0].as_py())


def test_a_silent_stream_goes_on_with_the_clock():
    time = Time()
    with Session("duckdb", lateness=60 * SECOND, idle_after=HOUR, now=time) as engine:
        engine.subscribe("S/a->x JOIN {x = y, 10} T/a->y")
        engine.process([doc(0), doc(0, "T")])
        time.now += 2 * HOUR - 1
        engine.process([doc(7190)])
        # T is silent for longer than an hour: it has come to an hour ago, and what only it held back is let go of.
        assert engine.watermarks()["T"] == time.now - HOUR - 60 * SECOND and kept(engine) == 1
        late = doc(600, "T")
        assert engine.process([late]) == [] and [row["id"] for row in engine.dead_letters()] == ["T600"]
        assert len(engine.process([doc(7191, "T")])) == 1


@pytest.mark.parametrize("spread", [False, pytest.param(True, marks=pytest.mark.spark)])
def test_silence_lets_go_of_state_without_a_document(spread: bool, tmp_path: Path, request: pytest.FixtureRequest):
    time, made = Time(), "S/a->x JOIN {x = y, 10} T/a->y PUBLISH P; P/match->p JOIN {p = q, 5} U/a->q"
    engine = request.getfixturevalue("spark") if spread else "duckdb"
    options = {"lateness": 60 * SECOND, "idle_after": HOUR, "now": time}
    with Session(engine, state=tmp_path, **options) as opened:  # type: ignore[arg-type]
        opened.subscribe(made)
        opened.process([doc(0), doc(0, "T"), doc(0, "U")])
        opened.process([doc(1000)])
        batch, before = opened.batch, kept(opened)
        time.now += HOUR - 1
        assert not opened.pass_time() and opened.watermarks()["S"] == NOW + 940 * SECOND
        time.now += 2 * 60 * SECOND
        # All are silent: T and U have come as far as an hour ago, and S is ahead of that.
        assert opened.pass_time() and kept(opened) < before and opened.batch == batch + 1
        assert opened.watermarks()["T"] == time.now - HOUR - 60 * SECOND
        behind = opened.registry.sources("P")
        assert opened.horizon()[0] == opened._components.watermarks.of(behind) == time.now - HOUR - 60 * SECOND
        time.now += HOUR // 60 - 1
        assert not opened.pass_time()  # nothing more to let go of
        time.now += 2000 * SECOND
        assert opened.pass_time() and kept(opened) == 0 and not opened.pass_time()
        assert opened.process([doc(900)]) == [] and opened.counters().dead_letters == 1
    with Session(engine, state=tmp_path, **options) as opened:  # type: ignore[arg-type]
        opened.process([doc(900, id="again")])
        assert opened.counters().dead_letters == 1  # late for good


def test_a_service_lets_time_pass(tmp_path: Path):
    place, time = Directory(tmp_path), Time()
    place.drop("1.jsonl", range(NOW // SECOND, NOW // SECOND + 3))
    with Session("duckdb", state=place.state, lateness=0, idle_after=HOUR, now=time) as engine:
        engine.subscribe(PAIRS)

        def later(_: Session) -> None:
            time.now += HOUR

        place.service(engine, on_idle=later).run(0, StopAfter(12))
        assert kept(engine) == 0 and len(place.pairs()) == 3


@pytest.mark.parametrize("reopened", [False, True])
def test_each_stream_may_have_a_lateness_of_its_own(reopened: bool, tmp_path: Path):
    lateness = {"*": 5 * SECOND, "T": HOUR, "U": None}
    engine = Session("duckdb", state=tmp_path, lateness=lateness)
    engine.subscribe("S/a->x JOIN {x = y, 10} T/a->y")
    engine.process([doc(100), doc(100, "T"), doc(100, "U")])
    if reopened:
        engine.close()
        with Session("duckdb", state=tmp_path) as asked:  # as `mmqjp status` does
            assert asked.watermarks() == {"S": NOW + 95 * SECOND, "T": NOW + 100 * SECOND - HOUR}
            assert asked.horizon()[0] == NOW + 100 * SECOND - HOUR
        engine = Session("duckdb", state=tmp_path, lateness=lateness)
    with engine:
        assert engine.watermarks() == {"S": NOW + 95 * SECOND, "T": NOW + 100 * SECOND - HOUR}
        engine.process([doc(94), doc(96), doc(94, "T"), doc(-1e6, "U")])
        assert [row["id"] for row in engine.dead_letters()] == ["S94"]
        engine.process([doc(1000, "T")])
        assert kept(engine) == 6  # S is behind, and waited for
        assert engine.process([doc(5000), doc(5000, "T")]) != [] and kept(engine) == 2


def test_a_stream_of_any_lateness_holds_all_back_that_is_joined_with_it():
    with Session("duckdb", lateness={"*": 0, "T": None}) as engine:
        engine.subscribe("S/a->x JOIN {x = y, 10} T/a->y")
        for seconds in (0, 1000, 2000):
            engine.process([doc(seconds), doc(seconds, "T")])
        assert kept(engine) == 6 and engine.horizon() == (None, None) and "T" not in engine.watermarks()


def test_without_idleness_a_stream_that_never_comes_holds_all_back():
    time = Time()
    with Session("duckdb", lateness=0, now=time) as engine:
        engine.subscribe("S/a->x JOIN {x = y, 10} T/a->y")
        for seconds in (0, 1000, 2000):
            engine.process([doc(seconds)])
        assert kept(engine) == 3 and engine.horizon() == (None, None)


def test_a_document_from_the_future_is_a_dead_letter_and_moves_no_watermark():
    time = Time()
    with Session("duckdb", lateness=SECOND, max_ahead=DAY, now=time) as engine:
        engine.subscribe(WINDOW)
        engine.process([doc(0), doc(86_401), doc(86_400 - 1, text="w")])
        (letter,) = engine.dead_letters()
        assert letter["id"] == "S86401" and letter["reason"].startswith("from the future: 86401000000 µs ahead")
        assert engine.watermarks() == {"S": NOW + DAY - 2 * SECOND}


def test_a_published_stream_has_come_as_far_as_the_last_of_its_inputs():
    with Session("duckdb", lateness=0) as engine:
        engine.subscribe("S/a->x JOIN {x = y, INF} T/a->y PUBLISH P; P/match JOIN {m = n, 5} U/a->n".replace(
            "P/match JOIN", "P/match->m JOIN"
        ))  # fmt: skip
        engine.process([doc(0), doc(100, "T"), doc(50, "U")])
        assert engine.horizon()[0] == NOW
        assert engine._components.watermarks.of(engine.registry.sources("P")) == NOW


def test_watermarks_last_although_their_documents_are_dropped(tmp_path: Path):
    with FaultySession("duckdb", state=tmp_path, lateness=SECOND) as engine:
        engine.subscribe(WINDOW)
        engine.process([doc(0)])
        engine.process([doc(1000)])
        engine.process([doc(2000, "T")])
        engine.prune(0)
        assert engine.sql("SELECT id FROM documents ORDER BY id")["id"].to_pylist() == ["S1000", "T2000"]
        with whole_batch(engine.store):
            engine.store.drop_before("documents", "t0", NOW + 10**12)
    with FaultySession("duckdb", state=tmp_path, lateness=SECOND) as engine:
        assert engine.watermarks() == {"S": NOW + 999 * SECOND, "T": NOW + 1999 * SECOND}
        engine.process([doc(500)])
        assert engine.counters().dead_letters == 1


def test_what_is_dropped_is_needed_by_nobody(tmp_path: Path):
    chain = "S/a->x FOLLOWED BY {x = y, 50} S/a->y FOLLOWED BY {y = z, 50} S/a->z PUBLISH chain"
    documents = [doc(second) for second in range(0, 600 if at_length() else 300, 7)]
    found = []
    for keep in (None, 0):
        with Session("duckdb", lateness=5 * SECOND) as engine:
            engine.subscribe(f"{WINDOW}; {chain}")
            got: list[Output] = []
            for document in documents:
                got += engine.process([document])
                mark_delivered(engine)
                if keep is not None:
                    engine.prune(keep)
            found.append(comparable(map(as_row, got)))
            tables = ("documents", "outputs", "match_rows", "matches", "answers", "answer_matches", "settings")
            left = {table: engine.sql(f"SELECT count(*) AS n FROM {table}")["n"][0].as_py() for table in tables}
    assert found[0] == found[1] and len(found[0]) > 400
    assert left["documents"] < 120 and left["outputs"] < 30 and left["matches"] < 60 and left["settings"] < 12
    assert left["answers"] < 30 and left["answer_matches"] < 60 and left["match_rows"] < 60


def test_the_ids_of_dropped_documents_are_known_for_a_while():
    with Session("duckdb", lateness=SECOND) as engine:
        engine.subscribe(WINDOW)
        engine.process([doc(0), Document("bad", "<a>", time=NOW)])
        engine.process([doc(1000)])
        mark_delivered(engine)
        engine.prune(SECOND)
        engine.process([doc(0)])
        assert engine.counters().duplicates == 1 and engine.counters().dead_letters == 1
        engine.process([doc(1000 + ID_RETENTION // SECOND + 2)])
        engine.prune(SECOND)
        engine.process([doc(0)])
        assert engine.counters().dead_letters == 2  # late, no longer known


@pytest.mark.soak
def test_old_rows_go_from_files_too(spark: SparkSession, tmp_path: Path):
    time = Time()
    for start in range(2):
        with Session(spark, state=tmp_path, lateness=SECOND, now=time) as engine:
            engine.subscribe(WINDOW)
            for seconds in range(start * 60, start * 60 + 60, 20):
                engine.process([doc(seconds), doc(seconds + 1), Document(f"bad{seconds}", "<a>", time=NOW)])
            mark_delivered(engine)
            time.now += 1000 * SECOND
            engine.prune(500 * SECOND)
            engine.prune(10 * SECOND)
            assert engine.sql("SELECT count(*) AS n FROM dead_letters")["n"][0].as_py() == 0
            ids = engine.sql("SELECT id FROM documents WHERE kind = 'external' ORDER BY t0")["id"].to_pylist()
            assert ids == [f"S{start * 60 + n}" for n in (40, 41)]
            assert engine.sql("SELECT count(*) AS n FROM outputs")["n"][0].as_py() == 2


def test_an_archive_met_at_the_first_fetch_gets_its_time(tmp_path: Path):
    item = "<item><title>{0}</title><guid>{0}</guid><pubDate>{1}</pubDate></item>"
    old, new = "Mon, 05 Jan 2026 00:00:00 GMT", "Sun, 01 Feb 2026 00:00:00 GMT"

    def drop(name: str, fetched: str, *items: str) -> None:
        (tmp_path / f"{name}.json").write_text(json.dumps({"url": "http://f/", "fetched_at": fetched}))
        (tmp_path / f"{name}.xml").write_text(f"<rss><channel><title>t</title>{''.join(items)}</channel></rss>")

    drop("1", "2026-02-01T12:00:00Z", item.format("a", old), item.format("b", new))
    positions: dict[tuple[str, str], Offset] = {}
    kept: dict[str, str] = {}

    def read() -> dict[str, int]:
        found = {}
        history = History(lateness=DAY)
        history.load(kept)
        tail = Tail(tmp_path, feeds="item")
        for waiting in waiting_files([tail], positions):
            for read in judged(waiting.read(), history):
                positions[read.offset.source, read.offset.file] = read.offset
                if isinstance(read.item, Document):
                    found[read.item.id.split()[1]] = read.item.t1
        kept.update(history.changed())
        return found

    assert read() == {"a": 1_769_947_200 * SECOND, "b": 1_769_904_000 * SECOND}
    drop("2", "2026-02-02T12:00:00Z", item.format("c", old))
    assert read() == {"c": 1_767_571_200 * SECOND}  # late, as it says


def test_a_service_drops_what_is_old_and_superseded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mmqjp.service.loop.PRUNE_INTERVAL", 3)
    monkeypatch.setattr("mmqjp.state.eviction.OFFSETS_COMPACTED_AFTER", 0)
    place = Directory(tmp_path)
    with Session("duckdb", state=place.state, lateness=SECOND) as engine:
        engine.subscribe(PAIRS)
        for run in range(12):
            for path in place.drops.iterdir():
                path.unlink()
            place.drop(f"{run}.jsonl", range(run * 20, run * 20 + 3))
            place.service(engine, keep=0).run(None, StopAfter(10**9))
        for path in place.drops.iterdir():
            path.unlink()
        place.drop("last.jsonl", range(300, 312))
        place.service(engine, keep=0, batch_size=2).run(None, StopAfter(10**9))
        assert engine.sql("SELECT count(DISTINCT file) AS n FROM offsets")["n"][0].as_py() == 1
        assert engine.sql("SELECT max(t1) - min(t0) AS t FROM documents")["t"][0].as_py() < 20 * SECOND
    assert len(place.pairs()) == 12 * 3 + 65
    place.run()
    assert len(place.pairs()) == 12 * 3 + 65


def test_what_time_costs_does_not_grow_with_streams_queries_and_documents(monkeypatch: pytest.MonkeyPatch):
    def counted(counts: Counter[str], what: object, name: str) -> None:
        called = getattr(what, name)

        def counting(*given: object) -> object:
            counts[name] += 1
            return called(*given)

        monkeypatch.setattr(what, name, counting)

    time, counts = Time(), Counter[str]()
    with Session("duckdb", lateness=SECOND, idle_after=HOUR, now=time) as engine:
        engine.subscribe("; ".join(f"{'S' if n == 0 else f'P{n}'}//a->x PUBLISH P{n + 1}" for n in range(30)))
        engine.subscribe(WINDOW)
        engine.process([doc(0, f"T{n}") for n in range(100)])
        counted(counts, watermarks, "_watermark")
        counted(counts, engine.registry, "made_of")
        engine.process([doc(number / 100, stream) for number in range(50) for stream in ("S", "T1", "T2")])
        assert counts["_watermark"] == 3 + 1  # the streams of the documents, and what all queries read
        assert counts["made_of"] <= 3  # of streams that no query reads it is only asked whether that is so
        counts.clear()
        engine.pass_time()
        assert counts["_watermark"] <= 1 and not counts["made_of"]
        engine.subscribe("P30//a->x PUBLISH P31")
        engine.process([doc(1)])
        assert counts["made_of"] <= 2 * 32 and engine.registry.outside() == {"S"}
