"""PATTERN statements in an engine: the form of outputs, the choice between matches, and what silence decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from tests.generate.documents import SECOND

DEFINITIONS = """
DEFINE EVENT A FROM S//a->a (k := a/@k, n := number(a/@n));
DEFINE EVENT B FROM S//b->b (k := b/@k);
"""
END = Document("end", "<end/>", "S", 10**6 * SECOND)


def document(id: str, at: int, xml: str) -> Document:
    return Document(id, xml, "S", at * SECOND)


def told(script: str, *arriving: Document) -> list[Output]:
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe(DEFINITIONS + script)
        for one in (*arriving, END):
            engine.process([one])
        return list(engine.outputs())


RISE = (
    document("d1", 1, "<x><a k='u' n='1'/></x>"),
    document("d2", 2, "<x><c/><a k='u' n='2.5'/><a k='v'/></x>"),
    document("d3", 3, "<x><b k='u'/></x>"),
)


def inside(output: Output) -> str:
    return output.xml.partition(">")[2].removesuffix("</match>")


def test_items_with_a_value_for_each_event_are_elements_of_one_name() -> None:
    (one,) = told(
        "PATTERN SEQ(A+ a[], B b) WHERE skip_till_next_match { [k] } WITHIN 1 min HAVING count(a[]) = 2 "
        "RETURN a[].n AS n, b.k AS k, 2 * a[].n + a[1].n AS double, count(a[]) AS count PUBLISH up",
        *RISE,
    )
    assert inside(one) == "<n>1</n><n>2.5</n><k>u</k><double>3</double><double>6</double><count>2</count>"
    assert one.documents == ("d1", "d2", "d3") and one.nodes == {"a[1]": 1, "a[2]": 2, "b": 1}
    assert (one.t0, one.t1) == (1 * SECOND, 3 * SECOND)


def test_without_return_events_are_elements_named_by_their_variables() -> None:
    (one,) = told("PATTERN SEQ(B b, A a) WHERE { a.n IS NULL } WITHIN 1 min", document("d0", 0, "<b k='&lt;'/>"), *RISE)
    assert inside(one) == (
        f'<b t0="0" t1="0"><k>&lt;</k></b><a t0="{2 * SECOND}" t1="{2 * SECOND}"><k>v</k></a>'  # NULL is no element
    )
    assert one.nodes == {"b": 0, "a": 3}


def test_with_errors_events_are_elements_named_by_their_letters() -> None:
    found = told("PATTERN SEQ(A, A+, B!) WHERE { [k] } ERRORS <= 1 WITHIN 1 min NON OVERLAPPING", *RISE)
    assert [one.xml.partition(">")[0] + ">" for one in found] == [
        f'<match query="q1" t0="{SECOND}" t1="{3 * SECOND}" errors="0">'
    ]
    assert inside(found[0]) == (
        f'<A t0="{SECOND}" t1="{SECOND}"><k>u</k><n>1</n></A><A t0="{2 * SECOND}" t1="{2 * SECOND}"><k>u</k>'
        f'<n>2.5</n></A><B t0="{3 * SECOND}" t1="{3 * SECOND}"><k>u</k></B>'
    )
    assert found[0].nodes == {"A[1]": 1, "A[2]": 2, "B": 1}


def test_published_matches_are_events_with_single_values_and_documents_with_all() -> None:
    found = told(
        """
        PATTERN SEQ(A+ a[], B b) WHERE skip_till_next_match { [k] } WITHIN 1 min HAVING count(a[]) = 2
        RETURN a[].n AS n, b.k AS k, count(a[]) AS count PUBLISH up;
        PATTERN SEQ(A, A, B) ERRORS <= 1 WITHIN 1 min PUBLISH near;
        SELECT k AS name, count FROM up PUBLISH again;
        PATTERN SEQ(up u, near n) WHERE { n.errors = 1 } WITHIN 1 min PUBLISH nearly;
        PATTERN SEQ(A a, near n) WHERE { n.errors = 0 } WITHIN 1 min RETURN n.errors AS e PUBLISH after;
        SELECT n AS n FROM up//match->m[./n->n] PUBLISH documents
        """,
        *RISE,
        document("d4", 9, "<x><a/></x>"),
        document("d5", 10, "<x><a/></x>"),
        document("d6", 11, "<x><b/></x>"),
    )
    by_query = {name: [one for one in found if one.query == name] for name in ("again", "documents", "after", "nearly")}
    assert [inside(one) for one in by_query["again"]] == ["<name>u</name><count>2</count>"]
    assert [one.documents for one in by_query["again"]] == [("d1", "d2", "d3")]
    assert sorted(inside(one) for one in by_query["documents"]) == ["<n><n>1</n></n>", "<n><n>2.5</n></n>"]
    assert all("<count>2</count></u><n " in inside(one) for one in by_query["nearly"])
    assert {inside(one).partition("<errors>")[2] for one in by_query["nearly"]} == {"1</errors></n>"}
    last = by_query["after"][0]
    assert inside(last) == "<e>0</e>"
    assert list(last.nodes) == ["a", "n.e1", "n.e2", "n.e3"]


@pytest.mark.parametrize(("item", "values"), [("a.k", ["u"]), ("a.n", ["1", "2.5"])])
def test_matches_of_equal_events_with_equal_values_are_one_event(item: str, values: list[str]) -> None:
    """They are two outputs, and two documents: which event is which variable may differ."""
    found = told(
        f"""
        PATTERN SEQ(SET(A a, A b)) WHERE {{ [k] }} WITHIN 1 min RETURN {item} AS x PUBLISH both;
        SELECT x AS y FROM both PUBLISH events;
        SELECT x FROM both//match->m[./x->x] PUBLISH documents
        """,
        *RISE,
    )
    by_query = {name: [one for one in found if one.query == name] for name in ("both", "events", "documents")}
    assert len(by_query["both"]) == len({one.id for one in by_query["both"]}) == len(by_query["documents"]) == 2
    assert sorted(inside(one) for one in by_query["events"]) == [f"<y>{value}</y>" for value in values]


def test_the_ids_of_documents_decide_where_nothing_else_does() -> None:
    script = "PATTERN SEQ(A a, A b) WHERE { [k] } WITHIN 1 min RETURN a.n AS a, b.n AS b NON OVERLAPPING"
    arriving = [document(f"d{number}", 5, f"<a k='u' n='{number}'/>") for number in range(3)]
    found = [told(script, document("first", 1, "<a k='u' n='7'/>"), *order) for order in (arriving, arriving[::-1])]
    assert [[inside(one) for one in outputs] for outputs in found] == [["<a>7</a><b>0</b>"]] * 2
    assert found[0][0].id == found[1][0].id


def test_queries_that_depend_on_what_was_there_before_are_run_apart() -> None:
    script = "PATTERN SEQ(A a, A b) WITHIN 1 min RETURN a.n AS a, b.n AS b NON OVERLAPPING PUBLISH {}"
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe(DEFINITIONS + script.format("early"))
        for number in range(5):
            engine.process([document(f"d{number}", number, f"<a k='u' n='{number}'/>")])
            if number == 1:
                engine.subscribe(script.format("late"), add=True)  # sees what ends at 1 or later
        engine.process([END])
        found = {name: [inside(one) for one in engine.outputs() if one.query == name] for name in ("early", "late")}
    assert found["early"] == ["<a>0</a><b>1</b>", "<a>2</a><b>3</b>"]
    assert found["late"] == ["<a>1</a><b>2</b>", "<a>3</a><b>4</b>"]


def test_silence_decides_what_did_not_happen(tmp_path: Path) -> None:
    """Nothing else comes, and the store is closed in between."""
    start = now = 10**9 * SECOND

    def opened() -> Session:
        timing = {"lateness": 0, "idle_after": 5 * SECOND, "now": lambda: now}
        return Session("duckdb", state=tmp_path, settle=0, quiet=True, **timing)  # type: ignore[arg-type]

    with opened() as engine:
        engine.subscribe(
            f"""{DEFINITIONS}
            PATTERN SEQ(A a, ~(B b)) WITHIN 30 s RETURN a.n AS n;
            PATTERN SEQ(SET(A+ a[])) WITHIN 30 s RETURN a[1].n AS n EARLIEST MAXIMAL;
            PATTERN SEQ(SET(A a), ~(B b)) WITHIN 30 s RETURN a.n AS n
            """
        )
        engine.process([Document("d1", "<a k='u' n='7'/>", "S", start)])
        now += 20 * SECOND
        engine.pass_time()
        assert not list(engine.outputs())
    with opened() as engine:
        assert not engine.pass_time() and not list(engine.outputs())
        now += 60 * SECOND
        assert engine.pass_time()
        assert [(inside(one), one.t1) for one in engine.outputs()] == [("<n>7</n>", start + 30 * SECOND)] * 3
        now += 60 * SECOND
        assert not engine.pass_time()
