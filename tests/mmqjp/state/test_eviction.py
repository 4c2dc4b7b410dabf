from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.documents import Document
from join_stage.signature import join
from join_stage.signature.plan import SignaturePlan
from join_stage.store.protocol import StoreError
from mmqjp.engine import Session
from mmqjp.state.eviction import MAX_GAPS, CoverageGap, Gaps, missed_from, with_gap, with_recalled
from tests.mmqjp.documents.test_time import kept
from tests.support.delivery import mark_delivered

SECOND, HOUR = 1_000_000, 3_600_000_000
NOW = 1_800_000_000 * SECOND


def doc(hours: float) -> Document:
    return Document(f"d{hours:g}", "<r>v</r>", "S", NOW + int(hours * HOUR))


GAPS = st.lists(st.builds(CoverageGap, st.integers(0, 60), st.integers(0, 20)), max_size=40)


@given(GAPS, st.integers(0, 80))
def test_gaps_miss_nothing_that_any_eviction_left_out(evictions, time):
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


def test_documents_are_evicted_when_there_is_a_part_of_the_window_to_evict():
    wide = "S/r->x JOIN {x = y, 32 h} S/r->y PUBLISH pairs"
    with Session("duckdb", lateness=0, now=lambda: NOW + 300 * HOUR) as engine:
        engine.subscribe(wide)
        engine.process([doc(half_hours / 2) for half_hours in range(60)])
        counts = [kept(engine)]
        for half_hours in range(60, 84):
            engine.process([doc(half_hours / 2)])
            counts.append(kept(engine))
        evictions = [number for number, pair in enumerate(pairwise(counts)) if pair[1] <= pair[0]]
        assert max(counts) <= 32 * 2 + 1 + 3
        assert 2 <= len(evictions) <= 16
        mark_delivered(engine)
        engine.prune(0)
        assert kept(engine) == 32 * 2 + 1
        assert engine.sql("SELECT min(t0) AS t FROM documents")["t"][0].as_py() >= NOW + 9 * HOUR


START = 1_767_225_600 * SECOND
QUERY = "S//i->x[./k->p] JOIN {p = q, 1 h} S//o->y[./k->q] PUBLISH n"


def posted(tag: str, value: int, second: int) -> Document:
    return Document(f"d{second}", f"<{tag}><k>{value}</k></{tag}>", "S", START + second * SECOND)


def test_postings_that_cannot_be_loaded_are_loaded_again(tmp_path, monkeypatch):
    monkeypatch.setattr(join, "MOST_IN_MEMORY", 0)
    with Session("duckdb", state=tmp_path) as session:
        session.subscribe(QUERY)
        session.process([posted("i", second, second) for second in range(20)])
        session.subscribe("S//i->x[./k->p] PUBLISH m", backfill=True)  # has the postings built anew
        with monkeypatch.context() as full:
            full.setattr("join_stage.signature.plan.READ_DOCUMENTS", 3)
            full.setattr(SignaturePlan, "_settle", _no_room)
            with pytest.raises(StoreError, match="no room"):
                session.process([posted("o", 7, 30)])
        session.pause("m")  # a batch without documents
    with Session("duckdb", state=tmp_path) as session:
        assert [output.query for output in session.process([posted("o", 7, 31), posted("o", 19, 32)])] == ["n", "n"]


def _no_room(plan: SignaturePlan, end: int, *, wholly: bool = False) -> None:
    if end >= 9:
        raise StoreError("no room")
