"""The values that queries compare: numbers, comparisons, derived values, string functions, patterns."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from xscl.algebra.regex import MAX_WORK, PatternLimit, compile_pattern
from xscl.algebra.regex_syntax import MAX_DEPTH, MAX_PATTERN, MAX_SIZE, PatternError
from xscl.algebra.values import (
    DERIVED,
    CompareOp,
    compare,
    contains,
    derive,
    ends_with,
    matches_regex,
    starts_with,
    with_literal,
    xpath_number,
)

# ---------------------------------------------------------------- numbers and comparisons


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1.0), ("-1.5", -1.5), (".5", 0.5), ("7.", 7.0), (" \t\r\n2 \n", 2.0), ("007", 7.0), ("9" * 400, math.inf)],
)
def test_numbers(text: str, number: float) -> None:
    assert xpath_number(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "+1",
        "1e3",
        "1,5",
        "- 1",
        "--1",
        "1 2",
        ".",
        "-",
        "inf",
        "NaN",
        "0x10",
        "1_000",
        "\u00a01",
        "١",
        "1\x0b",
    ],
)
def test_not_numbers(text: str) -> None:
    assert math.isnan(xpath_number(text))


def test_negative_zero_is_zero() -> None:
    assert math.copysign(1, xpath_number("-0")) == -1
    assert compare("=", "-0", 0.0)


@pytest.mark.parametrize(
    ("left", "op", "right", "holds"),
    [
        ("1", "=", "1.0", False),
        ("1", "!=", "1.0", True),
        ("é", "=", "e\u0301", False),
        ("", "=", "", True),
        ("1", "=", 1.0, True),
        (1.0, "=", " 1.0 ", True),
        (2.0, "!=", "2", False),
        ("a", "=", 1.0, False),
        ("a", "!=", 1.0, True),
        ("a", "!=", math.nan, True),
        (math.nan, "=", math.nan, False),
        ("9", "<", "10", True),
        ("b", "<", "c", False),
        ("b", ">=", "b", False),
        ("2", "<=", "2.0", True),
        ("2", ">=", 2.0, True),
        (3.0, ">", "2", True),
        ("2", ">", "2", False),
    ],
)
def test_comparisons(left: str | float, op: CompareOp, right: str | float, holds: bool) -> None:
    assert compare(op, left, right) is holds


# ---------------------------------------------------------------- derived values


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("lower-case", "ÀÉ Straße", "àé straße"),
        ("upper-case", "straße", "STRASSE"),
        ("normalize-space", " \t a \r\n\n b ", "a b"),
        ("normalize-space", "\u00a0a\u2003b", "\u00a0a\u2003b"),
        ("normalize-space", "", ""),
    ],
)
def test_derived_texts(name: str, text: str, value: str) -> None:
    assert derive(name, text) == value


def test_an_unknown_derived_value() -> None:
    with pytest.raises(KeyError):
        derive("soundex", "a")


@pytest.mark.parametrize(
    ("text", "month"),
    [
        ("2026-07-16", "2026-07"),
        ("Sat, 1 Aug 2026 01:00:00 +0200", "2026-07"),
        ("0001-01-01T00:30Z", "0001-01"),
        ("2026-07", ""),
        ("soon", ""),
    ],
)
def test_year_month(text: str, month: str) -> None:
    assert derive("year-month", text) == month


@pytest.mark.parametrize(
    ("name", "part", "value"),
    [
        ("substring-before", " - ", "a"),
        ("substring-after", " - ", "b - c"),
        ("substring-before", "", ""),
        ("substring-after", "", "a - b - c"),
        ("substring-before", "x", ""),
        ("substring-after", "x", ""),
    ],
)
def test_substrings(name: str, part: str, value: str) -> None:
    assert derive(with_literal(name, part), "a - b - c") == value


@pytest.mark.parametrize("name", ["substring-before", 'substring-before "', "words 1", 'substring-after "a"b"', ""])
def test_no_function_of_a_chain(name: str) -> None:
    with pytest.raises(KeyError):
        derive(name, "a")


url_like = st.text(st.sampled_from("htps:/.?#[]@&=%41a é ü\u212a\ud800W-_~+"), max_size=20).map(
    lambda tail: "http://" + tail
)


@given(st.one_of(st.text(), url_like))
def test_derived_values_are_strings_and_never_fail(text: str) -> None:
    for name in DERIVED:
        assert isinstance(derive(name, text), str)


@given(st.one_of(st.text(), url_like))
@example("HTTP:// :")
@example("http://\ud800@1")
@example("http://1\u3002.")
def test_a_canonical_url_is_its_own(text: str) -> None:
    once = derive("canonical-url", text)
    assert derive("canonical-url", once) == once


# ---------------------------------------------------------------- string functions


def test_string_functions() -> None:
    assert contains("abc", "b") and contains("abc", "") and contains("", "") and not contains("abc", "B")
    assert starts_with("abc", "ab") and starts_with("abc", "") and not starts_with("abc", "bc")
    assert ends_with("abc", "bc") and ends_with("abc", "") and not ends_with("abc", "ab")


@pytest.mark.parametrize(
    ("text", "pattern", "found"),
    [
        ("xaby", "a.y?", True),
        ("abc", "^b", False),
        ("abc", "c$", True),
        ("abc\n", "c$", False),
        ("a\nb", "a.b", False),
        ("abc", "", True),
        ("aXbX", r"^a(.)b\1$", True),
        ("aXbY", r"^a(.)b\1$", False),
        ("Ünder", r"^\p{Lu}\p{Ll}+$", True),
        ("ab-c", r"^\i\c*$", True),
        ("b", "[a-z-[aeiou]]", True),
        ("e", "[a-z-[aeiou]]", False),
        ("aaa", "^a{2,3}?$", True),
        ("٣", r"^\d$", True),
        ("a]b", r"a\]b", True),
        ("+1", r"^\w+$", True),
        ("$", r"^\w+$", True),
        ("\U0001f600", r"^\w$", True),
        ("a_b", r"^\w+$", False),
        ("_", r"^[\W]$", True),
        ("\u00a0", r"^\s+$", False),
        ("\x0b", r"\s", False),
        ("\x1f", r"\s", False),
        ("\u00a0", r"^\S$", True),
        (" \t\r\n", r"^\s+$", True),
        ("\U00010400b", r"^\i\c*$", True),
        ("b\U000effff", r"^\i\c*$", True),
        ("\U000f0000", r"^\I$", True),
        ("·", r"^\c$", True),
        ("\r", ".", False),
        ("\u2028\x85", "^..$", True),
        ("a\n", "a$", False),
        ("b", r"^(a)?b\1$", True),
        ("aab", r"^(?:(a)|b)+\1$", False),
        ("aba", r"^(?:(a)|b)+\1$", True),
        ("aa0", r"^(a)\10$", True),
        ("abcdefghijj", r"^(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)\10$", True),
        ("a", "[a-[a]]", False),
        ("-", "[a--[a]]", True),
        ("a&&b", "^[a&&b]+$", True),
        ("a~~b||", "^[a~~b||]+$", True),
        ("a#b", "a#b", True),
        ("K", "k", False),
        ("\u212a", "K", False),
        ("ab", "^(|a)b|c||$", True),
        ("-", r"^\-$", True),
        ("", "^*$+", True),
    ],
)
def test_matches(text: str, pattern: str, found: bool) -> None:
    assert matches_regex(text, pattern) is found


REFUSED = r"""
    \X \R \h \G \K \m \0 \a \f \v \b \B \A \Z \z \# \/ \: \_ \x41 \u0041 \N{A} \Q \E \p{l} \pL
    \p{Cs} \p{LC} \p{IsNope} \p{IsNoBlock} \p{Isbasiclatin} \p{Latin} \p{^L} \p{} \p{L \1 (\1) (a\1) [\1]
    a** a*+ a??? a{,2} {2} a{2}{3} a{x} a{1,2,3} a{1001} a{1,1001} a{99999999999999999999} (a{50}){50}
    } a} { ] a] [] [^] [--] [a-c-e] [--a] [a--] [[:alpha:]] [a[b]] [a-z-[b]c] [-[a]] ? (* a|+
    [\w-a] [a-\d] [b-a] [\ [a- [a-[b]
    (?i)a (?i:a) (?!a) (?<=a) (?<!a) (?P<n>a) (?>a) (?#a) (?|a) (?(1)a) (?
"""
"""What other kinds of regular expressions have, and what none has."""


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a)",
        "[b-a]",
        "*a",
        r"\q",
        r"\p{Nonsense}",
        "a{2,1}",
        "(?=a)",
        "(?<n>a)",
        "a" * (MAX_PATTERN + 1),
        "((a{100}){100}){100}",
        "[",
        *REFUSED.split(),
        "a{ 2}",
        "a{2, 3}",
        "\\ ",
        "\\",
        "(" * (MAX_DEPTH + 1) + ")" * (MAX_DEPTH + 1),
        "[a-" * 100 + "[b]" + "]" * 100,
    ],
)
def test_bad_patterns(pattern: str) -> None:
    with pytest.raises(PatternError):
        matches_regex("a", pattern)


def test_the_largest_patterns() -> None:
    assert matches_regex("a" * MAX_SIZE, f"a{{{MAX_SIZE}}}") and not matches_regex(
        "a" * (MAX_SIZE - 1), f"a{{{MAX_SIZE}}}"
    )
    assert matches_regex("ab" * 490, "^((ab){5,10}){2,49}$") and not matches_regex("ab" * 491, "^((ab){5,10}){2,49}$")
    assert matches_regex("", "(" * MAX_DEPTH + ")" * MAX_DEPTH)
    assert matches_regex("é" * 64, r"^\w{1,64}$") and not matches_regex("é" * 65, r"^\w{1,64}$")
    assert matches_regex("".join(map(chr, range(0x3041, 0x3041 + 300))), "".join(map(chr, range(0x3041, 0x3041 + 300))))


@given(st.text(st.sampled_from("ab[]()*+?{}|\\^$-.,1293pPLidsw: "), max_size=12))
def test_any_pattern_compiles_or_is_refused(pattern: str) -> None:
    try:
        compiled = compile_pattern(pattern)
    except PatternError:
        return
    assert compile_pattern(pattern) is compiled


def test_a_search_is_linear_and_what_is_too_long_depends_on_nothing_else() -> None:
    text = "a" * 5000 + "b"
    assert not matches_regex(text, "^(a|a)*(a|a)*(a|a)*$") and matches_regex(text, "^(a|a)*(a|a)*(a|a)*b$")
    longest = MAX_WORK // MAX_SIZE
    assert matches_regex("b" * longest, f"b{{{MAX_SIZE}}}")
    with pytest.raises(PatternLimit, match="too long"):
        matches_regex("b" * (longest + 1), f"b{{{MAX_SIZE}}}")


def test_a_search_with_back_references_takes_so_many_steps() -> None:
    assert matches_regex("x" * 10_000 + "abcabc", r"(abc)\1") and not matches_regex("x" * 10_000, r"(abc)\1")
    with pytest.raises(PatternLimit, match="too many ways"):
        matches_regex("a" * 2001 + "b", r"^(a*)(a*)(a*)\1\2\3b$")


def test_importing_the_language_imports_nothing_heavy() -> None:
    code = "import sys, xscl; print({'elementpath', 'lxml', 'pyarrow', 'pyspark'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
