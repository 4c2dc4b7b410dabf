"""`mmqjp demo`: the packaged example shows what matched and why."""

import re

import pytest

from feeds.document import Document
from mmqjp.commands.demo import purposes
from mmqjp.explain.why import Evidence, JoinedValue
from mmqjp.session import Session
from tests.support.cli import mmqjp as call
from xscl import parse_script
from xscl.algebra.normal import Term


@pytest.fixture(scope="module")
def shown():
    result = call("demo", "--engine", "duckdb")
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_every_query_is_shown_with_what_it_is_for(shown):
    assert "7 standing queries, 25 entries of 6 feeds, on duckdb." in shown
    for name in ("same_story", "follow_up", "book_blog", "retitled", "correction", "new_from_author", "bargain"):
        assert re.search(rf"^{name}: [A-Z].*", shown, re.MULTILINE)


def test_items_have_title_host_and_time_and_the_reason_stands_beside(shown):
    flat = " ".join(shown.split())
    assert (
        "The Salt Ledger a1 = a2 = 'Ines Okafor' lantern.example, 2026-11-04 09:00 t1 = t2 = 'The Salt Ledger'" in flat
    )
    assert "= 'old observatory to reopen in spring'" in flat
    assert flat.count("it passes the filter") == 3


def test_it_ends_with_how_to_go_on(shown):
    *_, count, how = shown.rstrip().splitlines()
    assert count.startswith("13 matches.")
    assert how.startswith("  mmqjp run --queries FILE.xscl --documents DIRECTORY --feeds")


def test_it_is_plain_text_of_100_columns(shown):
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_master_is_for_spark():
    result = call("demo", "--engine", "duckdb", "--master", "local[1]")
    assert result.exit_code == 2
    assert "--master is for the engine spark" in result.stderr


@pytest.mark.spark
def test_spark_shows_the_same(spark, shown):
    result = call("demo", "--engine", "spark")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == shown.replace("on duckdb", "on spark")


def test_purpose_is_the_comment_right_above():
    text = "-- of the file\n\n-- one\n-- more\nFROM S//a PUBLISH x;\n\nFROM b PUBLISH y; -- not z\nFROM c PUBLISH z"
    assert purposes(text, parse_script(text)) == {"x": "one more", "y": "", "z": ""}


# ---------------------------------------------------------------- evidence


def document(number, xml):
    return Document(f"d{number}", xml, time=number)


@pytest.fixture
def evidence():
    """The outputs of a script over documents, each with the values that made it."""

    def find(script, *xmls):
        with Session("duckdb") as engine:
            engine.subscribe(script)
            outputs = engine.process([document(number, xml) for number, xml in enumerate(xmls, 1)])
            looked_up = Evidence(engine)
            return [(output.query, dict(output.nodes), looked_up.of(output)) for output in outputs]

    return find


def test_evidence_is_that_of_the_disjunct_and_the_nodes(evidence):
    found = evidence(
        "FROM S//a->x[./k->k] FOLLOWED BY {x = y OR lower-case(k) = y, INF} S//b->y",
        "<r><a>no<k>V</k></a><a>yes<k>w</k></a></r>",
        "<b>v</b>",
    )
    assert found == [("q1", {"x": 1, "y": 0}, (JoinedValue((Term("k", ("lower-case",)), Term("y")), "v"),))]


def test_evidence_of_a_chain_names_the_inner_values_first(evidence):
    found = evidence(
        "FROM S/a->x[./k->k] FOLLOWED BY {k = y, INF} S/b/l->y FOLLOWED BY {y = z, INF} S/c->z",
        "<a><k>v</k></a>",
        "<b><l>v</l></b>",
        "<c>v</c>",
    )
    ((query, nodes, joined),) = found
    assert (query, nodes) == ("q1", {"x": 0, "y": 1, "z": 0})
    assert joined == (JoinedValue((Term("y"),), "v"), JoinedValue((Term("y"), Term("z")), "v"))


def test_evidence_of_a_reader_of_outputs(evidence):
    found = evidence(
        "FROM S/a->x FOLLOWED BY {x = y, INF} S/b->y PUBLISH p; FROM p//a->l FOLLOWED BY {l = r, INF} S/c->r PUBLISH q",
        "<a>v</a>",
        "<b>v</b>",
        "<c>v</c>",
    )
    assert ("q", {"l": 1, "r": 0}, (JoinedValue((Term("l"), Term("r")), "v"),)) in found


def test_a_filter_needs_no_evidence(evidence):
    assert evidence("FROM S/a->x", "<a/>") == [("q1", {"x": 0}, ())]
