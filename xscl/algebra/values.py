"""The only implementation of expressions, numbers, comparisons, times, derived values and string functions.

All engines compute values here, because SQL's casts and case mappings are not XPath's, and differ between engines. A
comparison's kind depends on how its operands are written, not on documents: times, if a side is `date(...)`, or if the
operator is an order and a side is a literal time; texts for `=` and `!=` if neither side is a number; else numbers, as
in XPath 1.0. Times are ISO 8601, RFC 3339 or RFC 822, as microseconds of UTC since 1970. Expressions are equal
regardless of their place in a text (`span`)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from decimal import Decimal
from functools import lru_cache, partial
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Literal

from common.dates import iso_utc, parse_timestamp
from common.tools import frozen
from common.urls import canonical_url, url_domain, url_host
from xscl.algebra.near import (
    EXACTLY,
    MANY_WORDS,
    MOST_VALUES,
    encode_values,
    encode_words,
    has_phrase,
    has_words,
    near,
    similar,
    tokens,
    words_text,
)
from xscl.algebra.regex import PatternLimit, compile_pattern

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
# Shared by filters, whose leaves are Rel, predicates and SELECT, whose leaves are VarPath, and event
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
    """A function call: a condition, such as `contains(...)`, or a value, such as `host(...)`."""

    name: str
    args: tuple[Expr, ...]
    span: Span = nowhere()


COUNT_DISTINCT = "count distinct"  # the name of count(DISTINCT x) as a call


def call_text(name: str, args: Iterable[str]) -> str:
    """A call as it is written.

    >>> call_text("count distinct", ["x"]), call_text("max", ["x"])
    ('count(DISTINCT x)', 'max(x)')
    """
    function, _, word = name.partition(" ")
    return f"{function}({' '.join(filter(None, (word.upper(), ', '.join(args))))})"


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


@frozen
class Bound:
    """`value->var`, a condition of a filter that names a value. Replaced before checking (`xscl.named_values`)."""

    value: Call
    var: str
    span: Span = nowhere()


Expr = Rel | VarPath | String | Number | Call | Compare | And | Or | Not | Bound


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
    """Replaces the operands of a condition or a call; the result has no span."""
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
    """The time that a text denotes, in canonical ISO 8601 in UTC; "" if none.

    >>> time_text("Thu, 16 Jul 2026 10:30:00 +0200"), time_text("2026-07-16T08:30:00.5")
    ('2026-07-16T08:30:00Z', '2026-07-16T08:30:00.500000Z')
    """
    time = parse_timestamp(text)
    return "" if time is None else iso_utc(time)


def compare_times(op: CompareOp, left: str, right: str) -> bool:
    """Compares the times that two texts denote. If either is not a time, only `!=` holds.

    >>> compare_times("<", "2026-07-16", "2026-07-16T00:00+02:00"), compare_times("!=", "soon", "soon")
    (False, True)
    """
    one, other = parse_timestamp(left), parse_timestamp(right)
    if one is None or other is None:
        return op == "!="
    return ORDER[op](one, other)


ORDERS = ("<", "<=", ">", ">=")
NUMBERS = frozenset({"count", "number", "string-length"})  # functions whose value is a number


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
    """A comparison of two single values with conversions made explicit, so that equal values have equal texts: each
    side of a comparison of times is `date(...)` or a literal in UTC, what equals a numeric function is
    `number(...)`."""
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
XML_SPACE = " \t\r\n"

MOST_TEXT = 1_000_000
"""Maximum number of characters of concat(), since a run of FOLD could double a text with each step."""

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
"""FunctionChain that derive a number from a string value. They never fail."""

DERIVED: dict[str, Callable[[str], str]] = {
    "lower-case": str.lower,
    "upper-case": str.upper,
    "normalize-space": lambda text: _SPACES.sub(" ", text.strip(XML_SPACE)),  # XML's, without no-break space
    "canonical-url": canonical_url,
    "host": url_host,
    "domain": url_domain,
    "words": words_text,
    "date": time_text,
    "year-month": lambda text: time_text(text)[:7],
    "number": lambda text: number_text(xpath_number(text)),
    "string-length": lambda text: str(len(text)),
}
"""FunctionChain that derive a text from a node's string value. They never fail.

`lower-case` and `upper-case` are Unicode's full case mappings, the same in any language, as XPath's FunctionChain and
Operators (5.4.7, 5.4.8) demand: ß becomes SS, and a sigma at a word's end a final one. (Saxon maps each character by
itself, and produces no final sigma.)"""


WITH_LITERAL: dict[str, Callable[[str, str], str]] = {
    "substring-before": lambda text, part: text.partition(part)[0] if part and part in text else "",
    "substring-after": lambda text, part: text.partition(part)[2] if part else text,
}
"""FunctionChain that derive a text from a string value and a literal: "" if that is not in it. They never fail."""


def with_literal(name: str, literal: str) -> str:
    """The spelling of a function of WITH_LITERAL with its literal, in a chain.

    >>> with_literal("substring-before", ' "x" ')
    'substring-before " ""x"" "'
    """
    quoted = literal.replace('"', '""')
    return f'{name} "{quoted}"'


def split_function(function: str) -> tuple[str, str | None]:
    name, _, literal = function.partition(" ")
    return name, literal[1:-1].replace('""', '"') if literal else None


OF_DOCUMENT = "document-id", "document-stream", "document-time"
"""FunctionChain of the document of a node: its id, its stream, and the time of its end in microseconds."""

PARTS = "parts"
"""Begins the chain of functions of a concat() of paths on one node, with the `parts_text` of these as literal. No query
can name it."""

ConcatPart = str | list[Any]
"""A part of concat(): a literal, or a list of a path in XPath, or of the parts of another concat(), and functions."""


def parts_text(parts: Iterable[ConcatPart]) -> str:
    """The literal of PARTS.

    >>> parts_text([["./title", "lower-case"], " "])
    '[["./title", "lower-case"], " "]'
    """
    return json.dumps(list(parts), ensure_ascii=False)


@lru_cache(maxsize=10_000)
def parts_of(function: str) -> tuple[ConcatPart, ...] | None:
    """The parts of a concat(); None for another function of a chain."""
    name, literal = split_function(function)
    return tuple(json.loads(literal)) if name == PARTS and literal is not None else None


def reads_tree(functions: Sequence[str]) -> bool:
    """Whether a value depends on nodes below its own: whether it is a concat()."""
    return bool(functions) and parts_of(functions[0]) is not None


def concat_text(parts: Iterable[ConcatPart], text_at: Callable[[str], str]) -> str:
    """The first MOST_TEXT characters of the value of concat(). `text_at` returns a path's first text, or ""."""
    found, left = list[str](), MOST_TEXT
    for part in parts:
        if not isinstance(part, str):
            head, *functions = part
            part = text_at(head) if isinstance(head, str) else concat_text(head, text_at)
            for name in functions:
                part = derive(name, part)
        found.append(part[:left])
        left -= len(found[-1])
        if not left:
            break
    return "".join(found)


def written(function: str, operand: str) -> str:
    """The text of a chain's function applied to an operand.

    >>> written('substring-before " - "', "x"), written(with_literal(PARTS, '[["./title", "words"], ": ", ["."]]'), "x")
    ('substring-before(x, " - ")', 'concat(words(x/title), ": ", x)')
    """
    if (parts := parts_of(function)) is not None:
        return _concat_text(parts, operand)
    name, _, literal = function.partition(" ")
    literal = literal.replace("\n", '", "')
    return f"{name}({operand}, {literal})" if literal else f"{name}({operand})"


def _concat_text(parts: Iterable[ConcatPart], operand: str) -> str:
    texts = list[str]()
    for part in parts:
        if isinstance(part, str):
            quoted = part.replace('"', '""')
            texts.append(f'"{quoted}"')
            continue
        head, *functions = part
        text = operand + head[1:] if isinstance(head, str) else _concat_text(head, operand)
        for function in functions:
            text = written(function, text)
        texts.append(text)
    return f"concat({', '.join(texts)})"


OF_EVENTS = "of-events"
"""Ends the chain of functions of an event attribute's value. It is the identity, but gives event nodes other ids than
those of joins. No query can name it."""

JOINED_EXACTLY = with_literal(MANY_WORDS, EXACTLY)
"""Ends the chain of a value that is joined with multi-valued ones."""

_CHAINED: dict[str, Callable[[str], str]] = {**DERIVED, OF_EVENTS: str}


@lru_cache(maxsize=10_000)
def chained(function: str) -> Callable[[str], str]:
    """The function that a chain names: one of DERIVED, OF_EVENTS, or one `with_literal`. Raises KeyError."""
    if function in _CHAINED:
        return _CHAINED[function]
    name, literal = split_function(function)
    if function == "tokens":
        return partial(derive_all, (function,))
    if literal is None or with_literal(name, literal) != function:
        raise KeyError(function)
    if name == PARTS:
        return _of_no_text
    if function == JOINED_EXACTLY:
        return lambda text: encode_values((text,))
    if name in MANY_VALUED:
        return partial(derive_all, (function,))
    apply = encode_words if name == MANY_WORDS else WITH_LITERAL[name]
    return lambda text: apply(text, literal)


def _of_no_text(_: str) -> str:
    raise AssertionError("concat() is a function of a node")


def many_valued(functions: tuple[str, ...]) -> str | None:
    """The level (`near.word_level`) if a chain ends with a join by words; else None."""
    name, literal = split_function(functions[-1]) if functions else ("", None)
    return literal if name == MANY_WORDS else None


def derive(name: str, text: str) -> str:
    """The derived value `name(text)`, "" if there is none. `name` is spelt as in chains."""
    return chained(name)(text)


def derivation(expr: Call) -> str | None:
    """The spelling in a chain of a call as a function of its first argument; None if it is not a derived value."""
    match expr:
        case Call(name=name, args=(_,)) if name in DERIVED or name in OF_DOCUMENT:
            return name
        case Call(name="tokens", args=(_,)):
            return "tokens"
        case Call(name="extract", args=(_, String(value=pattern), String(value=flags))):
            return with_literal("extract", with_flags(pattern, flags))
        case Call(name=name, args=(_, String(value=literal))) if name in (*WITH_LITERAL, PARTS, "extract"):
            return with_literal(name, literal)
    return None


MANY_VALUED = ("extract", "tokens")  # multi-valued functions of a text


def with_flags(pattern: str, flags: str) -> str:
    """The literal of extract() in a chain. Strings of queries have no line breaks."""
    return f"{pattern}\n{flags}" if flags else pattern


@lru_cache(maxsize=10_000)
def values_by(function: str) -> Callable[[str], tuple[str, ...]] | None:
    """The function that returns the first MOST_VALUES distinct values of a text, in order; None for single-valued
    functions. An extract() that would take too long finds nothing."""
    name, literal = split_function(function)
    if name not in MANY_VALUED:
        return None
    pattern, _, flags = (literal or "").partition("\n")

    def found(text: str) -> tuple[str, ...]:
        try:
            every = tokens(text) if name == "tokens" else compile_pattern(pattern, flags).found(text)
            different: dict[str, None] = {}
            for value in every:
                different[value] = None
                if len(different) == MOST_VALUES:
                    break
            return tuple(different)
        except PatternLimit:
            return ()

    return found


FunctionChain = tuple[str, ...]


def split_values(functions: FunctionChain) -> tuple[FunctionChain, FunctionChain] | None:
    """Splits a chain before its multi-valued function; None if it is single-valued."""
    place = next((at for at, name in enumerate(functions) if values_by(name) is not None), None)
    return None if place is None else (functions[:place], functions[place:])


def each_value(functions: FunctionChain, text: str) -> tuple[str, ...]:
    """The values of a text by a chain that begins with a multi-valued function.

    >>> each_value(('extract "(?:no|nr)[. ]*([0-9]+)\\ni"', "number"), "No. 7, nr 08, no")
    ('7', '8')
    """
    values_of, rest = values_by(functions[0]), functions[1:]
    assert values_of is not None, "the first function has several values"
    found = values_of(text)
    for name in rest:
        found = tuple(derive(name, value) for value in found)
    return found


def derive_all(functions: FunctionChain, text: str) -> str:
    """The derived value of a chain. Several values are encoded if they are joined, else listed."""
    if (split := split_values(functions)) is None:
        for name in functions:
            text = derive(name, text)
        return text
    text = derive_all(split[0], text)
    if functions[-1] == JOINED_EXACTLY:
        return encode_values(each_value(split[1][:-1], text))
    return ", ".join(each_value(split[1], text))


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
    "similar": similar,
    "has-words": has_words,
    "has-phrase": has_phrase,
}
"""FunctionChain that are conditions. `matches_regex` may fail."""
