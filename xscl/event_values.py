"""Resolves the expressions of event statements: whose attribute a name is, of what kind a value is, what is constant.

NOT goes to the atoms: `NOT (a < b AND c = d)` is `a >= b OR c != d`. Each atom is false if a value in it is NULL, so
this is more than a way of writing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Literal

from xscl.algebra.comparisons import ORDERS
from xscl.algebra.events import (
    ALWAYS,
    AnyOf,
    Attribute,
    Comparison,
    Condition,
    Constant,
    Duration,
    Function,
    Gap,
    NullTest,
    Part,
    Schema,
    TextTest,
    Value,
)
from xscl.algebra.expressions import CompareOp, Number, Span, String
from xscl.algebra.functions import DERIVED, TESTS, WITH_LITERAL, compare, with_literal, xpath_number
from xscl.check_expressions import check_literal, check_pattern, check_threshold
from xscl.event_constants import arithmetic, function_of, kind_of, text_of
from xscl.event_expressions import (
    Alike,
    Both,
    Either,
    EventCall,
    EventCompare,
    EventExpr,
    IsNull,
    ItemReference,
    Measure,
    Minus,
    Negated,
    Null,
    Operation,
    Percentage,
    Reference,
)
from xscl.event_forms import all_of, any_of
from xscl.problems import Problem
from xscl.syntax import Window

Operator = Literal["SELECT", "FILTER", "AGGREGATE", "NEXT", "FOLD", "WHERE", "HAVING", "RETURN"]

AGGREGATES = {"count": (0, 1), "sum": (1, 1), "avg": (1, 1), "min": (1, 1), "max": (1, 1), "argmax": (2, 2)}
"""The aggregates, with the least and the greatest number of their arguments."""

MOST_ARGUMENTS = 100
MOST_DIGITS = 300
FUNCTIONS = {
    **dict.fromkeys(DERIVED, (1, 1)),
    **dict.fromkeys(WITH_LITERAL, (2, 2)),
    "coalesce": (2, MOST_ARGUMENTS),
    "concat": (2, MOST_ARGUMENTS),
    "abs": (1, 1),
}
_NUMBERS = ("number", "string-length", "abs")
_OPPOSITE: dict[CompareOp, CompareOp] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_PARTS: dict[str, Part] = {"$1": "left", "$2": "right", "$": "latest"}


@dataclass(frozen=True, slots=True)
class Scope:
    """Where an expression stands: the operator, and the attributes of its sources. `changes` are the names that FOLD
    gives new values. In AGGREGATE, `left` has the attributes of BY, and `grouped` resolves an aggregate."""

    operator: Operator
    left: Schema
    right: Schema = ()
    changes: frozenset[str] = frozenset()
    grouped: Callable[[EventCall], Value | None] | None = None
    source: Schema = ()


class Expressions:
    """Resolves the expressions of a statement, and collects `problems` with their places in it."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def problem(self, message: str, span: Span, hint: str) -> None:
        self.problems.append(Problem(message, span, hint))

    # ------------------------------------------------------------ values

    def value(self, expr: EventExpr, scope: Scope) -> Value | None:
        """The value of an expression, or None if something is wrong with it."""
        match expr:
            case Reference():
                return self.reference(expr, scope)
            case ItemReference():
                return self.item(expr, scope)
            case Alike():
                self.alike(expr)
            case String(value=text):
                return Constant(text)
            case Number(text=text) | Percentage(text=text):
                return self._number(text, expr)
            case Window(us=us):
                if us is not None:
                    return Constant(us / 1e6)
                self.problem("INF is no number", expr.span, "leave the condition out")
            case Measure(name=name) if scope.operator in ("WHERE", "HAVING", "RETURN"):
                hint = "WITHIN bounds how long a match takes; a reader of what is PUBLISHed has DUR"
                self.problem(f"{name} does not belong in a pattern", expr.span, hint)
            case Measure(name="DUR"):
                return Duration()
            case Measure():
                if scope.operator in ("NEXT", "FOLD"):
                    return Gap()
                hint = "write it in the braces of NEXT or FOLD; DUR is how long an event takes"
                self.problem("GAP belongs in NEXT or FOLD", expr.span, hint)
            case Minus(arg=arg):
                value = self.value(arg, scope)
                return None if value is None else arithmetic("-", Constant(0.0), value)
            case Operation(op=op, left=left, right=right):
                one, two = self.value(left, scope), self.value(right, scope)
                return None if one is None or two is None else arithmetic(op, one, two)
            case EventCall():
                return self._call(expr, scope)
            case Null():
                self.problem("NULL is no value", expr.span, "write x IS NULL, or x IS NOT NULL")
            case EventCompare() | IsNull() | Both() | Either() | Negated():
                hint = "use it as a condition of its own, beside others with AND, OR"
                self.problem("a condition cannot stand here, where a value is needed", expr.span, hint)
        return None

    def _number(self, text: str, expr: Number | Percentage) -> Value | None:
        number = float(text) if len(text) < MOST_DIGITS else math.inf
        if not math.isfinite(number):
            self.problem("this number is too long", expr.span, "write fewer digits")
            return None
        return Constant(float(Fraction(text.rstrip(".")) / 100) if isinstance(expr, Percentage) else number)

    def item(self, found: ItemReference, scope: Scope) -> Value | None:
        """An attribute of an event of a pattern's variable, which is none of what queries read."""
        name = found.name
        sides = f"write $1.{name} for the left event, $2.{name} for the right one, $.{name} for FOLD's last"
        hint = sides if scope.operator in ("NEXT", "FOLD") else f"write {name} alone: {scope.operator} reads one source"
        self.problem(f"{found.variable}.{name} is no reference", found.span, hint)
        return None

    def alike(self, found: Alike) -> None:
        """`[x]`, which patterns have."""
        start = found.span.start
        self.problem("there are no brackets here", Span(start, start + 1), "write $1.x = $2.x")

    def reference(self, found: Reference, scope: Scope) -> Value | None:
        """An attribute of an event."""
        name, operator = found.name, scope.operator
        if operator not in ("NEXT", "FOLD"):
            if found.side:
                hint = f"write {name} alone: {operator} reads one source"
                self.problem(f"{found.side} belongs in the braces of NEXT or FOLD", found.span, hint)
                return None
            return self.attribute(found, "left", scope)
        if found.side == "$" and operator != "FOLD":
            self.problem("$ belongs in FOLD", found.span, f"write $1.{name} for the left event")
            return None
        if found.side:
            part = _PARTS[found.side]
            if part == "latest" and name in dict(scope.left) and name not in scope.changes:
                part = "left"  # it has its first value throughout
            return self.attribute(found, part, scope)
        left, right = dict(scope.left), dict(scope.right)
        if name in left and name in right:
            sides = f"$1.{name} or $2.{name}" if operator == "NEXT" else f"$1.{name}, $2.{name} or $.{name}"
            self.problem(f"{name} is an attribute of both sides", found.span, f"write {sides}")
        elif name in left:
            return Attribute("latest" if name in scope.changes else "left", name, left[name])
        elif name in right:
            return Attribute("right", name, right[name])
        else:
            self.unknown(name, {**left, **right}, found.span, scope)
        return None

    def attribute(self, found: Reference | ItemReference, part: Part, scope: Scope) -> Value | None:
        """An attribute of a part's event."""
        schema = dict(scope.right if part == "right" else scope.left)
        if found.name in schema:
            return Attribute(part, found.name, schema[found.name])
        self.unknown(found.name, schema, found.span, scope)
        return None

    def unknown(self, name: str, names: Iterable[str], span: Span, scope: Scope) -> None:
        """Says that there is no attribute of a name among those that there are."""
        names = list(dict.fromkeys(names))
        close = get_close_matches(name, names, n=1)
        if name in dict(scope.source):
            message = f"{name} differs within a group"
            hint = f"write an aggregate of it, such as max({name}), or add it to BY"
        else:
            message = f"there is no attribute {name} here"
            known = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            hint = f"did you mean {close[0]}?" if close else f"the attributes are {known}" if names else "remove it"
            if name.lower() in ("true", "false"):
                hint = 'there are no booleans: compare with a string, as in x = "true"'
            elif name.lower() in ("inf", "infinity"):
                hint = "INF is no number: leave the condition out"
        self.problem(message, span, hint)

    def _call(self, call: EventCall, scope: Scope) -> Value | None:
        name, name_span = call.name, Span(call.span.start, call.span.start + len(call.name))
        if name in AGGREGATES:
            if scope.grouped is not None:
                return scope.grouped(call)
            hint = "write AGGREGATE{" + name + "(...) AS x BY y OVER 1 d} in front of the source"
            inside = scope.operator == "AGGREGATE"
            message = "an aggregate of an aggregate" if inside else f"{name}() belongs in the braces of AGGREGATE"
            self.problem(
                message, name_span, "aggregate in two steps: AGGREGATE{...} AGGREGATE{...}" if inside else hint
            )
            return None
        if name in TESTS:
            hint = "use it as a condition of its own, beside others with AND, OR"
            self.problem("a condition cannot stand here, where a value is needed", call.span, hint)
            return None
        if name not in FUNCTIONS:
            self._unknown_function(name, name_span)
            return None
        args = [self.value(arg, scope) for arg in call.args]
        if not self.counted(call, *FUNCTIONS[name]):
            return None
        if name in WITH_LITERAL and (found := list(check_literal(name, call.args[1]))):  # type: ignore[arg-type]  # a string or not
            self.problems += found
            return None
        values = [value for value in args if value is not None]
        if len(values) < len(args):
            return None
        if name in WITH_LITERAL:
            literal = call.args[1]
            assert isinstance(literal, String), "it has been checked"
            return function_of(with_literal(name, literal.value), tuple(values[:1]), "string")
        kinds = {kind_of(value) for value in values}
        if name == "coalesce" and len(kinds) > 1:
            hint = 'make them one kind: number(...) is a number, concat(..., "") a text'
            self.problem("coalesce() of texts and numbers", call.span, hint)
            return None
        kind = "number" if name in _NUMBERS else next(iter(kinds)) if name == "coalesce" else "string"
        return function_of(name, tuple(values), kind)

    def counted(self, call: EventCall, least: int, most: int) -> bool:
        """Whether a function has as many arguments as it takes."""
        if least <= len(call.args) <= most:
            return True
        wanted = f"{least} to {most}" if most > least + 1 else f"{least}" + (f" or {most}" if most > least else "")
        noun = "argument" if wanted == "1" else "arguments"
        example = "(x, y)" if least == 2 else "(x)"
        if len(call.args) > most == MOST_ARGUMENTS:
            example = f"({call.name}(x, y), z)"
        self.problem(
            f"{call.name}() takes {wanted} {noun}, not {len(call.args)}", call.span, f"write {call.name}{example}"
        )
        return False

    def _unknown_function(self, name: str, span: Span) -> None:
        known = [*TESTS, *FUNCTIONS, *AGGREGATES]
        close = get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the functions are {', '.join(known)}"
        self.problem(f"there is no function {name}()", span, hint)

    # ------------------------------------------------------------ conditions

    def condition(self, expr: EventExpr, scope: Scope, *, negated: bool = False) -> Condition | None:
        """A condition, or, `negated`, that it does not hold. None if something is wrong with it."""
        match expr:
            case Both(args=args) | Either(args=args):
                found = [self.condition(arg, scope, negated=negated) for arg in args]
                known = [one for one in found if one is not None]
                if len(known) < len(found):
                    return None
                return all_of(*known) if isinstance(expr, Both) is not negated else any_of(*known)
            case Negated(arg=arg):
                return self.condition(arg, scope, negated=not negated)
            case EventCompare():
                return self.comparison(expr, scope, negated)
            case IsNull(value=inner):
                value = self.value(inner, scope)
                if value is None:
                    return None
                if isinstance(value, Constant):
                    return ALWAYS if expr.negated is not negated else AnyOf(())
                return NullTest(value, expr.negated is not negated)
            case EventCall(name=name) if name in TESTS:
                return self._test(expr, scope, negated)
        if self.value(expr, scope) is not None:
            self.problem("this is a value, not a condition", expr.span, "compare it with something: x = y")
        return None

    def comparison(self, expr: EventCompare, scope: Scope, negated: bool) -> Condition | None:
        """A comparison, or its opposite. None if something is wrong with it."""
        if isinstance(expr.left, Null) or isinstance(expr.right, Null):
            self.problem("a comparison with NULL never holds", expr.span, "write x IS NULL, or x IS NOT NULL")
            return None
        left, right = self.value(expr.left, scope), self.value(expr.right, scope)
        if left is None or right is None:
            return None
        for one, text, other in ((expr.left, left, right), (expr.right, right, left)):
            if isinstance(text, Function) and text.name == "date" and expr.op in ORDERS:
                hint = "only = and != compare texts; how far apart events are say DUR and GAP"
                self.problem(f"{expr.op} compares numbers, and date() is a text", one.span, hint)
                return None
            if isinstance(text, Constant) and isinstance(text.value, str) and math.isnan(xpath_number(text.value)):
                shown = f'"{text.value[:40]}"'
                if expr.op in ORDERS:
                    self.problem(f"{expr.op} compares numbers, and {shown} is none", one.span, "write a number")
                    return None
                if kind_of(other) == "number":
                    self.problem(f"a number is compared with {shown}, which is none", one.span, "write a number")
                    return None
        op = _OPPOSITE[expr.op] if negated else expr.op
        if isinstance(left, Constant) and isinstance(right, Constant):
            return ALWAYS if compare(op, left.value, right.value) else AnyOf(())
        return Comparison(op, left, right)

    def _test(self, call: EventCall, scope: Scope, negated: bool) -> Condition | None:
        args = [self.value(arg, scope) for arg in call.args]
        least, most = {"matches": (2, 3), "near": (3, 3)}.get(call.name, (2, 2))
        if not self.counted(call, least, most):
            return None
        if call.name == "near" and (found := list(check_threshold(call.args[2]))):  # type: ignore[arg-type]  # it looks for a number
            self.problems += found
            return None
        if call.name == "matches":
            found = list(check_pattern(*call.args[1:]))  # type: ignore[arg-type]  # it looks for strings
            self.problems += found
            if found:
                return None
        values = tuple(value for value in args if value is not None)
        if len(values) < len(args):
            return None
        texts = [text_of(value.value) for value in values if isinstance(value, Constant)]
        if len(texts) == len(values) and call.name != "matches":
            return ALWAYS if TESTS[call.name](*texts) is not negated else AnyOf(())
        return TextTest(call.name, values, negated)
