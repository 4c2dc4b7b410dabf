"""What a person is told about each kind of mistake: a catalogue of scripts with the exact rendering."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.places import DATA
from xscl.parser import parse_script
from xscl.problems import XsclErrors
from xscl.text import foreign_mistake

CASES = sorted((DATA / "xscl_errors").glob("*.txt"))
SEPARATOR = "\n----\n"


def errors_of(script: str) -> XsclErrors:
    with pytest.raises(XsclErrors) as caught:
        parse_script(script)
    return caught.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_catalogue(case: Path) -> None:
    script, expected = case.read_text(encoding="utf-8").split(SEPARATOR)
    assert errors_of(script).render("queries.xscl") + "\n" == expected


def test_the_catalogue_is_large() -> None:
    assert len(CASES) >= 150


def test_an_error_says_where_it_is() -> None:
    (error,) = errors_of("FROM S//a;\n\nFROM S//b[./c->x]\r\n  JOIN {x = z, 1 h} S//d->y").errors
    assert (error.line, error.column, error.source) == (4, 13, "  JOIN {x = z, 1 h} S//d->y")
    assert (error.message, error.hint) == ("variable z is not bound", "bind it in a block, as in //title->z")
    assert (error.span.start, error.span.end) == (43, 44)


def test_without_a_file_name_the_rendering_begins_with_the_line() -> None:
    found = errors_of("FROM S//a[1]")
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


@pytest.mark.parametrize(
    "broken",
    [
        *('FROM S//a[. = "x', "FROM S//a[. = 'x", "FROM S//a (: never closed", "FROM S//a[./b", "FROM (S//a"),
        *("FROM S//a->x JOIN {x = y", "SELECT <a>it's", "SELECT <a b='", "SELECT <a>{x</a> FROM S//a->x", "FROM S//a)"),
    ],
)
def test_a_broken_query_does_not_hide_the_next(broken: str) -> None:
    assert {error.line for error in errors_of(f"{broken};\nFROM S//b[last()] PUBLISH news").errors} == {1, 2}


def test_one_error_for_each_cycle() -> None:
    script = "FROM b//a PUBLISH a; FROM a//a PUBLISH b; FROM d//a PUBLISH d; FROM b//a PUBLISH reader"
    assert [error.message for error in errors_of(script).errors] == [
        "a cycle of PUBLISHed names: a -> b -> a",
        "a cycle of PUBLISHed names: d -> d",
    ]


def test_deep_nesting_is_refused_before_it_exhausts_the_stack() -> None:
    for script in ("(" * 5000, "FROM S//a" + "[b" * 5000, "SELECT " + "<a>" * 5000, "FROM S//a[" + "not(" * 5000):
        assert errors_of(script)


def test_a_word_far_from_the_beginning_is_told_in_its_place() -> None:
    before = f"{'x' * 300}; let "
    problem = foreign_mistake(before, "$y", len(before), {"FOLLOWED"})
    assert problem and before[problem.span.start : problem.span.end] == "let"


def test_the_first_word_that_is_looked_at_is_not_the_first_of_a_query() -> None:
    assert "FOR" not in str(errors_of(f"FROM S//item->{' ' * 250}for in"))
