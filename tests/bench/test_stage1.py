import csv
import json
import sys
from importlib.util import find_spec
from itertools import chain

import pytest
from lxml import etree

from bench import stage1
from bench.stage1 import ATTACKS, LIMITS, AttackCase, Stage1Case, measure_attack, measure_stage1
from bench.stage1_workload import DOCUMENT_KINDS, VOCABULARIES, patterns, stage1_documents, xpaths
from xpath_stage.binder import PreparedNode, each_binding
from xpath_stage.documents import parse_document


def test_stage1_measures_its_cases_and_tells_on_a_terminal(monkeypatch, capsys, tmp_path):
    cases = []

    def measured_as_asked(work, case):
        cases.append(case)
        return measure_stage1(case, list(stage1_documents(case.kind, 3)), rounds=1)

    monkeypatch.setattr(stage1, "in_fresh_process", measured_as_asked)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    out = tmp_path / "it"
    kept = ["--csv", f"{out}.csv", "--json", f"{out}.json", "--plot", str(out)]
    monkeypatch.setattr(sys, "argv", ["mmqjp", "--documents", "flat", "--queries", "5", "--quick", *kept])
    stage1.bench_stage1()
    assert cases == [Stage1Case("flat", 5, 0.0, 0.0), Stage1Case("flat", 5, 0.4, 0.1)]
    told = capsys.readouterr()
    assert "2 of 2: flat, 5 patterns" in told.err and "elementpath" in told.out
    first, second = csv.DictReader((tmp_path / "it.csv").open(encoding="utf-8"))
    assert (second["kind"], second["patterns"], second["filters"], second["values"]) == ("flat", "5", "0.4", "0.1")
    assert float(first["lxml_xpath"]) > 0 and float(first["elementpath"]) > 0
    assert bool(first["saxon"]) == bool(find_spec("saxonche"))
    lines = [json.loads(line) for line in (tmp_path / "it.json").read_text("utf-8").splitlines()]
    assert [(line["plan"], line["baseline"]) for line in lines] == [
        (p, "lxml_xpath") for p in ("cached", "uncached")
    ] * 2
    assert lines[2]["case"] == {"documents": "flat", "patterns": 5, "filters": 0.4, "values": 0.1}
    assert lines[0]["seconds"] == pytest.approx(lines[0]["floor"] * lines[0]["over_floor"])
    assert "lxml, one XPath a path" in (tmp_path / "it.svg").read_text()


@pytest.mark.soak
def test_many_patterns_have_no_baseline():
    measured = measure_stage1(Stage1Case("items", 2000, 0.4, 0.1), list(stage1_documents("items", 10)), rounds=1)
    assert [measured[name] for name in ("lxml_xpath", "elementpath", "saxon", "paths")] == [None] * 4
    assert [line.baseline for line in stage1.stage1_lines(measured)] == [None, None]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize(
    "attack", [name if name == "new tags" else pytest.param(name, marks=pytest.mark.soak) for name in ATTACKS]
)
def test_documents_made_to_hurt(attack, limits, capsys):
    lines = measure_attack(AttackCase(attack, limits), 3, 1)
    assert [*lines[0].case.values()] == [attack, limits, 3, "new"]
    assert all(line.rows > 0 and line.seconds > 0 and line.over_floor for line in lines)
    stage1.print_attacks([lines])
    assert attack in capsys.readouterr().out
    assert [(line.case["occasion"], line.plan, line.baseline) for line in lines] == [
        (occasion, *way) for occasion in ("new", "again") for way in (("cached", "uncached"), ("uncached", None))
    ]
    assert [bool(line.details["counters"]) for line in lines] == [True, False] * 2


def test_documents_that_hurt_are_new_ones():
    for attack in ATTACKS.values():
        texts = attack.documents(150)
        assert len(set(texts)) == len(texts) == 150


@pytest.mark.parametrize("kind", DOCUMENT_KINDS)
def test_the_xpaths_beside_stage1_find_the_nodes_of_every_variable(kind):
    trees = [parse_document(text) for text in stage1_documents(kind, 5, size=3000)]
    found = 0
    for conjunct in patterns(VOCABULARIES[kind], 50, 0.4, 0.3):
        pattern = conjunct.left.pattern
        names = [node.var for node in pattern.walk() if node.var]
        paths, namespaces = xpaths([conjunct])
        for tree in trees:
            expected: dict[str, set[tuple[int, str | None]]] = {name: set() for name in names}
            for name, (element, place) in chain.from_iterable(each_binding(PreparedNode(pattern), tree, {})):
                expected[name].add((element, tree.attribute(element, place)[0] if place else None))
            for name, path in zip(names, paths, strict=True):
                nodes = etree.XPath(path, namespaces=namespaces)(tree.root)
                assert isinstance(nodes, list)
                assert {place_of(node, tree) for node in nodes} == expected[name]
                found += len(expected[name])
    assert found > 100


def place_of(node, tree):
    """The number of an element, or that of an attribute's element and the attribute's name."""
    if isinstance(node, etree._Element):
        return tree.number[node], None
    return tree.number[node.getparent()], node.attrname
