"""Printing a script and parsing it again gives the script, and no text at all breaks the parser."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.generate.scripts import scripts
from tests.generate.seeds import examples
from xscl.parser import parse_script
from xscl.printer import to_xscl
from xscl.problems import XsclErrors
from xscl.syntax import Script

TOKENS = (
    *"()[]{}<>=!,;:.*@/|$&-+'\"#\n\0\ud800",
    *("//", "->", "<=", "!=", "(:", ":)", "--", "{{", "}}", "</a>", "<a>", "/>", "&amp;", "::", ".."),
    *("SELECT", "FROM", "FOLLOWED BY", "JOIN", "PUBLISH", "AS", "and", "or", "not(", "INF", "DECLARE NAMESPACE"),
    *("ONCE", "PER", "ONCE PER (x1)", "WITHIN", "WITHIN 3 d", "PUBLISH p ONCE PER ("),
    *("x1", "x2'", "S", "title", "count(", "contains(", "matches(", "7 d", "-1", "q7", "text()", "é"),
)


@given(scripts())
@examples(25, 200)
def test_parsing_a_printed_script_gives_an_equal_tree(script: Script) -> None:
    text = to_xscl(script)
    parsed = parse_script(text)
    assert parsed == script
    assert to_xscl(parsed) == text
    assert "\n" not in text


@given(scripts())
@examples(10, 50)
def test_a_query_spans_its_own_text(script: Script) -> None:
    text = to_xscl(script)
    queries = [text[query.span.start : query.span.end] for query in parse_script(text).queries]
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
        _check_errors(errors)
    else:
        assert parse_script(to_xscl(script)) == script


def _check_errors(errors: XsclErrors) -> None:
    assert errors.errors
    for error in errors.errors:
        assert 0 <= error.span.start <= error.span.end
        assert error.line >= 1 and 1 <= error.column <= len(error.source) + 2
        error.render("f.xscl").encode()
