"""Time: order of arrival, lateness, silence, the future, archives, eviction (docs/semantics.md, section 16)."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from feeds.documents import Document, Visit, VisitOutcome
from mmqjp.answers.output import Output
from mmqjp.documents import watermarks
from mmqjp.documents.watermarks import Lateness, Timing
from mmqjp.engine import Session
from tests.generate.seeds import at_length
from tests.oracle.evaluation import comparable
from tests.support.agreement import as_row
from tests.support.delivery import mark_delivered
from tests.support.fake_sinks import Clock
from tests.support.faults import FaultySession, Injected, fail
from tests.support.service import PAIRS, Directory, StopAfter

SECOND, HOUR, DAY = 1_000_000, 3_600_000_000, 86_400_000_000
NOW = 1_800_000_000 * SECOND
WINDOW = "S/a->x JOIN {x = y, 10} S/a->y PUBLISH pairs"


def doc(seconds: float, stream: str = "S", text: str = "v", id: str | None = None) -> Document:
    return Document(id or f"{stream}{seconds}", f"<a>{text}</a>", stream, NOW + int(seconds * SECOND))


def kept(engine: Session) -> int:
    return int(engine.sql("SELECT count(*) AS n FROM r_docts")["n"][0].as_py())


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.soak])])
def test_silence_lets_go_of_state_without_a_document(engine: str, tmp_path: Path):
    time, made = Clock(NOW), "S/a->x JOIN {x = y, 10} T/a->y PUBLISH P; P/match->p JOIN {p = q, 5} U/a->q"
    options = {"lateness": 60 * SECOND, "idle_after": HOUR, "now": time, "belated": "drop"}
    with Session(engine, state=tmp_path, **options) as opened:  # type: ignore[arg-type]
        opened.subscribe(made)
        opened.process([doc(0), doc(0, "T"), doc(0, "U")])
        opened.process([doc(1000)])
        batch, before = opened.batch, kept(opened)
        time.time += HOUR - 1
        assert not opened.pass_time() and opened.watermarks()["S"] == NOW + 940 * SECOND
        time.time += 2 * 60 * SECOND
        # All are silent: T and U have come as far as an hour ago, and S is ahead of that.
        assert opened.pass_time() and kept(opened) < before and opened.batch == batch + 1
        assert opened.watermarks()["T"] == time.time - HOUR - 60 * SECOND
        behind = opened.registry.sources("P")
        assert opened.horizon()[0] == opened._batches.watermarks.of(behind) == time.time - HOUR - 60 * SECOND
        time.time += HOUR // 60 - 1
        assert not opened.pass_time()  # nothing more to let go of
        time.time += 2000 * SECOND
        assert opened.pass_time() and kept(opened) == 0 and not opened.pass_time()
        assert opened.process([doc(900)]) == [] and opened.counters().dead_letters == 1
    with Session(engine, state=tmp_path, **options) as opened:  # type: ignore[arg-type]
        opened.process([doc(900, id="again")])
        assert opened.counters().dead_letters == 1  # late for good


def test_a_service_lets_time_pass(tmp_path: Path):
    place, time = Directory(tmp_path), Clock(NOW)
    place.drop("1.jsonl", range(NOW // SECOND, NOW // SECOND + 3))
    with Session("duckdb", state=place.state, lateness=0, idle_after=HOUR, now=time) as engine:
        engine.subscribe(PAIRS)

        def later(_: Session) -> None:
            time.time += HOUR

        place.service(engine, on_idle=later).run(0, StopAfter(12))
        assert kept(engine) == 0 and len(place.pairs()) == 3


def test_each_stream_may_have_a_lateness_of_its_own(tmp_path: Path):
    lateness = {"*": 5 * SECOND, "T": HOUR, "U": None}
    with Session("duckdb", state=tmp_path, lateness=lateness) as engine:
        engine.subscribe("S/a->x JOIN {x = y, 10} T/a->y")
        engine.process([doc(100), doc(100, "T"), doc(100, "U")])
    with Session("duckdb", state=tmp_path) as asked:  # as `mmqjp status` does
        assert asked.watermarks() == {"S": NOW + 95 * SECOND, "T": NOW + 100 * SECOND - HOUR}
        assert asked.horizon()[0] == NOW + 100 * SECOND - HOUR
    with Session("duckdb", state=tmp_path, lateness=lateness, belated={"*": "take", "S": "drop"}) as engine:
        assert engine.watermarks() == {"S": NOW + 95 * SECOND, "T": NOW + 100 * SECOND - HOUR}
        engine.process([doc(94), doc(96), doc(94, "T"), doc(-1e6, "U")])
        assert [row["id"] for row in engine.dead_letters()] == ["S94"]
        engine.process([doc(1000, "T")])
        assert kept(engine) == 6  # S is behind, and waited for
        assert engine.process([doc(5000), doc(5000, "T")]) != [] and kept(engine) == 2


def visit(feed: str, seconds: int, outcome: VisitOutcome = "complete") -> Visit:
    return Visit(feed, NOW + seconds * SECOND, outcome)


def shown(seconds: int) -> Document:
    return Document(f"e{seconds}", "<a>v</a>", time=NOW + seconds * SECOND, feed="one")


COURSE: list[tuple[Document | Visit, int | None]] = [
    (shown(900), None),  # what feeds show moves nothing
    (visit("one", 10), 10),
    (visit("two", 5), 10),  # a new feed does not take it back
    (visit("one", 20), 10),
    (visit("two", 15), 15),  # the least of both
    (visit("two", 14), 15),
    (visit("one", 116), 116),  # two has been silent for more than 100 s
    (visit("two", 118), 116),
    (visit("three", 0, "awaited"), 116),
    (visit("one", 130), 116),
    (visit("two", 125), 116),
    (visit("three", 120), 120),
    (visit("three", 0, "awaited"), 120),  # it was visited, and is not waited for
    (visit("one", 140), 120),
    (visit("three", 141, "ended"), 125),
    (visit("four", 0, "awaited"), 125),
    (visit("two", 150), 125),
    (visit("four", 151, "ended"), 140),
    (doc(130), 140),  # from now on the stream is of both kinds
    (visit("one", 160), 140),
    (doc(145), 145),
    (doc(170), 150),
    (visit("two", 86_401 + 200), 150),  # from the future
    (visit("one", 155, "ended"), 150),  # it was visited since
    (visit("one", 160, "ended"), 150),
    (visit("two", 156, "ended"), 170),  # no feed is there any more
    (doc(1000), 1000),
    (visit("five", 1100), 1000),
    (doc(5000), 1100),
    (visit("six", 1800), 1100),  # who was visited once is waited for a day
    (visit("five", 1700), 1700),
    (visit("six", 2900), 1700),  # twice its interval has not passed
    (visit("six", 2901), 2901),
    (doc(86_000), 2901),
    (visit("seven", -7000, "awaited"), 2901),
    (visit("six", 79_400), 2901),
    (visit("six", 79_401), 79_401),  # what is awaited is so for a day
    (visit("six", 79_401, "awaited"), 79_401),  # it was visited since
    (visit("eight", 79_500), 79_401),
    (visit("six", 79_600, "awaited"), 79_401),  # it is about to be visited again
    (visit("eight", 80_000), 79_401),
    (visit("six", 80_100), 80_000),
    (visit("eight", 86_000), 80_100),  # for a day, since visits begin anew
]
"""What arrives, and how far it brings the stream, in seconds after NOW."""


@pytest.mark.parametrize("how", ["at once", "one by one", "restarts", "failures"])
def test_a_stream_comes_as_far_as_visits_of_its_feeds_say(how: str, tmp_path: Path):
    timing = Timing(lateness=SECOND, idle_after=100 * SECOND, max_ahead=DAY)

    def opened(lateness: int = SECOND) -> FaultySession:
        kept = tmp_path if how == "restarts" else None
        return FaultySession("duckdb", state=kept, now=Clock(NOW), **asdict(replace(timing, lateness=lateness)))

    engine = opened()
    if how == "at once":
        engine.process([item for item, _ in COURSE])
        assert engine.watermarks() == {"S": NOW + (80_100 - 1) * SECOND}
        return
    for number, (item, expected) in enumerate(COURSE):
        if how == "failures":
            with pytest.raises(Injected):
                engine.process([*(later for later, _ in COURSE[number : number + 3])], fail)
        engine.process([item])
        watermarks = {} if expected is None else {"S": NOW + (expected - 1) * SECOND}
        assert engine.watermarks() == watermarks, item
        if how == "restarts":
            engine.close()
            with opened(SECOND * 50) as other:  # more lateness takes nothing back
                assert other.watermarks() == watermarks, item
                other.prune(None)
            engine = opened()
    engine.close()


def test_a_finite_run_ends_where_its_feeds_were_visited(tmp_path: Path):
    """A stream with feeds is decided up to their visits, any other to its end; events go by the least of all."""
    text = (
        "FROM {0}/a->x NOT FOLLOWED BY {{x = y, 10}} {0}/b->y PUBLISH {0}1; DEFINE EVENT {0}E FROM {0}/a->x (a := x);"
    )
    script = "".join(text.format(stream) for stream in "ST") + "FROM SE PUBLISH S2; FROM TE PUBLISH T2"
    events = {"S2": ["S0"], "T2": ["T0"]}
    for state, told in ((None, {"S1": ["S0"], "T1": ["T0", "T20"], **events}), (tmp_path, events)):
        with Session("duckdb", state=state, settle=None) as engine:
            engine.subscribe(script)
            gone = visit("gone", -9 * 86_400)  # for longer than its stream waits for it
            items = visit("one", 0, "awaited"), gone, doc(0), doc(20), visit("one", 11), doc(0, "T"), doc(20, "T")
            assert engine.process(items) == []
            found: dict[str, list[str]] = {}
            for output in engine.finish():
                found.setdefault(output.query, []).append(output.documents[0])
            assert found == told


@pytest.mark.parametrize(("lateness", "streams"), [({"*": 0, "T": None}, "ST"), (0, "S")])
def test_a_stream_of_any_lateness_or_without_documents_holds_all_back(lateness: Lateness, streams: str):
    with Session("duckdb", lateness=lateness, now=Clock(NOW)) as engine:
        engine.subscribe("S/a->x JOIN {x = y, 10} T/a->y")
        for seconds in (0, 1000, 2000):
            engine.process([doc(seconds, stream) for stream in streams])
        assert kept(engine) == 3 * len(streams) and engine.horizon() == (None, None)
        assert "T" not in engine.watermarks()


def test_a_document_from_the_future_is_a_dead_letter_and_moves_no_watermark():
    time = Clock(NOW)
    with Session("duckdb", lateness=SECOND, max_ahead=DAY, now=time) as engine:
        engine.subscribe(WINDOW)
        engine.process([doc(0), doc(86_401), doc(86_400 - 1, text="w")])
        (letter,) = engine.dead_letters()
        assert letter["id"] == "S86401" and letter["reason"].startswith("from the future: 86401000000 µs ahead")
        assert engine.watermarks() == {"S": NOW + DAY - 2 * SECOND}


def test_what_is_dropped_is_needed_by_nobody(tmp_path: Path):
    chain = "S/a->x FOLLOWED BY {x = y, 50} S/a->y FOLLOWED BY {y = z, 50} S/a->z PUBLISH chain"
    documents = [doc(second) for second in range(0, 600 if at_length() else 130, 7)]
    tables = ("documents", "outputs", "match_rows", "matches", "answers", "answer_matches")
    found, left = [], []
    for keep in (None, 0):
        with Session("duckdb", lateness=5 * SECOND) as engine:
            engine.subscribe(f"{WINDOW}; {chain}")
            got: list[Output] = []
            for document in documents:
                got += engine.process([document])
                mark_delivered(engine)
                if keep is not None and len(got) % 3 == 0:
                    engine.prune(keep)
            found.append(comparable(map(as_row, got)))
            counts = (f"SELECT count(*) AS n FROM {table}" for table in (*tables, "settings"))
            left.append([engine.sql(count)["n"][0].as_py() for count in counts])
    assert found[0] == found[1] and len(found[0]) > 100
    assert left[1].pop() < 20  # those since the last prune
    assert all(2 * few < many for few, many in zip(left[1], left[0], strict=False)), left


def test_a_service_drops_what_is_old_and_superseded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mmqjp.service.loop.PRUNE_INTERVAL", 3)
    monkeypatch.setattr("mmqjp.service.loop.PRUNE_SECONDS", 0.0)
    monkeypatch.setattr("mmqjp.state.eviction.OFFSETS_COMPACTED_AFTER", 0)
    place = Directory(tmp_path)
    with Session("duckdb", state=place.state, lateness=SECOND) as engine:
        engine.subscribe(PAIRS)
        for run in range(6):
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
    assert len(place.pairs()) == 6 * 3 + 65
    place.run()
    assert len(place.pairs()) == 6 * 3 + 65


def test_what_time_costs_does_not_grow_with_streams_queries_and_documents(monkeypatch: pytest.MonkeyPatch):
    def counted(counts: Counter[str], what: object, name: str) -> None:
        called = getattr(what, name)

        def counting(*given: object) -> object:
            counts[name] += 1
            return called(*given)

        monkeypatch.setattr(what, name, counting)

    time, counts = Clock(NOW), Counter[str]()
    with Session("duckdb", lateness=SECOND, idle_after=HOUR, now=time) as engine:
        engine.subscribe("; ".join(f"{'S' if n == 0 else f'P{n}'}//a->x PUBLISH P{n + 1}" for n in range(30)))
        engine.subscribe(WINDOW)
        engine.process([doc(0, f"T{n}") for n in range(100)])
        counted(counts, watermarks, "_watermark")
        counted(counts, engine.registry, "made_of")
        engine.process([doc(number / 100, stream) for number in range(10) for stream in ("S", "T1", "T2")])
        assert counts["_watermark"] == 1  # what all queries read
        assert counts["made_of"] <= 3  # of streams that no query reads it is only asked whether that is so
        counts.clear()
        engine.pass_time()
        assert counts["_watermark"] <= 1 and not counts["made_of"]
        engine.subscribe("P30//a->x PUBLISH P31")
        engine.process([doc(1)])
        assert counts["made_of"] <= 2 * 32 and engine.registry.outside() == {"S"}
