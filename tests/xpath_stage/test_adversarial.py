from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest

from tests.support.conjuncts import conjuncts_of
from tests.support.in_turn import in_turn
from tests.support.witnessed import Stage
from xpath_stage import documents as documents_module
from xpath_stage.documents import Limits, StreamDocument, parse_document
from xpath_stage.evaluator import TRIAL, XPathStage
from xscl.parser import parse_script


def documents(texts: Sequence[str]) -> list[StreamDocument]:
    return [StreamDocument(i, "S", 0, 0, parse_document(text.encode())) for i, text in enumerate(texts)]


def standing(script: str, stage: XPathStage | None = None) -> Stage:
    made = Stage(stage)
    made.add(conjuncts_of(parse_script(script)))
    return made


def hold(script: str, texts: Sequence[str], size: int = 50, stage: XPathStage | None = None) -> Stage:
    """Holds batches of documents to exact matching, and with a shape cache to without; the stage with it."""
    cached, walked = standing(script, stage), standing(script, XPathStage(limits=Limits(shapes=0)))
    matches = 0
    for start in range(0, len(texts), size):
        batch = documents(texts[start : start + size])
        matches += cached.check(batch)
        assert cached.named(cached.evaluate(batch)) == walked.named(walked.evaluate(batch))
        within_bounds(cached.stage)
    assert matches
    return cached


def within_bounds(stage: XPathStage) -> None:
    """The shape cache and the filters' memos hold no more than they may."""
    shapes = stage._shapes
    known = sum(1 + len(getattr(shape, "found", ())) for shape in shapes._shapes.values())
    assert known <= stage._limits.shapes
    assert len(shapes._met) <= stage._limits.shapes
    assert stage._automaton._classes.made <= stage._limits.classes


def nested(depth: int, text: str = "", inside: str = "") -> str:
    return f"<a>{text}" * depth + inside + "</a>" * depth


FEW = "//a->x[./b] JOIN {x = y, 1 h} //c[./b][. = '1']->y; //a/c/b->x JOIN {x = y, 1 h} //a//@k->y"


def new_shapes(count: int) -> list[str]:
    """Documents of different shapes, of two that look alike the one or the other at each of ten places."""
    parts = ("<b k='1'/>", "<c>1<b>2</b></c>")
    return [f"<a>{''.join(parts[number >> place & 1] for place in range(10))}</a>" for number in range(count)]


def test_every_document_is_a_new_shape():
    stage = standing(FEW)
    stage.evaluate(documents(new_shapes(TRIAL + 100)))
    counters = stage.stage.counters()
    assert counters["shape_hits"] == 0
    assert counters["shape_misses"] == TRIAL


@pytest.mark.parametrize("max_shapes", [1, 2, 7, 1000])
def test_shapes_that_come_again_are_kept_within_the_limit(max_shapes: int):
    texts = [text for text in new_shapes(60) for _ in range(4)]
    counters = hold(FEW, texts, 48, XPathStage(limits=Limits(shapes=max_shapes))).stage.counters()
    assert (counters["flushes"] > 60 // max_shapes) is (max_shapes < 60)
    assert (counters["shape_hits"] > 0) is (max_shapes > 1)


FIELDS = range(30)


def optional_fields(rng: Random, count: int, attributes: bool) -> list[str]:
    """Records with a random half of the fields, each of a few values."""
    found = []
    for _ in range(count):
        fields = "".join(f"<f{field}>{rng.randrange(2)}</f{field}>" for field in FIELDS if rng.randrange(2))
        names = rng.sample(FIELDS, rng.randrange(10)) if attributes else []
        found.append(f"<r{written(rng, names)}>{fields}</r>")
    return found


def written(rng: Random, names: Sequence[int]) -> str:
    """Attributes of these numbers, each with one of two values."""
    return "".join(f" k{name}='{rng.randrange(2)}'" for name in names)


@pytest.mark.parametrize(("attributes", "most"), in_turn([False, True], [64, Limits().classes]))
def test_filters_on_all_of_thirty_optional_fields(attributes: bool, most: int):
    test = "@k{0} = '1'" if attributes else "./f{1} = '1'"
    query = f"//r[./f{{0}} = '1'][{test}]/f{{2}}->x JOIN {{{{x = y, 1 h}}}} /r[./f{{0}}][not(./f{{2}})]/f{{1}}->y"
    script = "; ".join(query.format(field, (field + 7) % 30, (field + 1) % 30) for field in FIELDS)
    texts = optional_fields(Random(1), 40, attributes)
    stage = hold(script, texts, 10, XPathStage(limits=Limits(classes=most)))
    assert (stage.stage.counters()["flushes"] > 0) is (most == 64)


DEEP = 30


def deep_paths(rng: Random, count: int) -> list[str]:
    """Documents of a few random paths of labels, most of which are new."""

    def path() -> str:
        labels = [rng.choice("abc") for _ in range(DEEP)]
        return "".join(f"<{label}>" for label in labels) + "".join(f"</{label}>" for label in reversed(labels))

    return [f"<a>{path()}{path()}</a>" for _ in range(count)]


@pytest.mark.parametrize("max_states", [0, 1, 20, 200])
def test_states_stay_within_the_limit_and_a_document_s_depth(max_states: int):
    script = "//a//b->x JOIN {x = y, 1 h} //a/c->y; //b->x//c->y JOIN {x = z AND y = z, 1 h} //b//b//b->z"
    stage = standing(script, XPathStage(limits=Limits(states=max_states)))
    flushes = []
    for start, text in enumerate(deep_paths(Random(2), 24)):
        stage.check(documents([text]))
        counters = stage.stage.counters()
        assert counters["states"] <= max_states + DEEP + 2
        if start % 8 == 0:
            flushes.append(counters["flushes"])
    assert all(one < other for one, other in pairwise(flushes))


def distinct_tags(count: int) -> str:
    """A root with children of different names, every tenth of them with an element that queries know."""
    inside = ("<b>1</b>", *"222222222")
    return f"<r>{''.join(f'<t{i}>{inside[i % 10]}</t{i}>' for i in range(count))}</r>"


def test_many_tags():
    script = "//*->x JOIN {x = y, 1 h} //t70/b->y; //t71->x JOIN {x = y, 1 h} /r[./t90[./b = '1']][./t7 = '2']/t8->y"
    hold(script, [distinct_tags(5_000)])
    # Those that no query knows are no states.
    stage = standing("//b->x JOIN {x = y, 1 h} //t7->y", XPathStage(limits=Limits(states=100)))
    stage.evaluate(documents([distinct_tags(2000)]))
    assert stage.stage.counters()["states"] <= 100 + 3 + 1


def test_many_namespaces():
    inside = "".join(f"<b xmlns='u:{number}' xmlns:p='v:{number}' p:k='1'>1</b>" for number in range(600))
    script = """
    DECLARE NAMESPACE n = "u:7"; DECLARE NAMESPACE v = "v:8";
    //n:b->x JOIN {x = y, 1 h} //*:b[. = '1']->y; //@v:k->x JOIN {x = y, 1 h} //*:b[@v:k = '1']->y
    """
    hold(script, [f"<a>{inside}</a>"] * 3)


def test_emissions_start_anew_past_their_limit():
    few = XPathStage(limits=Limits(emissions=20))
    stage, flushes = standing("//a->x//b->y JOIN {x = z AND y = z, 1 h} //c->z", few), []
    for text in deep_paths(Random(3), 6):
        stage.check(documents([text, text]))
        flushes.append(stage.stage.counters()["flushes"])
    assert all(one < other for one, other in pairwise(flushes))


@pytest.mark.parametrize("most", [0, documents_module.MOST_TEXT, pytest.param(10**6, marks=pytest.mark.soak)])
def test_values_of_elements_in_one_another(most: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(documents_module, "MOST_TEXT", most)
    script = """
    //a->x JOIN {x = y, 1 h} //b->y; //a/b->x JOIN {upper-case(x) = normalize-space(y), 1 h} //c->y;
    //a->x JOIN {lower-case(x) = x', 1 h} //a[contains(., 'b1')]->x'
    """
    inner = [f"<b>B{number}<c>c</c> </b>" for number in range(3)]
    texts = [nested(200, text, inside) for text in ("x", "", " yy ") for inside in inner]
    hold(script, texts + texts, 7)
