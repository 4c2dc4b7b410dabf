"""Values for the oracle, written from their definitions: numbers, comparisons, string tests, derived values.

It shares nothing with `xscl`, whose values it checks. Saxon checks both (test_values_saxon.py).
"""

from __future__ import annotations

import math
import operator
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import ada_url
import publicsuffixlist
import regex

from tests.oracle import regex as oracle_regex
from tests.oracle.times import Moment, moment
from xscl.algebra.values import Call, String

ORDER: dict[str, Callable[..., bool]] = {
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
    return value.text() if isinstance(value, Moment) else number_text(value) if isinstance(value, float) else value


def compare(op: str, left: Typed, right: Typed) -> bool:
    """A comparison (docs/semantics.md, section 5)."""
    both = (left, right)
    says_time = any(isinstance(value, Literal) and moment(value).at is not None for value in both)
    if any(isinstance(value, Moment) for value in both) or (
        op not in ("=", "!=") and says_time and not any(isinstance(value, float) for value in both)
    ):
        a, b = (moment(text_of(value)).at for value in both)
        return op == "!=" if a is None or b is None else ORDER[op](a, b)
    assert not isinstance(left, Moment) and not isinstance(right, Moment)
    if isinstance(left, str) and isinstance(right, str) and op in ("=", "!="):
        return ([*map(ord, left)] == [*map(ord, right)]) == (op == "=")
    one, other = (number(value) if isinstance(value, str) else value for value in (left, right))
    return ORDER[op](one, other)


STRING_TESTS: dict[str, Callable[..., bool]] = {
    "contains": lambda text, part: any(text[at:].startswith(part) for at in range(len(text) + 1)),
    "starts-with": lambda text, part: text[: len(part)] == part,
    "ends-with": lambda text, part: len(part) <= len(text) and text[len(text) - len(part) :] == part,
    "matches": oracle_regex.matches,
}
"""The tests on two strings. `matches` may have flags, and `near` has a threshold."""


# ---------------------------------------------------------------- derived values


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
    return ada_url.URL(text.strip()).hostname.lower().strip("[]").rstrip(".").removeprefix("www.")


def domain(text: str) -> str:
    """The registrable domain, by the algorithm that publicsuffix.org gives: the rule that prevails, and one label."""
    found = ada_url.URL(text.strip()).hostname.lower().rstrip(".") if ada_url.check_url(text.strip()) else ""
    labels = found.split(".")
    if not all(labels) or "[" in found or labels[-1].isdigit():
        return ""
    matching = [rule for rule in _rules(labels[-1]) if _matches(rule, labels)] or [["*"]]
    exceptions = [rule for rule in matching if rule[0].startswith("!")]
    count = len(exceptions[0]) - 1 if exceptions else max(map(len, matching))
    return ".".join(labels[-count - 1 :]) if len(labels) > count else ""


def _matches(rule: list[str], labels: list[str]) -> bool:
    pairs = zip(reversed(rule), reversed(labels), strict=False)
    return len(rule) <= len(labels) and all(one.removeprefix("!") in ("*", label) for one, label in pairs)


@cache
def _all_rules() -> dict[str, list[list[str]]]:
    """The rules of the list by their last label. `*.x` is a rule for x, too, as the test cases of the list have it."""
    found: dict[str, list[list[str]]] = {}
    with Path(publicsuffixlist.PSLFILE).open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("//"):
                rule = line.split()[0]
                for one in {rule, rule.removeprefix("*.")}:
                    labels = one.removeprefix("!").split(".")
                    labels = [label if label == "*" else ada_url.idna_to_ascii(label).decode() for label in labels]
                    labels[0] = "!" * one.startswith("!") + labels[0]
                    found.setdefault(labels[-1], []).append(labels)
    return found


def _rules(last: str) -> list[list[str]]:
    return _all_rules().get(last, [])


_UNSPACED = regex.compile(r"[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{scx=Thai}\p{scx=Laoo}\p{scx=Khmr}\p{scx=Mymr}]")
_EUROPEAN = "\u02bc\u0303\u0305\u0323\u0331"


def _counts(char: str) -> bool:
    category = unicodedata.category(char)
    return category[0] in "LM" or category == "Nd"


def word_list(text: str) -> list[str]:
    """All words, in the order of the text, character by character."""
    safe, marks = "", 0
    for char in text:
        decomposed = unicodedata.normalize("NFKD", char)
        marks = marks + 1 if unicodedata.combining(decomposed[0]) else 0
        if marks > 30:
            safe, marks = safe + "\u034f", 1
        safe += char
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", safe).casefold())
    parts: list[tuple[str, str]] = []
    for char in folded:
        kind = "" if not _counts(char) else "pairs" if _UNSPACED.match(char) and char not in _EUROPEAN else "whole"
        if parts and parts[-1][0] == kind:
            parts[-1] = kind, parts[-1][1] + char
        else:
            parts.append((kind, char))
    found: list[str] = []
    for kind, part in parts:
        if kind == "whole" or (kind and len(part) == 1):
            found.append(part)
        elif kind:
            found += [one + other for one, other in pairwise(part)]
    return found


def words(text: str) -> str:
    """The first 256 words, each once."""
    return " ".join(sorted(set(word_list(text)[:256])))


def near(text: str, other: str, threshold: str) -> bool:
    """Whether both have at least this part of their words in common (docs/semantics.md, section 14)."""
    one, two = (set(word_list(some)[:256]) for some in (text, other))
    return bool(one and two) and Fraction(len(one & two), len(one | two)) >= Fraction(threshold)


@cache
def weights() -> dict[bytes, int]:
    """The weights of general-1, by five bytes of a digest: a table of buckets, each of three bytes and a weight."""
    data = (Path(__file__).parents[2] / "xscl/algebra/general-1.weights").read_bytes()
    starts = [int.from_bytes(data[at : at + 4], "little") for at in range(8, 8 + 4 * 65_537, 4)]
    entries = data[8 + 4 * 65_537 :]
    return {
        bucket.to_bytes(2, "big") + entries[4 * at + 1 : 4 * at + 4][::-1]: entries[4 * at]
        for bucket, (start, end) in enumerate(pairwise(starts))
        for at in range(start, end)
    }


def weight(word: str) -> int:
    return weights().get(blake2b(word.encode(errors="surrogatepass"), digest_size=7).digest()[:5], 120)


def similar(text: str, other: str, threshold: str) -> bool:
    """Whether the words of both are at least this part of the weight of all."""
    one, two = (set(word_list(some)[:256]) for some in (text, other))
    both = sum(weight(word) for word in one | two)
    return bool(one & two) and Fraction(sum(weight(word) for word in one & two), both) >= Fraction(threshold)


def has_phrase(text: str, wanted: str) -> bool:
    """Whether the words of one text follow one another in those of the other."""
    all_words, phrase = word_list(text), word_list(wanted)
    starts = range(len(all_words) - len(phrase) + 1)
    return bool(phrase) and any(all_words[at : at + len(phrase)] == phrase for at in starts)


def several(call: Call, text: str) -> list[str]:
    """The first 500 different values of extract() or tokens()."""
    if call.name == "tokens":
        found = word_list(text)
    else:
        pattern, *flags = (one.value for one in call.args[1:] if isinstance(one, String))
        finder = re.compile(pattern, re.ASCII | (re.IGNORECASE if flags == ["i"] else 0))
        found = [match[min(finder.groups, 1)] or "" for match in finder.finditer(text)]
    return [one for one in dict.fromkeys(found) if one][:500]


@dataclass(frozen=True)
class Several:
    """The values of a function that has several."""

    texts: list[str]


STRING_TESTS |= {
    "near": near,
    "similar": similar,
    "has-words": lambda text, wanted: set() < set(word_list(wanted)) <= set(word_list(text)),
    "has-phrase": has_phrase,
}


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
    # White space is XML's four characters.
    "normalize-space": lambda text: " ".join(word for word in re.split("[\x20\x09\x0d\x0a]", text) if word),
    "lower-case": lower_case,
    # The full mapping of each character. None depends on its neighbours.
    "upper-case": lambda text: "".join(char.upper() for char in text),
    "canonical-url": canonical_url,
    "host": host,
    "domain": domain,
    "words": words,
    "year-month": lambda text: moment(text).text()[:7],
}
"""The functions that derive a text."""

OF_TWO: dict[str, Callable[[str, str], str]] = {
    "substring-before": lambda text, part: next((text[:at] for at in _places(text, part)), ""),
    "substring-after": lambda text, part: next((text[at + len(part) :] for at in _places(text, part)), ""),
}
"""The functions that derive a text from two (XPath 1.0, 4.2)."""


def _places(text: str, part: str) -> Iterator[int]:
    return (at for at in range(len(text)) if text[at:].startswith(part))


def apply(name: str, value: Typed, *more: str) -> Typed:
    """The value of a function of one value, and perhaps of a text."""
    if more:
        return OF_TWO[name](text_of(value), *more)
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
