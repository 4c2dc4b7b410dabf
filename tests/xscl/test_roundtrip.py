from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generate.event_worlds import world
from tests.generate.scripts import scripts
from tests.generate.seeds import examples, seeds
from tests.generate.trees import DocumentTrees, EventTrees
from tests.xscl.test_events import EVENTS, FEED_EXAMPLES
from xscl.event_parser import parse_event_statement
from xscl.parser import _parse_statement, parse_script
from xscl.printer import to_xscl
from xscl.problems import Lines, XsclErrors
from xscl.syntax import EventDefinition, EventQuery, EventStreams, Query, Script, names_read
from xscl.text import kinds_of, split_script

TOKENS = (
    *"()[]{}<>=!,;:.*@/|$&-+'\"#\n\0\ud800",
    *("//", "->", "<=", "!=", "(:", ":)", "--", "{{", "}}", "</a>", "<a>", "/>", "&amp;", "::", ".."),
    *("SELECT", "FROM", "FOLLOWED BY", "JOIN", "PUBLISH", "AS", "and", "or", "not(", "INF", "DECLARE NAMESPACE"),
    *("ONCE", "PER", "ONCE PER (x1)", "WITHIN", "WITHIN 3 d", "PUBLISH p ONCE PER ("),
    *("x1", "x2'", "S", "title", "count(", "contains(", "matches(", "7 d", "-1", "q7", "text()", "é"),
)


@given(scripts())
@examples(20, 200)
def test_parsing_a_printed_script_gives_an_equal_tree_whose_queries_span_their_own_texts(script: Script) -> None:
    text = to_xscl(script)
    parsed = parse_script(text)
    assert parsed == script
    assert to_xscl(parsed) == text and "\n" not in text
    queries = [text[query.span.start : query.span.end] for query in parsed.queries]
    assert queries == [to_xscl(query) for query in script.queries]


@given(
    st.one_of(
        st.text(), st.lists(st.sampled_from(TOKENS)).map(" ".join), st.lists(st.sampled_from(TOKENS)).map("".join)
    )
)
@examples(60, 400)
def test_any_text_is_a_script_or_has_errors(text: str) -> None:
    _parse_or_render(text)


@given(scripts(), st.data())
@examples(25, 200)
def test_a_damaged_script_is_a_script_or_has_errors(script: Script, data: st.DataObject) -> None:
    text = to_xscl(script)
    for _ in range(data.draw(st.integers(1, 3))):
        at, until = sorted(data.draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        until = min(until, at + data.draw(st.sampled_from((0, 0, 1, 3, 1000))))
        text = text[:at] + data.draw(st.sampled_from(("", *TOKENS))) + text[until:]
    _parse_or_render(text)


def _parse_or_render(text: str) -> None:
    try:
        script = parse_script(text)
    except XsclErrors as errors:
        for error in errors.errors:
            assert 0 <= error.span.start <= error.span.end <= len(text) + 1
            assert error.line >= 1 and 1 <= error.column <= len(error.source) + 2
            error.render("f.xscl").encode()
    else:
        assert parse_script(to_xscl(script)) == script


# ---------------------------------------------------------------- event statements

STATEMENTS = """
SELECT *, -y AS a, - (y + 1) * 2 AS b, y - (y - y) AS c, 7 % y AS d, 80% * y AS e FROM E
FROM FILTER{NOT (x = "a" AND y = 1) OR NOT NOT x IS NOT NULL} E
FROM FILTER{x = 'it''s' OR x = "a ""b""; (: c :)"} E
FROM FILTER{(y = 1 OR y = 2) AND (y = 3 OR (y = 4 OR y = 5))} E
E NEXT (SELECT x AS a FROM E) NEXT ((SELECT x AS b FROM E) NEXT (SELECT x AS c FROM E))
(E UNION E) NEXT{$1.from = $2.from AND DUR <= 3 h AND GAP > 1} (FROM E WITHIN 2 s) WITHIN INF
FILTER{y = 1} FILTER{y < 2} (E NEXT (SELECT x AS a FROM E))
"""


def test_a_statement_is_printed_as_it_is_meant():
    known = EventStreams({"E": (("x", "string"), ("y", "number"), ("from", "string"))})
    for text in STATEMENTS.strip().splitlines():
        script = parse_script(text, events=known)
        printed = to_xscl(script)
        assert parse_script(printed, events=known) == script
        assert to_xscl(parse_script(printed, events=known)) == printed


@pytest.mark.parametrize("seed", seeds(3, 60))
def test_a_damaged_event_script_is_a_script_or_has_errors(seed: int):
    rng = Random(seed)
    text = EVENTS + rng.choice(list(FEED_EXAMPLES.values()))
    if seed % 3 == 0:
        text = "; ".join(statement.text() for statement in world(seed, most=6).statements)
    wrong = [*"()[]{}<>=!,;:.*@/|$&-+%'\"#\n\0\ud800", "//", "->", "(:", "--", "SELECT", "FROM", "FOLD{", "NEXT{", "E"]
    for _ in range(15):
        damaged = text
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(damaged))
            damaged = damaged[:at] + rng.choice(wrong) + damaged[at + rng.choice((0, 1, 3, 30)) :]
        _parse_or_render(damaged)


# ---------------------------------------------------------------- trees of any kind

A_SEED = 100
"""Trees of a seed."""


def syntax_of(text: str, known: set[str], *, reuse: bool) -> object:
    """The tree of one statement, whatever it means."""
    clean, (statement,) = split_script(text)
    assert statement.problem is None
    kinds = kinds_of(clean, [statement], known)
    if kinds is None or kinds[0] == "xscl":
        return _parse_statement(clean, 0, Lines(text), reuse=reuse)
    return parse_event_statement(clean, kinds[0], statement.span, Lines(text), reuse=reuse)


@pytest.mark.parametrize("seed", seeds(6, 1_000))
def test_parsing_a_printed_tree_gives_an_equal_tree(seed: int) -> None:
    rng = Random(seed)
    documents, events = DocumentTrees(rng), EventTrees(rng)
    for number in range(A_SEED):
        depth = rng.randrange(4)
        make = (documents.query, events.statement, documents.definition)[number % 3]
        tree: Query | EventQuery | EventDefinition = make(depth)
        known = {name.name for name in names_read(tree.stream)} if isinstance(tree, EventQuery) else set()
        text = to_xscl(tree)
        for reuse in (True, False):
            assert syntax_of(text, known, reuse=reuse) == tree, text


NESTED = {
    "minus": lambda n: f"FROM FILTER{{y = {'- ' * n}y}} E",
    "not": lambda n: f"FROM FILTER{{{'NOT ' * n}y = 1}} E",
    "parentheses": lambda n: f"FROM FILTER{{{'(' * n}y = 1{')' * n}}} E",
    "sums": lambda n: f"FROM FILTER{{{'(y - ' * n}y{')' * n} = 1}} E",
    "negative sums": lambda n: f"FROM FILTER{{y{' - (- ' * n}y{')' * n} = 1}} E",
    "calls": lambda n: f"FROM FILTER{{{'abs(' * n}y{')' * n} = 1}} E",
    "event conditions": lambda n: f"FROM FILTER{{{'y = 1 AND (y = 2 AND y = 3 OR ' * n}y = 4{')' * n}}} E",
    "filters of events": lambda n: f"FROM {'FILTER{y = 1} ' * n}E",
    "queries": lambda n: f"FROM {'(SELECT * FROM ' * n}E{')' * n}",
    "unions": lambda n: f"FROM E{' UNION (E' * n}{')' * n}",
    "letters": lambda n: f"PATTERN SEQ(E, {'(E, ' * n}E{')' * n}) ERRORS <= 1 WITHIN 5 s",
    "conditions": lambda n: f"FROM S//a[{'a and (b and c or ' * n}d{')' * n}]",
    "filters": lambda n: f"FROM S//a{'[a' * n}{']' * n}",
    "not()": lambda n: f"FROM S//a[{'not(' * n}a{')' * n}]",
    "functions": lambda n: f"FROM S//a[{'lower-case(' * n}a{')' * n} = 'x']",
    "predicates": lambda n: f"FROM S//a->a JOIN {{{'a = b and (b = a or ' * n}a = b{')' * n}, 1 h}} S//b->b",
    "elements": lambda n: f"SELECT {'<a>' * n}{{x}}{'</a>' * n} FROM S//a->x",
    "inner queries": lambda n: f"FROM {'(SELECT x AS x FROM ' * n}S//a->x{')' * n}",
}


KNOWN = EventStreams({"E": (("x", "string"), ("y", "number"))})


@pytest.mark.parametrize("name", NESTED)
def test_the_deepest_statement_that_is_accepted_is_stored_in_a_text_that_can_be_read(name: str) -> None:
    scripts = [script for depth in range(20, 110) if (script := _accepted(NESTED[name](depth))) is not None]
    assert len(scripts) > 1
    for script in scripts[-2:]:
        assert parse_script(to_xscl(script), events=KNOWN, stored=True) == script


def _accepted(text: str) -> Script | None:
    try:
        return parse_script(text, events=KNOWN)
    except XsclErrors:
        return None
