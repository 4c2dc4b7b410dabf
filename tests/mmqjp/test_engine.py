from collections.abc import Sequence
from typing import Any

import pytest

from feeds.documents import Document, Reject
from join_stage.store.protocol import StoreError
from join_stage.views import CACHE_BYTES
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.queries.stored import Compiler
from mmqjp.shown_engine import Engine
from mmqjp.tables.schema import TableRows
from templates.catalog import Catalog
from tests.support.faults import Injected, armed, fail
from xpath_stage import filters
from xscl.parser import parse_script
from xscl.text import XsclErrors

PAIRS = "S/a->x FOLLOWED BY {x = y, 10} S/a->y"


def doc(number: int, text: str = "v", seconds: float | None = None, stream: str = "S") -> Document:
    time = number if seconds is None else seconds
    return Document(f"d{number}", f"<a>{text}</a>", stream, int(time * 1_000_000))


def pairs(outputs: Sequence[Output]) -> list[tuple[str, ...]]:
    return [output.documents for output in outputs]


def test_what_cannot_be_read_becomes_a_dead_letter_and_the_rest_goes_on(engine):
    engine.subscribe(PAIRS)
    bad: list[Document | Reject] = [
        Document("broken", "<a><b></a>", time=1),
        Document("d2", "<a>", time=0),
        Document("bomb", '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>', time=1),
        Document("own", "<a/>", "#hidden", 1),
        Document("eternal", "<a/>", time=2**62),
        Reject("line 7", "S", None, "not JSON", b"{"),
    ]
    assert pairs(engine.process([doc(1), *bad, doc(2)])) == [("d1", "d2")]
    assert engine.counters().duplicates == 0, "a document that was refused is not the first of its id"
    engine.process([Reject("\ud800", "S", 2**70, "no\udfff", "raw")])
    *letters, strange = engine.dead_letters()
    assert (strange["id"], strange["time"]) == ("\\ud800", None)
    reasons = {row["id"]: row["reason"] for row in letters}
    assert reasons.keys() == {"broken", "d2", "bomb", "own", "eternal", "line 7"}
    assert reasons["broken"].startswith("line 1, column") and reasons["line 7"] == "not JSON"
    assert {row["id"]: row["raw"] for row in letters}["broken"] == b"<a><b></a>"


def test_a_list_of_ten_thousand_words_is_a_stream_that_grows():
    words = [Document(f"w{n}", f"<word>Word{n}</word>", "watch", 0) for n in range(10_000)]
    with Session("duckdb") as session:
        session.subscribe("SELECT w, a FROM watch/word->w JOIN {lower-case(w) = tokens(a), INF} S/a->a PUBLISH q")
        assert not session.process(words)
        assert pairs(session.process([doc(1, "a word7: Word9999, word10000"), doc(2, "sword7")])) == [
            ("w7", "d1"),
            ("w9999", "d1"),
        ]
        late = Document("w10000", "<word>word10000</word>", "watch", 3_000_000)
        assert pairs(session.process([late])) == [("w10000", "d1")]


def test_who_embeds_the_engine_is_warned_of_dead_letters(engine, caplog):
    engine.process([doc(1)])
    assert not caplog.messages and not engine.last_dead_letters()
    engine.process([Document("bro\nken", "<a><b></a>", time=1)])
    (message,) = caplog.messages
    assert message.startswith("a document is a dead letter, bro ken: line 1, column ") and "\n" not in message
    engine.process([Document("c", "<", time=1), doc(2), Document("d", ">", time=1)])
    assert caplog.messages[1].startswith("2 dead letters, c: ")
    assert [letter["id"] for letter in engine.last_dead_letters()] == ["c", "d"]
    with Session("duckdb", quiet=True) as quiet:
        quiet.process([Document("e", "<", time=1)])
        assert len(quiet.last_dead_letters()) == 1
    assert len(caplog.messages) == 2


def test_unknown_and_closed_engines(tmp_path):
    with pytest.raises(ValueError, match="'duckdb', 'spark' or a SparkSession, not 'flink'"):
        Session("flink")
    with pytest.raises(ValueError, match="a plan is one of basic, views, signature, not 'magic'"):
        Session("duckdb", plan="magic", state=tmp_path)
    Session("duckdb", state=tmp_path).close()
    with Session("duckdb", state=tmp_path) as engine:
        engine.subscribe(PAIRS)
        engine.process([doc(1), doc(2)])
        engine.close()
    engine.close()
    with Session("duckdb", state=tmp_path) as again:
        assert pairs(list(again.outputs())) == [("d1", "d2")]


def test_the_cache_of_the_plan_views():
    for size, expected in ((CACHE_BYTES, (2, 1, 0, 1, True)), (0, (0, 3, 3, 0, False))):
        with Session("duckdb", plan="views", cache_bytes=size) as engine:
            engine.subscribe(PAIRS)
            assert [len(engine.process([doc(number)])) for number in range(4)] == [0, 1, 2, 3]
            counted = engine.stage2_counters()
            found = [counted[name] for name in ("hits", "misses", "evictions", "values")]
            assert (*found, counted["bytes"] > 0) == expected


def test_functions_may_nest_deeply_and_names_that_libxml2_does_not_know_stand_in_conditions(engine):
    nested = "lower-case(upper-case(lower-case(upper-case(lower-case(x)))))"
    engine.subscribe(f"S//a->x JOIN {{{nested} = lower-case(y), 5}} S//b->y; S//c[not(./𐐀)]")
    xmls = {"d": "<a>V</a>", "e": "<b>v</b>", "with": "<c><𐐀/></c>", "without": "<c/>"}
    assert pairs(engine.process([Document(id, xml, time=0) for id, xml in xmls.items()])) == [("d", "e"), ("without",)]


def test_a_script_that_cannot_be_registered_leaves_nothing(engine):
    with armed((Catalog, "add"), fail, calls=2), pytest.raises(Injected):
        engine.subscribe("S/a PUBLISH one; S/b PUBLISH two")
    assert not engine.queries() and not engine.registry.catalog.steps and not engine.process([doc(1)])
    engine.subscribe("S/a PUBLISH one")
    assert [o.query for o in engine.process([doc(2)])] == ["one"]


def test_equal_conditions_are_evaluated_once(monkeypatch):
    called: list[str] = []
    holds = filters.xpath_holds

    def noted(xpath: str, *at: Any) -> bool:
        called.append(xpath)
        return holds(xpath, *at)

    monkeypatch.setattr("xpath_stage.filters.xpath_holds", noted)
    nested = 'FROM S//item[contains(lower-case(normalize-space(./title)), "flood")] PUBLISH p%d'
    times = 'FROM S//item[date(./time) >= "%s"] PUBLISH t%d'
    queries = [nested % number for number in range(20)]
    queries += [times % (("2026-07-16", "2026-07-16T00:00:00Z", "2026-07-16 01:00+0100")[n % 3], n) for n in range(20)]
    items = (("Flood", "15T23:59:59Z"), ("A  flood", "16"), ("Storm", "16T02:00:00+02:00"))
    xmls = [f"<item><title>{title}</title><time>2026-07-{time}</time></item>" for title, time in items]
    with Session("duckdb") as engine:
        engine.subscribe(";\n".join(queries))
        assert len(list(engine.process(Document(xml, xml, time=0) for xml in xmls))) == 80
    assert len(called) == 2 * 3


OLD = 'FROM S//item[not(./title < "flood")] PUBLISH old'
"""What an earlier version took, and this one refuses: it holds of every item."""


def test_a_query_that_an_earlier_version_took_is_read_from_a_store():
    with pytest.raises(XsclErrors, match="compares numbers or times"):
        parse_script(OLD)
    compiled = Compiler().compile_text(OLD)
    assert compiled.text == 'FROM S//item[not(./title < "flood")] PUBLISH old'
    assert 'mmqjp:compare(./title, "<", "flood")' in str(compiled.normal.conjuncts[0].left.pattern)
    with pytest.raises(XsclErrors):  # it is not remembered as right
        parse_script(OLD)
    with pytest.raises(StoreError):
        Compiler().compile_text("FROM S//item[now()]")


@pytest.mark.parametrize("command", ["pause", "resume", "unsubscribe", "explain"])
def test_an_unknown_name_is_told_with_one_that_is_close(command):
    with Engine("duckdb", quiet=True) as engine:
        engine.subscribe("S/a PUBLISH same_story; S/b PUBLISH other")
        with pytest.raises(KeyError, match=r"no query is named 'same_stroy'; did you mean 'same_story'\?"):
            getattr(engine, command)("same_stroy")
        with pytest.raises(KeyError, match=r"no query is named 'zzz'$"):
            getattr(engine, command)("zzz")


@pytest.mark.parametrize("change", ["pause", "resume"])
def test_the_queries_of_a_name_are_paused_and_resumed_in_one_step(change, monkeypatch):
    with Engine("duckdb", quiet=True) as engine:
        engine.subscribe("; ".join(f"S/a{n} PUBLISH q" for n in range(50)))
        if change == "resume":
            engine.pause("q")
        written, append = list[tuple[str, Sequence[Sequence[object]]]](), TableRows.append

        def appended(self: TableRows, table: str, rows: Sequence[Sequence[object]]) -> None:
            written.append((table, rows))
            append(self, table, rows)

        monkeypatch.setattr(TableRows, "append", appended)
        getattr(engine, change)("q")
        assert [(table, len(rows)) for table, rows in written if rows] == [("pauses", 50), ("memberships", 50)]
