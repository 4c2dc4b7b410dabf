"""Why documents give no output of a PATTERN, and how far events come: over stores of random worlds, and by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from mmqjp.present.why_not import explain_missing_output, query_funnel
from mmqjp.present.why_not_result import WhyNot
from tests.generate.documents import SECOND
from tests.generate.pattern_worlds import pattern_world
from tests.generate.seeds import seeds
from tests.mmqjp.answers.event_world import END
from tests.mmqjp.answers.test_event_worlds import SETTLE, batches, documents, ends, script
from tests.mmqjp.answers.test_feed_examples import advisories, offers, releases, statements
from tests.mmqjp.present.test_event_why import select_of
from tests.oracle.pattern_syntax import Near, Pattern


@pytest.mark.parametrize("seed", seeds(1, 400))
def test_there_is_no_output_just_when_something_is_in_the_way(seed: int) -> None:
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
    """What is said of documents by their places, for each question."""
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


def test_a_condition_and_its_values() -> None:
    cheaper = "[product] AND p[i].price < p[i-1].price AND p[i].shop != p[i-1].shop"
    found = war(f"SEQ(Price+ p[]) WHERE skip_till_next_match {{{cheaper}}} WITHIN 7 d", (1, 2), (0, 2))
    assert found[0] == (
        "condition",
        "p[i].shop != p[i-1].shop",
        'p[i].shop is "b", p[i-1].shop is "b", of Price (product "x", shop "b", price 98)',
    )
    assert found[1][:2] == ("strategy", "skip_till_next_match")


@pytest.mark.parametrize(
    ("strategy", "why"),
    [("skip_till_next_match", "the match so far takes it"), ("strict_contiguity", "nothing may come in between")],
)
def test_an_event_that_a_strategy_does_not_pass_over(strategy: str, why: str) -> None:
    ((kind, part, message),) = war(f"SEQ(Price p, Price q) WHERE {strategy} {{q.price < p.price}} WITHIN 7 d", (0, 2))
    assert (kind, part) == ("strategy", strategy) and why in message
    assert message.startswith('Price (product "x", shop "b", price 99) came before, at 1970-01-01T01:00:00Z')


def test_windows_having_and_the_number_of_documents() -> None:
    pattern = "SEQ(Price p, Price q) WHERE {[product]} WITHIN 90 min HAVING q.price > p.price"
    window, having, third = war(pattern, (0, 2), (0, 1), (0, 1, 2))
    assert window == ("window", "90 min", "it takes 2 h, and at most 90 min is allowed")
    assert having == ("condition", "HAVING q.price > p.price", "q.price is 99, p.price is 100")
    assert third[0] in ("together", "window")


def test_an_event_that_must_not_come_and_one_that_does_not() -> None:
    text = statements("PUBLISH unpatched")
    arriving = [*advisories(("A1", "p", 9, 1), ("A2", "q", 3, 1)), *releases(("p", "2", "", 2))]
    found, other = asked(text, "unpatched", arriving, [0], [1])
    assert (found.kind, found.part, found.nearest[0].items[0].id) == ("absent", "~(Release r)", arriving[2].id)
    assert other.kind == "condition"
    (found,) = asked(text, "unpatched", arriving[:1], [0], horizon=3 * 86_400 * SECOND)
    assert found.kind == "waiting"


def test_letters_that_are_missing_and_matches_that_overlap() -> None:
    definitions = (f"DEFINE EVENT {name} FROM S/{name.lower()}->x (k := x/k); " for name in "ABC")
    text = "".join(definitions) + "PATTERN SEQ(A, B, C) ERRORS <= 1 WITHIN 1 h NON OVERLAPPING PUBLISH near"
    given = [Document(f"{name}{at}", f"<{name}><k>1</k></{name}>", "S", at * SECOND) for at, name in enumerate("abca")]
    (found,) = asked(text, "near", given[:1], [0])
    assert (found.kind, found.part, found.message) == ("letters", "ERRORS <= 1", "2 letters are missing at least")
    overlapping, disordered = asked(text, "near", given, (1, 2), (3, 2))
    assert overlapping.kind == "overlapping"
    assert disordered.message.startswith("no word has them in this order")


def test_how_far_events_come() -> None:
    text = PRICE + "PATTERN SEQ(Price p, Price q) WHERE {[product] AND q.price > p.price} WITHIN 7 d PUBLISH war"
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe(text)
        engine.process(offers(*(("x", "a", price) for price in (5, 4, 3))))
        (funnel,) = query_funnel(select_of(engine), "war").funnels
        assert [(one.kind, one.part, one.found) for one in funnel.stages] == [
            ("event", "Price p", 3), ("event", "Price q", 3), ("run", "Price p", 3), ("run", "Price q", 0),
        ]  # fmt: skip
        assert funnel.failed is not None and funnel.failed.message.startswith("q.price > p.price: q.price is ")
