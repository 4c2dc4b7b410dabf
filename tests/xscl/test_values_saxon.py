"""Values held against Saxon, ours and the oracle's: neither shares code with the other two."""

import math
import struct
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest

from tests.generate.regexes import CHARACTERS, RegexMaker, random_text
from tests.generate.seeds import at_length, seeds
from tests.oracle import regex as oracle_regex
from tests.oracle import values as oracle_values
from tests.support.saxon import saxon
from xscl.algebra import regex, values
from xscl.algebra.regex import PatternError
from xscl.algebra.values import CompareOp

Case = Sequence[str]
INVALID = "error FORX0002"
OPERATORS: tuple[CompareOp, ...] = ("=", "!=", "<", "<=", ">", ">=")

LEGAL = "".join(map(chr, (0x9, 0xA, 0xD, *range(0x20, 0xD800), *range(0xE000, 0xFFFE), *range(0x10000, 0x110000))))
"""The characters of XML."""

SPACES = tuple(" \t\r\n\u00a0\u2003\u3000\u200b\x85\u2028")
CASED = tuple("aAzZßẞıİŉǅǆΐΰֆﬁﬅἈᾳᾼῼςσẛÅKкЖჅⴥᏰꭰ\U00010400\U00010428\U0001e900\u0345\u0301")
DIGITS = (*"0123456789" * 3, *"..-- \t\n\u00a0٣eE+x,_\x85", "INF", "NaN", "Infinity", "0000", "0" * 20)


def texts(rng: Random, alphabet: Sequence[str], count: int) -> list[str]:
    return ["".join(rng.choice(alphabet) for _ in range(rng.choice((0, 1, 2, 3, 5, 8)))) for _ in range(count)]


def numerals(rng: Random) -> str:
    """A text that is a number, mostly: of doubles of every size, of halves between them, and of many digits."""
    shape = rng.randrange(6)
    if shape == 0:
        return "".join(rng.choice(DIGITS) for _ in range(rng.randrange(6)))
    if shape == 1:
        value = struct.unpack("<d", rng.randbytes(8))[0]
        return f"{value:.{rng.randrange(40)}f}" if math.isfinite(value) and abs(value) < 1e40 else "1e5"
    if shape == 2:
        return f"{rng.choice(' -')}{rng.randrange(2**53, 2**70)}"
    if shape == 3:
        return f"{rng.randrange(2**54) * 2 + 1}{rng.choice(('', '.', '.0', '.5', '.50000000000000000000001'))}"
    if shape == 4:
        return f"{rng.choice(('', '-', ' '))}{rng.randrange(100)}.{rng.randrange(10**20)}\n"
    return f"{rng.choice(('', '-'))}{rng.randrange(30)}"


def check(expression: str, cases: Sequence[Case], *ways: Callable[..., object]) -> None:
    """Each of the ways gives for each case what Saxon gives."""
    answers = saxon(expression, cases)
    for way in ways:
        given = [str(way(*case)) for case in cases]
        differ = [(case, one, other) for case, one, other in zip(cases, given, answers, strict=True) if one != other]
        assert not differ, f"(case, ours, Saxon's) of {len(differ)}: {differ[:5]}"


def said(test: Callable[..., bool]) -> Callable[..., str]:
    return lambda *arguments: "true" if test(*arguments) else "false"


def ours(text: str, pattern: str, flags: str = "") -> str:
    try:
        return said(values.matches_regex)(text, pattern, flags)
    except PatternError:
        return INVALID


def test_functions_of_texts() -> None:
    rng = Random(1)
    letters = ("a", "a", "b", "A", "-", " ", "é", "e\u0301", "\U0001f600", "\u00ad", "\u200d", "\U00010400")
    one = [(text,) for text in texts(rng, CASED + SPACES + tuple("xy1"), 300)]
    two = list(zip(texts(rng, letters, 400), texts(rng, letters[:5], 400), strict=True))
    two += [("", ""), ("a", ""), ("", "a"), *((text, text[rng.randrange(3) : 3]) for text, _ in two[:200])]
    for name in ("lower-case", "upper-case", "normalize-space"):
        check(f"{name}($c(1))", one, values.DERIVED[name], oracle_values.DERIVED[name])
    for name in ("substring-before", "substring-after"):
        way = partial(with_part, name)
        check(f"{name}($c(1), $c(2))", two, way, oracle_values.OF_TWO[name])
    for name in ("contains", "starts-with", "ends-with"):
        check(f"{name}($c(1), $c(2))", two, said(values.TESTS[name]), said(oracle_values.STRING_TESTS[name]))


def with_part(name: str, text: str, part: str) -> str:
    return values.derive(values.with_literal(name, part), text)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["lower-case", "upper-case"])
def test_the_case_mapping_of_each_character(name: str) -> None:
    """Of those that have one, and of some that have none. No mapping ever changes, but a letter may get one."""
    chars = [char for char in LEGAL if values.derive(name, char) != char]
    chars += [char for char in LEGAL[::397] if char not in set(chars) and not assigned_later(char)]
    check(f"{name}($c(1))", [(char,) for char in chars], lambda char: values.derive(name, char))


def test_a_sigma_is_final_where_a_word_ends() -> None:
    """Functions and Operators, 5.4.8, asks for Unicode's full case mappings without tailoring: SpecialCasing's
    Final_Sigma is one, since it depends on no language. Saxon maps characters one by one, and has none."""
    assert saxon("lower-case($c(1))", [("ΑΣ",)]) == ["ασ"]
    rng = Random(2)
    for text in texts(rng, ("Σ", "Σ", "Α", "α", "1", " ", "'", ".", "\u0301", "\u00ad", "-", "ς", "Z"), 500):
        lower = values.derive("lower-case", text)
        assert lower == oracle_values.lower_case(text)
        by_characters = "".join(values.derive("lower-case", char) for char in text)
        assert lower.replace("ς", "σ") == by_characters.replace("ς", "σ")
    assert values.derive("lower-case", "ΟΔΟΣ ΣΑΣ'Α. ΑΣ1") == "οδος σασ'α. ας1"


def test_numbers() -> None:
    rng = Random(4)
    cases = [(text,) for text in ("9" * 400, "-0", "7.", " \t\r\n2 \n", "1e3", "- 1", "0x10", "١")]
    cases += [(numerals(rng),) for _ in range(1000)]
    answers = saxon("local:string(local:number($c(1)))", cases)
    for (text,), answer in zip(cases, answers, strict=True):
        value = values.xpath_number(text)
        assert value == oracle_values.number(text) or math.isnan(value)
        given = oracle_values.number_text(value)
        # Of two numerals equally long and near, either is right.
        assert given == answer or (len(given) == len(answer) and float(given) == float(answer)), text
        assert math.isnan(value) or values.number_string(text) == given, text


@pytest.mark.parametrize("op", OPERATORS)
def test_comparisons(op: CompareOp) -> None:
    rng = Random(5)
    small = ("1", "1.0", " 1 ", "01", "2", "-1", "-0", "0", "", "a", "NaN", "1e0", "10", "9", "+1", ".5", "0.5", "b")
    cases = [(rng.choice(small), rng.choice(small)) for _ in range(100)]
    cases += [(numerals(rng), numerals(rng)) for _ in range(50)]

    def way(
        of: Callable[..., bool], as_left: Callable[[str], object], as_right: Callable[[str], object]
    ) -> Callable[..., str]:
        return said(lambda text, other: of(op, as_left(text), as_right(other)))

    for left, right in ((False, False), (False, True), (True, False)):  # which side is a number
        sides = [f"local:number($c({n}))" if numeric else f"$c({n})" for n, numeric in ((1, left), (2, right))]
        both = [
            way(compare, number if left else str, number if right else str)
            for compare, number in (
                (values.compare, values.xpath_number),
                (oracle_values.compare, oracle_values.number),
            )
        ]
        check(f"local:compare({sides[0]}, '{op}', {sides[1]})", cases, *both)


def regex_cases(seed: int, patterns: int, odd: int = 0) -> list[tuple[str, str]]:
    """Two short texts for each pattern: in some patterns Saxon tries what grows fast with the text."""
    rng = Random(seed)
    maker = RegexMaker(rng, odd)
    made = [maker.pattern(1) for _ in range(patterns)]
    return [(random_text(rng, pattern)[:5], pattern) for pattern in made for _ in range(2)]


ODD = [
    *(("xaby", "a.y?"), ("abc", "c$"), ("abc\n", "c$"), ("a\nb", "a.b"), ("\r", "."), ("abc", ""), ("-", "[a--[a]]")),
    *(("\u2028\x85", "^..$"), ("aXbX", r"^a(.)b\1$"), ("aXbY", r"^a(.)b\1$"), ("b", r"^(a)?b\1$")),
    *(("aba", r"^(?:(a)|b)+\1$"), ("aa0", r"^(a)\10$"), ("abcdefghijj", r"^(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)\10$")),
    *(("b", "[a-z-[aeiou]]"), ("e", "[a-z-[aeiou]]"), ("a", "[a-[a]]"), ("a&&b", "^[a&&b]+$"), ("a~b|", "^[a~~b||]+$")),
    *(("aaa", "^a{2,3}?$"), ("ab", "^(|a)b|c||$"), ("-", r"^\-$"), ("", "^*$+"), ("a]b", r"a\]b"), ("a#b", "a#b")),
    *(("a-b.c", r"^[\w-.]+$"), ("b-9_", "^[a-z0-9-_]+$"), ("d", "[a-c-e]"), ("-", "[^a-c-e]"), ("f", "[a-c-e-g]")),
]


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_regular_expressions(seed: int) -> None:
    check("matches($c(1), $c(2))", [*ODD, *regex_cases(seed, 200)], ours, said(oracle_regex.matches))


FLAGS = ("i", "s", "x", "is", "ix", "")


def test_regular_expressions_with_flags() -> None:
    rng = Random(9)
    maker = RegexMaker(rng, references=False)
    cases = []
    for _ in range(200 if at_length() else 70):
        pattern, flags = maker.pattern(1), rng.choice(FLAGS)
        if "x" in flags:
            pattern = "".join(char + rng.choice(("", "", " ", "\t\n")) for char in pattern)
        for _ in range(2):
            text = random_text(rng, pattern)[:5]
            cases.append((text.swapcase() if rng.random() < 0.5 else text, pattern, flags))
    check("matches($c(1), $c(2), $c(3))", cases, ours)
    valid = [case for case in cases if ours(*case) != INVALID]
    assert len(valid) > 100
    check("matches($c(1), $c(2), $c(3))", valid, said(oracle_regex.matches))


def test_which_letters_are_alike_without_regard_to_case() -> None:
    """The oracle judges all letters with case. Saxon knows those of an older Unicode, and has no others."""
    cased = [char for char in LEGAL if char.lower() != char or char.upper() != char]
    rng = Random(10)
    for char in rng.sample(cased, 30) + list("kKsSßẞıiIİſµμΩωϑθϴǅ"):
        for other in {char.lower()[:1], char.upper()[:1], char.title()[:1], rng.choice(cased)}:
            for pattern in (f"^{char}$", f"[^{char}]", f"[{min(char, 'k')}-{max(char, 'k')}]"):
                found = values.matches_regex(other, pattern, "i")
                assert found == oracle_regex.matches(other, pattern, "i"), (other, pattern)
    last = max(map(ord, cased))
    assert last < 0x20000, "xscl.algebra.regex looks no further"


def test_flags_and_references_that_are_refused() -> None:
    for flags in ("m", "q", "I", "i;", " "):
        with pytest.raises(PatternError, match="the flags here are i, s and x"):
            values.matches_regex("a", "a", flags)
    with pytest.raises(PatternError, match="without regard to case"):
        values.matches_regex("aA", r"(a)\1", "i")
    assert values.matches_regex("aa", r"(a) \1", "x")


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_which_regular_expressions_there_are(seed: int) -> None:
    cases = [("", pattern) for _, pattern in regex_cases(seed, 400, odd=25)]
    check("matches($c(1), $c(2))", cases, ours)
    assert [ours(*case) for case in cases].count(INVALID) > 200


def test_a_reluctant_regular_expression_finds_the_same() -> None:
    """In these Saxon has faults, so the oracle judges, and in repeated groups that are referred to."""
    assert not values.matches_regex("aab", r"^(?:(a)|b)+\1$")
    rng = Random(8)
    maker = RegexMaker(rng, reluctant=True)
    for _ in range(200):
        pattern = maker.pattern(2)
        for text in (random_text(rng, pattern), random_text(rng, pattern)):
            expected = oracle_values.STRING_TESTS["matches"](text, pattern)
            assert values.matches_regex(text, pattern) == expected, (text, pattern)


def assigned_later(char: str) -> bool:
    """Whether Python's Unicode does not know the character yet."""
    return unicodedata.category(char) == "Cn"


SETS = [rf"\{letter}" for letter in "sdwic"]
SETS += [rf"\p{{{name}}}" for name in ("L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No")]
SETS += [rf"\p{{{name}}}" for name in ("P", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Z", "Zs", "Zl", "Zp")]
SETS += [rf"\p{{{name}}}" for name in ("S", "Sm", "Sc", "Sk", "So", "C", "Cc", "Cf", "Co", "Cn")]
BLOCKS = """
    BasicLatin Latin-1Supplement Greek GreekandCoptic CombiningMarksforSymbols PrivateUse Specials Tibetan
    HangulSyllables CJKUnifiedIdeographsExtensionB Phags-pa Deseret Tags Emoticons
"""
SETS += [rf"\p{{Is{name}}}" for name in BLOCKS.split()]


def check_sets(chars: str) -> None:
    """Of these characters the same are in each set, but for those that one Unicode has and the other has not yet."""
    (unassigned,) = saxon(r"replace($c(1), '\P{Cn}', '')", [(chars,)])
    unknown = set(unassigned)
    both = "".join(char for char in chars if char not in unknown and not assigned_later(char))
    assert len(both) > len(chars) // 10
    answers = saxon("replace($c(1), $c(2), '')", [(both, f"\\{name[1].swapcase()}{name[2:]}") for name in SETS])
    for name, answer in zip(SETS, answers, strict=True):
        assert "".join(char for char in both if values.matches_regex(char, name)) == answer, name


def test_which_characters_a_set_has() -> None:
    """At the ends of some of the sets' ranges, and some in between; in the long run all."""
    some = [bounds for name in SETS for bounds in Random(name).choices(ranges(name), k=5)]
    edges = {code + by for bounds in some for code in bounds for by in (-1, 0, 1)}
    edges |= set(range(0, regex.LAST, 3989)) | set(map(ord, CHARACTERS))
    every = at_length()
    check_sets("".join(char for char in LEGAL if every or ord(char) in edges))


def ranges(name: str) -> regex.CharSet:
    found = regex.property_charset(name[3:-1]) if name.startswith("\\p") else regex.escape_charset(name[1])
    assert found
    return found
