"""The plans that the m-rules make of RUMOR's examples."""

from __future__ import annotations

from statistics import fmean

from pattern_stage.plan import RULE_NAMES, MOp, RuleName
from tests.oracle.events import event
from tests.support.event_kernel import Trial
from xscl.algebra.events import Schema
from xscl.event_lower import lower_event_query
from xscl.event_parser import schemas_of
from xscl.parser import parse_script
from xscl.syntax import EventStreams

SECOND = 10**6
SCHEMAS: dict[str, Schema] = {
    "CPU": (("pid", "string"), ("load", "number")),
    "S": (("a", "number"),),
    "T": (("b", "number"),),
}


def plan_of(*statements: str, off: tuple[RuleName, ...] = ()) -> list[tuple[str, int, int]]:
    """The m-ops of statements: what each is, how many shapes it has, and how many rows."""
    known = EventStreams(SCHEMAS)
    script = parse_script("; ".join(statements), events=known)
    schemas = dict(schemas_of(script, known))
    trial = Trial(schemas, rules=[name for name in RULE_NAMES if name not in off])
    for place, query in enumerate(script.event_queries):
        trial.kernel.add(place, lower_event_query(query, schemas), -1)
    trial.kernel.instances()  # brings them into the plan
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
    known = EventStreams(SCHEMAS)
    script = parse_script("FROM AGGREGATE{avg(load) AS mean BY pid OVER 5 s} CPU", events=known)
    stream = lower_event_query(script.event_queries[0], SCHEMAS)
    events = frozenset(event({"pid": "p", "load": float(t * t)}, t * SECOND, t * SECOND, {t}) for t in range(20))
    kept: dict[bool, int] = {}
    for on in (True, False):
        trial = Trial(SCHEMAS, rules=[name for name in RULE_NAMES if on or name != "c_alpha"])
        for t in range(20):
            if t < 10:
                trial.kernel.add(t, stream, t * SECOND - 1)
            trial.run({"CPU": events}, t * SECOND, (t + 1) * SECOND)
        (name,) = (name for name in trial.kernel.state() if "/" not in name and name != "format")
        kept[on] = len(trial.kernel.state()[name])
        for begun in range(10):
            found = {one.t1 // SECOND: one.values["mean"] for one in trial.results(begun)}
            assert found == {t: fmean(i * i for i in range(max(begun, t - 4), t + 1)) for t in range(begun, 20)}
    assert kept == {True: 4, False: 40}
