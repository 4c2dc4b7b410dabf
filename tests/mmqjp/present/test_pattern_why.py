"""Why outputs of PATTERN statements came about: the event of each variable, in random worlds and by hand."""

from __future__ import annotations

import json
from random import Random

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.explain.retrace.events import ShownEvent
from mmqjp.explain.retrace.values import as_text
from mmqjp.present import item
from mmqjp.present.output_why import OutputWhy, why_output
from mmqjp.present.why_not import explain_missing_output
from tests.generate.pattern_worlds import pattern_world
from tests.generate.seeds import seeds
from tests.mmqjp.answers.event_world import END
from tests.mmqjp.answers.test_event_worlds import SETTLE, batches, documents, ends, script
from tests.mmqjp.answers.test_feed_examples import (
    STORY,
    advisories,
    corrected,
    elements,
    offers,
    page,
    releases,
    statements,
)
from tests.mmqjp.present.test_event_why import select_of
from tests.oracle.pattern_syntax import Near, Pattern


@pytest.mark.parametrize("seed", seeds(1, 500))
def test_the_events_of_random_outputs_are_found_again(seed: int) -> None:
    rng, found = Random(seed), pattern_world(seed)
    with Session("duckdb", settle=SETTLE, quiet=True) as engine:
        names = engine.subscribe(script(found), add=True)
        for batch in batches(rng, documents(found)):
            engine.process(batch)
        engine.process(ends(found))
        patterns = {name for name, one in zip(names, found.statements, strict=True) if isinstance(one, Pattern | Near)}
        outputs = [one for one in engine.outputs() if one.query in patterns]
        for output in rng.sample(outputs, min(len(outputs), 8)):
            why = why_output(select_of(engine), output.id)
            assert OutputWhy.from_dict(json.loads(json.dumps(why.to_dict()))) == why
            check(output, why)


def check(output: Output, why: OutputWhy) -> None:
    """As many events are told as the output has; those that it shows have the values that it shows."""
    assert why.events is not None, (why.text, output)
    names = {name.partition(".")[0] for name in output.nodes}
    assert sum(part.count for part in why.events.parts) == len(names)
    behind = {place for part in why.events.parts for one in part.events for place in one.documents}
    if all(part.count == len(part.events) for part in why.events.parts):
        assert behind == set(range(len(output.documents))) - {
            place for place, id in enumerate(output.documents) if id in output.documents[:place]
        }
    if " RETURN " not in why.text and "ERRORS" not in why.text:
        shown = [
            (int(one.get("t0", "")), int(one.get("t1", "")), {child.tag: child.text or "" for child in one})
            for one in etree.fromstring(output.xml)
        ]
        told = [one for part in why.events.parts for one in part.events]
        assert all((one.t0, one.t1, texts(one)) in shown for one in told)


def texts(seen: ShownEvent) -> dict[str, str]:
    return {name: text for name, value in seen.attributes if (text := as_text(value)) is not None}


def told(name: str, arriving: list[Document], text: str | None = None) -> list[str]:
    """What `why` says of the only output of a query: its events, and the conditions that held."""
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe(text or statements(f"PUBLISH {name}"))
        engine.process(arriving)
        streams = {one.stream for one in arriving}
        engine.process([Document(f"end {stream}", "<end/>", stream, END) for stream in streams])
        (output,) = (one for one in engine.outputs() if one.query == name)
        why = why_output(select_of(engine), output.id)
        assert why.events is not None
        parts = [item.fact_text(one) for one in item.events(why.events)]
        assert explain_missing_output(select_of(engine), name, output.documents).outputs == (output.id,)
        return [*parts, *map(item.fact_text, item.reason_facts(why.match))]


def test_events_and_conditions_of_a_run() -> None:
    given = [("a", 100), ("b", 99), ("b", 98), ("a", 97), ("b", 90)]
    found = told("price_war", offers(*(("x", shop, price) for shop, price in given)))
    assert found == [
        "Price+ p[]: 4 events",
        *(
            f'1970-01-01T0{hour}:00:00Z  product "x", shop "{shop}", price {price}'
            for hour, shop, price in ((0, "a", 100), (1, "b", 99), (3, "a", 97), (4, "b", 90))
        ),
        '[product] "x"',
        "p[i].price 99 < p[i-1].price 100",
        "p[i].price 97 < p[i-1].price 99",
        "p[i].price 90 < p[i-1].price 97",
        'p[i].shop "b" != p[i-1].shop "a"',
        'p[i].shop "a" != p[i-1].shop "b"',
        "count(p[]) 4 = 4",
    ]


def test_what_did_not_come_is_said() -> None:
    found = told("unpatched", [*advisories(("A1", "p", 9, 1)), *releases(("p", "1", "", 1))])
    assert found == [
        'Advisory a  id "A1", project "p", score 9',
        "a.score 9 >= 7",
        "no Release r afterwards in 2 w: r.project = a.project",
    ]


def test_of_several_events_of_a_document_those_that_fit_are_told() -> None:
    """b links to a and to another page."""
    links = {"a": "", "b": "za", "c": "by", "d": "xc"}
    found = told("spreads", [page(site, site, at, *to) for at, (site, to) in enumerate(links.items())])
    assert [line.partition("target ")[2] for line in found if "target " in line and line.startswith("1970")] == [
        f'"http://{site}.example/1"' for site in "abc"
    ]


def test_letters_that_are_missing_are_counted() -> None:
    states = enumerate(("Investigating", "Resolved"))
    reports = elements("S", "item", *(({"item_url": "u", "title": state}, at) for at, state in states))
    found = told("incident", reports, statements("PUBLISH incident").replace("ERRORS <= 1", "ERRORS <= 2"))
    assert [line.partition(" ")[0] for line in found] == ["Investigating", "Resolved", "[incident]", "2"]
    assert found[-1] == "2 letters are missing, of 2 that may be"


def test_events_of_documents_that_queries_publish_are_found() -> None:
    found = told("half_corrected", [*STORY, corrected("a", 2)])
    assert found[0].startswith('Carried s  title "Big news", one "http://a.example/1"')
    assert found[1] == 'Correction c  target "http://a.example/1"'
    assert found[-1] == "no Correction d afterwards in 5 d: d.target = s.two"
