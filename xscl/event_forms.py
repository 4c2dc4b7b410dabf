"""Makes operators of the algebra of events in their normal form.

- NOT is at the atoms, and constants are folded, by `xscl.event_values`.
- A chain of FILTER and SELECT is one Select over one Filter.
- Filters of the right operand of NEXT and FOLD are part of the operator; of NEXT's, so is a SELECT that only renames.
- Upper bounds of DUR are `within`, of the operator and of those inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from xscl.algebra.events import (
    ALWAYS,
    Aggregate,
    AllOf,
    AnyOf,
    Arithmetic,
    Attribute,
    Comparison,
    Condition,
    Constant,
    Duration,
    Events,
    Filter,
    Fold,
    Function,
    Gap,
    Next,
    NullTest,
    Parameter,
    Part,
    Schema,
    Select,
    Stream,
    TextTest,
    Union,
    Value,
)

MAX_CLAUSES = 64
"""How many clauses a condition may have in disjunctive normal form."""

MAX_SIZE = 1_000
"""How many nodes an expression may have that is put in the place of an attribute."""

_Map = Callable[[Value], Value]

# ---------------------------------------------------------------- conditions


def all_of(*conditions: Condition) -> Condition:
    """The conjunction, without conjunctions inside it."""
    args: dict[Condition, None] = {}
    for condition in conditions:
        args.update(dict.fromkeys(condition.args if isinstance(condition, AllOf) else (condition,)))
    if AnyOf(()) in args:
        return AnyOf(())
    return next(iter(args)) if len(args) == 1 else AllOf(tuple(args))


def any_of(*conditions: Condition) -> Condition:
    """The disjunction, without disjunctions inside it."""
    args: dict[Condition, None] = {}
    for condition in conditions:
        args.update(dict.fromkeys(condition.args if isinstance(condition, AnyOf) else (condition,)))
    if ALWAYS in args:
        return ALWAYS
    return next(iter(args)) if len(args) == 1 else AnyOf(tuple(args))


def clauses_of(condition: Condition) -> int:
    """How many clauses a condition has in disjunctive normal form, equal ones counted each."""
    match condition:
        case AllOf(args=args):
            count = 1
            for arg in args:
                count *= clauses_of(arg)
            return count
        case AnyOf(args=args):
            return sum(map(clauses_of, args))
    return 1


def values_of(condition: Condition) -> Iterator[Value]:
    """The values that a condition compares or tests."""
    match condition:
        case AllOf(args=args) | AnyOf(args=args):
            for arg in args:
                yield from values_of(arg)
        case Comparison(left=left, right=right):
            yield left
            yield right
        case TextTest(args=texts):
            yield from texts
        case NullTest(value=value):
            yield value


def parts_of(value: Value) -> Iterator[Value]:
    """The value, and all values inside it."""
    yield value
    match value:
        case Arithmetic(left=left, right=right):
            yield from parts_of(left)
            yield from parts_of(right)
        case Function(args=args):
            for arg in args:
                yield from parts_of(arg)


def mapped(value: Value, leaf: _Map) -> Value:
    """The value with other leaves."""
    match value:
        case Arithmetic(op=op, left=left, right=right):
            return Arithmetic(op, mapped(left, leaf), mapped(right, leaf))
        case Function(name=name, args=args, kind=kind):
            return Function(name, tuple(mapped(arg, leaf) for arg in args), kind)
        case Constant() | Parameter() | Attribute() | Duration() | Gap():
            return leaf(value)


def mapped_condition(condition: Condition, leaf: _Map) -> Condition:
    """The condition with other leaves in its values."""
    match condition:
        case AllOf(args=args):
            return AllOf(tuple(mapped_condition(arg, leaf) for arg in args))
        case AnyOf(args=args):
            return AnyOf(tuple(mapped_condition(arg, leaf) for arg in args))
        case Comparison(op=op, left=left, right=right):
            return Comparison(op, mapped(left, leaf), mapped(right, leaf))
        case TextTest(name=name, args=texts, negated=negated):
            return TextTest(name, tuple(mapped(text, leaf) for text in texts), negated)
        case NullTest(value=value, negated=negated):
            return NullTest(mapped(value, leaf), negated)


def _in_place(part: Part, values: Mapping[str, Value]) -> _Map:
    """Puts values in the place of the attributes of a part."""
    return lambda leaf: values[leaf.name] if isinstance(leaf, Attribute) and leaf.part == part else leaf


def _is_small(values: Iterator[Value]) -> bool:
    return all(number < MAX_SIZE for number, _ in enumerate(inner for value in values for inner in parts_of(value)))


# ---------------------------------------------------------------- upper bounds of DUR


def _longest(op: str, seconds: float) -> int | None:
    """The greatest `t1 - t0` in microseconds for which `DUR op seconds` holds; None if it is no upper bound."""
    if op not in ("<", "<=", "="):
        return None
    low, high = -1, 2**63 - 1  # `low` holds or is -1, `high` does not or is the last
    while low < high:
        middle = (low + high + 1) // 2
        holds = middle / 1e6 < seconds if op == "<" else middle / 1e6 <= seconds
        low, high = (middle, high) if holds else (low, middle - 1)
    return None if low < 0 or low == 2**63 - 1 else low


_TURNED = {">": "<", ">=": "<=", "=": "="}


def without_bounds(condition: Condition) -> tuple[Condition, int | None]:
    """The condition without its upper bounds of DUR, and the least of them in microseconds, None if there is none."""
    kept: list[Condition] = []
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
    """The events whose interval is no longer than `within`, as far as NEXT and FOLD make them.

    Intervals of results hold those of what they are made of, so the bound is one of the operators inside, too; but not
    of those inside an AGGREGATE, unless for WITHIN, which means `all_inside`.
    """
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


def is_bounded(stream: Stream) -> bool:
    """Whether every NEXT and FOLD of a stream has a window. State without one is kept for ever."""
    match stream:
        case Select() | Filter() | Aggregate():
            return is_bounded(stream.source)
        case Union():
            return is_bounded(stream.left) and is_bounded(stream.right)
        case Next() | Fold():
            return stream.within is not None and is_bounded(stream.left) and is_bounded(stream.right)
    return True


def _has_intervals(stream: Stream) -> bool:
    """Whether `bounded` bounds all events of a stream."""
    match stream:
        case Select() | Filter():
            return _has_intervals(stream.source)
        case Union():
            return _has_intervals(stream.left) and _has_intervals(stream.right)
    return isinstance(stream, Next | Fold)


# ---------------------------------------------------------------- operators


def filter_of(source: Stream, condition: Condition) -> Stream:
    """FILTER."""
    if _has_intervals(source):
        condition, within = without_bounds(condition)
        source = bounded(source, within)
    if condition == ALWAYS:
        return source
    match source:
        case Filter(source=inner, condition=first):
            both = all_of(first, condition)
            if clauses_of(both) <= MAX_CLAUSES:
                return Filter(inner, both)
        case Select(source=inner, items=items):
            moved = mapped_condition(condition, _in_place("left", dict(items)))
            if _is_small(values_of(moved)):
                return replace(source, source=filter_of(inner, moved))
    return Filter(source, condition)


def select_of(source: Stream, items: tuple[tuple[str, Value], ...], schema: Schema) -> Stream:
    """SELECT."""
    if schema == source.schema and all(isinstance(value, Attribute) and value.name == name for name, value in items):
        return source
    if isinstance(source, Select):
        values = _in_place("left", dict(source.items))
        joined = tuple((name, mapped(value, values)) for name, value in items)
        if _is_small(value for _, value in joined):
            return select_of(source.source, joined, schema)
    return Select(source, items, schema)


def in_order(source: Stream, schema: Schema) -> Stream:
    """A stream with its attributes in another order."""
    kinds = dict(schema)
    return select_of(source, tuple((name, Attribute("left", name, kinds[name])) for name in kinds), schema)


def unequal(one: Schema, other: Schema) -> str:
    """How the attributes of two streams differ, in words; nothing if they do not."""
    first, second = dict(one), dict(other)
    for name in [*first, *second]:
        if name not in first or name not in second:
            return f"only one has {name}"
        if first[name] != second[name]:
            return f"{name} is a {first[name]} here and a {second[name]} there"
    return ""


def next_of(
    left: Stream, right: Stream, condition: Condition, names: tuple[tuple[Part, str], ...], schema: Schema
) -> Stream:
    """NEXT."""
    condition, within = without_bounds(condition)
    if isinstance(right, Select) and _reads_a_name(right):
        values = {name: value for name, value in right.items if isinstance(value, Attribute)}
        if len(values) == len(right.items):
            renamed = {name: Attribute("right", value.name, value.kind) for name, value in values.items()}
            condition = mapped_condition(condition, _in_place("right", renamed))
            names = tuple((part, values[name].name if part == "right" else name) for part, name in names)
            right = right.source
    condition, right = _with_filter(condition, right)
    return bounded(Next(left, right, condition, within, names, schema), within)


def fold_of(
    left: Stream,
    right: Stream,
    chooses: Condition,
    continues: Condition,
    sets: tuple[tuple[str, Value], ...],
    names: tuple[tuple[Part, str], ...],
    schema: Schema,
) -> Stream:
    """FOLD."""
    chooses, first = without_bounds(chooses)
    continues, second = without_bounds(continues)
    within = shorter(first, second)
    chooses, right = _with_filter(chooses, right)
    return bounded(Fold(left, right, chooses, continues, sets, within, names, schema), within)


def _reads_a_name(stream: Stream) -> bool:
    """Whether a stream is a chain of unary operators over the events of a name. Each has a part of its own, so a SELECT
    makes no two of them equal."""
    while isinstance(stream, Select | Filter):
        stream = stream.source
    return isinstance(stream, Events)


def _with_filter(condition: Condition, right: Stream) -> tuple[Condition, Stream]:
    """A condition on the right events with a filter of theirs, and the right operand without it."""
    if not isinstance(right, Filter) or not isinstance(right.source, Events):
        return condition, right
    if any(isinstance(inner, Duration) for value in values_of(right.condition) for inner in parts_of(value)):
        return condition, right  # DUR is that of the right event there
    moved = mapped_condition(
        right.condition,
        lambda leaf: Attribute("right", leaf.name, leaf.kind) if isinstance(leaf, Attribute) else leaf,
    )
    both = all_of(condition, moved)
    return (both, right.source) if clauses_of(both) <= MAX_CLAUSES else (condition, right)
