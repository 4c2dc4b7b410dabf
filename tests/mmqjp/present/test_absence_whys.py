"""Why what did not come is told, and why it is not: its partner, or that it is not decided yet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from mmqjp.present.item import fact_text, reason_facts
from mmqjp.present.output_why import OutputWhy, why_output
from mmqjp.present.query_lookup import partner_text
from mmqjp.present.why_not import explain_missing_output, query_funnel
from mmqjp.present.why_not_result import WhyNot
from tests.generate.absences import with_absences
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.mmqjp.present.test_event_why import select_of
from tests.oracle.evaluation import evaluate
from xscl.algebra.joins import NEGATED
from xscl.check_expressions import blocks
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Block, Join, Script

SECOND = 1_000_000
QUERIES = """
FROM S/item->a[./site->c] NOT FOLLOWED BY {c = d, 10 s} S/item->b[./site->d] PUBLISH silent;
FROM S/item->a[./title->t] NOT PRECEDED BY {near(t, u, 0.6), INF} S/item->b[./title->u] PUBLISH fresh;
FROM S/item->a[./title->t] NOT JOIN {lower-case(t) = u AND a/site != d OR t = v, 5 s}
  S/item->b[./title->u][./title->v][./site->d] PUBLISH alone;
SELECT t, w FROM (SELECT t, c FROM S/item->a[./title->t][./site->c] NOT FOLLOWED BY {c = d, 2 s} S/item[./site->d])
  FOLLOWED BY {c = e, 60 s} S/item->z[./site->e][./title->w] PUBLISH then
"""


def item(title: str, site: str) -> str:
    return f"<item><title>{title}</title><site>{site}</site></item>"


def lived(*documents: tuple[str, str, int]) -> Session:
    engine = Session("duckdb", lateness=0)
    engine.subscribe(QUERIES)
    engine.process([Document(id, xml, "S", time=time * SECOND) for id, xml, time in documents])
    return engine


DOCUMENTS = (
    ("a", item("Storm hits the coast", "x"), 0),
    ("b", item("The storm hits coast", "y"), 4),
    ("c", item("rain", "x"), 11),
    ("d", item("Rain", "z"), 13),
)


def because(engine: Session, query: str) -> dict[str, list[str]]:
    """Why there are outputs of a query, by their first documents."""
    found = {}
    for output in engine.outputs():
        if output.query == query:
            said = why_output(select_of(engine), output.id)
            assert OutputWhy.from_dict(json.loads(json.dumps(said.to_dict()))) == said
            found[output.documents[0]] = list(map(fact_text, reason_facts(said.match)))
    return found


def test_why_tells_what_nothing_had():
    with lived(*DOCUMENTS) as engine:
        assert because(engine, "silent") == {
            "a": ['nothing with site = site "x" followed within 10 s, until 1970-01-01T00:00:10Z']
        }
        assert because(engine, "fresh") == {
            "a": ['nothing with near(title "Storm hits the coast", title, 0.6) preceded it'],
            "c": ['nothing with near(title "rain", title, 0.6) preceded it'],
        }
        assert because(engine, "alone")["a"] == [
            'nothing with title = lower-case(title "Storm hits the coast") and a/site != site or with '
            'title = title "Storm hits the coast" came within 5 s, until 1970-01-01T00:00:05Z'
        ]
        assert because(engine, "then") == {
            "a": ['same site "x"', 'nothing with site = site "x" followed within 2 s, until 1970-01-01T00:00:02Z']
        }


@pytest.fixture(scope="module")
def engine() -> Iterator[Session]:
    """A store that no test changes."""
    with lived(*DOCUMENTS) as opened:
        yield opened


@pytest.mark.parametrize(
    ("query", "asked", "kind", "message", "shown"),
    [
        ("silent", "a", "output", "they give an output", "a"),
        ("silent", "c", "waiting", "when the watermark has come to 1970-01-01T00:00:21.000001Z; it is at", "c"),
        ("fresh", "b", "partner", "this is a partner", "ba"),
        ("fresh", "ba", "partner", "these documents are partners", "ab"),
        ("fresh", "bc", "order", "", "cb"),
        ("alone", "d", "partner", "this is a partner", "dc"),
        ("silent", "e", "document", "no kept document", ""),
        ("silent", "abc", "blocks", "3 documents are named", "abc"),
        ("then", "a", "query", "inside of a longer query", ""),
    ],
)
def test_why_not_tells_what_came(query: str, asked: str, kind: str, message: str, shown: str, engine: Session):
    found = explain_missing_output(select_of(engine), query, [*asked])
    assert WhyNot.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert (found.kind, message in found.message) == (kind, True), found
    assert [one.id for one in found.items] == [*shown]


@pytest.mark.parametrize(("query", "alone", "decided"), [("silent", 4, 1), ("fresh", 2, 2)])
def test_how_many_have_no_partner(query: str, alone: int, decided: int, engine: Session):
    (funnel,) = query_funnel(select_of(engine), query).funnels
    stages = [("stream", 4), ("pattern", 4), ("pattern", 4), ("alone", alone), ("decided", decided)]
    assert [(one.kind, one.found) for one in funnel.stages] == stages
    assert funnel.found == sum(output.query == query for output in engine.outputs()) == decided


def test_nothing_is_decided_so_far():
    with lived(*DOCUMENTS[:2]) as engine:
        (funnel,) = query_funnel(select_of(engine), "silent").funnels
    assert funnel.failed is not None and funnel.failed.kind == "decided"
    assert "what is not late still may" in funnel.failed.message


def test_all_have_a_partner():
    with Session("duckdb", lateness=0) as engine:
        engine.subscribe(
            "S/a->x NOT JOIN {x = y, 9 s} S/a->y PUBLISH lone; P/a->x NOT JOIN {x = y, 9 s} S/a->y PUBLISH none"
        )
        engine.process([Document(id, "<a>u</a>", "S", time=0) for id in "abc"])
        (funnel,) = query_funnel(select_of(engine), "lone").funnels
        (nothing,) = query_funnel(select_of(engine), "none").funnels
    assert funnel.failed is not None and funnel.failed.kind == "alone"
    assert "each of them has a partner" in funnel.failed.message
    assert nothing.failed is not None and nothing.failed.kind == "stream"


def test_what_the_left_input_lacks_comes_first():
    text = 'FROM S/item->a[./site = "q"][./title->t] NOT PRECEDED BY {t = u, 9 s} T/item->b[./title->u] PUBLISH n'
    with Session("duckdb", lateness=0) as engine:
        engine.subscribe(text)
        engine.process([Document("a", item("A", "x"), "S", time=0)])
        found = explain_missing_output(select_of(engine), "n", ["a"])
        assert (found.kind, './site = "q"' in found.message) == ("pattern", True), found


@pytest.mark.parametrize("seed", seeds(1, 400))
def test_what_is_said_turns_out(seed: int):
    """What waits is told at the end, and nothing else is. What is called a partner is one, as the oracle says."""
    rng = Random(seed)
    script, documents = random_case(seed, 6, 10)
    script = with_absences(rng, script, 100, inner=False)
    script = Script(tuple(filter(_is_plain, script.queries)), script.namespaces)
    documents = [Document(d.id, d.xml, d.stream, (d.t0, d.t1)) for d in documents]
    if not script.queries:
        return
    with Session("duckdb", lateness=rng.choice((0, 3 * SECOND)), max_outputs=None, max_matches=None) as engine:
        engine.subscribe(to_xscl(script))
        engine.process(documents)
        said = {
            (name, one.id): explain_missing_output(select_of(engine), name, [one.id])
            for name in dict.fromkeys(script.names())
            for one in documents
        }
        before = {(output.query, output.documents[0]) for output in engine.outputs()}
        engine.finish()
        after = {(output.query, output.documents[0]) for output in engine.outputs()}
    by_id = {one.id: one for one in documents}
    for key, found in said.items():
        if len(set(script.names())) < len(script.names()) or found.kind in ("dead letter", "document"):
            continue
        assert (found.kind == "output") == (key in before), (key, found)
        assert (key in after) == (found.kind in ("output", "waiting")), (key, found)
        if found.kind == "partner":
            text = partner_text(found.text)
            assert text is not None
            assert evaluate(parse_script(text), [by_id[one.id] for one in found.items]), (key, found)


def _is_plain(query: object) -> bool:
    source = query.source  # type: ignore[attr-defined]
    return (
        isinstance(source, Join)
        and source.op in NEGATED
        and len(blocks(source)) == 2
        and isinstance(source.left, Block)
        and query.once is None  # type: ignore[attr-defined]
    )
