"""Event queries in an engine: outputs are those of brute force, whatever comes, goes, fails or restarts; examples."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.queries.changes import InvalidEvents
from mmqjp.shown_engine import Engine
from tests.generate.documents import SECOND, chance
from tests.generate.seeds import seeds
from tests.mmqjp.answers.event_world import (
    DEFINITIONS,
    END,
    Doc,
    batches,
    definitions,
    documents,
    expected,
    pattern_statements,
    statements,
)
from tests.oracle.bindings import Stored
from tests.oracle.event_documents import in_time
from tests.oracle.pattern_syntax import Statement
from tests.pattern_stage.defined import defined_events
from tests.support.faults import FaultySession, Injected, fail

SETTLE = 6 * SECOND


class Told(NamedTuple):
    """An output, without the values that may be several."""

    query: str
    values: frozenset[tuple[str, str]]
    t0: int
    t1: int
    documents: tuple[str, ...]


def told(output: Output) -> Told:
    root = etree.fromstring(output.xml)
    values = frozenset((child.tag, child.text or "") for child in root if child.tag != "each" and not len(child))
    if errors := root.get("errors"):
        values |= {("errors", errors)}
    return Told(output.query, values, output.t0, output.t1, tuple(sorted(set(output.documents))))


def wanted(given: dict[str, tuple[Statement, int]], arrived: list[Doc]) -> set[Told]:
    found = set()
    for one in expected(given, arrived):
        values = frozenset((name, _text(value)) for name, value in one.values if value is not None)
        names = tuple(sorted({str(part[1]) for part in one.documents}))
        found.add(Told(one.statement, values, one.t0, one.t1, names))
    return found


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value == int(value) else str(value)


def opened(state: Path, settle: int | dict[str, int] = SETTLE) -> Session:
    return Session("duckdb", state=state, settle=settle, quiet=True)


def process(engine: Session, arrived: list[Doc], *, fails: bool = False) -> None:
    found = [Document(one.id, one.xml, one.stream, (one.t0, one.t1)) for one in arrived]
    if fails:
        with pytest.raises(Injected):
            engine.process(found, fail)
    engine.process(found)


LAST = [Doc(f"last of {stream}", stream, END, END, b"<none/>") for stream in "ST"]


def drained(engine: Session) -> list[Output]:
    process(engine, LAST)
    return list(engine.outputs())


def every_statement(rng: Random) -> dict[str, Statement]:
    return {**statements(rng), **pattern_statements(rng)}


def test_outputs_do_not_depend_on_batches(tmp_path):
    rng = Random(7)
    made = every_statement(rng)
    arrived = documents(rng, 40)
    found = []
    for number in range(2):
        with opened(tmp_path / str(number)) as engine:
            engine.subscribe(DEFINITIONS + ";" + "; ".join(one.text() for one in made.values()))
            for batch in batches(Random(number), arrived, SETTLE):
                process(engine, batch)
            found.append({(one.id, one.xml, one.documents, str(one.nodes)) for one in drained(engine)})
    assert found[0] == found[1] != set()


@pytest.mark.parametrize("seed", seeds(2, 20, first=100))
def test_late_documents_are_dead_letters_and_outputs_of_the_rest_are_those_of_brute_force(seed, tmp_path):
    """Batches fail, and stores are opened again."""
    rng, settle = Random(seed), {"S": 1 * SECOND, "*": 2 * SECOND}
    made = every_statement(rng)
    engine = opened(tmp_path, settle)
    names = engine.subscribe(DEFINITIONS + ";" + "; ".join(one.text() for one in made.values()))
    known = dict(zip(made, names, strict=True))
    taken: list[list[Doc]] = []
    for batch in [*batches(rng, documents(rng, 40), 30 * SECOND), LAST]:
        process(engine, batch, fails=chance(rng, 20))
        taken.append(batch)
        if chance(rng, 20):
            engine.close()
            engine = opened(tmp_path, settle)
    stored = [[Stored(one.stream, one.id, one.t0, one.t1, one.xml, ()) for one in batch] for batch in taken]
    punctual, late = in_time(stored, "ST", {"S": 1 * SECOND, "T": 2 * SECOND})
    there = {one.id for one in punctual}
    arrived = [one for batch in taken for one in batch if one.id in there]
    right = wanted({name: (one, -END) for name, one in made.items()}, arrived)
    outputs = list(engine.outputs())
    assert {told(one) for one in outputs} == {one._replace(query=known[one.query]) for one in right}
    assert len({one.id for one in outputs}) == len(outputs)
    with_events = sorted(
        document.id
        for document in late
        if any(one.block.stream == document.stream and defined_events(one, document.xml) for one in definitions())
    )
    letters = list(engine.dead_letters())
    assert sorted(one["id"] for one in letters) == with_events != []
    assert all(one["reason"].startswith("late for patterns: ") for one in letters)
    engine.close()


def test_a_document_with_too_many_events_is_a_dead_letter():
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe(DEFINITIONS + "; FROM B PUBLISH all")
        many = "<b k='u'><x>1</x></b>" * 10_001
        process(
            engine,
            [Doc("many", "S", 0, 0, f"<top>{many}</top>".encode()), Doc("one", "S", 0, 0, b"<top><b k='u'/></top>")],
        )
        letters = [(one["id"], one["reason"]) for one in engine.dead_letters()]
        assert letters == [("many", "more than 10,000 events B, for patterns")]
        assert [one.documents for one in drained(engine)] == [("one",)]


REFUSED = [
    ("DEFINE EVENT A FROM T//x->x (k := x/k)", "the event A is defined otherwise, and read by posts"),
    ("DEFINE EVENT posts FROM T//x->x (k := x/k)", "posts is what registered event queries PUBLISH"),
    ("DEFINE EVENT docs FROM T//x->x (k := x/k)", "docs is what registered queries PUBLISH"),
    ("DEFINE EVENT S FROM T//x->x (k := x/k)", "S is a stream of documents that queries read"),
    ("DEFINE EVENT E FROM A//x->x (k := x/k)", "A is a defined event, no stream of documents"),
    ("FROM A//x", "A is a defined event, no stream of documents"),
    ("FROM S//x PUBLISH posts", "posts is what registered event queries PUBLISH"),
    ("FROM S//x PUBLISH A", "A is the name of a defined event"),
    ("FROM FILTER {k = 'x'} A PUBLISH docs", "docs is what registered queries PUBLISH"),
    ("SELECT k AS j FROM A PUBLISH posts", "posts is published with other attributes: only one has j"),
    ("FROM posts PUBLISH posts2; FROM FILTER {k = 'x'} posts2 PUBLISH posts", "cycle"),
]


def test_what_does_not_fit_is_refused_and_changes_nothing():
    with Session("duckdb", settle=0) as engine:
        engine.subscribe("DEFINE EVENT A FROM S//x->x (k := x/k); FROM A PUBLISH posts; FROM S//x PUBLISH docs")
        before = engine.queries(), dict(engine.registry.events.definitions)
        for text, message in REFUSED:
            with pytest.raises((InvalidEvents, ValueError), match=re.escape(message)):
                engine.subscribe(text, add=True)
            assert (engine.queries(), engine.registry.events.definitions) == before
        process(engine, [Doc("1", "S", 0, 0, b"<x><k>v</k></x>"), Doc("2", "S", SECOND, SECOND, b"<none/>")])
        assert Counter(one.query for one in engine.outputs()) == {"posts": 1, "docs": 1}


def test_a_definition_changes_with_its_readers(tmp_path):
    with opened(tmp_path) as engine:
        engine.subscribe("DEFINE EVENT A FROM S//x->x (k := x/k); FROM A PUBLISH posts")
        process(engine, [Doc("1", "S", 0, 0, b"<x><k>old</k><j>2</j></x>")])
        with pytest.raises(InvalidEvents, match="the event A is read by posts; remove them first"):
            engine.unsubscribe("A")
    with opened(tmp_path) as engine:
        engine.subscribe("DEFINE EVENT A FROM S//x->x (k := number(x/j)); FROM A PUBLISH posts")
        process(engine, [Doc("2", "S", 9 * SECOND, 9 * SECOND, b"<x><k>a</k><j>5</j></x>")])
    with opened(tmp_path) as engine:
        process(engine, [Doc("3", "S", 10**4 * SECOND, 10**4 * SECOND, b"<none/>")])
        assert [one.xml.partition(">")[2] for one in engine.outputs()] == ["<k>2</k></match>", "<k>5</k></match>"]
        engine.unsubscribe("posts")
        engine.unsubscribe("A")
        assert not engine.registry.events.definitions


PUBLISHER = """
DEFINE EVENT A FROM S//a->a (k := a/@k);
FROM A PUBLISH first;
DEFINE EVENT First FROM first//match->m (k := m/k);
FROM A NEXT{$1.k = $2.k} First WITHIN 5 s PUBLISH second;
FROM A PUBLISH other
"""


def test_a_publisher_that_is_paused_holds_nobody_up():
    """Nobody waits for what it would publish, and when it is resumed, it does not tell what came in between."""
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe(PUBLISHER)
        for second in range(9):
            if second == 3:
                engine.pause("first")
            if second == 6:
                engine.resume("first")
            engine.process([Document(f"d{second}", "<a k='u'/>", "S", second * SECOND)])
        found = [(one.query, one.t1 // SECOND) for one in engine.outputs()]
    told = {name: [time for query, time in found if query == name] for name in ("first", "second", "other")}
    # What ended at 2 was not released yet when `first` was paused, nor was what ended at 5 when it was resumed.
    assert told == {"first": [0, 1, 5, 6, 7], "second": [1, 5, 5, 5, 5, 6, 7], "other": [*range(8)]}


def test_c10_an_atom_with_null_is_false():
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


def test_l1_what_comes_too_late_is_no_event_and_still_joins():
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


def test_l2_joins_and_events_follow_from_one_another_at_one_time():
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


POSTS = "DEFINE EVENT Post FROM S//x->x (k := x/k); FROM Post PUBLISH posts"
OTHER_POSTS = "DEFINE EVENT Post FROM S//x->x (j := x/j); FROM Post PUBLISH posts"


def seen(engine: FaultySession, number: int) -> list[str]:
    xml = f"<x><k>k{number}</k><j>j{number}</j></x>"
    outputs = engine.process([Document(f"d{number}", xml, "S", number * 3_600_000_000)])
    return [one.xml.partition(">")[2].removesuffix("</match>") for one in outputs]


def fails(engine: FaultySession, call: Callable[[str], object], text: str) -> None:
    with engine.store.failing("commit"), pytest.raises(Injected):
        call(text)


def test_what_cannot_be_stored_is_not_done(engine):
    fails(engine, engine.subscribe, POSTS)
    events = engine.registry.events
    assert not engine.queries() and not engine.catalog.steps and not events.definitions and not events.running.forms
    engine.subscribe(POSTS)
    assert not seen(engine, 1)
    fails(engine, engine.subscribe, OTHER_POSTS)
    assert seen(engine, 2) == ["<k>k1</k>"]
    engine.subscribe(OTHER_POSTS)
    assert seen(engine, 3) == ["<j>j2</j>"]
    fails(engine, engine.unsubscribe, "posts")
    assert seen(engine, 4) == ["<j>j3</j>"]
    engine.unsubscribe("posts")
    fails(engine, engine.unsubscribe, "Post")
    assert list(events.definitions) == ["Post"]
    engine.unsubscribe("Post")
    assert not events.definitions and not seen(engine, 5)
