"""Values for the oracle, written from their definitions: numbers, comparisons, string tests, derived values.

It shares nothing with `xscl`, whose values it checks. Saxon checks both (test_values_saxon.py).
"""

from __future__ import annotations

import math
import operator
import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from urllib.parse import unquote

import ada_url

from tests.oracle import regex as oracle_regex
from tests.oracle.times import Moment, moment

_ORDER: dict[str, Callable[..., bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_DIGITS = frozenset("0123456789")


Typed = str | float | Moment
"""What operands are: texts, numbers, times."""


class Literal(str):
    """A text that a query writes."""


def number(text: str) -> float:
    """XPath 1.0's number(): the double nearest to the number that the text writes, NaN if it is not a number."""
    written = text.strip(" \t\r\n")
    whole, _, rest = written.removeprefix("-").partition(".")
    if not whole + rest or not _DIGITS.issuperset(whole + rest):
        return math.nan
    exact = Fraction(int(whole + rest or "0"), 10 ** len(rest))
    try:
        nearest = float(exact)
    except OverflowError:
        nearest = float("inf")
    return -nearest if written.startswith("-") else nearest


def number_text(value: float) -> str:
    """A number as XPath 1.0 writes it: no exponent, no `.0`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return str(int(value)) if value == int(value) else format(Decimal(repr(value)), "f")


def text_of(value: Typed) -> str:
    """A value as a text."""
    return value.text() if isinstance(value, Moment) else number_text(value) if isinstance(value, float) else value


def compare(op: str, left: Typed, right: Typed) -> bool:
    """A comparison as section 4 of the language's definition has it."""
    both = (left, right)
    says_time = any(isinstance(value, Literal) and moment(value).at is not None for value in both)
    if any(isinstance(value, Moment) for value in both) or (
        op not in ("=", "!=") and says_time and not any(isinstance(value, float) for value in both)
    ):
        a, b = (moment(text_of(value)).at for value in both)
        return op == "!=" if a is None or b is None else _ORDER[op](a, b)
    assert not isinstance(left, Moment) and not isinstance(right, Moment)
    if isinstance(left, str) and isinstance(right, str) and op in ("=", "!="):
        return ([*map(ord, left)] == [*map(ord, right)]) == (op == "=")
    one, other = (number(value) if isinstance(value, str) else value for value in (left, right))
    return _ORDER[op](one, other)


STRING_TESTS: dict[str, Callable[..., bool]] = {
    "contains": lambda text, part: any(text[at:].startswith(part) for at in range(len(text) + 1)),
    "starts-with": lambda text, part: text[: len(part)] == part,
    "ends-with": lambda text, part: len(part) <= len(text) and text[len(text) - len(part) :] == part,
    "matches": oracle_regex.matches,
}
"""The tests on two strings. The last one may have flags."""


# ---------------------------------------------------------------- derived values


def normalize_space(text: str) -> str:
    """XPath's normalize-space(). White space is XML's four characters."""
    return " ".join(word for word in re.split("[\x20\x09\x0d\x0a]", text) if word)


def upper_case(text: str) -> str:
    """The full mapping of each character. None depends on its neighbours."""
    return "".join(char.upper() for char in text)


def lower_case(text: str) -> str:
    """The full mapping of each character. Only one depends on its neighbours but not on a language: a sigma is final
    after a cased letter and not before one, where ignorable characters between them do not count (Unicode, table
    3-17)."""
    return "".join(
        "ς" if char == "Σ" and _cased(text[:at][::-1]) and not _cased(text[at + 1 :]) else char.lower()
        for at, char in enumerate(text)
    )


def _cased(text: str) -> bool:
    """Whether the first character that is not ignorable is cased."""
    for char in text:
        if unicodedata.category(char) in ("Mn", "Me", "Cf", "Lm", "Sk") or char in _MIDDLE:
            continue
        return char.islower() or char.isupper() or char.istitle()
    return False


_MIDDLE = "'.:·\u0387\u055f\u05f4‘’\u2024\u2027\ufe13\ufe52\ufe55\uff07\uff0e\uff1a"
"""The punctuation that may be inside a word."""

# Addresses: RFC 3986, appendix B, with the hosts that browsers make.

_ADDRESS = re.compile(r"(?:([^:/?#]+):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.DOTALL)
_TRACKING = ("fbclid", "gclid", "mc_cid", "mc_eid", "igshid", "ref_src")
_PLAIN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"


def canonical_url(text: str) -> str:
    """The canonical spelling of a web address, for addresses whose path a browser would not change."""
    text = text.strip()
    found = _ADDRESS.fullmatch(text)
    assert found
    scheme, authority, path, query = found.groups()
    if (scheme or "").lower() not in ("http", "https") or not ada_url.check_url(text):
        return text
    url = ada_url.URL(text)
    parameters = sorted(_encoded(item) for item in (query or "").split("&") if item and not _tracks(item))
    user = _encoded(authority.rpartition("@")[0])
    made = "https://" + (f"{user}@" if user else "") + url.hostname.rstrip(".")
    if url.port not in ("", "80", "443"):
        made += f":{url.port}"
    return made + _encoded(path).rstrip("/") + ("?" + "&".join(parameters) if parameters else "")


def host(text: str) -> str:
    """The host of an address; "" if it has none."""
    if not ada_url.check_url(text.strip()):
        return ""
    return ada_url.URL(text.strip()).hostname.strip("[]").rstrip(".").removeprefix("www.")


def _tracks(parameter: str) -> bool:
    name = unquote(parameter.split("=")[0]).lower()
    return name[:4] == "utm_" or name in _TRACKING


def _encoded(part: str) -> str:
    made = ""
    for escape, char in re.findall("%([0-9A-Fa-f]{2})|(.)", part, re.DOTALL):
        octets = bytes.fromhex(escape) if escape else char.encode()
        if octets in _PLAIN or (char and char in "/:@!$&'()*+,;=?"):
            made += octets.decode()
        else:
            made += "".join(f"%{octet:02X}" for octet in octets)
    return made


DERIVED: dict[str, Callable[[str], str]] = {
    "normalize-space": normalize_space,
    "lower-case": lower_case,
    "upper-case": upper_case,
    "canonical-url": canonical_url,
    "host": host,
}
"""The functions that derive a text."""


def apply(name: str, value: Typed) -> Typed:
    """The value of a function of one value."""
    match name:
        case "date":
            return value if isinstance(value, Moment) else moment(text_of(value))
        case "number":
            return value if isinstance(value, float) else number(text_of(value))
        case "string-length":
            return float(len(text_of(value)))
        case "string":
            return text_of(value)
    return DERIVED[name](text_of(value))
