"""Examples of event queries over documents, checked by hand (C10, L1, L2)."""

from __future__ import annotations

from feeds.documents import Document
from mmqjp.shown_engine import Engine
from tests.generate.documents import SECOND


def test_c10_an_atom_with_null_is_false() -> None:
    """`color > "blue"` of the paper is a mistake here: > compares numbers."""
    expected = {
        'name = "IBM" AND color = "blue"': [],
        'name = "IBM" OR color = "blue"': ["IBM"],
        'NOT color = "blue"': [],
        'color != "blue"': [],
        "color IS NULL": ["IBM", "Dell"],
        "NOT color IS NULL": [],
    }
    with Engine("duckdb", settle=None) as engine:
        queries = [f"FROM FILTER {{{condition}}} Stock PUBLISH c{n}" for n, condition in enumerate(expected)]
        engine.subscribe("; ".join(["DEFINE EVENT Stock FROM S//e->e (name := e/@name, color := e/@color)", *queries]))
        engine.process(Document(name, f"<e name='{name}'/>", "S", at) for at, name in enumerate(("IBM", "Dell")))
        outputs = list(engine.finish())
    assert {
        condition: [one.documents[0] for one in outputs if one.query == f"c{n}"] for n, condition in enumerate(expected)
    } == expected


def test_l1_what_comes_too_late_is_no_event_and_still_joins() -> None:
    with Engine("duckdb", settle=2 * SECOND) as engine:
        engine.subscribe(
            "DEFINE EVENT A FROM S//a->a (k := a/k); FROM A NEXT A PUBLISH pairs; "
            "S//a->x FOLLOWED BY {x = y, 1 h} S//a->y PUBLISH joined"
        )

        for number, at in enumerate((1, 10, 7, 8, 100), 1):  # the horizon is at 8 when d3 arrives
            engine.process([Document(f"d{number}", "<a><k>u</k></a>", "S", at * SECOND)])
        letters = [(one["id"], one["reason"]) for one in engine.dead_letters()]
        assert letters == [("d3", "late for patterns: 1000000 µs behind what has been released")]
        pairs = {one.documents for one in engine.outputs() if one.query == "pairs"}
        assert pairs == {("d1", "d4"), ("d4", "d2")}
        joined = {one.documents for one in engine.outputs() if one.query == "joined"}
        assert ("d1", "d3") in joined and ("d3", "d4") in joined and len(joined) == 10


L2 = """
FROM S//a->a[./k->k] FOLLOWED BY {k = k2, 1 h} S//b->b[./k->k2] PUBLISH pairs;
DEFINE EVENT Mark FROM S//mark->m (k := m/k);
DEFINE EVENT Pair FROM pairs/match->m (k := m/a/k);
FROM Mark NEXT {$1.k = $2.k} Pair PUBLISH marked;
FROM marked/match->m[./k->k] JOIN {k = k3, 1 h} S//c->c[./k->k3] PUBLISH joined;
DEFINE EVENT Joined FROM joined/match->m (k := m/match/k);
FROM AGGREGATE {count() AS n BY k} Joined PUBLISH counted;
FROM Mark NEXT {$1.k = $2.k} counted PUBLISH last
"""


def test_l2_joins_and_events_follow_from_one_another_at_one_time() -> None:
    given = [
        Document(f"{name}{at}", f"<x><{name}><k>u</k></{name}></x>", "S", at * SECOND)
        for name, at in (("mark", 0), ("c", 1), ("c", 2), ("a", 3), ("b", 9))
    ]
    with Engine("duckdb", settle=0) as engine:
        engine.subscribe(L2)
        for one in given:
            engine.process([one])
        found = list(engine.process([Document("end", "<x/>", "S", 10**5 * SECOND)]))
    end = 9 * SECOND
    assert {one.query: (one.t0, one.t1) for one in found if one.query != "joined"} == {
        "marked": (0, end),
        "counted": (end, end),
        "last": (0, end),
    }
    assert [(one.t0, one.t1) for one in found if one.query == "joined"] == [(0, end)] * 2
    assert [one.xml.partition("<n>")[2][:1] for one in found if one.query == "last"] == ["2"]
    with Engine("duckdb", settle=None) as engine:  # the whole run sorts everything
        engine.subscribe(L2)
        engine.process(reversed(given))
        assert [(one.query, one.t1) for one in engine.finish() if one.query == "last"] == [("last", end)]
