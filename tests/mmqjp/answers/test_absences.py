"""Absences over documents that may be belated, against brute force over arrivals: what is told, what waits and until
when, and what is counted as too late, wherever batches are cut, whatever is evicted, pruned or loaded again. Over
random scripts: `tests.mmqjp.test_agreement`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from feeds.documents import Document, Visit, VisitOutcome
from join_stage import near_candidates
from join_stage.plans import PLANS
from mmqjp.answers import absence
from mmqjp.engine import Session
from mmqjp.tables import schema
from tests.generate.documents import SECOND, chance
from tests.generate.seeds import seeds
from tests.support.faults import FaultySession, Injected
from xscl.parser import parse_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUTCOMES: tuple[VisitOutcome, ...] = ("complete",) * 4 + ("awaited", "ended")

OPS = ("NOT FOLLOWED BY", "NOT JOIN", "NOT PRECEDED BY")


class Came(NamedTuple):
    """A document as it came, or what was made of some: `watermark` is -inf unless it is belated."""

    names: tuple[str, ...]
    text: str
    t0: float
    t1: float
    arrival: int
    watermark: float = -inf

    @property
    def is_belated(self) -> bool:
        return self.watermark > -inf


class World:
    """Streams L and R, and how far they had come before each arrival. A feed is live once it is awaited or visited."""

    def __init__(self, items: Sequence[Document | Visit], lateness: dict[str, int], settle: int) -> None:
        self._lateness, self._settle = lateness, settle
        self.documents: dict[str, list[Came]] = {}
        self._progress, self._greatest = dict.fromkeys("LR", -inf), dict.fromkeys("LR", -inf)
        self._visited: dict[str, dict[str, float]] = {"L": {}, "R": {}}
        self._before: list[dict[str, float]] = []
        for item in items:
            if isinstance(item, Visit):
                self._visit(item)
                continue
            arrival = len(self._before)
            self._before.append(dict(self._progress))
            name, text = item.xml[1], item.xml[3:-4]
            came = Came((item.id,), str(text), item.t0, item.t1, arrival)
            self.documents.setdefault(str(name), []).append(self.judged(came, item.stream))
            if not item.feed:
                self._greatest[item.stream] = max(self._greatest[item.stream], item.t1)
                self._move(item.stream)
        self._before.append(dict(self._progress))

    def _visit(self, visit: Visit) -> None:
        visited = self._visited[visit.stream]
        if visit.outcome == "ended":
            visited.pop(visit.feed, None)
        elif visit.outcome == "awaited":
            if visit.time > visited.get(visit.feed, -inf):
                visited[visit.feed] = -inf
        else:
            visited[visit.feed] = max(visited.get(visit.feed, -inf), visit.time)
        self._move(visit.stream)

    def _move(self, stream: str) -> None:
        known = list(self._visited[stream].values())
        if self._greatest[stream] > -inf:
            known.append(self._greatest[stream])
        self._progress[stream] = max(self._progress[stream], min(known, default=-inf))

    def watermark(self, streams: str, arrival: int) -> float:
        """E is the horizon of_events of L and R."""
        before = self._before[arrival]
        known = {stream: before[stream] - self._lateness[stream] for stream in "LR"}
        known["E"] = min(before.values()) - self._settle
        return min(known[stream] for stream in streams)

    def judged(self, came: Came, streams: str) -> Came:
        watermark = self.watermark(streams, came.arrival)
        return came._replace(watermark=watermark) if came.t1 < watermark else came._replace(watermark=-inf)

    def came_to(self, streams: str, time: float) -> int | None:
        found = (k for k in range(len(self._before) - 1) if self.watermark(streams, k + 1) >= time)
        return next(found, None)

    def events(self, some: Sequence[Came]) -> Iterator[Came]:
        """The documents of_events, which come when the horizon has passed them."""
        for one in some:
            came = self.came_to("E", one.t1 + 1)
            if came is not None and one.t1 >= self.watermark("E", one.arrival):
                yield one._replace(arrival=came, watermark=-inf)

    def joined(self, ones: Sequence[Came], others: Sequence[Came], window: float, streams: str) -> Iterator[Came]:
        for one in ones:
            for other in others:
                t0, t1 = min(one.t0, other.t0), max(one.t1, other.t1)
                earlier, later = sorted((one, other), key=lambda came: came.arrival)
                reach = max(t1 - t0, later.watermark - earlier.t0)
                if one.text == other.text and one.names != other.names and reach <= window:
                    yield self.judged(Came(one.names + other.names, one.text, t0, t1, later.arrival), streams)


@dataclass
class Absent:
    """What an absence tells, how many of its documents wait, the time that decides the first, and what was too late."""

    told: list[Came]
    waiting: int
    until: float
    too_late: int


def absent(
    world: World, op: str, window: float, lefts: Sequence[Came], rights: Sequence[Came], of: str, behind: str = "R"
) -> Absent:
    """`of` are the streams behind the lefts, `behind` those behind the rights."""
    found = Absent([], 0, inf, sum(right.is_belated for right in rights))
    for left in lefts:
        first = left.t1 + 1 if op == "NOT FOLLOWED BY" else left.t1 - window
        if first < left.watermark - window:
            found.too_late += 1
            continue
        over, due = (left.t1, left.t0) if op == "NOT PRECEDED BY" else (left.t0 + window, left.t0 + window + 1)
        decided = world.came_to(behind, due)
        if decided is None:
            found.waiting += 1
            found.until = min(found.until, due)
            continue
        decided = max(decided, left.arrival)
        if not any(_is_partner(op, window, left, right) for right in rights if right.arrival <= decided):
            told = left._replace(t1=max(left.t1, over), arrival=decided)
            found.told.append(world.judged(told, of + behind))
    return found


def _is_partner(op: str, window: float, left: Came, right: Came) -> bool:
    if left.text != right.text or max(left.t1, right.t1) - min(left.t0, right.t0) > window:
        return False
    return left.t1 < right.t0 if op == "NOT FOLLOWED BY" else op == "NOT JOIN" or right.t1 < left.t0


def history(rng: random.Random) -> list[Document | Visit]:
    """Documents <l>, <r> and <q> and visits, some far behind the others."""
    now, items = 100, list[Document | Visit]()
    by_feeds = {"L": chance(rng, 60), "R": chance(rng, 60)}
    for number in range(rng.choice((8, 14, 20))):
        now += rng.choice((0, 0, 1, 2, 6))
        stream = rng.choice("LRR")
        if by_feeds[stream] and chance(rng, 40):
            outcome = rng.choice(OUTCOMES)
            items.append(Visit(rng.choice("fg"), (now - rng.choice((0, 1))) * SECOND, outcome, stream))
            continue
        t0 = now - rng.choice((0, 0, 0, 1, 3, 5, 9, 30))
        times = t0 * SECOND, (t0 + rng.choice((0, 0, 2))) * SECOND
        feed = rng.choice("fg") if by_feeds[stream] and chance(rng, 90) else ""
        name = "l" if stream == "L" else rng.choice("rq")
        items.append(Document(f"d{number}", f"<{name}>{rng.choice('uv')}</{name}>", stream, times, feed=feed))
    return items


def as_text(window: float) -> str:
    return "INF" if window == inf else f"{int(window) // SECOND} s"


Told = tuple[str, tuple[str, ...]]
"""A query, and the documents of an output."""


class Expected(NamedTuple):
    """What queries tell; how much was too late, by query, and belated, by stream; what waits and until when."""

    told: set[Told]
    too_late: dict[str, int]
    belated: Counter[str]
    waiting: dict[str, tuple[int, float]]


def case(seed: int) -> tuple[str, dict[str, int], int, list[Document | Visit], Expected]:
    """A script, lateness, how long events settle, and what arrives and follows."""
    rng = random.Random(seed)
    op, inner = rng.choice(OPS), rng.choice(OPS)
    window, other, joined = (rng.choice((0, 1, 3, 6, 12)) * SECOND for _ in range(3))
    wide = inf if op == "NOT PRECEDED BY" and chance(rng, 30) else window
    pairs = inf if chance(rng, 30) else joined
    within = as_text(wide)
    texts = {
        "plain": f"L//l->x {op} {{x = y, {within}}} R//r->y",
        "near": f"L//l->x {op} {{near(x, y, 0.5), {within}}} R//r->y",
        "similar": f"L//l->x {op} {{similar(x, y, 0.5), {within}}} R//r->y",
        "right": f"L//l->x {op} {{x = y, {within}}} rs//r->y",
        "left": f"ls//l->x {op} {{x = y, {within}}} R//r->y",
        "pairs": f"L//l->x {op} {{x = y, {within}}} (R//r->y JOIN {{y = z, {as_text(pairs)}}} R//q->z)",
        "two": f"(L//l->x {inner} {{x = w, {as_text(other)}}} R//q->w) {op} {{x = y, {within}}} R//r->y",
        "events": f"L//l->x {op} {{x = y, {within}}} er//v->y",
        "of_events": f"el//v->x {op} {{x = y, {within}}} R//r->y",
        "published": f"twice//l->x {op} {{x = y, {within}}} R//r->y",
    }
    chosen = rng.sample(sorted(texts), rng.randint(2, len(texts)))
    script = "DEFINE EVENT E FROM R//r->y (v := y); DEFINE EVENT F FROM L//l->x (v := x); "
    script += "FROM E PUBLISH er; FROM F PUBLISH el; "
    script += "; ".join(f"FROM {texts[name]} PUBLISH {name}" for name in chosen)
    script += "; SELECT y FROM R//r->y PUBLISH rs; SELECT x FROM L//l->x PUBLISH ls; "
    script += f"SELECT x FROM L//l->x {inner} {{x = w, {as_text(other)}}} R//q->w PUBLISH twice"

    lateness = {stream: rng.choice((0, 2, 5)) * SECOND for stream in "LR"}
    settle, items = rng.choice((0, 3)) * SECOND, history(rng)
    world = World(items, lateness, settle)
    lefts, rights, others = (world.documents.get(name, []) for name in "lrq")
    first = absent(world, inner, other, lefts, others, "L")
    found = {
        name: absent(world, op, wide, lefts, rights, "L") for name in ("plain", "near", "similar", "right", "left")
    }
    found["pairs"] = absent(world, op, wide, lefts, list(world.joined(rights, others, pairs, "R")), "L")
    found["published"] = absent(world, op, wide, first.told, rights, "LR")
    found["two"] = absent(world, op, wide, first.told, rights, "LR")
    found["events"] = absent(world, op, wide, lefts, list(world.events(rights)), "L", "RE")
    found["of_events"] = absent(world, op, wide, list(world.events(lefts)), rights, "LE")
    too_late = {name: found[name].too_late for name in chosen} | {"twice": first.too_late}
    for name, some in (("er", rights), ("el", lefts)):
        too_late[name] = sum(one.t1 < world.watermark("E", one.arrival) for one in some)
    if "two" in chosen:
        too_late["two"] += first.too_late
    told = {(name, one.names) for name in chosen for one in found[name].told}
    told |= {("twice", one.names) for one in first.told}
    waiting = {name: (one.waiting, one.until) for name, one in found.items() if name in chosen and name != "two"}
    late = Counter(
        "L" if name == "l" else "R" for name, some in world.documents.items() for one in some if one.is_belated
    )
    return (
        script,
        lateness,
        settle,
        items,
        Expected(told, {name: n for name, n in too_late.items() if n}, late, waiting),
    )


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Sightings are evicted at once, counts added up with each pruning, and the order of words is learnt early."""
    monkeypatch.setattr(absence, "WORTH_DROPPING", 1 << 40)
    monkeypatch.setattr(schema, "MOST_APART", 1)
    monkeypatch.setattr(near_candidates, "ENOUGH", 2)


def assert_is_told(engine_of: str | SparkSession, state: Path, seed: int, sizes: Sequence[int], stop: float) -> None:
    """Holds an engine, which restarts with probability `stop` after a batch of one of these `sizes`, against `case`."""
    script, lateness, settle, items, (told, too_late, belated, waiting) = case(seed)
    queries, rng, rest, got = {*waiting, "two", "twice"}, random.Random(-seed), list(items), list[Told]()
    while rest:
        plan = rng.choice(PLANS)
        with Session(engine_of, state=state, plan=plan, lateness=lateness, settle=settle, quiet=True) as engine:
            engine.ensure(parse_script(script))
            while rest:
                size = rng.choice(sizes)
                outputs, rest = engine.process(rest[:size]), rest[size:]
                got += [(one.query, one.documents) for one in outputs if one.query in queries]
                if chance(rng, 30):
                    engine.prune(0)
                if rng.random() < stop:
                    break
            found, waits = engine.belated(), engine.waiting_absences()
    assert Counter(got) == Counter(told)
    assert found.by_query == too_late
    assert found.by_stream == belated
    for name, (documents, until) in waiting.items():
        assert (waits[name].documents if name in waits else 0) == documents
        if documents and name != "events":
            assert waits[name].until == until + lateness["R"]


@pytest.mark.parametrize("seed", seeds(8, 2_000))
def test_what_is_told_waits_or_is_too_late_is_a_function_of_arrivals(seed, tmp_path):
    assert_is_told("duckdb", tmp_path, seed, (1, 1, 2, 3, 20), random.Random(seed).random())


@pytest.mark.parametrize("seed", seeds(1, 40, 1_000))
def test_on_spark_as_well(seed, spark, tmp_path):
    assert_is_told(spark, tmp_path, seed, (4, 9), 0.3)


SILENT = "FROM L//l->x {} {{x = y, 1 s}} {} PUBLISH {}"
CHAIN = "(R//r->y JOIN {y = z, INF} R//q->z)"


def silent(name: str, rights: str = "R//r->y", op: str = "NOT FOLLOWED BY") -> str:
    return SILENT.format(op, rights, name)


def test_a_query_counts_what_it_saw_once_and_until_it_ends(tmp_path):
    last = 0

    def come(engine: FaultySession, *texts: str, stream: str = "R") -> dict[str, int]:
        """Documents come, too late but for the first one, with a commit that fails; returns the counts by query."""
        nonlocal last
        some = []
        for text in texts:
            some.append(Document(f"d{last}", text, stream, (100 if text != "<z/>" else 1_000) * SECOND))
            last += 1
        with engine.store.failing("commit"), pytest.raises(Injected):
            engine.process(some)
        engine.process(some)
        return engine.belated().by_query

    def opened(max_work: int | None = 7) -> FaultySession:
        return FaultySession("duckdb", state=tmp_path, lateness=0, settle=0, max_work=max_work, quiet=True)

    with opened() as engine:
        engine.subscribe(f"{silent('a')}; {silent('b')}")
        engine.subscribe("DEFINE EVENT E FROM R//r->x (v := x); FROM E NEXT E WITHIN 1 s PUBLISH ev")
        assert come(engine, "<z/>", "<r>u</r>", "<e><r>u</r><r>v</r></e>") == {"a": 2, "b": 2, "ev": 2}
        engine.pause("b")
        engine.subscribe(silent("c"))
        assert come(engine, "<r>u</r>") == {"a": 3, "b": 2, "c": 1, "ev": 3}
        engine.resume("b")
        engine.unsubscribe("c")
        engine.prune(None)
        assert come(engine, "<r>u</r>", "<r>u</r>") == {"a": 5, "b": 4, "ev": 5}
    with opened() as engine:
        engine.subscribe(silent("h", CHAIN))
        assert come(engine, "<r>w</r>") == {"a": 6, "b": 5, "ev": 6}
        engine.subscribe(silent("i", CHAIN))
        assert come(engine, "<q>w</q>") == {"a": 6, "b": 5, "ev": 6, "h": 1}
        long = f"<r>{'u' * 3_000}</r>"
        assert come(engine, "<r>u</r>", long, "<r>u</r>") == {"a": 7, "b": 6, "ev": 9, "h": 1}
        assert {name for name in "ab" if engine.registry.named(name)[0].paused} == {"a", "b"}
        engine.prune(None)
        assert come(engine, "<z/>", "<l>u</l>", stream="L") == {"a": 7, "b": 6, "ev": 9, "h": 2, "i": 1}
    with opened(None) as engine:
        engine.subscribe(silent("j", op="NOT PRECEDED BY"), backfill=True)
        assert engine.belated("j") == ({}, {"j": 1})
        assert engine.belated().by_stream == {"R": 10, "L": 1}
