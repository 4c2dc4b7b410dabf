"""Random conditions of event statements, and variants of a statement with other constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from random import Random
from typing import Any, TypeVar

from tests.generate.documents import chance
from tests.oracle.event_schemas import Kind, Schema
from tests.oracle.event_syntax import (
    Both,
    Cmp,
    Cond,
    Expr,
    Fn,
    IsNull,
    Not,
    Num,
    Op,
    Ref,
    Relation,
    Side,
    Str,
    Test,
    Time,
    Window,
)

STRINGS = ("p",) * 10 + ("q",) * 4 + ("1", "1", "Q", "1.0", "")
NUMBERS = ("0", "1", "1", "1", "1", "1", "1", "2", "2", "2", "3", "0.5", "-1")
TEXTS = tuple(Str(value) for value in STRINGS)

_ORDERS: tuple[Relation, ...] = ("<", "<=", ">", ">=")

_T = TypeVar("_T")


@dataclass(frozen=True)
class Sides:
    """The schemas that a condition may mention. `changed` are the names that FOLD gives new values; empty if the
    condition is none of FOLD."""

    left: Schema
    right: Schema | None = None
    changed: frozenset[str] = frozenset()

    def references(self) -> list[tuple[Ref, Kind]]:
        """Each way to name an attribute."""
        if self.right is None:
            return [(Ref(name), kind) for name, kind in self.left.items()]
        found: list[tuple[Ref, Kind]] = []
        sides: list[tuple[Side, Schema]] = [("$1", self.left), ("$2", self.right)]
        if self.changed:
            sides.append(("$", self.left))
        for side, schema in sides:
            found += [(Ref(name, side), kind) for name, kind in schema.items()]
        both = self.left.keys() & self.right.keys()
        for name, kind in {**self.left, **self.right}.items():
            if name not in both and name not in self.changed:
                found.append((Ref(name), kind))
        return found


class ConditionMaker:
    """Makes conditions over the attributes of one or two events."""

    def __init__(self, rng: Random, sides: Sides) -> None:
        self._rng = rng
        self._sides = sides
        self._all = sides.references()
        self._right = [(ref, kind) for ref, kind in self._all if ref.side == "$2"] or self._all
        self._left = [(ref, kind) for ref, kind in self._all if ref.side in ("$1", "$")] or self._all

    def condition(self, depth: int = 2) -> Cond:
        """A condition: most often a conjunction of few atoms, of equalities above all."""
        rng = self._rng
        shape = rng.randrange(100)
        if depth == 0 or shape < 60:
            return self._atom()
        if shape < 80:
            return Both("AND", tuple(self.condition(depth - 1) for _ in range(rng.choice((2, 2, 2, 3)))))
        if shape < 93:
            return Both("OR", tuple(self.condition(depth - 1) for _ in range(2)))
        return Not(self.condition(depth - 1))

    def _atom(self) -> Cond:
        rng = self._rng
        shape = rng.randrange(100)
        if self._sides.right is not None and shape < 40:
            return self._across()
        if shape < 60:
            ref, kind = rng.choice(self._right)
            return Cmp("=", ref, self._constant(kind))
        ref, kind = rng.choice(self._all)
        if shape < 68:
            return Cmp("!=", ref, self._constant(kind))
        if shape < 84:
            return self._order(ref, kind)
        if shape < 88:
            return IsNull(ref, chance(rng, 60))
        if shape < 93 and kind == "string":
            part = Fn("upper-case", (ref,)) if chance(rng, 30) else ref
            name = rng.choice(("contains", "starts-with", "ends-with", "matches"))
            return Test(
                name, (part, Str(rng.choice(("p", "1", "Q", "[p-q]") if name == "matches" else ("p", "1", ""))))
            )
        time = Time("GAP" if self._sides.right is not None and chance(rng, 40) else "DUR")
        if chance(rng, 75):
            return Cmp(rng.choice(("<", "<=", "<=", "=")), time, Window(str(rng.choice((1, 2, 3, 6, 10)))))
        return Cmp(rng.choice((">", ">=")), time, Num(rng.choice(("0", "1", "2"))))

    def _across(self) -> Cond:
        """A comparison of a left and a right attribute."""
        rng = self._rng
        right, kind = rng.choice(self._right)
        alike = [ref for ref, other in self._left if other == kind] if chance(rng, 92) else []
        left = rng.choice(alike or [ref for ref, _ in self._left])
        one: Expr = left
        if kind == "number" and chance(rng, 25):
            one = Op(rng.choice(("+", "-", "*")), left, Num(rng.choice(NUMBERS[1:])))
        op: Relation = "=" if chance(rng, 60) else rng.choice(("!=", *_ORDERS))
        return Cmp(op, right, one) if chance(rng, 60) else Cmp(op, one, right)

    def _order(self, ref: Ref, kind: Kind) -> Cond:
        rng = self._rng
        number: Expr = Num(rng.choice(NUMBERS))
        if chance(rng, 10):
            number = Num(rng.choice(("50%", "150%")))
        left: Expr = ref
        if kind == "number" and chance(rng, 20):
            left = Op(rng.choice(("+", "-", "*", "/", "%")), ref, Num(rng.choice(NUMBERS[1:])))
        return Cmp(rng.choice(_ORDERS), *((left, number) if chance(rng, 80) else (number, left)))

    def _constant(self, kind: Kind) -> Expr:
        return self._rng.choice(TEXTS) if kind == "string" else Num(self._rng.choice(NUMBERS))


def variant(rng: Random, node: _T, percent: int = 60) -> _T:
    """A statement of the same template: some of its constants are others of their kind."""
    made: _T = _rebuilt(rng, node, percent)
    return made


def _rebuilt(rng: Random, node: Any, percent: int) -> Any:
    match node:
        case Num(written) if written in NUMBERS and chance(rng, percent):
            return Num(rng.choice(NUMBERS))
        case Str(value) if value in STRINGS and chance(rng, percent):
            return Str(rng.choice(STRINGS))
        case Window() if chance(rng, percent):
            return Window(str(rng.choice((1, 2, 3, 5, 8, 12))))
        case Test("matches"):
            return node
        case tuple():
            return tuple(_rebuilt(rng, one, percent) for one in node)
    if not is_dataclass(node) or isinstance(node, type):
        return node
    return replace(node, **{field.name: _rebuilt(rng, getattr(node, field.name), percent) for field in fields(node)})


def variants(rng: Random, nodes: Sequence[_T], count: int) -> list[_T]:
    """`count` statements of a few templates, some of them equal."""
    return [*nodes, *(variant(rng, rng.choice(nodes), rng.choice((0, 30, 60, 90))) for _ in range(count - len(nodes)))]
