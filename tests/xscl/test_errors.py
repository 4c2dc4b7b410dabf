from pathlib import Path

import pytest

from tests.support.places import DATA
from xscl.parser import parse_script
from xscl.problems import XsclErrors
from xscl.text import foreign_mistake

CASES = sorted((DATA / "xscl_errors").glob("*.txt"))
SEPARATOR = "\n----\n"
DEEP = ("", "("), ("FROM S//a", "[b"), ("SELECT ", "<a>"), ("FROM S//a[", "not(")


def errors_of(script: str) -> XsclErrors:
    with pytest.raises(XsclErrors) as caught:
        parse_script(script)
    return caught.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_catalogue(case: Path) -> None:
    script, expected = case.read_text(encoding="utf-8").split(SEPARATOR)
    assert errors_of(script).render("queries.xscl") + "\n" == expected


def test_an_error_says_where_it_is() -> None:
    (error,) = errors_of("FROM S//a;\n\nFROM S//b[./c->x]\r\n  JOIN {x = z, 1 h} S//d->y").errors
    assert (error.line, error.column, error.source) == (4, 13, "  JOIN {x = z, 1 h} S//d->y")
    assert (error.message, error.hint) == ("variable z is not bound", "bind it in a block, as in //title->z")
    assert (error.span.start, error.span.end) == (43, 44)
    found = errors_of("FROM S//a[1]")  # without a file name
    assert str(found) == str(found.errors[0]) and str(found).startswith("1:11: error: ")
    assert isinstance(found, ValueError)


def test_errors_of_syntax_and_of_meaning_come_together_in_the_order_of_the_text() -> None:
    script = "FROM S//a[1];\nFROM S//b[;\nFROM S//c->x JOIN {x = y, 1 h} S//d;\nFROM S//e]"
    assert [(error.line, error.message) for error in errors_of(script).errors] == [
        (1, "positional predicates are not supported"),
        (2, "this [ is not closed"),
        (3, "variable y is not bound"),
        (4, "this ] closes nothing"),
    ]
    # One error for each cycle.
    script = "FROM b//a PUBLISH a; FROM a//a PUBLISH b; FROM d//a PUBLISH d; FROM b//a PUBLISH reader"
    cycles = ["a cycle of PUBLISHed names: a -> b -> a", "a cycle of PUBLISHed names: d -> d"]
    assert [error.message for error in errors_of(script).errors] == cycles
    # Deep nesting is refused before it exhausts the stack.
    assert all(errors_of(start + text * 5000) for start, text in DEEP)


@pytest.mark.parametrize(
    "broken",
    [
        *('FROM S//a[. = "x', "FROM S//a[. = 'x", "FROM S//a (: never closed", "FROM S//a[./b", "FROM (S//a"),
        *("FROM S//a->x JOIN {x = y", "SELECT <a>it's", "SELECT <a b='", "SELECT <a>{x</a> FROM S//a->x", "FROM S//a)"),
    ],
)
def test_a_broken_query_does_not_hide_the_next(broken: str) -> None:
    assert {error.line for error in errors_of(f"{broken};\nFROM S//b[last()] PUBLISH news").errors} == {1, 2}


def test_a_word_far_from_the_beginning_is_told_in_its_place() -> None:
    before = f"{'x' * 300}; let "
    problem = foreign_mistake(before, "$y", len(before), {"FOLLOWED"})
    assert problem and before[problem.span.start : problem.span.end] == "let"
    assert "FOR" not in str(errors_of(f"FROM S//item->{' ' * 250}for in")), "the first word here is not a query's first"
