"""Random chains from joins to events and back: XSCL, UNION and FOLD, XSCL, AGGREGATE and NEXT, each by brute force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from tests.generate.documents import SECOND
from tests.generate.seeds import seeds
from tests.oracle.event_schemas import Schema
from tests.oracle.event_syntax import Aggregate, Both, Cel, Cmp, Fn, Fold, Item, Name, Next, Ref, Time, Union, Window
from tests.oracle.event_values import Value
from tests.oracle.events import Event, World, event

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
SETTLE = 4
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


def documents(rng: Random, count: int) -> list[Doc]:
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


def wanted(given: Sequence[Doc]) -> Told:
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
def test_chains_of_joins_and_events_are_those_of_brute_force(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    given = documents(rng, 45)
    arriving = sorted(given, key=lambda one: one.t1 + rng.randrange(SETTLE))
    engine = Session("duckdb", state=tmp_path, settle=SETTLE * SECOND, quiet=True)
    engine.subscribe(CHAIN)
    while arriving:
        size = rng.randint(3, 15)
        engine.process([as_document(one) for one in arriving[:size]])
        arriving = arriving[size:]
        if rng.random() < 0.2:
            engine.close()
            engine = Session("duckdb", state=tmp_path, settle=SETTLE * SECOND, quiet=True)
    engine.process([Document(f"last of {name}", "<none/>", name, (10**6 * SECOND,) * 2) for name in "ST"])
    assert told(engine.outputs()) == wanted(given)
    engine.close()


def test_random_chains_come_to_their_end() -> None:
    found = Counter(query for seed in range(20) for query, *_ in wanted(documents(Random(seed), 45)))
    assert min(found[name] for name in ("pairs", "rise", "hit", "rate", "more")) > 10
