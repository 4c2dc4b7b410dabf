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
from tests.oracle.cases import docs
from tests.oracle.evaluation import evaluate
from tests.support.agreement import Delivery, assert_agrees
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


def test_a_filter_notes_a_match_for_each_node(engine):
    engine.subscribe("S//a")
    assert len(engine.process([Document("d", "<r>" + "<a/>" * 50 + "</r>", time=0)])) == 50
    assert engine.sql("SELECT count(DISTINCT bindings) AS n FROM match_rows")["n"][0].as_py() == 50


def test_functions_may_nest_deeply_and_names_that_libxml2_does_not_know_stand_in_conditions(engine):
    nested = "lower-case(upper-case(lower-case(upper-case(lower-case(x)))))"
    engine.subscribe(f"S//a->x JOIN {{{nested} = lower-case(y), 5}} S//b->y; S//c[not(./𐐀)]")
    xmls = {"d": "<a>V</a>", "e": "<b>v</b>", "with": "<c><𐐀/></c>", "without": "<c/>"}
    assert pairs(engine.process([Document(id, xml, time=0) for id, xml in xmls.items()])) == [("d", "e"), ("without",)]


def test_a_failed_batch_can_bring_shapes_that_were_new_with_it(engine):
    engine.subscribe("S//a->x FOLLOWED BY {x = y, 10} S//a->y")
    nested, again = (Document(id, "<b><a>v</a></b>", time=at) for at, id in enumerate(("nested", "again")))
    with engine.store.failing("commit"), pytest.raises(Injected):
        engine.process([nested])
    engine.process([nested])
    assert pairs(engine.process([again])) == [("nested", "again")]


def test_a_script_that_cannot_be_registered_leaves_nothing(engine):
    with armed((Catalog, "add"), fail, calls=2), pytest.raises(Injected):
        engine.subscribe("S/a PUBLISH one; S/b PUBLISH two")
    assert not engine.queries() and not engine.registry.catalog.steps and not engine.process([doc(1)])
    engine.subscribe("S/a PUBLISH one")
    assert [o.query for o in engine.process([doc(2)])] == ["one"]


ITEMS = " | ".join(
    f"d{number}@{number} <item><title>{title}</title><n>{n}</n><time>{time}</time>"
    f"<link href='{link}'/><category>{category}</category><category>Weather</category>"
    f"<all>none</all><length>4</length></item>"
    for number, (title, n, time, link, category) in enumerate(
        [
            ("FLOOD in Ünder", "1", "2026-07-15T23:59:59.999999Z", "https://WWW.Ex.org/a/?utm_source=x", "Rivers"),
            ("A  flood", "1.0", "2026-07-16", "http://ex.org/a", "rivers"),
            ("Storm", "2", "Thu, 16 Jul 2026 02:00:00 +0200", "http://www.ex.org/a/", "Wind"),
            ("Calm", "none", "soon", "mailto:a@ex.org", "wind"),
            ("", "none", "soon", "", "rivers"),
        ],
        1,
    )
)


def found(*queries: str) -> list[list[str]]:
    """The documents of each output of each query, as numbers: `1`, `13`. The oracle has the same outputs."""
    script = parse_script("; ".join(f"{query} PUBLISH p{number}" for number, query in enumerate(queries)))
    with Session("duckdb") as engine:
        assert_agrees(engine, script, docs(ITEMS), Delivery(None, 2))
    rows = evaluate(script, docs(ITEMS))
    return [
        sorted("".join(document[1:] for document in row.documents) for row in rows if row.query == f"p{number}")
        for number in range(len(queries))
    ]


FILTERS = {
    'contains(lower-case(./title), "flood")': "12",
    'contains(normalize-space(lower-case(./title)), "a flood")': "2",
    'starts-with(upper-case(./title), "A")': "2",
    'host(./link/@href) = "ex.org"': "123",
    "host(./link/@href)": "123",
    "not(host(./link/@href))": "45",
    'canonical-url(./link/@href) = "https://ex.org/a"': "2",
    "string-length(host(./link/@href)) = 6": "123",
    './category[lower-case(.) = "rivers"]': "125",
    'lower-case(./category) = "weather"': "",
    './category[contains(lower-case(.), "wea")]': "12345",
    'contains(upper-case("x"), "X")': "12345",
    'matches(./title, "^flood.*ünder$", "i")': "1",
    'matches(upper-case(./title), "^ A \\s+ FLOOD", "x")': "2",
    'date(./time) >= "2026-07-16"': "23",
    '"2026-07-16" <= date(./time)': "23",
    'date(./time) = "2026-07-16T00:00:00Z"': "23",
    'date(./time) != "2026-07-16"': "145",
    'date(./time) < "2026-07-16T00:00:00.000001"': "123",
    './time >= "2026-07-16"': "23",
    'not(./time < "2026-07-16")': "2345",
    './time = "2026-07-16"': "2",
    'date(./missing) < "2026-07-16" or date(./missing) >= "2026-07-16"': "",
    'starts-with(date(./time), "2026-07-16")': "23",
    "date(./time) = date(./time)": "123",
    './*[date(.) > "2026-07-15"]': "123",
    './link[date(@href) != "2026-07-15"]': "12345",
    "number(./n) = 1": "12",
    './n < "2"': "12",
    "count(./category) = string-length(host(./link/@href))": "",
    'domain(./link/@href) = "ex.org"': "123",
    "domain(./link/@href)": "123",
    'words(./title) = "a flood"': "2",
    'year-month(./time) = "2026-07"': "123",
    'substring-before(date(./time), "T") = "2026-07-16"': "23",
    'string-length(substring-after(./link/@href, "://")) > 0': "123",
    'substring-after(string-length(substring-before(./link/@href, "://")), "x")': "",
}
PREDICATES = {
    "number(a/n) = number(b/n)": "12 21",
    "number(a/n) = b/n": "12 21",
    "date(a/time) = date(b/time)": "23 32",
    "date(a/time) = date(b/time) and a/n <= b/n": "23",
    "lower-case(date(a/time)) = lower-case(date(b/time))": "23 32 45 54",
    "a/all = b/all and date(a/time) < date(b/time)": "12 13",
    'a/all = b/all and a/time < "2026-07-16" and "2026-07-15T00:00:00Z" < b/time': "12 13",
    'a/all = b/all and date(a/time) = "2026-07-15T23:59:59.999999Z" and b/n = 2': "13",
    "string-length(a/title) = string-length(b/all) and a/n != b/n": "41 42 43",
    "string-length(a/title) = b/length and a/n != b/n": "41 42 43",
    'a/all = b/all and matches(a/title, "FLOOD", "i") and string-length(b/title) < 4': "15 25",
    'a/all = b/all and contains(lower-case(a/title), lower-case(b/title)) and a/n < "2"': "15 25",
    "date(a/time) = date(b/time) or (a/all = b/all and number(a/n) != number(b/n) and a/n = 2)": "23 31 32 34 35",
}


def test_filters_and_predicates():
    numbers = found(*(f"FROM S//item->a[{condition}]" for condition in FILTERS))
    assert dict(zip(FILTERS, map("".join, numbers), strict=True)) == FILTERS
    pairs = found(*(f"FROM S//item->a JOIN {{{condition}, 1 h}} S//item->b" for condition in PREDICATES))
    assert dict(zip(PREDICATES, map(" ".join, pairs), strict=True)) == PREDICATES


def test_values_of_selects():
    # A name stands for the value of its function: a time is compared as a time, and no time equals none.
    script = "FROM (SELECT a/all AS all, date(a/time) AS t, number(a/n) AS n FROM S//item->a) JOIN {%s, 1 h} S//item->b"
    expected = {
        "t = date(b/time)": ["23", "32"],
        "all = b/all and t = date(b/time)": ["23", "32"],
        'all = b/all and t >= "2026-07-16" and b/n = 1': ["21", "31", "32"],
        "n = b/n": ["12", "21"],
        "number(n) = number(b/n)": ["12", "21"],
    }
    assert dict(zip(expected, found(*(script % one for one in expected)), strict=True)) == expected
    found("SELECT date(a/time) AS t, string-length(a/title) AS l, number(a/n) AS n FROM S//item->a")


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
    with Session("duckdb") as engine:
        engine.subscribe(";\n".join(queries))
        assert len(list(engine.process(docs(ITEMS)))) == 80
    assert len(called) == 2 * 5


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
