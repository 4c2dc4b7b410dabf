"""Times and windows at both ends of what is allowed: operators find what they find among ordinary times."""

from collections.abc import Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter

import pytest

from common.bounds import EARLIEST, INFINITE, LATEST
from feeds.documents import Document
from join_stage.plans import DEFAULT_PLAN, PLANS
from mmqjp.engine import Session

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
    "FROM S/a->x NOT FOLLOWED BY {{x/@k = y/@k, {w}}} S/b->y PUBLISH P",
    "FROM P//a->x NOT FOLLOWED BY {{x/@k = y/@k, {w}}} S/b->y",
    "SELECT x FROM S/a->x PUBLISH Q ONCE PER (x/@k) WITHIN {w}",
)
FIRST, LAST = EARLIEST + 1, LATEST - 1
TIMES = [(FIRST, FIRST + 1, 0, LAST), (FIRST, FIRST, LAST - 1, LAST, LAST)]


@cache
def found(texts: Sequence[str], times: tuple[int, ...], window: str, plan: str) -> dict[str, list[object]]:
    """What each text finds among documents of these times."""
    script = "; ".join(text.format(w=window) for text in texts)
    with Session("duckdb", settle=None, quiet=True, plan=plan) as engine:
        engine.subscribe(DEFINED + script)
        for number, time in enumerate(times):
            engine.process([Document(f"d{number}", '<a k="1">one two</a>', "S", time)])
        list(engine.finish())
        outputs = sorted((one.query, one.documents, str(one.nodes)) for one in engine.outputs())
    return {name: list(some) for name, some in groupby(outputs, key=itemgetter(0))}


@pytest.mark.parametrize(("texts", "plan"), [(EVENTS, DEFAULT_PLAN), *((JOINS, plan) for plan in PLANS)])
@pytest.mark.parametrize("times", TIMES)
def test_what_is_found_is_what_there_is_among_ordinary_times_in_the_same_order(
    texts: Sequence[str], plan: str, times: tuple[int, ...]
):
    ordinary = tuple(sorted(set(times)).index(time) * 10**6 for time in times)
    wanted = found(texts, ordinary, "1 h", DEFAULT_PLAN)
    assert found(texts, times, f"{INFINITE} us", plan) == wanted
    assert len(wanted) == len(texts)
