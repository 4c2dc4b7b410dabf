from typing import Any

import pytest

from tests.generate.events import world as event_world
from tests.generate.patterns import pattern_world
from tests.generate.seeds import seeds
from tests.oracle.event_syntax import schema_of
from tests.oracle.pattern_syntax import Near, Pattern
from tests.oracle.pattern_world import pattern_schema
from xscl.algebra.events import Events, Filter, Fold, Next, Schema, Union
from xscl.event_lower import lower_statement, schemas_of
from xscl.parser import parse_script, parse_statement
from xscl.printer import to_xscl
from xscl.syntax import EventDefinition, EventQuery, EventStreams, Query
from xscl.text import Lines, kinds_of, split_script

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


def kinds(text: str) -> list[str] | None:
    clean, statements = split_script(text)
    found = kinds_of(clean, statements)
    return None if found is None else list(found)


XSCL = """
    FROM blog
    SELECT x FROM S//next->x
    SELECT latest FROM S//latest->latest JOIN {latest = before, 1 h} before//a->before PUBLISH latest
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
    A latest before B
    FROM latest LATEST BEFORE {a = b} before
    SELECT x FROM (A LATEST BEFORE B) PUBLISH latest
    SELECT x, y FROM (A UNION B) PUBLISH c
    AGGREGATE {count() AS n} A
    SELECT x FROM ((FROM (FROM A) WITHIN 2 s) WITHIN 1.5 min) UNION A
"""


def test_event_queries_are_told_by_their_operators_and_by_names_of_events() -> None:
    assert [text for text in XSCL.strip().splitlines() if kinds(text) is not None] == []
    assert [text for text in EVENT_QUERIES.strip().splitlines() if kinds(text) != ["event query"]] == []
    text = """
    DEFINE EVENT E FROM S//b->c (x := c); E; FROM ((E)) PUBLISH f hidden; FROM g PUBLISH h;
    SELECT x / 2 AS y FROM (SELECT * FROM f) WITHIN 3 d PUBLISH g HIDDEN; FROM g; blog; g//x; g->h; //item->i[./t->g]
    """
    assert kinds(text) == ["definition", *["event query"] * 5, *["xscl"] * 4]
    text = (
        "FROM p; SELECT x FROM p PUBLISH q; PATTERN SEQ(A a) WITHIN 1 s RETURN a.x AS x PUBLISH p HIDDEN; q; p//match"
    )
    assert kinds(text) == ["event query", "event query", "pattern", "event query", "xscl"]


def test_a_script_has_its_statements_in_order_and_names_for_all_queries() -> None:
    text = "FROM E; FROM S//a; DEFINE EVENT E FROM S//b->c (x := c); E NEXT E PUBLISH q2; FROM S//d PUBLISH d; FROM E"
    script = parse_script(text)
    order = [EventQuery, Query, EventDefinition, EventQuery, Query, EventQuery]
    assert [type(one) for one in script.statements] == order
    assert script.names() == ("q1", "q3", "q2", "d", "q5")
    assert [text[one.span.start : one.span.end] for one in script.statements] == text.split("; ")
    assert [len(script.queries), len(script.definitions), len(script.event_queries)] == [2, 1, 3]


# ---------------------------------------------------------------- lowering, as in the examples of the thesis

STOCK = "DEFINE EVENT Stock FROM S//quote->q (Name := q/name, Price := number(q/price), Volume := number(q/volume));\n"
FILTERED = """
SELECT Price AS IBMPrice FROM FILTER{Name='IBM' AND Price > 83}(Stock);
SELECT Price AS IBMPrice FROM FILTER{Name='IBM'}(SELECT * FROM FILTER{Price > 83}(Stock));
SELECT Price_1 AS one, Price AS two
  FROM (FILTER{Name='IBM' AND Price > 83}(Stock)) NEXT{$2.Price > $1.Price} (FILTER{Name='IBM'}(Stock))
"""


def lowered_of(text: str) -> list[Any]:
    script = parse_script(STOCK + text)
    return [lower_statement(query, schemas_of(script)) for query in script.event_queries]


def test_filters_of_a_chain_are_one_and_that_of_a_right_operand_is_part_of_next():
    one, two, following = lowered_of(FILTERED)
    assert isinstance(one.source, Filter) and isinstance(two.source, Filter)
    assert set(one.source.condition.args) == set(two.source.condition.args)  # type: ignore[union-attr]  # both are AllOf
    assert isinstance(following.source, Next)
    assert isinstance(following.source.right, Events) and isinstance(following.source.left, Filter)


@pytest.mark.parametrize(
    ("condition", "within"),
    [
        *(("DUR <= 10 min", 600_000_000), ("DUR < 10 min", 599_999_999), ("NOT DUR > 10 min", 600_000_000)),
        *(("10 min >= DUR AND $1.Price < $2.Price", 600_000_000), ("DUR = 0.1", 100_000), ("DUR <= 2 * 3", 6_000_000)),
        *(("DUR >= 10 min", None), ("DUR <= 3 OR $1.Price = 1", None), ("DUR <= -1", None)),
    ],
)
def test_upper_bounds_of_dur_are_windows(condition: str, within: int | None):
    braces = f"{{$1.Name = $2.Name AND ({condition})}}"
    following, fold = lowered_of(f"Stock NEXT{braces} Stock; Stock FOLD{{, {condition},}} Stock")
    assert isinstance(following, Next) and isinstance(fold, Fold) and following.within == fold.within == within


def test_within_bounds_all_inside_its_from():
    text = "SELECT Name FROM (Stock NEXT{DUR <= 5} Stock) UNION (Stock NEXT Stock) WITHIN 10 s"
    (lowered,) = lowered_of(text)
    assert isinstance(lowered.source, Union)
    windows = [side.within for side in (lowered.source.left, lowered.source.right) if isinstance(side, Next)]
    assert windows == [5_000_000, 10_000_000]


# ---------------------------------------------------------------- random ones, whose meaning pattern_stage has


def syntax_of(text: str, known: set[str], *, reuse: bool = False) -> Any:
    """The tree of one statement, whatever it means."""
    clean, (statement,) = split_script(text)
    assert statement.problem is None
    kinds = kinds_of(clean, [statement], known)
    kind = "xscl" if kinds is None else kinds[0]
    return parse_statement(clean, kind, statement.span, Lines(text), reuse=reuse)


@pytest.mark.parametrize("seed", seeds(10, 3_000))
def test_random_statements_round_trip_and_have_their_schemas(seed: int):
    one = event_world(seed, most=9)
    given = {name: tuple(schema.items()) for name, schema in one.schemas.items() if name.startswith("E")}
    known = EventStreams(given)
    script = parse_script("; ".join(statement.text() for statement in one.statements), events=known)
    assert parse_script(to_xscl(script), events=known) == script
    of_script = schemas_of(script, known)
    for query, statement in zip(script.event_queries, one.statements, strict=True):
        assert dict(lower_statement(query, of_script).schema) == schema_of(statement, one.schemas)
    world = pattern_world(seed)
    schemas: dict[str, Schema] = {name: tuple(schema.items()) for name, schema in world.schemas.items()}
    for statement in world.statements:
        text = statement.text()
        query = syntax_of(text, {*schemas})
        assert syntax_of(to_xscl(query), {*schemas}) == query
        lowered = lower_statement(query, schemas)
        assert repr(lower_statement(syntax_of(text, {*schemas}, reuse=True), schemas)) == repr(lowered), text
        if isinstance(statement, Pattern | Near):
            assert dict(lowered.schema) == pattern_schema(statement, world.schemas)
