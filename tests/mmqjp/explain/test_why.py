"""Evidence of outputs, when absences are decided, warnings, and documents as they are shown."""

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from lxml import etree

from feeds.documents import Document
from feeds.tail import read_documents
from mmqjp import demo
from mmqjp.engine import Session
from mmqjp.explain import funnel
from mmqjp.explain.automaton import Shapes, document_shape
from mmqjp.explain.funnel import Evidence
from mmqjp.explain.join_trial import Reason
from mmqjp.explain.plan import absences_in, answers_after, decided_when
from mmqjp.explain.svg import SHORT_LINES, document_lines
from mmqjp.explain.terms import JoinedValue, Operand, ShownCondition
from mmqjp.explain.warnings import warnings_of
from mmqjp.queries.compile import Compiler
from tests.generate.documents import document_xml
from tests.generate.seeds import seeds
from tests.oracle.match import Tree
from tests.oracle.values import DERIVED
from xpath_stage.documents import parse_document
from xscl.parser import parse_script
from xscl.problems import XsclError

DEMO = Path(demo.__file__).parent


def document(number, xml):
    return Document(f"d{number}", xml, time=number)


def reasons(script, *xmls):
    with Session("duckdb") as engine:
        engine.subscribe(script)
        outputs = engine.process([document(number, xml) for number, xml in enumerate(xmls, 1)])
        found = Evidence(engine).of(list(outputs))
        return [(output.query, dict(output.nodes), reason) for output, reason in zip(outputs, found, strict=True)]


def joined(*pairs):
    return Reason(tuple(JoinedValue(Operand(*left), Operand(*right)) for left, right in pairs))


@pytest.mark.parametrize(
    ("script", "xmls", "found"),
    [
        (  # of the disjunct and the nodes
            "FROM S//a->x[./k->k] FOLLOWED BY {x = y OR lower-case(k) = y, INF} S//b->y",
            ("<r><a>no<k>V</k></a><a>yes<k>w</k></a></r>", "<b>v</b>"),
            ("q1", {"x": 1, "y": 0}, joined((("k", "V", ("lower-case",), 0), ("b", "v", (), 1)))),
        ),
        (  # of a chain: the inner values first
            "FROM S/a->x[./k->k] FOLLOWED BY {k = y, INF} S/b/l->y FOLLOWED BY {y = z, INF} S/c->z",
            ("<a><k>v</k></a>", "<b><l>v</l></b>", "<c>v</c>"),
            (
                "q1",
                {"x": 0, "y": 1, "z": 0},
                joined((("k", "v", (), 0), ("l", "v", (), 1)), (("l", "v", (), 1), ("c", "v", (), 2))),
            ),
        ),
        (  # of a reader of outputs: a node of no document of its own
            "FROM S/a->x FOLLOWED BY {x = y, INF} S/b->y PUBLISH p; "
            "FROM p//a->l FOLLOWED BY {l = r, INF} S/c->r PUBLISH q",
            ("<a>v</a>", "<b>v</b>", "<c>v</c>"),
            ("q", {"l": 1, "r": 0}, joined((("a", "v", (), None), ("c", "v", (), 2)))),
        ),
        (  # a document on both sides of a chain has its first place
            "FROM S/a->x JOIN {x = y, INF} S/b->y JOIN {y = z, INF} S/a->z",
            ("<a>v</a>", "<b>v</b>"),
            (
                "q1",
                {"x": 0, "y": 0, "z": 0},
                joined((("a", "v", (), 0), ("b", "v", (), 1)), (("b", "v", (), 1), ("a", "v", (), 0))),
            ),
        ),
        ("FROM S/a->x", ("<a/>",), ("q1", {"x": 0}, Reason())),
    ],
)
def test_reasons(script, xmls, found):
    assert found in reasons(script, *xmls)


def test_other_conditions_are_shown_with_the_nodes_in_them():
    ((_, _, reason),) = reasons(
        'FROM S/a->x[./@k->k][./t->t] JOIN {k = l AND contains(t, "{0}") AND t != u, INF} S/b->y[./@l->l][./u->u]',
        '<a k="1"><t>{0}</t></a>',
        '<b l="1"><u>w</u></b>',
    )
    assert reason.joined == (JoinedValue(Operand("a/@k", "1", (), 0), Operand("b/@l", "1", (), 1)),)
    t, u = Operand("t", "{0}", (), 0), Operand("u", "w", (), 1)
    assert reason.conditions == (ShownCondition(("contains(", t, ', "{0}")')), ShownCondition((t, " != ", u)))
    assert [condition.text for condition in reason.conditions] == ['contains(t, "{0}")', "t != u"]


def test_a_removed_query_still_gives_its_reasons():
    with Session("duckdb") as engine:
        engine.subscribe("FROM S/a->x FOLLOWED BY {x = y, INF} S/b->y PUBLISH gone")
        engine.process([document(1, "<a>v</a>"), document(2, "<b>v</b>")])
        engine.unsubscribe("gone")
        engine.subscribe("FROM S/c PUBLISH gone")
        (reason,) = Evidence(engine).of(list(engine.outputs()))
    assert reason == Reason((JoinedValue(Operand("a", "v", (), 0), Operand("b", "v", (), 1)),))


def test_a_search_that_takes_too_long_ends(monkeypatch):
    monkeypatch.setattr(funnel, "MAX_REASON_STEPS", 1_000)
    many = "".join(f"<k>{number}</k>" for number in range(2_000))
    script = "FROM S/a->x[./k->k] FOLLOWED BY {k = y, INF} S/b->y"
    assert [reason for *_, reason in reasons(script, f"<a>{many}</a>", "<b>1999</b>")] == [None]


def test_every_joined_value_of_the_demo_stands_in_its_document():
    script = (DEMO / "demo.xscl").read_text()
    read = [one for one in read_documents([DEMO], feeds="item") if isinstance(one, Document)]
    documents: dict[str, Any] = {one.id: etree.fromstring(one.xml) for one in read}
    with Session("duckdb") as engine:
        engine.subscribe(script)
        outputs = [one for one in engine.process(read_documents([DEMO], feeds="item")) if one.query != "first_release"]
        found = Evidence(engine).of(outputs)
    assert len(found) == 14 and None not in found
    told = [(output, reason) for output, reason in zip(outputs, found, strict=True) if reason is not None]
    queries = {query.publish for query in parse_script(script).queries}
    assert {output.query for output, reason in told if not reason.joined} < queries
    checked = 0
    for output, reason in told:
        for pair in reason.joined:
            values = set()
            for side in (pair.left, pair.right):
                value = side.text
                for name in side.functions:
                    value = DERIVED[name](value)
                values.add(value)
                if side.document is not None:
                    root = documents[output.documents[side.document]]
                    path = side.name if "@" in side.name else f"{side.name}/text()"
                    assert side.text in root.xpath(f"//{path}")
                    checked += 1
            assert len(values) == 1
    assert checked > 15


@pytest.mark.parametrize("many", [0, 3])
def test_outputs_are_explained_one_by_one_and_together(many):
    xmls = [f"<a>{number}</a>" for number in range(many)] + [f"<b>{number}</b>" for number in range(many)]
    found = reasons("FROM S/a->x FOLLOWED BY {x = y, INF} S/b->y", *xmls)
    assert [reason.joined[0].left.text for *_, reason in found] == [str(number) for number in range(many)]


def absences(text: str) -> list[str]:
    return [answers_after(absence) for absence in absences_in(Compiler().compile_text(text).normal)]


def test_what_an_absence_needs():
    for text, told in (
        ("S/a->x JOIN {x = y, 1 h} S/b->y", []),
        (
            "S/a->x NOT FOLLOWED BY {x = y, 1 h} T/b->y",
            ["NOT FOLLOWED BY is decided 1 h and the lateness of T after a document; T is kept for 1 h"],
        ),
        (
            "S/a->x NOT JOIN {x = y OR x = z, 1 h} T/b->y[./c->z]",
            ["NOT JOIN is decided 1 h and the lateness of T after a document; T is kept for 2 h"],
        ),
        (
            "S/a->x NOT PRECEDED BY {x = y, INF} T/b->y JOIN {x = z, 1 h} S/c->z",
            ["NOT PRECEDED BY is decided the lateness of T after a document; T is kept for good"],
        ),
        (
            "S/a->x NOT PRECEDED BY {x = y, 3 s} (SELECT y FROM T/b->y NOT JOIN {y = z, 2 s} U/c->z)",
            [
                "NOT JOIN is decided 2 s and the lateness of U after a document; U is kept for 4 s",
                "NOT PRECEDED BY is decided the lateness of its right input after a document; "
                "its right input is kept for 3 s",
            ],
        ),
    ):
        assert absences(text) == told


def test_the_watermark_that_decides():
    (absence,) = absences_in(Compiler().compile_text("S/a->x NOT FOLLOWED BY {x = y, 90 s} T/b->y").normal)
    assert decided_when(absence) == (
        "decided when the watermark of T is more than 90 s past the beginning of a left document"
    )


def warned(text: str, feeds: object = "item") -> list[XsclError]:
    return warnings_of(text, parse_script(text), feeds)  # type: ignore[arg-type]  # the tests give right ones


@pytest.mark.parametrize(
    ("text", "at", "message", "hint"),
    [
        ("S//item[./titel->t]", "titel", "items have no titel", "did you mean title?"),
        ("S//item[./pubDate]", "pubDate", "items have no pubDate", "did you mean timestamp?"),
        ("S//item[not(./summary)]", "summary", "items have no summary", "did you mean description?"),
        ("S//entry", "entry", "items have no entry", "did you mean item?"),
        ("S//itme[./title]", "itme", "items have no itme", "did you mean item?"),
        ("S/title", "title", "the root element of an item is item, not title", "write //title"),
        ("S//item[./title/foo]", "foo", "title has no elements in it", "it holds text: end the path with title"),
        ("S//item[./link/href]", "href", "link has no elements in it", "href is an attribute: write link/@href"),
        ("S//item[./link/@url]", "@url", "link has no attribute url", "did you mean href?"),
        ("S//item[./@title]", "@title", "items have no attribute title", "title is an element: write it without the @"),
        ("S//item[./title/@href]", "@href", "title has no attribute href", "link has it: write link/@href"),
        ("S//item[./timestamp = 5]", "./timestamp = 5", "timestamp holds a time, which is no number: this never holds",
         'compare it with a time, such as "2026-07-16"'),
        ("S//item[./item_url < 5]", "./item_url < 5", "item_url holds an address, which is no number: this never holds",
         "compare it with = or !="),
        ("S//item[./updated != 5]", "./updated != 5", "updated holds a time, which is no number: this always holds",
         'compare it with a time, such as "2026-07-16"'),
        ("S//item[./timestamp < ./updated]", "./timestamp < ./updated",
         "two paths are compared as numbers, and this is a time: this never holds",
         "write date(./timestamp) < date(./updated)"),
        ("S//item->a JOIN {a/guid = b/guid and a/updated >= b/title, 1 h} S//item->b", "a/updated >= b/title",
         "two paths are compared as numbers, and this is a time: this never holds",
         "write date(a/updated) >= date(b/title)"),
        ('S//item[./timestamp = "2026-07-16"]', './timestamp = "2026-07-16"',
         "items write this time as 2026-07-16T00:00:00Z: this never holds", 'write date(./timestamp) = "2026-07-16"'),
        ('S//item[contains(./link, "x")]', "./link", "link holds no text", "write link/@href"),
        ('S//item[./lang = "en" and ./lang = "de"]', './lang = "de"',
         'one text cannot be both "en" and "de": this never holds', "write or between the two, if either will do"),
        ('S//item[./lang = "en"][./lang = "de"]', './lang = "de"',
         'one text cannot be both "en" and "de": this never holds', "write or between the two, if either will do"),
        ('S//item/link->l[./@rel = "a"][./@rel = "b"]', './@rel = "b"',
         'one text cannot be both "a" and "b": this never holds', "write or between the two, if either will do"),
        ("S//item->a JOIN {a/titel = b/title, 1 h} S//item->b", "titel", "items have no titel", "did you mean title?"),
        ("S//item[./link->l] JOIN {l = m, 1 h} S//item[./guid->m]", "l", "link holds no text", "write link/@href"),
        ("SELECT a/titel AS t FROM S//item->a", "titel", "items have no titel", "did you mean title?"),
        ("SELECT <x>{a/titel}</x> FROM S//item->a", "titel", "items have no titel", "did you mean title?"),
        ("S//item[./guid->g] JOIN {g = t and g = b/titel, 1 h} (SELECT c AS b, c/title AS t FROM S//item->c)", "titel",
         "items have no titel", "did you mean title?"),
        ("neus//item", "neus", "nothing PUBLISHes neus, and feeds come on stream S",
         "read S, or PUBLISH neus in another query"),
        ("s//item", "s", "nothing PUBLISHes s, and feeds come on stream S", "did you mean S?"),
        ("neus//item; S//item PUBLISH news", "neus", "nothing PUBLISHes neus, and feeds come on stream S",
         "did you mean news?"),
    ],
)  # fmt: skip
def test_a_warning_has_its_place_its_cause_and_what_to_do(text, at, message, hint):
    (found,) = warned(text)
    assert (text[found.span.start : found.span.end], found.message, found.hint) == (at, message, hint)


def test_no_warning_is_given_for_what_may_match():
    for text in (
        "S//item", "S/item", "S/*", "S//*[./title]", "//*:item", "S//title", "S/item/link/@href",
        "S//@href", "S//item//@*",
        'S//item[./category = "a" and ./category = "b"]',
        'S//item[./lang = "en" or ./lang = "de"]',
        'S//item[./lang = "en" and ./title = "de"]',
        'S//item[.//* = "en" and .//* = "de"]',
        'S//item/category[. = "x" or . = "y"]',
        'S//item[./timestamp = "2026-07-16T00:00:00Z"]', 'S//item[./timestamp >= "2026-07-16"]',
        'S//item[date(./timestamp) < date(./updated) and ./timestamp = ./updated]',
        "S//item[./enclosure/@length > 1000 and ./title > 5 and count(./link) > 2 and ./link]",
        "S//item PUBLISH news; news//itemm[./nothing = 3]->x",
        "S//item PUBLISH S2; S2//a->x JOIN {x = y/titel, 1 h} S2//item->y",
    ):  # fmt: skip
        assert warned(text) == []


def test_nothing_is_known_of_documents_that_are_not_items():
    text = "S//titel[./@k < 5]; T//x; new//x; S//a PUBLISH news; S//item[./lang = 'a' and ./lang = 'b']"
    assert [w.message for w in warned(text, None)] == ["nothing PUBLISHes new"]
    assert [w.message for w in warned(text, "raw")] == [
        "nothing PUBLISHes T, and feeds come on stream S",
        "nothing PUBLISHes new, and feeds come on stream S",
    ]


def test_warnings_stand_in_their_own_place_though_queries_share_their_parts():
    text = "S//item[./titel->t] PUBLISH a;\n\n   S//item[./titel->t] PUBLISH b;\nS//item[./titel->u]"
    assert [(w.line, w.column) for w in warned(text)] == [(1, 11), (3, 14), (4, 11)]
    assert warned(text)[1].render("f.xscl", "warning") == (
        "f.xscl:3:14: warning: items have no titel\n"
        "     S//item[./titel->t] PUBLISH b;\n"
        "               ^^^^^\nhelp: did you mean title?"
    )


@pytest.mark.parametrize("feeds", [None, "item"])
@pytest.mark.parametrize(
    ("text", "at", "message", "hint"),
    [
        ('S//item[lower-case(./category) = "AI"]', '"AI"', 'lower-case(...) never is "AI": this never holds',
         'write "ai"'),
        ('S//item["ai" != upper-case(./category)]', '"ai"', 'upper-case(...) never is "ai": this always holds',
         'write "AI"'),
        ('S//item[contains(lower-case(./title), "Policy")]', '"Policy"',
         'lower-case(...) never has "Policy" in it: this never holds', 'write "policy"'),
        ('S//item[starts-with(upper-case(./title), "ß")]', '"ß"',
         'upper-case(...) never begins with "ß": this never holds', 'write "SS"'),
        ('S//item[host(./item_url) = "X.com"]', '"X.com"', 'host(...) never is "X.com": this never holds',
         'write "x.com"'),
        ('S//item[host(./item_url) = "http://x.com/a"]', '"http://x.com/a"',
         'host(...) never is "http://x.com/a": this never holds', 'write "x.com"'),
        ('S//item[normalize-space(./title) = "a  b"]', '"a  b"',
         'normalize-space(...) never is "a  b": this never holds', 'write "a b"'),
        ('S//item->a JOIN {a/guid = b/guid and lower-case(a/lang) = "EN", 1 h} S//item->b', '"EN"',
         'lower-case(...) never is "EN": this never holds', 'write "en"'),
        ('S//item->a[./title->t][contains(t, "AI")]', "t",
         "t is a variable, and filters know paths only: this is an element named t",
         "write ./title (or ./t, if you mean an element of that name)"),
        ('S//item->a[a/title = "x"]', "a", "a is a variable, and filters know paths only: this is an element named a",
         "write ./title (or ./a, if you mean an element of that name)"),
    ],
)  # fmt: skip
def test_warnings_of_conditions_need_no_feeds(text, at, message, hint, feeds):
    (found,) = warned(text, feeds)
    assert (text[found.span.start : found.span.end], found.message, found.hint) == (at, message, hint)


def test_conditions_that_may_hold():
    for text in (
        'S//item[lower-case(./title) = "ai" and upper-case(./title) != "SS" and lower-case(./title) = ""]',
        'S//item[host(./item_url) = "x.com" or host(./item_url) = ""][contains(normalize-space(./title), "a  b")]',
        'S//item[date(./timestamp) = "2026-07-16T10:00:00+02:00"][canonical-url(./item_url) = "https://x.com"]',
        'S//item->a[./title->title][contains(title, "AI")][./author->author]',
        'S//x->a[./title->t][contains(./t, "AI")][./b/a]',
    ):
        assert warned(text, None) == []


def shown(xml: str, *, full: bool = True) -> list[str]:
    return [line.plain for line in document_lines(parse_document(xml.encode()).root, full=full)]


def test_elements_have_their_numbers_and_texts_stand_in_their_places():
    assert shown("<a k='1'> <b>x</b> tail <c/><d>t<e>u</e>v</d>\n</a>") == [
        '0  <a k="1">',
        "1    <b>x</b>",
        "      tail ",
        "2    <c/>",
        "3    <d>",
        "       t",
        "4      <e>u</e>",
        "       v",
        "     </d>",
        "   </a>",
    ]


def test_namespaces_are_declared_where_they_begin():
    assert shown('<p:a xmlns:p="urn:p" xmlns="urn:d" p:k="1"><b xml:lang="en"/><c xmlns=""/></p:a>') == [
        '0  <p:a xmlns:p="urn:p" xmlns="urn:d" p:k="1">',
        '1    <b xml:lang="en"/>',
        '2    <c xmlns=""/>',
        "   </p:a>",
    ]


@pytest.mark.parametrize("seed", seeds(5, 1000))
def test_numbers_and_names_are_those_of_brute_force(seed):
    xml = document_xml(Random(seed), 30)
    lines = shown(xml.decode())
    found = [(int(m[1]), m[2]) for line in lines if (m := re.match(r" *([0-9]+)  +<(?:\w+:)?(\w+)", line))]
    elements = Tree(xml).elements
    assert found == [(number, etree.QName(element).localname) for number, element in enumerate(elements)]


@pytest.mark.parametrize("seed", seeds(2, 500))
def test_documents_have_one_shape_if_they_have_the_same_paths(seed):
    rng = Random(seed)
    documents = [document_xml(rng, 4) for _ in range(30)]
    paths = [all_paths(xml) for xml in documents]
    shapes = [document_shape(parse_document(xml).root) for xml in documents]
    for one, of_one in zip(paths, shapes, strict=True):
        for other, of_other in zip(paths, shapes, strict=True):
            assert (one == other) is (of_one == of_other)
    counted = Shapes()
    numbers = [counted.number(parse_document(xml).root) for xml in documents]
    assert sum(counted.met.values()) == 30 and len(set(numbers)) == len(set(shapes))


def all_paths(xml: bytes) -> frozenset[tuple[str, ...]]:
    tree = Tree(xml)
    found: set[tuple[str, ...]] = set()
    for element in tree.elements:
        path = tuple(str(up.tag) for up in (*reversed(list(element.iterancestors())), element))
        found.add(path)
        found.update((*path, "@" + str(name)) for name in element.attrib)
    return frozenset(found)


def test_what_could_change_a_terminal_is_replaced():
    lines = shown("<a k='&#x9b;1m&#10;'>\u009b31mred\u202e &lt;b&gt; &amp; line&#10;tab&#9;</a>")
    assert lines == ['0  <a k="\ufffd1m↵">\ufffd31mred\ufffd &lt;b&gt; &amp; line↵tab⇥</a>']


def test_long_texts_and_documents_are_shortened_unless_asked_for_in_full():
    xml: str = f"<a>{'<b>y</b>' * 200}</a>"
    short, long = shown(xml, full=False), shown(xml)
    assert len(long) == 202
    assert len(short) == SHORT_LINES + 1 and short[-1].strip() == "… the rest is left out"
    assert shown(f"<a>{'x' * 1234}</a>", full=False) == [f"0  <a>{'x' * 160}… (1,234 characters)</a>"]


def test_a_deep_document_is_shown():
    assert len(shown("<a>" * 200 + "</a>" * 200)) == 399
