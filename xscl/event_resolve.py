"""Resolves event statements: turns syntax trees into operators of the event algebra with schemas, or into problems.

Expressions: whose attribute a name is, the kinds of values, and constants. NOT is pushed to the atoms: `NOT (a < b AND
c = d)` is `a >= b OR c != d`, and each atom is false if a value in it is NULL, so this changes the meaning. In PATTERN
statements, with or without ERRORS, each reference to a variable's event gets a name, and conditions refer to attributes
with these names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, Literal

from xscl.algebra.events import (
    ALWAYS,
    ERRORS,
    Aggregate,
    Aggregated,
    AggregateName,
    AnyOf,
    Attribute,
    Comparison,
    Constant,
    Duration,
    EventCondition,
    Events,
    Function,
    Gap,
    ItemPosition,
    Kind,
    Length,
    Letter,
    Letters,
    Names,
    NearPattern,
    NullTest,
    OfItem,
    OfItems,
    OneOf,
    Part,
    Pattern,
    Referent,
    Repeated,
    Returned,
    Schema,
    Strategy,
    Stream,
    TextTest,
    Union,
    Value,
    Variable,
    WhereConjunct,
    Word,
    letters_of,
    shortest,
    spelled_out,
)
from xscl.algebra.values import (
    DERIVED,
    NUMBERS,
    ORDERS,
    TESTS,
    WITH_LITERAL,
    CompareOp,
    Number,
    Span,
    String,
    compare,
    with_literal,
    xpath_number,
)
from xscl.check_expressions import check_literal, check_pattern, check_threshold
from xscl.event_forms import (
    MAX_CLAUSES,
    all_of,
    any_of,
    arithmetic,
    bounded,
    clashing,
    conjuncts_of,
    count_dnf_clauses,
    expression_kind,
    filter_of,
    fold_of,
    function_of,
    mentioned,
    next_of,
    number_references,
    renamed_condition,
    reorder_attributes,
    select_of,
    sort_conjuncts,
    subexpressions,
    unequal,
    xpath_string,
)
from xscl.problems import LACKS_EVENTS, Problem
from xscl.syntax import (
    AllAttributes,
    Alternatives,
    AnyOrder,
    ArithmeticExpr,
    Both,
    Component,
    Either,
    EquivalenceTest,
    Errors,
    EventCall,
    EventCompare,
    EventExpr,
    EventQuery,
    EventStream,
    Filtered,
    Grouped,
    Inner,
    IsNull,
    ItemReference,
    Iteration,
    LetterOf,
    Minus,
    Named,
    Negated,
    NextStream,
    NoEvent,
    Null,
    OneEvent,
    Percentage,
    Reference,
    Repetition,
    Sequenced,
    StrategyName,
    StreamName,
    TimeMeasure,
    UnionStream,
    Window,
)

EventClause = Literal["SELECT", "FILTER", "AGGREGATE", "NEXT", "FOLD", "WHERE", "HAVING", "RETURN"]

AGGREGATES = {"count": (0, 1), "sum": (1, 1), "avg": (1, 1), "min": (1, 1), "max": (1, 1), "argmax": (2, 2)}
"""Aggregates with their minimum and maximum number of arguments."""

MOST_ARGUMENTS = 100
MOST_DIGITS = 300
FUNCTIONS = {
    **dict.fromkeys(DERIVED, (1, 1)),
    **dict.fromkeys(WITH_LITERAL, (2, 2)),
    "coalesce": (2, MOST_ARGUMENTS),
    "concat": (2, MOST_ARGUMENTS),
    "abs": (1, 1),
}
ALL_FUNCTIONS = (*TESTS, *FUNCTIONS, *AGGREGATES)
"""The functions of event statements."""

_NUMBERS = NUMBERS | {"abs"}
_OPPOSITE: dict[CompareOp, CompareOp] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_SIDE_PARTS: dict[str, Part] = {"$1": "left", "$2": "right", "$": "latest"}


@dataclass(frozen=True, slots=True)
class Scope:
    """The context of an expression: the operator, and the attributes of its sources. `changes` are the names that FOLD
    updates. In AGGREGATE, `left` has the attributes of BY, and `grouped` resolves an aggregate."""

    operator: EventClause
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
        """None after a problem, like all methods that resolve a part."""
        match expr:
            case Reference():
                return self.reference(expr, scope)
            case ItemReference():
                return self.item(expr, scope)
            case EquivalenceTest():
                self.alike(expr)
            case String(value=text):
                return Constant(text)
            case Number(text=text) | Percentage(text=text):
                return self._number(text, expr)
            case Window(us=us):
                if us is not None:
                    return Constant(us / 1e6)
                self.problem("INF is no number", expr.span, "leave the condition out")
            case TimeMeasure(name=name) if scope.operator in ("WHERE", "HAVING", "RETURN"):
                hint = "WITHIN bounds how long a match takes; a reader of what is PUBLISHed has DUR"
                self.problem(f"{name} does not belong in a pattern", expr.span, hint)
            case TimeMeasure(name="DUR"):
                return Duration()
            case TimeMeasure():
                if scope.operator in ("NEXT", "FOLD"):
                    return Gap()
                hint = "write it in the braces of NEXT or FOLD; DUR is how long an event takes"
                self.problem("GAP belongs in NEXT or FOLD", expr.span, hint)
            case Minus(arg=arg):
                value = self.value(arg, scope)
                return None if value is None else arithmetic("-", Constant(0.0), value)
            case ArithmeticExpr(op=op, left=left, right=right):
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
        name = found.name
        sides = f"write $1.{name} for the left event, $2.{name} for the right one, $.{name} for FOLD's last"
        hint = sides if scope.operator in ("NEXT", "FOLD") else f"write {name} alone: {scope.operator} reads one source"
        self.problem(f"{found.variable}.{name} is no reference", found.span, hint)
        return None

    def alike(self, found: EquivalenceTest) -> None:
        start = found.span.start
        self.problem("there are no brackets here", Span(start, start + 1), "write $1.x = $2.x")

    def reference(self, found: Reference, scope: Scope) -> Value | None:
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
            part = _SIDE_PARTS[found.side]
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
        schema = dict(scope.right if part == "right" else scope.left)
        if found.name in schema:
            return Attribute(part, found.name, schema[found.name])
        self.unknown(found.name, schema, found.span, scope)
        return None

    def unknown(self, name: str, names: Iterable[str], span: Span, scope: Scope) -> None:
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
        kinds = {expression_kind(value) for value in values}
        if name == "coalesce" and len(kinds) > 1:
            hint = 'make them one kind: number(...) is a number, concat(..., "") a text'
            self.problem("coalesce() of texts and numbers", call.span, hint)
            return None
        kind = "number" if name in _NUMBERS else next(iter(kinds)) if name == "coalesce" else "string"
        return function_of(name, tuple(values), kind)

    def counted(self, call: EventCall, least: int, most: int) -> bool:
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
        close = get_close_matches(name.lower(), ALL_FUNCTIONS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the functions are {', '.join(ALL_FUNCTIONS)}"
        self.problem(f"there is no function {name}()", span, hint)

    # ------------------------------------------------------------ conditions

    def condition(self, expr: EventExpr, scope: Scope, *, negated: bool = False) -> EventCondition | None:
        """A condition or, `negated`, its negation. None after a problem."""
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

    def comparison(self, expr: EventCompare, scope: Scope, negated: bool) -> EventCondition | None:
        """A comparison or, `negated`, its opposite. None after a problem."""
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
                if expression_kind(other) == "number":
                    self.problem(f"a number is compared with {shown}, which is none", one.span, "write a number")
                    return None
        op = _OPPOSITE[expr.op] if negated else expr.op
        if isinstance(left, Constant) and isinstance(right, Constant):
            return ALWAYS if compare(op, left.value, right.value) else AnyOf(())
        return Comparison(op, left, right)

    def _test(self, call: EventCall, scope: Scope, negated: bool) -> EventCondition | None:
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
        texts = [xpath_string(value.value) for value in values if isinstance(value, Constant)]
        if len(texts) == len(values) and call.name != "matches":
            return ALWAYS if TESTS[call.name](*texts) is not negated else AnyOf(())
        return TextTest(call.name, values, negated)


MAX_ATTRIBUTES = 100
"""Maximum number of attributes of an event."""

MAX_INPUTS = 50
"""Maximum number of streams of a query."""

Schemas = Mapping[str, Schema | None]
"""Schemas of event streams; None for a statement with mistakes of its own."""


class Resolver(Expressions):
    def __init__(self, schemas: Schemas, documents: Ordered[str]) -> None:
        super().__init__()
        self._schemas, self._documents = schemas, documents
        self.inputs = 0

    def query(
        self, select: tuple[Named | AllAttributes, ...] | None, source: EventStream, within: Window | None
    ) -> Stream | None:
        stream = self.stream(source)
        if stream is None:
            return None
        if within is not None:
            stream = bounded(stream, within.us, all_inside=True)
        return stream if select is None else self._select(select, stream)

    # ------------------------------------------------------------ streams

    def stream(self, node: EventStream) -> Stream | None:
        match node:
            case StreamName():
                return self.named(node)
            case Inner():
                return self.query(node.select, node.stream, node.within)
            case Filtered():
                return self.filter(node)
            case Grouped():
                return self._aggregate(node)
        left, right = self.stream(node.left), self.stream(node.right)
        if left is None or right is None:
            return None
        match node:
            case NextStream():
                return self._next(node, left, right)
            case Iteration():
                return self._fold(node, left, right)
            case UnionStream():
                return self._union(node, left, right)

    def named(self, node: StreamName) -> Events | None:
        self.inputs += 1
        name = node.name
        if name in self._schemas:
            schema = self._schemas[name]
            return None if schema is None else Events(name, schema)
        close = get_close_matches(name, self._schemas, n=1)
        if name in self._documents:
            message = f"{name} is a stream of documents, not of events"
            hint = f"write DEFINE EVENT and a name, FROM {name}/match->m (x := m/x)"
        else:
            message = f"{LACKS_EVENTS}{name}"
            example = f"define them: DEFINE EVENT {name} FROM S//item->i (title := i/title)"
            hint = f"did you mean {close[0]}?" if close else example
        self.problem(message, node.span, hint)
        return None

    def filter(self, node: Filtered) -> Stream | None:
        source = self.stream(node.source)
        if source is None:
            return None
        condition = self.tested(node.condition, Scope("FILTER", source.schema))
        return None if condition is None else filter_of(source, condition)

    def _next(self, node: NextStream, left: Stream, right: Stream) -> Stream | None:
        condition = self.tested(node.condition, Scope("NEXT", left.schema, right.schema))
        clash = {name for name, _ in left.schema} & {name for name, _ in right.schema}
        names: list[tuple[Part, str]] = [("left", name) for name, _ in left.schema]
        names += [("right", name) for name, _ in right.schema]
        schema = tuple((f"{name}_1" if clash else name, kind) for name, kind in left.schema) + right.schema
        if not self.is_schema(schema, "NEXT", node.span) or condition is None:
            return None
        return next_of(left, right, condition, tuple(names), schema)

    def _fold(self, node: Iteration, left: Stream, right: Stream) -> Stream | None:
        first, latest = dict(left.schema), dict(right.schema)
        missing = [name for name in latest if name not in first]
        if missing:
            hint = f"SELECT them on the right, or give the left side {missing[0]}, too"
            self.problem(f"FOLD's left side has no {', '.join(missing[:5])}, which its right side has", node.span, hint)
        for name in latest:
            if name in first and first[name] != latest[name]:
                message = f"{name} is a {first[name]} on the left side of FOLD, and a {latest[name]} on its right"
                self.problem(message, node.span, 'make them one kind in a SELECT: number(...), or concat(..., "")')
        changes = frozenset(latest) | {item.name for item in node.sets}
        scope = Scope("FOLD", left.schema, right.schema, changes)
        chooses, continues = self.tested(node.chooses, scope), self.tested(node.continues, scope)
        sets = self._sets(node, scope, first)
        names: list[tuple[Part, str]] = [("left", name) for name in first]
        names += [("latest", name) for name in first if name in changes]
        schema = tuple((f"{name}_1" if name in changes else name, kind) for name, kind in left.schema)
        schema += tuple((name, kind) for name, kind in left.schema if name in changes)
        if missing or not self.is_schema(schema, "FOLD", node.span) or chooses is None or continues is None:
            return None
        return fold_of(left, right, chooses, continues, sets, tuple(names), schema)

    def _sets(self, node: Iteration, scope: Scope, first: Mapping[str, str]) -> tuple[tuple[str, Value], ...]:
        found: dict[str, Value] = {}
        for item in node.sets:
            if not self.has_new_name(item, found):
                continue
            value = self.value(item.expr, scope) if item.name in first else None
            if item.name not in first:
                hint = f"give it a first value on the left: (SELECT *, 0 AS {item.name} FROM ...) FOLD"
                self.problem(f"FOLD's left side has no {item.name}", item.span, hint)
            elif value is not None and expression_kind(value) != first[item.name]:
                message = (
                    f"{item.name} is a {first[item.name]} on the left, and FOLD gives it a {expression_kind(value)}"
                )
                self.problem(message, item.span, "make them one kind")
            if value is not None:
                found[item.name] = value
        return tuple(found.items())

    def _union(self, node: UnionStream, left: Stream, right: Stream) -> Stream | None:
        if problem := unequal(left.schema, right.schema):
            self.problem(f"UNION of unequal attributes: {problem}", node.span, "SELECT the same ones on both sides")
            return None
        return Union(left, reorder_attributes(right, left.schema))

    def _aggregate(self, node: Grouped) -> Stream | None:
        source = self.stream(node.source)
        if source is None:
            return None
        inside, kinds = Scope("AGGREGATE", source.schema), dict(source.schema)
        by: dict[str, None] = {}
        for reference in node.by:
            if self.value(reference, inside) is None:
                continue
            if reference.name in by:
                self.problem(f"{reference.name} is twice in BY", reference.span, "remove one of them")
            by[reference.name] = None
        over = None if node.over is None else node.over.us
        if node.over is not None and not over:
            told = "has no end" if over is None else "has the length 0"
            self.problem(f"the window of OVER {told}", node.over.span, "write one such as 30 d")
        groups = tuple((name, kinds[name]) for name in by)
        found: dict[Aggregated, tuple[str, Value]] = {}

        def grouped(call: EventCall) -> Value | None:
            args = [self.value(arg, inside) for arg in call.args]
            if not self.counted(call, *AGGREGATES[call.name]) or None in args:
                return None
            values = tuple(value for value in args if value is not None)
            name: AggregateName = call.name  # type: ignore[assignment]  # AGGREGATES has no others
            aggregated = Aggregated(name, values)
            kind = expression_kind(values[0]) if name == "argmax" else "number"
            # No attribute has a name with a sign in it.
            return found.setdefault(aggregated, (f"#{len(found)}", Attribute("left", f"#{len(found)}", kind)))[1]

        scope = Scope("AGGREGATE", groups, grouped=grouped, source=source.schema)
        items: dict[str, Value] = {name: Attribute("left", name, kind) for name, kind in groups}
        for item in node.items:
            value = self.value(item.expr, scope)
            if self.has_new_name(item, items) and value is not None:
                items[item.name] = value
        schema = tuple((name, expression_kind(value)) for name, value in items.items())
        if not self.is_schema(schema, "AGGREGATE", node.span) or self.problems:
            return None
        return _grouped(source, groups, found, items, over, schema)

    # ------------------------------------------------------------ SELECT

    def _select(self, select: tuple[Named | AllAttributes, ...], source: Stream) -> Stream | None:
        scope, before = Scope("SELECT", source.schema), len(self.problems)
        items: dict[str, Value] = {}
        for item in select:
            if isinstance(item, AllAttributes):
                for name, kind in source.schema:
                    if name in items:
                        self.problem(f"* has {name}, too", item.span, "give the other one another name with AS")
                    items[name] = Attribute("left", name, kind)
                continue
            value = self.value(item.expr, scope)
            if self.has_new_name(item, items) and value is not None:
                items[item.name] = value
        schema = tuple((name, expression_kind(value)) for name, value in items.items())
        if not self.is_schema(schema, "SELECT", select[0].span) or len(self.problems) > before:
            return None
        return select_of(source, tuple(items.items()), schema)

    def has_new_name(self, item: Named, taken: Mapping[str, object]) -> bool:
        """Whether an item's name is unique; else adds a problem."""
        if not item.name:
            self.problem("this value needs a name", item.span, "write AS and a name behind it")
        elif item.name in taken:
            span = Span(item.span.end - len(item.name), item.span.end)
            self.problem(f"two attributes are named {item.name}", span, "give one another name with AS")
        else:
            return True
        return False

    # ------------------------------------------------------------ conditions and schemas

    def tested(self, expr: EventExpr | None, scope: Scope) -> EventCondition | None:
        """A condition that is not too large; a missing one holds."""
        if expr is None:
            return ALWAYS
        condition = self.condition(expr, scope)
        if condition is not None and count_dnf_clauses(condition) > MAX_CLAUSES:
            message = f"this condition has more than {MAX_CLAUSES} clauses in disjunctive normal form"
            self.problem(message, expr.span, "write it as a UNION of FILTERs, or with fewer ORs")
            return None
        return condition

    def is_schema(self, schema: Schema, operator: str, span: Span) -> bool:
        """Whether an operator can give events these attributes."""
        names = [name for name, _ in schema]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            hint = f"rename one of them before, as in (SELECT {twice} AS a FROM ...)"
            self.problem(f"{operator} gives two attributes the name {twice}", span, hint)
        elif len(names) > MAX_ATTRIBUTES:
            self.problem(f"more than {MAX_ATTRIBUTES} attributes", span, "SELECT those that are needed")
        return twice is None and len(names) <= MAX_ATTRIBUTES


def _grouped(
    source: Stream,
    groups: Schema,
    found: Mapping[Aggregated, tuple[str, Value]],
    items: Mapping[str, Value],
    over: int | None,
    schema: Schema,
) -> Stream:
    """AGGREGATE, with a SELECT above it if there is more than plain aggregates."""
    alone = {value: name for name, value in items.items() if name not in dict(groups)}
    if list(alone) == [value for _, value in found.values()]:  # each item is an aggregate, and each another one
        names = {name: alone[value] for name, value in found.values()}
    else:
        names = {name: name for name, _ in found.values()}
    own = tuple((names[name], aggregated) for aggregated, (name, _) in found.items())
    below = groups + tuple((names[name], expression_kind(value)) for name, value in found.values())
    aggregate = Aggregate(source, own, tuple(name for name, _ in groups), over, below)
    return aggregate if below == schema else select_of(aggregate, tuple(items.items()), schema)


_PLACES: dict[str, ItemPosition] = {"1": "first", "i": "each", "i-1": "previous", "LEN": "last", "[]": "every"}


@dataclass(frozen=True, slots=True)
class Declared:
    number: int
    schema: Schema
    many: bool = False
    negated: bool = False


class PatternValues(Resolver):
    """Resolves values and conditions over `variables`, naming their references."""

    def __init__(self, schemas: Schemas, documents: Sequence[str]) -> None:
        super().__init__(schemas, documents)
        self.variables: dict[str, Declared] = {}
        self.named_as: dict[str, Referent] = {}
        self._names: dict[Referent, str] = {}

    def scope(self, operator: EventClause) -> Scope:
        return Scope(operator, (), grouped=lambda call: self._of_items(call, operator))

    def attribute_of(self, referent: Referent, kind: Kind) -> Value:
        name = self._names.setdefault(referent, f"@{len(self._names)}")
        self.named_as[name] = referent
        return Attribute("left", name, kind)

    # ------------------------------------------------------------ references

    def item(self, found: ItemReference, scope: Scope) -> Value | None:
        name = found.variable
        if scope.operator == "AGGREGATE":  # the arguments of an aggregate, all of one variable
            return self.attribute(found, "left", scope)
        variable = self.variable(name, found.span)
        if variable is None:
            return None
        if variable.negated and scope.operator != "WHERE":
            self.problem(f"{name} is negated", found.span, f"a match has no {name}; {scope.operator} tells of one")
        elif not variable.many and found.place:
            hint = f"write {name}.{found.name or 'x'}; several are {name}[], of a component A+ {name}[]"
            self.problem(f"{name} is one event", found.span, hint)
        elif not variable.many:
            return self._of_item(found, variable, "only")
        elif not found.place and found.name.upper() == "LEN":
            return self.attribute_of(Length(variable.number), "number")
        elif not found.place:
            ways = f"{name}[1].{found.name}, {name}[{name}.LEN].{found.name}, or {name}[].{found.name} for each"
            self.problem(f"{name} has several events", found.span, f"write {ways}")
        elif found.place == "..i-1" or not found.name:
            text = f"{name}[{'..i-1' if found.place == '..i-1' else ''}]"
            hint = f"write count({text}), or max({text}.{found.name or 'x'})"
            self.problem(f"{text} stands in an aggregate", found.span, hint)
        elif found.place in ("i", "i-1") and scope.operator != "WHERE":
            hint = f"write {name}[1], {name}[{name}.LEN] or {name}[]"
            self.problem(f"{name}[{found.place}] belongs in WHERE", found.span, hint)
        else:
            return self._of_item(found, variable, _PLACES[found.place])
        return None

    def _of_item(self, found: ItemReference, variable: Declared, place: ItemPosition) -> Value | None:
        kinds = dict(variable.schema)
        if found.name in kinds:
            return self.attribute_of(OfItem(variable.number, place, found.name), kinds[found.name])
        self.unknown(found.name, kinds, found.span, Scope("WHERE", variable.schema))
        return None

    def variable(self, name: str, span: Span) -> Declared | None:
        if name in self.variables:
            return self.variables[name]
        close = get_close_matches(name, self.variables, n=1)
        known = ", ".join(self.variables)
        hint = f"did you mean {close[0]}?" if close else f"the variables are {known}" if known else "remove it"
        self.problem(f"there is no variable {name}", span, hint)
        return None

    def reference(self, found: Reference, scope: Scope) -> Value | None:
        if found.side:
            self.problem(f"{found.side} belongs in NEXT or FOLD", found.span, f"write a variable: a.{found.name}")
            return None
        having = [name for name, one in self.variables.items() if found.name in dict(one.schema) and not one.negated]
        if found.name in self.variables:
            one = self.variables[found.name]
            example = f"{found.name}[1].x" if one.many else f"{found.name}.x"
            self.problem(f"{found.name} is a variable", found.span, f"write {example} for its attribute x")
        else:
            name = having[0] if having else next(iter(self.variables), "a")
            place = "[1]" if having and self.variables[name].many else ""
            self.problem(f"{found.name} is of no variable", found.span, f"write {name}{place}.{found.name}")
        return None

    def alike(self, found: EquivalenceTest) -> None:
        hint = "write it beside the other conditions of WHERE, with AND"
        self.problem("[...] is a condition on all events", found.span, hint)

    # ------------------------------------------------------------ aggregates

    def _of_items(self, call: EventCall, operator: EventClause) -> Value | None:
        items = list(_items(call.args))
        if not items:
            hint = f"write {call.name}(v[]{'' if call.name == 'count' else '.x'}) with a variable v[]"
            self.problem(f"{call.name}() is of the events of a variable", call.span, hint)
            return None
        first = items[0]
        variable = self.variable(first.variable, first.span)
        if variable is None:
            return None
        for one in items:
            is_other = (one.variable, one.place) != (first.variable, first.place)
            if is_other and one.place in ("[]", "..i-1"):
                self.problem("an aggregate of two variables", one.span, f"write {first.variable} in both places")
                return None
            if one.place not in ("[]", "..i-1"):
                hint = f"write {one.variable}[].{one.name}"
                self.problem("an aggregate is of v[] or of v[..i-1]", one.span, hint)
                return None
        if not variable.many:
            self.problem(f"{first.variable} is one event", first.span, f"write {first.variable}.{first.name or 'x'}")
            return None
        if first.place == "..i-1" and operator != "WHERE":
            self.problem(f"{first.variable}[..i-1] belongs in WHERE", first.span, f"write {first.variable}[]")
            return None
        return self._aggregated(call, variable, earlier=first.place == "..i-1")

    def _aggregated(self, call: EventCall, variable: Declared, *, earlier: bool) -> Value | None:
        args: list[Value] = []
        if not (call.name == "count" and len(call.args) == 1 and _is_bare(call.args[0])):
            for one in _items(call.args):
                if not one.name:
                    self.problem(f"{call.name}() is of an attribute", one.span, f"write {one.variable}[].x")
                    return None
            if not self.counted(call, *AGGREGATES[call.name]):
                return None
            scope = Scope("AGGREGATE", variable.schema)
            found = [self.value(arg, scope) for arg in call.args]
            args = [value for value in found if value is not None]
            if len(args) < len(found):
                return None
        name: AggregateName = call.name  # type: ignore[assignment]  # AGGREGATES has no others
        kind = expression_kind(args[0]) if name == "argmax" else "number"
        return self.attribute_of(OfItems(variable.number, Aggregated(name, tuple(args)), earlier), kind)


def _is_bare(expr: EventExpr) -> bool:
    return isinstance(expr, ItemReference) and not expr.name


def _items(node: Any) -> Iterator[ItemReference]:
    if isinstance(node, ItemReference):
        yield node
    elif isinstance(node, tuple):
        for one in node:
            yield from _items(one)
    elif is_dataclass(node) and not isinstance(node, Span | type):
        for field in fields(node):
            yield from _items(getattr(node, field.name))


MAX_LETTERS = 32
"""Maximum number of letters of a pattern, those of `A{n,}` counted n times."""


class NearResolver(PatternValues):
    def near(self, query: EventQuery, body: Sequenced, errors: Errors) -> NearPattern | None:
        letters = self._word(body.components)
        keys = self._keys(body, letters)
        if body.strategy is not None:
            self.problem("a strategy with ERRORS", body.strategy.span, "leave it out: events may lie in between")
        if body.having is not None:
            self.problem("HAVING with ERRORS", body.having.span, "FILTER what the pattern PUBLISHes")
        if body.mode.maximal:
            self.problem("EARLIEST MAXIMAL with ERRORS", body.mode.span, "leave it out, or write NON OVERLAPPING")
        within = self.window(query, body)
        returned = None if query.select is None else self._items(query.select)
        schema = tuple((name, expression_kind(value)) for name, value in (returned or {}).items())
        if ERRORS not in (returned or {}):
            schema = (*schema, (ERRORS, "number"))
        if letters is not None:
            least = shortest(letters)
            if errors.most >= least:
                known = f"the shortest match without errors has {least} event{'s' if least != 1 else ''}"
                hint = f"write ERRORS <= {least - 1}, or less" if least else "write a letter that is always there"
                self.problem(f"{errors.most} errors are too many: {known}", errors.span, hint)
        if letters is None or self.problems:
            return None
        items = None if returned is None else tuple(returned.items())
        return NearPattern(letters, errors.most, errors.budget, keys, within, body.mode.apart, items, schema)

    def window(self, query: EventQuery, body: Sequenced) -> int | None:
        if query.within is None:
            hint = "write WITHIN and a window behind the conditions, such as WITHIN 7 d"
            self.problem("a pattern needs a window", body.span, hint)
            return None
        return query.within.us

    def is_key(self, name: Reference, streams: Mapping[str, Schema]) -> bool:
        """Whether all events have an attribute, of one kind."""
        kinds: dict[str, str] = {}
        for stream, schema in streams.items():
            kind = dict(schema).get(name.name)
            if kind is None:
                self.unknown(name.name, dict(schema), name.span, Scope("WHERE", schema))
                message = f"{stream} has no attribute {name.name}, which all components need in [...]"
                self.problems[-1].message = message
                return False
            kinds.setdefault(kind, stream)
        if len(kinds) > 1:
            message = f"{name.name} is a string of {kinds['string']}, and a number of {kinds['number']}"
            self.problem(message, name.span, "make them one kind where the events are defined: number(...)")
            return False
        return True

    # ------------------------------------------------------------ letters

    def _word(self, components: tuple[Component, ...]) -> Letters | None:
        parts = [self._letters(component) for component in components]
        known = tuple(part for part in parts if part is not None)
        if len(known) < len(parts):
            return None
        word = known[0] if len(known) == 1 else Word(known)
        if spelled_out(word) > MAX_LETTERS:
            self.problem(f"more than {MAX_LETTERS} letters", components[0].span, "PUBLISH a part, and read that stream")
            return None
        return word

    def _letters(self, node: Component) -> Letters | None:
        match node:
            case LetterOf(stream=stream, needed=needed):
                source = self.named(stream)
                return None if source is None else Letter(source, needed)
            case Alternatives(words=words):
                found = [self._word(word) for word in words]
                known = tuple(word for word in found if word is not None)
                if len(known) < len(found):
                    return None
                return known[0] if len(known) == 1 else OneOf(known)
            case Repetition(part=part, least=least):
                if least > MAX_LETTERS:
                    self.problem(f"more than {MAX_LETTERS} letters", node.span, "repeat it less often")
                    return None
                inner = self._letters(part)
                return None if inner is None else Repeated(inner, least)
        hint = "write streams alone: a pattern with ERRORS has no variables, no ~ and no SET"
        self.problem("this is no letter", node.span, hint)
        return None

    def _keys(self, body: Sequenced, letters: Letters | None) -> tuple[str, ...]:
        where = body.where
        keys: dict[str, None] = {}
        for expr in where.args if isinstance(where, Both) else () if where is None else (where,):
            if not isinstance(expr, EquivalenceTest):
                hint = "FILTER the streams, and read what that PUBLISHes; only [attribute] can stand here"
                self.problem("a condition with ERRORS", expr.span, hint)
            elif letters is not None:
                streams = {letter.source.stream: letter.source.schema for letter in letters_of(letters)}
                keys.update(dict.fromkeys(name.name for name in expr.names if self.is_key(name, streams)))
        return tuple(keys)

    def _items(self, select: tuple[Named | AllAttributes, ...]) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for item in select:
            if isinstance(item, AllAttributes):
                self.problem("there is no * in RETURN", item.span, "leave RETURN out, or write errors")
                continue
            value = self.value(item.expr, Scope("RETURN", ((ERRORS, "number"),)))
            if value is not None and self.has_new_name(item, found):
                found[item.name] = value
        return found

    def reference(self, found: Reference, scope: Scope) -> Value | None:
        if (ERRORS, "number") not in scope.left:
            return super().reference(found, scope)
        if not found.side and found.name == ERRORS:
            return Attribute("left", ERRORS, "number")
        hint = "a pattern with ERRORS returns errors, and constants; its output document has all events"
        self.problem(f"there is no {found.name} here", found.span, hint)
        return None


MAX_COMPONENTS = 32
"""Maximum number of components of a pattern."""

STRATEGIES: dict[str, Strategy] = {
    "strict_contiguity": "strict",
    "partition_contiguity": "partition",
    "skip_till_next_match": "next",
    "skip_till_any_match": "any",
}


class PatternResolver(NearResolver):
    def pattern(self, query: EventQuery, body: Sequenced) -> Pattern | NearPattern | None:
        if body.errors is not None:
            return self.near(query, body, body.errors)
        variables = self._variables(body)
        if variables is None:
            return None
        keys, conjuncts, kills = self._where(body, variables)
        strategy = self._strategy(body, variables, keys)
        having, having_names = self._having(body.having)
        returned = None if query.select is None else self._returned(query.select)
        within = self.window(query, body)
        schema = tuple((item.name, expression_kind(item.value)) for item in returned or () if item.each is None)
        if query.select is not None and not self.is_schema(schema, "RETURN", query.select[0].span):
            return None
        found = Pattern(
            variables, strategy, keys, conjuncts, kills, having, having_names, within, body.mode.maximal,
            body.mode.apart, None if returned is None else tuple(returned), schema,
        )  # fmt: skip
        if within is None and query.within is not None and found.is_late:
            late = "~ at the end" if variables[-1].negated else "EARLIEST MAXIMAL, with several events at the end,"
            hint = "write a window such as 14 d"
            self.problem(f"{late} is known when the window is over, and INF never is", query.within.span, hint)
        return None if self.problems else found

    # ------------------------------------------------------------ components

    def _variables(self, body: Sequenced) -> tuple[Variable, ...] | None:
        found: list[Variable] = []
        group = 0
        for component in body.components:
            match component:
                case NoEvent(component=inner, span=span):
                    if found and found[-1].negated:
                        hint = "write one of them, or a component between the two"
                        self.problem("two negated components are neighbours", span, hint)
                    if isinstance(inner, OneEvent) and inner.many:
                        hint = f"write ~({inner.stream.name} {inner.variable}): one event is enough to be there"
                        self.problem("a negated component is of one event", inner.span, hint)
                    else:
                        self._add(inner, group, found, negated=True)
                    continue
                case AnyOrder(components=members):
                    for member in members:
                        self._add(member, group, found)
                case _:
                    self._add(component, group, found)
            group += 1
        if group == 0 and found:
            hint = "write a component without ~ beside it"
            self.problem("all components are negated", body.span, hint)
        if len(found) > MAX_COMPONENTS:
            self.problem(f"more than {MAX_COMPONENTS} components", body.span, "PUBLISH a part, and read that stream")
        return None if self.problems else tuple(found)

    def _add(self, node: Component, group: int, found: list[Variable], *, negated: bool = False) -> None:
        if not isinstance(node, OneEvent):
            if isinstance(node, NoEvent | AnyOrder):
                inside = "~(...)" if negated else "SET"
                hint = f"{inside} takes streams with their variables, such as Post p"
                self.problem(f"this cannot be in {inside}", node.span, hint)
            else:
                hint = "write a stream and a variable, such as Post p; a pattern with ERRORS has letters"
                self.problem("a component without a variable", node.span, hint)
            return
        source = self.named(node.stream)
        if node.variable in self.variables:
            self.problem(f"two variables are named {node.variable}", node.span, "give one another name")
            return
        schema = () if source is None else source.schema
        self.variables[node.variable] = Declared(len(self.variables), schema, node.many, negated)
        if source is not None:
            found.append(Variable(node.variable, source, group, node.many, negated))

    # ------------------------------------------------------------ WHERE

    def _where(
        self, body: Sequenced, variables: tuple[Variable, ...]
    ) -> tuple[tuple[str, ...], tuple[WhereConjunct, ...], tuple[WhereConjunct, ...]]:
        keys: dict[str, None] = {}
        found: list[EventCondition] = []
        where = body.where
        for expr in where.args if isinstance(where, Both) else () if where is None else (where,):
            if isinstance(expr, EquivalenceTest):
                for name in expr.names:
                    if self.is_key(name, {one.source.stream: one.source.schema for one in variables}):
                        keys[name.name] = None
                continue
            condition = self.condition(expr, self.scope("WHERE"))
            if condition is not None and self._is_testable(condition, expr, variables):
                found.append(condition)
        whole = all_of(*found)
        if where is not None and count_dnf_clauses(whole) > MAX_CLAUSES:
            message = f"this condition has more than {MAX_CLAUSES} clauses in disjunctive normal form"
            self.problem(message, where.span, "write it with fewer ORs")
            whole = ALWAYS
        negated = [number for number, one in enumerate(variables) if one.negated]
        conjuncts = list(conjuncts_of(whole, self.named_as, negated))
        tests = [one for one in conjuncts if one.variable not in negated]
        kills = [one for one in conjuncts if one.variable in negated]
        return tuple(keys), sort_conjuncts(tests), sort_conjuncts(kills)

    def _is_testable(self, condition: EventCondition, expr: EventExpr, variables: tuple[Variable, ...]) -> bool:
        """Whether a condition mentions at most one negated variable, and no `v[]` beside `v[i]`."""
        referents = mentioned(condition, self.named_as)
        negated = {one.variable for one in referents if variables[one.variable].negated}
        if len(negated) > 1:
            names = " and ".join(variables[number].name for number in sorted(negated))
            self.problem(f"a condition on {names}, both negated", expr.span, "write a condition on each of them")
            return False
        clash = clashing(referents)
        if clash is not None:
            name = variables[clash].name
            hint = f"write {name}[i] for each but the first, beside the one before; {name}[] is each by itself"
            self.problem(f"{name}[] beside {name}[i] or {name}[i-1]", expr.span, hint)
            return False
        return True

    # ------------------------------------------------------------ strategies

    def _strategy(self, body: Sequenced, variables: tuple[Variable, ...], keys: tuple[str, ...]) -> Strategy:
        has_sets = any(isinstance(component, AnyOrder) for component in body.components)
        free = "SET" if has_sets else "EARLIEST MAXIMAL" if body.mode.maximal else ""
        if body.strategy is None:
            many = next((one for one in variables if one.kleene), None)
            if many is not None and not free:
                hint = "write WHERE and " + ", ".join(STRATEGIES) + " in front of the braces"
                self.problem(f"{many.name}[] needs a strategy", body.span, hint)
            return "any"
        node = body.strategy
        strategy = STRATEGIES.get(node.name.lower())
        if strategy is None:
            close = get_close_matches(node.name.lower(), STRATEGIES, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the strategies are {', '.join(STRATEGIES)}"
            self.problem(
                f"there is no strategy {node.name}", Span(node.span.start, node.span.start + len(node.name)), hint
            )
            return "any"
        self._check_listed(node)
        if free and strategy != "any":
            self.problem(f"{node.name} with {free}", node.span, "write skip_till_any_match, or leave it out")
        elif strategy == "partition" and not keys:
            hint = "write the attribute that says what belongs together, as in [product]"
            self.problem(f"{node.name} needs [attribute] in its braces", node.span, hint)
        return strategy

    def _check_listed(self, node: StrategyName) -> None:
        for listed in node.variables:
            variable = self.variable(listed.name, listed.span)
            if variable is None:
                continue
            if variable.negated:
                self.problem(f"{listed.name} is negated", listed.span, "leave it out here")
            elif variable.many != listed.many:
                right = f"{listed.name}[]" if variable.many else listed.name
                what = "has several events" if variable.many else "is one event"
                self.problem(f"{listed.name} {what}", listed.span, f"write {right}")
        names = {listed.name for listed in node.variables}
        missing = [name for name, one in self.variables.items() if not one.negated and name not in names]
        if names and missing:
            hint = "name all of them, or none: write the strategy alone"
            self.problem(f"a strategy holds for all variables, and {missing[0]} is missing", node.span, hint)

    # ------------------------------------------------------------ HAVING, RETURN

    def _having(self, expr: EventExpr | None) -> tuple[EventCondition, Names]:
        condition = self.tested(expr, self.scope("HAVING"))
        return (ALWAYS, ()) if condition is None else renamed_condition(condition, self.named_as)

    def _returned(self, select: tuple[Named | AllAttributes, ...]) -> list[Returned]:
        found: dict[str, Returned] = {}
        for item in select:
            if isinstance(item, AllAttributes):
                self.problem("there is no * in RETURN", item.span, "leave RETURN out, or write what to tell: a.x AS x")
                continue
            value = self.value(item.expr, self.scope("RETURN"))
            if value is not None and self.has_new_name(item, found):
                each = self._each(value, item.span)
                found[item.name] = Returned(item.name, *number_references(value, self.named_as), each)
        return list(found.values())

    def _each(self, value: Value, span: Span) -> int | None:
        referents = [self.named_as[part.name] for part in subexpressions(value) if isinstance(part, Attribute)]
        every = {one.variable for one in referents if isinstance(one, OfItem) and one.place == "every"}
        if len(every) > 1:
            self.problem("an item of two variables' events", span, "write an item for each of them")
        return min(every, default=None)
