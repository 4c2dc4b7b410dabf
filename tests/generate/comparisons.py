"""Random comparisons and tests of strings, of filters and of predicates, that the language takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tests.generate.documents import TIMES, chance
from xscl.algebra.values import WITH_LITERAL, Call, Compare, CompareOp, Expr, Number, String

LITERALS = ("1", "2", "u", "10", "")
NUMBERS = ("1", "2", "10", "1.5", "-1")
PATTERNS = ("1", "^[0-9]+$", "^u?$", "[a-z]")
FLAGGED = (("U", "i"), ("^[T-V]$", "i"), ("1.*1", "s"), ("^ 1 $", "x"), ("[^U-Z ]+ $", "ix"))
OPERATORS: tuple[CompareOp, ...] = ("=", "!=", "<", "<=", ">", ">=")
TEXT_FUNCTIONS = (
    *("normalize-space", "lower-case", "upper-case", "canonical-url", "host") * 2,
    *("words", *("domain", "year-month", "substring-before", "substring-after") * 2),
)
"""The functions of texts. What is mostly empty is there less often: queries that compare it have no outputs."""
NUMBER_FUNCTIONS = ("number", "string-length", "count")


def argument(rng: Random, operand: Expr) -> Expr:
    """The operand, or a function of it."""
    return derived(rng, (*TEXT_FUNCTIONS, "date", "string-length"), operand) if chance(rng, 25) else operand


def derived(rng: Random, names: Sequence[str], operand: Expr) -> Call:
    """A derived value of an operand, of one of these functions."""
    name = rng.choice(names)
    return (
        Call(name, (operand, String(rng.choice(("1", "u", " ", "/")))))
        if name in WITH_LITERAL
        else Call(name, (operand,))
    )


def kind_of(operand: Expr) -> str:
    """What the value of an operand is."""
    if isinstance(operand, Number) or (isinstance(operand, Call) and operand.name in NUMBER_FUNCTIONS):
        return "number"
    return "time" if isinstance(operand, Call) and operand.name == "date" else "text"


def comparison(
    rng: Random, operand: Expr, text: str, other: Expr | None, kind: Callable[[Expr], str] = kind_of
) -> Compare:
    """A comparison of an operand, whose text in a sample is given, with another operand or with a literal."""
    operator = rng.choice(("=", "=", *OPERATORS)) if other is None else rng.choice(OPERATORS)
    if other is None:
        other = literal(rng, kind(operand), operator, text)
    pair = (other, operand) if chance(rng, 15) else (operand, other)
    return Compare(operator, *alike(*pair, kind))


def alike(one: Expr, other: Expr, kind: Callable[[Expr], str] = kind_of) -> tuple[Expr, Expr]:
    """The two operands: times, if one is a time."""
    if "time" not in (kind(one), kind(other)):
        return one, other
    dated = [
        side if kind(side) == "time" or isinstance(side, String | Number) else Call("date", (side,))
        for side in (one, other)
    ]
    return dated[0], dated[1]


def accepted(operator: CompareOp, left: Expr, right: Expr) -> Compare:
    """The comparison, with other literals if the language refuses these."""
    left, right = alike(left, right)
    kinds = {kind_of(left), kind_of(right)}

    def allowed(side: Expr) -> Expr:
        if isinstance(side, Number) and "time" in kinds:
            return String(TIMES[0])
        if isinstance(side, String) and (operator not in ("=", "!=") or kinds & {"number", "time"}):
            return String(TIMES[0] if "time" in kinds else "1")
        return side

    return Compare(operator, allowed(left), allowed(right))


def literal(rng: Random, kind: str, operator: CompareOp, text: str) -> Expr:
    """A literal that a value of a kind can be compared with."""
    if kind == "time" or (kind == "text" and operator not in ("=", "!=") and chance(rng, 30)):
        return String(rng.choice(TIMES))
    if kind == "number" or chance(rng, 40):
        return Number(rng.choice(NUMBERS)) if chance(rng, 80) else String(rng.choice(NUMBERS))
    if operator not in ("=", "!="):
        return String(rng.choice(NUMBERS))
    return String(text if chance(rng, 60) else rng.choice(LITERALS))


def string_test(rng: Random, operand: Expr, text: str, other: Expr | None = None) -> Call:
    """A test of an operand with another one or with a literal."""
    name = rng.choice(("contains", "starts-with", "ends-with", "matches"))
    if name != "matches":
        return Call(name, (operand, other or String(rng.choice((text[:1], *LITERALS)))))
    if chance(rng, 70):
        return Call(name, (operand, String(rng.choice(PATTERNS))))
    pattern, flags = rng.choice(FLAGGED)
    return Call(name, (operand, String(pattern), String(flags)))
