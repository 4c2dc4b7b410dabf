"""Why there are outputs of PATTERN statements, and why there are none: in random worlds and by hand."""

import json
from collections.abc import Sequence
from random import Random

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.explain.retrace.values import as_text
from mmqjp.present import item
from mmqjp.present.output_why import OutputWhy, why_output
from mmqjp.present.why_not import explain_missing_output, query_funnel
from mmqjp.present.why_not_result import WhyNot
from tests.generate.documents import SECOND
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
def test_the_events_of_random_outputs_are_found_again(seed):
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
        for one in (one for part in why.events.parts for one in part.events):
            texts = {name: text for name, value in one.attributes if (text := as_text(value)) is not None}
            assert (one.t0, one.t1, texts) in shown


def told(name: str, arriving: list[Document], text: str | None = None) -> list[str]:
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


def test_events_and_conditions_of_a_run():
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


def test_what_did_not_come_is_said():
    found = told("unpatched", [*advisories(("A1", "p", 9, 1)), *releases(("p", "1", "", 1))])
    assert found == [
        'Advisory a  id "A1", project "p", score 9',
        "a.score 9 >= 7",
        "no Release r afterwards in 2 w: r.project = a.project",
    ]


def test_of_several_events_of_a_document_those_that_fit_are_told():
    """b links to a and to another page."""
    links = {"a": "", "b": "za", "c": "by", "d": "xc"}
    found = told("spreads", [page(site, site, at, *to) for at, (site, to) in enumerate(links.items())])
    assert [line.partition("target ")[2] for line in found if "target " in line and line.startswith("1970")] == [
        f'"http://{site}.example/1"' for site in "abc"
    ]


def test_letters_that_are_missing_are_counted():
    states = enumerate(("Investigating", "Resolved"))
    reports = elements("S", "item", *(({"item_url": "u", "title": state}, at) for at, state in states))
    found = told("incident", reports, statements("PUBLISH incident").replace("ERRORS <= 1", "ERRORS <= 2"))
    assert [line.partition(" ")[0] for line in found] == ["Investigating", "Resolved", "[incident]", "2"]
    assert found[-1] == "2 letters are missing, of 2 that may be"


def test_events_of_documents_that_queries_publish_are_found():
    found = told("half_corrected", [*STORY, corrected("a", 2)])
    assert found[0].startswith('Carried s  title "Big news", one "http://a.example/1"')
    assert found[1] == 'Correction c  target "http://a.example/1"'
    assert found[-1] == "no Correction d afterwards in 5 d: d.target = s.two"


@pytest.mark.parametrize("seed", seeds(1, 400))
def test_there_is_no_output_just_when_something_is_in_the_way(seed):
    rng, found = Random(seed), pattern_world(seed, templates=4, statements=5, most=6)
    with Session("duckdb", settle=SETTLE, quiet=True) as engine:
        names = engine.subscribe(script(found), add=True)
        made = documents(found)
        for batch in batches(rng, made):
            engine.process(batch)
        engine.process(ends(found))
        outputs = [(one.query, set(one.documents)) for one in engine.outputs()]
        for name, statement in zip(names, found.statements, strict=True):
            if not isinstance(statement, Pattern | Near):
                continue
            funnels = query_funnel(select_of(engine), name)
            assert (funnels.funnels[0].failed is None) == any(query == name for query, _ in outputs)
            for _ in range(4):
                asked = [one.id for _, one in rng.sample(made, rng.choice((1, 2, 3)))]
                said = explain_missing_output(select_of(engine), name, asked)
                assert WhyNot.from_dict(json.loads(json.dumps(said.to_dict()))) == said
                there = any(query == name and told.issuperset(asked) for query, told in outputs)
                assert (said.kind == "output") == there, (statement.text(), said)
                # Whoever says that they match has found what the kernel has not.
                allowed = {"overlapping"} if statement.apart else set()
                assert said.kind not in {"dropped", "too large", "waiting", "budget", "overlapping"} - allowed, said
                if said.kind not in ("output", "overlapping"):
                    assert said.message and said.stages and not said.stages[-1].found


def asked(text: str, name: str, arriving: list[Document], *wanted: Sequence[int], horizon: int = END) -> list[WhyNot]:
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe(text)
        engine.process(arriving)
        engine.process([Document(f"end {one}", "<end/>", one, horizon) for one in {doc.stream for doc in arriving}])
        return [
            explain_missing_output(select_of(engine), name, [arriving[place].id for place in places])
            for places in wanted
        ]


PRICE = "DEFINE EVENT Price FROM prices//offer->o (product := o/product, shop := o/shop, price := number(o/price)); "


def war(pattern: str, *wanted: Sequence[int]) -> list[tuple[str, str, str]]:
    offered = [("x", "a", 100), ("x", "b", 99), ("x", "b", 98), ("x", "a", 97)]
    found = asked(f"{PRICE}PATTERN {pattern} PUBLISH war", "war", offers(*offered), *wanted)
    return [(one.kind, one.part, one.message) for one in found]


def test_a_condition_and_its_values():
    cheaper = "[product] AND p[i].price < p[i-1].price AND p[i].shop != p[i-1].shop"
    found = war(f"SEQ(Price+ p[]) WHERE skip_till_next_match {{{cheaper}}} WITHIN 7 d", (1, 2), (0, 2))
    assert found[0] == (
        "condition",
        "p[i].shop != p[i-1].shop",
        'p[i].shop is "b", p[i-1].shop is "b", of Price (product "x", shop "b", price 98)',
    )
    assert found[1][:2] == ("strategy", "skip_till_next_match")


def test_an_event_that_a_strategy_does_not_pass_over():
    for strategy, why in (
        ("skip_till_next_match", "the match so far takes it"),
        ("strict_contiguity", "nothing may come in between"),
    ):
        ((kind, part, message),) = war(
            f"SEQ(Price p, Price q) WHERE {strategy} {{q.price < p.price}} WITHIN 7 d", (0, 2)
        )
        assert (kind, part) == ("strategy", strategy) and why in message
        assert message.startswith('Price (product "x", shop "b", price 99) came before, at 1970-01-01T01:00:00Z')


def test_windows_having_and_the_number_of_documents():
    pattern = "SEQ(Price p, Price q) WHERE {[product]} WITHIN 90 min HAVING q.price > p.price"
    window, having, third = war(pattern, (0, 2), (0, 1), (0, 1, 2))
    assert window == ("window", "90 min", "it takes 2 h, and at most 90 min is allowed")
    assert having == ("condition", "HAVING q.price > p.price", "q.price is 99, p.price is 100")
    assert third[0] in ("together", "window")


def test_an_event_that_must_not_come_and_one_that_does_not():
    text = statements("PUBLISH unpatched")
    arriving = [*advisories(("A1", "p", 9, 1), ("A2", "q", 3, 1)), *releases(("p", "2", "", 2))]
    found, other = asked(text, "unpatched", arriving, [0], [1])
    assert (found.kind, found.part, found.nearest[0].items[0].id) == ("absent", "~(Release r)", arriving[2].id)
    assert other.kind == "condition"
    (found,) = asked(text, "unpatched", arriving[:1], [0], horizon=3 * 86_400 * SECOND)
    assert found.kind == "waiting"


def test_letters_that_are_missing_and_matches_that_overlap():
    definitions = (f"DEFINE EVENT {name} FROM S/{name.lower()}->x (k := x/k); " for name in "ABC")
    text = "".join(definitions) + "PATTERN SEQ(A, B, C) ERRORS <= 1 WITHIN 1 h NON OVERLAPPING PUBLISH near"
    given = [Document(f"{name}{at}", f"<{name}><k>1</k></{name}>", "S", at * SECOND) for at, name in enumerate("abca")]
    (found,) = asked(text, "near", given[:1], [0])
    assert (found.kind, found.part, found.message) == ("letters", "ERRORS <= 1", "2 letters are missing at least")
    overlapping, disordered = asked(text, "near", given, (1, 2), (3, 2))
    assert overlapping.kind == "overlapping"
    assert disordered.message.startswith("no word has them in this order")


def test_how_far_events_come():
    text = PRICE + "PATTERN SEQ(Price p, Price q) WHERE {[product] AND q.price > p.price} WITHIN 7 d PUBLISH war"
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe(text)
        engine.process(offers(*(("x", "a", price) for price in (5, 4, 3))))
        (funnel,) = query_funnel(select_of(engine), "war").funnels
        assert [(one.kind, one.part, one.found) for one in funnel.stages] == [
            ("event", "Price p", 3), ("event", "Price q", 3), ("run", "Price p", 3), ("run", "Price q", 0),
        ]  # fmt: skip
        assert funnel.failed is not None and funnel.failed.message.startswith("q.price > p.price: q.price is ")
