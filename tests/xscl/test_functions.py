"""The values that queries compare: numbers, comparisons, derived values, string functions, patterns."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from xscl.algebra.regex import MAX_WORK, PatternLimit, compile_pattern
from xscl.algebra.regex_syntax import MAX_DEPTH, MAX_PATTERN, MAX_SIZE, PatternError
from xscl.algebra.values import DERIVED, compare, derive, matches_regex, with_literal, xpath_number

# ---------------------------------------------------------------- numbers and derived values


def test_numbers() -> None:
    """More than Saxon is asked in test_values_saxon."""
    assert [xpath_number(text) for text in ("7.", " \t\r\n2 \n", "9" * 400)] == [7.0, 2.0, math.inf]
    assert all(math.isnan(xpath_number(text)) for text in ("", "+1", "1e3", "- 1", ".", "inf", "0x10", "١", "1\x0b"))
    assert math.copysign(1, xpath_number("-0")) == -1 and compare("=", "-0", 0.0)
    assert compare("!=", "a", math.nan) and not compare("=", math.nan, math.nan)


@pytest.mark.parametrize(
    ("text", "month"),
    [("2026-07-16", "2026-07"), ("Sat, 1 Aug 2026 01:00:00 +0200", "2026-07"), ("2026-07", ""), ("soon", "")],
)
def test_year_month(text: str, month: str) -> None:
    assert derive("year-month", text) == month


@pytest.mark.parametrize("name", ["soundex", "substring-before", 'substring-before "', 'substring-after "a"b"', ""])
def test_no_function_of_a_chain(name: str) -> None:
    assert derive(with_literal("substring-before", " - "), "a - b - c") == "a"
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


# ---------------------------------------------------------------- patterns

MATCHED = [
    *(("xaby", "a.y?"), ("abc", "c$"), ("abc", ""), ("aXbX", r"^a(.)b\1$"), ("Ünder", r"^\p{Lu}\p{Ll}+$")),
    *(("ab-c", r"^\i\c*$"), ("b", "[a-z-[aeiou]]"), ("aaa", "^a{2,3}?$"), ("٣", r"^\d$"), ("a]b", r"a\]b")),
    *(("+1", r"^\w+$"), ("$", r"^\w+$"), ("\U0001f600", r"^\w$"), ("_", r"^[\W]$"), ("\u00a0", r"^\S$")),
    *((" \t\r\n", r"^\s+$"), ("\U00010400b", r"^\i\c*$"), ("b\U000effff", r"^\i\c*$"), ("\U000f0000", r"^\I$")),
    *(("·", r"^\c$"), ("\u2028\x85", "^..$"), ("b", r"^(a)?b\1$"), ("aba", r"^(?:(a)|b)+\1$"), ("aa0", r"^(a)\10$")),
    *(("abcdefghijj", r"^(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)\10$"), ("-", "[a--[a]]"), ("a&&b", "^[a&&b]+$")),
    *(("a~~b||", "^[a~~b||]+$"), ("a#b", "a#b"), ("ab", "^(|a)b|c||$"), ("-", r"^\-$"), ("", "^*$+")),
]
NOT_MATCHED = [
    *(("abc", "^b"), ("abc\n", "c$"), ("a\nb", "a.b"), ("aXbY", r"^a(.)b\1$"), ("e", "[a-z-[aeiou]]"), ("K", "k")),
    *(("a_b", r"^\w+$"), ("\u00a0", r"^\s+$"), ("\x0b", r"\s"), ("\x1f", r"\s"), ("\r", "."), ("\u212a", "K")),
    *(("aab", r"^(?:(a)|b)+\1$"), ("a", "[a-[a]]")),
]


def test_matches() -> None:
    assert (
        [case for case in MATCHED if not matches_regex(*case)]
        == [case for case in NOT_MATCHED if matches_regex(*case)]
        == []
    )


REFUSED = r"""
    \X \R \h \G \K \m \0 \a \f \v \b \B \A \Z \z \# \/ \: \_ \x41 \u0041 \N{A} \Q \E \p{l} \pL
    \p{Cs} \p{LC} \p{IsNope} \p{IsNoBlock} \p{Isbasiclatin} \p{Latin} \p{^L} \p{} \p{L \1 (\1) (a\1) [\1]
    a** a*+ a??? a{,2} {2} a{2}{3} a{x} a{1,2,3} a{1001} a{1,1001} a{99999999999999999999} (a{50}){50}
    } a} { ] a] [] [^] [--] [a-c-e] [--a] [a--] [[:alpha:]] [a[b]] [a-z-[b]c] [-[a]] ? (* a|+
    [\w-a] [a-\d] [b-a] [\ [a- [a-[b]
    ( a) [ *a \q \p{Nonsense} a{2,1}
    (?=a) (?<n>a) (?i)a (?i:a) (?!a) (?<=a) (?<!a) (?P<n>a) (?>a) (?#a) (?|a) (?(1)a) (?
"""
"""What other kinds of regular expressions have, and what none has."""


@pytest.mark.parametrize(
    "pattern",
    [
        *REFUSED.split(),
        *("a{ 2}", "a{2, 3}", "\\ ", "\\", "a" * (MAX_PATTERN + 1), "((a{100}){100}){100}"),
        *("(" * (MAX_DEPTH + 1) + ")" * (MAX_DEPTH + 1), "[a-" * 100 + "[b]" + "]" * 100),
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
