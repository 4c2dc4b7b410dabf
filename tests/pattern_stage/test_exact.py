"""Statements find in a kernel what the examples of the papers and hand-checked cases say (docs/semantics.md, sections
20 to 26). The oracle is judged by them, too: by the tests that the kernel finds what the oracle does. And they find the
results that the public test suite of SASE 1.0 has for its streams."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import product
from typing import Any

import pytest

from common.limits import UNLIMITED, Quota
from pattern_stage.kernel import Kernel
from tests.generate.documents import SECOND
from tests.oracle.cases import brief_events, cases, written
from tests.oracle.events import Event, event
from tests.support.event_agreement import MakeKernel, Run, Runner, Told, Trial
from xscl.algebra.events import Schema

LATE = 10_000_000 * SECOND
"""All windows are over then."""


def run(
    statements: str, streams: str, make: MakeKernel | None = None, limits: Quota = UNLIMITED, until: int = LATE
) -> Runner:
    """Runs statements over streams such as `S(name price:number) IBM 80 @1 | - 22 @2-3 ; T(a) u @3`."""
    given = [re.fullmatch(r"(\w+)\((.*?)\) ?(.*)", stream) for stream in streams.split(" ; ")]
    world = written(statements.split("; "), [(one[1], one[2], one[3]) for one in given if one])
    runner = Runner(world, Run((until,)), make, limits)
    runner.results()
    assert not runner.exceeded
    return runner


def told(runner: Runner) -> list[str]:
    """The matches of a pattern, such as `1 2 | 6 @9`: the events of each variable, and when it is known."""
    return sorted(map(_told, runner.told[0]), key=lambda line: [int(w) if w.isdigit() else -1 for w in line.split()])


def _told(match: Told) -> str:
    bound, known, errors, _ = match
    variables = " | ".join(" ".join(str(part) for one in some for part in one.parts) for some in bound)
    return f"{variables} @{known / SECOND:.10g}" + (f" -{errors}" if errors else "")


@pytest.mark.parametrize(("statements", "streams", "expected"), cases("events"))
def test_the_last_statement_finds(statements: str, streams: str, expected: list[str]):
    runner = run(statements, streams)
    assert brief_events(runner.found_by(len(runner.told) - 1)) == expected


@pytest.mark.parametrize(("statement", "streams", "expected"), cases("patterns"))
def test_a_pattern_tells(statement: str, streams: str, expected: list[str]):
    assert told(run(statement, streams)) == expected


@pytest.mark.parametrize(
    ("components", "where", "implied"),
    [
        ("E a, E b, E c", "c.x = a.x AND b.x = c.x", "b.x = a.x AND c.x = a.x"),
        ("E a, E+ b[], E c", "c.x = a.x AND b[].x = c.x", "b[].x = a.x AND c.x = a.x"),
        ("E a, E b, E c, E d", "d.x = b.x AND a.x = d.x AND c.x = d.x", "b.x = a.x AND c.x = b.x AND d.x = a.x"),
    ],
)
def test_equalities_that_follow_from_others_leave_fewer_runs(components: str, where: str, implied: str):
    values = [float(time if time % 7 else 1) for time in range(60)]
    given = [event({"x": value}, time * SECOND, time * SECOND, [("E", time)]) for time, value in enumerate(values)]
    kept, found = set(), set()
    for some in (where, implied):
        trial = Trial(
            {"E": (("x", "number"),)}, f"PATTERN SEQ({components}) WHERE skip_till_any_match {{{some}}} WITHIN 99 s"
        )
        trial.run({"E": given}, 0, 60 * SECOND)
        kept.add(int(trial.kernel.instances()[1].sum()))
        found.add(trial.results(0))
    assert len(kept) == len(found) == 1


# ---------------------------------------------------------------- all matches together


@pytest.mark.parametrize("window", [3, 60, 2000])
def test_matches_together_are_counted_exactly(window: int):
    """Of `n` events in the window 2^(n-1) choices end with the last one, which is in all, and each other in half."""
    text = "PATTERN SEQ(A+ a[]) WITHIN {} s RETURN count(*) AS n, sum(a[].x) AS s, avg(a[].x) AS m, min(a[].x) AS l{}"
    given = [event({"x": float(time)}, time * SECOND, time * SECOND, [("A", time)]) for time in range(2_100)]
    texts = [text.format(window, f" {mode}ALL MATCHES TOGETHER") for mode in ("", ", count(*) + 0 AS f ")]
    trial = Trial({"A": (("x", "number"),)}, *texts)
    for first in (0, 7, 1_500):
        trial.run({"A": given}, first * SECOND, {0: 7, 7: 1_500, 1_500: 2_100}[first] * SECOND)
    for time, one in enumerate(sorted(trial.results(1), key=lambda one: one.t1)):
        first = max(0, time - window)
        count = 1 << (time - first)
        total = time * count + sum(range(first, time)) * count // 2
        events = count + (time - first) * count // 2
        greatest = float(count) if count < 1 << 1024 else 1.7976931348623157e308
        assert (one.values["n"], one.values["s"], one.values["m"], one.values["l"], one.values["f"]) == (
            f"{count}",
            f"{total}",
            total / events,
            first,
            greatest,
        )


def test_sums_of_matches_together_that_are_not_whole():
    text = "PATTERN SEQ(A+ a[]) WITHIN 9 s HAVING sum(a[].x) / count(*) < 1 RETURN sum(a[].x) AS s ALL MATCHES TOGETHER"
    given = [event({"x": value}, at * SECOND, at * SECOND, [("A", at)]) for at, value in enumerate((0.1, 0.2, 1e300))]
    trial = Trial({"A": (("x", "number"),)}, text)
    trial.run({"A": given}, 0, LATE)
    assert sorted(str(one.values["s"]) for one in trial.results(0)) == ["0.1", "0.5"]


# ---------------------------------------------------------------- runs

Q3 = (
    "PATTERN SEQ(Stock+ a[], Stock b) WHERE {} {{[symbol] AND a[1].volume > 1000 AND "
    "a[i].price > {}(a[..i-1].price) AND b.volume < 80% * a[a.LEN].volume}} WITHIN 100 s"
)
QUOTES = (
    "Stock(symbol price:number volume:number) A 100 1010 @1 | A 120 990 @2 | A 120 1005 @3 | A 121 999 @4 | "
    "A 120 999 @5 | A 125 750 @6 | A 120 950 @7 | A 120 700 @8"
)


def test_s1_any_match():
    assert len(told(run(Q3.format("skip_till_any_match", "avg"), QUOTES))) == 68


@pytest.mark.parametrize(
    ("function", "is_merged", "waiting"), [("avg", True, 2), ("avg", False, 2), ("max", True, 1), ("max", False, 2)]
)
def test_s2_runs_that_remember_the_same_are_one(function: str, is_merged: bool, waiting: int):
    """After the fourth quote there are the runs of the first and of the third one. With max instead of avg they
    remember the same."""
    kernels: list[Kernel] = []

    def make(texts: Any, lineage: Any, run: Run) -> Kernel:
        kernels.append(Kernel(texts, lineage, merged=is_merged))
        return kernels[-1]

    run(Q3.format("skip_till_next_match", function), QUOTES, make, until=5 * SECOND)
    assert kernels[0].instances()[1].tolist() == [waiting]


# ---------------------------------------------------------------- streams of SASE, generated anew by java.util.Random

_MASK = (1 << 48) - 1


class Random:
    """Java's generator of pseudorandom numbers."""

    def __init__(self, seed: int) -> None:
        self._state = (seed ^ 0x5DEECE66D) & _MASK

    def below(self, bound: int) -> int:
        """The next number from 0 on, less than a bound."""
        if not bound & (bound - 1):
            return (bound * self._bits()) >> 31
        while True:
            bits = self._bits()
            if bits - bits % bound + bound - 1 < 1 << 31:
                return bits % bound

    def _bits(self) -> int:
        self._state = (self._state * 0x5DEECE66D + 0xB) & _MASK
        return self._state >> 17


def stock(number: int, symbol: int, price: int, volume: int) -> Event:
    """An event. Its time is its number, in seconds."""
    values = {"symbol": symbol, "price": price, "volume": volume}
    return event(values, number * SECOND, number * SECOND, [number])


def independent(size: int, prices: int, volumes: int, seed: int) -> Iterator[Event]:
    """Events of 20 symbols, without any connection."""
    random = Random(seed)
    random.below(100)
    for number in range(size):
        yield stock(number, random.below(20) + 1, random.below(prices) + 1, random.below(volumes) + 1)


def rising(size: int, seed: int, percent: int) -> Iterator[Event]:
    """Events of 2 symbols, whose prices rise with a chance, and fall with half of what is left."""
    random = Random(seed)
    prices = [random.below(1000) for _ in range(2)]
    for number in range(size):
        symbol, chance = random.below(2) + 1, random.below(100) + 1
        if chance <= percent:
            prices[symbol - 1] += random.below(3) + 1
        elif chance > (100 + percent) // 2:
            prices[symbol - 1] -= random.below(3) + 1
        yield stock(number, symbol, prices[symbol - 1], random.below(1000) + 1)


# ---------------------------------------------------------------- results of SASE

# Of each result file it is known how many matches it has, and a digest of the numbers of their events. SASE 1.0 ends a
# run with its first match, so that of the matches of one first event, the one that ends first is compared. Without `+`
# and with skip-till-any-match, all are the same.

SCHEMA: Schema = (("symbol", "number"), ("price", "number"), ("volume", "number"))
INTERVAL = 5_000

KLEENE = {
    "qts2-p1": ("partition_contiguity", ""),
    "qts2-p2": ("partition_contiguity", " AND a[i].price > a[i-1].price"),
    "qts3-p1": ("skip_till_next_match", ""),
    "qts3-p2": ("skip_till_next_match", " AND a[i].price > a[i-1].price"),
}
"""Strategies and predicates. Those with `a[i].price > min(a[..i-1].price)` are left out: their results are those
without it, which break it."""

RESULTS = """
    qts2-p1 4000 12 cf991b083366268c | qts2-p1 100000 203 f27fb522b90f22d7 | qts2-p2 4000 3 6851ec872e0a4b15
    qts2-p2 100000 70 035709070b8f0c0f | qts3-p1 4000 12 cf991b083366268c | qts3-p1 100000 203 f27fb522b90f22d7
    qts3-p2 4000 12 89692b458ee1066d | qts3-p2 100000 203 ad8408ebb7e358b6 | ds500 10000 117 9c29e84c37d672e2
    ds1000 10000 24 93488fa79b0c6515 | ds5000 10000 2 e10355c40ab8cc93 | ds10000 10000 0 e3b0c44298fc1c14
    te10 10000 462 7a448980496afe05 | te50 10000 16 a028c56dd8c4ddfc | te100 10000 3 6e3b44f8fa68b625
    te500 10000 0 e3b0c44298fc1c14 | tw10k 10000 0 e3b0c44298fc1c14 | tw20k 20000 1 585c89fd508e8d53
    tw40k 40000 9 97f4785ad37bf1a9 | tw60k 60000 39 b306dfb2ffe0dd20 | tw80k 80000 113 68984b30c7428e76
    tw100k 100000 219 760836e3b482e248 | Q2 10000 335 fd383b6983565f27
"""
"""By result file and a number of events from its beginning: the number of matches among them, and a digest."""
DIGESTS = {
    (name, int(size)): (int(count), code)
    for name, size, count, code in map(str.split, re.split(r" \| |\n", RESULTS.strip()))
}


def kleene(name: str) -> str:
    strategy, predicate = KLEENE[name]
    return (
        f"PATTERN SEQ(stock+ a[], stock b) WHERE {strategy} "
        f"{{[symbol] AND a[1].price % 500 = 0{predicate} AND b.volume < 150}} WITHIN 500 s"
    )


def simple(keys: str, within: int, strategy: str = "skip_till_any_match") -> str:
    return f"PATTERN SEQ(stock1 a, stock2 b, stock3 c) WHERE {strategy} {{[{keys}]}} WITHIN {within} s"


def matches(text: str, streams: Mapping[str, Sequence[Event]], size: int) -> list[tuple[int, ...]]:
    """The numbers of the events of all matches."""
    trial = Trial(dict.fromkeys(streams, SCHEMA), text)
    for begin in range(0, size, INTERVAL):
        trial.run(streams, begin * SECOND, (begin + INTERVAL) * SECOND)
    return [tuple(sorted(one.parts)) for one in trial.results(0)]  # type: ignore[arg-type]  # each part is a number


def digest(found: Iterable[tuple[int, ...]]) -> tuple[int, str]:
    """The number of matches, and a digest of them."""
    lines = [" ".join(map(str, one)) for one in sorted(found)]
    return len(lines), sha256("\n".join(lines).encode()).hexdigest()[:16]


def first_of_runs(found: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Of the matches of each first event that which ends first."""
    first: dict[int, tuple[int, ...]] = {}
    for one in found:
        if one[0] not in first or one[-1] < first[one[0]][-1]:
            first[one[0]] = one
    return list(first.values())


def typed(events: Iterable[Event]) -> dict[str, list[Event]]:
    """A stream for each of the symbols that the queries read."""
    every = list(events)
    return {f"stock{symbol}": [one for one in every if one.values["symbol"] == symbol] for symbol in (1, 2, 3)}


@pytest.mark.parametrize(
    ("name", "size"),
    [*product(KLEENE, [4_000]), *(pytest.param(name, 100_000, marks=pytest.mark.soak) for name in KLEENE)],
)
def test_runs_of_rising_prices(name: str, size: int) -> None:
    events = list(rising(size, 10, 70))
    assert digest(first_of_runs(matches(kleene(name), {"stock": events}, size))) == DIGESTS[name, size]


SIMPLE = {
    **{f"ds{prices}": (10_000, prices, 1000, 10, "price") for prices in (500, 1000, 5000, 10_000)},
    **{f"te{prices}": (10_000, prices, 20, 11, "price, volume") for prices in (10, 50, 100, 500)},
    **{f"tw{size}k": (size * 1000, 10_000, 1000, 11, "price") for size in (10, 20, 40, 60, 80, 100)},
    "Q2": (10_000, 100, 1000, 10, "price"),
}
"""Events, greatest price and volume, seed and what has to be equal; the window is as long as the stream."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("ds500", "te10", "Q2") else pytest.mark.soak) for n in SIMPLE]
)
def test_three_in_a_row(name: str) -> None:
    size, prices, volumes, seed, keys = SIMPLE[name]
    strategy = "skip_till_next_match" if name == "Q2" else "skip_till_any_match"
    found = matches(simple(keys, size, strategy), typed(independent(size, prices, volumes, seed)), size)
    assert digest(first_of_runs(found) if name == "Q2" else found) == DIGESTS[name, size]
