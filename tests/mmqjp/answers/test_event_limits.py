"""Limits of event queries: they are paused at the same time, whatever the batches, restarts, faults and pauses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from tests.generate.documents import SECOND, chance
from tests.generate.seeds import at_length, seeds
from tests.support.faults import FaultySession, Injected
from xpath_stage.documents import element_text, parse_document

NEVER = 2**62
QUERIES = """
DEFINE EVENT A FROM S//a->a (k := a/@k);
DEFINE EVENT B FROM S//b->b (l := b/@k);
FROM A NEXT{k = l} B WITHIN 6 s PUBLISH pairs;
FROM A PUBLISH all;
FROM FILTER{l = "none"} B PUBLISH goes_on;
FROM AGGREGATE{count() AS n OVER 5 s} A PUBLISH counts
"""
NAMES = ("pairs", "all", "counts")
PATTERNS = """
DEFINE EVENT A FROM S//a->a (k := a/@k);
DEFINE EVENT B FROM S//b->b (l := b/@k);
PATTERN SEQ(A a, B b) WHERE { a.k = b.l } WITHIN 6 s RETURN a.k AS k PUBLISH anyhow;
PATTERN SEQ(A+ a[], B b) WHERE skip_till_next_match { a[i].k = a[i-1].k AND b.l = a[1].k } WITHIN 6 s
    RETURN b.l AS k PUBLISH runs;
PATTERN SEQ(~(A n), B b) WHERE { n.k = b.l } WITHIN 4 s RETURN b.l AS k PUBLISH alone
"""
GOES_ON = """;
FROM FILTER{l = "none"} B PUBLISH goes_on
"""

Found = Counter[tuple[str, int, int, str]]


class Event(NamedTuple):
    """An event in a document, at a time in seconds."""

    name: str
    time: int
    key: str


class Limited(NamedTuple):
    """The outputs of a query before it is paused, when that is, and why."""

    told: Found
    time: int
    reason: str


def documents(rng: Random, count: int) -> list[tuple[int, list[Event]]]:
    """Documents of events, in the order of time."""
    times = sorted(rng.randint(0, count) for _ in range(count))
    return [
        (time, [Event(rng.choice("AAB"), time, rng.choice("uv")) for _ in range(rng.choice((0, 1, 1, 2, 4)))])
        for time in times
    ]


def sent(number: int, time: int, events: Iterable[Event], stream: str = "S") -> Document:
    inside = "".join(f'<{one.name.lower()} k="{one.key}"/>' for one in events)
    return Document(f"d{number}", f"<r>{inside}</r>", stream, time * SECOND)


def results(name: str, events: Sequence[Event]) -> Iterator[tuple[int, int, str]]:
    """The results of a query in all events that it sees."""
    starts = [one for one in events if one.name == "A"]
    if name == "all":
        yield from ((one.time, one.time, one.key) for one in starts)
    elif name == "counts":
        for time in {one.time for one in starts}:
            yield time, time, f"{sum(time - 5 < one.time <= time for one in starts)}"
    else:
        for one in starts:
            for other in partners(one, events):
                if other.time - one.time <= 6:
                    yield one.time, other.time, one.key


def partners(one: Event, events: Sequence[Event]) -> list[Event]:
    later = [other for other in events if other.name == "B" and other.key == one.key and other.time > one.time]
    first = min((other.time for other in later), default=None)
    return [other for other in later if other.time == first]


def waiting(name: str, events: Sequence[Event], now: int) -> int:
    """The number of a query's partial matches after a time."""
    starts = [one for one in events if one.name == "A" and one.time <= now]
    if name == "counts":
        return sum(one.time + 5 > now for one in starts)
    if name == "all":
        return 0
    taken = [min((other.time for other in partners(one, events)), default=NEVER) for one in starts]
    return sum(now < until and now < one.time + 6 for one, until in zip(starts, taken, strict=True))


def limited(name: str, events: Sequence[Event], matches: int, partial: int) -> Limited:
    found: Found = Counter((name, *one) for one in results(name, events))
    at_once = Counter[int]()
    for (_, _, time, _), count in found.items():
        at_once[time] += count
    over = [(time, f"more than {matches} matches at", "max-matches") for time, n in at_once.items() if n > matches]
    for now in {one.time for one in events}:
        if waiting(name, events, now) > partial:
            over.append((now, f"more than {partial} partial matches wait after", "max-partial"))
    if not over:
        return Limited(found, NEVER, "")
    time, what, option = min(over, key=lambda one: (one[0], one[2]))
    told = Counter({key: count for key, count in found.items() if key[2] < time})
    return Limited(told, time, f"{what} 1970-01-01T00:00:{time:02}Z ({option})")


def check(seed: int, state: Path, small: pytest.MonkeyPatch, seen: Counter[str]) -> None:
    """Queries are resumed when some documents have come; in between these come in any batches."""
    rng = Random(seed)
    matches, partial = rng.choice(((2, 100), (100, 3), (3, 5), (1, 1)))
    arrived = documents(rng, 40)
    resumed = sorted(rng.sample(range(5, 38), rng.choice((0, 1, 2))))
    small.setattr("pattern_stage.operators.FOUND", rng.choice((2, 1 << 22)))

    def opened() -> FaultySession:
        return FaultySession("duckdb", state=state, settle=0, max_matches=matches, max_partial=partial, quiet=True)

    engine = opened()
    engine.subscribe(QUERIES)
    since = dict.fromkeys(NAMES, -1)
    expected: Found = Counter()
    place = 0
    events = [one for _, several in arrived for one in several]
    for stop in [*resumed, len(arrived)]:
        while place < stop:
            size = min(rng.randint(1, 7), stop - place)
            batch = [sent(number, *arrived[number]) for number in range(place, place + size)]
            if chance(rng, 15):
                with engine.store.failing(rng.choice(("append", "commit"))), pytest.raises(Injected):
                    engine.process(batch)
            engine.process(batch)
            place += size
            if chance(rng, 20):
                engine.close()
                engine = opened()
        if stop == len(arrived):
            engine.process([Document("last", "<none/>", "S", 50 * SECOND)])
        horizon = 50 if stop == len(arrived) else arrived[stop - 1][0]
        for name in NAMES:
            found = limited(name, [one for one in events if one.time > since[name]], matches, partial)
            is_paused = found.time < horizon
            (query,) = engine.registry.named(name)
            assert query.paused == (found.reason if is_paused else None), (name, found, query.paused, horizon, since)
            seen[found.reason.rpartition(" ")[2] if is_paused else "none"] += 1
            if is_paused or stop == len(arrived):
                expected += found.told
            if is_paused and stop < len(arrived):
                engine.resume(name)
                since[name] = horizon - 1
    assert told(engine) == expected
    assert len({one.id for one in engine.outputs()}) == sum(expected.values())
    engine.close()


def told(engine: Session) -> Found:
    found: Found = Counter()
    for one in engine.outputs():
        values = {str(child.tag): element_text(child) for child in parse_document(one.xml.encode(), trusted=True).root}
        found[one.query, one.t0 // SECOND, one.t1 // SECOND, values.get("k") or values["n"]] += 1
    return found


def test_event_queries_are_paused_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Counter[str]()
    for seed in seeds(2, 300, first=54):
        check(seed, tmp_path / str(seed), monkeypatch, seen)
    assert len(seen) == 3, "both limits are exceeded, and neither"


@pytest.mark.parametrize("seed", seeds(1, 300))
def test_patterns_are_paused_at_the_same_time(seed: int, tmp_path: Path) -> None:
    """Also if all are paused: then nothing moves the horizon but a resumption. Streams may lag behind others."""
    rng = Random(seed)
    lags = {stream: rng.choice((0, 0, 3, 12)) for stream in "ST"}
    made = [(*one, rng.choice("ST")) for one in documents(rng, 40)]
    arrived = [sent(number, *one) for number, one in enumerate(sorted(made, key=lambda one: one[0] + lags[one[2]]))]
    stops = sorted(rng.sample(range(5, 38), 3))
    matches, partial = rng.choice(((2, 100), (100, 2), (3, 3), (1, 1)))
    script = PATTERNS + rng.choice(("", GOES_ON))
    if chance(rng, 70):
        script = script.replace("B FROM S", "B FROM T")

    def opened(state: Path) -> Session:
        return Session("duckdb", state=state, settle=0, max_matches=matches, max_partial=partial, quiet=True)

    def life(state: Path, *, plain: bool) -> tuple[list[str | None], Found]:
        """Returns why each query was paused at each stop, where all are resumed, and the outputs. In a plain life
        documents come one by one; in others in any batches, with restarts."""
        engine = opened(state)
        names = engine.subscribe(script)
        reasons: list[str | None] = []
        for start, stop in pairwise((0, *stops)):
            while start < stop:
                end = start + 1 if plain else min(start + rng.randint(1, 9), stop)
                engine.process(arrived[start:end])
                start = end
                if not plain and chance(rng, 40):
                    engine.close()
                    engine = opened(state)
            paused = {name: engine.registry.named(name)[0].paused for name in names}
            reasons += paused.values()
            for name in (name for name, reason in paused.items() if reason is not None):
                engine.resume(name)
        engine.process([Document(f"last {stream}", "<none/>", stream, 50 * SECOND) for stream in "ST"])
        found = told(engine)
        engine.close()
        return reasons, found

    plain = life(tmp_path / "plain", plain=True)
    for number in range(2 if at_length() else 1):
        assert life(tmp_path / f"{number}", plain=False) == plain


@pytest.mark.parametrize("seed", seeds(1, 200))
def test_a_backfill_is_limited_as_if_the_query_had_been_there(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    arrived = documents(rng, 25)
    events = [one for _, several in arrived for one in several]
    matches, partial = rng.choice(((2, 100), (100, 3)))
    with Session("duckdb", state=tmp_path, settle=0, max_matches=matches, max_partial=partial, quiet=True) as engine:
        engine.subscribe("FROM S//nothing PUBLISH nothing")
        engine.process([sent(number, *one) for number, one in enumerate(arrived)])
        engine.process([Document("last", "<none/>", "S", 50 * SECOND)])
        engine.subscribe(QUERIES, backfill=True)
        expected: Found = Counter()
        for name in NAMES:
            found = limited(name, events, matches, partial)
            assert engine.registry.named(name)[0].paused == (found.reason or None), (name, found)
            expected += found.told
        assert told(engine) == expected
        engine.process([sent(100, 60, [Event("A", 60, "u")]), sent(101, 61, [Event("B", 61, "u")])])
        engine.process([Document("end", "<none/>", "S", 70 * SECOND)])
        active = [name for name in NAMES if engine.registry.named(name)[0].active]
        assert {one.query for one in engine.outputs() if one.t1 >= 60 * SECOND} == set(active)


def test_another_query_of_the_same_form_begins_anew(tmp_path: Path) -> None:
    with Session("duckdb", state=tmp_path, settle=0, max_matches=2, max_partial=2, quiet=True) as engine:
        engine.subscribe(QUERIES)
        many = [Event("A", 1, "u")] * 3
        engine.process([sent(1, 1, many), sent(2, 2, [])])
        assert engine.registry.named("pairs")[0].paused and engine.registry.named("all")[0].paused
        engine.subscribe("FROM A NEXT{k = l} B WITHIN 6 s PUBLISH others")
        engine.process([sent(3, 3, [Event("A", 3, "u")]), sent(4, 4, [Event("B", 4, "u")]), sent(5, 5, [])])
        assert [one.query for one in engine.outputs() if one.query in ("pairs", "others")] == ["others"]
