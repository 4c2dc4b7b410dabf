from collections.abc import Iterable, Iterator
from random import Random
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds.documents import Document
from templates.catalog import StepEdge
from tests.generate.blocks import BlockMaker
from tests.generate.documents import NAMESPACE, document_xml
from tests.generate.seeds import examples, seeds
from tests.generate.strategies import cases, random_case
from tests.oracle.cases import cases as oracle_cases
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


@given(
    st.lists(cases(max_queries=4, max_elements=12), min_size=1, max_size=3),
    st.randoms(use_true_random=False),
    st.sampled_from([1, 2, 9, 30]),
    st.sampled_from([0, Limits().shapes]),
)
@examples(15, 1_000)
def test_joined_witnesses_are_the_matches_in_any_batches(
    found: list[tuple[Script, list[Document]]], rng: Random, size: int, shapes: int
):
    stage = standing([conjunct for script, _ in found for conjunct in conjuncts_of(script)], Limits(shapes=shapes))
    documents = parsed(document for _, some in found for document in some)
    for _ in range(2):  # the second time, shapes are known
        for start in range(0, len(documents), size):
            stage.check(documents[start : start + size])
        rng.shuffle(documents)


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


@pytest.mark.parametrize(("script", "xml", "_"), oracle_cases("blocks"))
def test_what_was_checked_by_hand(script: str, xml: str, _: object):
    standing(script).check(in_stream_s([xml]))


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
