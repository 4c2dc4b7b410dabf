"""Event queries in an engine: what they tell is what brute force finds, whatever comes, goes, fails or restarts."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from lxml import etree
from pyspark.sql import SparkSession

from feeds.documents import Document
from mmqjp.answers.events import Patterns
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.queries.changes import InvalidEvents
from mmqjp.queries.registry import since_of
from mmqjp.shown_engine import Engine
from tests.generate.documents import chance
from tests.generate.seeds import seeds
from tests.mmqjp.answers.event_world import Doc, expected
from tests.mmqjp.answers.test_patterns import (
    DEFINITIONS,
    SECOND,
    batches,
    definitions,
    documents,
    pattern_statements,
    statements,
)
from tests.oracle.pattern_syntax import Statement

END = 10**6 * SECOND


class Fault(Exception):
    """Ends a batch before it is committed."""


class Told(NamedTuple):
    """An output, by values of which it has one."""

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
    for one in expected(definitions(), given, arrived):
        values = frozenset((name, _text(value)) for name, value in one.values if value is not None)
        names = tuple(sorted({str(part[1]) for part in one.documents}))
        found.add(Told(one.statement, values, one.t0, one.t1, names))
    return found


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value == int(value) else str(value)


def opened(state: Path) -> Session:
    return Session("duckdb", state=state, settle=6 * SECOND, quiet=True)


def process(engine: Session, arrived: list[Doc], *, fails: bool = False) -> None:
    def fault(_: object) -> None:
        raise Fault

    found = [Document(one.id, one.xml, one.stream, (one.t0, one.t1)) for one in arrived]
    if fails:
        with pytest.raises(Fault):
            engine.process(found, fault)  # type: ignore[arg-type]  # it returns nothing
    engine.process(found)


def drained(engine: Session) -> list[Output]:
    process(engine, [Doc(f"last of {stream}", stream, END, END, b"<none/>") for stream in "ST"])
    return list(engine.outputs())


@pytest.fixture(autouse=True)
def few_batches_to_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = Patterns.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "snapshot_every", 3)


@pytest.mark.parametrize("seed", seeds(2, 10))
def test_outputs_are_those_of_brute_force(seed: int, tmp_path: Path) -> None:
    rng = Random(300 + seed)
    cels, patterns = statements(rng), pattern_statements(rng)
    made: dict[str, Statement] = {**cels, **patterns}
    arrived = documents(rng, 40)
    arriving = list(batches(rng, arrived, 6 * SECOND))
    engine = opened(tmp_path)
    engine.subscribe(DEFINITIONS)
    given: dict[str, tuple[Statement, int]] = {}
    came = {name: 0 if name in ("one", "two", "by_key") else rng.randrange(len(arriving)) for name in made}
    pauses = {
        name: sorted(rng.sample(range(len(arriving) + 1), 2))
        for name in ("four", "silent", "together", "near", "above")
    }
    known: dict[str, str] = {}
    before: dict[str, set[Told]] = {}
    for number, batch in enumerate(arriving):
        for name, one in made.items():
            if came[name] == number:
                (known[name],) = engine.subscribe(one.text(), add=True)
                (query,) = engine.registry.named(known[name])
                given[name] = one, since_of(query)
        for name, (paused_at, resumed_at) in pauses.items():
            if number == paused_at and name in known:
                before[name] = {told(one) for one in engine.outputs() if one.query == known[name]}
                engine.pause(known[name])
            if number == resumed_at and name in before:
                engine.resume(known[name])
                given[name] = given[name][0], since_of(engine.registry.named(known[name])[0])
        if chance(rng, 20):
            engine.close()
            engine = opened(tmp_path)
        process(engine, batch, fails=chance(rng, 20))
    outputs = drained(engine)
    assert max(Counter(one.id for one in outputs).values(), default=0) <= 1
    right = {one._replace(query=known[one.query]) for one in wanted(given, arrived)}
    for name in made:
        still_paused = engine.registry.named(known[name])[0].paused is not None
        own, mine = ({one for one in some if one.query == known[name]} for some in (map(told, outputs), right))
        assert own == before.get(name, set()) | (set() if still_paused else mine), made[name].text()
    engine.close()


def test_outputs_do_not_depend_on_batches(tmp_path: Path) -> None:
    rng = Random(7)
    made: dict[str, Statement] = {**statements(rng), **pattern_statements(rng)}
    arrived = documents(rng, 40)
    found = []
    for number in range(3):
        engine = opened(tmp_path / str(number))
        engine.subscribe(DEFINITIONS + ";" + "; ".join(one.text() for one in made.values()))
        for batch in batches(Random(number), arrived, 6 * SECOND):
            process(engine, batch)
        found.append({(one.id, one.xml, one.documents, str(one.nodes)) for one in drained(engine)})
        engine.close()
    assert found[0] == found[1] == found[2]
    assert found[0]


def test_documents_go_through_events_and_joins_in_one_step() -> None:
    with Session("duckdb", settle=0) as engine:
        engine.subscribe(
            """
            FROM S//a->a[./k->k] FOLLOWED BY {k = k2, 1 h} S//b->b[./k->k2] PUBLISH pairs;
            DEFINE EVENT Pair FROM pairs//match->m (k := m/a/k);
            FROM Pair NEXT {$1.k = $2.k} Pair PUBLISH twice;
            FROM twice//match->m[./k->k] FOLLOWED BY {k = k3, 1 h} S//c->c[./k->k3] PUBLISH last
            """
        )
        for number, name in enumerate("ababc"):
            process(
                engine,
                [Doc(f"{number}", "S", number * SECOND, number * SECOND, f"<x><{name}><k>u</k></{name}></x>".encode())],
            )
        process(engine, [Doc("end", "S", 10**4 * SECOND, 10**4 * SECOND, b"<x/>")])
        found = Counter(one.query for one in engine.outputs())
        assert found["pairs"] == 3 and found["twice"] >= 1 and found["last"] == found["twice"]
        assert {one.t1 for one in engine.outputs() if one.query == "last"} == {4 * SECOND}


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(text: str, message: str) -> None:
    with Session("duckdb", settle=0) as engine:
        engine.subscribe("DEFINE EVENT A FROM S//x->x (k := x/k); FROM A PUBLISH posts; FROM S//x PUBLISH docs")
        before = engine.queries(), dict(engine.registry.events.definitions)
        with pytest.raises((InvalidEvents, ValueError), match=re.escape(message)):
            engine.subscribe(text, add=True)
        assert (engine.queries(), engine.registry.events.definitions) == before
        process(engine, [Doc("1", "S", 0, 0, b"<x><k>v</k></x>"), Doc("2", "S", SECOND, SECOND, b"<none/>")])
        assert Counter(one.query for one in engine.outputs()) == {"posts": 1, "docs": 1}


def test_a_definition_changes_with_its_readers(tmp_path: Path) -> None:
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


def test_a_publisher_that_is_paused_holds_nobody_up() -> None:
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


def test_a_finite_run_is_answered_at_its_end() -> None:
    with Engine("duckdb", settle=None) as engine:
        engine.subscribe("DEFINE EVENT A FROM S//x->x (k := x/k); FROM A NEXT A PUBLISH pairs")
        assert not list(engine.process([Document("2", b"<x><k>b</k></x>", "S", 2)]))
        assert not list(engine.process([Document("1", b"<x><k>a</k></x>", "S", 1)]))
        assert [one.documents for one in engine.finish()] == [("1", "2")]


@pytest.mark.soak
def test_spark_tells_what_duckdb_tells(spark: SparkSession, tmp_path: Path) -> None:
    rng = Random(11)
    made: dict[str, Statement] = {**statements(rng), **pattern_statements(rng)}
    arrived = documents(rng, 25)
    arriving = list(batches(rng, arrived, 6 * SECOND))
    third = -(-len(arriving) // 3)
    found = []
    for kind in ("duckdb", spark):
        for first in range(0, len(arriving), third):
            with Session(kind, state=tmp_path / str(kind == "duckdb"), settle=6 * SECOND, quiet=True) as engine:
                if not first:
                    engine.subscribe(DEFINITIONS + ";" + "; ".join(one.text() for one in made.values()))
                for batch in arriving[first : first + third]:
                    process(engine, batch)
        with Session(kind, state=tmp_path / str(kind == "duckdb"), settle=6 * SECOND, quiet=True) as engine:
            found.append([(one.seq, one.id, one.xml, one.documents) for one in drained(engine)])
    assert found[0] == found[1]
    assert found[0]
