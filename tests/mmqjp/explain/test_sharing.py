"""What queries share: counts held against the tables, and a picture of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from lxml import etree

from feeds.documents import Document
from mmqjp.engine import Session
from mmqjp.explain.pictures import NAMES, ROWS, TEMPLATES, sharing_picture
from mmqjp.explain.plan import MOST_NAMES, MOST_ROWS, MOST_TEMPLATES, Sharing, summarise_sharing
from mmqjp.service.commands import EXPLAIN, SHARING, CommandQueue
from mmqjp.service.spool import Explained, Spool
from mmqjp.service.sql_question import EXPLAIN_TEXT, QuestionRunner
from tests.generate.seeds import seeds
from tests.generate.strategies import random_case
from tests.support.cli import mmqjp
from tests.support.service import Directory, Events
from xscl.printer import to_xscl

SVG = "{http://www.w3.org/2000/svg}"
SAME = "FROM S//a->x JOIN {{x = y, {0} h}} S//b->y PUBLISH q{0}"
CHAIN = "FROM S//a->x JOIN {x = y, 1 h} S//b->y JOIN {y = z, 1 h} S//c->z PUBLISH chain"


def shared(text: str) -> Sharing:
    with Session("duckdb") as engine:
        engine.subscribe(text)
        found = summarise_sharing(engine)
    assert Sharing.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    return found


@pytest.mark.parametrize("seed", seeds(2, 400))
def test_counts_are_those_of_the_tables(seed: int):
    script, documents = random_case(seed, 8, 6)
    with Session("duckdb") as engine:
        engine.subscribe(to_xscl(script))
        engine.process(documents)
        found = summarise_sharing(engine)
        own = engine.sql("SELECT template, variables FROM placements").to_pylist()
        inner = engine.sql("SELECT DISTINCT stream, place, template, variables FROM inner_placements").to_pylist()
        templates = engine.sql("SELECT count(*) AS n FROM templates")["n"].to_pylist()
    subscribers = Counter(row["template"] for row in own + inner)
    rows = Counter(template for template, _ in {(row["template"], tuple(row["variables"])) for row in own + inner})
    assert {one.template: (one.rows, one.subscribers) for one in found.shown} == {
        template: (rows[template], subscribers[template]) for template in rows
    }
    assert [found.templates] == templates
    assert (found.queries, found.rows, found.subscribers) == (len(script.queries), rows.total(), subscribers.total())
    measured = [one.milliseconds or -1.0 for one in found.shown]
    assert measured == sorted(measured, reverse=True)


def test_queries_that_differ_in_window_only_share_a_row():
    found = shared("; ".join(SAME.format(number) for number in range(1, 13)))
    (template,) = found.shown
    assert (found.queries, found.forms, found.rows, found.templates, found.patterns) == (12, 1, 1, 1, 2)
    (row,) = template.most_shared
    assert row.subscribers == template.subscribers == 12 and row.names == tuple(f"q{n}" for n in range(1, 11))


def test_one_more_row_costs_an_average_of_what_was_measured_together():
    with Session("duckdb") as engine:
        engine.subscribe("; ".join(f"FROM S//a->x JOIN {{x = y, 1 h}} S//b{n}->y" for n in range(4)))
        assert summarise_sharing(engine).shown[0].one_more is None
        engine.process([Document("d", "<r><a>v</a></r>", time=1), Document("e", "<b1>v</b1>", time=2)])
        (template,) = summarise_sharing(engine).shown
    assert template.milliseconds is not None and template.one_more == pytest.approx(template.milliseconds / 4)
    assert (template.matches, template.together) == (1, (template.template,))


def many_templates(count: int) -> str:
    """Queries of so many templates, each with two rows."""
    joins = (" AND ".join(f"x{n} = y{n}" for n in range(number + 1)) for number in range(count))
    left = "".join(f"[./l{n}->x{n}]" for n in range(count))
    right = "".join(f"[./r{n}->y{n}]" for n in range(count))
    return "; ".join(
        f"FROM S//{name}{left} JOIN {{{join}, 1 h}} S//b{right} PUBLISH {name}{number}"
        for number, join in enumerate(joins)
        for name in ("c", "d")
    )


def test_what_is_too_much_is_counted():
    found = shared(many_templates(16))
    assert (found.templates, found.rows, len(found.shown)) == (16, 32, min(16, MOST_TEMPLATES))
    assert all(len(one.most_shared) <= MOST_ROWS for one in found.shown)
    assert all(len(row.names) <= MOST_NAMES for one in found.shown for row in one.most_shared)
    picture = etree.fromstring(sharing_picture(found).encode())
    texts = [element.text for element in picture.iter(f"{SVG}text")]
    assert {f"and {32 - NAMES} more", f"and {32 - ROWS} more", f"and {16 - TEMPLATES} more"} <= set(texts)
    assert len(list(picture.iter(f"{SVG}path"))) == NAMES + ROWS


@pytest.mark.parametrize("text", [CHAIN, "FROM S//a PUBLISH only", many_templates(3)])
def test_a_picture_is_plain_svg_and_says_the_same_in_words(text: str):
    found = shared(text)
    if text == CHAIN:  # inner joins are named by the queries that read them
        assert {row.names for one in found.shown for row in one.most_shared} == {("chain",)}
    picture = etree.fromstring(sharing_picture(found).encode())
    allowed = {f"{SVG}{name}" for name in ("svg", "title", "desc", "text", "rect", "path")}
    assert {element.tag for element in picture.iter()} <= allowed
    assert not [name for element in picture.iter() for name in element.attrib if name in ("style", "onload", "href")]
    said = picture.findtext(f"{SVG}desc")
    assert said is not None and said.startswith(f"{found.queries} quer") and f"{found.rows} row" in said


def test_nothing_escapes_from_a_name():
    found = shared("FROM S//a PUBLISH a")
    harm = '</text><script>"&\x00'
    rows = (replace(found.shown[0].most_shared[0], names=(harm * 50,)),)
    picture = sharing_picture(replace(found, shown=(replace(found.shown[0], most_shared=rows),)))
    etree.fromstring(picture.encode())
    assert "<script" not in picture and "\x00" not in picture


def test_an_empty_store_shares_nothing():
    with Session("duckdb") as engine:
        found = summarise_sharing(engine)
    assert found == Sharing(0, 0, 0, 0, 0, 0, ())
    etree.fromstring(sharing_picture(found).encode())


def test_the_command_reads_a_store(tmp_path: Path):
    state, picture = tmp_path / "state", tmp_path / "sharing.svg"
    with Session("duckdb", state=state) as opened:
        opened.subscribe(f"{SAME.format(1)}; {SAME.format(2)}; {CHAIN}")
        opened.process([Document("d", "<r><a>v</a></r>", time=1), Document("e", "<b>v</b>", time=2)])
        expected = summarise_sharing(opened)
    result = mmqjp("sharing", "--state", state, "--json")
    assert result.exit_code == 0, result.output
    found = Sharing.from_dict(json.loads(result.stdout))
    assert [(one.template, one.rows, one.subscribers) for one in found.shown] == [
        (one.template, one.rows, one.subscribers) for one in expected.shown
    ]
    result = mmqjp("sharing", "--state", state, "--svg", picture)
    assert result.exit_code == 0 and "3 queries, 2 of them different" in result.stdout
    assert etree.parse(picture).getroot().findtext("{*}title") == "What queries share: queries, rows and templates"


def test_a_service_answers_what_is_shared_and_how_queries_are_run(tmp_path: Path):
    place = Directory(tmp_path)
    asked = [place.ask(SHARING), place.ask(EXPLAIN, name="chain"), place.ask(EXPLAIN, name="none")]
    with Session("duckdb", state=place.state) as opened:
        opened.subscribe(f"{SAME.format(1)}; {CHAIN}")
        CommandQueue(Spool(place.state)).apply(opened, Events())
        expected = summarise_sharing(opened)
    shown, explained, unknown = map(place.answer, asked)
    assert Sharing.from_dict(shown.result) == expected
    assert "none" in str(unknown.error)
    how = Explained.from_dict(explained.result)
    assert how.text.startswith("query chain\n===========") and "shared with q1" in how.text
    assert "mmqjp explain --state" in how.text
    assert etree.fromstring(how.svg.encode()).findtext("{*}title") == "Join graph of chain"


def test_a_text_is_explained_beside_the_service_and_not_registered(tmp_path: Path):
    place = Directory(tmp_path)
    with Session("duckdb", state=place.state) as opened:
        questions = QuestionRunner(opened, place.spool, Events())
        asked = place.ask(EXPLAIN_TEXT, text=f"{CHAIN}; FROM S//d")
        mistaken, long = place.ask(EXPLAIN_TEXT, text="FROM"), place.ask(EXPLAIN_TEXT, text=" " * 200_000)
        for _ in range(6000):
            if not place.spool.waiting_of(EXPLAIN_TEXT):
                break
            questions.step()
            Event().wait(0.01)
        chain, other = map(Explained.from_dict, place.answer(asked).result)
        assert (chain.name, chain.queries, other.name) == ("chain", 1, "q2")
        assert chain.text.startswith("query chain\n") and "a back-test tells" in chain.text
        assert etree.fromstring(other.svg.encode()).findtext("{*}title") == "Pattern of q2"
        assert "1:5" in str(place.answer(mistaken).error) and "200,000" in str(place.answer(long).error)
        assert not opened.queries()
