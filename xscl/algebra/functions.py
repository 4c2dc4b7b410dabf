"""The one implementation of numbers, comparisons, derived values and string functions.

All engines compute values here, because SQL's casts and case mappings are not XPath's, and differ between engines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache

from common.urls import canonical_url, url_domain, url_host
from xscl.algebra.expressions import Call, CompareOp, String
from xscl.algebra.near import MANY_WORDS, near
from xscl.algebra.order import ORDER
from xscl.algebra.regex.search import compile_pattern
from xscl.algebra.times import month_text, time_text
from xscl.algebra.word_numbers import numbered
from xscl.algebra.words import words_text

_NUMBER = re.compile(r"[ \t\r\n]*(-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))[ \t\r\n]*")
_SPACE = " \t\r\n"

MOST_TEXT = 1_000_000
"""How many characters concat() makes at most. A run of FOLD could double a text with each step; NULL has no length."""

_SPACES = re.compile(r"[ \t\r\n]+")


def xpath_number(text: str) -> float:
    """XPath 1.0's number(): of digits with an optional minus and point, and white space around them; else NaN.

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
    return number_text(float(text))


def number_text(value: float) -> str:
    """XPath 1.0's string() of a number: NaN, Infinity, or digits without an exponent and trailing zeros."""
    if math.isfinite(value):
        return str(int(value)) if value == int(value) else format(Decimal(repr(value)), "f")
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def compare(op: CompareOp, left: str | float, right: str | float) -> bool:
    """Whether a comparison holds: `=` and `!=` between two strings compare strings, all others XPath numbers.

    Strings are equal if their code points are. A comparison with NaN is false, but for `!=`.

    >>> compare("=", "1.0", "1"), compare("=", "1.0", 1.0), compare("<", "9", "10"), compare("!=", "a", 1.0)
    (False, True, True, True)
    """
    if op in ("=", "!=") and isinstance(left, str) and isinstance(right, str):
        return (left == right) is (op == "=")
    a = xpath_number(left) if isinstance(left, str) else left
    b = xpath_number(right) if isinstance(right, str) else right
    return ORDER[op](a, b)


def normalize_space(text: str) -> str:
    """The text without white space at its ends, and with one space for each run of white space inside.

    White space is XML's, which has no no-break space.
    """
    return _SPACES.sub(" ", text.strip(_SPACE))


NUMERIC: dict[str, Callable[[str], float]] = {"number": xpath_number, "string-length": lambda text: float(len(text))}
"""The functions that derive a number from a string value. They never fail."""

DERIVED: dict[str, Callable[[str], str]] = {
    "lower-case": str.lower,
    "upper-case": str.upper,
    "normalize-space": normalize_space,
    "canonical-url": canonical_url,
    "host": url_host,
    "domain": url_domain,
    "words": words_text,
    "date": time_text,
    "year-month": month_text,
    "number": lambda text: number_text(xpath_number(text)),
    "string-length": lambda text: str(len(text)),
}
"""The functions that derive a value from a node's string value, as a text. They never fail.

`lower-case` and `upper-case` are Unicode's full case mappings, the same in any language, as XPath's Functions and
Operators (5.4.7, 5.4.8) demand: ß becomes SS, and a sigma at a word's end a final one. (Saxon maps each character by
itself, and makes no final sigma.)
"""


def substring_before(text: str, part: str) -> str:
    """The text in front of the first occurrence of `part`; "" if there is none."""
    return text.partition(part)[0] if part and part in text else ""


def substring_after(text: str, part: str) -> str:
    """The text behind the first occurrence of `part`; "" if there is none. Behind nothing, it is all of the text."""
    return text.partition(part)[2] if part else text


WITH_LITERAL: dict[str, Callable[[str, str], str]] = {
    "substring-before": substring_before,
    "substring-after": substring_after,
}
"""The functions that derive a text from a string value and a literal. They never fail."""


def with_literal(name: str, literal: str) -> str:
    """How a chain of functions names one of WITH_LITERAL together with its literal.

    >>> with_literal("substring-before", ' "x" ')
    'substring-before " ""x"" "'
    """
    quoted = literal.replace('"', '""')
    return f'{name} "{quoted}"'


def parted(function: str) -> tuple[str, str | None]:
    """The name of a function in a chain, and its literal, None if it has none."""
    name, _, literal = function.partition(" ")
    return name, literal[1:-1].replace('""', '"') if literal else None


OF_EVENTS = "of-events"
"""Ends the chain of functions of a value that an event's attribute needs. It leaves the value as it is, but tells the
nodes of events from those of joins by their ids. No query can name it."""

_CHAINED: dict[str, Callable[[str], str]] = {**DERIVED, OF_EVENTS: str}


@lru_cache(maxsize=10_000)
def chained(function: str) -> Callable[[str], str]:
    """The function of one value that a chain of functions names: one of DERIVED, OF_EVENTS, or one `with_literal`.
    Raises KeyError for others."""
    if function in _CHAINED:
        return _CHAINED[function]
    name, literal = parted(function)
    if literal is None or with_literal(name, literal) != function:
        raise KeyError(function)
    apply = numbered if name == MANY_WORDS else WITH_LITERAL[name]
    return lambda text: apply(text, literal)


def many_valued(functions: tuple[str, ...]) -> str | None:
    """The threshold if a text is joined by its words, as the end of a chain of functions says; None if it is not."""
    name, literal = parted(functions[-1]) if functions else ("", None)
    return literal if name == MANY_WORDS else None


def derive(name: str, text: str) -> str:
    """The derived value `name(text)`: a string, "" if there is none. `name` is one that chains of functions have."""
    return chained(name)(text)


def derivation(expr: Call) -> str | None:
    """How a chain names the function that a call is of its first argument; None if it is no derived value."""
    match expr:
        case Call(name=name, args=(_,)) if name in DERIVED:
            return name
        case Call(name=name, args=(_, String(value=literal))) if name in WITH_LITERAL:
            return with_literal(name, literal)
    return None


def contains(text: str, part: str) -> bool:
    """Whether `part` occurs in `text`. The empty string occurs in any."""
    return part in text


def starts_with(text: str, prefix: str) -> bool:
    """Whether `text` starts with `prefix`."""
    return text.startswith(prefix)


def ends_with(text: str, suffix: str) -> bool:
    """Whether `text` ends with `suffix`."""
    return text.endswith(suffix)


def matches(text: str, pattern: str, flags: str = "") -> bool:
    """Whether a part of `text` matches the XPath 2.0 regular expression `pattern`. `^` and `$` anchor it.

    Raises:
        PatternError: if `pattern` is no regular expression, or `flags` has others than `i`, `s` and `x`.
        PatternLimit: if the search would take too long.
    """
    return compile_pattern(pattern, flags).found_in(text)


TESTS: dict[str, Callable[..., bool]] = {
    "contains": contains,
    "starts-with": starts_with,
    "ends-with": ends_with,
    "matches": matches,
    "near": near,
}
"""The functions that are conditions. `matches` may fail."""
