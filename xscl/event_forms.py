"""Builds operators of the event algebra in normal form, folds constants, and splits PATTERN conditions into conjuncts.

NOT is at the atoms. A chain of FILTER and SELECT is one Select over one Filter. Filters of the right operand of NEXT
and FOLD are part of the operator; of NEXT's, so is a SELECT that only renames. Upper bounds of DUR become `within`, of
the operator and of those inside it. Also here: reserved names, and queries nested so deep that they would exhaust the
stack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, get_args

from common.bounds import LONGEST_WINDOW
from xscl.algebra.events import (
    ALWAYS,
    Aggregate,
    AllOf,
    AnyOf,
    Arithmetic,
    ArithmeticOp,
    Attribute,
    Comparison,
    Constant,
    Duration,
    EventCondition,
    Events,
    Filter,
    Fold,
    Function,
    ItemPosition,
    Kind,
    Length,
    Names,
    Next,
    OfItem,
    OfItems,
    Part,
    Phase,
    Referent,
    Schema,
    Select,
    Stream,
    Union,
    Value,
    WhereConjunct,
    leaves,
    map_leaves,
    operands,
    sources_of,
    value_kind,
)
from xscl.algebra.values import MOST_TEXT, Span, String, derive, number_text, xpath_number
from xscl.problems import Problem
from xscl.syntax import Component, EventExpr, EventQuery, EventStream, Named, Sequenced


def arithmetic(op: ArithmeticOp, left: Value, right: Value) -> Value:
    """An operation, folded to its value if that is constant and not NULL."""
    if isinstance(left, Constant) and isinstance(right, Constant):
        one, two = _as_number(left.value), _as_number(right.value)
        try:
            result = _OPERATIONS[op](one, two)
        except (ZeroDivisionError, OverflowError, ValueError):
            result = math.nan
        if math.isfinite(result):
            return Constant(result)
    return Arithmetic(op, left, right)


_OPERATIONS: dict[ArithmeticOp, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "%": math.fmod,  # with the sign of the first, as XPath's mod
}


def function_of(name: str, args: tuple[Value, ...], kind: Kind) -> Value:
    """A function of values, folded to its value if that is constant and not NULL."""
    if name == "number" and value_kind(args[0]) == "number":
        return args[0]
    constants = [arg.value for arg in args if isinstance(arg, Constant)]
    if name == "coalesce" and isinstance(args[0], Constant):
        return args[0]
    if len(constants) < len(args):
        return Function(name, args, kind)
    if name == "concat":
        text = "".join(map(xpath_string, constants))
        return Constant(text) if len(text) <= MOST_TEXT else Function(name, args, kind)
    if name == "abs":
        number = abs(_as_number(constants[0]))
    elif kind == "number":
        number = xpath_number(derive(name, xpath_string(constants[0])))
    else:
        return Constant(derive(name, xpath_string(constants[0])))
    return Constant(number) if math.isfinite(number) else Function(name, args, kind)


def xpath_string(value: str | float) -> str:
    return value if isinstance(value, str) else number_text(value)


def _as_number(value: str | float) -> float:
    return xpath_number(value) if isinstance(value, str) else value


MAX_TREE_DEPTH = 100
"""Maximum nesting of operators, and of the operations of an expression."""

_WITH_PARTS = frozenset(
    {"stream", "select", "source", "left", "right", "condition", "chooses", "continues", "sets", "items", "expr"}
    | {"arg", "args", "value", "where", "having", "components", "component", "words", "part"}
)
_CHILD_FIELDS = {
    kind: tuple(field.name for field in fields(kind) if field.name in _WITH_PARTS)
    for kind in (EventQuery, Sequenced, *get_args(Component), *get_args(EventStream), *get_args(EventExpr), Named)
    if kind is not String
}


def too_deep(query: EventQuery) -> Problem | None:
    """The problem of a tree that would exhaust the stack."""
    waiting: list[tuple[Any, int]] = [(query, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_TREE_DEPTH:
            message = f"nested more than {MAX_TREE_DEPTH} levels deep"
            return Problem(message, node.span, "PUBLISH a part of it, and read that stream")
        if node.__class__ is tuple:  # a word of alternatives
            waiting += [(one, depth) for one in node]
        for name in _CHILD_FIELDS.get(node.__class__, ()):
            child = getattr(node, name)
            if child.__class__ is tuple:
                waiting += [(one, depth + 1) for one in child]
            elif child is not None:
                waiting.append((child, depth + 1))
    return None


T = TypeVar("T")


def parts_of_kind(node: Any, kind: type[T]) -> Iterator[T]:
    """The outermost parts of a tree that are of a class, in order."""
    if isinstance(node, kind):
        yield node
    elif isinstance(node, tuple):
        for one in node:
            yield from parts_of_kind(one, kind)
    elif is_dataclass(node) and not isinstance(node, Span | type):
        for field in fields(node):
            yield from parts_of_kind(getattr(node, field.name), kind)


MAX_CLAUSES = 64
"""Maximum number of clauses of a condition in disjunctive normal form."""

MAX_SIZE = 1_000
"""Maximum number of nodes of an expression that is substituted for an attribute."""

_Map = Callable[[Value], Value]

# ---------------------------------------------------------------- conditions


def all_of(*conditions: EventCondition) -> EventCondition:
    """The flattened conjunction."""
    return _flat(AllOf, conditions, AnyOf(()))


def any_of(*conditions: EventCondition) -> EventCondition:
    """The flattened disjunction."""
    return _flat(AnyOf, conditions, ALWAYS)


def _flat(kind: type[AllOf | AnyOf], conditions: Iterable[EventCondition], decisive: EventCondition) -> EventCondition:
    args: dict[EventCondition, None] = {}
    for condition in conditions:
        args.update(dict.fromkeys(condition.args if isinstance(condition, kind) else (condition,)))
    if decisive in args:
        return decisive
    return next(iter(args)) if len(args) == 1 else kind(tuple(args))


def count_dnf_clauses(condition: EventCondition) -> int:
    """The number of clauses in disjunctive normal form, duplicates included."""
    match condition:
        case AllOf(args=args):
            count = 1
            for arg in args:
                count *= count_dnf_clauses(arg)
            return count
        case AnyOf(args=args):
            return sum(map(count_dnf_clauses, args))
    return 1


def _subexpressions(node: EventCondition | Value) -> Iterator[EventCondition | Value]:
    yield node
    for operand in operands(node):
        yield from _subexpressions(operand)


def _in_place(part: Part, values: Mapping[str, Value]) -> _Map:
    return lambda leaf: values[leaf.name] if isinstance(leaf, Attribute) and leaf.part == part else leaf


def _is_small(nodes: Iterable[EventCondition | Value]) -> bool:
    parts = (part for node in nodes for part in _subexpressions(node) if isinstance(part, Value))
    return all(number < MAX_SIZE for number, _ in enumerate(parts))


# ---------------------------------------------------------------- upper bounds of DUR


def _longest(op: str, seconds: float) -> int | None:
    """The maximum `t1 - t0` in microseconds for which `DUR op seconds` holds; None if it is no upper bound."""
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
    """The condition without its upper bounds of DUR, and the least of them in microseconds, None if there is none."""
    kept: list[EventCondition] = []
    least: int | None = None
    for conjunct in condition.args if isinstance(condition, AllOf) else (condition,):
        bound = None
        match conjunct:
            case Comparison(op=op, left=Duration(), right=Constant(value=float(seconds))):
                bound = _longest(op, seconds)
            case Comparison(op=op, left=Constant(value=float(seconds)), right=Duration()):
                bound = _longest(_TURNED.get(op, ""), seconds)
        if bound is None or (isinstance(conjunct, Comparison) and conjunct.op == "="):
            kept.append(conjunct)
        least = shorter(least, bound)
    return all_of(*kept), least


def shorter(one: int | None, other: int | None) -> int | None:
    """The shorter of two windows. None is without end."""
    return min((window for window in (one, other) if window is not None), default=None)


def bounded(stream: Stream, within: int | None, *, all_inside: bool = False) -> Stream:
    """The events whose interval is no longer than `within`, by bounding NEXT and FOLD. A result's interval contains
    those of its parts, so the operators inside are bounded, too; but not those inside an AGGREGATE, except for WITHIN,
    which means `all_inside`."""
    if within is None:
        return stream

    def inside(source: Stream) -> Stream:
        return bounded(source, within, all_inside=all_inside)

    match stream:
        case Select() | Filter():
            return replace(stream, source=inside(stream.source))
        case Union():
            return Union(inside(stream.left), inside(stream.right))
        case Next() | Fold():
            least = shorter(stream.within, within)
            return replace(stream, left=inside(stream.left), right=inside(stream.right), within=least)
        case Aggregate() if all_inside:
            return replace(stream, source=inside(stream.source))
    return stream


def is_windowed(stream: Stream) -> bool:
    """Whether every NEXT and FOLD of a stream has a window. State without one never expires."""
    is_endless = isinstance(stream, Next | Fold) and stream.within is None
    return not is_endless and all(map(is_windowed, sources_of(stream)))


def _has_intervals(stream: Stream) -> bool:
    if isinstance(stream, Select | Filter | Union):
        return all(map(_has_intervals, sources_of(stream)))
    return isinstance(stream, Next | Fold)


# ---------------------------------------------------------------- operators


def filter_of(source: Stream, condition: EventCondition) -> Stream:
    if _has_intervals(source):
        condition, within = without_bounds(condition)
        source = bounded(source, within)
    if condition == ALWAYS:
        return source
    match source:
        case Filter(source=inner, condition=first):
            both = all_of(first, condition)
            if count_dnf_clauses(both) <= MAX_CLAUSES:
                return Filter(inner, both)
        case Select(source=inner, items=items):
            moved = map_leaves(condition, _in_place("left", dict(items)))
            if _is_small([moved]):
                return replace(source, source=filter_of(inner, moved))
    return Filter(source, condition)


def select_of(source: Stream, items: tuple[tuple[str, Value], ...], schema: Schema) -> Stream:
    if schema == source.schema and all(isinstance(value, Attribute) and value.name == name for name, value in items):
        return source
    if isinstance(source, Select):
        values = _in_place("left", dict(source.items))
        joined = tuple((name, map_leaves(value, values)) for name, value in items)
        if _is_small(value for _, value in joined):
            return select_of(source.source, joined, schema)
    return Select(source, items, schema)


def reorder_attributes(source: Stream, schema: Schema) -> Stream:
    kinds = dict(schema)
    return select_of(source, tuple((name, Attribute("left", name, kinds[name])) for name in kinds), schema)


def unequal(one: Schema, other: Schema) -> str:
    """The difference between two streams' attributes, in words; "" if there is none."""
    first, second = dict(one), dict(other)
    for name in [*first, *second]:
        if name not in first or name not in second:
            return f"only one has {name}"
        if first[name] != second[name]:
            return f"{name} is a {first[name]} here and a {second[name]} there"
    return ""


def next_of(
    left: Stream, right: Stream, condition: EventCondition, names: tuple[tuple[Part, str], ...], schema: Schema
) -> Stream:
    condition, within = without_bounds(condition)
    if isinstance(right, Select) and _reads_a_name(right):
        values = {name: value for name, value in right.items if isinstance(value, Attribute)}
        if len(values) == len(right.items):
            renamed = {name: Attribute("right", value.name, value.kind) for name, value in values.items()}
            condition = map_leaves(condition, _in_place("right", renamed))
            names = tuple((part, values[name].name if part == "right" else name) for part, name in names)
            right = right.source
    condition, right = _with_filter(condition, right)
    return bounded(Next(left, right, condition, within, names, schema), within)


def fold_of(
    left: Stream,
    right: Stream,
    chooses: EventCondition,
    continues: EventCondition,
    sets: tuple[tuple[str, Value], ...],
    names: tuple[tuple[Part, str], ...],
    schema: Schema,
) -> Stream:
    chooses, first = without_bounds(chooses)
    continues, second = without_bounds(continues)
    within = shorter(first, second)
    chooses, right = _with_filter(chooses, right)
    return bounded(Fold(left, right, chooses, continues, sets, within, names, schema), within)


def _reads_a_name(stream: Stream) -> bool:
    """Whether a stream is a chain of unary operators over a named stream, whose events stay distinct."""
    while isinstance(stream, Select | Filter):
        stream = stream.source
    return isinstance(stream, Events)


def _with_filter(condition: EventCondition, right: Stream) -> tuple[EventCondition, Stream]:
    if not isinstance(right, Filter) or not isinstance(right.source, Events):
        return condition, right
    if any(isinstance(leaf, Duration) for leaf in leaves(right.condition)):
        return condition, right  # DUR is that of the right event there
    moved = map_leaves(
        right.condition, lambda leaf: Attribute("right", leaf.name, leaf.kind) if isinstance(leaf, Attribute) else leaf
    )
    both = all_of(condition, moved)
    return (both, right.source) if count_dnf_clauses(both) <= MAX_CLAUSES else (condition, right)


_OF_BOTH = frozenset(
    {
        *("select", "from", "publish", "as", "and", "or", "not", "is", "null", "within", "dur", "gap", "define"),
        "pattern",
    }
)
RESERVED = _OF_BOTH | {"filter", "next", "fold", "union", "aggregate", "by", "over"}
"""Keywords of event queries, in lower case. After a dot they are attributes."""

RESERVED_IN_PATTERNS = _OF_BOTH | {
    *("seq", "set", "where", "having", "return", "errors", "budget", "all", "non", "overlapping", "earliest"),
    "maximal",
}
"""Words that cannot name a stream or a variable in PATTERN, in lower case."""


_PHASES: tuple[Phase, ...] = ("first", "each", "complete")


N = TypeVar("N", bound=EventCondition | Value)


def number_references(node: N, known: Mapping[str, Referent]) -> tuple[N, Names]:
    """A value or a condition with its references renamed to `#0`, `#1`, ..., and the referents of these names."""
    names = _numbered(node, known)

    def leaf(value: Value) -> Value:
        return replace(value, name=names[known[value.name]]) if isinstance(value, Attribute) else value

    return map_leaves(node, leaf), tuple((name, referent) for referent, name in names.items())


def mentioned(condition: EventCondition, known: Mapping[str, Referent]) -> list[Referent]:
    return list(_numbered(condition, known))


def conjuncts_of(
    condition: EventCondition, known: Mapping[str, Referent], negated: Sequence[int]
) -> Iterator[WhereConjunct]:
    """The conjuncts of a condition, each of which mentions at most one of the `negated` variables."""
    for one in condition.args if isinstance(condition, AllOf) else (condition,):
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


def clashing(referents: Sequence[Referent]) -> int | None:
    """A variable of which a condition mentions every event, and the one before another; None if there is none."""
    for one in referents:
        if _is_every(one, one.variable):
            for other in referents:
                if other.variable == one.variable and _place(other) in ("each", "previous", "earlier"):
                    return one.variable
    return None


def sort_conjuncts(conjuncts: Sequence[WhereConjunct]) -> tuple[WhereConjunct, ...]:
    """Sorts by time, stably."""
    return tuple(sorted(conjuncts, key=lambda one: (one.variable, _PHASES.index(one.phase))))


def _conjunct(condition: EventCondition, known: Mapping[str, Referent], variable: int, phase: Phase) -> WhereConjunct:
    return WhereConjunct(*number_references(condition, known), variable, phase)


def _narrowed(known: Mapping[str, Referent], variable: int, place: ItemPosition) -> dict[str, Referent]:
    return {
        name: OfItem(variable, place, found.name) if isinstance(found, OfItem) and _is_every(found, variable) else found
        for name, found in known.items()
    }


def _place(referent: Referent) -> str:
    match referent:
        case OfItem(place=place):
            return place
        case OfItems(earlier=True):
            return "earlier"
    return "all"


def _is_every(referent: Referent, variable: int) -> bool:
    return isinstance(referent, OfItem) and referent.variable == variable and referent.place == "every"


def _unit(referent: Referent) -> tuple[int, int]:
    match referent:
        case OfItem(variable=variable, place="only" | "first"):
            return variable, 0
        case Length() | OfItem(place="last") | OfItems(earlier=False):
            return referent.variable, 2
    return referent.variable, 1


def _numbered(node: EventCondition | Value, known: Mapping[str, Referent]) -> dict[Referent, str]:
    found: dict[Referent, str] = {}
    for part in leaves(node):
        if isinstance(part, Attribute):
            found.setdefault(known[part.name], f"#{len(found)}")
    return found
