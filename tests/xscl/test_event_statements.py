"""Event statements: how they are parsed, of which kind statements are, and what schemas they have."""

from __future__ import annotations

import pytest

from xscl.algebra.events import Schema
from xscl.event_parser import schemas_of
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.problems import XsclErrors
from xscl.text import kinds_of, split_script

EVENTS = """
DEFINE EVENT Post FROM S//item->i
  (site := host(i/channel_url), title := lower-case(i/title), url := canonical-url(i/item_url), author := i/author);
DEFINE EVENT Tag FROM S//item->i (site := host(i/channel_url), tag IN i/category);
DEFINE EVENT Release FROM releases//item->i
  (project := i/channel_url, version := lower-case(i/title), notes := lower-case(i/content));
DEFINE EVENT Advisory FROM advisories//advisory->a
  (id := a/@id, project := a/project, score := number(a/score));
DEFINE EVENT Price FROM prices//offer->o (product := o/product, shop := o/shop, price := number(o/price));
"""
FEED_EXAMPLES = {
    "first_release": """
SELECT id, project, version, DUR / 86400 AS days
FROM (SELECT id, project AS p FROM FILTER{score >= 7}(Advisory)) NEXT{p = project} Release
WITHIN 90 d PUBLISH first_release;""",
    "bargain": """
FROM AGGREGATE{avg(price) AS mean, count() AS n BY product OVER 30 d}(Price) PUBLISH mean_price;
SELECT product, shop, price, mean
FROM FILTER{n >= 10 AND price < 85% * mean}((SELECT product AS p, mean, n FROM mean_price) NEXT{p = product} Price)
WITHIN 7 d PUBLISH bargain;""",
    "flare": """
FROM AGGREGATE{count() AS n BY tag OVER 1 h}(Tag) PUBLISH tag_rate;
SELECT tag, n FROM FILTER{n_1 < 10 AND n >= 10}(tag_rate NEXT{$1.tag = $2.tag} tag_rate) WITHIN 7 d PUBLISH flare;""",
    "streak": """
SELECT author, n, DUR / 86400 AS days
FROM FILTER{n = 7}((SELECT author, 1 AS n FROM Post)
  FOLD{$2.author = $.author, GAP <= 36 h, $.n + 1 AS n} (SELECT author FROM Post))
WITHIN 30 d PUBLISH streak;""",
}
FEED_SCHEMAS: dict[str, Schema] = {
    "first_release": (("id", "string"), ("project", "string"), ("version", "string"), ("days", "number")),
    "bargain": (("product", "string"), ("shop", "string"), ("price", "number"), ("mean", "number")),
    "flare": (("tag", "string"), ("n", "number")),
    "streak": (("author", "string"), ("n", "number"), ("days", "number")),
}


@pytest.mark.parametrize("name", FEED_EXAMPLES)
def test_the_feed_examples_have_their_schemas_and_round_trip(name: str) -> None:
    script = parse_script(EVENTS + FEED_EXAMPLES[name])
    assert schemas_of(script)[name] == FEED_SCHEMAS[name]
    text = to_xscl(script)
    assert parse_script(text) == script
    assert to_xscl(parse_script(text)) == text


def kinds(text: str) -> list[str] | None:
    clean, statements = split_script(text)
    found = kinds_of(clean, statements)
    return None if found is None else list(found)


XSCL = """
    FROM blog
    SELECT x FROM S//next->x
    SELECT <a>filter {x} from b NEXT c</a> FROM S//a->x
    next JOIN {next = x, 1 h} S//union AS next
    SELECT host(y) AS next FROM S//a->y PUBLISH next
    union//a
    //a[. = "FILTER {" and ./b = 'a NEXT b']
    S//x->next PUBLISH union ONCE PER (next)
    SELECT a AS union, b AS next FROM (SELECT x AS a, y AS b FROM next//x[y])
    define//event->a
    S//filter->fold JOIN {fold = next, 1 h} aggregate//union->next
"""
EVENT_QUERIES = """
    A NEXT B
    from filter{a>1}(x)
    (A) UNION (B)
    A NEXT FILTER{x} B
    A FOLD{,,} B
    A NEXT {a = b} B
    SELECT x, y FROM (A UNION B) PUBLISH c
    AGGREGATE {count() AS n} A
    SELECT x FROM ((FROM (FROM A) WITHIN 2 s) WITHIN 1.5 min) UNION A
"""


def test_event_queries_are_told_by_their_operators() -> None:
    assert [text for text in XSCL.strip().splitlines() if kinds(text) is not None] == []
    assert [text for text in EVENT_QUERIES.strip().splitlines() if kinds(text) != ["event query"]] == []


def test_a_bare_name_of_events_makes_an_event_query() -> None:
    text = """
    DEFINE EVENT E FROM S//b->c (x := c); E; FROM ((E)) PUBLISH f; FROM g PUBLISH h;
    SELECT x / 2 AS y FROM (SELECT * FROM f) WITHIN 3 d PUBLISH g; FROM g; blog; g//x; g->h; FROM S//item->i[./t->g]
    """
    assert kinds(text) == ["definition", *["event query"] * 5, *["xscl"] * 4]


def test_what_a_pattern_publishes_are_events() -> None:
    text = "FROM p; SELECT x FROM p PUBLISH q; PATTERN SEQ(A a) WITHIN 1 s RETURN a.x AS x PUBLISH p; q; p//match"
    assert kinds(text) == ["event query", "event query", "pattern", "event query", "xscl"]


def test_a_script_has_its_statements_in_order_and_names_for_all_queries() -> None:
    text = "FROM E; FROM S//a; DEFINE EVENT E FROM S//b->c (x := c); E NEXT E PUBLISH q2; FROM S//d PUBLISH d; FROM E"
    script = parse_script(text)
    assert script.order == ("event query", "query", "definition", "event query", "query", "event query")
    assert script.names() == ("q1", "q3", "q2", "d", "q5")
    assert [text[one.span.start : one.span.end] for one in script.statements] == text.split("; ")
    assert [len(script.queries), len(script.definitions), len(script.event_queries)] == [2, 1, 3]


def test_all_mistakes_of_a_mixed_script_come_together() -> None:
    text = """DEFINE EVENT E FROM S//b->c (x := d);
E NEXT{y = 1} E;
FROM S//a[1];
E NEXT{ E"""
    with pytest.raises(XsclErrors) as caught:
        parse_script(text)
    assert [(error.line, error.message) for error in caught.value.errors] == [
        (1, "variable d is not bound"),
        (2, "there is no attribute y here"),
        (3, "positional predicates are not supported"),
        (4, "this { is not closed"),
    ]
