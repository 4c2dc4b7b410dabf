import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, product
from random import Random

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.documents.record import Record, record_of
from mmqjp.engine import Session
from mmqjp.explain.automaton import Shapes, document_shape
from mmqjp.explain.evidence import BlockEvidence
from mmqjp.explain.plan import absences_in, answers_after, decided_when
from mmqjp.explain.svg import SHORT_LINES, document_lines
from mmqjp.explain.terms import Operand, ReadableQuery, Reason
from mmqjp.explain.trial import sample_of
from mmqjp.explain.warnings import warnings_of
from mmqjp.present.newest import shown_outputs
from mmqjp.present.output_why import why_output
from mmqjp.present.query_lookup import known_queries
from mmqjp.present.why_not import explain_missing_output, verdict
from mmqjp.queries.stored import Compiler
from tests.generate.documents import document_xml
from tests.generate.near import near_case
from tests.generate.seeds import at_length, seeds
from tests.generate.strategies import random_case
from tests.oracle.bindings import Match, Stored, Value
from tests.oracle.evaluation import Evaluation, mentioned
from tests.oracle.match import Matcher, Tree
from tests.oracle.stages import Stages
from tests.oracle.values import apply, text_of
from xpath_stage.binder import uncounted
from xpath_stage.documents import parse_document
from xscl.algebra.values import VarPath
from xscl.check_expressions import blocks
from xscl.event_forms import parts_of_kind
from xscl.parser import located_queries, parse_script
from xscl.printer import to_xscl
from xscl.syntax import Input, Query, Script, SubQuery
from xscl.text import XsclError


@pytest.mark.parametrize(
    ("script", "xmls", "name", "nodes", "said"),
    [
        ("FROM S//a->x[./k->k] FOLLOWED BY {x = y OR lower-case(k) = y, INF} S//b->y",
         ("<r><a>no<k>V</k></a><a>yes<k>w</k></a></r>", "<b>v</b>"), "q1", {"x": 1, "y": 0},
         "lower-case k V 0 = b v 1"),
        ("FROM S/a->x[./k->k] FOLLOWED BY {k = y, INF} S/b/l->y FOLLOWED BY {y = z, INF} S/c->z",
         ("<a><k>v</k></a>", "<b><l>v</l></b>", "<c>v</c>"), "q1", {"x": 0, "y": 1, "z": 0},
         "k v 0 = l v 1; l v 1 = c v 2"),
        # a reader of outputs has a node of no document of its own
        ("FROM S/a->x FOLLOWED BY {x = y, INF} S/b->y PUBLISH p; "
         "FROM p//a->l FOLLOWED BY {l = r, INF} S/c->r PUBLISH q", ("<a>v</a>", "<b>v</b>", "<c>v</c>"),
         "q", {"l": 1, "r": 0}, "a v None = c v 2"),
        # a document on both sides of a chain has its first place
        ("FROM S/a->x JOIN {x = y, INF} S/b->y JOIN {y = z, INF} S/a->z", ("<a>v</a>", "<b>v</b>"),
         "q1", {"x": 0, "y": 0, "z": 0}, "a v 0 = b v 1; b v 1 = a v 0"),
        ("FROM S/a->x", ("<a/>",), "q1", {"x": 0}, ""),
        ('FROM S/a->x[./@k->k][./t->t] JOIN {k = l AND contains(t, "{0}") AND t != u, INF} S/b->y[./@l->l][./u->u]',
         ('<a k="1"><t>{0}</t></a>', '<b l="1"><u>w</u></b>'), "q1", {"x": 0, "y": 0},
         'a/@k 1 0 = b/@l 1 1; contains(t {0} 0, "{0}"); t {0} 0 != u w 1'),
    ],
)  # fmt: skip
def test_reasons_are_of_the_disjunct_and_the_nodes_and_inner_values_come_first(script, xmls, name, nodes, said):
    def told(part):
        is_operand = isinstance(part, Operand)
        return " ".join((*part.functions, part.name, part.text, str(part.document))) if is_operand else part

    with Session("duckdb") as engine:
        engine.subscribe(script)
        outputs = engine.process([Document(f"d{number}", xml, time=number) for number, xml in enumerate(xmls, 1)])
        found = [(match.output, match.reason) for match in shown_outputs(engine, outputs)]
    texts = []
    for output, reason in found:
        assert reason is not None and reason == Reason(reason.joined, reason.conditions)
        joined = [f"{told(one.left)} = {told(one.right)}" for one in reason.joined]
        conditions = ["".join(map(told, condition.parts)) for condition in reason.conditions]
        texts.append((output.query, dict(output.nodes), "; ".join(joined + conditions)))
    assert (name, nodes, said) in texts


def test_when_an_absence_is_decided():
    def absences(text):
        return absences_in(Compiler().compile_text(text).normal)

    for text, *told in (
        ("S/a->x JOIN {x = y, 1 h} S/b->y",),
        ("S/a->x NOT JOIN {x = y OR x = z, 1 h} T/b->y[./c->z]",
         "NOT JOIN is decided 1 h and the lateness of T after a document; T is kept for 2 h"),
        ("S/a->x NOT PRECEDED BY {x = y, INF} T/b->y JOIN {x = z, 1 h} S/c->z",
         "NOT PRECEDED BY is decided the lateness of T after a document; T is kept for good"),
        ("S/a->x NOT PRECEDED BY {x = y, 3 s} (SELECT y FROM T/b->y NOT JOIN {y = z, 2 s} U/c->z)",
         "NOT JOIN is decided 2 s and the lateness of U after a document; U is kept for 4 s",
         "NOT PRECEDED BY is decided the lateness of its right input after a document; "
         "its right input is kept for 3 s"),
    ):  # fmt: skip
        assert list(map(answers_after, absences(text))) == told
    (absence,) = absences("S/a->x NOT FOLLOWED BY {x = y, 90 s} T/b->y")
    assert decided_when(absence) == (
        "decided when the watermark of T is more than 90 s past the beginning of a left document"
    )


def warned(text: str, feeds: object = "item") -> list[XsclError]:
    return warnings_of(text, parse_script(text), feeds)  # type: ignore[arg-type]  # the tests give right ones


OF_ITEMS = [
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
    ("S//item[./item_url < 5]", "./item_url < 5", "item_url holds an address, which is not a number: this never holds",
     "compare it with = or !="),
    ("S//item[./updated != 5]", "./updated != 5", "updated holds a time, which is not a number: this always holds",
     'compare it with a time, such as "2026-07-16"'),
    ("S//item[./timestamp < ./updated]", "./timestamp < ./updated",
     "two paths are compared as numbers, and this is a time: this never holds",
     "write date(./timestamp) < date(./updated)"),
    ("S//item->a JOIN {a/guid = b/guid and a/updated >= b/title, 1 h} S//item->b", "a/updated >= b/title",
     "two paths are compared as numbers, and this is a time: this never holds",
     "write date(a/updated) >= date(b/title)"),
    ('S//item[./timestamp = "2026-07-16"]', './timestamp = "2026-07-16"',
     "items write this time as 2026-07-16T00:00:00Z: this never holds", 'write date(./timestamp) = "2026-07-16"'),
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
]  # fmt: skip
OF_CONDITIONS = [
    ('S//item[lower-case(./category) = "AI"]', '"AI"', 'lower-case(...) never is "AI": this never holds', 'write "ai"'),
    ('S//item["ai" != upper-case(./category)]', '"ai"', 'upper-case(...) never is "ai": this always holds',
     'write "AI"'),
    ('S//item[contains(lower-case(./title), "Policy")]', '"Policy"',
     'lower-case(...) never has "Policy" in it: this never holds', 'write "policy"'),
    ('S//item[starts-with(upper-case(./title), "ß")]', '"ß"',
     'upper-case(...) never begins with "ß": this never holds', 'write "SS"'),
    ('S//item[host(./item_url) = "X.com"]', '"X.com"', 'host(...) never is "X.com": this never holds', 'write "x.com"'),
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
]  # fmt: skip
"""These need no feeds."""


@pytest.mark.parametrize(
    ("feeds", "text", "at", "message", "hint"),
    [("item", *row) for row in OF_ITEMS] + [(feeds, *row) for row in OF_CONDITIONS for feeds in (None, "item")],
)
def test_a_warning_has_its_place_its_cause_and_what_to_do(feeds, text, at, message, hint):
    """docs/checking.md shows more."""
    (found,) = warned(text, feeds)
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
    for text in (
        'S//item[lower-case(./title) = "ai" and upper-case(./title) != "SS" and lower-case(./title) = ""]',
        'S//item[host(./item_url) = "x.com" or host(./item_url) = ""][contains(normalize-space(./title), "a  b")]',
        'S//item[date(./timestamp) = "2026-07-16T10:00:00+02:00"][canonical-url(./item_url) = "https://x.com"]',
        'S//item->a[./title->title][contains(title, "AI")][./author->author]',
        'S//x->a[./title->t][contains(./t, "AI")][./b/a]',
    ):
        assert warned(text, None) == []


def test_places_of_warnings_and_documents_that_are_not_items():
    text = "S//item[./titel->t] PUBLISH a;\n\n   S//item[./titel->t] PUBLISH b;\nS//item[./titel->u]"
    assert [(w.line, w.column) for w in warned(text)] == [(1, 11), (3, 14), (4, 11)]
    text = "S//titel[./@k < 5]; T//x; new//x; S//a PUBLISH news; S//item[./lang = 'a' and ./lang = 'b']"
    assert [w.message for w in warned(text, None)] == ["nothing PUBLISHes new"]
    assert [w.message for w in warned(text, "raw")] == [
        "nothing PUBLISHes T, and feeds come on stream S",
        "nothing PUBLISHes new, and feeds come on stream S",
    ]


def shown(xml: str, *, full: bool = True) -> list[str]:
    return [line.plain for line in document_lines(parse_document(xml.encode()).root, full=full)]


def test_documents_are_shown_with_numbers_namespaces_and_no_control_characters():
    xml = '<p:a xmlns:p="urn:p" xmlns="urn:d" p:k="1"> <b>x</b> tail <c xmlns=""/><d xml:lang="e">t<e>u</e></d>\n</p:a>'
    expected = """\
0  <p:a xmlns:p="urn:p" xmlns="urn:d" p:k="1">
1    <b>x</b>
      tail\x20
2    <c xmlns=""/>
3    <d xml:lang="e">
       t
4      <e>u</e>
     </d>
   </p:a>"""
    assert shown(xml) == expected.split("\n")
    lines = shown("<a k='&#x9b;1m&#10;'>\u009b31mred\u202e &lt;b&gt; &amp; line&#10;tab&#9;</a>")
    assert lines == ['0  <a k="\ufffd1m↵">\ufffd31mred\ufffd &lt;b&gt; &amp; line↵tab⇥</a>']


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


def test_long_texts_and_documents_are_shortened_unless_asked_for_in_full():
    xml: str = f"<a>{'<b>y</b>' * 200}</a>"
    short, long = shown(xml, full=False), shown(xml)
    assert len(long) == 202
    assert len(short) == SHORT_LINES + 1 and short[-1].strip() == "… the rest is left out"
    assert shown(f"<a>{'x' * 1234}</a>", full=False) == [f"0  <a>{'x' * 160}… (1,234 characters)</a>"]
    assert len(shown("<a>" * 200 + "</a>" * 200)) == 399


def test_each_stage_of_a_block_matches_as_many_documents_as_by_brute_force():
    matched = list(chain.from_iterable(map(checked_blocks, seeds(6, 2000, 10))))
    assert sum(0 < one < documents for one, documents in matched) > 25
    assert sum(one == 0 < documents for one, documents in matched) > 1


def checked_blocks(seed: int) -> Iterator[tuple[int, int]]:
    script, documents = random_case(seed, 6, 12)
    text, namespaces = to_xscl(script), dict(script.namespaces)
    trees = [(Tree(document.xml), document) for document in documents]
    for query in located_queries(text, range(len(script.queries))):
        for block in blocks(query.source):
            alone = ReadableQuery.in_place(text, Query(block), namespaces)
            evidence = BlockEvidence(alone, 0, alone.normal.conjuncts[0].left)
            here = [tree for tree, document in trees if document.stream == block.stream]
            for _, one in trees:
                row = {"docid": 0, "kind": "external", "parts": None, "arrival": 0, "watermark": None, "taken_at": 5}
                row |= {"id": one.id, "stream": one.stream, "t0": one.t0, "t1": one.t1, "xml": one.xml_bytes().decode()}
                evidence.look(record_of(row), uncounted)
            stages = list(evidence.told())
            assert [stage.counted.found for stage in stages[1:]] == [
                sum(bool(Matcher(tree, namespaces).embeddings(None, stage.steps)) for tree in here)
                for stage in alone.stages[0][: len(stages) - 1]
            ]
            counts = [stage.counted.found for stage in stages]
            assert counts == sorted(counts, reverse=True) and all(counts[:-1])
            whole = sum(bool(Matcher(tree, namespaces).embeddings(None, block.steps)) for tree in here)
            assert (counts[0], evidence.left_out, len(evidence.rows)) == (len(here), 0, whole)
            assert all(stage.shown().message for stage in stages if not stage.counted.found)
            yield whole, len(here)


def test_a_document_met_again_and_one_that_cannot_be_read_are_left_out():
    documents = [Document("d", "<a/>"), Document("d", "<b/>"), Document("e", "<a"), Document("f", "<a/>")]
    sample = sample_of(documents, 2)
    assert ([d.id for d in sample.documents], sample.refused, sample.streams) == (["d", "f"], 1, {"S": 2})


Place = tuple[Stored, int | str]


def test_the_nodes_are_those_of_a_joint_binding():
    checked = Counter[str]()
    for seed in seeds(1, 1500, first=14):
        check(seed, checked)
    assert not at_length() or min(checked[kind] for kind in ("joined", "chain", "filters", "fed")) > 3


def check(seed: int, checked: Counter[str]) -> None:
    script, documents = random_case(seed, 4, 10)
    evaluation = Evaluation(script, documents)
    of_queries = [evaluation._matches(one.source, frozenset(mentioned(one)), is_whole=True) for one in script.queries]
    with Session("duckdb", max_outputs=None, max_matches=None) as engine:
        engine.subscribe(to_xscl(script))
        engine.process(documents)
        outputs = list(engine.outputs())[:20]
        found = [why_output(lambda sql: engine.question(sql).answer(), output.id) for output in outputs]
    for why in found:
        output, reason = why.match.output, why.match.reason
        assert reason is not None
        named = [index for index, name in enumerate(script.names()) if name == output.query]
        index, answer = next(
            (index, one) for index in named for one in evaluation.outputs(index) if one.stored.id == output.id
        )
        query = script.queries[index]
        matches = [match for match in of_queries[index] if match.inputs == answer.inputs]
        sources = [source for stored in answer.inputs for source in stored.externals]
        for joined in reason.joined:
            assert value_of(joined.left) == value_of(joined.right)
        operands = [operand for joined in reason.joined for operand in (joined.left, joined.right)]
        of_matches = (set(nodes_of(query.source, match, evaluation)) for match in matches)
        assert any(all(is_among(operand, sources, places) for operand in operands) for places in of_matches)
        fed = [stored.id for stored in answer.inputs if len(stored.externals) > 1 or stored.id not in dict(sources)]
        assert set(fed) <= {one.id for one in why.fed} <= {stored.id for stored in answer.inputs}
        assert len(reason.timings) == len(answer.inputs) - 1
        for timing in reason.timings:
            assert timing.window is None or timing.distance <= timing.window
            assert timing.op != "FOLLOWED BY" or timing.gap > 0
        checked["joined"] += len(reason.joined)
        checked["chain"] += len(answer.inputs) > 2
        checked["filters"] += len(reason.filters)
        checked["fed"] += len(why.fed)


def value_of(operand: Operand) -> str:
    value = operand.text
    for function in operand.functions:
        name, *texts = function.split(" ", 1)
        value = text_of(apply(name, value, *(text[1:-1].replace('""', '"') for text in texts)))
    return value


def is_among(operand: Operand, sources: list[tuple[str, str]], places: set[Place]) -> bool:
    assert operand.node is not None
    source = None if operand.document is None else sources[operand.document]
    for stored, label in places:
        if label == operand.node and (source is None or (stored.id, stored.stream) == source):
            element, _, attribute = str(label).partition("/@")
            node = stored.tree.elements[int(element)]
            text = str(node.attrib[attribute]) if attribute else "".join(map(str, node.itertext()))
            if text == operand.text:
                return True
    return False


def nodes_of(source: Input, match: Match, evaluation: Evaluation) -> Iterator[Place]:
    paths = {repr(path.steps): path.steps for path in parts_of_kind(source, VarPath)}
    for value in [*match.visible.values(), *inner_values(source, match, evaluation)]:
        if value.document is None or value.node is None:
            continue
        yield value.document, value.node.label()
        matcher = Matcher(value.document.tree, evaluation._namespaces)
        for steps in paths.values():
            if steps:
                yield from ((value.document, node.label()) for node in matcher.nodes(value.node, steps))


def inner_values(source: Input, match: Match, evaluation: Evaluation) -> Iterator[Value]:
    needed = frozenset(mentioned(source))
    for block, stored in zip(blocks(source), match.inputs, strict=True):
        for found in evaluation._in_document(block, needed, stored):
            yield from found.visible.values()


Key = tuple[tuple[str, str], ...]
"""Documents, by their streams and ids."""

CHOICES = 40
"""So many choices of documents are tried for a query."""


STAGES = {"output", "stream", "pattern", "asked", "equality", "words", "different", "order", "window", "residual"}
STAGES |= {"mirror"}


def test_the_stage_that_is_named_is_the_first_that_is_not_passed():
    seen = Counter[str]()
    for seed in seeds(1, 1500, first=20):
        check_stages(Random(seed), *random_case(seed, 4, 10), seen)
        check_stages(Random(seed), *near_case(seed, 4, 10), seen)
    assert not at_length() or seen.keys() >= STAGES


def check_stages(rng: Random, script: Script, documents: list[Document], seen: Counter[str]) -> None:
    evaluation = Evaluation(script, documents)
    with Session("duckdb", max_outputs=None, max_matches=None, max_work=None) as engine:
        engine.subscribe(to_xscl(script))
        engine.process(documents)
        stored = [record_of(row) for row in engine.sql("SELECT * FROM documents WHERE kind <> 'hidden'").to_pylist()]
        names = dict.fromkeys(script.names())
        known = {one.text: one for name in names for one in known_queries(lambda sql: engine.sql(sql), name)}
        all_outputs = {output.id for output in engine.outputs()}
        for index, (query, name) in enumerate(zip(script.queries, script.names(), strict=True)):
            text = to_xscl(type(script)((query,), script.namespaces))
            if text not in known or script.queries[:index].count(query):
                continue  # an equal one has been looked at
            one = known[text]
            answers: dict[Key, set[str]] = {}
            for answer in evaluation.outputs(index):
                key = tuple((part.stream, part.id) for part in answer.inputs)
                answers.setdefault(key, set()).add(answer.stored.id)
            for chosen in choices(rng, query, stored, set(answers)):
                made = verdict(one, chosen)
                found = made.why
                key = tuple((record.stream, record.id) for record in chosen)
                if found.kind == "too large":
                    continue
                assert (found.kind == "output") == (key in answers), (text, key, found.kind, found.message)
                seen[found.kind] += 1
                if found.kind == "output":
                    assert {given.id for given in made.given} == answers[key]
                    assert query.once is not None or answers[key] <= all_outputs
                    continue
                assert found.message and found.stages[-1].kind == found.kind and not found.stages[-1].found
                if any(parts_of_kind(query.source, SubQuery)):
                    continue
                own = [one for record in chosen for one in evaluation._stream(record.stream) if one.id == record.id]
                expected = Stages(evaluation, query).first_failure(own)
                assert found.kind == expected, (text, key, found.stages, found.message)
            some = rng.sample(choices(rng, query, stored, set(answers)), 1)[0]
            if len({record.id for record in stored}) == len(stored):
                said = explain_missing_output(lambda sql: engine.sql(sql), name, [record.id for record in some])
                assert bool(said.outputs) == (said.kind == "output")
                assert set(said.outputs) <= all_outputs


def choices(rng: Random, query: Query, stored: list[Record], answers: set[Key]) -> list[list[Record]]:
    """Choices of documents for the blocks of a query: of its streams mostly, and some that give outputs."""
    by_key = {(record.stream, record.id): record for record in stored}
    of_blocks = [[record for record in stored if record.stream == block.stream] for block in blocks(query.source)]
    found = [[by_key[key] for key in keys] for keys in sorted(answers)[: CHOICES // 4]]
    every = list(product(*of_blocks)) if len(of_blocks) < 4 else []
    found += [list(some) for some in rng.sample(every, min(len(every), CHOICES - len(found)))]
    found.append([rng.choice(stored) for _ in of_blocks])
    return found
