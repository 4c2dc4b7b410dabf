"""Random worlds of events, and chains from joins to events and back: outputs are those of brute force."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from random import Random
from typing import NamedTuple

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.answers.events_run import kernels
from mmqjp.answers.kernels import MakeKernel, PatternKernel
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from pattern_stage.lineage import Lineage
from pattern_stage.partition.kernel import HereRunner, PartitionedKernel
from pattern_stage.values import Texts
from tests.generate.documents import SECOND, chance
from tests.generate.event_worlds import world
from tests.generate.pattern_worlds import pattern_world
from tests.generate.seeds import A_DAY, seeds
from tests.mmqjp.answers.event_world import END
from tests.oracle.bindings import Stored
from tests.oracle.event_documents import in_time
from tests.oracle.event_schemas import Schema
from tests.oracle.event_syntax import (
    Aggregate,
    Both,
    Cel,
    Cmp,
    Fn,
    Fold,
    Item,
    Name,
    Next,
    Ref,
    Time,
    Union,
    Window,
    reads,
)
from tests.oracle.event_values import Value
from tests.oracle.events import Event, World, event
from tests.oracle.pattern_syntax import Statement
from tests.oracle.pattern_world import PatternWorld
from tests.support.faults import Injected, fail
from tests.support.pattern_outputs import assert_told
from xscl.algebra.values import number_text

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


def read_by(one: Statement) -> set[str]:
    return {*(reads(one) if isinstance(one, Cel) else one.streams)}


def in_order(found: PatternWorld) -> list[int]:
    """The places of statements, each behind those that publish what it reads."""
    names = {one.publish for one in found.statements}
    ordered: list[int] = []
    while len(ordered) < len(found.statements):
        done = {found.statements[place].publish for place in ordered}
        left = {one.publish for place, one in enumerate(found.statements) if place not in ordered}
        for place, one in enumerate(found.statements):
            wanted = {name for name in read_by(one) if name in names}
            if place not in ordered and wanted <= done - left:
                ordered.append(place)
    return ordered


def in_time_only(found: PatternWorld, arriving: Sequence[Sequence[Document]]) -> PatternWorld:
    """A world without the events of documents that came too late."""
    read = {f"documents_{name}" for one in found.statements for name in read_by(one) if name in found.given}
    stored = [[Stored(one.stream, one.id, one.t0, one.t1, b"<e/>", ()) for one in batch] for batch in arriving]
    kept = {one.id for one in in_time(stored, read, dict.fromkeys(read, SETTLE))[0]}
    given = {
        name: [one for one in events if all(f"{part[0]}-{part[1]}" in kept for part in one.parts)]  # type: ignore[index]
        for name, events in found.given.items()
    }
    return PatternWorld(found.schemas, given, found.statements)


def in_parts(parts: int) -> MakeKernel:
    def make(texts: Texts, lineage: Lineage) -> PatternKernel:
        return PartitionedKernel(texts, lineage, HereRunner(parts))

    return make


@pytest.mark.parametrize("seed", [*seeds(2, 500), *seeds(4, 1_000, first=FIRST_PATTERNS)])
def test_worlds(seed, tmp_path, monkeypatch):
    """Batches fail, stores are opened again, documents may come too late. In every other world each kernel works in
    other parts, or in none."""
    rng, found = Random(seed), some_world(seed)
    makers = [kernels("driver", None), *(map(in_parts, (1, 3, 7)) if seed % 2 else ())]
    monkeypatch.setattr("mmqjp.engine.kernels", lambda place, session, quota: rng.choice(makers))
    arriving = list(batches(rng, documents(found), 3 * SETTLE if chance(rng, 30) else SETTLE - 1))
    engine = Session("duckdb", state=tmp_path, settle=SETTLE, quiet=True)
    names = engine.subscribe(script(found), add=True)
    for batch in arriving:
        if chance(rng, 15):
            with pytest.raises(Injected):
                engine.process(batch, fail)
        engine.process(batch)
        if chance(rng, 20):
            engine.close()
            engine = Session("duckdb", state=tmp_path, settle=SETTLE, quiet=True)
    engine.process(ends(found))
    outputs = list(engine.outputs())
    engine.close()
    assert_told(outputs, names, in_time_only(found, arriving))


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


RISE = Cel(
    Fold(
        Union(Name("Pair"), Name("C")),
        Cmp("=", Ref("k", "$2"), Ref("k", "$")),
        Cmp(">=", Ref("x", "$2"), Ref("x", "$")),
        (),
        Name("C"),
    ),
    within=Window("12"),
    publish="rise",
)
X = (Ref("x"),)
RATE = Cel(
    Aggregate(
        (Item(Fn("count"), "n"), Item(Fn("max", X), "top"), Item(Fn("avg", X), "mean")),
        ("k",),
        Window("6"),
        Name("Hit"),
    ),
    publish="rate",
)
MORE = Cel(
    Next(
        Name("rate"),
        Both("AND", (Cmp("=", Ref("k", "$1"), Ref("k", "$2")), Cmp(">", Ref("n", "$2"), Ref("n", "$1")))),
        Cel(Name("rate"), (Item(Ref("k")), Item(Ref("n")), Item(Ref("top")))),
    ),
    (Item(Ref("k")), Item(Ref("n_1"), "before"), Item(Ref("n")), Item(Ref("top")), Item(Time("DUR"), "d")),
    Window("9"),
    "more",
)
CHAIN = f"""
FROM S//a->a[./k->k] FOLLOWED BY {{k = l, 5 s}} T//b->b[./l->l] PUBLISH pairs;
DEFINE EVENT Pair FROM pairs/match->m (k := m/a/k, x := number(m/b/x));
DEFINE EVENT C FROM S//c->c (k := c/k, x := number(c/x));
{RISE.text()};
FROM rise/match->m[./k->k] JOIN {{k = k2, 8 s}} T//d->d[./k->k2] PUBLISH hit;
DEFINE EVENT Hit FROM hit/match->m (k := m/match/k, x := number(m/match/x));
{RATE.text()};
{MORE.text()}
"""
STREAMS = {"a": "S", "b": "T", "c": "S", "d": "T"}
LATENESS = 4
"""In seconds, as the times of documents."""


class Doc(NamedTuple):
    name: str
    kind: str
    t0: int
    t1: int
    k: str | None
    x: str | None


Told = Counter[tuple[str, frozenset[tuple[str, str | float]], int, int]]
"""Outputs: their queries, values but NULL, and times in seconds."""


def chain_documents(rng: Random, count: int) -> list[Doc]:
    """Points and intervals with ties; some lack a value, or have one that is no number."""
    made = []
    for number in range(count):
        kind, t0 = rng.choice("aabbcccccddd"), rng.randrange(20)
        k = rng.choice("pq") if rng.random() < 0.97 else None
        t1 = t0 + rng.choice((0, 0, 0, 0, 1))
        made.append(Doc(f"{kind}{number}", kind, t0, t1, k, rng.choice(("1", "2", "2", "3", "3", "none", None))))
    return made


SCHEMA: Schema = {"k": "string", "x": "number"}


def made(k: str | None, x: Value, times: tuple[int, int], part: Hashable) -> Event:
    number = x if isinstance(x, float) else float(x) if x and x.isdigit() else None
    t0, t1 = times
    return event({"k": k, "x": number}, t0 * SECOND, t1 * SECOND, [part])


def chain_wanted(given: Sequence[Doc]) -> Told:
    a, b, c, d = ([one for one in given if one.kind == kind] for kind in STREAMS)
    pairs = [(x, y) for x in a for y in b if x.k and x.k == y.k and x.t1 < y.t0 and y.t1 - x.t0 <= 5]
    events = {
        "Pair": [made(x.k, y.x, (x.t0, y.t1), (x.name, y.name)) for x, y in pairs],
        "C": [made(one.k, one.x, (one.t0, one.t1), one.name) for one in c],
    }
    rise = World(dict.fromkeys(events, SCHEMA), events, [RISE]).results(0)
    hits = []
    for one in rise:
        k, value, begin, end = one.values["k"], one.values["x"], one.t0 // SECOND, one.t1 // SECOND
        for other in d:
            t0, t1 = min(begin, other.t0), max(end, other.t1)
            if k is not None and k == other.k and t1 - t0 <= 8:
                hits.append(made(other.k, value, (t0, t1), (one, other.name)))
    world = World({"Hit": SCHEMA}, {"Hit": hits}, [RATE, MORE])
    found: Told = Counter(("pairs", frozenset(), x.t0, y.t1) for x, y in pairs)
    found.update(("hit", frozenset(), one.t0 // SECOND, one.t1 // SECOND) for one in hits)
    for name, results in (("rise", rise), ("rate", world.results(0)), ("more", world.results(1))):
        for one in results:
            values = frozenset((key, value) for key, value in one.attributes if value is not None)
            found[name, values, one.t0 // SECOND, one.t1 // SECOND] += 1
    return found


def told(outputs: Iterable[Output]) -> Told:
    found: Told = Counter()
    for one in outputs:
        is_join = one.query in ("pairs", "hit")
        texts = [] if is_join else [(child.tag, child.text or "") for child in etree.fromstring(one.xml)]
        values = frozenset((name, text if name in ("k", "k_1") else float(text)) for name, text in texts)
        found[one.query, values, one.t0 // SECOND, one.t1 // SECOND] += 1
    return found


def as_document(one: Doc) -> Document:
    children = (("l" if one.kind == "b" else "k", one.k), ("x", one.x))
    xml = "".join(f"<{tag}>{text}</{tag}>" for tag, text in children if text)
    xml = f"<{one.kind}>{xml}</{one.kind}>"
    return Document(one.name, xml, STREAMS[one.kind], (one.t0 * SECOND, one.t1 * SECOND))


@pytest.mark.parametrize("seed", seeds(1, 200))
def test_chains_of_joins_and_events_are_those_of_brute_force(seed, tmp_path):
    rng = Random(seed)
    given = chain_documents(rng, 45)
    arriving = sorted(given, key=lambda one: one.t1 + rng.randrange(LATENESS))
    engine = Session("duckdb", state=tmp_path, settle=LATENESS * SECOND, quiet=True)
    engine.subscribe(CHAIN)
    while arriving:
        size = rng.randint(3, 15)
        engine.process([as_document(one) for one in arriving[:size]])
        arriving = arriving[size:]
        if rng.random() < 0.2:
            engine.close()
            engine = Session("duckdb", state=tmp_path, settle=LATENESS * SECOND, quiet=True)
    engine.process([Document(f"last of {name}", "<none/>", name, (10**6 * SECOND,) * 2) for name in "ST"])
    assert told(engine.outputs()) == chain_wanted(given)
    engine.close()


def test_random_chains_come_to_their_end():
    found = Counter(query for seed in range(20) for query, *_ in chain_wanted(chain_documents(Random(seed), 45)))
    assert min(found[name] for name in ("pairs", "rise", "hit", "rate", "more")) > 10
