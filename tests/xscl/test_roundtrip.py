from bisect import bisect_left
from random import Random

import pytest

from tests.generate.events import world
from tests.generate.seeds import seeds
from tests.generate.trees import DocumentTrees, EventTrees
from tests.xscl.test_events import EVENTS, FEED_EXAMPLES
from xscl.parser import parse_script, parse_statement
from xscl.printer import to_xscl
from xscl.syntax import EventDefinition, EventQuery, EventStreams, Query, names_read
from xscl.text import Lines, XsclErrors, kinds_of, split_script


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


WRONG = (
    *"()[]{}<>=!,;:.*@/|$&-+%'\"#\n\0\ud800",
    *("//", "->", "<=", "(:", ":)", "--", "{{", "</a>", "<a>", "/>", "&amp;", "::", "..", "7 d", "-1", "é"),
    *("SELECT", "FROM", "FOLLOWED BY", "JOIN", "PUBLISH p ONCE PER (", "not(", "INF", "DECLARE NAMESPACE"),
    *("FOLD{", "NEXT{", "E", "WITHIN 3 d"),
)


@pytest.mark.parametrize("seed", seeds(6, 120))
def test_a_damaged_script_is_a_script_or_has_errors(seed: int):
    rng = Random(seed)
    match seed % 3:
        case 0:
            text = "; ".join(statement.text() for statement in world(seed, most=6).statements)
        case 1:
            text = EVENTS + rng.choice(list(FEED_EXAMPLES.values()))
        case _:
            text = "; ".join(to_xscl(DocumentTrees(rng).query(rng.randrange(4))) for _ in range(3))
    _parse_or_render(" ".join(rng.choices(WRONG, k=9)))
    for _ in range(15):
        damaged = text
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(damaged))
            damaged = damaged[:at] + rng.choice(WRONG) + damaged[at + rng.choice((0, 1, 3, 30)) :]
        _parse_or_render(damaged)


# ---------------------------------------------------------------- trees of any kind

A_SEED = 100
"""Trees of a seed."""


def syntax_of(text: str, known: set[str], *, reuse: bool) -> object:
    """The tree of one statement, whatever it means."""
    clean, (statement,) = split_script(text)
    assert statement.problem is None
    kinds = kinds_of(clean, [statement], known)
    kind = "xscl" if kinds is None else kinds[0]
    return parse_statement(clean, kind, statement.span, Lines(text), reuse=reuse)


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
    def is_refused(depth: int) -> bool:
        try:
            parse_script(NESTED[name](depth), events=KNOWN)
        except XsclErrors:
            return True
        return False

    deepest = 19 + bisect_left(range(20, 110), True, key=is_refused)
    assert 20 < deepest < 109
    for depth in (deepest - 1, deepest):
        script = parse_script(NESTED[name](depth), events=KNOWN)
        assert parse_script(to_xscl(script), events=KNOWN, stored=True) == script
