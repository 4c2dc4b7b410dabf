"""Eviction never changes a result: what comes after all meets what had left the join state, or is a dead letter."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.documents import Document
from join_stage.protocol import PLANS
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.state.eviction import MAX_GAPS, CoverageGap, Gaps, Reach, missed_from, with_gap, with_recalled
from tests.generate.seeds import seeds
from tests.support.delivery import mark_delivered, undelivered
from tests.support.faults import FaultySession, Injected
from tests.support.in_turn import in_turn

Case = Callable[[Path, str], None]

SECOND, HOUR = 1_000_000, 3_600_000_000
NOW = 1_800_000_000 * SECOND
JOINED = "A/r->x JOIN {x = y, 2 h} P//r->y PUBLISH joined"
WINDOW = "S/r->x JOIN {x = y, 2 h} S/r->y PUBLISH pairs"


def doc(hours: float, stream: str = "S", id: str | None = None) -> Document:
    return Document(id or f"{stream}{hours:g}", "<r>v</r>", stream, NOW + int(hours * HOUR))


def joined(outputs: Sequence[Output]) -> list[tuple[str, ...]]:
    return sorted(output.documents for output in outputs if output.query == "joined")


def kept(engine: Session) -> int:
    return int(engine.sql("SELECT count(*) AS n FROM r_docts")["n"][0].as_py())


def evicting(state: Path, plan: str) -> Session:
    """An engine whose stream A is far ahead, and has evicted its old documents."""
    found = Session("duckdb", state=state, lateness=HOUR, idle_after=HOUR, now=lambda: NOW + 100 * HOUR, plan=plan)
    found.subscribe(JOINED)
    for hours in (0, 1, 2):
        assert found.process([doc(hours, "A")]) == []
    assert found.process([doc(100, "A")]) == []
    return found


def assert_a_backfill_meets_what_was_evicted(state: Path, plan: str) -> None:
    with Session("duckdb", state=state, plan=plan) as opened:
        opened.process([doc(1, "B"), doc(50, "B")])
    with evicting(state, plan=plan) as opened:
        opened.process([doc(99.5, "P")])
        opened.process([doc(100.5, "A")])
        mark_delivered(opened)
        opened.subscribe("B/r PUBLISH P", backfill=True)
        assert joined(list(undelivered(opened))) == [("A0", "B1"), ("A1", "B1"), ("A2", "B1")]


def assert_a_new_publisher_meets_what_was_evicted(state: Path, plan: str) -> None:
    with evicting(state, plan=plan) as opened:
        opened.process([doc(99.5, "P")])
        opened.process([doc(100.5, "A")])
        opened.subscribe("B/r PUBLISH P")  # a stream that was not seen before
        assert joined(opened.process([doc(1, "B")])) == [("A0", "B1"), ("A1", "B1"), ("A2", "B1")]
        assert joined(opened.process([doc(3, "B")])) == [("A1", "B3"), ("A2", "B3")]
        assert not list(opened.dead_letters())


def assert_more_lateness_has_the_partners(state: Path, plan: str) -> None:
    """A state that is opened with more lateness, or without, has the partners of what it accepts now."""
    with Session("duckdb", state=state, lateness=HOUR, plan=plan) as opened:
        opened.subscribe(WINDOW)
        for hours in (0, 1, 2, 100):
            opened.process([doc(hours)])
    with Session("duckdb", state=state, lateness=200 * HOUR, plan=plan) as opened:
        got = {output.documents for output in opened.process([doc(3, id="late")])}
        assert got == {(a, b) for one in ("S1", "S2") for a, b in ((one, "late"), ("late", one))}
    with Session("duckdb", state=state, plan=plan) as opened:
        got = {output.documents for output in opened.process([doc(-1, id="later")])}
        assert got == {(a, b) for one in ("S0", "S1") for a, b in ((one, "later"), ("later", one))}
    with Session("duckdb", state=state, lateness=HOUR, plan=plan) as opened:
        assert opened.process([doc(3, id="too late")]) == [] and len(list(opened.dead_letters())) == 1


CASES = [
    assert_a_backfill_meets_what_was_evicted,
    assert_a_new_publisher_meets_what_was_evicted,
    assert_more_lateness_has_the_partners,
]


@pytest.mark.parametrize(("case", "plan"), in_turn(CASES, PLANS))
def test_what_was_evicted_is_met(case: Case, plan: str, tmp_path: Path):
    case(tmp_path, plan)


def test_what_could_meet_documents_that_are_gone_is_late(tmp_path: Path):
    with Session("duckdb", state=tmp_path, lateness=HOUR) as engine:
        engine.subscribe(f"{WINDOW}; T/r PUBLISH alone")
        for hours in (0, 50, 100):
            engine.process([doc(hours), doc(hours, "T")])
        mark_delivered(engine)
        engine.prune(10 * HOUR)
    with Session("duckdb", state=tmp_path) as engine:
        # Documents that begin before hour 89 are gone.
        assert engine.process([doc(90.5, id="gone")]) == []
        (dead,) = engine.dead_letters()
        assert dead["id"] == "gone" and "still kept to be joined" in dead["reason"]
        assert engine.process([doc(91, id="kept")]) == []
        # Nothing is joined with what only a filter reads, or nobody.
        assert len(engine.process([doc(1, "T"), doc(1, "U")])) == 1
        assert len(list(engine.dead_letters())) == 1


def test_a_publisher_that_is_added_after_a_prune_is_late_with_what_could_meet_what_is_gone(tmp_path: Path):
    with Session("duckdb", state=tmp_path, lateness=HOUR) as engine:
        engine.subscribe(JOINED)
        for hours in (0, 50, 100):
            engine.process([doc(hours, "A"), doc(hours, "P")])
        mark_delivered(engine)
        engine.prune(10 * HOUR)  # documents that begin before hour 89 are gone
        assert joined(engine.process([doc(1, "B")])) == [] and not list(engine.dead_letters())
        engine.subscribe("B/r PUBLISH P; C/r PUBLISH Q")
    with Session("duckdb", state=tmp_path, lateness=HOUR) as engine:
        assert engine.process([doc(90.5, "B", "gone"), doc(1, "C")])
        (dead,) = engine.dead_letters()
        assert dead["id"] == "gone" and "still kept to be joined" in dead["reason"]
        assert joined(engine.process([doc(98.5, "B")])) == [("A100", "B98.5")]


def test_a_batch_that_fails_leaves_what_was_evicted_evicted(tmp_path: Path):
    with FaultySession("duckdb", state=tmp_path, lateness=HOUR) as engine:
        engine.subscribe(WINDOW)
        for hours in (0, 100):
            engine.process([doc(hours)])
    with FaultySession("duckdb", state=tmp_path) as engine:
        with engine.store.failing("commit"), pytest.raises(Injected):
            engine.process([doc(1)])
        assert kept(engine) == 1
        assert len(engine.process([doc(1)])) == 2 and kept(engine) == 3


def test_a_query_that_came_after_an_eviction_brings_nothing_back():
    with Session("duckdb", lateness=HOUR) as engine:
        engine.subscribe(WINDOW)
        for hours in (*range(20), 100):
            engine.process([doc(hours)])
        assert kept(engine) == 1
        engine.subscribe("S/r->x JOIN {x = y, 300 h} S/r->y PUBLISH wide")
        for hours in range(101, 140):
            engine.process([doc(hours)])
        assert kept(engine) == 40 and len(engine._components.state.reach.evicted) <= 2


@pytest.mark.parametrize("seed", seeds(2, 60))
def test_lateness_that_changes_at_every_start_changes_no_result(seed: int, tmp_path: Path):
    """Of the documents that are accepted all pairs within the window are given, each once."""
    rng = random.Random(seed)
    windows = {"near": rng.randint(1, 4), "far": rng.randint(4, 12)}
    got: list[tuple[str, tuple[str, ...]]] = []
    accepted: dict[str, float] = {}
    number = 0
    for start in range(6):
        lateness = rng.choice([None, HOUR, 5 * HOUR, 40 * HOUR])
        with Session("duckdb", state=tmp_path, lateness=lateness, plan=rng.choice(PLANS)) as engine:
            if start == 0:
                for name, hours in windows.items():
                    engine.subscribe(f"S/r->x JOIN {{x = y, {hours} h}} S/r->y PUBLISH {name}")
            for _ in range(4):
                batch = []
                for _ in range(rng.randint(1, 3)):
                    number += 1
                    batch.append(doc(rng.randint(0, 60), id=f"d{number}"))
                got += [(output.query, output.documents) for output in engine.process(batch)]
                dead = {row["id"] for row in engine.last_dead_letters()}
                accepted |= {d.id: d.t0 / HOUR for d in batch if d.id not in dead}
    expected = [
        (name, (one, other))
        for name, hours in windows.items()
        for one in accepted
        for other in accepted
        if one != other and abs(accepted[one] - accepted[other]) <= hours
    ]
    assert sorted(got) == sorted(expected)


GAPS = st.lists(st.builds(CoverageGap, st.integers(0, 60), st.integers(0, 20)), max_size=40)


@given(GAPS, st.integers(0, 80))
def test_gaps_miss_nothing_that_any_eviction_left_out(evictions: list[CoverageGap], time: int):
    gaps: Gaps = ()
    for gap in evictions:
        gaps = with_gap(gaps, gap)
    assert len(gaps) <= MAX_GAPS
    assert all(one.before > other.before for one, other in pairwise(gaps))
    # Of an eviction that a later one took in, its queries are gone, or the later one is as wide.
    last = evictions[-1:]
    for gap in last:
        if time - gap.window < gap.before:
            low = missed_from(gaps, time)
            assert low is not None and low <= time - gap.window
    low = missed_from(gaps, time)
    if low is not None:
        assert missed_from(with_recalled(gaps, low), time) is None
    else:
        assert all(time - gap.window >= gap.before for gap in gaps)


def test_a_note_of_how_far_a_store_reaches_is_read_as_it_was_written():
    reach = Reach((CoverageGap(3, 1), CoverageGap(2, 5)), (CoverageGap(1, 1),), frozenset({"S", "ö"}))
    assert Reach.from_setting(reach.to_setting()) == reach
    assert Reach.from_setting(None) == Reach()


def test_documents_are_evicted_when_there_is_a_part_of_the_window_to_evict():
    wide = "S/r->x JOIN {x = y, 64 h} S/r->y PUBLISH pairs"
    with Session("duckdb", lateness=0, now=lambda: NOW + 300 * HOUR) as engine:
        engine.subscribe(wide)
        engine.process([doc(half_hours / 2) for half_hours in range(124)])
        counts = [kept(engine)]
        for half_hours in range(124, 160):
            engine.process([doc(half_hours / 2)])
            counts.append(kept(engine))
        evictions = [number for number, pair in enumerate(pairwise(counts)) if pair[1] <= pair[0]]
        assert max(counts) <= 64 * 2 + 1 + 3
        assert 2 <= len(evictions) <= 16
        mark_delivered(engine)
        engine.prune(0)
        assert kept(engine) == 64 * 2 + 1
        assert engine.sql("SELECT min(t0) AS t FROM documents")["t"][0].as_py() >= NOW + 15 * HOUR
