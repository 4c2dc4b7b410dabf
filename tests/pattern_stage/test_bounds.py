"""What is kept is bounded by what is asked: hostile events make nothing grow for ever, and no step takes much memory.

Memory is what `tracemalloc` sees, NumPy's arrays included, so that the tests do not depend on the machine.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random

import numpy as np
import pytest

from pattern_stage import search
from pattern_stage.columns import Columns
from pattern_stage.kernel import Results
from pattern_stage.lineage import Lineage
from pattern_stage.measures import sums_in
from tests.support.event_agreement import Trial
from xscl.algebra.events import Schema

SECOND = 1_000_000
SCHEMAS: dict[str, Schema] = {"S": (("k", "string"), ("x", "number")), "T": (("l", "string"), ("y", "number"))}

WINDOWED = (
    "FROM S NEXT{k = l} T WITHIN 20 s",
    "FROM S NEXT{x < y AND x > 3} T WITHIN 30 s",
    'FROM FILTER{x < 100} S NEXT{l = "none"} T WITHIN 10 s',
    "FROM S FOLD{$2.k = $.k, GAP <= 5, $.x + $2.x AS x} (SELECT l AS k, y AS x FROM T) WITHIN 15 s",
    "FROM AGGREGATE{avg(x) AS mean, max(x) AS most BY k OVER 20 s} S",
    "FROM AGGREGATE{argmax(k, x) AS best OVER 20 s} S NEXT{best = l} T WITHIN 20 s",
    "SELECT concat(k, x) AS both FROM S",
)


class Load(Trial):
    """A kernel that is given columns, and forgets, as a service does."""

    def __init__(self, *statements: str) -> None:
        super().__init__(SCHEMAS, *statements)
        self.lineage = self.numbers.lineage

    def made(self, stream: str, t1: Sequence[int], keys: Sequence[str], numbers: Sequence[float]) -> Columns:
        times = np.array(t1, np.int64) * SECOND
        docs = np.arange(len(times))
        made = self.lineage.of_documents(stream, docs, times, times, docs.reshape(-1, 1))
        values = (self.texts.codes(keys), np.array(numbers, np.float64))
        return Columns(times, times, values, made.reshape(-1, 1))

    def take(self, until: int, **events: Columns) -> list[Results]:
        self.lineage.begin()
        found = self.kernel.run(events, until * SECOND)
        if self.lineage.crowded or self.texts.crowded:
            self.forget()
        return found

    def forget(self) -> None:
        self.lineage.keep(self.kernel.parts())
        self.texts.keep(self.kernel.codes())


@contextmanager
def traced() -> Iterator[None]:
    """Traces memory. What other tests have left is not searched for garbage again and again."""
    gc.collect()
    gc.freeze()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.unfreeze()


def unique(load: Load, rng: Random, number: int, begin: int, seconds: int) -> None:
    """An interval with ten events a second, all of whose texts are new."""
    times = [begin + at // 10 for at in range(10 * seconds)]
    keys = [f"text {number} {at}" for at in range(len(times))]
    numbers = [rng.choice([rng.random() * 100, 1e308, -1e308, 5e-324]) for _ in times]
    one, other = load.made("S", times, keys, numbers), load.made("T", times, keys[::-1], numbers)
    load.take(begin + seconds, S=one, T=other)


@pytest.mark.parametrize("rounds", [10, pytest.param(1_250, marks=pytest.mark.soak)])
def test_windows_are_all_that_is_kept(rounds: int):
    # Of 800 events a round: the long run has a million.
    load, rng = Load(*WINDOWED), Random(1)
    sizes = []
    with traced():
        for number in range(rounds):
            unique(load, rng, number, 40 * number, 40)
            if number % (rounds // 10) == 0:
                load.forget()
                gc.collect()
                sizes.append((tracemalloc.get_traced_memory()[0], len(load.texts), len(load.lineage)))
                waiting = int(load.kernel.instances()[1].sum())
                assert waiting <= 40 * 10 * len(WINDOWED)
    assert len(sizes) >= 10
    # Of 500 instances and windows, and of texts and numbers until they are crowded.
    assert all(memory < 5_000_000 and texts < 1_000 and events < 1_000 for memory, texts, events in sizes), sizes


def test_runs_of_simultaneous_events_take_little_memory(monkeypatch):
    monkeypatch.setattr(search, "_PAIRS", 1 << 14)
    load, ties = Load("FROM S FOLD{,,} (SELECT l AS k, y AS x FROM T) WITHIN 10 s"), 700
    times = [1] * ties + [2] * ties + [3] * ties
    later = load.made("T", times, ["b"] * len(times), range(len(times)))
    first = load.made("S", [0], ["a"], [0])
    with traced():
        found = load.take(100, S=first, T=later)
        peak = tracemalloc.get_traced_memory()[1]
    assert sum(map(len, found)) == len(times)
    assert peak < 30_000_000  # all pairs of two epochs at once take ten times as much


def test_a_text_does_not_double_for_ever():
    load = Load("FROM S FOLD{, $2.x > 0, concat($.k, $.k) AS k} (SELECT y AS x FROM T) WITHIN 100 s")
    steps = 40
    later = load.made("T", range(1, steps + 1), [""] * steps, [1] * steps)
    (found,) = load.take(100, S=load.made("S", [0], ["0123456789"], [1]), T=later)
    place = [name for name, _ in found.schema].index("k")
    texts = load.texts.texts(found.events.values[place].astype(np.int64))
    assert [None if text is None else len(text) for text in texts] == [
        10 << n if n < 17 else None for n in range(1, 41)
    ]


def test_sets_of_events_take_what_they_have():
    lineage, many = Lineage(), 3_000
    zeros = np.zeros(3 * many, np.int64)
    numbers = lineage.of_documents("S", zeros, zeros, zeros, zeros.reshape(-1, 1))
    groups = np.append(np.zeros(many, np.int64), 1 + np.arange(2 * many) // 2)
    with traced():
        sets = lineage.together(numbers.reshape(-1, 1), groups)
        peak = tracemalloc.get_traced_memory()[1]
    assert len(sets) == many + 1 and peak < 10_000_000
    assert lineage.with_parts([sets[:1]]).tolist() == [*range(many), sets[0]]


def test_events_that_came_one_by_one_are_kept_together():
    lineage, numbers = Lineage(), []
    for number in range(2_000):
        at = np.array([number])
        numbers.append(lineage.of_documents("ST"[number % 2], at, at, at, at.reshape(-1, 1)))
    with traced():
        lineage.keep(numbers[::2])
        assert tracemalloc.get_traced_memory()[0] < 150_000
    kept = np.concatenate(numbers[::2])
    assert lineage.ends(kept).tolist() == list(range(0, 2_000, 2)) and len(lineage) == 1_000


def test_numbers_near_the_limits_are_summed():
    most = 1.7976931348623157e308
    numbers = np.array([-most, most, most, -most, 5e-324, -1e308, 1e308, 1e308, -1e308, -5e-324])
    ends = np.arange(1, len(numbers) + 1)
    expected = [-most, 0, most, 0, 5e-324, -1e308, 5e-324, 1e308, 5e-324, 0]
    assert sums_in(numbers, np.zeros(len(numbers), np.int64), ends).tolist() == expected
    (too_great,) = sums_in(numbers, np.array([1]), np.array([3]))
    assert np.isnan(too_great)


def test_times_and_windows_may_be_extreme():
    far = 250_000_000_000  # seconds: nearly 8,000 years
    load = Load(
        "FROM S NEXT{x < y} T WITHIN 1000000 d",
        "FROM S NEXT{x < y} T",
        "FROM AGGREGATE{count() AS n OVER 1000000 d} S",
        "FROM FILTER{DUR >= 0} (S NEXT{DUR > 1000000000 AND GAP > 1000000000} T)",
    )
    first = load.made("S", [-far, far], ["a", "b"], [1, 1])
    later = load.made("T", [-far + 1, far + 1], ["a", "b"], [2, 3])
    found = load.take(far + 2, S=first, T=later)
    counts = np.bincount(np.concatenate([one.statements for one in found]), minlength=4)
    assert counts.tolist() == [2, 2, 2, 1]
