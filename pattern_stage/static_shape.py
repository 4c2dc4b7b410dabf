"""What the static index makes of a clause: keys to hash, limits to compare, and the rest, with the constants apart.

Clauses that differ in constants and parameters alone have one shape. A row of a shape has what they differ in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar, cast

import numpy as np

from pattern_stage.clauses import Conjunction, children, mentions_parameters
from pattern_stage.columns import Column, Columns, Floats, Ints, Mask
from pattern_stage.formula import shape
from pattern_stage.predicates import compile_value, kind_of, single_events
from pattern_stage.values import Texts
from xscl.algebra.events import (
    Arithmetic,
    Atom,
    Attribute,
    Comparison,
    Duration,
    Function,
    NullTest,
    Parameter,
    TextTest,
    Value,
)

Node = TypeVar("Node", bound=Atom | Value)

_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}


@dataclass(frozen=True, slots=True)
class Limit:
    """A value of an event is at least, or, if not `least`, at most, a constant; more or less if `strict`."""

    operand: Value
    least: bool
    strict: bool


@dataclass(frozen=True, slots=True)
class ClauseForm:
    """The atoms of a clause. Of `keys` and `limits` a row has the constants `key_sources` and `limit_sources`.

    `common` atoms depend on the event alone. `varying` ones also on the row, whose parameters are `sources`.
    """

    keys: tuple[Value, ...]
    key_sources: tuple[Value, ...]
    limits: tuple[Limit, ...]
    limit_sources: tuple[Value, ...]
    common: tuple[Atom, ...]
    varying: tuple[Atom, ...]
    sources: tuple[Parameter, ...]


@lru_cache(maxsize=4096)
def form_of(clause: Conjunction) -> ClauseForm:
    """Returns a clause's atoms by what tests them. Whose attributes they mention is all the same: they are `left`."""
    keys: list[tuple[Value, Value]] = []
    limits: list[tuple[Limit, Value]] = []
    common: list[Atom] = []
    varying: list[Atom] = []
    for atom in sorted(map(_of_left, clause), key=shape):
        turned = _turned(atom)
        if turned is None:
            (varying if mentions_parameters(atom) else common).append(atom)
        elif turned.op == "=":
            keys.append((turned.left, turned.right))
        else:
            limit = Limit(_number(turned.left), least=turned.op in (">", ">="), strict=turned.op in ("<", ">"))
            limits.append((limit, _number(turned.right)))
    keys.sort(key=lambda pair: shape(pair[0]))
    order: dict[Parameter, Parameter] = {}
    varying = [_renumbered(atom, order) for atom in varying]
    return ClauseForm(
        tuple(key for key, _ in keys),
        tuple(source for _, source in keys),
        tuple(limit for limit, _ in limits),
        tuple(source for _, source in limits),
        tuple(common),
        tuple(varying),
        tuple(order),
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one shape.

    Row i is of target number `entries[i]`. It holds for events with its keys, whose value in column `columns[j][i]` of
    the values to compare is at least `bounds[j][i]`, for each j, and for which the varying atoms hold with its
    `parameters`.
    """

    entries: Ints
    keys: tuple[Ints, ...]
    columns: tuple[Ints, ...]
    bounds: tuple[Floats, ...]
    parameters: tuple[Column, ...]

    def __len__(self) -> int:
        return len(self.entries)

    def take(self, places: Ints | Mask) -> Rows:
        """Returns the rows at these places."""
        return self._each(lambda column: column[places])

    def _each(self, change: Callable[[Column], Column]) -> Rows:
        return Rows(
            cast(Ints, change(self.entries)),
            cast("tuple[Ints, ...]", tuple(map(change, self.keys))),
            cast("tuple[Ints, ...]", tuple(map(change, self.columns))),
            cast("tuple[Floats, ...]", tuple(map(change, self.bounds))),
            tuple(map(change, self.parameters)),
        )


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """Returns rows of one shape, one after the other."""
    if len(parts) == 1:
        return parts[0]

    def column(name: str) -> tuple[Column, ...]:
        return tuple(np.concatenate(columns) for columns in zip(*(getattr(part, name) for part in parts), strict=True))

    return Rows(
        np.concatenate([part.entries for part in parts]),
        cast("tuple[Ints, ...]", column("keys")),
        cast("tuple[Ints, ...]", column("columns")),
        cast("tuple[Floats, ...]", column("bounds")),
        column("parameters"),
    )


def rows_of(
    form: ClauseForm, entries: Ints, limit_places: Sequence[int], given: tuple[Column, ...], texts: Texts
) -> Rows:
    """Returns the rows of a clause for vectors of parameters, without those that hold for no event, because a constant
    is NULL. `limit_places` has the column of each limit, whose values are negated for `at most`."""
    at = np.arange(len(entries))
    nothing = single_events(Columns(at, at, (), at.reshape(-1, 1)), at, at, given)

    def column(source: Value) -> Column:
        if isinstance(source, Parameter):
            return given[source.index]
        return compile_value(source, (), None, texts)(nothing)

    known = np.ones(len(entries), np.bool_)
    keys = []
    for key, source in zip(form.keys, form.key_sources, strict=True):
        values = column(source)
        known &= values >= 0 if kind_of(key) == "string" else np.isfinite(values)
        keys.append(as_key(values))
    bounds = []
    for limit, source in zip(form.limits, form.limit_sources, strict=True):
        bound = cast(Floats, column(source) if limit.least else -column(source))
        known &= np.isfinite(bound)
        bounds.append(np.nextafter(bound, np.inf) if limit.strict else bound)
    columns = tuple(np.full(len(entries), place, np.int64) for place in limit_places)
    rows = Rows(entries, tuple(keys), columns, tuple(bounds), tuple(given[source.index] for source in form.sources))
    return rows if known.all() else rows.take(known)


def as_key(values: Column) -> Ints:
    """Returns values as numbers to hash: codes as they are, numbers by their bits. Both zeros have the same."""
    return values if values.dtype == np.int64 else (values + 0.0).view(np.int64)  # type: ignore[return-value]  # codes


def _turned(atom: Atom) -> Comparison | None:
    """An atom that is an equality or order of a value of an event and one of the row, in this order."""
    if not isinstance(atom, Comparison) or atom.op == "!=":
        return None
    for op, one, other in ((atom.op, atom.left, atom.right), (_TURNED[atom.op], atom.right, atom.left)):
        if _of_event(one) and not mentions_parameters(one) and not _of_event(other):
            if op == "=" and kind_of(one) == kind_of(other) == "string":
                return Comparison("=", one, other)
            return Comparison(op, _number(one), _number(other))  # type: ignore[arg-type]  # an operator
    return None


def _of_event(value: Value) -> bool:
    return isinstance(value, Attribute | Duration) or any(map(_of_event, children(value)))


def _number(value: Value) -> Value:
    return value if kind_of(value) == "number" else Function("number", (value,), "number")


def _of_left(atom: Atom) -> Atom:
    return mapped(atom, lambda leaf: replace(leaf, part="left") if isinstance(leaf, Attribute) else leaf)


def _renumbered(atom: Atom, order: dict[Parameter, Parameter]) -> Atom:
    """The atom with parameters in the order in which they are met."""

    def change(leaf: Value) -> Value:
        if not isinstance(leaf, Parameter):
            return leaf
        return order.setdefault(leaf, Parameter(len(order), leaf.kind))

    return mapped(atom, change)


def mapped(node: Node, change: Callable[[Value], Value]) -> Node:
    """Returns an atom or value with other leaves."""

    def value(child: Value) -> Value:
        return mapped(child, change)

    match node:
        case Comparison(left=left, right=right) | Arithmetic(left=left, right=right):
            return cast(Node, replace(node, left=value(left), right=value(right)))
        case TextTest(args=args) | Function(args=args):
            return cast(Node, replace(node, args=tuple(map(value, args))))
        case NullTest(value=of):
            return cast(Node, replace(node, value=value(of)))
    return cast(Node, change(cast(Value, node)))
