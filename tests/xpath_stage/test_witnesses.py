from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from random import Random
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.stage1_workload import WitnessSets
from feeds.documents import Document
from templates.catalog import Change
from tests.generate.blocks import BlockMaker
from tests.generate.documents import document_xml
from tests.generate.seeds import examples, seeds
from tests.generate.strategies import cases, random_case
from tests.oracle.cases import cases as oracle_cases
from tests.support.conjuncts import conjuncts_of
from tests.support.witnessed import Stage
from xpath_stage import automaton, emissions, evaluator
from xpath_stage import documents as documents_module
from xpath_stage import spark as spark_module
from xpath_stage.binder import PreparedNode, each_binding
from xpath_stage.documents import Limits, StreamDocument, parse_document
from xpath_stage.evaluator import TRIAL, XPathStage
from xpath_stage.spark import SparkStage, evaluate_batches
from xscl.algebra.joins import Conjunct, PatternNode
from xscl.lower import PatternBuilder
from xscl.parser import parse_script
from xscl.syntax import Script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MOST_ELEMENTS = 12


def parsed(documents: Iterable[Document]) -> list[StreamDocument]:
    return [StreamDocument(i, d.stream, 0, 0, parse_document(d.xml_bytes())) for i, d in enumerate(documents)]


def in_stream_s(texts: Iterable[str]) -> list[StreamDocument]:
    return [StreamDocument(i, "S", 0, 0, parse_document(text.encode())) for i, text in enumerate(texts)]


def standing(given: str | Iterable[Conjunct], limits: Limits | None = None) -> Stage:
    stage = Stage(XPathStage(limits=limits) if limits else None)
    stage.add(conjuncts_of(parse_script(given)) if isinstance(given, str) else given)
    return stage


@given(
    st.lists(cases(max_queries=4, max_elements=MOST_ELEMENTS), min_size=1, max_size=3),
    st.randoms(use_true_random=False),
    st.sampled_from([1, 2, 9, 30]),
    st.sampled_from([0, 1, 7, Limits().shapes]),
)
@examples(5, 1_000)
def test_joined_witnesses_are_the_matches_in_any_batches_while_patterns_come_and_go(
    found: list[tuple[Script, list[Document]]], rng: Random, size: int, shapes: int
):
    conjuncts = [conjunct for script, _ in found for conjunct in conjuncts_of(script)]
    states, classes, emissions = (rng.choice((1, 5, 100)) for _ in range(3))
    stage = standing(conjuncts, Limits(states, classes, emissions, shapes))
    documents = parsed(document for _, some in found for document in some)
    for _ in range(2):  # the second time, shapes are known
        for start in range(0, len(documents), size):
            stage.check(documents[start : start + size])
            within_bounds(stage.stage)
        rng.shuffle(documents)
    for _ in range(len(conjuncts) // 2):
        stage.remove(rng.randrange(len(stage.standing)))
    stage.check(documents)
    fresh = standing(conjunct for conjunct, _ in stage.standing)
    assert stage.named(stage.evaluate(documents)) == fresh.named(fresh.evaluate(documents))
    stage.add(conjuncts[:2])
    stage.check(documents)
    while stage.standing:
        stage.remove(rng.randrange(len(stage.standing)))
    nothing = stage.evaluate(documents)
    assert not nothing.edges and not nothing.values


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


@given(st.randoms(use_true_random=False))
def test_fixing_nodes_chooses_among_the_bindings(rng: Random):
    xml = document_xml(rng, 12)
    block, _ = BlockMaker(rng, False).block("S", xml)
    pattern, document = PatternBuilder({}).path(block.steps), parse_document(xml)
    prepared = PreparedNode(pattern)
    found = {tuple(sorted(one)) for one in each_binding(prepared, document, {})}
    paths = dict(variable_paths(pattern, ()))
    chosen = rng.sample(sorted(paths), rng.randint(1, len(paths)))
    somewhere = [node for bound in sorted(found) for node in bound] or [("", (0, 0))]
    fixed = {var: dict(rng.choice(sorted(found))).get(var, (0, 0)) if found else (0, 0) for var in chosen}
    fixed[chosen[0]] = rng.choice(somewhere)[1]
    expected = {bound for bound in found if fixed.items() <= dict(bound).items()}
    again = each_binding(prepared, document, {paths[var]: node for var, node in fixed.items()})
    assert {tuple(sorted(one)) for one in again} == expected


def variable_paths(pattern: PatternNode, path: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    if pattern.var:
        yield pattern.var, path
    for i, child in enumerate(pattern.children):
        yield from variable_paths(child, (*path, i))


# ---------------------------------------------------------------- documents made to be slow


def hold(script: str, texts: Sequence[str], size: int = 50, limits: Limits | None = None) -> Stage:
    """Holds batches of documents to exact matching, and with a shape cache to without; the stage with it."""
    cached, walked = standing(script, limits), standing(script, Limits(shapes=0))
    matches = 0
    for start in range(0, len(texts), size):
        batch = in_stream_s(texts[start : start + size])
        matches += cached.check(batch)
        assert cached.named(cached.evaluate(batch)) == walked.named(walked.evaluate(batch))
        within_bounds(cached.stage)
    assert matches
    return cached


def within_bounds(stage: XPathStage) -> None:
    """The shape cache and the filters' memos hold no more than they may, and states what the last document adds."""
    shapes = stage._shapes
    known = sum(1 + len(getattr(shape, "found", ())) for shape in shapes._shapes.values())
    assert known <= stage._limits.shapes
    assert len(shapes._met) <= stage._limits.shapes
    assert stage._automaton._classes.made <= stage._limits.classes
    assert stage._automaton.states <= stage._limits.states + MOST_ELEMENTS + 2


FEW = "//a->x[./b] JOIN {x = y, 1 h} //c[./b][. = '1']->y; //a/c/b->x JOIN {x = y, 1 h} //a//@k->y"


def new_shapes(count: int) -> list[str]:
    """Documents of different shapes, of two that look alike the one or the other at each of ten places."""
    parts = ("<b k='1'/>", "<c>1<b>2</b></c>")
    return [f"<a>{''.join(parts[number >> place & 1] for place in range(10))}</a>" for number in range(count)]


@pytest.mark.parametrize("max_shapes", [1, 7, 1000])
def test_shapes_that_come_again_are_kept_within_the_limit(max_shapes: int):
    texts = [text for text in new_shapes(24) for _ in range(4)]
    counters = hold(FEW, texts, 4, Limits(shapes=max_shapes)).stage.counters()
    assert (counters["flushes"] > 24 // max_shapes) is (max_shapes < 24)
    assert (counters["shape_hits"] > 0) is (max_shapes > 1)
    stage = standing(FEW)  # and nothing is kept where every document is a new shape
    stage.evaluate(in_stream_s(new_shapes(TRIAL + 100)))
    counters = stage.stage.counters()
    assert (counters["shape_hits"], counters["shape_misses"]) == (0, TRIAL)


def deep_paths(rng: Random, count: int) -> list[str]:
    """Documents of a few random paths of labels, most of which are new."""

    def path() -> str:
        labels = [rng.choice("abc") for _ in range(30)]
        return "".join(f"<{label}>" for label in labels) + "".join(f"</{label}>" for label in reversed(labels))

    return [f"<a>{path()}{path()}</a>" for _ in range(count)]


def distinct_tags(count: int) -> str:
    """A root with children of different names, every tenth of them with an element that queries know."""
    inside = ("<b>1</b>", *"222222222")
    return f"<r>{''.join(f'<t{i}>{inside[i % 10]}</t{i}>' for i in range(count))}</r>"


def test_many_tags():
    script = "//*->x JOIN {x = y, 1 h} //t70/b->y; //t71->x JOIN {x = y, 1 h} /r[./t90[./b = '1']][./t7 = '2']/t8->y"
    hold(script, [distinct_tags(3_000)])
    # Those that no query knows are not states.
    stage = standing("//b->x JOIN {x = y, 1 h} //t7->y", Limits(states=100))
    stage.evaluate(in_stream_s([distinct_tags(2000)]))
    assert stage.stage.counters()["states"] <= 100 + 3 + 1


def test_emissions_start_anew_past_their_limit():
    few = Limits(emissions=20)
    stage, flushes = standing("//a->x//b->y JOIN {x = z AND y = z, 1 h} //c->z", few), []
    for text in deep_paths(Random(3), 6):
        stage.check(in_stream_s([text, text]))
        flushes.append(stage.stage.counters()["flushes"])
    assert all(one < other for one, other in pairwise(flushes))


# ---------------------------------------------------------------- on executors

CONDITIONS = """S//a[contains(., "1") and count(./b) < 3][./b->y] JOIN {lower-case(y) = lower-case(z), INF} S//b->z;
    S//a[ends-with(./@k, "1")][./@k->k] JOIN {k = z, INF} T//b[matches(., "^[12u]$")]->z"""


def assert_same(local: Stage, spread: Stage, documents: list[StreamDocument]) -> None:
    here, there = local.stage.evaluate(documents), spread.stage.evaluate(documents)
    for ours, theirs in ((here.r_bin, there.r_bin), (here.r_doc, there.r_doc), (here.r_docts, there.r_docts)):
        assert (ours.schema, len(ours)) == (theirs.schema, len(theirs))
    assert here.r_group.schema == there.r_group.schema and here.r_docts.equals(there.r_docts)
    assert local.named(WitnessSets(here, local.groups)) == spread.named(WitnessSets(there, spread.groups))


def test_executors_find_what_the_driver_finds_while_patterns_come_and_go(spark: SparkSession):
    cases = [random_case(seed, 8, 10) for seed in (1, 2)]
    cases.append((parse_script(CONDITIONS), []))
    documents = parsed(document for _, found in cases for document in found)
    # Documents of our own making are read without limits.
    for text in ("<b>" * 300 + "1" + "</b>" * 300, "<a q='1&#10;2'>&#13;\u00fc<c xmlns='u:x'/> <b/></a>"):
        documents.append(StreamDocument(len(documents), "S", 0, 0, parse_document(text.encode(), trusted=True)))
    with closing(SparkStage(spark, spread=0)) as stage:  # leaves everything to the executors
        local, spread = Stage(), Stage(stage)
        for version, (script, _) in enumerate(cases, 1):
            for one in (local, spread):
                one.add(conjuncts_of(script))
            assert_same(local, spread, documents)
            assert stage._shipped.count == version
        assert spread.check(documents) > 100
        for one in (local, spread):
            for _ in range(len(one.standing) // 2):
                one.remove(0)
        assert_same(local, spread, documents)
        assert stage._shipped.count == len(cases) + 1
        while spread.standing:
            spread.remove(0)
        nothing = spread.evaluate(documents)
        assert not nothing.edges and not nothing.values


def test_a_worker_process_compiles_a_version_once():
    class Sent:
        """Stands for a broadcast; counts how often its value is asked for."""

        asked = 0

        @property
        def value(self) -> tuple[Change, Limits, None]:
            self.asked += 1
            return Change(), Limits(), None

    sent: Any = Sent()
    for version, asked in ((1, 1), (1, 1), (2, 2), (2, 2)):
        list(evaluate_batches(("test", version), sent, False, False, None, []))
        assert sent.asked == asked
        assert list(spark_module._workers) == [("test", version)], "only the newest is kept"
