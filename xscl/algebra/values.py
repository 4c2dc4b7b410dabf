"""The one implementation of expressions, numbers, comparisons, times, derived values, string functions, and the words
of texts.

All engines compute values here, because SQL's casts and case mappings are not XPath's, and differ between engines. A
comparison's kind depends on how its operands are written, on no document: times, if a side is `date(...)`, or if the
operator is an order and a side is a literal time; texts for `=` and `!=` if neither side is a number; else numbers, as
in XPath 1.0. Times are ISO 8601, RFC 3339 or RFC 822, as microseconds of UTC since 1970. Expressions are equal
regardless of their place in a text (`span`).

Two texts are near if J, the number of common words divided by the number of distinct words of both, is at least a
threshold; `join_stage.near` finds candidates by word numbers. A number has 63 bits: seven for the word's length,
descending, and 56 of a digest. So a text's ascending numbers list its words longest first, which are usually the
rarest, in the same order for all texts. Collisions count as one word in the search; `near` itself compares words."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from decimal import Decimal
from fractions import Fraction
from functools import cache, lru_cache
from hashlib import blake2b
from itertools import islice
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Literal

from common.dates import iso_utc, parse_timestamp
from common.tools import frozen
from common.urls import canonical_url, url_domain, url_host
from xscl.algebra.regex import CharSet, compile_pattern, property_charset, union

MOST_WORDS = 256
"""Maximum number of words of a text that count, from its beginning."""

MOST_MARKS = 30
"""Maximum number of consecutive combining characters, as in Unicode's Stream-Safe Text Format (UAX 15, 13): sorting
more would take quadratic time."""

_JOINER = "\u034f"
"""The combining grapheme joiner, which that format inserts. It is a mark itself."""

_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao; Myanmar; Khmer
    r"\u2e80-\u2fdf\u3005-\u3007\u3021-\u302d"  # Han
    r"\u3031-\u3035\u3038-\u303c\u3041-\u3096\u3099-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Kana
    r"\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f"
    r"\U000116d0-\U000116ff\U00016fe2-\U00016fe3\U00016ff0-\U00016ff6\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)
"""In brackets, letters, marks and digits of Han, Hiragana, Katakana, Thai, Lao, Khmer and Myanmar, which put no space
between words: those with one of them in Unicode's Script_Extensions, except for accents that European scripts use."""

_ASCII, _LATIN = re.compile("[0-9a-z]+"), re.compile(r"[^\W_]+")

_SHORT = 2_000
"""Maximum length of a text that is split into words at once, which is faster than one by one."""

_BEHIND_LATIN = "\u0300"
"""The first of the marks. Before them, re's alphanumeric characters are letters and digits, once NFKC has replaced
superscripts and fractions."""

_MOST_KNOWN = 4_096


class _Plainer(dict[int, str]):
    """For `str.translate`: blanks for characters in no word, such as quotation marks, dashes and stars."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        plain = unicodedata.normalize("NFKC", char)
        found = "".join(" " if unicodedata.category(one)[0] in "PSZC" else one for one in plain)
        found = found if found.isascii() else char
        if len(self) < _MOST_KNOWN:
            self[code] = found
        return found


_plainer = _Plainer()


def words(text: str) -> frozenset[str]:
    """The set of the first MOST_WORDS words of a text, repetitions counted, in linear time.

    Words are the longest runs of letters, marks and digits (the categories L, M and Nd) after NFKC, case folding, and
    NFKC again. A run is cut where unspaced scripts begin or end; in them, each two consecutive characters are a word. A
    single character is a word itself.

    >>> sorted(words("The ﬁre, and THE Fire — 京都市"))
    ['and', 'fire', 'the', '京都', '都市']
    """
    if len(text) <= _SHORT and (found := _at_once(text)) is not None:
        return frozenset(found[:MOST_WORDS])
    return frozenset(islice(_words(text), MOST_WORDS))


_remembered = lru_cache(maxsize=4_096)(words)


def words_again(text: str) -> frozenset[str]:
    """`words`, cached unless the text is long: it is called when texts are joined, and again when two are compared."""
    return _remembered(text) if len(text) <= 4 * _MOST_REMEMBERED else words(text)


def words_text(text: str) -> str:
    """The words of a text in code point order, separated by blanks.

    >>> words_text("Storm hits the coast - the storm")
    'coast hits storm the'
    """
    return " ".join(sorted(words(text)))


def _at_once(text: str) -> list[str] | None:
    if not text.isascii():
        text = text.translate(_plainer)
    if text.isascii():
        return _ASCII.findall(text.lower())
    if max(text) < _BEHIND_LATIN:  # so none of what is blank now was one character with a mark behind it
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        if max(folded, default="") < _BEHIND_LATIN:
            return _LATIN.findall(folded)
    return None


def _words(text: str) -> Iterator[str]:
    if text.isascii():
        yield from (found[0] for found in _ASCII.finditer(text.lower()))
        return
    patterns = _Patterns()
    stream_safe = patterns.marks.sub(r"\g<0>" + _JOINER, text)
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", stream_safe).casefold())
    for found in patterns.run.finditer(folded):
        run = found[0]
        if patterns.unspaced.search(run) is None:
            yield run
            continue
        for part in patterns.parts.finditer(run):
            word = part[0]
            if part[1] is None or len(word) == 1:
                yield word
            else:
                yield from (word[at : at + 2] for at in range(len(word) - 1))


@cache
class _Patterns:
    """`run` finds letters, marks and digits; `parts` its parts, `unspaced` ones as a group; `marks` too many marks.
    Compiled once and lazily, in a quarter of a second. Most English texts do without."""

    def __init__(self) -> None:
        chars = _class(union(property_charset(category) or () for category in ("L", "M", "Nd")))
        marks = union(property_charset(category) or () for category in ("M", "Lm"))  # no others are reordered
        codes = (code for first, last in marks for code in range(first, last + 1))
        combining = _class(tuple((code, code) for code in codes if is_combining(chr(code))))
        self.run = re.compile(f"[{chars}]+")
        self.unspaced = re.compile(f"[{_UNSPACED}]")
        self.parts = re.compile(f"([{_UNSPACED}]+)|[^{_UNSPACED}]+")
        self.marks = re.compile(f"[{combining}]{{{MOST_MARKS}}}(?=[{combining}])")


def is_combining(char: str) -> bool:
    """Whether normalisation reorders a character: itself, or its decomposition."""
    return unicodedata.combining(unicodedata.normalize("NFKD", char)[0]) > 0


def _class(chars: CharSet) -> str:
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in chars)


LEAST, MOST = Fraction(1, 2), Fraction(1)
"""Minimum and maximum threshold."""

MANY_WORDS = "words"
"""Ends the chain of functions of a text that is joined by its words, with the threshold as literal. The value is that
of `encode_words`. No query can name it: a query's `words` has no literal."""

_MOST_REMEMBERED = 1_000
"""Maximum length of texts whose comparison is cached."""


def near(text: str, other: str, threshold: str) -> bool:
    """Whether J of two texts is at least a threshold, a decimal number. A text without words is near none.

    >>> near("Storm hits the coast", "The storm hits coast", "1"), near("a b c d", "a b c e", "0.6")
    (True, True)
    """
    common, union = overlap(text, other)
    wanted = _fraction(threshold)
    return common > 0 and common * wanted.denominator >= wanted.numerator * union


def overlap(text: str, other: str) -> tuple[int, int]:
    """(number of common words, number of distinct words of both)."""
    is_short = len(text) <= _MOST_REMEMBERED and len(other) <= _MOST_REMEMBERED
    return _overlap(text, other) if is_short else _overlap.__wrapped__(text, other)


@lru_cache(maxsize=65_536)
def _overlap(text: str, other: str) -> tuple[int, int]:
    ours, theirs = words_again(text), words_again(other)
    common = len(ours & theirs)
    return common, len(ours) + len(theirs) - common


_fraction = lru_cache(maxsize=1_024)(Fraction)


def join_threshold(threshold: str) -> str:
    """A threshold rounded down to tenths, by which texts are joined: similar thresholds share keys.

    >>> join_threshold("0.68"), join_threshold("1")
    ('0.6', '1.0')
    """
    tenths = _fraction(threshold) * 10 // 1
    return f"{tenths // 10}.{tenths % 10}"


DIGITS = 16
"""Hexadecimal digits of a number."""

THRESHOLD = 3
"""Characters of a threshold in tenths, such as 0.6 and 1.0."""

_LONGEST = 127


def encode_words(text: str, threshold: str) -> str:
    """A text's words in R_doc: the threshold, in tenths, and the ascending hexadecimal numbers of its words. "" if it
    has none.

    >>> encode_words("Storm, storm", "0.6") == encode_words("the storm", "0.6")[:-16]
    True
    """
    numbers = _numbers(text) if len(text) <= _MOST_REMEMBERED else _numbers.__wrapped__(text)
    return f"{threshold}{numbers}" if numbers else ""


def first_keys(words: str, places: Mapping[str, int] | None = None) -> list[str]:
    """The first words of an encoded text, each with the threshold: near texts have one in common (see
    `join_stage.near`). Words with `places` come last, in the order of these."""
    numbers, tenths = decode_words(words), _tenths(words)
    if places:
        numbers.sort(key=lambda number: places.get(number, -1))
    most = len(numbers) + (-tenths * len(numbers) // 10) + 1
    return [f"{words[:THRESHOLD]}{number}" for number in numbers[:most]]


def have_enough_in_common(one: str, other: str) -> bool:
    """Whether J of two encoded texts is at least their threshold. Number collisions may produce false positives."""
    ours, theirs, tenths = _set(one), _set(other), _tenths(one)
    return len(ours & theirs) * (10 + tenths) >= tenths * (len(ours) + len(theirs))


def as_digits(number: int) -> str:
    return f"{number:0{DIGITS}x}"


def decode_words(words: str) -> list[str]:
    return [words[at : at + DIGITS] for at in range(THRESHOLD, len(words), DIGITS)]


@lru_cache(maxsize=8_192)
def _set(words: str) -> frozenset[str]:
    return frozenset(decode_words(words))


def _tenths(words: str) -> int:
    return int(words[0] + words[2])


@lru_cache(maxsize=8_192)
def _numbers(text: str) -> str:
    return "".join(sorted(map(_number, words_again(text))))


@lru_cache(maxsize=65_536)
def _number(word: str) -> str:
    length = _LONGEST - min(len(word), _LONGEST)
    return f"{length:02x}{blake2b(word.encode('utf-8', 'surrogatepass'), digest_size=7).hexdigest()}"


Axis = Literal["/", "//"]
NodeKind = Literal["element", "attribute"]
CompareOp = Literal["=", "!=", "<", "<=", ">", ">="]


@frozen
class Span:
    """A half-open range of character offsets in a script."""

    start: int
    end: int


NOWHERE = Span(0, 0)


def nowhere() -> Span:
    return field(default=NOWHERE, compare=False, repr=False)


# ---------------------------------------------------------------- paths


@frozen
class NameTest:
    """A step's test: `name`, `p:name`, `*:name`, `p:*`, `*`, `@name`, `@p:name`, `@*:name` or `@*`. `prefix` is None if
    there is none, and "*" for any namespace. `local` is "*" for any name."""

    kind: NodeKind
    local: str
    prefix: str | None = None
    span: Span = nowhere()


@frozen
class Step:
    """A step of a path: axis, test, filters that must all hold, and the bound variable, if any."""

    axis: Axis
    test: NameTest
    filters: tuple[Expr, ...] = ()
    var: str | None = None
    span: Span = nowhere()


@frozen
class Rel:
    """A path from the filtered node. Without steps it is `.`, the node itself."""

    steps: tuple[Step, ...] = ()
    span: Span = nowhere()


# ---------------------------------------------------------------- operands and conditions
# The same classes serve filters, whose leaves are Rel, predicates and SELECT, whose leaves are VarPath, and event
# statements, whose other leaves and operations are those of `xscl.syntax.EventExpr`.


@frozen
class VarPath:
    """A variable or, with steps, a path on it: `x1`, `x1/title`."""

    var: str
    steps: tuple[Step, ...] = ()
    span: Span = nowhere()


@frozen
class String:
    """A string literal; `value` is unquoted."""

    value: str
    span: Span = nowhere()


@frozen
class Number:
    """A number literal, as written."""

    text: str
    span: Span = nowhere()


@frozen
class Call:
    """A function call: a condition such as `contains(...)`, or a value such as `host(...)`."""

    name: str
    args: tuple[Expr, ...]
    span: Span = nowhere()


@frozen
class Compare:
    op: CompareOp
    left: Expr
    right: Expr
    span: Span = nowhere()


@frozen
class And:
    args: tuple[Expr, ...]
    span: Span = nowhere()


@frozen
class Or:
    args: tuple[Expr, ...]
    span: Span = nowhere()


@frozen
class Not:
    arg: Expr
    span: Span = nowhere()


Expr = Rel | VarPath | String | Number | Call | Compare | And | Or | Not


def operands_of(expr: Expr) -> tuple[Expr, ...]:
    """The operands of a condition or a call, except those inside filters of paths."""
    match expr:
        case And() | Or() | Call():
            return expr.args
        case Not():
            return (expr.arg,)
        case Compare():
            return expr.left, expr.right
    return ()


def map_operands(expr: Expr, of: Callable[[Expr], Expr]) -> Expr:
    """A condition or a call with other operands, without its place."""
    match expr:
        case Call():
            return Call(expr.name, tuple(map(of, expr.args)))
        case And() | Or():
            return type(expr)(tuple(map(of, expr.args)))
        case Not():
            return Not(of(expr.arg))
        case Compare():
            return Compare(expr.op, of(expr.left), of(expr.right))
    return expr


# ---------------------------------------------------------------- constructors


@frozen
class Hole:
    """`{operand}` in an element constructor. `text` is stripped of braces and blanks."""

    operand: Expr
    text: str = field(default="", compare=False)
    span: Span = nowhere()


@frozen
class ElementConstructor:
    """`<name attr="text {hole}">text {hole} <child/></name>`. Names may have a prefix."""

    name: str
    attributes: tuple[tuple[str, tuple[str | Hole, ...]], ...] = ()
    children: tuple[str | Hole | ElementConstructor, ...] = ()
    span: Span = nowhere()


def holes_of(element: ElementConstructor) -> Iterator[Hole]:
    """All holes of a constructor, nested ones included, in order."""
    for _, parts in element.attributes:
        yield from (part for part in parts if isinstance(part, Hole))
    for child in element.children:
        if isinstance(child, Hole):
            yield child
        elif isinstance(child, ElementConstructor):
            yield from holes_of(child)


ORDER: dict[CompareOp, Callable[[Any, Any], bool]] = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
"""Comparison functions by operator."""


def time_text(text: str) -> str:
    """The time of a text in canonical ISO 8601 in UTC; "" if it is none.

    >>> time_text("Thu, 16 Jul 2026 10:30:00 +0200"), time_text("2026-07-16T08:30:00.5")
    ('2026-07-16T08:30:00Z', '2026-07-16T08:30:00.500000Z')
    """
    time = parse_timestamp(text)
    return "" if time is None else iso_utc(time)


def compare_times(op: CompareOp, left: str, right: str) -> bool:
    """Compares the times of two texts. If one is not a time, only `!=` holds.

    >>> compare_times("<", "2026-07-16", "2026-07-16T00:00+02:00"), compare_times("!=", "soon", "soon")
    (False, True)
    """
    one, other = parse_timestamp(left), parse_timestamp(right)
    if one is None or other is None:
        return op == "!="
    return ORDER[op](one, other)


ORDERS = ("<", "<=", ">", ">=")
NUMBERS = frozenset({"count", "number", "string-length"})
"""Functions whose value is a number."""


def is_time(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.name == "date"


def is_number(expr: Expr) -> bool:
    return isinstance(expr, Number) or (isinstance(expr, Call) and expr.name in NUMBERS)


def is_of_times(compare: Compare) -> bool:
    sides = (compare.left, compare.right)
    if any(map(is_time, sides)):
        return True
    texts = [side.value for side in sides if isinstance(side, String) and math.isnan(xpath_number(side.value))]
    is_order = compare.op in ORDERS and not any(map(is_number, sides))
    return is_order and any(parse_timestamp(text) is not None for text in texts)


def canonical(expr: Compare) -> Compare:
    """A comparison of two single values with conversions written out, so that equal values have equal texts: each side
    of a comparison of times is `date(...)` or a literal in UTC, what equals a numeric function is `number(...)`."""
    left, right = expr.left, expr.right
    if is_of_times(expr):
        return Compare(expr.op, _as_time(left), _as_time(right), expr.span)
    literal = isinstance(left, String | Number) or isinstance(right, String | Number)
    if expr.op == "=" and not literal and is_number(left) != is_number(right):
        left, right = (side if is_number(side) else Call("number", (side,), side.span) for side in (left, right))
        return Compare(expr.op, left, right, expr.span)
    return expr


def _as_time(expr: Expr) -> Expr:
    if isinstance(expr, String):
        return String(time_text(expr.value) or expr.value, expr.span)
    return expr if is_time(expr) else Call("date", (expr,), expr.span)


_NUMBER = re.compile(r"[ \t\r\n]*(-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))[ \t\r\n]*")
_SPACE = " \t\r\n"

MOST_TEXT = 1_000_000
"""Maximum number of characters of concat(). A run of FOLD could double a text with each step; NULL has no length."""

_SPACES = re.compile(r"[ \t\r\n]+")


def xpath_number(text: str) -> float:
    """XPath 1.0's number(): digits with an optional minus, point and surrounding white space; else NaN.

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
    """Whether a comparison holds: `=` and `!=` between two strings compare code points, all others XPath numbers. A
    comparison with NaN is false, except for `!=`.

    >>> compare("=", "1.0", "1"), compare("=", "1.0", 1.0), compare("<", "9", "10"), compare("!=", "a", 1.0)
    (False, True, True, True)
    """
    if op in ("=", "!=") and isinstance(left, str) and isinstance(right, str):
        return (left == right) is (op == "=")
    a = xpath_number(left) if isinstance(left, str) else left
    b = xpath_number(right) if isinstance(right, str) else right
    return ORDER[op](a, b)


NUMERIC: dict[str, Callable[[str], float]] = {"number": xpath_number, "string-length": lambda text: float(len(text))}
"""Functions that derive a number from a string value. They never fail."""

DERIVED: dict[str, Callable[[str], str]] = {
    "lower-case": str.lower,
    "upper-case": str.upper,
    "normalize-space": lambda text: _SPACES.sub(" ", text.strip(_SPACE)),  # XML's, without no-break space
    "canonical-url": canonical_url,
    "host": url_host,
    "domain": url_domain,
    "words": words_text,
    "date": time_text,
    "year-month": lambda text: time_text(text)[:7],
    "number": lambda text: number_text(xpath_number(text)),
    "string-length": lambda text: str(len(text)),
}
"""Functions that derive a text from a node's string value. They never fail.

`lower-case` and `upper-case` are Unicode's full case mappings, the same in any language, as XPath's Functions and
Operators (5.4.7, 5.4.8) demand: ß becomes SS, and a sigma at a word's end a final one. (Saxon maps each character by
itself, and produces no final sigma.)
"""


WITH_LITERAL: dict[str, Callable[[str, str], str]] = {
    "substring-before": lambda text, part: text.partition(part)[0] if part and part in text else "",
    "substring-after": lambda text, part: text.partition(part)[2] if part else text,
}
"""Functions that derive a text from a string value and a literal: "" if that is not in it. They never fail."""


def with_literal(name: str, literal: str) -> str:
    """The spelling in a chain of one of WITH_LITERAL with its literal.

    >>> with_literal("substring-before", ' "x" ')
    'substring-before " ""x"" "'
    """
    quoted = literal.replace('"', '""')
    return f'{name} "{quoted}"'


def split_function(function: str) -> tuple[str, str | None]:
    name, _, literal = function.partition(" ")
    return name, literal[1:-1].replace('""', '"') if literal else None


OF_EVENTS = "of-events"
"""Ends the chain of functions of a value that an event's attribute needs. It is the identity, but gives event nodes
other ids than those of joins. No query can name it."""

_CHAINED: dict[str, Callable[[str], str]] = {**DERIVED, OF_EVENTS: str}


@lru_cache(maxsize=10_000)
def chained(function: str) -> Callable[[str], str]:
    """The function that a chain names: one of DERIVED, OF_EVENTS, or one `with_literal`. Raises KeyError."""
    if function in _CHAINED:
        return _CHAINED[function]
    name, literal = split_function(function)
    if literal is None or with_literal(name, literal) != function:
        raise KeyError(function)
    apply = encode_words if name == MANY_WORDS else WITH_LITERAL[name]
    return lambda text: apply(text, literal)


def many_valued(functions: tuple[str, ...]) -> str | None:
    """The threshold if a chain ends with a join by words; else None."""
    name, literal = split_function(functions[-1]) if functions else ("", None)
    return literal if name == MANY_WORDS else None


def derive(name: str, text: str) -> str:
    """The derived value `name(text)`, "" if there is none. `name` is one that chains of functions have."""
    return chained(name)(text)


def derivation(expr: Call) -> str | None:
    """A chain's name of the function that a call is of its first argument; None if it is not a derived value."""
    match expr:
        case Call(name=name, args=(_,)) if name in DERIVED:
            return name
        case Call(name=name, args=(_, String(value=literal))) if name in WITH_LITERAL:
            return with_literal(name, literal)
    return None


def matches_regex(text: str, pattern: str, flags: str = "") -> bool:
    """Whether a part of `text` matches an XPath 2.0 regular expression; `^` and `$` anchor it. Raises PatternError for
    an invalid `pattern` or flags other than `i`, `s` and `x`, and PatternLimit if the search would take too long."""
    return compile_pattern(pattern, flags).found_in(text)


TESTS: dict[str, Callable[..., bool]] = {
    "contains": str.__contains__,
    "starts-with": str.startswith,
    "ends-with": str.endswith,
    "matches": matches_regex,
    "near": near,
}
"""Functions that are conditions. `matches_regex` may fail."""
