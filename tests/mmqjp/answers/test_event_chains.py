"""Random chains from joins to events and back: XSCL, UNION and FOLD, XSCL, AGGREGATE and NEXT, each by brute force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from tests.generate.documents import SECOND
from tests.generate.seeds import seeds

CHAIN = """
FROM S//a->a[./k->k] FOLLOWED BY {k = l, 5 s} T//b->b[./l->l] PUBLISH pairs;
DEFINE EVENT Pair FROM pairs/match->m (k := m/a/k, x := number(m/b/x));
DEFINE EVENT C FROM S//c->c (k := c/k, x := number(c/x));
FROM (Pair UNION C) FOLD{$2.k = $.k, $2.x >= $.x,} C WITHIN 12 s PUBLISH rise;
FROM rise/match->m[./k->k] JOIN {k = k2, 8 s} T//d->d[./k->k2] PUBLISH hit;
DEFINE EVENT Hit FROM hit/match->m (k := m/match/k, x := number(m/match/x));
FROM AGGREGATE{count() AS n, max(x) AS top, avg(x) AS mean BY k OVER 6 s} Hit PUBLISH rate;
SELECT k, n_1 AS before, n, top, DUR AS d
FROM rate NEXT{$1.k = $2.k AND $2.n > $1.n} (SELECT k, n, top FROM rate) WITHIN 9 s PUBLISH more
"""
STREAMS = {"a": "S", "b": "T", "c": "S", "d": "T"}
SETTLE = 4
"""In seconds, as all times here."""


class Doc(NamedTuple):
    name: str
    kind: str
    t0: int
    t1: int
    k: str | None
    x: str | None


class Event(NamedTuple):
    values: frozenset[tuple[str, str | float]]
    """Without those that are NULL."""
    t0: int
    t1: int
    parts: frozenset[object]


Told = Counter[tuple[str, frozenset[tuple[str, str | float]], int, int]]


def documents(rng: Random, count: int) -> list[Doc]:
    """Points and intervals with ties; some lack a value, or have one that is no number."""
    made = []
    for number in range(count):
        kind, t0 = rng.choice("aabbcccccddd"), rng.randrange(20)
        k = rng.choice("pq") if rng.random() < 0.97 else None
        t1 = t0 + rng.choice((0, 0, 0, 0, 1))
        made.append(Doc(f"{kind}{number}", kind, t0, t1, k, rng.choice(("1", "2", "2", "3", "3", "none", None))))
    return made


def event(t0: int, t1: int, parts: Iterable[object], **values: str | float | None) -> Event:
    known = frozenset((name, value) for name, value in values.items() if value is not None)
    return Event(known, t0, t1, frozenset(parts))


def of(one: Event) -> dict[str, Any]:
    return dict(one.values)


def number(one: Doc) -> float | None:
    return float(one.x) if one.x and one.x.isdigit() else None


def runs(starts: set[Event], given: set[Event]) -> set[Event]:
    """FOLD: each run by its first event, its latest one and its values."""
    found: set[tuple[Event, Event]] = set()
    last = {(start, start) for start in starts}
    while last:
        longer = set()
        for first, latest in last:
            now = of(latest)
            same = [one for one in given if latest.t1 < one.t0 and "k" in now and of(one).get("k") == now["k"]]
            for one in same:
                rises = "x" in now and "x" in of(one) and of(one)["x"] >= now["x"]
                if rises and one.t1 == min(other.t1 for other in same):
                    longer.add((first, one))
        last = longer
        found |= longer
    return {
        event(
            first.t0, one.t1, first.parts | one.parts, k_1=of(first).get("k"), x_1=of(first).get("x"),
            k=of(one).get("k"), x=of(one).get("x"),
        )
        for first, one in found
        if one.t1 - first.t0 <= 12
    }  # fmt: skip


def rates(hits: set[Event]) -> set[Event]:
    """AGGREGATE."""
    found = set()
    for k, t in {(of(one)["k"], one.t1) for one in hits}:
        window = [one for one in hits if of(one)["k"] == k and t - 6 < one.t1 <= t]
        known = [float(of(one)["x"]) for one in window if "x" in of(one)]
        parts = [part for one in window if one.t1 == t for part in one.parts]
        top, mean = (max(known), sum(known) / len(known)) if known else (None, None)
        found.add(event(t, t, parts, k=k, n=float(len(window)), top=top, mean=mean))
    return found


def growth(rate: set[Event]) -> set[Event]:
    """NEXT: the first that is greater, with all that end then."""
    found = set()
    for one in rate:
        greater = [
            other for other in rate
            if one.t1 < other.t0 and of(one)["k"] == of(other)["k"] and of(other)["n"] > of(one)["n"]
        ]  # fmt: skip
        for other in greater:
            if other.t1 == min(each.t1 for each in greater) and other.t1 - one.t0 <= 9:
                now, span = of(other), float(other.t1 - one.t0)
                parts = one.parts | other.parts
                values = {"k": now["k"], "before": of(one)["n"], "n": now["n"], "top": now.get("top"), "d": span}
                found.add(event(one.t0, other.t1, parts, **values))
    return found


def wanted(given: Sequence[Doc]) -> Told:
    by_kind = {kind: [one for one in given if one.kind == kind] for kind in STREAMS}
    pairs = [
        (a, b) for a in by_kind["a"] for b in by_kind["b"] if a.k and a.k == b.k and a.t1 < b.t0 and b.t1 - a.t0 <= 5
    ]
    own = {event(c.t0, c.t1, [c.name], k=c.k, x=number(c)) for c in by_kind["c"]}
    rise = runs({event(a.t0, b.t1, [(a.name, b.name)], k=a.k, x=number(b)) for a, b in pairs} | own, own)
    hits = {
        event(min(one.t0, d.t0), max(one.t1, d.t1), [(one, d.name)], k=of(one)["k"], x=of(one).get("x"))
        for one in rise
        for d in by_kind["d"]
        if of(one)["k"] == d.k and max(one.t1, d.t1) - min(one.t0, d.t0) <= 8
    }
    rate = rates(hits)
    found: Told = Counter(("pairs", frozenset(), a.t0, b.t1) for a, b in pairs)
    found.update(("hit", frozenset(), one.t0, one.t1) for one in hits)
    for name, events in (("rise", rise), ("rate", rate), ("more", growth(rate))):
        found.update((name, one.values, one.t0, one.t1) for one in events)
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
