"""Checks expressions: which functions and operands may stand where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction

from xscl.algebra.expressions import And, Call, Compare, Expr, Not, Number, Or, Rel, Span, String, VarPath
from xscl.algebra.functions import DERIVED, WITH_LITERAL
from xscl.algebra.near import LEAST, MOST
from xscl.algebra.regex.flags import KNOWN as KNOWN_FLAGS
from xscl.algebra.regex.search import compile_pattern
from xscl.algebra.regex.syntax import PatternError
from xscl.problems import Problem

BOOLEAN_FUNCTIONS = {"contains": 2, "starts-with": 2, "ends-with": 2, "matches": 2, "near": 3}
"""The functions that are conditions, in filters and predicates, with the number of their arguments."""

MORE_ARGUMENTS = {"matches": 3}
"""How many arguments a function can have, if it can have more."""

_DERIVED_FUNCTIONS = {**dict.fromkeys(DERIVED, 1), **dict.fromkeys(WITH_LITERAL, 2)}

FILTER_FUNCTIONS = {**_DERIVED_FUNCTIONS, "string": 1, "count": 1}
"""The other functions of filters, with the number of their arguments."""

_NO_CLOCK = (
    'a query asks nothing of the clock: write a time, as in date(./timestamp) >= "2026-07-16"; how far apart two '
    "documents are is the window of a join"
)
_TIMES = 'compare whole times, as in date(./timestamp) >= "2026-07-16", or months: year-month(./timestamp) = "2026-07"'

_KNOWN_ELSEWHERE = {
    "position": "positions in a document cannot be asked for; say what the node holds instead",
    "last": "positions in a document cannot be asked for; say what the node holds instead",
    "text": 'a path stands for its text: write title = "x", or . for the text of the filtered node',
    "node": "write * for any element",
    "true": "a condition stands for itself: leave out = true()",
    "false": "write not(...) around the condition",
    "exists": "a path alone is true where it matches",
    "empty": "write not(...) around the path",
    "name": "write the name as a step of the path",
    "local-name": "write *:name as a step of the path to ignore namespaces",
    "upper": "write upper-case(...)",
    "lower": "write lower-case(...)",
    "trim": "write normalize-space(...)",
    "length": "write string-length(...)",
    "like": 'write contains(text, "part"), or matches(text, "pattern")',
    "count": "count nodes in a filter of the block, as in S//item->a[count(./author) > 1]",
    "string": "a variable or a path stands for its text: leave out string()",
    **dict.fromkeys(("now", "today", "current-date", "current-dateTime", "current-time"), _NO_CLOCK),
    **dict.fromkeys(("dateTime", "datetime", "time", "timestamp", "to_date", "year", "month", "day"), _TIMES),
    "substring": "write substring-before(text, part) or substring-after(text, part), or matches(text, pattern)",
}


_ARGUMENTS = {
    "matches": '(text, "pattern") or matches(text, "pattern", "i")',
    "near": "(x, y, 0.6)",
    **dict.fromkeys(WITH_LITERAL, '(text, " - ")'),
}
_EXAMPLES = {"date": '>= "2026-07-16"'}
"""What values are compared with in examples, if not with a number."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an expression stands: its name in messages, and the functions with a value that can be called there."""

    name: str
    functions: dict[str, int]


FILTER = Place("a filter", FILTER_FUNCTIONS)
PREDICATE = Place("a join predicate", _DERIVED_FUNCTIONS)
SELECT = Place("SELECT", _DERIVED_FUNCTIONS)
ONCE = Place("ONCE PER", _DERIVED_FUNCTIONS)


def check_condition(expr: Expr, place: Place) -> Iterator[Problem]:
    """The problems of a condition, of its operands, functions and regular expressions included."""
    match expr:
        case And() | Or():
            for arg in expr.args:
                yield from check_condition(arg, place)
        case Not():
            if place is not FILTER:
                hint = "write the opposite comparison, such as != for ="
                yield Problem(f"not() is not allowed in {place.name}", expr.span, hint)
            yield from check_condition(expr.arg, place)
        case Compare():
            yield from check_operand(expr.left, place)
            yield from check_operand(expr.right, place)
        case Call() if expr.name in BOOLEAN_FUNCTIONS:
            yield from _check_call(expr, BOOLEAN_FUNCTIONS, place)
        case Call():
            problems = list(check_operand(expr, place))
            if not problems and place is FILTER:
                problems = [_no_condition(expr.span, f"{expr.name}(...) {_EXAMPLES.get(expr.name, '> 0')}")]
            elif not problems:
                problems = [_no_condition(expr.span, f"{expr.name}(...) = y")]
            yield from problems
        case Number() if place is FILTER:
            message = "positional predicates are not supported"
            yield Problem(message, expr.span, _KNOWN_ELSEWHERE["position"])
        case String() | Number():
            yield _no_condition(expr.span, f'x = "{expr.value}"' if isinstance(expr, String) else f"x = {expr.text}")
        case VarPath():
            yield _no_condition(expr.span, f"{expr.var} = y")
        case Rel():
            pass


def check_operand(expr: Expr, place: Place) -> Iterator[Problem]:
    """The problems of an operand: of a comparison, a function, or SELECT."""
    if isinstance(expr, Call) and expr.name not in BOOLEAN_FUNCTIONS:
        yield from _check_call(expr, place.functions, place)
    elif isinstance(expr, Call | And | Or | Not | Compare):
        hint = "use it as a condition of its own, beside others with and, or"
        yield Problem("a condition cannot stand here, where a value is needed", expr.span, hint)


def _check_call(call: Call, signatures: dict[str, int], place: Place) -> Iterator[Problem]:
    name_span = Span(call.span.start, call.span.start + len(call.name))
    if call.name not in signatures:
        yield _unknown_function(call.name, name_span, place)
        return
    wanted = signatures[call.name]
    if not wanted <= len(call.args) <= MORE_ARGUMENTS.get(call.name, wanted):
        more = f" or {MORE_ARGUMENTS[call.name]}" if call.name in MORE_ARGUMENTS else ""
        message = f"{call.name}() takes {_arguments(wanted, more)}, not {len(call.args)}"
        example = (
            _ARGUMENTS.get(call.name) or "(text, part)" if wanted > 1 else "(path)" if place is FILTER else "(variable)"
        )
        yield Problem(message, call.span, f"write {call.name}{example}")
        return
    if call.name == "count" and not isinstance(call.args[0], Rel):
        yield Problem("count() counts nodes: its argument is a path", call.args[0].span, "write count(./author)")
    if call.name == "matches":
        yield from check_pattern(*call.args[1:])
    if call.name == "near":
        yield from check_threshold(call.args[2])
    if call.name in WITH_LITERAL:
        yield from check_literal(call.name, call.args[1])
    for arg in call.args:
        yield from check_operand(arg, place)


def check_threshold(threshold: Expr) -> Iterator[Problem]:
    """The problem of how near texts are to be."""
    if not isinstance(threshold, Number) or not LEAST <= Fraction(threshold.text) <= MOST:
        hint = "write how large a part of the words of both is to be in common: near(x, y, 0.6)"
        yield Problem("the threshold of near() must be a number from 0.5 to 1", threshold.span, hint)


def check_literal(name: str, part: Expr) -> Iterator[Problem]:
    """The problem of what one of WITH_LITERAL looks for."""
    if not isinstance(part, String):
        hint = f'write it in quotes: {name}(x, " - ")'
        yield Problem(f"what {name}() looks for must be a string literal", part.span, hint)


def check_pattern(pattern: Expr, flags: Expr | None = None) -> Iterator[Problem]:
    if not isinstance(pattern, String):
        hint = 'write it in quotes: matches(x, "[0-9]+")'
        yield Problem("the pattern of matches() must be a string literal", pattern.span, hint)
    elif not isinstance(flags, String | None):
        hint = 'write them in quotes: matches(x, "[a-z]+", "i")'
        yield Problem("the flags of matches() must be a string literal", flags.span, hint)
    elif flags and not set(flags.value) <= set(KNOWN_FLAGS):
        hint = "the flags are i (ignore case), s (. matches line ends, too) and x (ignore white space in the pattern)"
        unknown = next(flag for flag in flags.value if flag not in KNOWN_FLAGS)
        yield Problem(f"matches() has no flag {unknown} here", flags.span, hint)
    else:
        try:
            compile_pattern(pattern.value, flags.value if flags else "")
        except PatternError as error:
            yield Problem(f"bad regular expression: {error}", pattern.span, "see XPath 2.0's regular expressions")


def _unknown_function(name: str, span: Span, place: Place) -> Problem:
    known = [*BOOLEAN_FUNCTIONS, *place.functions] + (["not"] if place is FILTER else [])
    close = get_close_matches(name.lower(), known, n=1)
    if name in _KNOWN_ELSEWHERE:
        hint = _KNOWN_ELSEWHERE[name]
    elif close:
        hint = f"did you mean {close[0]}?"
    else:
        hint = f"the functions here are {', '.join(known)}"
    if name in ("position", "last"):
        return Problem(f"{name}() is not supported: positional predicates are not", span, hint)
    return Problem(f"there is no function {name}() in {place.name}", span, hint)


def _no_condition(span: Span, example: str) -> Problem:
    return Problem("this is a value, not a condition", span, f"compare it with something: {example}")


def _arguments(count: int, more: str = "") -> str:
    return "1 argument" if count == 1 else f"{count}{more} arguments"
