"""What statements share: the plans that the m-rules make of RUMOR's examples, and what waits in them."""

from __future__ import annotations

from statistics import fmean

from common.bounds import Micros
from pattern_stage.definition import StatementForms
from pattern_stage.plan import RULE_NAMES, MOp, RuleName
from tests.generate.documents import SECOND
from tests.oracle.events import event
from tests.support.event_agreement import Trial
from xscl.algebra.events import (
    AllOf,
    Arithmetic,
    Attribute,
    Comparison,
    Constant,
    Events,
    Filter,
    Schema,
    Select,
    Stream,
)

STOCK: Schema = (("name", "string"), ("price", "number"))
SCHEMAS: dict[str, Schema] = {
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
    price = Attribute("left", "price", "number")

    def selected(times: int) -> int:
        stream: Stream = Events("Stock", STOCK)
        for _ in range(times):
            doubled = ("price", Arithmetic("+", price, price))
            stream = Select(stream, (("name", Attribute("left", "name", "string")), doubled), STOCK)
        return len(StatementForms().form(stream)[0].nodes)

    assert selected(1) == selected(2) == 2 and 2 < selected(40) < 20
    dear = AllOf((Comparison(">", price, Constant(83.0)),))
    named = Select(Filter(Events("Stock", STOCK), dear), (("price", Arithmetic("*", price, Constant(2.0))),), STOCK[1:])
    form, constants, _ = StatementForms().form(Filter(named, AllOf((Comparison(">", price, Constant(200.0)),))))
    assert [node.slots for node in form.nodes[1:]] == [(0, 1, 2), (1,)] and constants == (83.0, 2.0, 200.0)


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
