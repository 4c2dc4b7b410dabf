"""Stage 1: its witnesses, joined over a pattern's minor edges, are exactly its matches."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.documents import Document
from templates.catalog import StepEdge
from templates.witness import node_id, plain_node
from tests.generate.seeds import examples, seeds
from tests.generate.strategies import cases, random_case
from tests.support.conjuncts import conjuncts_of
from tests.support.witnessed import Stage
from xpath_stage import automaton, emissions, evaluator
from xpath_stage import documents as documents_module
from xpath_stage.documents import Limits, StreamDocument, parse_document
from xpath_stage.evaluator import TRIAL, XPathStage
from xscl.parser import parse_script
from xscl.syntax import Script


def parsed(documents: Iterable[Document]) -> list[StreamDocument]:
    return [StreamDocument(i, d.stream, 0, 0, parse_document(d.xml_bytes())) for i, d in enumerate(documents)]


def in_stream_s(texts: Iterable[str]) -> list[StreamDocument]:
    return [StreamDocument(i, "S", 0, 0, parse_document(text.encode())) for i, text in enumerate(texts)]


def standing(script: str, limits: Limits | None = None) -> Stage:
    stage = Stage(XPathStage(limits=limits) if limits else None)
    stage.add(conjuncts_of(parse_script(script)))
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


def test_the_shape_cache_rests_where_it_does_not_hit():
    stage = standing("S//a->x")
    texts = [f"<a>{'<b/>' * (n % 500)}</a>" for n in range(2000)]
    stage.evaluate(in_stream_s(texts))
    assert stage.stage.counters()["shape_misses"] == TRIAL


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


def test_streams_are_apart():
    stage = standing("One//a->x JOIN {x = y, 1 h} Two//b->y; Two//a->x JOIN {x = y, 1 h} Two//c->y")
    tree = parse_document(b"<a><b/><c/></a>")
    documents = [StreamDocument(i, stream, 0, 0, tree) for i, stream in enumerate(("One", "Two", "Three"))]
    found = stage.named(stage.evaluate(documents))
    assert found == (
        {
            (0, "One://a", "One://a"): {((0, 0), (0, 0))},
            (1, "Two://a", "Two://a"): {((0, 0), (0, 0))},
            (1, "Two://b", "Two://b"): {((1, 0), (1, 0))},
            (1, "Two://c", "Two://c"): {((2, 0), (2, 0))},
        },
        {(0, (0, 0)): "", (1, (0, 0)): "", (1, (1, 0)): "", (1, (2, 0)): ""},
    )


def test_only_value_join_nodes_have_their_strings_stored():
    stage = standing("//a->a[./b->x][./c->y] JOIN {x = u AND y = u AND a != u, 1 h} Other/u->u; //d->d")
    assert stage.evaluate(in_stream_s(["<a><b>1</b><c>2</c><d>3</d></a>"])).values == {(0, 1): "1", (0, 2): "2"}


# ---------------------------------------------------------------- groups


GROUPED = "; ".join(f"//a[./b->x][./c->y] JOIN {{x = u AND y = u, {n} s}} Other/u[@k = '{n}']->u" for n in range(1, 4))


def test_edges_that_bind_together_are_one_group():
    joins = "JOIN {x = u AND y = u AND a = u, 1 h} Other/u->u; //*[./*:b->x][./*:c->y] JOIN {x = u AND y = u, 1 h}"
    batch = standing(f"//a->a[./b->x][./c->y] {joins} Other/u->u").stage.evaluate(in_stream_s(["<a><b/><c/></a>"]))
    assert batch.r_bin.num_rows == 3
    assert sorted(batch.r_bin.column("node2").to_pylist()) == [0, 1, 2]
    assert batch.r_group.num_rows == 5


def test_groups_are_handed_out_once_and_restored():
    documents, stage = in_stream_s(["<a><b>1</b><c>2</c></a>"]), standing(GROUPED)
    first = stage.stage.evaluate(documents)
    assert first.r_group.num_rows == 2
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


def test_groups_of_a_batch_that_was_not_kept_are_new_again():
    documents, stage = in_stream_s(["<a><b>1</b><c>2</c></a>"]), standing(GROUPED)
    first = stage.stage.evaluate(documents).r_group
    stage.stage.finish_batch(committed=False)
    assert stage.stage.evaluate(documents).r_group.sort_by("grp") == first.sort_by("grp")
    stage.stage.finish_batch(committed=True)
    assert stage.stage.evaluate(documents).r_group.num_rows == 0
    stage.stage.finish_batch(committed=False)
    assert stage.stage.evaluate(documents).r_group.num_rows == 0
