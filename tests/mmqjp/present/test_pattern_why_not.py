"""Why documents give no output of a PATTERN, and how far events come: over stores of random worlds, and by hand."""

from __future__ import annotations

import json
from random import Random

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from mmqjp.present.why_not import explain_missing_output, query_funnel
from mmqjp.present.why_not_result import WhyNot
from tests.generate.documents import SECOND
from tests.generate.pattern_worlds import pattern_world
from tests.generate.seeds import seeds
from tests.mmqjp.answers.test_event_worlds import SETTLE, batches, documents, script
from tests.mmqjp.answers.test_feed_examples import advisories, offers, releases, statements
from tests.mmqjp.present.test_event_why import select_of
from tests.oracle.pattern_syntax import Near, Pattern

END = 10**7 * SECOND


@pytest.mark.parametrize("seed", seeds(1, 400))
def test_there_is_no_output_just_when_something_is_in_the_way(seed: int) -> None:
    rng, found = Random(seed), pattern_world(seed, templates=4, statements=5, most=6)
    with Session("duckdb", settle=SETTLE, quiet=True) as engine:
        names = engine.subscribe(script(found), add=True)
        made = documents(found)
        for batch in batches(rng, made):
            engine.process(batch)
        engine.process([Document(f"end {name}", "<end/>", f"documents_{name}", (END, END)) for name in found.given])
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


def asked(text: str, name: str, arriving: list[Document], *wanted: int, horizon: int = END) -> WhyNot:
    """What is said of documents by their places."""
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe(text)
        engine.process(arriving)
        engine.process([Document(f"end {one}", "<end/>", one, horizon) for one in {doc.stream for doc in arriving}])
        return explain_missing_output(select_of(engine), name, [arriving[place].id for place in wanted])


def war(text: str, *wanted: int, given: str = "a100 b99 b98 a97") -> tuple[str, str, str]:
    offered = [("x", one[0], int(one[1:])) for one in given.split()]
    found = asked(text, "war", offers(*offered), *wanted)
    return found.kind, found.part, found.message


PRICE = "DEFINE EVENT Price FROM prices//offer->o (product := o/product, shop := o/shop, price := number(o/price)); "
CHEAPER = "[product] AND p[i].price < p[i-1].price AND p[i].shop != p[i-1].shop"


def test_a_condition_and_its_values() -> None:
    text = PRICE + "PATTERN SEQ(Price+ p[]) WHERE skip_till_next_match {" + CHEAPER + "} WITHIN 7 d PUBLISH war"
    assert war(text, 1, 2) == (
        "condition",
        "p[i].shop != p[i-1].shop",
        'p[i].shop is "b", p[i-1].shop is "b", of Price (product "x", shop "b", price 98)',
    )
    assert war(text, 0, 2)[:2] == ("strategy", "skip_till_next_match")


def test_an_event_that_a_strategy_does_not_pass_over() -> None:
    text = PRICE + "PATTERN SEQ(Price p, Price q) WHERE skip_till_next_match {q.price < p.price} WITHIN 7 d PUBLISH war"
    kind, part, message = war(text, 0, 2)
    assert (kind, part) == ("strategy", "skip_till_next_match")
    assert message.startswith('Price (product "x", shop "b", price 99) came before, at 1970-01-01T01:00:00Z')
    strict = text.replace("skip_till_next_match", "strict_contiguity")
    assert war(strict, 0, 2)[1:] == (
        "strict_contiguity",
        message.replace("the match so far takes it", "nothing may come in between"),
    )


def test_windows_having_and_the_number_of_documents() -> None:
    text = PRICE + "PATTERN SEQ(Price p, Price q) WHERE {[product]} WITHIN 90 min HAVING q.price > p.price PUBLISH war"
    assert war(text, 0, 2) == ("window", "90 min", "it takes 2 h, and at most 90 min is allowed")
    assert war(text, 0, 1) == ("condition", "HAVING q.price > p.price", "q.price is 99, p.price is 100")
    assert war(text, 0, 1, 2)[0] in ("together", "window")


def test_an_event_that_must_not_come_and_one_that_does_not() -> None:
    text = statements("PUBLISH unpatched")
    arriving = [*advisories(("A1", "p", 9, 1), ("A2", "q", 3, 1)), *releases(("p", "2", "", 2))]
    found = asked(text, "unpatched", arriving, 0)
    assert (found.kind, found.part, found.nearest[0].items[0].id) == ("absent", "~(Release r)", arriving[2].id)
    assert asked(text, "unpatched", arriving, 1).kind == "condition"
    found = asked(text, "unpatched", arriving[:1], 0, horizon=3 * 86_400 * SECOND)
    assert found.kind == "waiting"


def test_letters_that_are_missing_and_matches_that_overlap() -> None:
    text = (
        "DEFINE EVENT A FROM S/a->x (k := x/k); DEFINE EVENT B FROM S/b->x (k := x/k); "
        "DEFINE EVENT C FROM S/c->x (k := x/k); "
        "PATTERN SEQ(A, B, C) ERRORS <= 1 WITHIN 1 h NON OVERLAPPING PUBLISH near"
    )
    given = [Document(f"{name}{at}", f"<{name}><k>1</k></{name}>", "S", at * SECOND) for at, name in enumerate("abca")]
    found = asked(text, "near", given[:1], 0)
    assert (found.kind, found.part, found.message) == ("letters", "ERRORS <= 1", "2 letters are missing at least")
    assert asked(text, "near", given, 1, 2).kind == "overlapping"
    assert asked(text, "near", given, 3, 2).message.startswith("no word has them in this order")


def test_how_far_events_come() -> None:
    text = PRICE + "PATTERN SEQ(Price p, Price q) WHERE {[product] AND q.price > p.price} WITHIN 7 d PUBLISH war"
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe(text)
        engine.process([*offers(*(("x", "a", price) for price in (5, 4, 3)))])
        (funnel,) = query_funnel(select_of(engine), "war").funnels
        assert [(one.kind, one.part, one.found) for one in funnel.stages] == [
            ("event", "Price p", 3), ("event", "Price q", 3), ("run", "Price p", 3), ("run", "Price q", 0),
        ]  # fmt: skip
        assert funnel.failed is not None and funnel.failed.message.startswith("q.price > p.price: q.price is ")
