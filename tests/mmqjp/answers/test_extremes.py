"""Times and windows at both ends of what is allowed: operators find what they find among ordinary times."""

from collections.abc import Iterator, Sequence

import pytest

from common.bounds import EARLIEST, INFINITE, LATEST
from feeds.documents import Document
from join_stage.protocol import PLANS
from mmqjp.engine import Session
from tests.support.in_turn import in_turn

DEFINED = "DEFINE EVENT A FROM S//a->r (k := r/@k); "
EVENTS = (
    "FROM A NEXT A WITHIN {w}",
    "FROM A NEXT{{$1.k = $2.k}} A WITHIN {w}",
    "FROM A NEXT{{DUR <= {w}}} A",
    "FROM A NEXT{{GAP <= {w}}} A",
    "FROM A FOLD{{$2.k = $.k,,}} A WITHIN {w}",
    "FROM AGGREGATE{{count() AS n OVER {w}}} A",
    "FROM AGGREGATE{{count() AS n BY k OVER {w}}} A",
    "FROM FILTER{{DUR <= {w}}} A",
    "PATTERN SEQ(A a, A b) WITHIN {w}",
    "PATTERN SEQ(A a, A b) WITHIN {w} NON OVERLAPPING",
    'PATTERN SEQ(~(A n), A a, A b) WHERE {{n.k = "z"}} WITHIN {w}',
    'PATTERN SEQ(A a, A b, ~(A n)) WHERE {{n.k = "z"}} WITHIN {w}',
    "PATTERN SEQ(A a, A+ b[]) WHERE skip_till_next_match {{}} WITHIN {w}",
    "PATTERN SEQ(SET(A a, A b)) WITHIN {w}",
    "PATTERN SEQ(A a, A+ b[]) WITHIN {w} EARLIEST MAXIMAL",
    "PATTERN SEQ(A, A) ERRORS <= 1 WITHIN {w}",
    "PATTERN SEQ(A, A, A) ERRORS <= 1 BUDGET 5 WITHIN {w}",
)
JOINS = (
    "FROM S/a->x JOIN UNORDERED {{x/@k = y/@k, {w}}} S/a->y",
    "FROM S/a->x FOLLOWED BY {{x/@k = y/@k, {w}}} S/a->y",
    "FROM S/a->x JOIN UNORDERED {{near(x, y, 0.5), {w}}} S/a->y",
    "FROM S/a->x NOT FOLLOWED BY {{x/@k = y/@k, {w}}} S/b->y",
    "FROM S/a->x NOT FOLLOWED BY {{x/@k = y/@k, {w}}} S/a->y",
    "FROM S/a->x NOT JOIN {{x/@k = y/@k, {w}}} S/b->y",
    "FROM S/a->x NOT PRECEDED BY {{x/@k = y/@k, {w}}} S/a->y",
    "FROM S/a->x FOLLOWED BY {{x/@k = y/@k, {w}}} S/a->y FOLLOWED BY {{y/@k = z/@k, {w}}} S/a->z",
    "FROM S/a->x NOT FOLLOWED BY {{x/@k = y/@k, {w}}} S/b->y PUBLISH P; "
    "FROM P//a->x NOT FOLLOWED BY {{x/@k = y/@k, {w}}} S/b->y",
    "SELECT x FROM S/a->x PUBLISH P ONCE PER (x/@k) WITHIN {w}",
)
FIRST, LAST = EARLIEST + 1, LATEST - 1
TIMES = [(FIRST, FIRST + 1, 0, LAST), (FIRST, FIRST, LAST - 1, LAST, LAST)]


def found(text: str, times: tuple[int, ...], plan: str = "signature") -> Sequence[object]:
    with Session("duckdb", settle=None, quiet=True, plan=plan) as engine:
        engine.subscribe(text)
        for number, time in enumerate(times):
            engine.process([Document(f"d{number}", '<a k="1">one two</a>', "S", time)])
        list(engine.finish())
        return sorted((one.query, one.documents, str(one.nodes)) for one in engine.outputs())


def alike(text: str) -> Iterator[tuple[tuple[int, ...], Sequence[object]]]:
    """Extreme times, and what there is among ordinary times in the same order."""
    for times in TIMES:
        ordinary = tuple(sorted(set(times)).index(time) * 10**6 for time in times)
        yield times, found(text.format(w="1 h"), ordinary)


@pytest.mark.parametrize("text", EVENTS)
def test_event_statements(text: str):
    for times, wanted in alike(DEFINED + text):
        assert found(DEFINED + text.format(w=f"{INFINITE} us"), times) == wanted


@pytest.mark.parametrize(("text", "plan"), in_turn(JOINS, PLANS))
def test_joins(text: str, plan: str):
    for times, wanted in alike(text):
        assert found(text.format(w=f"{INFINITE} us"), times, plan) == wanted
