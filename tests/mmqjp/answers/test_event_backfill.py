"""Event queries that come late and see what is kept: the same outputs as if they had been there from the beginning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from common.errors import InvalidValue
from feeds.documents import Document
from mmqjp.answers.events import Patterns
from mmqjp.engine import Session
from mmqjp.queries.registry import since_of
from tests.generate.documents import SECOND, chance
from tests.generate.event_worlds import world
from tests.generate.pattern_worlds import pattern_world
from tests.generate.seeds import seeds
from tests.mmqjp.answers.test_event_worlds import SETTLE, batches, documents, script
from tests.oracle.event_syntax import Cel
from tests.oracle.event_syntax import reads as read_by_cel
from tests.oracle.pattern_syntax import Statement
from tests.oracle.pattern_world import PatternWorld
from tests.support.faults import FaultySession, Injected
from tests.support.pattern_outputs import Told, judges, outputs_of, told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def opened(kind: str | SparkSession, state: Path) -> Session:
    return Session(kind, state=state, settle=SETTLE, quiet=True)


@pytest.fixture(autouse=True)
def few_batches_to_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = Patterns.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "snapshot_every", 4)


def reads(one: Statement) -> set[str]:
    return {*(read_by_cel(one) if isinstance(one, Cel) else one.streams)}


def in_order(found: PatternWorld) -> list[int]:
    """The places of statements, each behind those that publish what it reads."""
    names = {one.publish for one in found.statements}
    ordered: list[int] = []
    while len(ordered) < len(found.statements):
        done = {found.statements[place].publish for place in ordered}
        left = {one.publish for place, one in enumerate(found.statements) if place not in ordered}
        for place, one in enumerate(found.statements):
            wanted = {name for name in reads(one) if name in names}
            if place not in ordered and wanted <= done - left:
                ordered.append(place)
    return ordered


def assert_late_is_early(kind: str | SparkSession, state: Path, seed: int, found: PatternWorld) -> int:
    """Some statements are there first, the others come in scripts of their own, over what is kept; some without a name
    are there twice, one of which does not see what is kept. Returns how much they tell."""
    rng = Random(seed)
    places = in_order(found)
    early, late = places[: len(places) // 3], places[len(places) // 3 :]
    engine = opened(kind, state)
    named: list[tuple[str, int, int | None]] = []

    def subscribe(some: Sequence[int], *, backfill: bool) -> None:
        text = "; ".join(found.statements[place].text() for place in some)
        names = engine.subscribe(text, add=True, backfill=backfill) if some else []
        for name, place in zip(names, some, strict=True):
            since = None if backfill else since_of(engine.registry.named(name)[-1])
            named.append((name, place, since))

    engine.subscribe(script(PatternWorld(found.schemas, found.given, [])))
    subscribe(early, backfill=True)
    arriving = list(batches(rng, documents(found)))
    copies = [place for place in places if found.statements[place].publish is None and chance(rng, 50)]
    for batch in arriving:
        engine.process(batch)
        if late and chance(rng, 40):
            count = rng.randint(1, 3)
            subscribe(late[:count], backfill=True)
            late = late[count:]
        if (known := [place for place in copies if place not in late]) and chance(rng, 30):
            copies.remove(known[0])
            subscribe(known[:1], backfill=False)
        if chance(rng, 25):
            engine.close()
            engine = opened(kind, state)
    subscribe(late, backfill=True)
    end = 10**6 * SECOND
    engine.process([Document(f"end {name}", "<end/>", f"documents_{name}", (end, end)) for name in found.given])
    outputs = list(engine.outputs())
    engine.close()
    got = Counter(told(one) for one in outputs)
    right, other = Counter[Told](), Counter[Told]()
    for judge, some in zip(judges(found), (right, other), strict=True):
        for name, place, since in named:
            some.update(outputs_of(name, place, judge, None if since is None else since + 1))
    unknown = {one.query for one in {*(right - other), *(other - right)}}
    for name in {name for name, _, _ in named} - unknown:
        own, mine = (Counter({one: some[one] for one in some if one.query == name}) for some in (got, right))
        texts = [(found.statements[place].text(), since) for of, place, since in named if of == name]
        assert own == mine, f"{texts}\nmissing: {mine - own}\ntoo many: {own - mine}"
    assert len({one.id for one in outputs}) == len(outputs)
    return len(outputs)


def of_cel(seed: int) -> PatternWorld:
    made = world(seed)
    return PatternWorld(made.schemas, made.given, made.statements)


@pytest.mark.parametrize("seed", seeds(2, 600))
def test_late_queries_tell_what_early_ones_would(seed: int, tmp_path: Path) -> None:
    assert_late_is_early("duckdb", tmp_path, seed, of_cel(seed))


@pytest.mark.parametrize("seed", seeds(2, 600, first=2000))
def test_late_patterns_tell_what_early_ones_would(seed: int, tmp_path: Path) -> None:
    assert_late_is_early("duckdb", tmp_path, seed, pattern_world(seed))


@pytest.mark.soak
def test_late_queries_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    assert assert_late_is_early(spark, tmp_path, 3, pattern_world(3)) > 0


CHAIN = """
FROM S//a->a[./k->k] FOLLOWED BY {k = k2, 1 h} S//b->b[./k->k2] PUBLISH pairs;
DEFINE EVENT Pair FROM pairs//match->m (k := m/a/k);
FROM Pair NEXT {$1.k = $2.k} Pair PUBLISH twice;
FROM twice//match->m[./k->k] FOLLOWED BY {k = k3, 1 h} S//c->c[./k->k3] PUBLISH last;
DEFINE EVENT Last FROM last//match->m (k := m/match/k);
FROM AGGREGATE {count() AS n BY k OVER 1 h} Last PUBLISH counted;
FROM FILTER {n >= 2} counted PUBLISH often
"""


def given(engine: Session, names: str, first: int = 0) -> None:
    for number, name in enumerate(names, first):
        at = number * SECOND
        engine.process([Document(f"d{number}", f"<x><{name}><k>u</k></{name}></x>", "S", (at, at))])


def summary(engine: Session) -> Counter[tuple[object, ...]]:
    return Counter((one.id, one.query, one.xml, one.documents) for one in engine.outputs())


@pytest.mark.parametrize(
    ("split", "at"),
    [
        *((split, at) for split, at in [(0, 9), (2, 7), (5, 11)]),
        *(pytest.param(split, at, marks=pytest.mark.soak) for split, at in [(1, 4), (3, 9), (4, 7), (6, 9)]),
    ],
)
def test_chains_of_joins_and_events_are_completed(split: int, at: int) -> None:
    """The first statements of a chain are there, the others come late."""
    statements, arrive = CHAIN.split(";"), "abaabcbccab"
    with Session("duckdb", settle=0) as early, Session("duckdb", settle=0) as late:
        early.subscribe(CHAIN)
        given(early, arrive)
        if split:
            late.subscribe(";".join(statements[:split]))
            for name in ("pairs", "twice", "last"):  # what nothing reads is not kept as a document
                if name in late.queries():
                    late.subscribe(f"FROM {name}//match->m", add=True)
        given(late, arrive[:at])
        late.subscribe(";".join(statements[split:]), backfill=True)
        given(late, arrive[at:], at)
        for engine in (early, late):
            engine.process([Document("end", "<x/>", "S", (10**4 * SECOND, 10**4 * SECOND))])
        found = Counter({key: count for key, count in summary(late).items() if not str(key[1]).startswith("q")})
        assert found == summary(early)
        assert sum(found.values()) > 20


def test_a_backfill_that_cannot_be_stored_is_not_made(engine: FaultySession) -> None:
    engine.subscribe(
        "DEFINE EVENT E FROM S//x->x (k := x/k, n := number(x/n)); FROM E NEXT {$1.k = $2.k} E PUBLISH early"
    )

    def arrives(number: int) -> None:
        xml = f"<x><k>{'uv'[number % 2]}</k><n>{number}</n></x>"
        engine.process([Document(f"d{number}", xml, "S", (number * 3_600_000_000,) * 2)])

    for number in range(6):
        arrives(number)
    text = "FROM early NEXT {$1.k = $2.k} E PUBLISH late; FROM AGGREGATE {sum(n) AS n BY k OVER 10 h} E PUBLISH summed"
    with engine.store.failing("commit"), pytest.raises(Injected):
        engine.subscribe(text, backfill=True)
    assert set(engine.queries()) == {"early"}
    before = engine.last_seq
    engine.subscribe(text, backfill=True)
    assert engine.last_seq > before
    with engine.store.failing("commit"), pytest.raises(Injected):
        arrives(6)
    for number in range(6, 12):
        arrives(number)
    outputs = list(engine.outputs())
    sums = [one.xml.partition("<n>")[2].partition("<")[0] for one in outputs if one.query == "summed"]
    assert sums == ["0", "1", "2", "4", "6", "9", "12", "16", "20", "25", "30"]
    assert Counter(one.query for one in outputs) == {"early": 9, "late": 7, "summed": 11}


def test_what_a_publisher_told_between_pauses_is_read() -> None:
    with Session("duckdb", settle=0) as engine:
        engine.subscribe("DEFINE EVENT A FROM S//a->a (k := a/k); FROM A NEXT A PUBLISH pairs; FROM A")
        given(engine, "aaa")
        engine.pause("pairs")
        given(engine, "aaa", 3)
        engine.resume("pairs")
        given(engine, "aaa", 6)
        engine.pause("pairs")
        engine.subscribe("FROM pairs PUBLISH read", backfill=True)
        told_before = sorted(one.documents for one in engine.outputs() if one.query == "pairs")
        assert sorted(one.documents for one in engine.outputs() if one.query == "read") == told_before
        assert len(told_before) == 3


def test_readers_that_were_there_get_only_what_is_not_late() -> None:
    with Session("duckdb", settle=2 * SECOND) as engine:
        engine.subscribe(
            "DEFINE EVENT A FROM S//a->a (k := a/k); FROM FILTER {k = 'none'} A PUBLISH some; FROM some PUBLISH read; "
            "FROM some//match->m PUBLISH documents"
        )
        given(engine, "aaaa")
        engine.subscribe("FROM FILTER {k = 'u'} A PUBLISH some", add=True, backfill=True)
        engine.process([Document("end", "<x/>", "S", (10**4 * SECOND, 10**4 * SECOND))])
        found = Counter(one.query for one in engine.outputs())
        assert found == {"some": 4, "documents": 4, "read": 3}


def test_what_came_too_late_is_not_for_a_backfill_either() -> None:
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe("DEFINE EVENT A FROM S//a->a (k := a/k); FROM A PUBLISH all")
        given(engine, "aa", 5)
        given(engine, "a", 1)
        assert [one["reason"].startswith("late for patterns: ") for one in engine.dead_letters()] == [True]
        engine.subscribe("FROM A NEXT A PUBLISH pairs", backfill=True)
        engine.process([Document("end", "<x/>", "S", (10**4 * SECOND, 10**4 * SECOND))])
        assert [one.documents for one in engine.outputs() if one.query == "pairs"] == [("d5", "d6")]


def test_definitions_alone_are_registered_with_a_backfill() -> None:
    with Session("duckdb") as engine:
        assert engine.subscribe("DEFINE EVENT A FROM S//a->a (k := a/k)", backfill=True) == []
        assert engine.subscribe("FROM A PUBLISH all", backfill=True) == ["all"]


def test_sql_has_no_state_that_a_backfill_could_join() -> None:
    with Session("duckdb", settle=None, patterns="sql") as engine:
        text = "DEFINE EVENT A FROM S//a->a (k := a/k); FROM A NEXT A PUBLISH pairs"
        with pytest.raises(InvalidValue, match="SQL answers event queries at the end of a run, and has no backfill"):
            engine.subscribe(text, backfill=True)
        assert not engine.queries()
