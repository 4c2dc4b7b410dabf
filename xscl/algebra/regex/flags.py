"""The flags of XPath's matches(): `i` ignores case, with `s` a `.` is a line end, too, `x` ignores white space."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from functools import cache

from xscl.algebra.regex import charsets
from xscl.algebra.regex.charsets import CharSet

KNOWN = "isx"
"""The flags that there are. XPath's `m` is missing: what it makes of `^` and `$` cannot be searched for by RE2."""

_LAST_CASED = 0x1FFFF
"""All letters with case are in the first two planes of Unicode."""


def with_case_variants(chars: CharSet) -> CharSet:
    """The characters and those that XPath calls their case-variants: of which the lower case is the same, or the upper
    case.

    >>> with_case_variants(charsets.single("k")) == charsets.union(map(charsets.single, "kK\\u212a"))
    True
    """
    variants = _variants()
    found = [variants[code] for first, last in chars for code in _cased_between(first, last)]
    return charsets.union([chars, *found]) if found else chars


def without_space(pattern: str) -> str:
    """The pattern without white space, but for that inside brackets.

    >>> without_space(r"a b [c d] \\[ e")
    'ab[c d]\\\\[e'
    """
    kept: list[str] = []
    depth, escaped = 0, False
    for char in pattern:
        if char in " \t\r\n" and not depth:
            continue
        kept.append(char)
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "[":
            depth += 1
        elif char == "]" and depth:
            depth -= 1
    return "".join(kept)


@cache
def _variants() -> dict[int, CharSet]:
    """The case-variants of each character that has others than itself. To make them takes some hundredths of a
    second, when a pattern needs them."""
    alike: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    cased = [char for char in map(chr, range(_LAST_CASED + 1)) if char.lower() != char or char.upper() != char]
    # A letter is among them, too, if it is only the lower or the upper case of others.
    cases = [case for char in cased for case in (char.lower(), char.upper()) if len(case) == 1]
    for char in {*cased, *cases}:
        alike["lower", char.lower()].add(ord(char))
        alike["upper", char.upper()].add(ord(char))
    found: defaultdict[int, set[int]] = defaultdict(set)
    for codes in alike.values():
        for code in codes:
            found[code] |= codes
    return {code: tuple((one, one) for one in sorted(codes)) for code, codes in found.items() if len(codes) > 1}


@cache
def _cased() -> list[int]:
    return sorted(_variants())


def _cased_between(first: int, last: int) -> list[int]:
    return _cased()[bisect_left(_cased(), first) : bisect_right(_cased(), last)]
