"""Evidence: the values and conditions that made outputs, and what is said when they cannot be found."""

from pathlib import Path
from typing import Any

import pytest
from lxml import etree

import mmqjp.demo
from feeds.documents import Document
from feeds.tail import read_documents
from mmqjp.engine import Session
from mmqjp.explain import funnel
from mmqjp.explain.funnel import Evidence
from mmqjp.explain.join_trial import Reason
from mmqjp.explain.terms import JoinedValue, Operand, ShownCondition
from tests.oracle.values import DERIVED
from xscl.parser import parse_script

DEMO = Path(mmqjp.demo.__file__).parent
HOUR = 3_600_000_000


def document(number, xml):
    return Document(f"d{number}", xml, time=number)


def reasons(script, *xmls):
    """The queries of outputs over documents, each with its nodes and its reason."""
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


def test_a_dropped_document_leaves_no_reason(tmp_path):
    with Session("duckdb", state=tmp_path, now=lambda: 20 * HOUR, lateness=0) as engine:
        engine.subscribe("FROM S/a->x FOLLOWED BY {x = y, 6 h} S/b->y")
        times = {"<a>v</a>": 1, "<b>v</b>": 5, "<c/>": 20}
        for xml, hour in times.items():
            engine.process([Document(xml, xml, time=hour * HOUR)])
        engine.prune(16 * HOUR)
    with Session("duckdb", state=tmp_path, read_only=True) as engine:
        assert Evidence(engine).of(list(engine.outputs())) == [None]


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
