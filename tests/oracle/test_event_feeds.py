"""What people who follow feeds ask for, in event statements, by the oracle."""

from __future__ import annotations

import pytest

from tests.oracle.event_cases import brief, events, schema
from tests.oracle.event_schemas import Schema
from tests.oracle.event_syntax import (
    Aggregate,
    Both,
    Cel,
    Cmp,
    Filter,
    Fn,
    Fold,
    Item,
    Name,
    Next,
    Num,
    Op,
    Ref,
    Stream,
    Time,
    Window,
)
from tests.oracle.events import World

DAY = 86400
HOUR = 3600


def selected(source: Stream, *names: str) -> Cel:
    return Cel(source, tuple(Item(Ref(name)) for name in names))


def found(statements: list[Cel], given: dict[str, tuple[Schema, str]]) -> list[str]:
    """The results of the last statement."""
    schemas = {name: of for name, (of, _) in given.items()}
    world = World(schemas, {name: events(of, text) for name, (of, text) in given.items()}, statements)
    return brief(world.results(len(statements) - 1))


def line(*quotes: tuple[object, ...]) -> str:
    """Events, each with its values and its second."""
    return " | ".join(" ".join(map(str, values)) + f" @{second}" for *values, second in quotes)


ADVISORY, RELEASE = schema("id project score:number"), schema("project version notes")
SERIOUS = Cel(Filter(Cmp(">=", Ref("score"), Num("7")), Name("Advisory")), (Item(Ref("id")), Item(Ref("project"), "p")))
FIRST_RELEASE = Cel(
    Next(SERIOUS, Cmp("=", Ref("p"), Ref("project")), Name("Release")),
    (Item(Ref("id")), Item(Ref("project")), Item(Ref("version")), Item(Op("/", Time("DUR"), Num("86400")), "days")),
    Window("90", "d"),
    "first_release",
)


def test_the_first_release_after_an_advisory():
    given = {
        "Advisory": (ADVISORY, line(("one", "p", 9, 2 * DAY), ("two", "p", 3, 2 * DAY))),
        "Release": (
            RELEASE,
            line(("p", "0", "-", DAY), ("p", "1", "-", 4 * DAY), ("p", "2", "-", 5 * DAY), ("o", "3", "-", 3 * DAY)),
        ),
    }
    assert found([FIRST_RELEASE], given) == [f"days=2 id=one project=p version=1 [{2 * DAY},{4 * DAY}]"]


PRICE = schema("product shop price:number")
MEAN_PRICE = Cel(
    Aggregate(
        (Item(Fn("avg", (Ref("price"),)), "mean"), Item(Fn("count"), "n")),
        ("product",),
        Window("30", "d"),
        Name("Price"),
    ),
    publish="mean_price",
)
BARGAIN = Cel(
    Filter(
        Both("AND", (Cmp(">=", Ref("n"), Num("10")), Cmp("<", Ref("price"), Op("*", Num("85%"), Ref("mean"))))),
        Next(
            Cel(Name("mean_price"), (Item(Ref("product"), "p"), Item(Ref("mean")), Item(Ref("n")))),
            Cmp("=", Ref("p"), Ref("product")),
            Name("Price"),
        ),
    ),
    tuple(Item(Ref(name)) for name in ("product", "shop", "price", "mean")),
    Window("7", "d"),
    "bargain",
)


def test_well_below_its_own_mean():
    offers = [("tv", "s", 100, HOUR * at) for at in range(11)] + [
        ("tv", "s", 80, HOUR * 11),
        ("tv", "s", 99, HOUR * 12),
    ]
    given = {"Price": (PRICE, line(*offers))}
    for statements in ([MEAN_PRICE, BARGAIN], [MEAN_PRICE, Cel(BARGAIN.stream, BARGAIN.select, BARGAIN.within)]):
        assert found(statements, given) == [f"mean=100 price=80 product=tv shop=s [{HOUR * 10},{HOUR * 11}]"]


TAG = schema("site tag")
TAG_RATE = Cel(Aggregate((Item(Fn("count"), "n"),), ("tag",), Window("1", "h"), Name("Tag")), publish="tag_rate")
FLARE = Cel(
    Filter(
        Both("AND", (Cmp("<", Ref("n_1"), Num("10")), Cmp(">=", Ref("n"), Num("10")))),
        Next(Name("tag_rate"), Cmp("=", Ref("tag", "$1"), Ref("tag", "$2")), Name("tag_rate")),
    ),
    (Item(Ref("tag")), Item(Ref("n"))),
    Window("7", "d"),
    "flare",
)


def test_a_topic_flares_up():
    posts = [("s", "ai", 60 * minute) for minute in [*range(14), *range(240, 251)]]
    assert found([TAG_RATE, FLARE], {"Tag": (TAG, line(*posts))}) == [
        f"n=10 tag=ai [{60 * 248},{60 * 249}]",
        f"n=10 tag=ai [{60 * 8},{60 * 9}]",
    ]


POST = schema("site title url author")
STREAK = Cel(
    Filter(
        Cmp("=", Ref("n"), Num("7")),
        Fold(
            Cel(Name("Post"), (Item(Ref("author")), Item(Num("1"), "n"))),
            Cmp("=", Ref("author", "$2"), Ref("author", "$")),
            Cmp("<=", Time("GAP"), Window("36", "h")),
            (Item(Op("+", Ref("n", "$"), Num("1")), "n"),),
            selected(Name("Post"), "author"),
        ),
    ),
    (Item(Ref("author")), Item(Ref("n")), Item(Op("/", Time("DUR"), Num("86400")), "days")),
    Window("30", "d"),
    "streak",
)


def test_a_streak():
    days = [*range(8), 9.9]
    posts = line(*(("s", "t", f"u{day}", "ann", round(day * DAY)) for day in days))
    assert found([STREAK], {"Post": (POST, posts)}) == [
        f"author=ann days=6 n=7 [0,{6 * DAY}]",
        f"author=ann days=6 n=7 [{DAY},{7 * DAY}]",
    ]


@pytest.mark.parametrize("statement", [FIRST_RELEASE, MEAN_PRICE, BARGAIN, TAG_RATE, FLARE, STREAK])
def test_statements_have_a_text(statement: Cel):
    assert statement.text().endswith(f"PUBLISH {statement.publish}")
