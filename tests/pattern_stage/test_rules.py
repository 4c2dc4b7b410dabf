"""The plans that the m-rules make of RUMOR's examples."""

from __future__ import annotations

from statistics import fmean

from pattern_stage.plan import RULE_NAMES, MOp, RuleName
from pattern_stage.statements import plan_text
from tests.oracle.events import event
from tests.support.event_agreement import Trial
from xscl.algebra.events import Schema

SECOND = 10**6
SCHEMAS: dict[str, Schema] = {
    "CPU": (("pid", "string"), ("load", "number")),
    "S": (("a", "number"),),
    "T": (("b", "number"),),
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
    assert plan_of(*(rising(start) for start in range(20, 30))) == [
        ("Aggregate", 1, 1),
        ("Filter", 1, 10),
        ("Fold", 1, 10),
        ("Filter", 1, 10),
    ]


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


def test_c_alpha_queries_that_began_at_different_times_keep_events_once_and_agree_when_windows_are_full():
    text = "FROM AGGREGATE{avg(load) AS mean BY pid OVER 5 s} CPU"
    events = frozenset(event({"pid": "p", "load": float(t * t)}, t * SECOND, t * SECOND, {t}) for t in range(20))
    kept = {}
    for on in (True, False):
        trial = Trial(SCHEMAS, rules=[name for name in RULE_NAMES if on or name != "c_alpha"])
        for t in range(20):
            if t < 10:
                trial.add(t, text, since=t * SECOND - 1)
            trial.run({"CPU": events}, t * SECOND, (t + 1) * SECOND)
        kept[on] = trial.saved()
        for begun in range(10):
            found = {one.t1 // SECOND: one.values["mean"] for one in trial.results(begun)}
            assert found == {t: fmean(i * i for i in range(max(begun, t - 4), t + 1)) for t in range(begun, 20)}
    assert kept == {True: [4], False: [40]}


def test_a_plan_as_text_has_what_its_m_ops_do_and_who_shares_them():
    stock: Schema = (("name", "string"), ("price", "number"))
    texts = [f'FROM FILTER{{name = "{name}"}} Stock NEXT{{$2.price > $1.price}} Stock' for name in ("IBM", "Dell")]
    assert plan_text(Trial({"Stock": stock}, *texts).kernel.plan).splitlines() == [
        "0  Stock, in 1 form",
        "1  FILTER of 0: 2 rows, in 1 form",
        "     FILTER{name = ?1}",
        "2  NEXT of 1 and 0: 2 rows, in 1 form",
        "     NEXT{$1.price < $2.price}",
    ]
