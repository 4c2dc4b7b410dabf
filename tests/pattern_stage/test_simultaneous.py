"""AGGREGATEs over one input are made of the same partial aggregates (s_α): these are exact, whatever the steps in which
they are merged, and statements find what they mean as they come and go, by any rules, in any intervals, restarted."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest

from common.arrays import Ints
from pattern_stage.columns import Floats
from pattern_stage.measures import Merged, MergeKind, merge_rows_by_key
from pattern_stage.plan import RULE_NAMES
from tests.generate.seeds import seeds
from tests.oracle.cases import events, schema
from tests.oracle.event_syntax import Aggregate, Cel, Fn, Item, Name, Next, Ref, Stream, Window
from tests.oracle.events import World, event
from tests.support.event_agreement import Run, Trial, assert_finds, random_run
from xscl.algebra.events import Schema

LAST = 9
KINDS: tuple[MergeKind, ...] = ("sum", "count", "min", "max")
HARD = (0.1, 0.2, 1e16, -1e16, 1.7e308, -1.7e308, 5e-324, math.nan, 0.0, -3.0)

# ---------------------------------------------------------------- merging


def rows_of(keys: Ints, found: Merged) -> list[tuple[Any, ...]]:
    columns = [column.tolist() for column in found.columns]
    return sorted((key, *map(repr, row)) for key, *row in zip(keys[found.firsts].tolist(), *columns, strict=True))


@pytest.mark.parametrize("seed", seeds(8, 1_000))
def test_what_is_merged_in_steps_is_what_is_merged_at_once_and_exact(seed: int):
    rng = Random(seed)
    numbers: Floats = np.array([rng.choice(HARD) if rng.random() < 0.5 else rng.uniform(-9, 9) for _ in range(40)])
    coarse, fine = (np.array([rng.randrange(most) for _ in range(40)]) for most in (6, 3))
    columns = [numbers, (~np.isnan(numbers)).astype(np.float64), numbers, numbers]
    at_once, first = merge_rows_by_key([coarse], columns, KINDS), merge_rows_by_key([coarse, fine], columns, KINDS)
    again = merge_rows_by_key([coarse[first.firsts]], first.columns, KINDS)
    assert rows_of(coarse[first.firsts], again) == rows_of(coarse, at_once)
    for group in set(coarse.tolist()):
        expected = [number for number in numbers[coarse == group].tolist() if not math.isnan(number)]
        sums, counts, least, most = (column[coarse[at_once.firsts] == group] for column in at_once.columns)
        assert sum(map(Fraction, sums[~np.isnan(sums)].tolist())) == sum(map(Fraction, expected))
        assert counts.sum() == len(expected)
        if expected:
            assert (np.nanmin(least), np.nanmax(most)) == (min(expected), max(expected))


# ---------------------------------------------------------------- statements

G, X, V = (Ref(name) for name in ("g", "x", "v"))
FUNCTIONS = [
    *(Fn("count"), Fn("count", (G,)), Fn("sum", (X,)), Fn("avg", (X,)), Fn("avg", (V,)), Fn("min", (X,))),
    *(Fn("max", (X,)), Fn("sum", (V,)), Fn("argmax", (G, X))),
]


def many_aggregates(rng: Random) -> World:
    """Statements with an AGGREGATE over few inputs: a stream with many ties, and what began earlier."""
    kinds = {"E": schema("g h x:number v:number"), "F": schema("k")}
    numbers = ("0.1", "0.2", "1e16", "-1e16", "-", "7", "-0.3")
    rows = (
        f"{rng.choice('pq-')} {rng.choice('rst')} {rng.choice(numbers)} {rng.choice(numbers)} @{rng.randint(1, LAST)}"
        for _ in range(rng.choice((6, 25)))
    )
    given = {
        "E": events(kinds["E"], " | ".join(rows)),
        "F": events(kinds["F"], " | ".join(f"u @{rng.randint(0, LAST)}" for _ in range(2))),
    }
    later = Cel(Next(Name("F"), None, Name("E")))
    sources: list[Stream] = [Name("E"), later]
    made = []
    for place in range(9):
        source = rng.choice(sources[: rng.choice((1, 2))])
        items = tuple(Item(one, f"i{at}") for at, one in enumerate(rng.sample(FUNCTIONS, rng.randint(1, 3))))
        by = tuple(rng.sample(("g", "h"), rng.randrange(3)))
        over = rng.choice((None, *(Window(str(length)) for length in (1, 2, 5, 20))))
        one = Aggregate(items, by, over, source)
        if place == 1:
            sources.append(one if {"g", "h"} <= set(by) else sources[0])
        made.append(Cel(one))
    return World(kinds, given, made)


@pytest.mark.parametrize("seed", seeds(16, 2_000))
def test_statements_that_share_partial_aggregates_find_what_they_mean(seed: int, monkeypatch: pytest.MonkeyPatch):
    rng = Random(seed)
    monkeypatch.setattr("pattern_stage.aggregate.FEW", rng.choice((1, 2, 4)))
    made = many_aggregates(rng)
    run = random_run(rng, len(made.statements), LAST)
    rules = tuple(name for name in RULE_NAMES if name in run.rules or name == "s_alpha")
    run = Run(run.cuts, run.lives, rules, run.hashed, run.restarts)
    assert_finds(made, run)


# ---------------------------------------------------------------- what it saves

KNOWN: dict[str, Schema] = {"Load": (("host", "string"), ("pid", "string"), ("load", "number"))}
BY_HOST = "AGGREGATE{avg(load) AS mean BY host OVER 5 s} Load"
OF_ALL = "AGGREGATE{sum(load) AS total, count() AS n OVER 5 s} Load"


def trial_of(*statements: str, on: bool = True) -> Trial:
    return Trial(KNOWN, *statements, rules=[name for name in RULE_NAMES if on or name != "s_alpha"])


def at_once(time: int) -> frozenset[Any]:
    """Two hundred events at a time: of two hosts, of five processes each."""
    return frozenset(
        event({"host": f"h{n % 2}", "pid": f"p{n % 5}", "load": n / 10}, time * 10**6, time * 10**6, {(time, n)})
        for n in range(200)
    )


def test_what_is_simultaneous_is_kept_once_for_each_group_and_limits_count_events():
    found = {}
    for on in (True, False):
        trial = trial_of(BY_HOST, OF_ALL, on=on)
        trial.run({"Load": at_once(1) | at_once(2)}, 0, 2_500_000)
        found[on] = trial.results(0), trial.results(1)
        assert trial.saved() == ([4, 8] if on else [400, 400]), "each sum is one double and a rest"
        assert trial.kernel.instances()[1].tolist() == [400, 400]
    assert found[True] == found[False]
    assert {one.values["total"] for one in found[True][1]} == {1990.0, 3980.0}


def test_a_state_that_has_the_arguments_of_aggregates_is_read():
    trial, again = trial_of(BY_HOST, on=False), trial_of(BY_HOST)
    one, other = (frozenset(one for one in at_once(time) if one.values["load"] < 0.4) for time in (1, 2))
    trial.run({"Load": one}, 0, 1_500_000)
    state = trial.kernel.state()
    (name,) = (name for name in state if "/" not in name and name != "format")
    assert state[name].column_names == ["row", "t1", "began", "events", "0", "1", "2"]
    state[name] = state[name].drop_columns(["events", "2"])  # the group, and the load
    again.kernel.restore(state)
    again.run({"Load": other}, 1_500_000, 2_500_000)
    assert sorted((one.values["host"], one.values["mean"]) for one in again.results(0)) == [("h0", 0.1), ("h1", 0.2)]
