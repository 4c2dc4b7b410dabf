"""Functions, times and flags in filters, predicates and SELECT: what queries with them find, in the engine and by the
oracle."""

from __future__ import annotations

from typing import Any

import pytest

from join_stage.store.protocol import StoreError
from mmqjp.engine import Session
from mmqjp.queries.compile import Compiler
from tests.oracle.cases import docs
from tests.oracle.evaluation import evaluate
from tests.support.agreement import Delivery, assert_agrees, run
from xpath_stage import filters
from xscl.parser import parse_script
from xscl.problems import XsclErrors

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


def test_filters() -> None:
    numbers = found(*(f"FROM S//item->a[{condition}]" for condition in FILTERS))
    assert dict(zip(FILTERS, map("".join, numbers), strict=True)) == FILTERS


def test_predicates() -> None:
    pairs = found(*(f"FROM S//item->a JOIN {{{condition}, 1 h}} S//item->b" for condition in PREDICATES))
    assert dict(zip(PREDICATES, map(" ".join, pairs), strict=True)) == PREDICATES


def test_values_of_inner_selects() -> None:
    """A name stands for the value of its function: a time is compared as a time, and no time equals none."""
    script = "FROM (SELECT a/all AS all, date(a/time) AS t, number(a/n) AS n FROM S//item->a) JOIN {%s, 1 h} S//item->b"
    expected = {
        "t = date(b/time)": ["23", "32"],
        "all = b/all and t = date(b/time)": ["23", "32"],
        'all = b/all and t >= "2026-07-16" and b/n = 1': ["21", "31", "32"],
        "n = b/n": ["12", "21"],
        "number(n) = number(b/n)": ["12", "21"],
    }
    assert dict(zip(expected, found(*(script % one for one in expected)), strict=True)) == expected


def test_selected_values() -> None:
    query = "SELECT date(a/time) AS t, string-length(a/title) AS l, number(a/n) AS n FROM S//item->a"
    with Session("duckdb") as engine:
        rows = run(engine, parse_script(query), [docs(ITEMS)])
    found(query)
    assert [row.xml.partition(">")[2].removesuffix("</match>") for row in rows][2:4] == [
        "<t>2026-07-16T00:00:00Z</t><l>5</l><n>2</n>",
        "<t></t><l>4</l><n>NaN</n>",
    ]


def test_equal_conditions_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many queries have a condition, it is evaluated once for each node at which it may hold."""
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


def test_a_query_that_an_earlier_version_took_is_read_from_a_store() -> None:
    with pytest.raises(XsclErrors, match="compares numbers or times"):
        parse_script(OLD)
    compiled = Compiler().compile_text(OLD)
    assert compiled.text == 'FROM S//item[not(./title < "flood")] PUBLISH old'
    assert 'mmqjp:compare(./title, "<", "flood")' in str(compiled.normal.conjuncts[0].left.pattern)
    with pytest.raises(XsclErrors):  # it is not remembered as right
        parse_script(OLD)
    with pytest.raises(StoreError):
        Compiler().compile_text("FROM S//item[now()]")
