"""Stage 1: its witnesses, joined over a pattern's minor edges, are exactly its matches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from types import ModuleType
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.documents import Document
from templates.catalog import StepEdge
from templates.witness import node_id, plain_node
from tests.generate.blocks import BlockMaker
from tests.generate.documents import NAMESPACE, document_xml
from tests.generate.seeds import examples, seeds
from tests.generate.strategies import cases, random_case
from tests.oracle.match import Matcher, Node, Tree
from tests.support.conjuncts import conjuncts_of
from tests.support.witnessed import Stage
from xpath_stage import automaton, emissions, evaluator
from xpath_stage import documents as documents_module
from xpath_stage.binder import bindings
from xpath_stage.documents import Limits, ParsedDocument, StreamDocument, parse_document
from xpath_stage.evaluator import XPathStage
from xscl.algebra.joins import Conjunct
from xscl.algebra.trees import PatternNode
from xscl.lower import PatternBuilder
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Script


def parsed(documents: Iterable[Document]) -> list[StreamDocument]:
    return [StreamDocument(i, d.stream, 0, 0, parse_document(d.xml_bytes())) for i, d in enumerate(documents)]


def in_stream_s(texts: Iterable[str]) -> list[StreamDocument]:
    return [StreamDocument(i, "S", 0, 0, parse_document(text.encode())) for i, text in enumerate(texts)]


def standing(given: str | Iterable[Conjunct], limits: Limits | None = None) -> Stage:
    stage = Stage(XPathStage(limits=limits) if limits else None)
    stage.add(conjuncts_of(parse_script(given)) if isinstance(given, str) else given)
    return stage


# ---------------------------------------------------------------- random patterns and documents


@given(st.lists(cases(max_queries=4, max_elements=12), min_size=1, max_size=3))
@examples(15, 1_000)
def test_joined_witnesses_are_the_matches(found: list[tuple[Script, list[Document]]]):
    stage = Stage()
    for script, _ in found:
        stage.add(conjuncts_of(script))
    stage.check(parsed(document for _, documents in found for document in documents))


@given(cases(max_queries=4), cases(max_queries=4), st.randoms(use_true_random=False), st.sampled_from([1, 5, 100]))
@examples(12, 1_000)
def test_patterns_come_and_go_and_states_are_flushed(
    one: tuple[Script, list[Document]], two: tuple[Script, list[Document]], rng: Random, max_states: int
):
    documents = parsed(one[1] + two[1])
    stage = Stage(XPathStage(limits=Limits(states=max_states)))
    stage.add(conjuncts_of(one[0]))
    stage.check(documents)
    stage.add(conjuncts_of(two[0]))
    stage.check(documents)
    for _ in range(len(stage.standing) // 2):
        stage.remove(rng.randrange(len(stage.standing)))
    stage.check(documents)
    fresh = Stage()
    fresh.add(conjunct for conjunct, _ in stage.standing)
    assert stage.named(stage.evaluate(documents)) == fresh.named(fresh.evaluate(documents))
    stage.add(conjuncts_of(one[0]))
    stage.check(documents)
    while stage.standing:
        stage.remove(rng.randrange(len(stage.standing)))
    nothing = stage.evaluate(documents)
    assert not nothing.edges
    assert not nothing.values


def test_shapes_are_hit_missed_and_flushed():
    stage = standing('S//a->x[./@m]; S//b->y[. = "1"]', Limits(shapes=4))
    texts = ["<a><b>1</b></a>", "<a><b>2</b></a>", "<a><b>3</b></a>", '<a m=""><b>1</b></a>', '<a m="2"><b>1</b></a>']

    def counts(texts: list[str]) -> list[int]:
        before = stage.stage.counters()
        stage.check(in_stream_s(texts))
        after = stage.stage.counters()
        return [after[name] - before[name] for name in ("shape_hits", "shape_misses")]

    # A shape is kept when it is met the second time.
    assert counts(texts) == [0, 5]
    assert counts(texts) == [4, 1]
    assert counts(texts) == [5, 0]
    assert counts([f"<a>{'<b>1</b>' * n}</a>" for n in range(9)]) == [0, 9]
    assert stage.stage.counters()["flushes"] > 2


@pytest.mark.parametrize(
    ("module", "limit"),
    [
        *((documents_module, "MOST_TEXT"), (evaluator, "MAX_SIZE"), (emissions, "MAX_TABLE"), (evaluator, "CHUNK")),
        *((evaluator, "MAX_ELEMENTS"), (evaluator, "HELD_VALUES"), (automaton, "MOST_PARTS")),
    ],
)
@pytest.mark.parametrize("seed", seeds(1, 10))
def test_limits_change_nothing(seed: int, module: ModuleType, limit: str, monkeypatch: pytest.MonkeyPatch):
    script, documents = random_case(seed, 6, 6)
    texts = [f"{'<a>' * 40}{document.xml_bytes().decode()}{'</a>' * 40}" for document in documents]
    found = []
    for value in (getattr(module, limit), -1):
        monkeypatch.setattr(module, limit, value)
        stage = Stage()
        stage.add(conjuncts_of(script))
        batches = (parsed(documents), in_stream_s(texts), in_stream_s(texts))
        found.append([stage.named(stage.evaluate(batch)) for batch in batches])
    assert found[0] == found[1]


# ---------------------------------------------------------------- patterns one by one


def matched(block: str, *documents: str) -> list[str]:
    """The nodes that `x` of a block binds as a value-join variable, as `3` or `3/@k`."""
    prolog, _, path = block.rpartition("; ")
    stage = standing(f"{prolog + ';' if prolog else ''}FROM {path} JOIN {{x = z, 1 h}} Other/z->z")
    trees = in_stream_s(documents)
    stage.check(trees)
    found = stage.evaluate(trees)
    names = []
    for docid, node in sorted({(docid, row[0]) for (docid, _), rows in found.edges.items() for row in rows}):
        element, place = plain_node(node)
        name = trees[docid].tree.attribute(element, place)[0] if place else ""
        names.append(f"{element}/@{name}" if place else f"{element}")
    return sorted(names)


DEEP = "<a><a k='1'><b k='2'/></a><b><a><c m='1'/></a></b></a>"  # 0 a, 1 a, 2 b, 3 b, 4 a, 5 c


@pytest.mark.parametrize(
    ("block", "document", "nodes"),
    [
        # axes and name tests
        ("/a->x", DEEP, ["0"]),
        ("//a->x", DEEP, ["0", "1", "4"]),
        ("//a//a->x", DEEP, ["1", "4"]),
        ("//a//a//a->x", DEEP, []),
        ("//a//a//a->x", "<a><a><a><a/></a></a></a>", ["2", "3"]),
        ("//a/a->x", DEEP, ["1"]),
        ("//a/*/a->x", DEEP, ["4"]),
        ("//*->x", DEEP, ["0", "1", "2", "3", "4", "5"]),
        ("/*/*->x", DEEP, ["1", "3"]),
        ("S->x", DEEP, ["0"]),
        ("//@k->x", DEEP, ["1/@k", "2/@k"]),
        ("//a//@k->x", DEEP, ["1/@k", "2/@k"]),
        ("//a/a/@k->x", DEEP, ["1/@k"]),
        ("//b//@*->x", DEEP, ["2/@k", "5/@m"]),
        ("//a//a//@*->x", DEEP, ["1/@k", "2/@k", "5/@m"]),
        ("/@k->x", "<a k='1'/>", []),
        # namespaces
        ("//b->x", "<a xmlns='u:x'><b/><b xmlns=''/></a>", ["2"]),
        ("//*:b->x", "<a xmlns='u:x'><b/><b xmlns=''/></a>", ["1", "2"]),
        ("DECLARE NAMESPACE p = 'u:x'; //p:b->x", "<a xmlns='u:x'><b/><b xmlns=''/></a>", ["1"]),
        ("DECLARE NAMESPACE p = 'u:x'; //p:*->x", "<a xmlns='u:x'><b/><b xmlns=''/></a>", ["0", "1"]),
        ("DECLARE NAMESPACE p = 'u:x'; //@p:k->x", "<a xmlns:q='u:x' k='1' q:k='2' q:m=''/>", ["0/@{u:x}k"]),
        ("//@k->x", "<a xmlns='u:x' xmlns:q='u:x' k='1' q:k='2'/>", ["0/@k"]),
        ("//*:a[@xml:lang = 'de']->x", "<a xml:lang='de'><a xml:lang='en'/></a>", ["0"]),
        ("DECLARE NAMESPACE p = 'u:x'; //a[not(./p:b)]->x", "<a xmlns:q='u:x'><a><q:b/></a><a><b/></a></a>",
         ["0", "3"]),
        ("//a[not(./*:b)]->x", "<a xmlns:q='u:x'><a><q:b/></a><a><b/></a></a>", ["0"]),
        # existence, at any depth and above the bound node
        ("//a[./b]->x", DEEP, ["0", "1"]),
        ("//a[.//b]//a->x", DEEP, ["1", "4"]),
        ("//a[./c]/c->x", DEEP, ["5"]),
        ("//a[@k]/b->x", DEEP, ["2"]),
        ("//a[.//@m]->x", DEEP, ["0", "4"]),
        ("//b[./a[./c[@m]]]->x", DEEP, ["3"]),
        ("//a[./a[./b]/@k]/b->x", DEEP, ["3"]),
        ("//a[.]->x", DEEP, ["0", "1", "4"]),
        # values
        ("//b[. = '1']->x", "<a><b>1</b><b>1<c/></b><b> 1</b><b><c>1</c></b></a>", ["1", "2", "5"]),
        ("//a[./b = '1']->x", "<a><a><b>1</b></a><a><b>2</b><b>1</b></a><b>2</b></a>", ["1", "3"]),
        ("//a[@k = '1']/b->x", "<a k='1'><b/><a k='2'><b/></a></a>", ["1"]),
        ("//@k[. = '1']->x", "<a k='1'><b k='2'/><c k='1'/></a>", ["0/@k", "2/@k"]),
        ("//@k[. != '1']->x", "<a k='1'><b k='2'/><c k='1'/></a>", ["1/@k"]),
        ("//@*[contains(., '2')]->x", "<a k='12'><b m='2'/><c k='1'/></a>", ["0/@k", "1/@m"]),
        ("//b[. = '']->x", "<a><b/><b></b><b> </b><b><c/></b></a>", ["1", "2", "4"]),
        ("//a[./b = '']->x", "<a><a/><a><b/></a></a>", ["2"]),
        ("//b[. = '1'][. = '2']->x", "<a><b>1</b></a>", []),
        # booleans
        ("//a[not(./b)]->x", DEEP, ["4"]),
        ("//a[./b or ./c]->x", DEEP, ["0", "1", "4"]),
        ("//a[./b and not(@k)]->x", DEEP, ["0"]),
        ("//a[not(./b and @k)]->x", DEEP, ["0", "4"]),
        # conditions, which test_conditions_saxon has of all kinds
        ("//b[count(./c) > 1]->x", "<a><b><c/></b><b><c/><c/></b></a>", ["3"]),
        ("//b[matches(./@k, 'x|y')]->x", "<a><b k='y'/><b/></a>", ["1"]),
        ("//b[. < 10]->x", "<a><b>9</b><b>10</b><b>1e0</b><b>x</b></a>", ["1"]),
        ("//b[./c = ./d]->x", "<a><b><c>1</c><c>2</c><d>2</d></b><b><c>1</c><d>1.0</d></b></a>", ["1"]),
        ("//b[string(number(.)) = 'NaN']->x", "<a><b>1e3</b><b>-</b><b>1</b></a>", ["1", "2"]),
        ("//b[. != \"it's \"\"so\"\"\"]->x", "<a><b>it's \"so\"</b><b>its so</b></a>", ["2"]),
        # comments and instructions are no text, entities are
        ("//b[. = '12']->x", "<a><b>1<!-- x -->2</b><b><?p 1?>12</b><b><![CDATA[1]]>2</b><b>&#49;2</b></a>",
         ["1", "2", "3", "4"]),
    ],
)  # fmt: skip
def test_a_block_s_matches(block: str, document: str, nodes: list[str]):
    assert matched(block, document) == nodes


def test_a_join_on_a_node_s_function_has_the_derived_value():
    stage = standing("//a->x[./b->y] JOIN {lower-case(x) = z AND x = z AND host(lower-case(y)) = z, 1 h} Other/z->z")
    documents = in_stream_s(["<a>X<b>HTTP://EX.org/Y</b></a>"])
    assert stage.check(documents) == 1
    assert set(stage.evaluate(documents).values.items()) == {
        ((0, node_id(0)), "XHTTP://EX.org/Y"),
        ((0, node_id(0, 0, stage.catalog.chains["lower-case",])), "xhttp://ex.org/y"),
        ((0, node_id(1, 0, stage.catalog.chains["lower-case", "host"])), "ex.org"),
    }
    stage, documents = standing("//a/@k->x JOIN {upper-case(x) = z, 1 h} Other/z->z"), in_stream_s(["<a j='i' k='v'/>"])
    assert stage.check(documents) == 1
    assert stage.evaluate(documents).values == {(0, node_id(0, 2, chain=1)): "V"}


# ---------------------------------------------------------------- groups


GROUPED = "; ".join(f"//a[./b->x][./c->y] JOIN {{x = u AND y = u, {n} s}} Other/u[@k = '{n}']->u" for n in range(1, 4))


def test_streams_are_apart_and_only_value_join_nodes_have_their_strings_stored():
    stage = standing("One//a->x JOIN {x = y, 1 h} Two//b->y; Two//a->x JOIN {x = y, 1 h} Two//c->y")
    tree = parse_document(b"<a><b/><c/></a>")
    documents = [StreamDocument(i, stream, 0, 0, tree) for i, stream in enumerate(("One", "Two", "Three"))]
    bound = {(0, "One://a"): 0, (1, "Two://a"): 0, (1, "Two://b"): 1, (1, "Two://c"): 2}
    assert stage.named(stage.evaluate(documents)) == (
        {(docid, path, path): {((node, 0), (node, 0))} for (docid, path), node in bound.items()},
        {(docid, (node, 0)): "" for (docid, _), node in bound.items()},
    )
    stage = standing("//a->a[./b->x][./c->y] JOIN {x = u AND y = u AND a != u, 1 h} Other/u->u; //d->d")
    assert stage.evaluate(in_stream_s(["<a><b>1</b><c>2</c><d>3</d></a>"])).values == {(0, 1): "1", (0, 2): "2"}


def test_groups_are_handed_out_once_and_restored():
    joins = "JOIN {x = u AND y = u AND a = u, 1 h} Other/u->u; //*[./*:b->x][./*:c->y] JOIN {x = u AND y = u, 1 h}"
    batch = standing(f"//a->a[./b->x][./c->y] {joins} Other/u->u").stage.evaluate(in_stream_s(["<a><b/><c/></a>"]))
    assert sorted(batch.r_bin.column("node2").to_pylist()) == [0, 1, 2] and batch.r_group.num_rows == 5

    documents, stage = in_stream_s(["<a><b>1</b><c>2</c></a>"]), standing(GROUPED)
    first = stage.stage.evaluate(documents)
    assert first.r_group.num_rows == 2
    stage.stage.finish_batch(committed=False)  # what was not kept is new again
    assert stage.stage.evaluate(documents).r_group.sort_by("grp") == first.r_group.sort_by("grp")
    for committed in (True, False):
        stage.stage.finish_batch(committed=committed)
        assert stage.stage.evaluate(documents).r_group.num_rows == 0

    stored: dict[int, frozenset[StepEdge]] = {}
    for group, one, two in zip(*first.r_group.to_pydict().values(), strict=True):
        stored[group] = stored.get(group, frozenset()) | {(one, two)}
    again = Stage(XPathStage(stored.items()))
    again.add(conjuncts_of(parse_script(GROUPED + "; //a->x JOIN {x = y, 1 h} Other/y->y")))
    second = again.stage.evaluate(documents)
    assert set(first.r_bin.to_pydict()["grp"]) < set(second.r_bin.to_pydict()["grp"])
    assert second.r_group.num_rows == 1
    assert second.r_group.to_pydict()["grp"][0] not in stored


# ---------------------------------------------------------------- batches of any size

PAIRS = 1_000
"""Different pairs of a pattern and a document of its stream that are compared for a seed, at least."""

Batches = Sequence[Sequence[StreamDocument]]


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_witnesses_are_the_matches_in_any_batches(seed: int):
    rng, cacheable = Random(seed), seed % 2 == 1
    conjuncts, documents = workload(rng)
    if cacheable:
        conjuncts = [conjunct for conjunct in conjuncts if may_be_cached(conjunct)]
    pairs = compared(conjuncts, documents)
    assert pairs >= PAIRS
    matches, found = set[int](), []
    for max_shapes in (Limits().shapes, 0):
        stage = standing(conjuncts, Limits(shapes=max_shapes))
        matches.add(sum(map(stage.check, batches(documents, rng.choice((2, 9, 30))))))
        for size in (1, 17, len(documents)):
            stage = standing(conjuncts, Limits(shapes=max_shapes))
            found += [named(stage, batches(documents, size)) for _ in range(3 if max_shapes else 1)]
            hits = stage.stage.counters()["shape_hits"]
            assert (hits >= len(documents)) is (cacheable and max_shapes > 0)
            rng.shuffle(documents)
    assert len(matches) == 1
    assert matches.pop() > pairs / 4
    assert all(witnesses == found[0] for witnesses in found)


def workload(rng: Random) -> tuple[list[Conjunct], list[StreamDocument]]:
    """The queries of some random scripts, and all their documents mixed, on several streams."""
    conjuncts, samples = [], []
    for _ in range(5):
        script, documents = random_case(rng.randrange(10**6), 8, 8, 10)
        conjuncts += conjuncts_of(script)
        samples += [(document.stream, document.xml) for document in documents]
    rng.shuffle(samples)
    texts = [(stream, xml.encode() if isinstance(xml, str) else xml) for stream, xml in dict.fromkeys(samples)]
    return conjuncts, [StreamDocument(i, stream, 0, 0, parse_document(xml)) for i, (stream, xml) in enumerate(texts)]


def may_be_cached(conjunct: Conjunct) -> bool:
    """Whether the shape cache serves documents that the query reads: it has no condition in XPath or on attributes."""
    nodes = (node for side in conjunct.sides() for node in side.pattern.walk())
    conditions = ((node.test.kind, condition.xpath) for node in nodes for condition in node.conditions)
    return all(kind == "element" and xpath is None for kind, xpath in conditions)


def compared(conjuncts: Iterable[Conjunct], documents: Iterable[StreamDocument]) -> int:
    """How many different pairs of a pattern and a document `Stage.check` compares."""
    patterns = {(side.stream, str(side.pattern)) for conjunct in conjuncts for side in conjunct.sides()}
    return sum(stream == document.stream for stream, _ in patterns for document in documents)


def batches(documents: Sequence[StreamDocument], size: int) -> Batches:
    return [documents[start : start + size] for start in range(0, len(documents), size)]


def named(stage: Stage, of: Batches) -> tuple[object, object]:
    """The witnesses of all batches, with variables by definition."""
    edges: dict[object, object] = {}
    values: dict[object, object] = {}
    for batch in of:
        some, theirs = cast("tuple[dict[object, object], dict[object, object]]", stage.named(stage.evaluate(batch)))
        edges |= some
        values |= theirs
    return edges, values


# ---------------------------------------------------------------- the binder


@given(st.randoms(use_true_random=False), st.booleans())
def test_the_binder_agrees_with_the_oracle(rng: Random, namespaced: bool):
    xml = document_xml(rng, 12)
    block, names = BlockMaker(rng, namespaced).block("S", xml)
    other = document_xml(rng, 12)
    namespaces = {"p": NAMESPACE}
    pattern = PatternBuilder(namespaces).path(block.steps)
    variables = frozenset(name.var for name in names)
    for text in (xml, other):
        document, tree = parse_document(text), Tree(text)
        expected = {
            tuple(sorted(bound)) for _, bound in Matcher(tree, namespaces, variables).embeddings(None, block.steps)
        }
        found = {
            tuple(sorted((var, as_oracle(document, node)) for var, node in bound))
            for bound in bindings(pattern, document)
        }
        assert found == {tuple(sorted(bound, key=lambda pair: pair[0])) for bound in expected}, to_xscl(block)


@given(st.randoms(use_true_random=False))
def test_fixing_nodes_chooses_among_the_bindings(rng: Random):
    xml = document_xml(rng, 12)
    block, _ = BlockMaker(rng, False).block("S", xml)
    pattern, document = PatternBuilder({}).path(block.steps), parse_document(xml)
    found = bindings(pattern, document)
    paths = dict(variable_paths(pattern, ()))
    chosen = rng.sample(sorted(paths), rng.randint(1, len(paths)))
    somewhere = [node for bound in sorted(found) for node in bound] or [("", (0, 0))]
    fixed = {var: dict(rng.choice(sorted(found))).get(var, (0, 0)) if found else (0, 0) for var in chosen}
    fixed[chosen[0]] = rng.choice(somewhere)[1]
    expected = {bound for bound in found if fixed.items() <= dict(bound).items()}
    assert bindings(pattern, document, {paths[var]: node for var, node in fixed.items()}) == expected


def variable_paths(pattern: PatternNode, path: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    if pattern.var:
        yield pattern.var, path
    for i, child in enumerate(pattern.children):
        yield from variable_paths(child, (*path, i))


def as_oracle(document: ParsedDocument, node: tuple[int, int]) -> Node:
    element, place = node
    return Node(element, document.attribute(element, place)[0] if place else None)
