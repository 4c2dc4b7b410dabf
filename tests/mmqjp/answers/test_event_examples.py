"""The hand-checked examples of event queries, told by an engine over documents: the oracle's own tests are run once
more, with what the engine tells in place of what the oracle finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.shown_engine import Engine
from tests.oracle import test_event_feeds, test_events
from tests.oracle.event_cases import SECOND, brief, events, schema
from tests.oracle.event_schemas import Schema, schema_of
from tests.oracle.event_syntax import Cel, Stream
from tests.oracle.event_values import Value
from tests.oracle.events import Event, World, event
from xscl.algebra.values import number_text


def told(statements: list[Cel], given: Mapping[str, tuple[Schema, str]]) -> list[str]:
    """What an engine tells of the last statement, as the oracle's notation has it."""
    schemas = {name: of for name, (of, _) in given.items()}
    last = schema_of(statements[-1], World(schemas, {}, statements).schemas)  # refuses what is malformed
    with Engine("duckdb", settle=None) as engine:
        name = engine.subscribe("; ".join([*_definitions(schemas), *(cel.text() for cel in statements)]))[-1]
        engine.process(list(_documents(given)))
        return brief(_event(one.xml, last) for one in engine.finish() if one.query == name)


def _definitions(schemas: Mapping[str, Schema]) -> Iterator[str]:
    for name, of in schemas.items():
        attributes = (
            f"{one} := number(e/@{one})" if kind == "number" else f"{one} := e/@{one}" for one, kind in of.items()
        )
        yield f"DEFINE EVENT {name} FROM documents_{name}//e->e ({', '.join(attributes)})"


def _documents(given: Mapping[str, tuple[Schema, str]]) -> Iterator[Document]:
    for name, (of, text) in given.items():
        for number, one in enumerate(events(of, text)):
            element = etree.Element("e", {key: _text(value) for key, value in one.attributes if value is not None})
            yield Document(f"{name}-{number}", etree.tostring(element), f"documents_{name}", (one.t0, one.t1))


def _text(value: Value) -> str:
    return number_text(value) if isinstance(value, float) else str(value)


def _event(xml: str, of: Schema) -> Event:
    root = etree.fromstring(xml)
    texts = {child.tag: child.text or "" for child in root}
    values: dict[str, Value] = {
        name: None if name not in texts else float(texts[name]) if kind == "number" else texts[name]
        for name, kind in of.items()
    }
    return event(values, int(root.get("t0", "")), int(root.get("t1", "")), ())


def answers(stream: Stream, *given: tuple[str, str, str]) -> list[str]:
    cel = stream if isinstance(stream, Cel) else Cel(stream)
    return told([cel], {name: (schema(of), text) for name, of, text in given})


def cases(tests: Iterable[Callable[..., None]]) -> list[Any]:
    found = []
    for test in tests:
        marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        rows = marks[0].args[1] if marks else [()]
        for place, row in enumerate(rows):
            found.append(pytest.param(test, row, id=f"{test.__name__.removeprefix('test_')}-{place}"))
    return found


@pytest.mark.parametrize(
    ("test", "row"),
    cases(
        [
            test_events.test_c1_the_partner_ends_first_and_begins_later,
            test_events.test_c2_attributes_are_concatenated_and_renamed,
            test_events.test_c3_monotone_rises,
            test_events.test_c4_to_c6_a_rebound_after_a_fall,
            test_events.test_c7_sequences_are_not_associative,
            test_events.test_c8_the_separating_streams,
            test_events.test_c9_values_of_both_sides,
            test_events.test_example_17_counts_rises,
            test_events.test_t1_ties,
            test_events.test_t2_a_window_that_slides,
            test_event_feeds.test_the_first_release_after_an_advisory,
            test_event_feeds.test_well_below_its_own_mean,
            test_event_feeds.test_a_topic_flares_up,
            test_event_feeds.test_a_streak,
        ]
    ),
)
def test_an_engine_tells_the_examples(test: Callable[..., None], row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_events, "answers", answers)
    monkeypatch.setattr(test_event_feeds, "found", told)
    test(*row)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ('name = "IBM" AND color = "blue"', []),
        ('name = "IBM" OR color = "blue"', ["color=- name=IBM [1,1]"]),
        ('NOT color = "blue"', []),
        ('color != "blue"', []),
        ("color IS NULL", ["color=- name=Dell [2,2]", "color=- name=IBM [1,1]"]),
        ("NOT color IS NULL", []),
    ],
)
def test_c10_an_atom_with_null_is_false(condition: str, found: list[str]) -> None:
    """`color > "blue"` of the paper is a mistake here: > compares numbers."""
    with Engine("duckdb", settle=None) as engine:
        engine.subscribe(
            "DEFINE EVENT Stock FROM S//e->e (name := e/@name, color := e/@color); "
            f"FROM FILTER {{{condition}}} Stock PUBLISH found"
        )
        engine.process(
            Document(name, f"<e name='{name}'/>", "S", at * SECOND) for name, at in (("IBM", 1), ("Dell", 2))
        )
        assert brief(_event(one.xml, schema("name color")) for one in engine.finish()) == found


def test_l1_what_comes_too_late_is_no_event_and_still_joins() -> None:
    with Engine("duckdb", settle=2 * SECOND) as engine:
        engine.subscribe(
            "DEFINE EVENT A FROM S//a->a (k := a/k); FROM A NEXT A PUBLISH pairs; "
            "S//a->x FOLLOWED BY {x = y, 1 h} S//a->y PUBLISH joined"
        )

        def arrives(number: int, at: int) -> None:
            engine.process([Document(f"d{number}", "<a><k>u</k></a>", "S", at * SECOND)])

        arrives(1, 1)
        arrives(2, 10)
        arrives(3, 7)  # the horizon is at 8
        arrives(4, 8)
        arrives(5, 100)
        letters = [(one["id"], one["reason"]) for one in engine.dead_letters()]
        assert letters == [("d3", "late for patterns: 1000000 µs behind what has been released")]
        pairs = {one.documents for one in engine.outputs() if one.query == "pairs"}
        assert pairs == {("d1", "d4"), ("d4", "d2")}
        joined = {one.documents for one in engine.outputs() if one.query == "joined"}
        assert ("d1", "d3") in joined and ("d3", "d4") in joined and len(joined) == 10


L2 = """
FROM S//a->a[./k->k] FOLLOWED BY {k = k2, 1 h} S//b->b[./k->k2] PUBLISH pairs;
DEFINE EVENT Mark FROM S//mark->m (k := m/k);
DEFINE EVENT Pair FROM pairs/match->m (k := m/a/k);
FROM Mark NEXT {$1.k = $2.k} Pair PUBLISH marked;
FROM marked/match->m[./k->k] JOIN {k = k3, 1 h} S//c->c[./k->k3] PUBLISH joined;
DEFINE EVENT Joined FROM joined/match->m (k := m/match/k);
FROM AGGREGATE {count() AS n BY k} Joined PUBLISH counted;
FROM Mark NEXT {$1.k = $2.k} counted PUBLISH last
"""


def test_l2_joins_and_events_follow_from_one_another_at_one_time() -> None:
    with Engine("duckdb", settle=0) as engine:
        engine.subscribe(L2)
        for number, name in enumerate(["mark", "c", "c", "a"]):
            engine.process([Document(name + str(number), f"<x><{name}><k>u</k></{name}></x>", "S", number * SECOND)])
        at = 9 * SECOND
        engine.process([Document("b", "<x><b><k>u</k></b></x>", "S", at)])
        found = list(engine.process([Document("end", "<x/>", "S", 10**5 * SECOND)]))
        assert {one.query: (one.t0, one.t1) for one in found if one.query != "joined"} == {
            "marked": (0, at),
            "counted": (at, at),
            "last": (0, at),
        }
        assert [(one.t0, one.t1) for one in found if one.query == "joined"] == [(0, at)] * 2
        assert [one.xml.partition("<n>")[2][:1] for one in found if one.query == "last"] == ["2"]
        # L2 again, as one run that sorts everything.
    with Engine("duckdb", settle=None) as engine:
        engine.subscribe(L2)
        names = ["mark", "c", "c", "a", "b"]
        engine.process(
            Document(f"d{number}", f"<x><{name}><k>u</k></{name}></x>", "S", number * SECOND)
            for number, name in reversed([*enumerate(names)])
        )
        assert [(one.query, one.t1) for one in engine.finish() if one.query == "last"] == [("last", 4 * SECOND)]
