"""What statements share: the plans that the m-rules make of RUMOR's examples, and what waits in them. AGGREGATEs of one
input share partial aggregates (s_α): these are exact, whatever the steps in which they are merged, and statements find
what they mean as they come and go, by any rules, in any intervals, restarted."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from common.arrays import Ints
from common.bounds import Micros
from pattern_stage.columns import Floats
from pattern_stage.definition import StatementForms
from pattern_stage.measures import Merged, MergeKind, merge_rows_by_key
from pattern_stage.plan import RULE_NAMES, MOp, RuleName
from tests.generate.documents import SECOND
from tests.generate.seeds import seeds
from tests.oracle.cases import events, schema
from tests.oracle.event_syntax import Aggregate, Cel, Fn, Item, Name, Next, Ref, Stream, Window
from tests.oracle.events import World, event
from tests.support.event_agreement import Run, Trial, assert_finds, random_run
from xscl.algebra import events as algebra

STOCK: algebra.Schema = (("name", "string"), ("price", "number"))
SCHEMAS: dict[str, algebra.Schema] = {
    "CPU": (("pid", "string"), ("load", "number")),
    "S": (("a", "number"),),
    "T": (("b", "number"),),
    "Stock": STOCK,
}


def plan_of(*statements: str, off: tuple[RuleName, ...] = ()) -> list[tuple[str, int, int]]:
    """The m-ops of statements: what each is, how many shapes it has, and how many rows."""
    trial = Trial(SCHEMAS, *statements, rules=[name for name in RULE_NAMES if name not in off])
    return [(kind(mop), len(mop.definitions), len(mop.rows)) for mop in trial.kernel.plan if mop.placement]


def kind(mop: MOp) -> str:
    return type(mop.definitions[0]).__name__


def rising(start: int, end: int = 90) -> str:
    smoothed = "(SELECT pid, mean FROM AGGREGATE{avg(load) AS mean BY pid OVER 5 s} CPU)"
    runs = f"FILTER{{mean < {start}}} {smoothed} FOLD{{$2.pid = $.pid, $2.mean > $.mean,}} {smoothed}"
    return f"FROM FILTER{{mean > {end}}} ({runs}) WITHIN 60 s"


def test_r1_selections_are_one_and_so_is_the_projection_of_both():
    one, other = (f"SELECT a + 1 AS n FROM FILTER{{a > {bound}}} S" for bound in (1, 2))
    assert plan_of(one, other) == [("Filter", 1, 2), ("Select", 1, 2)]
    assert plan_of(one, one) == [("Filter", 1, 1), ("Select", 1, 1)]


def test_r2_and_r3_queries_that_differ_in_the_start_share_all_m_ops():
    first = plan_of(rising(20))
    assert [name for name, _, _ in first] == ["Aggregate", "Filter", "Fold", "Filter"]
    many = [("Aggregate", 1, 1), ("Filter", 1, 10), ("Fold", 1, 10), ("Filter", 1, 10)]
    assert plan_of(*(rising(start) for start in range(20, 30))) == many


def test_r4_the_same_prefix_is_one_and_selections_after_it_are_one_m_op():
    one, other = (f"FROM FILTER{{{end}}} (FILTER{{a = 1}} S NEXT{{b > 2}} T)" for end in ("a < b", "b = 7"))
    assert plan_of(one, other) == [("Filter", 1, 1), ("Next", 1, 1), ("Filter", 2, 2)]


def test_without_rules_nothing_is_shared():
    one = "FROM FILTER{a = 1} S NEXT{b > 2} T WITHIN 5 s"
    wider = "FROM FILTER{a = 1} S NEXT{b > 2} T WITHIN 9 s"
    assert plan_of(one, one, wider) == [("Filter", 1, 1), ("Next", 1, 2)]
    assert plan_of(one, one, wider, off=("cse",)) == [("Filter", 1, 3), ("Next", 1, 3)]
    apart = plan_of("FROM FILTER{a = 1} S", "FROM FILTER{a > 1} S", off=("s_sigma",))
    assert apart == [("Filter", 1, 1), ("Filter", 1, 1)]


def test_conditions_in_another_order_are_one_row_if_they_mean_the_same():
    ibm = 'FROM FILTER{name = "IBM" AND price > 83} Stock'
    turned, nested = (
        'FROM FILTER{83 < price AND name = "IBM"} Stock',
        'FROM FILTER{name = "IBM"} FILTER{price > 83} Stock',
    )
    dell = 'FROM FILTER{name = "Dell" AND price > 20} Stock'
    assert plan_of(ibm, turned, nested, dell) == [("Filter", 1, 2)]
    one, other = (
        f"FROM FILTER{{{' OR '.join(f'name = {name!r}' for name in names)}}} Stock" for names in ("bca", "cab")
    )
    assert plan_of(one, other) == [("Filter", 1, 1)]
    p, q = (f"FROM FILTER{{(name = '{one}' OR price = 1) AND name = '{two}'}} Stock" for one, two in ("pq", "qp"))
    assert plan_of(p, q) == [("Filter", 1, 2)]


def test_a_chain_of_selections_is_one_unless_it_would_grow_without_end():
    price = algebra.Attribute("left", "price", "number")

    def selected(times: int) -> int:
        stream: algebra.Stream = algebra.Events("Stock", STOCK)
        for _ in range(times):
            doubled = ("price", algebra.Arithmetic("+", price, price))
            stream = algebra.Select(stream, (("name", algebra.Attribute("left", "name", "string")), doubled), STOCK)
        return len(StatementForms().form(stream)[0].nodes)

    assert selected(1) == selected(2) == 2 and 2 < selected(40) < 20
    dear = algebra.AllOf((algebra.Comparison(">", price, algebra.Constant(83.0)),))
    named = algebra.Select(
        algebra.Filter(algebra.Events("Stock", STOCK), dear),
        (("price", algebra.Arithmetic("*", price, algebra.Constant(2.0))),),
        STOCK[1:],
    )
    form, constants, _ = StatementForms().form(
        algebra.Filter(named, algebra.AllOf((algebra.Comparison(">", price, algebra.Constant(200.0)),)))
    )
    assert [node.slots for node in form.nodes[1:]] == [(0, 1, 2), (1,)] and constants == (83.0, 2.0, 200.0)


@pytest.mark.parametrize("count", [1, 2, 8, 9, 16, 17])
def test_filters_of_one_stream_find_what_each_finds_alone_also_after_others_have_gone(count: int):
    rng = Random(count)
    values = [rng.randint(0, 20) for _ in range(80)]
    s, t = ([event({name: values[at]}, at, at, {at}) for at in range(start, 80, 2)] for start, name in enumerate("ab"))
    filters = [f"FILTER{{a > {bound}}} S" for bound in range(count)]
    texts = [f"FROM {one}{then}" for one in filters for then in ("", " NEXT{b = a} T")]
    gone = rng.sample(range(len(texts)), count // 3)

    def run(texts: list[str], gone: list[int]) -> list[Any]:
        trial = Trial(SCHEMAS, *texts)
        for start, until in ((0, 30), (30, 80)):
            trial.run({"S": s, "T": t}, start, until)
            trial.kernel.remove([] if start else gone)
        return [trial.results(place) for place in range(len(texts))]

    together = run(texts, gone)
    assert together == [run([text], [0] * (place in gone))[0] for place, text in enumerate(texts)]
    for bound in range(count):
        last = 30 if 2 * bound in gone else 80
        assert {one.t1 for one in together[2 * bound]} == {at for at in range(0, last, 2) if values[at] > bound}


def test_c_alpha_queries_that_began_at_different_times_keep_events_once_and_agree_when_windows_are_full():
    text = "FROM AGGREGATE{avg(load) AS mean BY pid OVER 5 s} CPU"
    given = frozenset(event({"pid": "p", "load": float(t * t)}, t * SECOND, t * SECOND, {t}) for t in range(20))
    kept = {}
    for on in (True, False):
        trial = Trial(SCHEMAS, rules=[name for name in RULE_NAMES if on or name != "c_alpha"])
        for t in range(20):
            if t < 10:
                trial.add(t, text, since=Micros(t * SECOND - 1))
            trial.run({"CPU": given}, t * SECOND, (t + 1) * SECOND)
        kept[on] = trial.saved()
        for begun in range(10):
            found = {one.t1 // SECOND: one.values["mean"] for one in trial.results(begun)}
            assert found == {t: fmean(i * i for i in range(max(begun, t - 4), t + 1)) for t in range(begun, 20)}
    assert kept == {True: [4], False: [40]}


# ---------------------------------------------------------------- what waits


def test_rows_and_texts_of_removed_statements_are_reused():
    def statement(number: int) -> str:
        return f'FROM FILTER{{name = "text {number}"}} Stock NEXT Stock'

    trial = Trial(SCHEMAS, statement(0))
    for begin in range(1, 2_001, 100):
        trial.add(begin, *map(statement, range(begin, begin + 100)))
        trial.kernel.remove(list(range(begin, begin + 100)))
        trial.texts.keep(trial.kernel.codes())
    assert len(trial.kernel.statements._slot_of) == len(trial.texts) == 1
    assert len(trial.kernel.statements.ids) <= 256
    assert [len(mop.rows) for mop in trial.kernel.plan if mop.placement] == [1, 1]
    assert max(mop.rows.end for mop in trial.kernel.plan) <= 101
    trial.kernel.remove([0])
    assert len(trial.kernel.plan.mops) == 0


LAST = 9
KINDS: tuple[MergeKind, ...] = ("sum", "count", "min", "max")
HARD = (0.1, 0.2, 1e16, -1e16, 1.7e308, -1.7e308, 5e-324, math.nan, 0.0, -3.0)

# ---------------------------------------------------------------- partial aggregates, merged


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


# ---------------------------------------------------------------- statements that share them

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


# ---------------------------------------------------------------- what that saves

KNOWN: dict[str, algebra.Schema] = {"Load": (("host", "string"), ("pid", "string"), ("load", "number"))}
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
