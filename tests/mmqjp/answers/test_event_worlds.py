from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from common.errors import InvalidValue
from feeds.documents import Document
from mmqjp.answers.events_run import PLACES, MakeKernel, check_place, kernels
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.queries.changes import InvalidEvents
from pattern_stage.kernel import Kernel
from pattern_stage.lineage import Lineage
from pattern_stage.partition.kernel import PartitionedKernel, SparkRunner
from pattern_stage.values import Texts
from tests.generate.documents import SECOND, chance
from tests.generate.events import world
from tests.generate.patterns import pattern_world
from tests.generate.seeds import A_DAY, seeds
from tests.live.events import streams_read
from tests.mmqjp.answers.event_world import DEFINITIONS, END
from tests.oracle.bindings import Stored, in_time
from tests.oracle.events import World
from tests.oracle.pattern_world import PatternWorld
from tests.processes import event_engine, nursery
from tests.support.event_agreement import HereRunner
from tests.support.faults import Injected, fail
from tests.support.pattern_outputs import assert_told
from xscl.algebra.values import number_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTLE = 4 * SECOND
FIRST_PATTERNS = 1_000
"""Worlds of this seed and of later ones of its day have PATTERN statements."""


def some_world(seed: int) -> PatternWorld:
    if seed % A_DAY >= FIRST_PATTERNS:
        return pattern_world(seed)
    made = world(seed)
    return PatternWorld(made.schemas, made.given, made.statements)


def script(found: World) -> str:
    definitions = []
    for name in found.given:
        attributes = (
            f"{attribute} := number(e/{attribute})" if kind == "number" else f"{attribute} := e/{attribute}"
            for attribute, kind in found.schemas[name].items()
        )
        definitions.append(f"DEFINE EVENT {name} FROM documents_{name}//e->e ({', '.join(attributes)})")
    return ";\n".join([*definitions, *(statement.text() for statement in found.statements)])


def documents(found: World) -> list[tuple[int, Document]]:
    made = []
    for name, events in found.given.items():
        for one in sorted(events, key=lambda event: sorted(map(str, event.parts))):
            (part,) = one.parts
            assert isinstance(part, tuple)
            children = "".join(
                f"<{attribute}>{number_text(value) if isinstance(value, float) else value}</{attribute}>"
                for attribute, value in sorted(one.attributes, key=str)
                if value is not None
            )
            id = f"{part[0]}-{part[1]}"
            made.append((one.t1, Document(id, f"<e>{children}</e>", f"documents_{name}", (one.t0, one.t1))))
    return made


def batches(rng: Random, made: Sequence[tuple[int, Document]], late: int = SETTLE - 1) -> Iterator[list[Document]]:
    """The documents in batches, each at most `late` behind those of later times."""
    arriving = [one for _, one in sorted(made, key=lambda one: one[0] + rng.randint(0, late))]
    while arriving:
        size = rng.randint(1, 9)
        yield arriving[:size]
        arriving = arriving[size:]


def ends(found: World) -> list[Document]:
    return [Document(f"end {name}", "<end/>", f"documents_{name}", (END, END)) for name in found.given]


def in_time_only(
    found: PatternWorld, arriving: Sequence[Sequence[Document]], settle: Mapping[str, int]
) -> tuple[PatternWorld, list[str]]:
    """A world without the events of documents that came too late, and the ids of these."""
    read = {f"documents_{name}" for one in found.statements for name in streams_read(one) if name in found.given}
    stored = [Stored(one.stream, one.id, one.t0, one.t1, b"<e/>", ()) for batch in arriving for one in batch]
    punctual, late = in_time(stored, read, {name: settle.get(name, settle["*"]) for name in read})
    kept = {one.id for one in punctual}
    given = {
        name: [one for one in events if all(f"{part[0]}-{part[1]}" in kept for part in one.parts)]  # type: ignore[index]
        for name, events in found.given.items()
    }
    return PatternWorld(found.schemas, given, found.statements), [one.id for one in late if one.stream in read]


def in_parts(parts: int) -> MakeKernel:
    def make(texts: Texts, lineage: Lineage) -> Kernel:
        return PartitionedKernel(texts, lineage, HereRunner(parts))

    return make


def assert_world(rng: Random, seed: int, kind: str | SparkSession, state: Path, places: Sequence[str]) -> None:
    """Batches fail, stores are opened again, documents may come too late."""
    found = some_world(seed)
    arriving = list(batches(rng, documents(found), 3 * SETTLE if chance(rng, 30) else SETTLE - 1))
    settle = {"*": SETTLE, f"documents_{rng.choice([*found.given])}": rng.choice((SETTLE, SETTLE, SETTLE // 4))}
    timing: dict[str, Any] = {"settle": settle, "belated": rng.choice(("take", "drop"))}

    def opened() -> Session:
        return Session(kind, state=state, quiet=True, patterns=rng.choice(places), **timing)

    engine = opened()
    names = engine.subscribe(script(found), add=True)
    for batch in arriving:
        if chance(rng, 15):
            with pytest.raises(Injected):
                engine.process(batch, fail)
        engine.process(batch)
        if chance(rng, 20):
            engine.close()
            engine = opened()
    engine.process(ends(found))
    outputs, letters = list(engine.outputs()), list(engine.dead_letters())
    engine.close()
    world, late = in_time_only(found, arriving, settle)
    assert_told(outputs, names, world)
    assert sorted(one["id"] for one in letters) == sorted(late if timing["belated"] == "drop" else ())
    assert all(one["reason"].startswith("late for patterns: ") for one in letters)


@pytest.mark.parametrize("seed", [*seeds(2, 500), *seeds(2, 1_000, first=FIRST_PATTERNS)])
def test_worlds(seed, tmp_path, monkeypatch):
    """In every other world each kernel works in other parts, or in none."""
    rng = Random(seed)
    makers = [kernels("driver", None), *(map(in_parts, (1, 3, 7)) if seed % 2 else ())]
    monkeypatch.setattr("mmqjp.engine.kernels", lambda place, session, quota: rng.choice(makers))
    assert_world(rng, seed, "duckdb", tmp_path, ["driver"])


@pytest.mark.usefixtures("few_events_are_worth_a_job")
@pytest.mark.parametrize("seed", [*seeds(1, 8, first=300), *seeds(1, 8, first=FIRST_PATTERNS + 300)])
def test_worlds_on_spark(seed, spark, tmp_path):
    assert_world(Random(seed), seed, spark, tmp_path, ["driver", "executors"])


@pytest.mark.parametrize("seed", [*seeds(1, 8, first=200), *seeds(1, 500, first=2000)])
def test_worlds_as_sql(seed):
    rng, found = Random(seed), some_world(seed)
    with Session("duckdb", settle=None, patterns="sql", quiet=True) as engine:
        names = engine.subscribe(script(found), add=True)
        for batch in batches(rng, documents(found)):
            engine.process(batch)
        outputs = list(engine.finish())
        assert not list(engine.finish())
    assert_told(outputs, names, found)


def opened(state: Path) -> Session:
    return Session("duckdb", state=state, settle=SETTLE, quiet=True)


def test_a_document_with_too_many_events_is_a_dead_letter():
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe(DEFINITIONS + "; FROM B PUBLISH all")
        many = "<b k='u'><x>1</x></b>" * 10_001
        engine.process(
            [Document("many", f"<top>{many}</top>", time=0), Document("one", "<top><b k='u'/></top>", time=0)]
        )
        letters = [(one["id"], one["reason"]) for one in engine.dead_letters()]
        assert letters == [("many", "more than 10,000 events B, for patterns")]
        engine.process([Document(f"last of {stream}", "<none/>", stream, END) for stream in "ST"])
        assert [one.documents for one in engine.outputs()] == [("one",)]


REFUSED = [
    ("DEFINE EVENT A FROM T//x->x (k := x/k)", "the event A has another definition, which posts read"),
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
        assert not engine.subscribe("DEFINE EVENT A FROM S//x->x (k := x/k)", backfill=True)
        engine.subscribe("FROM A PUBLISH posts; FROM S//x PUBLISH docs")
        before = engine.queries(), dict(engine.registry.events.definitions)
        for text, message in REFUSED:
            with pytest.raises((InvalidEvents, ValueError), match=re.escape(message)):
                engine.subscribe(text, add=True)
            assert (engine.queries(), engine.registry.events.definitions) == before
        engine.process([Document("1", "<x><k>v</k></x>", time=0), Document("2", "<none/>", time=SECOND)])
        assert Counter(one.query for one in engine.outputs()) == {"posts": 1, "docs": 1}
        with pytest.raises(InvalidEvents, match="the event A is read by posts; remove them first"):
            engine.unsubscribe("A")
        engine.unsubscribe("posts")
        engine.unsubscribe("A")
        assert not engine.registry.events.definitions


EVENT_CHAIN = """
FROM S//a->a[./k->k] FOLLOWED BY {k = k2, 1 h} S//b->b[./k->k2] PUBLISH pairs;
DEFINE EVENT Pair FROM pairs//match->m (k := m/a/k);
FROM Pair NEXT {$1.k = $2.k} Pair PUBLISH twice;
FROM twice//match->m[./k->k] FOLLOWED BY {k = k3, 1 h} S//c->c[./k->k3] PUBLISH last;
DEFINE EVENT Last FROM last//match->m (k := m/match/k);
FROM AGGREGATE {count() AS n BY k OVER 1 h} Last PUBLISH counted;
FROM FILTER {n >= 2} counted PUBLISH often
"""


def arrive(engine: Session, names: str, first: int = 0) -> None:
    for number, name in enumerate(names, first):
        at = number * SECOND
        engine.process([Document(f"d{number}", f"<x><{name}><k>u</k></{name}></x>", "S", (at, at))])


def summary(engine: Session) -> Counter[tuple[object, ...]]:
    return Counter((one.id, one.query, one.xml, one.documents) for one in engine.outputs())


@pytest.mark.parametrize("seed", seeds(1, 200))
def test_chains_of_joins_and_events_depend_on_no_order_batch_or_restart(seed, tmp_path):
    rng, made = Random(seed), list[tuple[int, Document]]()
    for number, name in enumerate("aabbabc" * 5):
        at = number // 2 * SECOND
        made.append((at, Document(f"d{number}", f"<{name}><k>{rng.choice('uv')}</k></{name}>", "S", at)))
    with Session("duckdb", settle=None) as engine:
        engine.subscribe(EVENT_CHAIN)
        engine.process([one for _, one in made])
        list(engine.finish())
        wanted = summary(engine)
    engine = opened(tmp_path)
    engine.subscribe(EVENT_CHAIN)
    for batch in batches(rng, made):
        engine.process(batch)
        if chance(rng, 20):
            engine.close()
            engine = opened(tmp_path)
    engine.process([Document("end", "<x/>", "S", END)])
    assert summary(engine) == wanted and {query for _, query, *_ in wanted} >= {"pairs", "twice", "last", "counted"}
    engine.close()


SPLITS = ((0, 9), (2, 7), (5, 11), (1, 4), (3, 9), (4, 7), (6, 9))


@pytest.mark.parametrize("case", seeds(3, len(SPLITS)))
def test_chains_of_joins_and_events_are_completed(case):
    (split, at), statements, letters = SPLITS[case], EVENT_CHAIN.split(";"), "abaabcbccab"
    with Session("duckdb", settle=0) as early, Session("duckdb", settle=0) as late:
        early.subscribe(EVENT_CHAIN)
        arrive(early, letters)
        if split:
            late.subscribe(";".join(statements[:split]))
            for name in ("pairs", "twice", "last"):  # what nothing reads is not kept as a document
                if name in late.queries():
                    late.subscribe(f"FROM {name}//match->m", add=True)
        arrive(late, letters[:at])
        late.subscribe(";".join(statements[split:]), backfill=True)
        arrive(late, letters[at:], at)
        for engine in (early, late):
            engine.process([Document("end", "<x/>", "S", END)])
        found = Counter({key: count for key, count in summary(late).items() if not str(key[1]).startswith("q")})
        assert found == summary(early)
        assert sum(found.values()) > 20


def test_sql_has_no_state_that_a_backfill_could_join():
    with Session("duckdb", settle=None, patterns="sql") as engine:
        text = "DEFINE EVENT A FROM S//a->a (k := a/k); FROM A NEXT A PUBLISH pairs"
        with pytest.raises(InvalidValue, match="SQL answers event queries at the end of a run, and has no backfill"):
            engine.subscribe(text, backfill=True)
        assert not engine.queries()


WORLD = pattern_world(7, most=16)
BATCHES = list(batches(Random(7), documents(WORLD)))
Listed = list[tuple[int, str, str, tuple[str, ...]]]


def listed(outputs: Iterable[Output]) -> Listed:
    return [(one.seq, one.id, one.xml, one.documents) for one in outputs]


def ended(engine: Session) -> Listed:
    engine.process(ends(WORLD))
    return listed(engine.outputs())


@pytest.fixture
def few_events_are_worth_a_job(monkeypatch):
    defaults = SparkRunner.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "least", 0)


@pytest.mark.soak
@pytest.mark.usefixtures("few_events_are_worth_a_job")
@pytest.mark.parametrize("point", ["before", "after"])
def test_killed_amid_a_batch(point, spark, tmp_path):
    killed = nursery.run(event_engine.live, tmp_path, SETTLE, script(WORLD), BATCHES, point, 6)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = 5 if point == "before" else 6
    for place, some in (("executors", BATCHES[done : done + 2]), ("driver", BATCHES[done + 2 :])):
        with Session(spark, state=tmp_path, settle=SETTLE, patterns=place, quiet=True) as engine:
            assert engine.queries()
            for batch in some:
                engine.process(batch)
    with Session(spark, state=tmp_path, settle=SETTLE, patterns="executors", quiet=True) as engine:
        found = ended(engine)
    with Session("duckdb", settle=SETTLE, quiet=True) as engine:
        engine.subscribe(script(WORLD), add=True)
        for batch in BATCHES:
            engine.process(batch)
        assert found == ended(engine) != []


@pytest.mark.usefixtures("few_events_are_worth_a_job")
@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("duckdb", "sql"),
        pytest.param("spark", "sql", marks=[pytest.mark.spark, pytest.mark.soak]),
        pytest.param("spark", "executors", marks=pytest.mark.spark),
    ],
)
def test_a_finite_run(kind, place, request):
    engine = request.getfixturevalue("spark") if kind == "spark" else kind
    found = []
    for one, patterns in (("duckdb", "driver"), (engine, place)):
        with Session(one, settle=None, patterns=patterns, quiet=True) as opened:
            opened.subscribe(script(WORLD), add=True)
            for number, batch in enumerate(BATCHES):
                if number == 2:
                    with pytest.raises(Injected):
                        opened.process(batch, fail)
                opened.process(batch)
            found.append(listed(opened.finish()))
    assert found[0] == found[1] != []


@pytest.mark.parametrize("place", PLACES)
def test_places_on_spark(place):
    check_place(place, on_spark=True, lasts=False, settle=None)


def test_places_that_cannot_be():
    for place, lasts, settle, message in (
        ("executors", False, None, "only Spark has executors"),
        ("sql", True, None, "keeps no state"),
        ("sql", False, 5, "settle be INF"),
        ("moon", False, None, "one of driver, executors, sql, not 'moon'"),
    ):
        with pytest.raises(InvalidValue, match=message):
            check_place(place, on_spark=False, lasts=lasts, settle=settle)
    with pytest.raises(InvalidValue, match="only Spark has executors"):
        Session("duckdb", patterns="executors")
