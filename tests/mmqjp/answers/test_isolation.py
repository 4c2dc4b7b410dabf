"""A query whose own work fails is paused with the error, and the others answer as if it were not there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.answers.events_run import RunningForms
from mmqjp.engine import Session
from templates.catalog import Catalog, place_events
from tests.generate.documents import SECOND
from xpath_stage import emissions, filters
from xpath_stage.documents import DEFAULT
from xpath_stage.spark import _Worker
from xscl.algebra import values
from xscl.event_lower import lower_definition
from xscl.parser import parse_script

EVENTS = "DEFINE EVENT B FROM S//b->x (id := x/@id, v := number(x/@id));"
OTHERS = {
    "documents": "FROM S//b->x PUBLISH documents",
    "pairs": "FROM S//b->x JOIN {x/k = y/k, 1 h} S//b->y PUBLISH pairs",
    "silence": "FROM S//b->x NOT FOLLOWED BY {x/@id = y/@id, 1 s} S//b->y PUBLISH silence",
    "events": "FROM FILTER{v > 0} B PUBLISH events",
    "next": "FROM B NEXT{$1.v < $2.v} B PUBLISH next_one",
    "read": "FROM events PUBLISH read",
    "of documents": "FROM documents/match->m PUBLISH again",
}
FAILING = {
    "join": "FROM S//b->x JOIN {x/k = y/k AND contains(y/@id, x/@id), 1 h} S//b->y PUBLISH bad",
    "filter of events": 'FROM FILTER{contains(id, "2")} B PUBLISH bad',
    "NEXT": "FROM B NEXT{contains($2.id, $1.id)} B PUBLISH bad",
    "PATTERN": "PATTERN SEQ(B a, B b) WHERE {contains(b.id, a.id)} WITHIN 1 h PUBLISH bad",
    "reader of events": 'FROM FILTER{contains(id, "2")} events PUBLISH bad',
    "reader of documents": "FROM again//b->x JOIN {x/k = y/k AND contains(y/@id, x/@id), 1 h} S//b->y PUBLISH bad",
}


def document(id: str, time: int, xml: str) -> Document:
    return Document(id=id, stream="S", xml=xml, time=(time, time))


def documents(*times: int) -> list[Document]:
    found = [document(f"d{t}", t * SECOND, f'<b id="{t}"><k>1</k></b>') for t in times]
    return [*found, document(f"z{times[-1]}", times[-1] * SECOND + 1, "<z/>")]


def outputs(engine: Session, *times: int) -> set[tuple[str, tuple[str, ...], str]]:
    return {(one.query, tuple(one.documents), one.xml) for one in engine.process(documents(*times))}


def fails(text: str, part: str) -> NoReturn:
    raise ZeroDivisionError("of the test")


def test_an_error_that_no_query_causes_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with Session("duckdb", settle=0) as engine:
        engine.subscribe(OTHERS["documents"])
        with monkeypatch.context() as patch:
            patch.setattr("mmqjp.answers.pipeline.Outbox.save_answers", fails)
            with pytest.raises(TypeError):
                outputs(engine, 1)
        assert outputs(engine, 1) and not engine.take_paused()


# ---------------------------------------------------------------- patterns, which paused queries keep in stage 1

PATTERNS = {
    "condition": 'FROM S//b[matches(@id, "2")]->x PUBLISH bad',
    "condition of a derived text": 'FROM S//b[upper-case(@id) = "2"]->x PUBLISH bad',
    "condition in not": 'FROM S//b[not(matches(@id, "2"))]->x PUBLISH bad',
    "condition below": 'FROM S//b->x[./k[matches(., "1")]] PUBLISH bad',
    "condition of a join": 'FROM S//b[matches(@id, "2")]->x JOIN {x/k = y/k, 1 h} S//b->y PUBLISH bad',
    "value of a join": "FROM S//b->x JOIN {upper-case(x/k) = upper-case(y/k), 1 h} S//b->y PUBLISH bad",
    "inner join": "FROM S//b->x JOIN {upper-case(x/k) = upper-case(y/k), 1 h} S//b->y JOIN {x/k = z/k, 1 h} S//b->z"
    " PUBLISH bad",
    "absence": 'FROM S//b[matches(@id, "2")]->x NOT FOLLOWED BY {x/k = y/k, 1 s} S//b->y PUBLISH bad',
    "definition": 'DEFINE EVENT C FROM S//b[matches(@id, "2")]->x (id := x/@id); FROM C PUBLISH bad',
    "value of a definition": "DEFINE EVENT D FROM S//b->x (id := upper-case(x/@id)); FROM D PUBLISH bad",
    "reader of documents": 'FROM again//b[matches(@id, "2")]->x PUBLISH bad',
    "value of published ones": "FROM again//b->x JOIN {upper-case(x/k) = upper-case(y/k), 1 h} S//b->y PUBLISH bad",
}


def break_tests(patch: pytest.MonkeyPatch) -> None:
    """Lets contains() fail in joins and event statements."""
    patch.setitem(values.TESTS, "contains", fails)


def break_stage_1(patch: pytest.MonkeyPatch) -> None:
    """Lets matches() and upper-case() fail in patterns."""
    holds, derive = filters.xpath_holds, values.derive

    def failing_holds(xpath: str, element: etree._Element, attribute: int = 0) -> bool:
        return fails(xpath, "") if "matches" in xpath or "upper-case" in xpath else holds(xpath, element, attribute)

    def failing_derive(name: str, text: str) -> str:
        return fails(name, text) if name == "upper-case" else derive(name, text)

    patch.setattr(filters, "xpath_holds", failing_holds)
    patch.setattr(emissions, "derive", failing_derive)


ALONE = [*product([break_tests], FAILING.values()), *product([break_stage_1], PATTERNS.values())]
"""How functions fail, and a query that uses one."""
LIVES = ((1,), (2, 12), (13,), (23, 24), (32, 33, 43))
"""When documents come. From the second life to the last but one functions fail."""


def test_what_waits_is_not_taken_over_in_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before a publisher stops, what its readers wait with is stored; that may fail while it is restored."""
    texts = (
        "DEFINE EVENT E FROM S//e->e (k := e/k); FROM FILTER{k = 'v'} E PUBLISH P; "
        "FROM P NEXT{$1.k = $2.k} E PUBLISH R; FROM E NEXT{$1.k = $2.k} E PUBLISH Q"
    )
    documents = [Document(f"d{n}", "<e><k>v</k></e>", "S", n * SECOND) for n in range(6)]
    with Session("duckdb", state=tmp_path, settle=0) as engine:
        engine.subscribe(texts)
        engine.process(documents[:3])
    with Session("duckdb", state=tmp_path, settle=0) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(RunningForms, "run", lambda self, until, placements: fails("", ""))
            engine._batches.changes.pause_queries({engine.registry.named("P")[0]: "it fails"})
        found = engine.process(documents[3:])
        assert [one.documents for one in found if one.query == "Q"] == [(f"d{n}", f"d{n + 1}") for n in range(1, 4)]


@pytest.fixture(scope="module")
def undisturbed() -> list[set[tuple[str, tuple[str, ...], str]]]:
    with Session("duckdb", settle=0, lateness=0) as engine:
        engine.subscribe(EVENTS + ";".join(OTHERS.values()))
        return [outputs(engine, *times) for times in LIVES]


@pytest.mark.parametrize(
    ("breaks", "texts"),
    [
        (break_tests, [*FAILING.values()]),
        (break_stage_1, [*PATTERNS.values()]),
        *(pytest.param(breaks, [text], marks=pytest.mark.soak) for breaks, text in ALONE),
    ],
)
def test_queries_that_fail_are_paused_and_the_others_answer(
    breaks: Callable[[pytest.MonkeyPatch], None],
    texts: Sequence[str],
    undisturbed: list[set[tuple[str, tuple[str, ...], str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = {f"bad{number}": text.replace(" bad", f" bad{number}") for number, text in enumerate(texts)}
    found = []
    with Session("duckdb", settle=0, lateness=0) as engine:
        engine.subscribe(f"{EVENTS}{';'.join([*OTHERS.values(), *bad.values()])}")
        found.append(outputs(engine, *LIVES[0]))
        with monkeypatch.context() as patch:
            breaks(patch)
            found += [outputs(engine, *times) for times in LIVES[1:-1]]
        paused = engine.take_paused()
        assert paused.keys() == bad.keys()
        assert all("ZeroDivisionError: of the test" in reason for reason in paused.values())
        for name in bad:
            engine.resume(name)
        found.append(outputs(engine, *LIVES[-1]))
    for some, wanted in zip(found, undisturbed, strict=True):
        assert {one for one in some if one[0] not in bad} == wanted and wanted


def test_a_function_that_fails_for_one_value_pauses_the_queries_that_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    derive = values.derive
    joins = "FROM S//b->x JOIN {{upper-case(x/{0}) = upper-case(y/{0}), 1 h}} S//b->y PUBLISH {0}"
    with Session("duckdb", settle=0) as engine:
        engine.subscribe(";".join(joins.format(path) for path in ("k", "n")))
        patched = partial(lambda derive, name, text: fails(name, text) if text == "bad" else derive(name, text), derive)
        monkeypatch.setattr(emissions, "derive", patched)
        xml = "<b><k>1</k><n>{}</n></b>"
        found = engine.process([document(f"d{t}", t, xml.format(text)) for t, text in enumerate(("2", "bad"))])
        assert {one.query for one in found} == {"k"} and engine.take_paused().keys() == {"n"}


def test_an_executor_says_that_a_pattern_failed_there(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog()
    _, needs = place_events(catalog, lower_definition(parse_script(PATTERNS["definition"]).definitions[0], {}))
    rows = pa.RecordBatch.from_pydict({"stream": ["S"], "xml": [b'<b id="2"/>']})
    with monkeypatch.context() as patch:
        break_stage_1(patch)
        worker = _Worker(needs, DEFAULT, None)
        assert worker.evaluate(rows, True, False, None)["failed"].to_pylist() == [True]
    assert worker.evaluate(rows, True, False, None)["failed"].to_pylist() == [False]


# ---------------------------------------------------------------- conditions that do not depend on events

PLACES = {
    "FILTER": "FROM FILTER{{{0}}} B",
    "NEXT": "FROM B NEXT{{{0}}} B",
    "right side of NEXT": "FROM B NEXT FILTER{{{0}}} B",
    "start of FOLD": "FROM B FOLD{{{0},,}} B",
    "continuation of FOLD": "FROM B FOLD{{,{0},}} B",
    "WHERE": "PATTERN SEQ(B a, B b) WHERE {{{0}}} WITHIN 1 h",
    "WHERE of SET": "PATTERN SEQ(SET(B a, B b)) WHERE {{{0}}} WITHIN 1 h",
    "WHERE of several": "PATTERN SEQ(B+ a[], B b) WHERE skip_till_next_match {{{0}}} WITHIN 1 h",
    "HAVING": "PATTERN SEQ(B a, B b) WITHIN 1 h HAVING {0}",
}
CONSTANT = {
    "1 = 2": False,
    '"a" = "b"': False,
    "1 IS NULL": False,
    "NOT (1 = 1)": False,
    'contains("a", "b")': False,
    "1 = 2 AND 2 = 2": False,
    '1 = 1 OR "a" = "b"': True,
    'starts-with("ab", "a")': True,
}


@pytest.mark.parametrize(("settle", "patterns"), [(0, "driver"), (None, "sql")])
def test_a_condition_without_events_holds_always_or_never(settle: int | None, patterns: str) -> None:
    names = {(place, text): f"q{n}x" for n, (place, text) in enumerate(product(PLACES, [*CONSTANT, "1 = 1"]))}
    statements = [f"{PLACES[place].format(text)} PUBLISH {name}" for (place, text), name in names.items()]
    with Session("duckdb", settle=settle, patterns=patterns) as engine:
        engine.subscribe(EVENTS + ";".join(statements))
        found = outputs(engine, 1, 2, 3) | {(one.query, tuple(one.documents), one.xml) for one in engine.finish()}
        assert not engine.take_paused()
    counts = Counter(query for query, *_ in found)
    for (place, text), name in names.items():
        always = counts[names[place, "1 = 1"]]
        assert always and counts[name] == CONSTANT.get(text, True) * always, (place, text)
