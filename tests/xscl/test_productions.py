"""Each production of the grammars, and each function in each place, has a statement that runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import pytest
from lark import Transformer

from feeds.documents import Document
from mmqjp.engine import Session
from tests.generate.documents import SECOND
from xscl import lalr
from xscl.algebra.near import BY_WORDS
from xscl.algebra.values import DERIVED, TESTS, WITH_LITERAL
from xscl.builder import Builder, EventBuilder
from xscl.check_expressions import EVENT_FUNCTIONS
from xscl.parser import parse_script
from xscl.story_queries import PAIRS
from xscl.text import XsclErrors

DEFINITIONS = {
    "B": "DEFINE EVENT B FROM S//b->x (id := x/@id, v := number(x/@id), k := x/k)",
    "C": "DEFINE EVENT C FROM S//c->x (id := x/@id, v := number(x/@id), k := x/k)",
    "T": "DEFINE EVENT T FROM S//c->x[./t AS y] (t IN x/t, n := string-length(x/t), k := 5, s := 'a')",
    "P": (
        "DEFINE EVENT P FROM S//b->x (a_id := x/@id, a_stream := 'S', a_time := number(x/@us), a_feed := x/k, "
        "a_n := x/k, b_id := '0', b_stream := 'S', b_time := 0, b_feed := 'f', b_n := x/t)"
    ),
}
EVENT_QUERIES = (
    "B",
    "FROM B WITHIN 9 s PUBLISH p",
    "SELECT * FROM B",
    "SELECT id, v + 1 AS w, -v * 2 - 50% AS p, v / 2 AS h, v % 2 AS r, 36 h AS d, .5 AS n FROM B WITHIN INF",
    "SELECT DUR AS d, 'x' AS s, coalesce(id, \"y\") AS c FROM (B)",
    "FROM B NEXT C",
    "FROM B NEXT{$1.v < $2.v AND GAP < 5 s OR NOT ($1.v = $2.v)} (SELECT id, v FROM C)",
    "FROM B LATEST BEFORE C WITHIN 9 s",
    "FROM B LATEST BEFORE{$1.v < $2.v AND GAP < 9 s} C",
    "FROM B FOLD{,,} C",
    "FROM B FOLD{$2.v > $.v, DUR < 9 s, $.v + 1 AS v} (C)",
    "FROM B UNION C",
    "FILTER{id IS NOT NULL} B",
    'FROM FILTER{id IS NULL OR contains(id, "b") OR v >= 1} (SELECT id, v FROM B WITHIN 9 s)',
    "FROM AGGREGATE{count() AS n, max(v) AS m BY id OVER 9 s} B",
    "AGGREGATE{count() AS n BY k OVER SESSION 9 s} B",
    "STORIES{count(DISTINCT n) AS m LASTING 9 s HAVING m > 1 TELL opened, grew} P",
    "FROM STORIES{LASTING 9 s} P",
    "AGGREGATE{sum(v) / count(v) AS m, count(DISTINCT id) AS d, percentile(v, 95) - median(v) AS p} B",
)
PATTERNS = (
    "PATTERN SEQ(B a) WITHIN 9 s",
    "PATTERN SEQ(B a, C b) WHERE {a.v < b.v} WITHIN 9 s ALL MATCHES",
    "PATTERN SEQ(B+ a[], C b) WHERE skip_till_next_match {a[i].v > a[i-1].v AND b.v > max(a[..i-1].v)} WITHIN 9 s",
    "PATTERN SEQ(B+ a[], C b) WHERE skip_till_any_match(a[], b) {a[1].v < 9 AND a[a.LEN].v < 9} WITHIN 9 s",
    "PATTERN SEQ(B a, ~(T n), C b) WHERE strict_contiguity {n.k = 7} WITHIN 9 s",
    "PATTERN SEQ(SET(B a, C+ b[])) WITHIN 9 s EARLIEST MAXIMAL NON OVERLAPPING",
    "PATTERN SEQ(B a, B b) WITHIN 9 s HAVING a.v > 50% RETURN a.id AS x, b.v",
    "PATTERN SEQ(B+ a[]) WHERE skip_till_any_match {a[1].v < 9} WITHIN 9 s HAVING count(a[]) > 1 RETURN a[].v AS x",
    "PATTERN SEQ(B+ a[], C b) WHERE {a[i].v > a[i-1].v} WITHIN 9 s RETURN count(*) AS n ALL MATCHES TOGETHER",
    "PATTERN SEQ(B, C!, (T)*) ERRORS <= 1 WITHIN 9 s",
    "PATTERN SEQ(B+, (C | B, B), C{1,}) WHERE {[k]} ERRORS <= 1 BUDGET 100 WITHIN 9 s RETURN errors NON OVERLAPPING",
)
QUERIES = (
    "S",
    "S->x",
    "FROM S AS x",
    "//b",
    "FROM S//b->x[./k]",
    "FROM S//*[@id][.//t or not(k = 2) and (k)]",
    'FROM S//b[contains(./k, "1")][count(./k) = 1][. != ""]->x',
    "FROM S//b/@id",
    "SELECT x/k AS k, 5 AS n, 'a' AS s, lower-case(x/k) AS l FROM S//b->x",
    "SELECT * FROM S//b->x",
    "SELECT <a b=\"{x} c\" d='{x}e'>text{x/k}<e/><f g='h'>i</f></a> FROM S//b->x",
    "SELECT <a/> FROM S//b->x",
    "FROM S//b->x JOIN {x/k = y/k AND (x/@id != y/@id OR contains(y/k, '1')), 9 s} S//c->y",
    "FROM S//b->x JOIN UNORDERED {x/k = y/k, INF} (SELECT y AS y FROM S//c->y)",
    "FROM S//b->x FOLLOWED BY {x/k[. = '1'] = y/k, 1.5 min} S//c->y",
    "FROM S//b->x NOT FOLLOWED BY {x/@id = y/@id, 1} S//c->y",
    "FROM S//b->x NOT JOIN {x/@id = y/@id, 1 s} S//c->y",
    "FROM S//b->x NOT PRECEDED BY {x/@id = y/@id, 1 s} S//c->y",
    "FROM S//b->x PUBLISH once ONCE PER (x/k, x/@id) WITHIN 1 h",
    "FROM S//b->x JOIN {x/k = y/k, 9 s} S//b->y PUBLISH one STORIES LASTING 9 s",
    "S//b->x JOIN {x/k = y, 9} S//c[k->y] PUBLISH d STORIES LASTING 9 s HAVING (feeds > 7 OR feeds > 0) AND feeds < 9",
    "S//b[./k->story_a] JOIN {story_a = y/k, 9 s} S//c->y PUBLISH e STORIES LASTING 9 s HAVING count(DISTINCT k) = 1",
    "FROM S//b->x JOIN {x/k = y/k, 9 s} S//c->y PUBLISH f STORIES LASTING 9 s TELL opened, merged",
    "SELECT w FROM S//b[tokens(./t)->w] JOIN {w = l, 9 s} S//c[lower-case(./k) AS l]",
    "DECLARE NAMESPACE p = 'u'; FROM S//b->x[p:k or p:* or *:k or @p:id or @* or k]",
    "DECLARE WEIGHTS 'general-1'; FROM S//b->x",
)


def documents() -> Iterator[Document]:
    for place, name in enumerate("bbcbcc", 1):
        xml = f'<{name} id="{place}" us="{place * SECOND}"><k>1</k><t>{name} {place}</t></{name}>'
        yield Document(id=f"d{place}", xml=xml, time=(place * SECOND, place * SECOND))
    yield Document(id="end", xml="<z/>", time=(99 * SECOND, 99 * SECOND))


def answered(script: str, **options: Any) -> tuple[set[str], set[str]]:
    """The queries of a script, and those of them that have outputs."""
    with Session("duckdb", settle=None, quiet=True, **options) as engine:
        names = engine.subscribe(script)
        found = [*engine.process(documents()), *engine.finish()]
        assert engine.take_paused() == {}, script
        return {one for one in names if not one.endswith(PAIRS)}, {one.query for one in found}


@pytest.mark.parametrize(
    "texts", [(*DEFINITIONS.values(), *EVENT_QUERIES, *PATTERNS), QUERIES[:-2], QUERIES[-2:-1], QUERIES[-1:]]
)
def test_each_statement_has_outputs(texts: Iterable[str]) -> None:
    names, found = answered("; ".join(texts))
    assert names == found


def unused(file: str, start: str, builder: Any, texts: Iterable[str]) -> set[str]:
    """The productions of a grammar that no statement uses."""
    lark = lalr._lark(file, start, Transformer)  # type: ignore[arg-type]  # it leaves trees as they are
    used = {str(node.data) for text in texts for node in lark.parse(text).iter_subtrees()}
    return {name for rule in lark.rules if hasattr(builder, name := str(rule.alias or rule.origin.name))} - used


def test_each_production_has_a_statement() -> None:
    of_events = unused("events.lark", "query", EventBuilder, EVENT_QUERIES)
    of_events &= unused("events.lark", "pattern", EventBuilder, PATTERNS)
    parts = [part.strip() for text in QUERIES for part in text.split(";")]
    of_documents = unused("xscl.lark", "statement", Builder, parts)
    of_definitions = unused("xscl.lark", "definition", Builder, DEFINITIONS.values())
    of_documents |= of_definitions & {"definition", "first_of", "each_of"}
    assert of_events == {"null"} and not of_documents  # NULL alone is refused


# ---------------------------------------------------------------- functions

LITERAL = dict.fromkeys(WITH_LITERAL, '{0}, "-"') | dict.fromkeys(TESTS, '{0}, "1"')
LITERAL |= dict.fromkeys(BY_WORDS, "{0}, {0}, 0.6")
LITERAL |= {"coalesce": "{0}, {0}", "concat": "{0}, {0}", "argmax": "{0}, {0}", "percentile": "{0}, 95"}
PLACES = {
    "filter alone": "FROM S//b[{f(./k)}]",
    "filter compared": "FROM S//b[{f(./k)} = 1]",
    "bound": "FROM S//b->x[./k[{f(.)}]->y]",
    "predicate alone": "FROM S//b->x JOIN {{x/k = y/k AND {f(x/k)}, 9 s}} S//c->y",
    "predicate compared": "FROM S//b->x JOIN {{x/k = y/k AND {f(x/k)} != 2, 9 s}} S//c->y",
    "join": "FROM S//b->x JOIN {{{f(x/k)} = {f(y/k)}, 9 s}} S//c->y",
    "SELECT": "SELECT {f(x/k)} AS r FROM S//b->x",
    "constructor": "SELECT <a b='{{{f(x/k)}}}'/> FROM S//b->x",
    "ONCE PER": "FROM S//b->x PUBLISH p ONCE PER ({f(x/k)})",
    "DEFINE EVENT": "DEFINE EVENT D FROM S//b->x (r := {f(x/k)}); FROM D",
    "FILTER alone": "FROM FILTER{{{f(id)}}} B",
    "FILTER compared": "FROM FILTER{{{f(id)} != 7}} B",
    "NEXT": "FROM B NEXT{{{f($1.id)} != {f($2.id)}}} B",
    "SELECT of events": "SELECT {f(id)} AS r FROM B",
    "AGGREGATE": "FROM AGGREGATE{{{f(id)} AS r BY v}} B",
    "WHERE": "PATTERN SEQ(B a, C b) WHERE {{{f(a.id)} != {f(b.id)}}} WITHIN 9 s",
    "WHERE alone": "PATTERN SEQ(B a, C b) WHERE {{{f(a.id)}}} WITHIN 9 s",
    "HAVING": "PATTERN SEQ(B a, C b) WITHIN 9 s HAVING {f(a.id)} != 7",
    "HAVING of several": "PATTERN SEQ(B+ a[], C b) WHERE strict_contiguity {{}} WITHIN 9 s HAVING {f(a[].v)} != 7",
    "RETURN": "PATTERN SEQ(B a, C b) WITHIN 9 s RETURN {f(a.id)} AS r",
    "RETURN of several": "PATTERN SEQ(B+ a[], C b) WHERE strict_contiguity {{}} WITHIN 9 s RETURN {f(a[].v)} AS r",
}
EVENTS = re.compile("EVENT|FROM B|} B|SEQ")
FUNCTIONS = [*dict.fromkeys((*EVENT_FUNCTIONS, "string", "not"))]


def written(place: str, function: str) -> str:
    text = PLACES[place]
    while "{f(" in text:
        begin = text.index("{f(")
        end = text.index(")}", begin)
        call = f"{function}({LITERAL.get(function, '{0}').replace('{0}', text[begin + 3 : end])})"
        text = text[:begin] + call + text[end + 2 :]
    return text.replace("{{", "{").replace("}}", "}")


def script_of(statements: Iterable[str]) -> str:
    numbered = (text.replace(" D", f" D{number}") for number, text in enumerate(statements))
    return ";".join((DEFINITIONS["B"], DEFINITIONS["C"], *numbered))


def allowed(place: str) -> dict[str, str]:
    """The statements of the functions that may stand in a place. The others have one mistake that is told in words."""
    found = {}
    for function in FUNCTIONS:
        text = written(place, function)
        try:
            parse_script(script_of([text]))
        except XsclErrors as errors:
            (message,) = {error.message for error in errors.errors}  # perhaps of each side
            told = [error.hint for error in errors.errors]
            assert not message.startswith("unexpected") and all(told) and "expected" not in told[0], text
        else:
            found[function] = text
    return found


@cache
def named() -> dict[str, str]:
    """All functions in all places where they may stand: each statement by its name, such as `SELECT_of_host`."""
    found = {}
    for place in PLACES:
        functions = allowed(place)
        needed: set[str] = DERIVED.keys() - ({"date"} if "compared" in place else set())
        if place.endswith("alone") or place == "bound":
            needed = {*TESTS}
        elif "several" in place or place == "AGGREGATE":
            needed = {"count", "sum"}
        assert functions.keys() >= needed, place
        for function, text in functions.items():
            name = re.sub(r"\W", "_", f"f_{place}_of_{function}")
            publish = f"PUBLISH {name}"
            found[name] = text.replace("PUBLISH p", publish) if "PUBLISH p" in text else f"{text} {publish}"
    return found


@pytest.mark.parametrize("patterns", ["driver", "sql"])
def test_a_function_stands_in_a_place_or_one_message_says_why_not(patterns: str) -> None:
    some = {name: text for name, text in named().items() if patterns == "driver" or EVENTS.search(text)}
    _, found = answered(script_of(some.values()), patterns=patterns)
    assert {name.rpartition("_of_")[0] for name in found} == {name.rpartition("_of_")[0] for name in some}
