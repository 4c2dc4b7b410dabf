import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from feeds.documents import Document
from mmqjp.engine import Session
from mmqjp.present import query_lookup
from mmqjp.present.item import WhyNot, fact_text, reason_facts
from mmqjp.present.output_why import OutputWhy, why_output
from mmqjp.present.why_not import QueryFunnels, explain_missing_output, query_funnel
from mmqjp.tables.lookup import SelectFn
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

SECOND, HOUR = 1_000_000, 3_600_000_000
PAIRS = (
    'FROM S/item->a[./kind = "news"][./title->t1][./site->c1] '
    "FOLLOWED BY {t1 = t2 AND c1 = c2 AND a/lang != b/lang, 1 h} S/item->b[./title->t2][./site->c2] PUBLISH pairs"
)


def item(title: str = "A", site: str = "x", lang: str = "en", kind: str = "news", extra: str = "") -> str:
    language = f"<lang>{lang}</lang>" if lang else ""
    return f"<item><title>{title}</title><site>{site}</site>{language}<kind>{kind}</kind>{extra}</item>"


@contextmanager
def store(script: str, *documents: tuple[str, str, int], **options: Any) -> Iterator[SelectFn]:
    """A store with queries and documents on S, each with its id, XML and time in seconds."""
    with Session("duckdb", **options) as engine:
        engine.subscribe(script)
        engine.process([Document(id, xml, time=time * SECOND) for id, xml, time in documents])
        yield select_of(engine)


def said(script: str, name: str, asked: list[str], *documents: tuple[str, str, int]) -> WhyNot:
    with store(script, *documents) as select:
        found = explain_missing_output(select, name, asked)
        assert WhyNot.from_dict(json.loads(json.dumps(found.to_dict()))) == found
        return found


IN_THE_WAY = [
    ((item(), 0), (item(lang="de"), 60), "output", "they give an output", ""),
    ((item(), 60), (item(lang="de"), 0), "output", "they give an output", ""),
    ((item(kind="x"), 0), (item(lang="de", kind="x"), 60), "pattern", './kind = "news" does not match', '"x"'),
    ((item(), 0), (item(lang=""), 60), "asked", "there is no b/lang in the document", "in the predicate or SELECT"),
    ((item(), 0), (item("a", lang="de"), 60), "equality", 'title "A" and title "a" differ only in case', "lower"),
    ((item("A  b"), 0), (item("A b", lang="de"), 60), "equality", "differ only in spaces", "use normalize-space"),
    ((item(site="http://a.b:80/p"), 0), (item(site="http://a.b/p", lang="de"), 9), "equality", "address", "canon"),
    ((item(), 0), (item("C", lang="de"), 60), "equality", 'title "A" on the left, title "C" on the right', ""),
    ((item(), 0), (item(lang="de"), 0), "order", "begins just when the left one ends", "JOIN takes equal times"),
    ((item(), 0), (item(lang="de"), 7200), "window", "they are 2 h apart, and the window is 1 h", ""),
    ((item(), 0), (item(), 60), "residual", 'a/lang != b/lang is false: a/lang is "en", b/lang is "en"', ""),
]  # fmt: skip
"""Two documents with their times, and what is said of them."""


@pytest.fixture(scope="module")
def pairs():
    sides = [(f"{side}{n}", *pair["lr".index(side)]) for n, pair in enumerate(IN_THE_WAY) for side in "lr"]
    with store(PAIRS, *sides) as select:
        yield select


@pytest.mark.parametrize("number", range(len(IN_THE_WAY)))
def test_the_first_thing_in_the_way_is_told(number, pairs):
    left, right, kind, message, hint = IN_THE_WAY[number]
    asked = [f"l{number}", f"r{number}"]
    found = explain_missing_output(pairs, "pairs", asked)
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
    found = said(script, "p", ["l", "r"], ("l", two, 0), ("r", item("A", "x"), 1))
    assert (found.kind, found.part) == ("together", "t1 = t2 and c1 = c2"), "not for the same nodes"
    script = "FROM S/item->a[./title->t] JOIN {t = u, INF} S/item->b[./title->u] PUBLISH p"
    assert said(script, "p", ["l", "l"], ("l", item(), 0)).kind == "different"
    many = "".join(f"<title>{number}</title><site>{number}</site>" for number in range(3_000))
    large = f"<item><kind>news</kind><lang>de</lang>{many}</item>"
    found = said(PAIRS, "pairs", ["l", "r"], ("l", large, 0), ("r", item(), 1))
    assert (found.kind, found.message) == ("too large", "a document is too large to search, or has too many bindings")


def test_other_streams_alternatives_and_mirrored_matches():
    script = 'FROM S/a->x[./k->k] JOIN {x = y OR k = y AND x != "v1", INF} T/b->y PUBLISH p'
    with Session("duckdb") as engine:
        engine.subscribe(script)
        engine.process([Document("l", "<a>v<k>1</k></a>", time=1), Document("r", "<b>1</b>", "S", 2)])
        found = explain_missing_output(select_of(engine), "p", ["l", "r"])
        assert (found.kind, found.message) == ("stream", "the document is of stream S, not of T")
        engine.process([Document("r2", "<b>1</b>", "T", 2)])
        found = explain_missing_output(select_of(engine), "p", ["l", "r2"])
        assert (found.kind, found.part) == ("residual", 'x != "v1"')
    script = "FROM S/item->a[./title->t] JOIN UNORDERED {t = u, INF} S/item->b[./title->u] PUBLISH p"
    documents = (("l", item(), 5), ("r", item(), 1))
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
        select = select_of(engine)
        known = {
            name: explain_missing_output(select, name, ["after"])
            for name in ("old_nam", "gone", "asleep", "newer", "old_name")
        }
        assert [found.kind for found in known.values()] == ["query", "query", "paused", "output", "output"]
        assert known["old_nam"].hint == "did you mean old_name?"
        assert known["gone"].message == "the query gone was removed at 2023-11-14T22:13:20Z"
        assert explain_missing_output(select, "newer", ["before"]).kind == "newer"
        assert explain_missing_output(select, "asleep", ["before"]).kind == "output"


def test_documents_that_are_unknown_refused_dropped_or_several(tmp_path):
    with Session("duckdb", state=tmp_path, now=lambda: 20 * HOUR, lateness=0) as engine:
        engine.subscribe("FROM S/a->x FOLLOWED BY {x = y, 6 h} S/b->y PUBLISH p")
        for id, hour in (("old", 1), ("new", 20), ("late", 2)):
            engine.process([Document(id, "<a>v</a>", time=hour * HOUR)])
        engine.process([Document("bad", "<a", time=20 * HOUR), Document("new", "<a/>", "T", 20 * HOUR)])
        engine.prune(1 * HOUR)
        every = ("old", "late", "bad", "none", "new", "it's")
        found = {asked: explain_missing_output(select_of(engine), "p", [asked]) for asked in every}
    kinds = {asked: one.kind for asked, one in found.items()}
    assert kinds == {
        "old": "pruned", "late": "dead letter", "bad": "dead letter", "none": "document", "new": kinds["new"],
        "it's": "document",
    }  # fmt: skip
    assert kinds["new"] in ("stream", "pattern")
    assert "late: " in found["late"].message and "refused" in found["bad"].message


def test_a_document_may_be_named_by_its_title_or_address_if_only_one_has_it():
    link = '<link href="https://example.org/{}"/>'
    documents = (
        ("l", item("The pier &amp; the  sea", extra=link.format("a?b=1&amp;c=2")), 0),
        ("r", item("The quay", extra=link.format("b")), 1),
        ("s", item("The quay", extra=link.format("c")), 2),
    )
    with store(PAIRS, *documents) as select:
        for asked in ("The pier & the sea", "https://example.org/a?b=1&c=2"):
            assert explain_missing_output(select, "pairs", [asked]).items[0].id == "l"
        several = explain_missing_output(select, "pairs", ["The quay"])
        assert several.kind == "document" and "2 documents are 'The quay'" in several.message
        assert explain_missing_output(select, "pairs", ["quay"]).kind == "document"
        assert explain_missing_output(select, "pairs", ["l", "r", "s"]).kind == "blocks"


def test_one_document_alone_and_the_nearest_of_those_that_are_kept():
    documents = (
        ("l", item("The old pier"), 0), ("r", item("The Old Pier", lang="de"), 9), ("far", item("Quay", lang="fr"), 9)
    )  # fmt: skip
    found = said(PAIRS, "pairs", ["l"], *documents)
    assert (found.kind, found.part) == ("equality", "t1 = t2")
    (near,) = found.nearest
    assert [one.id for one in near.items] == ["l", "r"] and near.hint == "use lower-case on both sides"
    later = (("l", item(), 0), ("r", item(lang="de"), 3 * 3600), ("s", item(lang="de"), 2 * 3600))
    found = said(PAIRS, "pairs", ["l"], *later)
    assert found.kind == "window" and "the nearest are 2 h apart" in found.message
    assert [[one.id for one in near.items] for near in found.nearest] == [["l", "s"], ["l", "r"]]


def test_ids_of_outputs_name_published_documents_and_who_told_before():
    script = "FROM S/a->x PUBLISH p; FROM p//a->l FOLLOWED BY {l = r, 5 s} S/c->r PUBLISH q"
    documents = (("a", "<a>v</a>", 0), ("c", "<c>v</c>", 9), ("d", "<c>v</c>", 4))
    with store(script, *documents) as select:
        (id,) = explain_missing_output(select, "p", ["a"]).outputs
        assert explain_missing_output(select, "q", [id, "c"]).kind == "window"
        assert explain_missing_output(select, "q", [id, "d"]).kind == "output"
        assert explain_missing_output(select, "q", ["a", "d"]).kind == "stream"
    script = "FROM S/a->x[./k->k] PUBLISH p ONCE PER (k) WITHIN 5 s"
    keyed = [(f"a{key}", f"<a>1<k>{key}</k></a>", 0) for key in range(5)]
    later = [(id, f"<a>{id}<k>3</k></a>", time) for id, time in (("b", 4), ("c", 9), ("d", 12))]
    with store(script, *keyed, *later) as select:
        first, found, alone, last = (explain_missing_output(select, "p", [id]) for id in ("a3", "b", "c", "d"))
    assert [one.kind for one in (first, found, alone, last)] == ["output", "told", "output", "told"]
    assert found.outputs == first.outputs and last.outputs == alone.outputs
    told = f"the output {first.outputs[0]}, which ends at 1970-01-01T00:00:00Z, told it before"
    assert found.message == f"ONCE PER: {told}"


@pytest.mark.soak
def test_spark_says_the_same(spark, tmp_path):
    documents = (("l", item("The old pier"), 0), ("r", item("The Old Pier", lang="de"), 9), ("it's\\", item(), 5))
    asked = (["l", "r"], ["l"], ["it's\\", "r"], ["The old pier", "r"], ["none"])
    with store(PAIRS, *documents) as select:
        expected = [explain_missing_output(select, "pairs", some).to_dict() for some in asked]
    with Session(spark, state=tmp_path) as engine:
        engine.subscribe(PAIRS)
        engine.process([Document(id, xml, time=time * SECOND) for id, xml, time in documents])
        assert [explain_missing_output(select_of(engine), "pairs", some).to_dict() for some in asked] == expected
    with Session("duckdb", state=tmp_path, read_only=True) as reader:
        assert [explain_missing_output(select_of(reader), "pairs", some).to_dict() for some in asked] == expected


SCRIPT = """
FROM S/a->x[./k->k][./t = "news"] FOLLOWED BY {k = l AND x/n != y/n, 10 s} S/b->y[./l->l] PUBLISH p;
FROM S/a->x[./k->k][./t = "news"] FOLLOWED BY {k = l AND x/n = y/n, 10 s} S/b->y[./l->l] PUBLISH tied;
FROM S/a->x[./kk->k] FOLLOWED BY {k = l, 1 s} S/b->y[./l->l] PUBLISH misspelt;
FROM T/c PUBLISH q; FROM S/a PUBLISH u; FROM S/b PUBLISH u
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
    with Session("duckdb") as engine:
        engine.subscribe(SCRIPT)
        engine.process([Document(f"d{n}", xml, time=time * SECOND) for n, (xml, time) in enumerate(SOME)])
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


def test_the_first_stage_that_nothing_passes_is_named_with_a_hint(filled):
    (funnel,), (other,) = funnel_of(filled, "misspelt").funnels, funnel_of(filled, "q").funnels
    assert funnel.failed is not None and other.failed is not None
    assert (funnel.failed.part, funnel.failed.block, funnel.failed.hint) == ("./kk", 1, "did you mean k (in 3)?")
    assert [stage.found for stage in funnel.stages if stage.block == 2] == [8, 5, 5]
    assert other.failed.message == "there is no document of stream T"
    assert funnel_of(filled, "qq").message == "no query is called qq"


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


def titled(title: str, site: str) -> str:
    return f"<item><title>{title}</title><site>{site}</site></item>"


def lived(*documents: tuple[str, str, int]) -> Session:
    engine = Session("duckdb", lateness=0)
    engine.subscribe(QUERIES)
    engine.process([Document(id, xml, "S", time=time * SECOND) for id, xml, time in documents])
    return engine


DOCUMENTS = (
    ("a", titled("Storm hits the coast", "x"), 0),
    ("b", titled("The storm hits coast", "y"), 4),
    ("c", titled("rain", "x"), 11),
    ("d", titled("Rain", "z"), 13),
)


def because(engine: Session, query: str) -> dict[str, list[str]]:
    found = {}
    for output in engine.outputs():
        if output.query == query:
            said = why_output(select_of(engine), output.id)
            assert OutputWhy.from_dict(json.loads(json.dumps(said.to_dict()))) == said
            found[output.documents[0]] = list(map(fact_text, reason_facts(said.match)))
            for condition in said.match.to_dict()["why"]["conditions"]:  # texts are in one part up to the next node
                assert (str, str) not in pairwise(map(type, condition["parts"]))
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
            'nothing with title = lower-case(title "Storm hits the coast") and site "x" != site or with '
            'title = title "Storm hits the coast" came within 5 s, until 1970-01-01T00:00:05Z'
        ]
        assert because(engine, "then") == {
            "a": ['same site "x"', 'nothing with site = site "x" followed within 2 s, until 1970-01-01T00:00:02Z']
        }


@pytest.fixture(scope="module")
def engine():
    with lived(*DOCUMENTS) as opened:
        yield opened


@pytest.mark.parametrize(
    ("query", "asked", "kind", "message", "shown"),
    [
        ("silent", "a", "output", "they give an output", "a"),
        ("silent", "c", "waiting", "when the watermark has come to 1970-01-01T00:00:21.000001Z; it is at", "c"),
        ("fresh", "b", "partner", "this is a partner", "ba"),
        ("fresh", "ba", "partner", "these documents are partners", "ba"),
        ("fresh", "bc", "order", "", "bc"),
        ("alone", "d", "partner", "this is a partner", "dc"),
        ("silent", "e", "document", "no kept document", ""),
        ("silent", "abc", "blocks", "the query reads 2: 1 in an output, 1 in a partner", "abc"),
        ("then", "a", "query", "inside of a longer query", ""),
    ],
)
def test_why_not_tells_what_came(query, asked, kind, message, shown, engine):
    found = explain_missing_output(select_of(engine), query, [*asked])
    assert WhyNot.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert (found.kind, message in found.message) == (kind, True), found
    assert [one.id for one in found.items] == [*shown]


def test_what_is_first_in_the_way_of_all():
    with lived(*DOCUMENTS[:2]) as engine:
        (undecided,) = query_funnel(select_of(engine), "silent").funnels
    with Session("duckdb", lateness=0) as engine:
        engine.subscribe(
            "S/a->x NOT JOIN {x = y, 9 s} S/a->y PUBLISH lone; P/a->x NOT JOIN {x = y, 9 s} S/a->y PUBLISH none;"
            'S/item->a[./site = "q"][./title->t] NOT PRECEDED BY {t = u, 9 s} T/item->b[./title->u] PUBLISH n'
        )
        engine.process([*(Document(id, "<a>u</a>", time=0) for id in "abc"), Document("i", titled("A", "x"), time=0)])
        ((partners,), (nothing,)) = (query_funnel(select_of(engine), name).funnels for name in ("lone", "none"))
        found = explain_missing_output(select_of(engine), "n", ["i"])
    assert (found.kind, './site = "q"' in found.message) == ("pattern", True), found
    failed = [one.failed for one in (undecided, partners, nothing) if one.failed is not None]
    assert [one.kind for one in failed] == ["decided", "alone", "stream"]
    assert "what is not late still may" in failed[0].message and "each of them has a partner" in failed[1].message


@pytest.mark.parametrize("seed", seeds(1, 400))
def test_what_is_said_turns_out(seed):
    """What waits is told at the end, and nothing else is. What is called a partner is one, as the oracle says."""
    rng = Random(seed)
    script, documents = random_case(seed, 6, 10)
    script = with_absences(rng, script, 100, inner=False)
    plain = tuple(filter(_is_plain, script.queries))
    published = {query.publish for query in plain}
    read = [{block.stream for block in blocks(query.source)} for query in plain]
    plain = tuple(query for query, streams in zip(plain, read, strict=True) if not streams & published)
    script = Script(plain, script.namespaces)
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


def _is_plain(query: object) -> bool:
    source = query.source  # type: ignore[attr-defined]
    return (
        isinstance(source, Join)
        and source.op in NEGATED
        and len(blocks(source)) == 2
        and isinstance(source.left, Block)
        and query.once is None  # type: ignore[attr-defined]
    )
