"""The oracle's event algebra: examples of the thesis, and hand-checked cases (docs/semantics.md, section 22)."""

from __future__ import annotations

import pytest

from tests.oracle.event_cases import answers
from tests.oracle.event_schemas import Malformed
from tests.oracle.event_syntax import (
    Aggregate,
    Both,
    Cel,
    Cmp,
    Cond,
    Expr,
    Filter,
    Fn,
    Fold,
    IsNull,
    Item,
    Name,
    Next,
    Not,
    Num,
    Op,
    Ref,
    Str,
    Stream,
    Test,
    Time,
    Union,
    Window,
)

STOCK = "name price:number"
S, S1, S2, S3 = Name("Stock"), Name("S1"), Name("S2"), Name("S3")
FIRST, RIGHT, LATEST = (lambda name: Ref(name, "$1")), (lambda name: Ref(name, "$2")), (lambda name: Ref(name, "$"))


def both(*args: Cond) -> Both:
    return Both("AND", args)


def named(name: str, side: str = "") -> Cmp:
    return Cmp("=", Ref("name"), Str(name))


def test_c1_the_partner_ends_first_and_begins_later():
    given = ("S1", "a:number", "1 @1-3"), ("S2", "b:number", "2 @2-4 | 3 @5-9 | 4 @6-8")
    assert answers(Next(S1, None, S2), *given) == ["a=1 b=4 [1,8]"]


def test_c2_attributes_are_concatenated_and_renamed():
    given = ("S1", "Name Price:number Vol:number", "IBM 85 1000 @1"), ("S2", "company Price:number", "MSFT 27 @2-3")
    found = Cel(
        Next(S1, None, S2),
        (Item(Ref("Name_1"), "Name"), Item(Ref("Price")), Item(Ref("Vol_1"), "Vol"), Item(Ref("company"))),
    )
    assert answers(found, *given) == ["Name=IBM Price=27 Vol=1000 company=MSFT [1,3]"]


RISES = Fold(S, Cmp("=", RIGHT("name"), LATEST("name")), Cmp(">", RIGHT("price"), LATEST("price")), (), S)


def test_c3_monotone_rises():
    quotes = "IBM 80 @1 | Dell 22 @2 | IBM 82 @3 | Dell 24 @4 | IBM 84 @5 | Dell 22 @6"
    assert answers(RISES, ("Stock", STOCK, quotes)) == [
        "name=Dell name_1=Dell price=24 price_1=22 [2,4]",
        "name=IBM name_1=IBM price=82 price_1=80 [1,3]",
        "name=IBM name_1=IBM price=84 price_1=80 [1,5]",
        "name=IBM name_1=IBM price=84 price_1=82 [3,5]",
    ]


QUOTES = "name price:number volume:number"
FALLS = Cel(
    Fold(
        Filter(Cmp(">", Ref("volume"), Num("10000")), S),
        Cmp("=", RIGHT("name"), LATEST("name")),
        Cmp("<", RIGHT("price"), LATEST("price")),
        (),
        S,
    ),
    (Item(Ref("name")), Item(Ref("price_1"), "most"), Item(Ref("price"), "least")),
)
LONG_FALLS = Filter(Cmp(">=", Time("DUR"), Window("10", "min")), FALLS)
REBOUND = Cel(
    Filter(
        Cmp(">", Ref("price"), Op("*", Num("1.05"), Ref("least_1"))),
        Next(LONG_FALLS, Cmp("=", FIRST("name"), RIGHT("name")), S),
    ),
    (Item(Ref("name")), Item(Ref("most_1"), "most"), Item(Ref("least_1"), "least"), Item(Ref("price"))),
)
DAY = [
    "IBM 90 15000 @540",
    "IBM 85 7000 @900",
    "Dell 40 11000 @1020",
    "IBM 81 8000 @1260",
    "MSFT 25 6000 @1380",
    "IBM 91 9000 @1440",
]


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ([], ["least=81 most=90 name=IBM price=91 [540,1440]"]),  # C4
        (["IBM 80 8000 @1440"], ["least=81 most=90 name=IBM price=91 [540,1440]"]),  # C5
        (["IBM 99 8000 @1020"], []),  # C6
        (["IBM 82 8000 @1400"], []),
    ],
)
def test_c4_to_c6_a_rebound_after_a_fall(more, found):
    assert answers(REBOUND, ("Stock", QUOTES, " | ".join([*DAY, *more]))) == found


def test_c4_as_it_is_printed_skips_what_does_not_rise():
    printed = Next(
        LONG_FALLS,
        both(Cmp("=", RIGHT("name"), FIRST("name")), Cmp(">", RIGHT("price"), Op("*", Num("1.05"), FIRST("least")))),
        S,
    )
    assert len(answers(printed, ("Stock", QUOTES, " | ".join([*DAY, "IBM 82 8000 @1400"])))) == 1


def by_name(name: str, suffix: str) -> Cel:
    items = Item(Ref("price"), f"p{suffix}")
    return Cel(Filter(named(name), S), (items,))


def test_c7_sequences_are_not_associative():
    given = ("Stock", STOCK, "IBM 80 @1 | MSFT 50 @2 | MSFT 49 @3 | Dell 24 @4")
    ibm, msft, dell = by_name("IBM", "i"), by_name("MSFT", "m"), by_name("Dell", "d")
    assert len(answers(Next(msft, None, dell), given)) == 2
    assert answers(Next(ibm, None, Next(msft, None, dell)), given) == [
        "pd=24 pi=80 pm=49 [1,4]",
        "pd=24 pi=80 pm=50 [1,4]",
    ]
    assert answers(Next(Next(ibm, None, msft), None, dell), given) == ["pd=24 pi=80 pm=50 [1,4]"]


def test_c8_the_separating_streams():
    given = (
        ("S1", "a:number", "0 @0"),
        ("S2", "b:number", " | ".join(f"{n} @{n}" for n in range(1, 12))),
        ("S3", "c:number", "4 @4 | 6 @6"),
    )
    assert [line.split(" [")[0] for line in answers(Next(S1, None, Next(S2, None, S3)), *given)] == [
        "a=0 b=1 c=4",
        "a=0 b=2 c=4",
        "a=0 b=3 c=4",
    ]
    assert answers(Next(Next(S1, None, S2), None, S3), *given) == ["a=0 b=1 c=4 [0,4]"]


def test_c9_values_of_both_sides():
    mean = Op("/", Op("+", Ref("price_1"), Ref("price")), Num("2"))
    found = Cel(Next(S, Cmp("=", FIRST("name"), RIGHT("name")), S), (Item(mean, "avg"),))
    assert answers(found, ("Stock", STOCK, "IBM 80 @1 | IBM 82 @3")) == ["avg=81 [1,3]"]


def test_c10_an_atom_with_null_is_false():
    given = ("Stock", "name color", "IBM - @1 | Dell - @2")
    blue = Cmp(">", Ref("color"), Str("blue"))
    assert answers(Filter(both(named("IBM"), blue), S), given) == []
    assert answers(Filter(Both("OR", (named("IBM"), blue)), S), given) == ["color=- name=IBM [1,1]"]
    assert answers(Filter(Not(blue), S), given) == []
    assert len(answers(Filter(IsNull(Ref("color")), S), given)) == 2
    assert answers(Filter(Not(IsNull(Ref("color"))), S), given) == []
    assert answers(Filter(Cmp("!=", Ref("color"), Str("blue")), S), given) == []
    assert answers(Filter(Not(Test("contains", (Ref("color"), Str("b")))), S), given) == []


def test_example_17_counts_rises():
    start = Cel(Filter(Cmp(">", Ref("volume"), Num("10000")), S), (None, Item(Num("1"), "cnt")))
    runs = Fold(
        start,
        both(Cmp("=", RIGHT("name"), LATEST("name")), Cmp(">", RIGHT("price"), LATEST("price"))),
        None,
        (Item(Op("+", LATEST("cnt"), Num("1")), "cnt"),),
        S,
    )
    quotes = " | ".join(["IBM 10 20000 @1", *(f"IBM {n + 9} 5 @{n}" for n in range(2, 13))])
    found = answers(Filter(Cmp(">", Ref("cnt"), Num("10")), runs), ("Stock", QUOTES, quotes))
    assert [line.split() for line in found] == [
        [
            "cnt=11",
            "cnt_1=1",
            "name=IBM",
            "name_1=IBM",
            "price=20",
            "price_1=10",
            "volume=5",
            "volume_1=2e+04",
            "[1,11]",
        ],
        [
            "cnt=12",
            "cnt_1=1",
            "name=IBM",
            "name_1=IBM",
            "price=21",
            "price_1=10",
            "volume=5",
            "volume_1=2e+04",
            "[1,12]",
        ],
    ]


def test_t1_ties():
    given = ("V", "v:number", "1 @1 | 2 @2 | 3 @2 | 4 @3")
    v = Name("V")
    assert answers(Next(v, None, v), given) == [
        "v=2 v_1=1 [1,2]",
        "v=3 v_1=1 [1,2]",
        "v=4 v_1=2 [2,3]",
        "v=4 v_1=3 [2,3]",
    ]
    one = Filter(Cmp("=", Ref("v"), Num("1")), v)
    rising = Cmp(">", RIGHT("v"), LATEST("v"))
    assert answers(Fold(one, None, rising, (), v), given) == ["v=2 v_1=1 [1,2]", "v=3 v_1=1 [1,2]", "v=4 v_1=1 [1,3]"]
    ends = ("V", "v:number", "1 @1 | 2 @2 | 0 @2 | 4 @3")
    assert answers(Fold(one, None, rising, (), v), ends) == ["v=2 v_1=1 [1,2]", "v=4 v_1=1 [1,3]"]
    assert answers(Fold(one, None, Cmp(">", RIGHT("v"), Num("2")), (), v), given) == [
        "v=3 v_1=1 [1,2]",
        "v=4 v_1=1 [1,3]",
    ]


def test_t2_a_window_that_slides():
    mean = Aggregate((Item(Fn("avg", (Ref("v"),)), "mean"),), (), Window("5"), Name("V"))
    assert answers(mean, ("V", "v:number", "10 @0 | 20 @4 | 60 @5 | 80 @5 | 7 @10")) == [
        "mean=10 [0,0]",
        "mean=15 [4,4]",
        "mean=53.33 [5,5]",
        "mean=7 [10,10]",
    ]


@pytest.mark.parametrize(
    ("stream", "given"),
    [
        (Union(S1, S2), [("S1", "a", ""), ("S2", "b", "")]),
        (Next(S1, None, S2), [("S1", "a", ""), ("S2", "a a_1", "")]),
        (Fold(S1, None, None, (), S2), [("S1", "a", ""), ("S2", "a b", "")]),
        (Fold(S1, None, None, (), S2), [("S1", "a a_1", ""), ("S2", "a", "")]),
        (Fold(S1, None, None, (Item(Num("1"), "n"),), S2), [("S1", "a", ""), ("S2", "a", "")]),
        (Fold(S1, None, None, (Item(Num("1"), "a"),), S2), [("S1", "a", ""), ("S2", "a", "")]),
        (Cel(S1, (Item(Ref("a")), Item(Num("1"), "a"))), [("S1", "a", "")]),
    ],
)
def test_what_the_language_refuses(stream: Stream, given):
    with pytest.raises(Malformed):
        answers(stream, *given)


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        (Op("/", Num("1"), Num("0")), "-"),
        (Op("%", Num("7"), Num("0")), "-"),
        (Op("%", Op("-", Num("0"), Num("7")), Num("4")), "-3"),
        (Op("+", Ref("n"), Str(" 2 ")), "3"),
        (Op("+", Ref("n"), Ref("s")), "-"),
        (Op("*", Num("80%"), Ref("n")), "0.8"),
        (Op("+", Ref("n"), Ref("none")), "-"),
        (Fn("coalesce", (Ref("none"), Num("4"))), "4"),
        (Fn("concat", (Ref("s"), Ref("n"), Num("1.50"))), "x11.5"),
        (Fn("concat", (Ref("s"), Ref("none"))), "-"),
        (Fn("abs", (Num("1.5"),)), "1.5"),
        (Fn("number", (Ref("s"),)), "-"),
        (Fn("upper-case", (Ref("s"),)), "X"),
        (Time("DUR"), "2"),
        (Window("2", "min"), "120"),
    ],
)
def test_values(expr: Expr, value: str):
    given = ("S1", "n:number s none:number", "1 x - @1-3")
    assert answers(Cel(S1, (Item(expr, "v"),)), given) == [f"v={value} [1,3]"]


def test_equal_events_are_one():
    given = ("S1", "a b:number", "x 1 @1 | x 2 @1")
    assert len(answers(Union(Filter(Cmp("<", Ref("b"), Num("5")), S1), S1), given)) == 2
    only_a = Cel(S1, (Item(Ref("a")),))
    assert answers(Aggregate((Item(Fn("count"), "n"),), (), None, Cel(Union(only_a, only_a))), given) == ["n=2 [1,1]"]
