"""What `why` and `why-not` say: of joins, of what did not come, and of event queries."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.answers.output import Output
from mmqjp.documents.record import record_of
from mmqjp.engine import Session
from mmqjp.explain.reasons import story_links
from mmqjp.explain.terms import ReadableQuery, as_text
from mmqjp.present import newest, output_why, query_lookup
from mmqjp.present.item import (
    IN_UTC,
    UNKNOWN,
    Fact,
    ShownMatch,
    WhyNot,
    fact_text,
    filters,
    link_fact,
    reason_facts,
    record_items,
    timings,
)
from mmqjp.present.item import events as shown_events
from mmqjp.present.output_why import Fed, NoOutput, OutputWhy, why_output
from mmqjp.present.why_not import MOST_LISTED, QueryFunnels, explain_missing_output, query_funnel
from mmqjp.tables.lookup import SelectFn, document_rows_by_id, quote_literal
from tests.generate.absences import with_absences
from tests.generate.documents import SECOND, chance
from tests.generate.patterns import pattern_world
from tests.generate.seeds import at_length, seeds
from tests.generate.strategies import random_case
from tests.mmqjp.answers import event_world
from tests.mmqjp.answers import test_feed_examples as examples
from tests.mmqjp.answers.event_world import DEFINITIONS, END, Doc
from tests.mmqjp.answers.test_event_worlds import SETTLE, batches, documents, ends, script
from tests.mmqjp.answers.test_feed_examples import advisories, corrected, elements, offers, page, releases, statements
from tests.oracle.evaluation import evaluate
from tests.oracle.pattern_syntax import Near, Pattern
from tests.pattern_stage.defined import defined_events
from xscl.algebra.joins import NEGATED
from xscl.check_expressions import blocks
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Block, Join, Query, Script

HOUR = 3_600_000_000
PAIRS = (
    'FROM S/item->a[./kind = "news"][./title->t1][./site->c1] '
    "FOLLOWED BY {t1 = t2 AND c1 = c2 AND a/lang != b/lang, 1 h} S/item->b[./title->t2][./site->c2] PUBLISH pairs"
)


def select_of(engine: Session) -> SelectFn:
    return lambda sql: engine.question(sql).answer()


def entry(title: str = "A", site: str = "x", lang: str = "en", kind: str = "news", extra: str = "") -> str:
    language = f"<lang>{lang}</lang>" if lang else ""
    return f"<item><title>{title}</title><site>{site}</site>{language}<kind>{kind}</kind>{extra}</item>"


@contextmanager
def store(script: str, *documents: tuple[str, str, int], **options: Any) -> Iterator[Session]:
    """A store with queries and documents on S, each with its id, XML and time in seconds."""
    with Session("duckdb", **options) as engine:
        engine.subscribe(script)
        engine.process([Document(id, xml, time=time * SECOND) for id, xml, time in documents])
        yield engine


def why_not(engine: Session, name: str, *asked: str) -> WhyNot:
    found = explain_missing_output(select_of(engine), name, asked)
    assert WhyNot.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    return found


def why(engine: Session, asked: str) -> OutputWhy:
    found = why_output(select_of(engine), asked)
    assert OutputWhy.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    return found


def said(script: str, name: str, asked: Sequence[str], *documents: tuple[str, str, int]) -> WhyNot:
    with store(script, *documents) as engine:
        return why_not(engine, name, *asked)


IN_THE_WAY = [
    ((entry(), 0), (entry(lang="de"), 60), "output", "they give an output", ""),
    ((entry(), 60), (entry(lang="de"), 0), "output", "they give an output", ""),
    ((entry(kind="x"), 0), (entry(lang="de", kind="x"), 60), "pattern", './kind = "news" does not match', '"x"'),
    ((entry(), 0), (entry(lang=""), 60), "asked", "there is no b/lang in the document", "in the predicate or SELECT"),
    ((entry(), 0), (entry("a", lang="de"), 60), "equality", 'title "A" and title "a" differ only in case', "lower"),
    ((entry("A  b"), 0), (entry("A b", lang="de"), 60), "equality", "differ only in spaces", "use normalize-space"),
    ((entry(site="http://a.b:80/p"), 0), (entry(site="http://a.b/p", lang="de"), 9), "equality", "address", "canon"),
    ((entry(), 0), (entry("C", lang="de"), 60), "equality", 'title "A" on the left, title "C" on the right', ""),
    ((entry(), 0), (entry(lang="de"), 0), "order", "begins just when the left one ends", "JOIN takes equal times"),
    ((entry(), 0), (entry(lang="de"), 7200), "window", "they are 2 h apart, and the window is 1 h", ""),
    ((entry(), 0), (entry(), 60), "residual", 'a/lang != b/lang is false: a/lang is "en", b/lang is "en"', ""),
]  # fmt: skip
"""Two documents with their times, and what is said of them."""


@pytest.fixture(scope="module")
def pairs():
    sides = [(f"{side}{n}", *pair["lr".index(side)]) for n, pair in enumerate(IN_THE_WAY) for side in "lr"]
    with store(PAIRS, *sides) as engine:
        yield engine


@pytest.mark.parametrize("number", range(len(IN_THE_WAY)))
def test_the_first_thing_in_the_way_is_told(number, pairs):
    left, right, kind, message, hint = IN_THE_WAY[number]
    asked = [f"l{number}", f"r{number}"]
    found = why_not(pairs, "pairs", *asked)
    assert (found.kind, message in found.message, hint in found.hint) == (kind, True, True), found
    assert [one.id for one in found.items] == (asked if left[1] <= right[1] else asked[::-1])
    if kind == "output":
        assert len(found.outputs) == 1 and not found.stages
    else:
        assert not found.stages[-1].found and all(stage.found for stage in found.stages[:-1])


def test_what_no_pair_of_the_store_shows():
    two = "<item><e><title>A</title><site>y</site></e><e><title>B</title><site>x</site></e></item>"
    joined = "{t1 = t2 AND c1 = c2, INF} S/item->b[./title->t2][./site->c2]"
    script = f"FROM S//e->a[./title->t1][./site->c1] JOIN {joined} PUBLISH p"
    found = said(script, "p", ["l", "r"], ("l", two, 0), ("r", entry("A", "x"), 1))
    assert (found.kind, found.part) == ("together", "t1 = t2 and c1 = c2"), "not for the same nodes"
    script = "FROM S/item->a[./title->t] JOIN {t = u, INF} S/item->b[./title->u] PUBLISH p"
    assert said(script, "p", ["l", "l"], ("l", entry(), 0)).kind == "different"
    many = "".join(f"<title>{number}</title><site>{number}</site>" for number in range(3_000))
    large = f"<item><kind>news</kind><lang>de</lang>{many}</item>"
    found = said(PAIRS, "pairs", ["l", "r"], ("l", large, 0), ("r", entry(), 1))
    assert (found.kind, found.message) == ("too large", "a document is too large to search, or has too many bindings")


def test_other_streams_alternatives_and_mirrored_matches():
    script = 'FROM S/a->x[./k->k] JOIN {x = y OR k = y AND x != "v1", INF} T/b->y PUBLISH p'
    with store(script, ("l", "<a>v<k>1</k></a>", 1), ("r", "<b>1</b>", 2)) as engine:
        engine.process([Document("r2", "<b>1</b>", "T", 2)])
        one, other = why_not(engine, "p", "l", "r"), why_not(engine, "p", "l", "r2")
    assert (one.kind, one.message) == ("stream", "the document is of stream S, not of T")
    assert (other.kind, other.part) == ("residual", 'x != "v1"')
    script = "FROM S/item->a[./title->t] JOIN UNORDERED {t = u, INF} S/item->b[./title->u] PUBLISH p"
    documents = (("l", entry(), 5), ("r", entry(), 1))
    one, other = (said(script, "p", asked, *documents) for asked in (["l", "r"], ["r", "l"]))
    assert one.kind == other.kind == "output" and one.outputs == other.outputs
    assert [item.id for item in one.items] == ["r", "l"]


def test_queries_that_are_unknown_removed_paused_or_newer():
    with Session("duckdb", now=lambda: 1_700_000_000_000_000) as engine:
        engine.subscribe("FROM S/a PUBLISH old_name; FROM S/a PUBLISH gone; FROM S/a PUBLISH asleep")
        engine.unsubscribe("gone")
        engine.process([Document("before", "<a/>", time=1)])
        engine.subscribe("FROM S/a PUBLISH newer")
        engine.pause("asleep")
        engine.process([Document("after", "<a/>", time=2)])
        unknown, gone = why_not(engine, "old_nam", "after"), why_not(engine, "gone", "after")
        assert (unknown.kind, unknown.hint) == ("query", "did you mean old_name?")
        assert (gone.kind, gone.message) == ("query", "the query gone was removed at 2023-11-14T22:13:20Z")
        kinds = {
            name: [why_not(engine, name, asked).kind for asked in ("before", "after")] for name in ("asleep", "newer")
        }
        assert kinds == {"asleep": ["output", "paused"], "newer": ["newer", "output"]}


def test_documents_that_are_unknown_refused_dropped_or_several(tmp_path):
    options: dict[str, Any] = {"lateness": 0, "belated": "drop", "now": lambda: 20 * HOUR}
    with Session("duckdb", state=tmp_path, **options) as engine:
        engine.subscribe("FROM S/a->x FOLLOWED BY {x = y, 6 h} S/b->y PUBLISH p")
        for id, hour in (("old", 1), ("new", 20), ("late", 2)):
            engine.process([Document(id, "<a>v</a>", time=hour * HOUR)])
        engine.process([Document("bad", "<a", time=20 * HOUR), Document("new", "<a/>", "T", 20 * HOUR)])
        engine.prune(1 * HOUR)
        found = {asked: why_not(engine, "p", asked) for asked in ("old", "late", "bad", "none", "it's", "new")}
    *kinds, kind_of_two = (one.kind for one in found.values())
    assert kinds == ["pruned", "dead letter", "dead letter", "document", "document"]
    assert kind_of_two in ("stream", "pattern")
    assert "late: " in found["late"].message and "rejected" in found["bad"].message


def test_a_document_may_be_named_by_its_title_or_address_if_only_one_has_it():
    link = '<link href="https://example.org/{}"/>'
    documents = (
        ("l", entry("The pier &amp; the  sea", extra=link.format("a?b=1&amp;c=2")), 0),
        ("r", entry("The quay", extra=link.format("b")), 1),
        ("s", entry("The quay", extra=link.format("c")), 2),
    )
    with store(PAIRS, *documents) as engine:
        for asked in ("The pier & the sea", "https://example.org/a?b=1&c=2"):
            assert why_not(engine, "pairs", asked).items[0].id == "l"
        several = why_not(engine, "pairs", "The quay")
        assert several.kind == "document" and "2 documents are 'The quay'" in several.message
        assert why_not(engine, "pairs", "quay").kind == "document"
        assert why_not(engine, "pairs", "l", "r", "s").kind == "blocks"


def test_the_nearest_to_one_document_alone_are_told():
    """docs/why.md has an example of other texts."""
    documents = (("l", entry(), 0), ("r", entry(lang="de"), 3 * 3600), ("s", entry(lang="de"), 2 * 3600))
    found = said(PAIRS, "pairs", ["l"], *documents)
    assert found.kind == "window" and "the nearest are 2 h apart" in found.message
    assert [[one.id for one in near.items] for near in found.nearest] == [["l", "s"], ["l", "r"]]


@pytest.mark.parametrize("most", [200_000, 100])
def test_texts_that_are_most_alike_are_told_however_many_there_are(most, monkeypatch):
    monkeypatch.setattr("mmqjp.explain.evidence.MOST_PAIRS", most)
    titles = [
        "Tram depot burns in Porto",
        "Fire destroys the tram depot",
        "Council raises the tram fares",
        "Rain in Porto",
    ]
    titles += [f"The weather in place {number}" for number in range(20)]
    documents = [(str(n), entry(title), n * 3600) for n, title in enumerate(titles)]
    alike, apart, strange = (
        f"S//item->a[./title->t] JOIN {{similar({left}, u, {part}), {hours} h}} S//item->b[./title->u] PUBLISH {name}"
        for name, left, part, hours in (("alike", "t", 0.5, 9), ("apart", "t", 0.3, 0), ("strange", "a/lang", 1, 9))
    )
    with store(f"{alike}; {apart}; {strange}", *documents) as engine:
        found = why_not(engine, "alike", "1")
        funnels = (query_funnel(select_of(engine), name).funnels[0].failed for name in ("apart", "strange"))
        late, unlike = filter(None, funnels)
    texts = '"Fire destroys the tram depot" and "Tram depot burns in Porto"'
    assert found.message == f"{texts} share depot, tram: 0.35 of the weight of their words"
    assert [{item.id for item in near.items} - {"1"} for near in found.nearest][:2] == [{"0"}, {"2"}]
    assert (late.kind, unlike.kind) == ("window", "words") and late.message.startswith("the nearest are 1 h apart")
    none = "share no words: 0.00 of the weight of their words", "no text of one side has a word in common with one of"
    assert none[most < 200_000] in unlike.message


def test_the_pairs_by_which_documents_joined_a_story():
    """The last document makes two stories one."""
    titles = "tram depot burns", "fire at the tram depot", "dog show in Porto", "Porto dog show prizes", "tram dog show"
    text = "FROM S//item->a[./title->t] JOIN {similar(t, u, 0.2), 9 d} S//item->b[./title->u] PUBLISH tells"
    with store(text, *((str(n), entry(title), n) for n, title in enumerate(titles))) as engine:
        rows = sorted(document_rows_by_id(select_of(engine), {str(n) for n in range(5)}), key=lambda row: row["id"])
        match = ShownMatch(Output("q", 0, 0, (), (), {}, ""), tuple(record_items([record_of(row) for row in rows])))
        found = list(story_links(ReadableQuery.of(text), list(map(record_of, rows)), 1_000_000))
    assert [(member, other) for member, other, _ in found] == [(1, 0), (3, 2), (4, 0), (4, 2)]
    assert fact_text(link_fact(match, *found[0])) == (
        'fire at the tram depot with tram depot burns: similar(title "tram depot burns", '
        'title "fire at the tram depot", 0.2)'
    )


def test_ids_of_outputs_name_published_documents_and_who_told_before():
    script = "FROM S/a->x PUBLISH p; FROM p//a->l FOLLOWED BY {l = r, 5 s} S/c->r PUBLISH q"
    documents = (("a", "<a>v</a>", 0), ("c", "<c>v</c>", 9), ("d", "<c>v</c>", 4))
    with store(script, *documents) as engine:
        (id,) = why_not(engine, "p", "a").outputs
        assert why_not(engine, "q", id, "c").kind == "window"
        assert why_not(engine, "q", id, "d").kind == "output"
        assert why_not(engine, "q", "a", "d").kind == "stream"
    script = "FROM S/a->x[./k->k] PUBLISH p ONCE PER (k) WITHIN 5 s"
    keyed = [(f"a{key}", f"<a>1<k>{key}</k></a>", 0) for key in range(5)]
    later = [(id, f"<a>{id}<k>3</k></a>", time) for id, time in (("b", 4), ("c", 9), ("d", 12))]
    with store(script, *keyed, *later) as engine:
        first, found, alone, last = (why_not(engine, "p", id) for id in ("a3", "b", "c", "d"))
    assert [one.kind for one in (first, found, alone, last)] == ["output", "told", "output", "told"]
    assert found.outputs == first.outputs and last.outputs == alone.outputs
    told = f"the output {first.outputs[0]}, which ends at 1970-01-01T00:00:00Z, reported it before"
    assert found.message == f"ONCE PER: {told}"


@pytest.mark.soak
def test_spark_says_the_same(spark, tmp_path):
    documents = (("l", entry("The old pier"), 0), ("r", entry("The Old Pier", lang="de"), 9), ("it's\\", entry(), 5))
    asked = (["l", "r"], ["l"], ["it's\\", "r"], ["The old pier", "r"], ["none"])
    with store(PAIRS, *documents) as engine:
        expected = [why_not(engine, "pairs", *some).to_dict() for some in asked]
    with Session(spark, state=tmp_path) as engine:
        engine.subscribe(PAIRS)
        engine.process([Document(id, xml, time=time * SECOND) for id, xml, time in documents])
        assert [why_not(engine, "pairs", *some).to_dict() for some in asked] == expected
    with Session("duckdb", state=tmp_path, read_only=True) as reader:
        assert [why_not(reader, "pairs", *some).to_dict() for some in asked] == expected


SCRIPT = """
FROM S/a->x[./k->k][./t = "news"] FOLLOWED BY {k = l AND x/n != y/n, 10 s} S/b->y[./l->l] PUBLISH p;
FROM S/a->x[./k->k][./t = "news"] FOLLOWED BY {k = l AND x/n = y/n, 10 s} S/b->y[./l->l] PUBLISH tied;
FROM S/a PUBLISH u; FROM S/b PUBLISH u
"""
SOME = [
    ("<a><k>u</k><t>news</t><n>1</n></a>", 0), ("<a><k>v</k><t>news</t><n>1</n></a>", 0),
    ("<a><k>v</k><t>blog</t><n>1</n></a>", 0), ("<b><l>v</l><n>1</n></b>", 0), ("<b><l>v</l><n>2</n></b>", 3),
    ("<b><l>v</l><n>2</n></b>", 30), ("<b><l>v</l><n>1</n></b>", 4), ("<b><l>w</l><n>1</n></b>", 4),
]  # fmt: skip
STAGES = [
    ("S", 8), ("/a", 3), ("./k", 3), ('./t = "news"', 2), ("x/n", 2), ("S", 8), ("/b", 5), ("./l", 5), ("y/n", 5),
    ("k = l", 1), ("FOLLOWED BY", 3), ("10 s", 2), ("x/n != y/n", 1),
]  # fmt: skip


@pytest.fixture(scope="module")
def filled():
    with store(SCRIPT, *((f"d{n}", *one) for n, one in enumerate(SOME))) as engine:
        yield engine


def funnel_of(engine: Session, name: str = "p", **options: int) -> QueryFunnels:
    found = query_funnel(select_of(engine), name, **options)
    assert QueryFunnels.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    return found


def test_each_stage_counts_what_gets_past_it(filled, monkeypatch):
    found = funnel_of(filled)
    (funnel,) = found.funnels
    assert [(stage.part, stage.found) for stage in funnel.stages if stage.part != "./t"] == STAGES
    (equality,) = (stage for stage in funnel.stages if stage.kind == "equality")
    assert (equality.left, equality.right, equality.unit) == (2, 2, "values")
    assert (funnel.found, funnel.failed, found.outputs, found.documents, funnel.ties) == (1, None, 1, 8, 0)
    assert funnel_of(filled, "tied").funnels[0].ties == filled.ties()["tied"] == 1
    union = funnel_of(filled, "u")
    assert [funnel.found for funnel in union.funnels] == [3, 5] and union.outputs == 8
    assert funnel_of(filled, most=3).documents == 3
    monkeypatch.setattr(query_lookup, "MOST_CHARACTERS_OF_ONE", 30)
    found = funnel_of(filled)
    assert (found.documents, found.left_out) == (5, 3)


def test_documents_that_a_query_does_not_see_are_counted_apart():
    with Session("duckdb") as engine:
        engine.process([Document(f"d{n}", "<b/>", time=n) for n in range(8)])
        engine.subscribe("FROM S/b PUBLISH later")
        engine.process([Document("new", "<b/>", time=99 * SECOND)])
        engine.pause("later", "for now")
        engine.process([Document("newest", "<b/>", time=99 * SECOND)])
        (funnel,) = funnel_of(engine, "later").funnels
        assert (funnel.unseen, funnel.found, funnel.paused) == (9, 1, "for now")


QUERIES = """
FROM S/item->a[./site->c] NOT FOLLOWED BY {c = d, 10 s} S/item->b[./site->d] PUBLISH silent;
FROM S/item->a[./title->t] NOT PRECEDED BY {near(t, u, 0.6), INF} S/item->b[./title->u] PUBLISH fresh;
FROM S/item->a[./title->t] NOT JOIN {lower-case(t) = u AND a/site != d OR t = v, 5 s}
  S/item->b[./title->u][./title->v][./site->d] PUBLISH alone;
SELECT t, w FROM (SELECT t, c FROM S/item->a[./title->t][./site->c] NOT FOLLOWED BY {c = d, 2 s} S/item[./site->d])
  FOLLOWED BY {c = e, 60 s} S/item->z[./site->e][./title->w] PUBLISH then
"""


DOCUMENTS = (
    ("a", entry("Storm hits the coast"), 0),
    ("b", entry("The storm hits coast", "y"), 4),
    ("c", entry("rain"), 11),
    ("d", entry("Rain", "z"), 13),
)


def because(engine: Session, query: str) -> dict[str, list[str]]:
    found = {}
    for output in engine.outputs():
        if output.query == query:
            said = why(engine, output.id)
            found[output.documents[0]] = list(map(fact_text, reason_facts(said.match)))
            for condition in said.match.to_dict()["why"]["conditions"]:  # texts are in one part up to the next node
                assert (str, str) not in pairwise(map(type, condition["parts"]))
    return found


@pytest.fixture(scope="module")
def engine():
    with store(QUERIES, *DOCUMENTS, lateness=0) as opened:
        yield opened


def test_why_tells_what_nothing_had(engine):
    followed = 'nothing with site = site "x" followed within {} s, until 1970-01-01T00:00:{}Z'
    assert because(engine, "silent") == {"a": [followed.format(10, 10)]}
    assert because(engine, "fresh") == {
        "a": ['nothing with near(title "Storm hits the coast", title, 0.6) preceded it'],
        "c": ['nothing with near(title "rain", title, 0.6) preceded it'],
    }
    assert because(engine, "alone")["a"] == [
        'nothing with title = lower-case(title "Storm hits the coast") and site "x" != site or with '
        'title = title "Storm hits the coast" came within 5 s, until 1970-01-01T00:00:05Z'
    ]
    assert because(engine, "then") == {"a": ['same site "x"', followed.format(2, "02")]}


@pytest.mark.parametrize(
    ("query", "asked", "kind", "message", "shown"),
    [
        ("silent", "a", "output", "they give an output", "a"),
        ("silent", "c", "waiting", "when the watermark reaches 1970-01-01T00:00:21.000001Z; it is at", "c"),
        ("fresh", "b", "partner", "this is a partner", "ba"),
        ("fresh", "ba", "partner", "these documents are partners", "ba"),
        ("fresh", "bc", "words", "0 of 5 words in common", "bc"),
        ("alone", "d", "partner", "this is a partner", "dc"),
        ("silent", "e", "document", "no stored document", ""),
        ("silent", "abc", "blocks", "but the query reads 2: 1 in an output, 1 in a partner", "abc"),
        ("then", "a", "query", "inside a longer query", ""),
    ],
)
def test_why_not_tells_what_came(query, asked, kind, message, shown, engine):
    found = why_not(engine, query, *asked)
    assert (found.kind, message in found.message) == (kind, True), found
    assert [one.id for one in found.items] == [*shown]


def test_what_is_first_in_the_way_of_all():
    with store(QUERIES, *DOCUMENTS[:2], lateness=0) as engine:
        (undecided,) = funnel_of(engine, "silent").funnels
    with Session("duckdb", lateness=0) as engine:
        engine.subscribe(
            "S/a->x NOT JOIN {x = y, 9 s} S/a->y PUBLISH lone; P/a->x NOT JOIN {x = y, 9 s} S/a->y PUBLISH none;"
            'S/item->a[./site = "q"][./title->t] NOT PRECEDED BY {t = u, 9 s} T/item->b[./title->u] PUBLISH n'
        )
        engine.process([*(Document(id, "<a>u</a>", time=0) for id in "abc"), Document("i", entry(), time=0)])
        ((partners,), (nothing,)) = (funnel_of(engine, name).funnels for name in ("lone", "none"))
        found = why_not(engine, "n", "i")
    assert (found.kind, './site = "q"' in found.message) == ("pattern", True), found
    failed = [one.failed for one in (undecided, partners, nothing) if one.failed is not None]
    assert [one.kind for one in failed] == ["decided", "alone", "stream"]
    assert "something in time still may" in failed[0].message and "each of them has a partner" in failed[1].message


@pytest.mark.parametrize("seed", seeds(1, 400))
def test_what_is_said_turns_out(seed):
    """What waits is told at the end, and nothing else is. What is called a partner is one, as the oracle says."""
    rng = Random(seed)
    script, documents = random_case(seed, 6, 10)
    script = with_absences(rng, script, 100, inner=False)
    plain = list(filter(_is_plain, script.queries))
    published = {query.publish for query in plain}
    read = [query for query in plain if published.isdisjoint(block.stream for block in blocks(query.source))]
    script = Script(tuple(read), script.namespaces)
    documents = [Document(d.id, d.xml, d.stream, (d.t0, d.t1)) for d in documents]
    if not script.queries:
        return
    with Session("duckdb", lateness=rng.choice((0, 3 * SECOND)), max_outputs=None, max_matches=None) as engine:
        engine.subscribe(to_xscl(script))
        engine.process(documents)
        said = {
            (name, one.id): why_not(engine, name, one.id) for name in dict.fromkeys(script.names()) for one in documents
        }
        before = {(output.query, output.documents[0]) for output in engine.outputs()}
        engine.finish()
        after = {(output.query, output.documents[0]) for output in engine.outputs()}
    by_id = {(one.id, one.stream): one for one in reversed(documents)}  # the first counts
    for key, found in said.items():
        if len(set(script.names())) < len(script.names()) or found.kind in ("dead letter", "document"):
            continue
        assert (found.kind == "output") == (key in before), (key, found)
        assert (key in after) == (found.kind in ("output", "waiting")), (key, found)
        if found.kind == "partner":
            assert evaluate(
                parse_script(partner_text(found.text)), [by_id[one.id, one.stream] for one in found.items]
            ), (key, found)


def partner_text(text: str) -> str:
    """The query whose matches are those of an absence's left input with its partners."""
    script = parse_script(text, stored=True)
    query = script.queries[0]
    assert isinstance(query.source, Join)
    source = replace(query.source, op=NEGATED[query.source.op])
    if query.source.op == "NOT PRECEDED BY":
        source = replace(source, left=source.right, right=source.left)
    return to_xscl(replace(script, statements=(replace(query, source=source),)))


def _is_plain(query: Query) -> bool:
    source = query.source
    is_absence = isinstance(source, Join) and source.op in NEGATED and isinstance(source.left, Block)
    return is_absence and len(blocks(source)) == 2 and query.once is None


def process(engine: Session, arrived: list[Doc]) -> None:
    engine.process([Document(one.id, one.xml, one.stream, (one.t0, one.t1)) for one in arrived])


def test_what_is_said_is_what_the_store_has(tmp_path):
    seen = Counter[str]()
    for seed in {*seeds(1, 400), 3_300_000}:  # that one explains an output from before a pause
        check(seed, tmp_path / str(seed), seen)
    kinds = {"output", "event", "late", "unseen", "order", "condition", "filtered", "consumed", "waiting"}
    assert not at_length() or seen.keys() >= kinds


def check(seed: int, state: Path, seen: Counter[str]) -> None:
    rng = Random(seed)
    made, arrived = event_world.statements(rng), event_world.documents(rng, 30)
    with Session("duckdb", state=state, settle=3 * SECOND, quiet=True) as engine:
        engine.subscribe(DEFINITIONS)
        arriving = list(event_world.batches(rng, arrived, 14 * SECOND))
        came = {name: 0 if name in ("one", "two") else rng.randrange(len(arriving) // 2) for name in made}
        known: dict[str, str] = {}
        paused_at, resumed_at = sorted(rng.sample(range(len(arriving)), 2))
        for number, batch in enumerate(arriving):
            for name in (name for name in made if came[name] == number):
                (known[name],) = engine.subscribe(made[name].text(), add=True)
            if number == paused_at and "four" in known:
                engine.pause(known["four"])
            if number == resumed_at and "four" in known and engine.registry.named(known["four"])[0].paused:
                engine.resume(known["four"])
            process(engine, batch)
        ask(engine, rng, list(known.values()), arrived, seen, is_over=False)
        process(engine, [Doc(f"last of {stream}", stream, END, END, b"<none/>") for stream in "ST"])
        ask(engine, rng, list(known.values()), arrived, seen, is_over=True)
        outputs = list(engine.outputs())
        for place, name in known.items():
            found = funnel_of(engine, name)
            (funnel,) = found.funnels
            assert found.outputs == sum(one.query == name for one in outputs)
            if place != "four":
                assert (funnel.found, funnel.incomplete) == (found.outputs, False), (name, funnel)
            assert (funnel.failed is None) == bool(funnel.found)
        for output in rng.sample(outputs, min(len(outputs), 6)):
            check_why(why(engine, output.id), {one.id: one for one in outputs}, {one.id: one for one in arrived})


def ask(
    engine: Session, rng: Random, names: list[str], arrived: list[Doc], seen: Counter[str], *, is_over: bool
) -> None:
    outputs = [(one.query, set(one.documents)) for one in engine.outputs()]
    late = select_of(engine)("SELECT id FROM dead_letters ORDER BY id").column("id").to_pylist()
    for _ in range(10):
        name, some = rng.choice(names), [one.id for one in rng.sample(arrived, rng.choice((1, 2, 2)))]
        if late and chance(rng, 15):
            some = [rng.choice(late)]
        elif outputs and chance(rng, 15):
            name, told = rng.choice(outputs)
            some = sorted(told)
        found = why_not(engine, name, *some)
        seen[found.kind] += 1
        there = [documents for query, documents in outputs if query == name and documents.issuperset(some)]
        assert (found.kind == "output") == bool(there), (name, some, found)
        assert len(found.outputs) == min(len(there), MOST_LISTED)
        # Whoever says that they match has found what the kernel has not.
        allowed = () if is_over else ("waiting",)
        assert found.kind not in {"dropped", "too large", "waiting", "paused"} - set(allowed), (name, some, found)
        if found.kind not in ("output", "waiting"):
            assert found.message and found.stages and not found.stages[-1].found


def check_why(found: OutputWhy, outputs: dict[str, Output], arrived: dict[str, Doc]) -> None:
    """The events that are told are those of documents by the definitions, or outputs."""
    output, filling = found.match.output, found.events
    assert filling is not None and found.match.reason is not None, found
    parts = {name.rpartition(" ")[2]: part for part in filling.parts for name in [part.name]}
    places = {place for part in parts.values() for one in part.events for place in one.documents}
    assert places == set(range(len(output.documents)))
    for name, part in parts.items():
        (one,) = part.events
        if one.output:
            assert outputs[one.output].query == one.query == name
            assert (outputs[one.output].t0, outputs[one.output].t1) == (one.t0, one.t1)
        else:
            (definition,) = (known for known in event_world.definitions() if known.name == name)
            defined = defined_events(definition, arrived[output.documents[one.documents[0]]].xml)
            assert tuple(value for _, value in one.attributes) in [tuple(values) for _, values in defined]
    assert [one.id for one in found.fed] == [one.output for part in filling.parts for one in part.events if one.output]
    for span in filling.spans:
        assert span.duration == output.t1 - output.t0 and span.gap is not None and span.gap > 0


MINUTE = 60_000_000
CHAIN = (
    'FROM S/a->x[./k = "1"][contains(./t, "b")] FOLLOWED BY {x = y, 1 h} S/b->y PUBLISH p; '
    "FROM p//a->l FOLLOWED BY {l = r, INF} S/c->r PUBLISH q"
)


@pytest.fixture(scope="module")
def chained():
    with Session("duckdb") as engine:
        engine.subscribe(CHAIN)
        xmls = ("<a><k>1</k><t>abc</t></a>", "<b>1abc</b>", "<c>1abc</c>")
        engine.process([Document(f"d{number}", xml, time=number * MINUTE) for number, xml in enumerate(xmls, 1)])
        yield engine


def test_an_output_is_named_by_its_id_a_beginning_of_it_or_its_number(chained, monkeypatch):
    for recent in (0, 1):
        monkeypatch.setattr(output_why, "RECENT", recent)
        output = next(iter(chained.outputs()))
        for asked in (output.id[:8].upper(), f" {output.seq} "):
            assert why(chained, asked).match.output == output
    nothing = {
        "": "'' is neither",
        "it's": '"it\'s" is neither',
        "%": "'%' is neither",
        "77": "no output has the id 77",
    }
    nothing |= {"f" * 33: "is neither", "9" * 40: "is neither", "f" * 32: "no output has the id ffff"}
    for asked, said in nothing.items():
        with pytest.raises(NoOutput, match=said):
            why(chained, asked)
    with Session("duckdb") as engine:
        engine.subscribe("FROM S/a->x PUBLISH all_of_them")
        engine.process([Document(f"d{number}", "<a/>", time=number) for number in range(200)])
        first = next(o.id[0] for o in engine.outputs() if not o.id[0].isdecimal())
        with pytest.raises(NoOutput, match=f"several outputs have ids that begin with {first}: .* and others"):
            why(engine, first)


def whys(engine: Session) -> list[OutputWhy]:
    return [why(engine, output.id) for output in engine.outputs()]


def facts(found: Iterable[Fact]) -> list[str]:
    return list(map(fact_text, found))


def test_all_that_held_and_what_fed_the_output(chained):
    one, other = whys(chained)
    assert facts(filters(one.match)) == ['contains(t "abc", "b")', 'k = "1"']
    assert (one.fed, other.fed) == ((), (Fed(one.match.output.id, "p", (0, 1)),))
    assert facts(timings(other.match)) == ["2 min from the first to the last; FOLLOWED BY allows any time"]
    assert [item.time for item in other.match.items] == [MINUTE, 2 * MINUTE, 3 * MINUTE]
    assert other.text.endswith("PUBLISH q")
    for text in ("a", "it's", "a\\b'c\\", "\\", "", '"'):
        assert chained.sql(f"SELECT {quote_literal(text)} AS t")["t"][0].as_py() == text


def test_an_output_of_a_removed_query_and_one_whose_documents_have_gone(tmp_path):
    options: dict[str, Any] = {"lateness": 0, "belated": "drop", "now": lambda: 20 * HOUR}
    with Session("duckdb", state=tmp_path, **options) as engine:
        engine.subscribe("FROM S/a->x FOLLOWED BY {x = y, 6 h} S/b->y PUBLISH gone")
        for xml, hour in {"<a>v</a>": 1, "<b>v</b>": 5}.items():
            engine.process([Document(xml, xml, time=hour * HOUR)])
        engine.unsubscribe("gone")
        engine.subscribe("FROM S/c PUBLISH gone")
        found = why(engine, "0")
        assert found.match.reason is not None and found.match.reason.joined
        assert found.text.startswith("FROM S/a->x FOLLOWED BY")
        engine.subscribe("FROM S/c->x FOLLOWED BY {x = y, 6 h} S/d->y PUBLISH other")
        engine.process([Document("c", "<c/>", time=20 * HOUR)])
        engine.prune(17 * HOUR)
        found = why(engine, "0")
        assert found.match.reason is None and facts(reason_facts(found.match)) == [UNKNOWN]
        assert [item.is_kept for item in found.match.items] == [False, True]


def test_conditions_that_take_too_long_are_left_out_of_a_reason_and_a_document_that_is_too_large_has_none(monkeypatch):
    monkeypatch.setattr(newest, "MAX_REASON_STEPS", 4_000)
    many = "".join(f"<k>{number}</k>" for number in range(1_000))
    script = 'FROM S/a->x[count(./k) > 7][./k = "999"][not(./k = "x")][contains(./k, ./@k)] PUBLISH p'
    with Session("duckdb") as engine:
        engine.subscribe(f"{script}; FROM T/a->x[./k->k] FOLLOWED BY {{k = y, INF}} T/b->y")
        documents = f"<a k=''>{many}</a>", f"<a k='9'><k>999</k>{'<k/>' * 7}</a>"
        engine.process([Document(f"d{number}", xml, time=number) for number, xml in enumerate(documents)])
        large, small = (found.match for found in whys(engine))
        assert large.reason is not None and len(filters(large)) < len(filters(small))
        monkeypatch.setattr(newest, "MAX_REASON_STEPS", 500)
        engine.process([Document("a", documents[0], "T", 8), Document("b", "<b>999</b>", "T", 9)])
        assert whys(engine)[-1].match.reason is None
    assert sorted(facts(filters(small))) == [
        'contains(k "999", a/@k "9")', "count(./k) > 7", 'k = "999"', 'not(k "999" = "x")',
    ]  # fmt: skip


def check_events(output: Output, why: OutputWhy) -> None:
    """As many events are told as the output has; those that it shows have the values that it shows."""
    assert why.events is not None, (why.text, output)
    names = {name.partition(".")[0] for name in output.nodes}
    assert sum(part.count for part in why.events.parts) == len(names)
    behind = {place for part in why.events.parts for one in part.events for place in one.documents}
    if all(part.count == len(part.events) for part in why.events.parts):
        assert behind == {output.documents.index(id) for id in output.documents}
    if " RETURN " not in why.text and "ERRORS" not in why.text:
        shown = [
            (int(one.get("t0", "")), int(one.get("t1", "")), {child.tag: child.text or "" for child in one})
            for one in etree.fromstring(output.xml)
        ]
        for one in (one for part in why.events.parts for one in part.events):
            texts = {name: text for name, value in one.attributes if (text := as_text(value)) is not None}
            assert (one.t0, one.t1, texts) in shown


@contextmanager
def over(text: str, arriving: list[Document], horizon: int = END) -> Iterator[Session]:
    """An engine that has answered statements up to a time."""
    with Session("duckdb", settle=0, quiet=True) as engine:
        engine.subscribe(text)
        engine.process(arriving)
        engine.process([Document(f"end {one}", "<end/>", one, horizon) for one in {doc.stream for doc in arriving}])
        yield engine


def told(name: str, arriving: list[Document], text: str | None = None) -> list[str]:
    with over(text or statements(f"PUBLISH {name}"), arriving) as engine:
        (output,) = (one for one in engine.outputs() if one.query == name)
        found = why(engine, output.id)
        assert found.events is not None
        parts = [fact_text(one) for one in shown_events(found.events, IN_UTC)]
        assert why_not(engine, name, *output.documents).outputs == (output.id,)
        return [*parts, *map(fact_text, reason_facts(found.match))]


def test_reasons_of_the_examples():
    found = told("unpatched", [*advisories(("A1", "p", 9, 1)), *releases(("p", "1", "", 1))])
    assert found == [
        'Advisory a  id "A1", project "p", score 9',
        "a.score 9 >= 7",
        "no Release r afterwards in 2 w: r.project = a.project",
    ]
    # b links to a and to another page.
    links = {"a": "", "b": "za", "c": "by", "d": "xc"}
    found = told("spreads", [page(site, site, at, *to) for at, (site, to) in enumerate(links.items())])
    assert [line.partition("target ")[2] for line in found if "target " in line and line.startswith("1970")] == [
        f'"http://{site}.example/1"' for site in "abc"
    ]
    found = told("half_corrected", [*examples.STORY, corrected("a", 2)])
    assert found[0].startswith('Carried s  title "Big news", one "http://a.example/1"')
    assert found[1] == 'Correction c  target "http://a.example/1"'
    assert found[-1] == "no Correction d afterwards in 5 d: d.target = s.two"


def test_letters_that_are_missing_are_counted():
    states = enumerate(("Investigating", "Resolved"))
    reports = elements("S", "item", *(({"item_url": "u", "title": state}, at) for at, state in states))
    found = told("incident", reports, statements("PUBLISH incident").replace("ERRORS <= 1", "ERRORS <= 2"))
    assert [line.partition(" ")[0] for line in found] == ["Investigating", "Resolved", "[incident]", "2"]
    assert found[-1] == "2 letters are missing, of 2 allowed"


@pytest.mark.parametrize("seed", seeds(1, 400))
def test_outputs_of_patterns_are_found_again_and_there_is_none_just_when_something_is_in_the_way(seed):
    rng, found = Random(seed), pattern_world(seed, templates=4, statements=5, most=6)
    with Session("duckdb", settle=SETTLE, quiet=True) as engine:
        names = engine.subscribe(script(found), add=True)
        made = documents(found)
        for batch in batches(rng, made):
            engine.process(batch)
        engine.process(ends(found))
        every = zip(names, found.statements, strict=True)
        patterns = {name: one for name, one in every if isinstance(one, Pattern | Near)}
        outputs = [one for one in engine.outputs() if one.query in patterns]
        for output in rng.sample(outputs, min(len(outputs), 8)):
            check_events(output, why(engine, output.id))
        for name, statement in patterns.items():
            assert isinstance(statement, Pattern | Near)
            told = [set(one.documents) for one in outputs if one.query == name]
            funnels = funnel_of(engine, name).funnels  # several may PUBLISH one name
            assert any(funnel.failed is None for funnel in funnels) == bool(told)
            for _ in range(4):
                asked = [one.id for _, one in rng.sample(made, rng.choice((1, 2, 3)))]
                said = why_not(engine, name, *asked)
                assert (said.kind == "output") == any(one.issuperset(asked) for one in told), (statement.text(), said)
                # Whoever says that they match has found what the kernel has not.
                allowed = {"overlapping"} if statement.apart else set()
                allowed |= {"counted"} if isinstance(statement, Pattern) and statement.together else set()
                others = {"dropped", "too large", "waiting", "budget", "overlapping", "counted"}
                assert said.kind not in others - allowed, said
                if said.kind not in ("output", "overlapping", "counted"):
                    assert said.message and said.stages and not said.stages[-1].found


def asked(text: str, name: str, arriving: list[Document], *wanted: Sequence[int], horizon: int = END) -> list[WhyNot]:
    with over(text, arriving, horizon) as engine:
        return [why_not(engine, name, *(arriving[place].id for place in places)) for places in wanted]


PRICE = "DEFINE EVENT Price FROM prices//offer->o (product := o/product, shop := o/shop, price := number(o/price)); "


def war(pattern: str, *wanted: Sequence[int]) -> list[tuple[str, str, str]]:
    offered = [("x", "a", 100), ("x", "b", 99), ("x", "b", 98), ("x", "a", 97)]
    found = asked(f"{PRICE}PATTERN {pattern} PUBLISH war", "war", offers(*offered), *wanted)
    return [(one.kind, one.part, one.message) for one in found]


def test_values_and_strategies_that_are_in_the_way():
    cheaper = "[product] AND p[i].price < p[i-1].price AND p[i].shop != p[i-1].shop"
    (found,) = war(f"SEQ(Price+ p[]) WHERE skip_till_next_match {{{cheaper}}} WITHIN 7 d", (1, 2))
    said = 'p[i].shop is "b", p[i-1].shop is "b", of Price (product "x", shop "b", price 98)'
    assert found == ("condition", "p[i].shop != p[i-1].shop", said)
    for strategy, why in (("skip_till_next_match", "match so far takes"), ("strict_contiguity", "nothing may come")):
        (found,) = war(f"SEQ(Price p, Price q) WHERE {strategy} {{q.price < p.price}} WITHIN 7 d", (0, 2))
        assert found[:2] == ("strategy", strategy) and why in found[2]
        assert found[2].startswith('Price (product "x", shop "b", price 99) came before, at 1970-01-01T01:00:00Z')
    (found,) = war("SEQ(Price p, Price q) WHERE {[product]} WITHIN 90 min HAVING q.price > p.price", (0, 1))
    assert found == ("condition", "HAVING q.price > p.price", "q.price is 99, p.price is 100")


def test_an_event_that_must_not_come_and_one_that_does_not():
    text = statements("PUBLISH unpatched")
    arriving = [*advisories(("A1", "p", 9, 1), ("A2", "q", 3, 1)), *releases(("p", "2", "", 2))]
    found, other = asked(text, "unpatched", arriving, [0], [1])
    assert (found.kind, found.part, found.nearest[0].items[0].id) == ("absent", "~(Release r)", arriving[2].id)
    assert other.kind == "condition"
    (found,) = asked(text, "unpatched", arriving[:1], [0], horizon=3 * 86_400 * SECOND)
    assert found.kind == "waiting"


RUN = "(SELECT product, shop, price, 0 AS n FROM Price) FOLD{$1.product = $2.product, , $.n + 1 AS n} Price"


@pytest.mark.parametrize(
    ("query", "places", "kind", "message", "near"),
    [
        ('Price NEXT{$1.shop = "z"} Price', [1], "condition", '$1.shop is "a", of Price (product "x", shop "a", ', [0]),
        ("Price NEXT{$1.price < $2.price} Price", [1], "condition", "$1.price is 5, $2.price is 4, of Price (", [0]),
        ("FILTER{price < 5} Price NEXT Price", [1], "order", 'no Price begins after the end of Price (product "x"', []),
        (RUN, [1, 2, 3], "condition", "$1.product is ", []),
    ],
)
def test_whose_value_is_in_the_way_of_an_operator(query, places, kind, message, near):
    arriving = offers(("x", "a", 5), ("x", "b", 4), ("y", "a", 3), ("z", "a", 2))[: 1 + places[-1]]
    (found,) = asked(f"{PRICE}FROM {query} PUBLISH q", "q", arriving, places)
    assert (found.kind, found.message.startswith(message)) == (kind, True), found
    assert [item.id for one in found.nearest for item in one.items] == [arriving[number].id for number in near]


def test_letters_that_are_missing_and_matches_that_overlap():
    definitions = (f"DEFINE EVENT {name} FROM S/{name.lower()}->x (k := x/k); " for name in "ABC")
    text = "".join(definitions) + "PATTERN SEQ(A, B, C) ERRORS <= 1 WITHIN 1 h NON OVERLAPPING PUBLISH near"
    given = [Document(f"{name}{at}", f"<{name}><k>1</k></{name}>", "S", at * SECOND) for at, name in enumerate("abca")]
    (found,) = asked(text, "near", given[:1], [0])
    assert (found.kind, found.part, found.message) == ("letters", "ERRORS <= 1", "2 letters are missing at least")
    (found,) = asked(text.replace("<= 1", "<= 0"), "near", given[:2], [0])
    assert found.message == "1 letter is missing at least"
    overlapping, disordered = asked(text, "near", given, (1, 2), (3, 2))
    assert overlapping.kind == "overlapping"
    assert disordered.message.startswith("no word has them in this order")
