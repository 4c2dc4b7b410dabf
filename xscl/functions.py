"""The one implementation of values: numbers, comparisons, derived values and string functions.

Every engine, and the oracle of the tests, computes values here: SQL's casts and case mappings differ from XPath's
and from one another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache

import regex

from xscl.syntax import CompareOp
from xscl.urls import canonical_url, url_host

MATCH_SECONDS = 0.1
"""How long one search for a regular expression may take."""

MAX_PATTERN = 500
"""Longest regular expression, in characters."""

_NUMBER = re.compile(r"[ \t\r\n]*(-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))[ \t\r\n]*")
_SPACE = " \t\r\n"
_SPACES = re.compile(r"[ \t\r\n]+")
_REPEAT = re.compile(r"\{\s*([0-9]*)\s*(?:,\s*([0-9]*)\s*)?\}")
_MAX_REPEAT = 1000


class PatternError(ValueError):
    """A text is not a regular expression of XPath 2.0."""


class PatternTimeout(ValueError):
    """A search for a regular expression took longer than `MATCH_SECONDS`."""


def xpath_number(text: str) -> float:
    """XPath 1.0's number(): digits with an optional minus and point between XPath white space, else NaN.

    >>> xpath_number(" -1.50 "), xpath_number("1e3")
    (-1.5, nan)
    """
    found = _NUMBER.fullmatch(text)
    return float(found[1]) if found else float("nan")


def number_string(text: str) -> str:
    """XPath 1.0's string() of a number literal: no exponent, no trailing zeros, no minus before zero.

    >>> number_string("5.0"), number_string("-.50"), number_string("-0")
    ('5', '-0.5', '0')
    """
    value = float(text)
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return str(int(value)) if value == int(value) else format(Decimal(repr(value)), "f")


def compare(op: CompareOp, left: str | float, right: str | float) -> bool:
    """Whether the comparison holds: of strings for `=` and `!=` between two strings, else of XPath numbers.

    NaN compares false, except under `!=`. (Strings are compared code point by code point.)

    >>> compare("=", "1.0", "1"), compare("=", "1.0", 1.0), compare("<", "9", "10"), compare("!=", "a", 1.0)
    (False, True, True, True)
    """
    if op in ("=", "!=") and isinstance(left, str) and isinstance(right, str):
        return (left == right) is (op == "=")
    a = xpath_number(left) if isinstance(left, str) else left
    b = xpath_number(right) if isinstance(right, str) else right
    match op:
        case "=":
            return a == b
        case "!=":
            return a != b
        case "<":
            return a < b
        case "<=":
            return a <= b
        case ">":
            return a > b
        case ">=":
            return a >= b


def normalize_space(text: str) -> str:
    """The text without white space at its ends, and each run of white space inside as one space.

    White space is XML's: a no-break space is none.
    """
    return _SPACES.sub(" ", text.strip(_SPACE))


DERIVED: dict[str, Callable[[str], str]] = {
    "lower-case": str.lower,
    "upper-case": str.upper,
    "normalize-space": normalize_space,
    "canonical-url": canonical_url,
    "host": url_host,
}
"""The functions of XSCL that derive a value from a node's string value. They never fail."""


def derive(name: str, text: str) -> str:
    """The derived value `name(text)`: always a string, "" where there is none.

    Raises:
        KeyError: when no function of `DERIVED` has this name.
    """
    return DERIVED[name](text)


def contains(text: str, part: str) -> bool:
    """Whether `part` occurs in `text`; the empty string occurs in every text."""
    return part in text


def starts_with(text: str, prefix: str) -> bool:
    """Whether `text` starts with `prefix`."""
    return text.startswith(prefix)


def ends_with(text: str, suffix: str) -> bool:
    """Whether `text` ends with `suffix`."""
    return text.endswith(suffix)


def matches(text: str, pattern: str) -> bool:
    """Whether a part of `text` matches the XPath 2.0 regular expression `pattern` (`^` and `$` anchor it).

    Raises:
        PatternError: when `pattern` is no regular expression.
        PatternTimeout: when the search takes longer than `MATCH_SECONDS`.
    """
    try:
        return compile_pattern(pattern).search(text, timeout=MATCH_SECONDS) is not None
    except TimeoutError:
        raise PatternTimeout(f"the regular expression {pattern!r} took more than {MATCH_SECONDS} s") from None


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """The compiled form of an XPath 2.0 regular expression, translated once.

    Raises:
        PatternError: when `pattern` is no regular expression, is longer than `MAX_PATTERN`, or repeats so often
            that compiling it would not end.
    """
    # Imported here because few scripts have a pattern, and elementpath takes longer to import than all of ours.
    from elementpath.regex import RegexError, translate_pattern

    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"it is longer than {MAX_PATTERN} characters")
    if _repeats(pattern) > _MAX_REPEAT:
        raise PatternError(f"its repetitions multiply to more than {_MAX_REPEAT}")
    try:
        translated = translate_pattern(pattern, back_references=True, lazy_quantifiers=True, anchors=True)
        return regex.compile(translated)
    except (RegexError, regex.error, ValueError, IndexError, OverflowError) as error:
        raise PatternError(str(error)) from None


def _repeats(pattern: str) -> int:
    """The product of all counts in braces: how far nested repetitions can blow the pattern up."""
    product = 1
    for found in _REPEAT.finditer(pattern):
        product *= max(1, *(int(count[:6] or "1") for count in found.groups("")))
        # Past the limit the number only grows longer to multiply.
        product = min(product, _MAX_REPEAT + 1)
    return product
