"""Builds operators of the event algebra in normal form, folds constants, and splits PATTERN conditions into conjuncts.

NOT is pushed down to the atoms. A chain of FILTER and SELECT is one Select over one Filter. Filters of the right
operand of NEXT and FOLD are part of the operator; of NEXT's, so is a SELECT that only renames. Upper bounds of DUR
become `within`, of the operator and of those inside it. Also here: reserved names, and the check for queries nested so
deeply that they would exhaust the stack."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from operator import add, mul, sub, truediv
from typing import Any, TypeVar, get_args

from common.bounds import LONGEST_WINDOW
from xscl.algebra import events as algebra
from xscl.algebra.events import ALWAYS, EventCondition, Schema, Stream, Value, leaves, map_leaves, value_kind
from xscl.algebra.values import MOST_TEXT, Span, derive, number_text, xpath_number
from xscl.syntax import Component, EventExpr, EventQuery, EventStream, Named, Sequenced
from xscl.text import Problem


def arithmetic(op: algebra.ArithmeticOp, left: Value, right: Value) -> Value:
    """Builds an operation, folded to its value if that is constant and not NULL."""
    if isinstance(left, algebra.Constant) and isinstance(right, algebra.Constant):
        one, two = _as_number(left.value), _as_number(right.value)
        try:
            result = _OPERATIONS[op](one, two)
        except (ZeroDivisionError, OverflowError, ValueError):
            result = math.nan
        if math.isfinite(result):
            return algebra.Constant(result)
    return algebra.Arithmetic(op, left, right)


# As XPath's mod, % has the sign of the first.
_OPERATIONS: Mapping[algebra.ArithmeticOp, Callable[[float, float], float]]
_OPERATIONS = {"+": add, "-": sub, "*": mul, "/": truediv, "%": math.fmod}


def function_of(name: str, args: tuple[Value, ...], kind: algebra.Kind) -> Value:
    """Builds a call of a function, folded to its value if that is constant and not NULL."""
    if name == "number" and value_kind(args[0]) == "number":
        return args[0]
    constants = [arg.value for arg in args if isinstance(arg, algebra.Constant)]
    if name == "coalesce" and isinstance(args[0], algebra.Constant):
        return args[0]
    if len(constants) < len(args):
        return algebra.Function(name, args, kind)
    if name == "concat":
        text = "".join(map(xpath_string, constants))
        return algebra.Constant(text) if len(text) <= MOST_TEXT else algebra.Function(name, args, kind)
    if name == "abs":
        number = abs(_as_number(constants[0]))
    elif kind == "number":
        number = xpath_number(derive(name, xpath_string(constants[0])))
    else:
        return algebra.Constant(derive(name, xpath_string(constants[0])))
    return algebra.Constant(number) if math.isfinite(number) else algebra.Function(name, args, kind)


def xpath_string(value: str | float) -> str:
    return value if isinstance(value, str) else number_text(value)


def _as_number(value: str | float) -> float:
    return xpath_number(value) if isinstance(value, str) else value


MAX_TREE_DEPTH = 100  # maximum nesting of operators, and of the operations of an expression

_PARTS_OF = {
    kind: [field.name for field in fields(kind) if field.name != "span"]
    for kind in (EventQuery, Sequenced, *get_args(Component), *get_args(EventStream), *get_args(EventExpr), Named)
}


def too_deep(query: EventQuery) -> Problem | None:
    """The problem of a tree that would exhaust the stack."""
    waiting: list[tuple[Any, int]] = [(query, 0)]
    while waiting:
        node, depth = waiting.pop()
        if node.__class__ is tuple:
            waiting += [(one, depth) for one in node]
        elif node.__class__ in _PARTS_OF:
            if depth > MAX_TREE_DEPTH:
                message = f"nested more than {MAX_TREE_DEPTH} levels deep"
                return Problem(message, node.span, "PUBLISH a part of it, and read that stream")
            waiting += [(getattr(node, name), depth + 1) for name in _PARTS_OF[node.__class__]]
    return None


T = TypeVar("T")


def parts_of_kind(node: Any, kind: type[T]) -> Iterator[T]:
    """The outermost parts of a tree that are instances of a class, in order."""
    if isinstance(node, kind):
        yield node
    elif isinstance(node, tuple):
        for one in node:
            yield from parts_of_kind(one, kind)
    elif is_dataclass(node) and not isinstance(node, Span | type):
        for field in fields(node):
            yield from parts_of_kind(getattr(node, field.name), kind)


MAX_CLAUSES = 64  # maximum number of clauses of a condition in disjunctive normal form

MAX_SIZE = 1_000  # maximum number of nodes of an expression that is substituted for an attribute

_Map = Callable[[Value], Value]

# ---------------------------------------------------------------- conditions


def all_of(*conditions: EventCondition) -> EventCondition:
    """Builds a flattened conjunction."""
    return _flat(algebra.AllOf, conditions, algebra.AnyOf(()))


def any_of(*conditions: EventCondition) -> EventCondition:
    """Builds a flattened disjunction."""
    return _flat(algebra.AnyOf, conditions, ALWAYS)


def _flat(
    kind: type[algebra.AllOf | algebra.AnyOf], conditions: Iterable[EventCondition], decisive: EventCondition
) -> EventCondition:
    args: dict[EventCondition, None] = {}
    for condition in conditions:
        args.update(dict.fromkeys(condition.args if isinstance(condition, kind) else (condition,)))
    if decisive in args:
        return decisive
    return next(iter(args)) if len(args) == 1 else kind(tuple(args))


def count_dnf_clauses(condition: EventCondition) -> int:
    """The number of clauses in disjunctive normal form, duplicates included."""
    match condition:
        case algebra.AllOf(args=args):
            return math.prod(map(count_dnf_clauses, args))
        case algebra.AnyOf(args=args):
            return sum(map(count_dnf_clauses, args))
    return 1


def _subexpressions(node: EventCondition | Value) -> Iterator[EventCondition | Value]:
    yield node
    for operand in algebra.operands(node):
        yield from _subexpressions(operand)


def _in_place(part: algebra.Part, values: Mapping[str, Value]) -> _Map:
    return lambda leaf: values[leaf.name] if isinstance(leaf, algebra.Attribute) and leaf.part == part else leaf


def _is_small(nodes: Iterable[EventCondition | Value]) -> bool:
    parts = (part for node in nodes for part in _subexpressions(node) if isinstance(part, Value))
    return all(number < MAX_SIZE for number, _ in enumerate(parts))


# ---------------------------------------------------------------- upper bounds of DUR


def _longest(op: str, seconds: float) -> int | None:
    """The maximum `t1 - t0` in microseconds for which `DUR op seconds` holds; None if it is not an upper bound."""
    if op not in ("<", "<=", "="):
        return None
    low, high = -1, LONGEST_WINDOW  # `low` holds or is -1, `high` does not or is the last
    while low < high:
        middle = (low + high + 1) // 2
        holds = middle / 1e6 < seconds if op == "<" else middle / 1e6 <= seconds
        low, high = (middle, high) if holds else (low, middle - 1)
    return None if low < 0 or low == LONGEST_WINDOW else low


_TURNED = {">": "<", ">=": "<=", "=": "="}


def without_bounds(condition: EventCondition) -> tuple[EventCondition, int | None]:
    """Splits a condition into the rest and its least upper bound of DUR, in microseconds; None if there is none."""
    kept: list[EventCondition] = []
    least: int | None = None
    for conjunct in condition.args if isinstance(condition, algebra.AllOf) else (condition,):
        bound = None
        match conjunct:
            case algebra.Comparison(op=op, left=algebra.Duration(), right=algebra.Constant(value=float(seconds))):
                bound = _longest(op, seconds)
            case algebra.Comparison(op=op, left=algebra.Constant(value=float(seconds)), right=algebra.Duration()):
                bound = _longest(_TURNED.get(op, ""), seconds)
        if bound is None or (isinstance(conjunct, algebra.Comparison) and conjunct.op == "="):
            kept.append(conjunct)
        least = shorter(least, bound)
    return all_of(*kept), least


def shorter(one: int | None, other: int | None) -> int | None:
    """The shorter of two windows; None is unbounded."""
    return min((window for window in (one, other) if window is not None), default=None)


def bounded(stream: Stream, within: int | None, *, all_inside: bool = False) -> Stream:
    """Restricts a stream to events whose interval is no longer than `within`, by bounding NEXT and FOLD. A result's
    interval contains those of its parts, so operators inside are bounded, too; inside an AGGREGATE for WITHIN
    (`all_inside`) only."""
    if within is None:
        return stream

    def inside(source: Stream) -> Stream:
        return bounded(source, within, all_inside=all_inside)

    match stream:
        case algebra.Select() | algebra.Filter():
            return replace(stream, source=inside(stream.source))
        case algebra.Union():
            return algebra.Union(inside(stream.left), inside(stream.right))
        case algebra.Latest() if not all_inside:  # a result that is too long may still be the latest, and hide others
            return replace(stream, right=inside(stream.right), within=shorter(stream.within, within))
        case algebra.Next() | algebra.Fold():
            least = shorter(stream.within, within)
            return replace(stream, left=inside(stream.left), right=inside(stream.right), within=least)
        case algebra.Aggregate() | algebra.Stories() if all_inside:
            return replace(stream, source=inside(stream.source))
    return stream


def is_windowed(stream: Stream) -> bool:
    """Whether every NEXT and FOLD of a stream has a window. State without one never expires."""
    is_endless = isinstance(stream, algebra.Next | algebra.Fold) and stream.within is None
    return not is_endless and all(map(is_windowed, algebra.sources_of(stream)))


def _has_intervals(stream: Stream) -> bool:
    if isinstance(stream, algebra.Select | algebra.Filter | algebra.Union):
        return all(map(_has_intervals, algebra.sources_of(stream)))
    return isinstance(stream, algebra.Next | algebra.Fold)


# ---------------------------------------------------------------- operators


def filter_of(source: Stream, condition: EventCondition) -> Stream:
    if _has_intervals(source):
        condition, within = without_bounds(condition)
        source = bounded(source, within)
    if condition == ALWAYS:
        return source
    match source:
        case algebra.Filter(source=inner, condition=first):
            both = all_of(first, condition)
            if count_dnf_clauses(both) <= MAX_CLAUSES:
                return algebra.Filter(inner, both)
        case algebra.Select(source=inner, items=items):
            moved = map_leaves(condition, _in_place("left", dict(items)))
            if _is_small([moved]):
                return replace(source, source=filter_of(inner, moved))
    return algebra.Filter(source, condition)


def select_of(source: Stream, items: tuple[tuple[str, Value], ...], schema: Schema) -> Stream:
    is_named = all(isinstance(value, algebra.Attribute) and value.name == name for name, value in items)
    if is_named and schema == source.schema:
        return source
    if isinstance(source, algebra.Select):
        values = _in_place("left", dict(source.items))
        joined = tuple((name, map_leaves(value, values)) for name, value in items)
        if _is_small(value for _, value in joined):
            return select_of(source.source, joined, schema)
    return algebra.Select(source, items, schema)


def reorder_attributes(source: Stream, schema: Schema) -> Stream:
    kinds = dict(schema)
    return select_of(source, tuple((name, algebra.Attribute("left", name, kinds[name])) for name in kinds), schema)


def unequal(one: Schema, other: Schema) -> str:
    """Describes the difference between two streams' attributes; "" if there is none."""
    first, second = dict(one), dict(other)
    for name in [*first, *second]:
        if name not in first or name not in second:
            return f"only one has {name}"
        if first[name] != second[name]:
            return f"{name} is a {first[name]} here and a {second[name]} there"
    return ""


def next_of(operator: algebra.Next) -> Stream:
    """The normal form of a NEXT, or LATEST BEFORE, whose condition keeps its bounds: they decide what is latest."""
    condition, within = without_bounds(operator.condition)
    if isinstance(operator, algebra.Latest):
        condition = operator.condition
    right, names = operator.right, operator.names
    inner = right
    while isinstance(inner, algebra.Select | algebra.Filter):
        inner = inner.source
    if isinstance(right, algebra.Select) and isinstance(inner, algebra.Events):  # its events stay distinct
        values = {name: value for name, value in right.items if isinstance(value, algebra.Attribute)}
        if len(values) == len(right.items):
            renamed = {name: algebra.Attribute("right", value.name, value.kind) for name, value in values.items()}
            condition = map_leaves(condition, _in_place("right", renamed))
            names = tuple((part, values[name].name if part == "right" else name) for part, name in names)
            right = right.source
    condition, right = _with_filter(condition, right)
    return bounded(replace(operator, right=right, condition=condition, within=within, names=names), within)


def fold_of(operator: algebra.Fold) -> Stream:
    """The normal form of a FOLD."""
    chooses, first = without_bounds(operator.chooses)
    continues, second = without_bounds(operator.continues)
    within = shorter(first, second)
    chooses, right = _with_filter(chooses, operator.right)
    return bounded(replace(operator, right=right, chooses=chooses, continues=continues, within=within), within)


def _with_filter(condition: EventCondition, right: Stream) -> tuple[EventCondition, Stream]:
    if not isinstance(right, algebra.Filter) or not isinstance(right.source, algebra.Events):
        return condition, right
    if any(isinstance(leaf, algebra.Duration) for leaf in leaves(right.condition)):
        return condition, right  # here DUR refers to the right event
    attributes = {name: algebra.Attribute("right", name, kind) for name, kind in right.schema}
    both = all_of(condition, map_leaves(right.condition, _in_place("left", attributes)))
    return (both, right.source) if count_dnf_clauses(both) <= MAX_CLAUSES else (condition, right)


_OF_BOTH = frozenset(
    ("select", "from", "publish", "as", "and", "or", "not", "is", "null", "within", "dur", "gap", "define", "pattern")
)
RESERVED = _OF_BOTH | {"filter", "next", "fold", "union", "aggregate", "by", "over"}
"""Keywords of event queries, in lower case. After a dot they are names of attributes."""

RESERVED_IN_PATTERNS = _OF_BOTH.union(
    ("seq", "set", "where", "having", "return", "errors", "budget", "all", "non", "overlapping", "earliest", "maximal")
)
"""Words that cannot name a stream or a variable in PATTERN, in lower case."""


Referents = Mapping[str, algebra.Referent]  # referents of the names in a condition or value

_PHASES: tuple[algebra.Phase, ...] = ("first", "each", "complete")


N = TypeVar("N", bound=EventCondition | Value)


def number_references(node: N, known: Referents) -> tuple[N, algebra.Names]:
    """Renames the references of a value or condition to `#0`, `#1`, ...; also returns the referents of these names."""
    names = mentioned(node, known)

    def leaf(value: Value) -> Value:
        return replace(value, name=names[known[value.name]]) if isinstance(value, algebra.Attribute) else value

    return map_leaves(node, leaf), tuple((name, referent) for referent, name in names.items())


def conjuncts_of(whole: EventCondition, known: Referents, negated: Sequence[int]) -> Iterator[algebra.WhereConjunct]:
    """The conjuncts of a condition, each of which mentions at most one of the `negated` variables."""
    for one in whole.args if isinstance(whole, algebra.AllOf) else (whole,):
        if one == ALWAYS:
            continue
        referents = mentioned(one, known)
        variable = next((referent.variable for referent in referents if referent.variable in negated), None)
        if variable is not None:
            yield _conjunct(one, known, variable, "complete")
            continue
        variable, phase = max(map(_unit, referents), default=(min(set(range(len(negated) + 1)) - {*negated}), 0))
        own = {_place(referent) for referent in referents if referent.variable == variable}
        if phase == 1 and "every" in own:
            yield _conjunct(one, _narrowed(known, variable, "first"), variable, "first")
            yield _conjunct(one, _narrowed(known, variable, "each"), variable, "each")
        else:
            yield _conjunct(one, known, variable, _PHASES[phase])


def clashing(referents: Iterable[algebra.Referent]) -> int | None:
    """Returns a variable for which a condition has both `p[]` and one of `p[i]`, `p[i-1]`, `p[..i-1]`; None without."""
    every = [one.variable for one in referents if _place(one) == "every"]
    others = {one.variable for one in referents if _place(one) in ("each", "previous", "earlier")}
    return next((variable for variable in every if variable in others), None)


def sort_conjuncts(conjuncts: Sequence[algebra.WhereConjunct]) -> tuple[algebra.WhereConjunct, ...]:
    """Sorts by time, stably."""
    return tuple(sorted(conjuncts, key=lambda one: (one.variable, _PHASES.index(one.phase))))


def _conjunct(one: EventCondition, known: Referents, variable: int, phase: algebra.Phase) -> algebra.WhereConjunct:
    return algebra.WhereConjunct(*number_references(one, known), variable, phase)


def _narrowed(known: Referents, variable: int, place: algebra.ItemPosition) -> Referents:
    every = {name: one for name, one in known.items() if isinstance(one, algebra.OfItem) and one.place == "every"}
    own = {name: replace(one, place=place) for name, one in every.items() if one.variable == variable}
    return {**known, **own}


def _place(referent: algebra.Referent) -> str:
    match referent:
        case algebra.OfItem(place=place):
            return place
        case algebra.OfItems(earlier=True):
            return "earlier"
    return "all"


def _unit(referent: algebra.Referent) -> tuple[int, int]:
    match referent:
        case algebra.OfItem(variable=variable, place="only" | "first"):
            return variable, 0
        case algebra.Length() | algebra.OfItem(place="last") | algebra.OfItems(earlier=False):
            return referent.variable, 2
    return referent.variable, 1


def mentioned(node: EventCondition | Value, known: Referents) -> dict[algebra.Referent, str]:
    """The referents of a condition or value in order of mention, with their names `#0`, `#1`, ..."""
    found: dict[algebra.Referent, str] = {}
    for part in leaves(node):
        if isinstance(part, algebra.Attribute):
            found.setdefault(known[part.name], f"#{len(found)}")
    return found
