"""Checks where functions and operands are allowed, and resolves the names that a part of a query exports."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from common.tools import Remembered
from xscl.algebra import values as exp
from xscl.algebra.joins import NEGATED
from xscl.algebra.near import BY_WORDS, LEAST, LEAST_SIMILAR, MOST, MOST_WORDS, words
from xscl.algebra.regex import KNOWN as KNOWN_FLAGS
from xscl.algebra.regex import MAX_PATTERN, PatternError, compile_pattern
from xscl.algebra.values import (
    DERIVED,
    MANY_VALUED,
    NUMBERS,
    OF_DOCUMENT,
    TESTS,
    WITH_LITERAL,
    Span,
    is_number,
    is_time,
)
from xscl.syntax import Block, EventDefinition, EventExpr, EventQuery, Input, Join, Query, SelectItems, SubQuery
from xscl.text import EVENT_ADVICE, Problem, did_you_mean

SIGNATURES: dict[str, tuple[int, int]] = {
    **dict.fromkeys(TESTS, (2, 2)),
    "matches": (2, 3),
    **dict.fromkeys(BY_WORDS, (3, 3)),
    **dict.fromkeys(DERIVED, (1, 1)),
    **dict.fromkeys(WITH_LITERAL, (2, 2)),
    "concat": (2, 20),
    "extract": (2, 3),
    "tokens": (1, 1),
}
"""Functions allowed in all statements, with their minimum and maximum number of arguments. Below are those of some."""

_OF_FILTERS = SIGNATURES | {"string": (1, 1), "count": (1, 1)}

_MOST_ARGUMENTS = 100
_SEVERAL = (2, _MOST_ARGUMENTS)
AGGREGATES = {
    "count": (0, 1),
    **dict.fromkeys(("sum", "avg", "median", "min", "max"), (1, 1)),
    **dict.fromkeys(("percentile", "argmax"), (2, 2)),
}
OF_ONE_VALUE = {name: counts for name, counts in SIGNATURES.items() if name not in MANY_VALUED}
EVENT_FUNCTIONS = OF_ONE_VALUE | {"coalesce": _SEVERAL, "concat": _SEVERAL, "abs": (1, 1)} | AGGREGATES
FUNCTIONS = _OF_FILTERS | EVENT_FUNCTIONS
"""All functions, with the minimum and maximum number of arguments over all contexts."""

_NO_CLOCK = (
    'a query asks nothing of the clock: write a time, as in date(./timestamp) >= "2026-07-16"; how far apart two '
    "documents are is the window of a join"
)
_TIMES = 'compare whole times, as in date(./timestamp) >= "2026-07-16", or months: year-month(./timestamp) = "2026-07"'

OF_WORDS = ("has-words", "has-phrase")

_SEVERAL_VALUES = "it has several values: SELECT them in a query over documents, and read what that PUBLISHes"

_KNOWN_ELSEWHERE = {
    "position": "positions in a document are not supported; say what the node contains instead",
    "last": "positions in a document are not supported; say what the node contains instead",
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
    "count": f"count nodes in a filter of the block, as in S//item->a[count(./author) > 1]; {EVENT_ADVICE}",
    **dict.fromkeys(("sum", "avg", "median", "percentile", "min", "max", "argmax"), EVENT_ADVICE),
    **dict.fromkeys(MANY_VALUED, _SEVERAL_VALUES),
    "string": "a variable or a path stands for its text: leave out string()",
    **dict.fromkeys(("now", "today", "current-date", "current-dateTime", "current-time"), _NO_CLOCK),
    **dict.fromkeys(("dateTime", "datetime", "time", "timestamp", "to_date", "year", "month", "day"), _TIMES),
    "substring": "write substring-before(text, part) or substring-after(text, part), or matches(text, pattern)",
}


_ARGUMENTS = {
    "matches": '(text, "pattern") or matches(text, "pattern", "i")',
    "extract": '(text, "CVE-[0-9]{4}-[0-9]{4,}")',
    "near": "(x, y, 0.6)",
    "percentile": "(x, 95)",
    "similar": "(x, y, 0.12)",
    **dict.fromkeys(("contains", "starts-with", "ends-with"), "(text, part)"),
    **dict.fromkeys(WITH_LITERAL, '(text, " - ")'),
    **dict.fromkeys(OF_WORDS, '(text, "ai act")'),
}
_EXAMPLES = {"date": '>= "2026-07-16"'}  # example comparisons for functions that are not compared with a number


@dataclass(frozen=True, slots=True)
class ExprContext:
    """The context of an expression: its name in messages, and the functions allowed there."""

    name: str
    functions: Mapping[str, tuple[int, int]]


FILTER = ExprContext("a filter", _OF_FILTERS)
PREDICATE = ExprContext("a join predicate", SIGNATURES)
SELECT = ExprContext("SELECT", SIGNATURES)
CONSTRUCTOR = ExprContext("an element constructor", SIGNATURES | dict.fromkeys(OF_DOCUMENT, (1, 1)))
ONCE = ExprContext("ONCE PER", OF_ONE_VALUE)


def check_condition(
    expr: exp.Expr, place: ExprContext, compared: Callable[[exp.Compare], Iterator[Problem]]
) -> Iterator[Problem]:
    """Finds problems of a condition's functions and operands. `compared` returns those of comparisons of valid ones."""
    match expr:
        case exp.And() | exp.Or():
            for arg in expr.args:
                yield from check_condition(arg, place, compared)
        case exp.Not():
            if place is not FILTER:
                hint = "write the opposite comparison, such as != for ="
                yield Problem(f"not() is not allowed in {place.name}", expr.span, hint)
            else:
                yield from check_condition(expr.arg, place, compared)
        case exp.Compare():
            problems = [*check_operand(expr.left, place), *check_operand(expr.right, place)]
            yield from problems or compared(expr)
        case exp.Call() if expr.name in TESTS:
            yield from _check_call(expr, place)
        case exp.Call():
            example = _EXAMPLES.get(expr.name, "> 0") if place is FILTER else "= y"
            problems = list(check_operand(expr, place))
            yield from problems or [_no_condition(expr.span, f"{expr.name}(...) {example}")]
        case exp.Number() if place is FILTER:
            yield Problem("positional predicates are not supported", expr.span, _KNOWN_ELSEWHERE["position"])
        case exp.String() | exp.Number():
            example = f'x = "{expr.value}"' if isinstance(expr, exp.String) else f"x = {expr.text}"
            yield _no_condition(expr.span, example)
        case exp.VarPath():
            yield _no_condition(expr.span, f"{expr.var} = y")
        case exp.Bound():
            hint = "bind it in a filter of the block itself: S//item->a[extract(./title, ...)->x]"
            yield Problem(f"the value {expr.var} cannot be bound here", expr.span, hint)
        case exp.Rel():
            pass


def check_operand(expr: exp.Expr, place: ExprContext) -> Iterator[Problem]:
    if isinstance(expr, exp.Call) and expr.name not in TESTS:
        yield from _check_call(expr, place)
    elif isinstance(expr, exp.Call | exp.And | exp.Or | exp.Not | exp.Compare):
        yield no_value(expr)


def paths_of(operand: exp.Expr) -> Iterator[exp.VarPath]:
    """The variables, and the paths on variables, whose values an operand uses."""
    if isinstance(operand, exp.VarPath):
        yield operand
    for one in exp.operands_of(operand):
        yield from paths_of(one)


def no_value(condition: EventExpr) -> Problem:
    hint = "use it as a condition of its own, beside others with and, or"
    return Problem("a condition cannot be used here, where a value is needed", condition.span, hint)


def _check_call(call: exp.Call, place: ExprContext) -> Iterator[Problem]:
    name = call.name
    if name not in place.functions:
        span, known = Span(call.span.start, call.span.start + len(name)), [*place.functions]
        known += ["not"] if place is FILTER else []
        hint = _KNOWN_ELSEWHERE.get(name) or did_you_mean(name.lower(), known)
        message = f"there is no function {name}() in {place.name}"
        if name in ("position", "last"):
            message = f"{name}() is not supported: positional predicates are not"
        yield Problem(message, span, hint or f"the functions here are {', '.join(known)}")
        return
    least, most = place.functions[name]
    yield from check_arguments(call, least, most, "(path)" if place is FILTER else "(variable)")
    if not least <= len(call.args) <= most:
        return
    if name == "concat" and len(nodes := dict.fromkeys(path.var for path in paths_of(call))) > 1:
        one, other, *_ = nodes
        hint = f'bind the element above both, as in S//item->a, and write concat(a/{one}, " ", a/{other})'
        yield Problem(f"concat() takes texts of one node, and {one} and {other} are two", call.span, hint)
    if name == "count" and not isinstance(call.args[0], exp.Rel):
        yield Problem("count() counts nodes: its argument is a path", call.args[0].span, "write count(./author)")
    inside = next(filter(None, map(of_several, call.args)), None)
    if inside is not None and name in (*BY_WORDS, *MANY_VALUED, *(NUMBERS - {"count"}), "concat", "date"):
        hint = f"write {inside.name}() in a condition of its own"
        if name in (*NUMBERS, "date"):
            hint = f"write {inside.name}() as it is: > and < compare numbers or times"
        yield Problem(f"{name}() takes one value, and {inside.name}() has several", inside.span, hint)
    elif name in MANY_VALUED and not any(isinstance(one, exp.Rel | exp.VarPath) for one in _leaves(call)):
        yield Problem("a function of a constant", call.span, f"write {name}() of a variable or a path")
    for arg in call.args:
        yield from check_operand(arg, place)


def _leaves(operand: exp.Expr) -> Iterator[exp.Expr]:
    yield operand
    for one in exp.operands_of(operand):
        yield from _leaves(one)


def of_several(operand: exp.Expr) -> exp.Call | None:
    """A call of a multi-valued function in an operand, or None."""
    return next((one for one in _leaves(operand) if isinstance(one, exp.Call) and one.name in MANY_VALUED), None)


def check_arguments(call: exp.Call, least: int, most: int, example: str = "(x)") -> Iterator[Problem]:
    """The problems of a call's number of arguments, or else of arguments that have to be literals."""
    name, args = call.name, call.args
    if not least <= len(args) <= most:
        wanted = f"{least} to {most}" if most > least + 1 else f"{least}" + (f" or {most}" if most > least else "")
        noun = "argument" if wanted == "1" else "arguments"
        example = _ARGUMENTS.get(name) or ("(x, y)" if least == 2 else example)
        if len(args) > most == _MOST_ARGUMENTS:
            example = f"({name}(x, y), z)"
        yield Problem(f"{name}() takes {wanted} {noun}, not {len(args)}", call.span, f"write {name}{example}")
    elif name in ("matches", "extract"):
        yield from _check_pattern(name, *args[1:])
    elif name in BY_WORDS:
        yield from _check_threshold(call, args[2])
    elif name == "percentile" and not (isinstance(args[1], exp.Number) and float(args[1].text) <= 100):
        hint = "write percentile(x, 95) for what 95 of 100 values do not exceed"
        yield Problem("the second argument of percentile() must be a number from 0 to 100", args[1].span, hint)
    elif name in (*WITH_LITERAL, *OF_WORDS) and not isinstance(args[1], exp.String):
        hint = f"write it in quotes: {name}{_ARGUMENTS[name].replace('text', 'x')}"
        yield Problem(f"what {name}() looks for must be a string literal", args[1].span, hint)
    elif name in OF_WORDS and isinstance(args[1], exp.String) and not (0 < len(words(args[1].value)) < MOST_WORDS):
        hint = "words are made of letters, marks and digits" if args[1].value.strip() else "write one or more words"
        yield Problem(f"what {name}() looks for must have from 1 to {MOST_WORDS - 1} words", args[1].span, hint)


def _check_threshold(call: exp.Call, threshold: exp.Expr) -> Iterator[Problem]:
    least = LEAST if call.name == "near" else LEAST_SIMILAR
    if not (isinstance(threshold, exp.Number) and least <= Fraction(threshold.text) <= MOST):
        of = "the words" if call.name == "near" else "the weight of the words"
        hint = f"write how large a part of {of} of both together is to be in common: {call.name}{_ARGUMENTS[call.name]}"
        message = f"the threshold of {call.name}() must be a number from {float(least)} to 1"
        yield Problem(message, threshold.span, hint)


def _check_pattern(
    name: str, pattern: exp.Expr | EventExpr, flags: exp.Expr | EventExpr | None = None
) -> Iterator[Problem]:
    if not isinstance(pattern, exp.String):
        hint = f'write it in quotes: {name}(x, "[0-9]+")'
        yield Problem(f"the pattern of {name}() must be a string literal", pattern.span, hint)
    elif not isinstance(flags, exp.String | None):
        hint = f'write them in quotes: {name}(x, "[a-z]+", "i")'
        yield Problem(f"the flags of {name}() must be a string literal", flags.span, hint)
    elif flags and not set(flags.value) <= set(KNOWN_FLAGS):
        hint = "the flags are i (ignore case), s (. matches line ends, too) and x (ignore white space in the pattern)"
        unknown = next(flag for flag in flags.value if flag not in KNOWN_FLAGS)
        yield Problem(f"{name}() has no flag {unknown} here", flags.span, hint)
    else:
        try:
            compiled = compile_pattern(pattern.value, flags.value if flags else "")
            if name == "extract":
                compiled.prepare_to_find()
        except PatternError as error:
            yield Problem(f"bad regular expression: {error}", pattern.span, _pattern_hint(pattern.value, error))


_PATTERN_HABITS = (
    (r"\\[b<>]", r"write (^|\W) before a word, and (\W|$) after it"),
    (r"\(\?[imsx]+\)", 'write flags as a third argument: matches(x, "[a-z]+", "i")'),
    (r"\(\?<?[=!]", "there is no look-around: write two conditions, with and or not(...)"),
    (r"\(\?P?<", "groups have no names: write ( alone"),
    (r"\\B", r"write what is next to it, as in \wx for an x after a letter, digit or mark"),
    (r"\\[hHvR]", r"write \s for white space, and \S for all else"),
    (r"\\[uUx]", "write the character itself, as in é"),
    (r"\\[^\w\s.\\?*+(){}|^$\[\]-]", "write the character without the backslash"),
    (r"\[:\^?\w+:\]", r"write \p{L} for letters, \d for digits, \s for white space, \p{P} for punctuation"),
    (r"\\[pP]", r"write a category such as \p{L}, or a block such as \p{IsGreek}"),
    (r"\\[AZz]", "write ^ for the beginning of the text, and $ for its end"),
)
_ESCAPES = r"the escapes are \d \s \w \i \c, their capitals, \p{L}, \n \r \t, and a backslash before a sign"


def _pattern_hint(pattern: str, error: PatternError) -> str:
    if len(pattern) > MAX_PATTERN:
        return "write several conditions, with or between them"
    if "repetitions" in str(error):
        return "write + or * for any number of repetitions, or a smaller number"
    known = (hint for habit, hint in _PATTERN_HABITS if re.search(habit, pattern.replace("\\\\", "")))
    return next(known, _ESCAPES if "no escape" in str(error) else "see XPath 2.0's regular expressions")


def _no_condition(span: Span, example: str) -> Problem:
    return Problem("this is a value, not a condition", span, f"compare it with something: {example}")


MOST_PLAIN = 10  # maximum number of steps of a plain filter

NameKind = Literal["element", "attribute", "value", "number", "time", "constant"]
"""The kind of a name: a node of either kind, a text, number or time derived from a node, or a constant."""


def name_span(statement: Query | EventDefinition | EventQuery, text: str = "") -> Span:
    """The span, in the script's `text`, of the name that a statement defines or PUBLISHes: at its end, or where the
    span of HIDDEN or ONCE PER begins."""
    start, end = statement.span.start, statement.span.end
    if isinstance(statement, EventDefinition):  # there may be comments between the words
        name, start = statement.name, text.find(statement.name, start + len("define event"), end)
    else:
        name = statement.publish or ""
        clause = statement.hidden or (statement.once if isinstance(statement, Query) else None)
        start = end - len(name) if clause is None else clause.span.start
    return Span(start, start + len(name))


def blocks(source: Input) -> list[Block]:
    """All blocks, including those in parentheses, from left to right."""
    found: list[Block] = []
    waiting = [source]
    while waiting:
        match waiting.pop():
            case Join(left=left, right=right):
                waiting += right, left
            case SubQuery(source=inner):
                waiting.append(inner)
            case Block() as block:
                found.append(block)
    return found


def _shown(source: Input) -> list[Block | SubQuery]:
    """The leaves of a source that `SELECT *` selects: all but absences."""
    if isinstance(source, Join):
        return _shown(source.left) + ([] if source.op in NEGATED else _shown(source.right))
    return [source]


def _count_shown(source: Input) -> int:
    return sum(_count_shown(one.source) if isinstance(one, SubQuery) else 1 for one in _shown(source))


def star_items(source: Input) -> list[tuple[str, NameKind]]:
    """The items of `SELECT *` over a source, left to right: block roots, and the items of subqueries. Unnamed roots are
    `left` and `right` if the source has at most two blocks, those in parentheses included, and else `b1`, `b2`, ... by
    position. Absent blocks do not count."""
    defaults = ["left", "right"]
    if (count := _count_shown(source)) > 2:
        defaults = [f"b{position}" for position in range(1, count + 1)]
    found: list[tuple[str, NameKind]] = []
    for leaf in _shown(source):
        if isinstance(leaf, SubQuery):
            found += visible_names(leaf).items()
            del defaults[: _count_shown(leaf.source)]
        else:
            root = leaf.steps[-1]
            found.append((root.var or defaults[0], root.test.kind))
            del defaults[0]
    return found


def visible_names(source: Input) -> dict[str, NameKind]:
    """The names of a source that predicates, SELECT and outer queries can use, with their kinds."""
    match source:
        case Block():
            return dict(_bound_by(source.steps))
        case Join():
            left = visible_names(source.left)
            return left if source.op in NEGATED else left | visible_names(source.right)
        case SubQuery():
            if isinstance(source.select, SelectItems):
                inner = visible_names(source.source)
                return {item.name: operand_kind(item.operand, inner) for item in source.select.items}
            return dict(star_items(source.source))


def operand_kind(operand: exp.Expr, names: dict[str, NameKind]) -> NameKind:
    match operand:
        case exp.VarPath(steps=()):
            return names.get(operand.var, "element")
        case exp.VarPath():
            return operand.steps[-1].test.kind
        case exp.Call(name="concat", args=arguments):
            return "constant" if {operand_kind(one, names) for one in arguments} == {"constant"} else "value"
        case exp.Call(args=(argument, *_)):
            if operand_kind(argument, names) == "constant":
                return "constant"
            return "time" if is_time(operand) else "number" if is_number(operand) else "value"
        case _:
            return "constant"


def _bound_by(steps: tuple[exp.Step, ...]) -> list[tuple[str, NameKind]]:
    found: list[tuple[str, NameKind]] = []
    for step in steps:
        if step.var is not None:
            found.append((step.var, step.test.kind))
        for condition in step.filters:
            found += _bound_in(condition)
    return found


@Remembered  # the parser shares the trees of equal filters
def _bound_in(condition: exp.Expr) -> list[tuple[str, NameKind]]:
    arms = condition.args if isinstance(condition, exp.And) else (condition,)
    return [name for arm in arms if isinstance(arm, exp.Rel) for name in _bound_by(arm.steps)]


@Remembered  # the same
def variables_of_plain(condition: exp.Expr) -> tuple[str, ...] | None:
    """The variables that a filter of an element binds; None unless it is a path, perhaps with a value."""
    match condition:
        case exp.Rel(steps=steps):
            pass
        case exp.Compare(op="=", left=exp.Rel(steps=steps), right=exp.String()) if not any(one.var for one in steps):
            pass
        case _:
            return None
    names = [step.var for step in steps if step.var is not None]
    is_plain = len(set(names)) == len(names) and len(steps) <= MOST_PLAIN
    is_plain = is_plain and not any(step.filters or step.test.prefix for step in steps)
    return tuple(names) if is_plain and all(step.test.kind == "element" for step in steps[:-1]) else None
