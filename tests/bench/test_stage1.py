"""`mmqjp bench`, and the benchmark of stage 1 with a few patterns and documents."""

import csv
import json
import os
import sys
from importlib.util import find_spec
from threading import Lock

import pytest
from lxml import etree

from bench import adversarial, registration, stage1
from bench.fresh import in_fresh_process
from bench.stage1 import Case, measure, show, write_csv, write_json
from bench.stage1_plot import draw, missing
from bench.stage1_reference import rows_of
from bench.stage1_workload import KINDS, VOCABULARIES, documents, patterns, xpaths
from tests.support.cli import mmqjp as call
from xpath_stage.binder import bindings
from xpath_stage.documents import parse_document


@pytest.fixture(autouse=True)
def arguments(monkeypatch):
    """The command sets the arguments of the program, for the benchmark to find."""
    monkeypatch.setattr(sys, "argv", sys.argv)


@pytest.fixture(scope="module")
def measured():
    texts = list(documents("items", 10))
    return [measure(Case("items", number, 0.4, 0.1), texts, rounds=1) for number in (5, 2000)]


@pytest.mark.parametrize("name", ["stage1", "adversarial", "registration", "whole-path"])
def test_help_of_each_benchmark(name):
    result = call("bench", name, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("usage: ")


def test_options_of_stage1():
    text = call("bench", "stage1", "--help").stdout
    assert [option for option in ("--quick", "--queries", "--json", "--csv", "--plot") if option not in text] == []


def test_an_unknown_benchmark_is_one_line():
    result = call("bench", "stage9")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'stage9' is not one of 'stage1', 'adversarial', 'registration', 'whole-path'" in result.stderr
    assert result.stderr.endswith("(see mmqjp bench --help)\n")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["--documents", "items,novels"], "no documents are called 'novels'"),
        (["--queries", "10,ten"], "'10,ten' is not some numbers separated by commas"),
        (["--queries", "0"], "'0' is not some numbers"),
        (["--csv", "nowhere/stage1.csv"], "there is no directory 'nowhere'"),
    ],
)
def test_what_stage1_cannot_do_is_said_before_it_measures(options, message):
    result = call("bench", "stage1", *options)
    assert result.exit_code == 2
    assert message in result.stderr


def process_of(item):
    return os.getpid(), item


def refuse(item):
    raise AssertionError(f"{item} differs")


@pytest.mark.soak
def test_each_case_has_a_process_of_its_own():
    processes = {in_fresh_process(process_of, item) for item in (1, 2)}
    assert {item for _, item in processes} == {1, 2}
    assert len({os.getpid(), *(process for process, _ in processes)}) == 3


@pytest.mark.soak
def test_what_is_wrong_in_a_case_reaches_the_user():
    with pytest.raises(AssertionError, match="case 7 differs"):
        in_fresh_process(refuse, "case 7")


def test_a_process_that_dies_is_not_waited_for():
    with pytest.raises(RuntimeError, match="the process of 3 ended with status 3"):
        in_fresh_process(os._exit, 3)


def refuse_in_vain(item: object) -> None:
    error = ValueError(f"not {item}")
    error.lock = Lock()  # type: ignore[attr-defined]  # what cannot be sent
    raise error


@pytest.mark.soak
def test_an_error_that_cannot_be_sent_is_told():
    with pytest.raises(RuntimeError, match="ValueError: not case 7"):
        in_fresh_process(refuse_in_vain, "case 7")


def test_stage1_measures_its_cases_and_tells_on_a_terminal(monkeypatch, capsys, tmp_path):
    cases = []

    def measured_as_asked(work, case):
        cases.append((work, case))
        return measure(case, list(documents(case.kind, 3)), rounds=1)

    monkeypatch.setattr(stage1, "in_fresh_process", measured_as_asked)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        sys, "argv", ["mmqjp", "--documents", "flat", "--queries", "5", "--quick", "--csv", str(tmp_path / "it.csv")]
    )
    stage1.main()
    assert [case for _, case in cases] == [Case("flat", 5, 0.0, 0.0), Case("flat", 5, 0.4, 0.1)]
    assert "2 of 2: flat, 5 patterns" in capsys.readouterr().err
    assert len((tmp_path / "it.csv").read_text("utf-8").splitlines()) == 3


@pytest.mark.soak
def test_table(measured, capsys):
    show(measured)
    assert "elementpath" in capsys.readouterr().out


@pytest.mark.soak
def test_csv(measured, tmp_path):
    write_csv(measured, tmp_path / "stage1.csv")
    few, many = csv.DictReader((tmp_path / "stage1.csv").open(encoding="utf-8"))
    assert (few["kind"], few["patterns"], few["filters"], few["values"]) == ("items", "5", "0.4", "0.1")
    assert float(few["lxml_xpath"]) > 0 and float(few["elementpath"]) > 0
    assert bool(few["saxon"]) == bool(find_spec("saxonche"))
    assert (many["lxml_xpath"], many["elementpath"], many["saxon"]) == ("", "", "")


@pytest.mark.soak
def test_json_lines_are_those_of_the_contract(measured, tmp_path):
    write_json(measured, tmp_path / "stage1.json")
    lines = [json.loads(line) for line in (tmp_path / "stage1.json").read_text("utf-8").splitlines()]
    assert [(line["case"]["patterns"], line["plan"], line["baseline"]) for line in lines] == [
        (5, "cached", "lxml_xpath"),
        (5, "uncached", "lxml_xpath"),
        (2000, "cached", None),
        (2000, "uncached", None),
    ]
    line = lines[0]
    assert list(line) == [
        *("bench", "case", "engine", "plan", "seconds", "rows", "baseline", "speedup", "floor", "over_floor"),
        "extrapolated",
    ]
    assert (line["bench"], line["engine"], line["extrapolated"]) == ("stage1", None, False)
    assert line["case"] == {"documents": "items", "patterns": 5, "filters": 0.4, "values": 0.1}
    assert line["seconds"] == pytest.approx(line["floor"] * line["over_floor"])


@pytest.mark.soak
def test_plot(measured, tmp_path):
    draw(measured, tmp_path / "stage1")
    assert (tmp_path / "stage1.png").read_bytes().startswith(b"\x89PNG")
    assert etree.parse(tmp_path / "stage1.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_a_missing_matplotlib_is_named(monkeypatch):
    monkeypatch.setattr("bench.stage1_plot.find_spec", lambda name: None)
    assert missing() == "the plot needs matplotlib: pip install matplotlib"


@pytest.mark.parametrize("limits", adversarial.LIMITS)
@pytest.mark.parametrize(
    "attack",
    [name if name == "new tags" else pytest.param(name, marks=pytest.mark.soak) for name in adversarial.ATTACKS],
)
def test_documents_made_to_hurt(attack, limits, capsys):
    case = adversarial.Case(attack, limits)
    found = adversarial.measure(case, 3, 1)
    assert (found.attack, found.limits, found.documents) == (attack, limits, 3)
    assert min(found.rows, found.floor_us, found.cached_new, found.uncached_new) > 0
    assert min(found.cached_again, found.uncached_again, found.counters["states"]) > 0
    assert (found.counters["flushes"] > 0) is (limits == "small" and attack == "new tags")
    adversarial.show([found])
    assert limits in capsys.readouterr().out
    lines = list(adversarial.json_lines(found))
    assert [(line["case"]["occasion"], line["plan"], line["baseline"]) for line in lines] == [
        ("new", "cached", "uncached"),
        ("new", "uncached", None),
        ("again", "cached", "uncached"),
        ("again", "uncached", None),
    ]
    assert lines[2]["seconds"] == pytest.approx(lines[2]["floor"] * found.cached_again)
    assert [line["counters"] for line in lines] == [found.counters, None] * 2


def test_a_shape_cache_that_errs_is_not_timed(monkeypatch):
    monkeypatch.setattr(adversarial, "rows_of", lambda batch, groups: (rows_of(batch, groups), id(groups)))
    with pytest.raises(AssertionError, match="the shape cache errs"):
        adversarial.measure(adversarial.Case("fields", "default"), 3, 1)


def test_documents_that_hurt_are_new_ones():
    for attack in adversarial.ATTACKS.values():
        texts = attack.documents(150)
        assert len(set(texts)) == len(texts) == 150


@pytest.mark.soak
def test_registration(capsys):
    of_patterns = registration.measure_patterns(20, 100)
    of_texts = registration.measure_texts(20, 60)
    assert min(of_patterns.seconds, of_patterns.cached, of_texts.distinct, of_texts.again) > 0
    assert len(of_texts.one_more_ms) == len(of_texts.next_document_ms) == len(of_texts.usual_document_ms) == 20
    assert min(of_texts.one_more_ms + of_texts.next_document_ms + of_texts.usual_document_ms) > 0
    texts = {"constants": registration.of_constants(30), "tags": registration.of_tags(30)}
    reopening = {what: registration.measure_reopening(of) for what, of in texts.items()}
    registration.show(of_patterns, of_texts, reopening)
    assert "the document after it, through the engine" in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_the_xpaths_beside_stage1_find_the_nodes_of_every_variable(kind):
    trees = [parse_document(text) for text in documents(kind, 5, size=3000)]
    found = 0
    for conjunct in patterns(VOCABULARIES[kind], 50, 0.4, 0.3):
        pattern = conjunct.left.pattern
        names = [node.var for node in pattern.walk() if node.var]
        paths, namespaces = xpaths([conjunct])
        compiled = [etree.XPath(path, namespaces=namespaces) for path in paths]
        for tree in trees:
            expected: dict[str, set[tuple[int, str | None]]] = {name: set() for name in names}
            for name, (element, place) in (pair for bound in bindings(pattern, tree) for pair in bound):
                expected[name].add((element, tree.attribute(element, place)[0] if place else None))
            for name, path in zip(names, compiled, strict=True):
                nodes = path(tree.root)
                assert isinstance(nodes, list)
                assert {place_of(node, tree) for node in nodes} == expected[name]
                found += len(expected[name])
    assert found > 100


def place_of(node, tree):
    """The number of an element, or that of an attribute's element and the attribute's name."""
    if isinstance(node, etree._Element):
        return tree.number[node], None
    return tree.number[node.getparent()], node.attrname
