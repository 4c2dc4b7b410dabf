"""Compiled queries, their names and forms, and what they SELECT."""

from __future__ import annotations

import json
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from common.bounds import NO_DOCUMENT
from common.errors import InvalidValue
from feeds.documents import Document
from mmqjp.engine import Session
from mmqjp.present.item import IN_UTC
from mmqjp.present.query_lookup import exported, query_versions
from mmqjp.queries.changes import NameTaken
from mmqjp.queries.model import ByKey, Identity, JoinSubscription, text_digest
from mmqjp.queries.stored import Compiler
from mmqjp.tables.schema import MOST_SOURCES
from tests.generate.strategies import random_case
from tests.support.cli import mmqjp, printed
from xscl.lower import normalize
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.syntax import Script
from xscl.text import ended


@pytest.mark.parametrize("text", [to_xscl(random_case(seed, 3, 1)[0]) for seed in range(20)])
def test_it_is_what_the_query_says_by_itself(text: str):
    compiler = Compiler()
    for _ in range(2):  # the second time, from what is known
        script = parse_script(text)
        for query in script.queries:
            compiled = compiler.compile(query, script.namespaces)
            assert compiled.text == to_xscl(Script((query,), script.namespaces))
            normal = normalize(query, dict(script.namespaces))
            assert repr(compiled.normal) == repr(normal)
            shared = repr(normal).replace(f"window={normal.window},", "window=None,", 1)
            assert compiled.form_id == text_digest(shared)


@pytest.mark.parametrize("name", ["n", "é", 'a"b\\', "\x7f\x01\n\u2028"])
def test_an_identity_begins_a_json_list(name: str):
    assert Identity.of(name, "//a", 2).text == json.dumps([name, "//a", 2], ensure_ascii=False).removesuffix("]")


def test_queries_by_key_are_in_order():
    compiled, index = Compiler().compile_text("//a"), ByKey()
    for _ in range(2):
        left = [JoinSubscription(qid, "n", "//a", 0, NO_DOCUMENT, None, "f", 0, compiled) for qid in range(3)]
        for query in left:
            index.add("n", query)
        for place in (0, 1, 0):
            assert list(index.get("n")) == left and not index.get("m")
            index.remove("n", gone := left.pop(place))
        assert not index.get("n")
    with pytest.raises(KeyError):
        index.remove("n", gone)


def test_a_published_number_is_a_stream_and_counts_in_a_store_and_an_unnamed_one_is_none(tmp_path: Path):
    with Session("duckdb") as engine:
        engine.subscribe("S//a PUBLISH q1; S//b; q1//a PUBLISH first; q2//b PUBLISH second")
        got = engine.process([Document("d", "<x><a/><b/></x>", time=0)])
        assert sorted(output.query for output in got) == ["first", "q1", "q2"]
    with Session("duckdb", state=tmp_path) as engine:
        assert engine.subscribe("S//a PUBLISH q7") == ["q7"]
        assert engine.subscribe("S//b") == ["q8"]
    with Session("duckdb", state=tmp_path) as engine:
        assert [s.publishes for s in engine.registry.subscriptions.values()] == [True, False]
        assert engine.subscribe("S//c") == ["q9"]
        assert engine.subscribe("S//d PUBLISH q7") == ["q7"]
        assert [s.text for s in engine.registry.named("q7")] == ["FROM S//d PUBLISH q7"]


@pytest.mark.parametrize("add", [False, True])
def test_the_name_of_an_unnamed_query_of_the_store_is_refused(tmp_path: Path, add: bool):
    with Session("duckdb", state=tmp_path) as engine:
        engine.subscribe("S//a")
        with pytest.raises(NameTaken, match="q1 is already the name of a query without PUBLISH"):
            engine.subscribe("S//b PUBLISH other; S//c PUBLISH q1", add=add)
        assert list(engine.queries()) == ["q1"]
        engine.unsubscribe("q1")
        assert engine.subscribe("S//c PUBLISH q1") == ["q1"]


TYPED = """-- What the head says.
DECLARE NAMESPACE a = "http://a/";  -- of a

-- The first.
FROM   S//a:item->x
PUBLISH one; -- behind it

(: The second,
   of two. :)
FROM S//a:item[./title -- inside
] PUBLISH two ;
DEFINE EVENT E FROM S//item->i (t := i/title); -- an event
-- A story.
FROM S//item->i1[./title->t1] JOIN {similar(t1, t2, 0.3), 2 d} S//item->i2[./title->t2]
  PUBLISH st STORIES LASTING 7 d -- ends
;
-- Events.
SELECT t AS t
FROM FILTER{t = "a"} E
PUBLISH seen
-- the end
"""
HEAD = TYPED[: TYPED.index("-- The first.")]
SOURCES = {
    "one": HEAD + "-- The first.\nFROM   S//a:item->x\nPUBLISH one; -- behind it",
    "two": HEAD + "(: The second,\n   of two. :)\nFROM S//a:item[./title -- inside\n] PUBLISH two",
    "st": HEAD + TYPED[TYPED.index("-- A story.") : TYPED.index("\n;\n-- Events")],
    "seen": HEAD + TYPED[TYPED.index("-- Events.") :].rstrip(),
}


def sources(engine: Session) -> dict[str, str]:
    rows = engine.sql("SELECT name, text, source FROM queries WHERE removed_at IS NULL ORDER BY qid").to_pylist()
    return {row["name"]: row["source"] for row in rows if row["source"] != row["text"]}


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def test_texts_are_kept_as_they_were_typed(engine: str, tmp_path: Path):
    with Session(engine, state=tmp_path) as opened:
        opened.subscribe("\ufeff" + TYPED.replace("\n", "\r\n"))
        assert sources(opened) == SOURCES
        definition = opened.sql("SELECT source FROM query_sources WHERE qid IS NULL", trusted=True)
        assert definition["source"].to_pylist() == [HEAD + "DEFINE EVENT E FROM S//item->i (t := i/title); -- an event"]
    with Session(engine, state=tmp_path) as opened:
        before = opened.registry.named("two")
        text = "FROM S//b:item[./title]\n\n PUBLISH two"
        assert opened.subscribe(f'DECLARE NAMESPACE b = "http://a/"; {text}') == ["two"]
        head = 'DECLARE NAMESPACE b = "http://a/"; '
        assert sources(opened) == SOURCES | {"two": head + text}
        (new,) = opened.registry.named("two")
        assert new not in before
        for comment in ("-- Only a comment changes.\n", "", "-- Again.\n"):
            opened.subscribe(head + comment + text)
            assert opened.registry.named("two") == [new] and sources(opened)["two"] == head + comment + text
        select = partial(opened.sql, trusted=True)
        assert query_versions(select, "two")[0].text == f"{head}-- Again.\n{text}\n"
        script = exported(select, 10)
        assert "st.pairs" not in script and script.startswith(HEAD.strip())
        assert all(ended(SOURCES[name].removeprefix(HEAD)) in script for name in ("one", "st", "seen"))
        with pytest.raises(InvalidValue, match="more than 3 queries"):
            exported(select, 3)
        for number in range(MOST_SOURCES + 5):
            opened.subscribe(f"-- {number}\nFROM S//x PUBLISH often")
        opened.prune(None)
        kept = opened.sql("SELECT source FROM query_sources ORDER BY batch", trusted=True)["source"].to_pylist()
        assert kept[-MOST_SOURCES:] == [
            f"-- {number}\nFROM S//x PUBLISH often" for number in range(5, MOST_SOURCES + 5)
        ]
        assert sources(opened).keys() == {*SOURCES, "often"}
        opened.subscribe(to_xscl(parse_script("FROM S//x PUBLISH often")))
        assert "often" not in sources(opened)


def test_texts_are_listed_as_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seconds = count(1_700_000_000)
    opened = Session.__init__

    def open_later(self: Session, *arguments: Any, **named: Any) -> None:
        time = next(seconds) * 1_000_000  # changes at nearly the same time count as one
        opened(self, *arguments, **named | {"now": lambda: time})

    monkeypatch.setattr(Session, "__init__", open_later)
    file, state = tmp_path / "queries.xscl", ("--state", tmp_path / "state")
    for text in ("-- One.\nFROM  S//a PUBLISH one", "FROM S//b\n PUBLISH one; -- Changed."):
        file.write_text(text)
        assert printed("subscribe", file, *state, "--engine", "duckdb") == "one: subscribed\n"
    assert printed("list", "one", *state).endswith("\n  FROM S//b\n   PUBLISH one; -- Changed.\n")
    assert printed("list", "--xscl", *state) == f"{text}\n"
    assert json.loads(printed("list", "one", "--history", "--json", *state).splitlines()[0])["text"] == f"{text}\n"
    assert "\n  FROM S//b\n   PUBLISH one; -- Changed.\n" in printed("list", "one", "--history", *state)
    for arguments in (["--history"], ["one", "--xscl"], ["--xscl", "--json"]):
        assert mmqjp("list", *arguments, *state).exit_code == 2
    assert "did you mean 'one'" in mmqjp("list", "on", "--history", *state).stderr
    # And back: to the text before, to one of a time, and to none.
    now, first = (json.loads(line) for line in printed("list", "one", "--history", "--json", *state).splitlines())
    iso = {row["at"]: IN_UTC.iso(row["at"]) for row in (now, first)}
    assert printed("rollback", "one", *state) == f"one: as of {iso[first['at']]}\n"
    assert printed("list", "one", *state).endswith("\n  -- One.\n  FROM  S//a PUBLISH one\n")
    assert printed("rollback", "one", "--to", iso[now["at"]], *state) == f"one: as of {iso[now['at']]}\n"
    assert printed("list", "one", *state).endswith("\n  FROM S//b\n   PUBLISH one; -- Changed.\n")
    assert len(printed("list", "one", "--history", "--json", *state).splitlines()) == 4
    file.write_text("FROM S//c")
    assert printed("subscribe", file, *state) == "q1: subscribed\n"
    for arguments, status, said in (
        (["one", "--to", "2001-01-01"], 1, "one has no text at 2001-01-01T00:00:00Z: mmqjp list one --history lists"),
        (["one", "--to", "soon"], 2, "Invalid value for --to"), (["none"], 1, "did you mean 'one'"),
        (["q1"], 1, "q1: its queries do not PUBLISH it"),
    ):  # fmt: skip
        told = mmqjp("rollback", *arguments, *state)
        assert told.exit_code == status and said in told.stderr, told.stderr


LEFT = '<a id="7%"><t>A%s &lt;</t></a>'
RIGHT = "<b><t>A%s &lt;</t></b>"
OPS = ("JOIN", "FOLLOWED BY")
JOIN = "FROM S//a->x[./t->t] JOIN {t = u, 1 h} S//b->y[./t->u]"


SELECTED: dict[str, tuple[dict[str, int | str], str]] = {
    "*": ({"x": 0, "y": 0}, f"{LEFT}{RIGHT}"),
    'x, "100% <%s" AS c': ({"x": 0}, f"<x>{LEFT}</x><c>100% &lt;%s</c>"),
    '"50%" AS c': ({}, "<c>50%</c>"),
    'x/@id AS i, t, "%%d" AS c': ({"i": "0/@id", "t": 1}, "<i>7%</i><t><t>A%s &lt;</t></t><c>%%d</c>"),
    "lower-case(t) AS l, t": ({"l": 1, "t": 1}, "<l>a%s &lt;</l><t><t>A%s &lt;</t></t>"),
}


def test_signs_of_formats_stay_what_they_are():
    expected = {f"SELECT {select} {JOIN.replace('JOIN', op)}": SELECTED[select] for op in OPS for select in SELECTED}
    with Session("duckdb") as engine:
        engine.subscribe("; ".join(f"{text} PUBLISH q{number}" for number, text in enumerate(expected)))
        outputs = list(engine.process([Document("1", LEFT, time=1), Document("2", RIGHT, time=2)]))
        assert list(engine.outputs()) == outputs
    assert len(outputs) == len(expected)
    for output in outputs:
        nodes, xml = list(expected.values())[int(output.query[1:])]
        assert output.nodes == nodes
        assert output.xml == f'<match query="{output.query}" t0="{output.t0}" t1="{output.t1}">{xml}</match>'
        assert json.loads(output.to_line())["xml"] == output.xml
