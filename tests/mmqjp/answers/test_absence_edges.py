"""Absences at the edges of their times, a microsecond before and behind: which partner counts, and what decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from tests.generate.documents import SECOND
from tests.support.faults import FaultySession, Injected

T = 10 * SECOND
BEGINS, ENDS = 100 * SECOND, 100 * SECOND + 5
LATENESS = 3 * SECOND

PARTNERS = {
    "NOT FOLLOWED BY": (
        ((ENDS, ENDS), False),
        ((ENDS + 1, ENDS + 1), True),
        ((BEGINS + T, BEGINS + T), True),
        ((ENDS + 1, BEGINS + T), True),
        ((ENDS + 1, BEGINS + T + 1), False),
        ((BEGINS + T + 1, BEGINS + T + 1), False),
        ((BEGINS - 1, BEGINS - 1), False),
    ),
    "NOT JOIN": (
        ((BEGINS, ENDS), True),
        ((BEGINS + T, BEGINS + T), True),
        ((BEGINS + T + 1, BEGINS + T + 1), False),
        ((ENDS - T, ENDS - T), True),
        ((ENDS - T - 1, ENDS - T - 1), False),
        ((ENDS - T, BEGINS + T), False),
        ((ENDS - T, ENDS), True),
    ),
    "NOT PRECEDED BY": (
        ((BEGINS, BEGINS), False),
        ((BEGINS - 1, BEGINS - 1), True),
        ((BEGINS - 1, BEGINS), False),
        ((ENDS - T, ENDS - T), True),
        ((ENDS - T, BEGINS - 1), True),
        ((ENDS - T - 1, BEGINS - 1), False),
        ((ENDS + 1, ENDS + 1), False),
    ),
}
"""By operator, times of the other document, and whether it is a partner of one from BEGINS to ENDS."""

OVER = BEGINS + T + 1
"""The watermark that decides what did not follow, or come near, a document that begins at BEGINS."""


def query(op: str, name: str = "alone") -> str:
    return f"S/a->x {op} {{x = y, 10}} S/b->y PUBLISH {name}"


@pytest.mark.parametrize("op", PARTNERS)
def test_which_documents_are_partners(op: str):
    lefts = [Document(f"a{n}", f"<a>{n}</a>", time=(BEGINS, ENDS)) for n in range(len(PARTNERS[op]))]
    rights = [Document(f"b{n}", f"<b>{n}</b>", time=time) for n, (time, _) in enumerate(PARTNERS[op])]
    with Session("duckdb") as engine:
        engine.subscribe(query(op))
        engine.process([*rights, *lefts])
        alone = {output.documents[0] for output in engine.finish()}
    assert alone == {f"a{n}" for n, (_, is_partner) in enumerate(PARTNERS[op]) if not is_partner}


@pytest.mark.parametrize("restarts", [False, True], ids=["at once", "over restarts"])
def test_which_watermark_decides(restarts: bool, tmp_path: Path):
    """Other documents move the watermark."""
    times = [BEGINS, *(at + LATENESS + by for at in (BEGINS, OVER) for by in (-1, 0, 1))]
    came = [Document("a", "<a>u</a>", time=(BEGINS, ENDS)), *(Document(f"c{at}", "<c/>", time=at) for at in times)]
    told: list[set[str]] = []
    engine = Session("duckdb", state=tmp_path, lateness=LATENESS)
    engine.subscribe(";".join(query(op, op.replace(" ", "_").lower()) for op in PARTNERS))
    for document in came:
        if restarts:
            engine.close()
            engine = Session("duckdb", state=tmp_path, lateness=LATENESS)
        told.append({output.query for output in engine.process([document])})
    engine.close()
    nothing: set[str] = set()
    after = {"not_followed_by", "not_join"}
    assert told == [nothing, nothing, nothing, {"not_preceded_by"}, nothing, nothing, after, nothing]


@pytest.mark.parametrize("op", PARTNERS)
def test_the_last_that_is_not_late_counts(op: str):
    """Before the decision, a partner that is as late as one may be breaks an absence. What is later does not."""
    late = ENDS + 1 if op == "NOT FOLLOWED BY" else BEGINS - 1
    for time, is_partner in ((late, True), (late - 1, False)):
        moves = Document("c", "<c/>", time=late + LATENESS)
        partner = Document("b", "<b>u</b>", time=time)
        with Session("duckdb", lateness=LATENESS, quiet=True) as engine:
            engine.subscribe(query(op))
            outputs = list(engine.process([Document("a", "<a>u</a>", time=(BEGINS, ENDS))]))
            outputs += engine.process([moves])
            outputs += engine.process([partner])
            assert len(list(engine.dead_letters())) == (not is_partner)
            outputs += engine.process([Document("d", "<c/>", time=BEGINS + 2 * T)])
        assert len(outputs) == (not is_partner)


@pytest.mark.parametrize(("most", "decided"), [(10, ["a0", "a1", "a2"]), (2, [])])
def test_silence_decides_once_within_quotas_although_a_commit_fails(most: int, decided: list[str], tmp_path: Path):
    now, idle = BEGINS, 60 * SECOND

    def opened() -> FaultySession:
        options = {"idle_after": idle, "now": lambda: now, "max_outputs": most}
        return FaultySession("duckdb", state=tmp_path, lateness=LATENESS, quiet=True, **options)  # type: ignore[arg-type]

    with opened() as engine:
        engine.subscribe(f"{query('NOT FOLLOWED BY')}; alone//a PUBLISH readers")
        engine.process([Document(f"a{n}", f"<a>{n}</a>", time=BEGINS) for n in range(3)])
        now += idle
        assert not engine.pass_time()
    with opened() as engine:
        now += idle + T + 2 * LATENESS
        with engine.store.failing("commit"), pytest.raises(Injected):
            engine.pass_time()
        assert not list(engine.outputs())
        assert engine.pass_time() and not engine.pass_time()
        told = [(one.seq, one.query, one.documents[0]) for one in engine.outputs()]
        right = [(name, id) for name in ("alone", "readers") for id in decided]
        assert told == [(seq, name, id) for seq, (name, id) in enumerate(right)]
        assert (engine.registry.named("alone")[0].paused is not None) == (not decided)
