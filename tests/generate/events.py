"""Random event streams, statements and worlds of both, made so that they often match: few values and times, many ties.

A name says what an attribute is: a, b, c are strings, x, y, z numbers that are sums of few halves, m numbers that are
not exact in binary. Sums are of exact numbers only: else they would depend on the order of their summands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from random import Random
from typing import Any, TypeVar

from tests.generate.documents import SECOND, chance
from tests.oracle import event_syntax as cel
from tests.oracle.event_values import DISTINCT, Value
from tests.oracle.events import Event, World, event

LENGTH = 20
"""How many seconds a stream takes."""


def schemas(rng: Random, count: int = 3) -> dict[str, cel.Schema]:
    """The schemas of streams E1, E2, ...: often equal, or one a part of another."""
    full: cel.Schema = {"a": "string", "b": "string", "x": "number", "y": "number"}
    found: dict[str, cel.Schema] = {}
    for number in range(1, count + 1):
        names = [name for name in full if name in ("a", "x") or chance(rng, 50)]
        if chance(rng, 15):
            names.remove(rng.choice(names))
        found[f"E{number}"] = {name: full[name] for name in names}
    return found


def events(rng: Random, name: str, schema: cel.Schema, most: int = 16) -> list[Event]:
    """The events of a stream. Each is a part of its own."""
    found = []
    for number in range(rng.randint(min(6, most), most)):
        t1 = rng.randint(0, LENGTH) * SECOND
        length = rng.choice((0, 0, 0, 1, 2, 5)) * SECOND
        values = {attribute: _value(rng, kind) for attribute, kind in schema.items()}
        found.append(event(values, max(0, t1 - length), t1, [(name, number)]))
    return found


def _value(rng: Random, kind: str) -> Value:
    if chance(rng, 10):
        return None
    return rng.choice(STRINGS) if kind == "string" else float(rng.choice(NUMBERS))


class StatementMaker:
    """Makes statements over streams. `schemas` grows by what they publish."""

    def __init__(self, rng: Random, known: Mapping[str, cel.Schema]) -> None:
        self._rng = rng
        self.schemas = dict(known)

    def statement(self, depth: int = 3) -> cel.Cel:
        while True:
            try:
                made = self._cel(depth)
                schema = cel.schema_of(made, self.schemas)
            except cel.Malformed:
                continue
            if len(schema) <= 12:
                return made

    def published(self, name: str, depth: int = 2) -> cel.Cel:
        """A statement that publishes its events, which those made later may read."""
        made = self.statement(depth)
        made = cel.Cel(made.stream, made.select, made.within, name)
        self.schemas[name] = cel.schema_of(made, self.schemas)
        return made

    # ------------------------------------------------------------ streams

    def _cel(self, depth: int) -> cel.Cel:
        rng = self._rng
        stream = self._stream(depth)
        within = cel.Window(str(rng.choice((2, 3, 5, 8, 12)))) if chance(rng, 45) else None
        select = self._items(cel.schema_of(stream, self.schemas)) if chance(rng, 40) else None
        return cel.Cel(stream, select, within)

    def _stream(self, depth: int) -> cel.Stream:
        """A stream whose schema is valid; Malformed is raised where it is not."""
        rng = self._rng
        if depth <= 0 or chance(rng, 8):
            return self._name()
        match rng.choice(("next",) * 4 + ("fold",) * 3 + ("filter",) * 3 + ("union", "aggregate", "aggregate", "cel")):
            case "next":
                return self._next(depth)
            case "fold":
                return self._fold(depth)
            case "filter":
                return self._filter(self._stream(depth - 1))
            case "union":
                return self._union(depth)
            case "aggregate":
                return self._aggregate(depth)
        return self._cel(depth - 1)

    def _name(self) -> cel.Stream:
        return cel.Name(self._rng.choice(list(self.schemas)))

    def _filter(self, source: cel.Stream) -> cel.Stream:
        return cel.Filter(self._conditions(source).condition(), source)

    def _conditions(
        self, left: cel.Stream, right: cel.Stream | None = None, latest: tuple[str, ...] = ()
    ) -> ConditionMaker:
        first = cel.schema_of(left, self.schemas)
        other = None if right is None else cel.schema_of(right, self.schemas)
        return ConditionMaker(self._rng, Sides(first, other, frozenset(latest)))

    def _right(self, depth: int) -> cel.Stream:
        """A right operand: a name more often than not."""
        rng = self._rng
        if chance(rng, 50):
            return self._name()
        if chance(rng, 40):
            return self._filter(self._name())
        return self._stream(depth - 1)

    def _next(self, depth: int) -> cel.Stream:
        rng = self._rng
        left, right = self._stream(depth - 1), self._right(depth)
        cond = self._conditions(left, right).condition() if chance(rng, 80) else None
        return cel.Next(left, cond, right, chance(rng, 35))

    def _fold(self, depth: int) -> cel.Stream:
        rng = self._rng
        left, right = self._stream(depth - 1), self._right(depth)
        first, other = cel.schema_of(left, self.schemas), cel.schema_of(right, self.schemas)
        shared = tuple(name for name, kind in other.items() if first.get(name) == kind)
        if not shared:
            raise cel.Malformed("nothing in common")
        if len(shared) < len(other) or chance(rng, 20):
            kept = [name for name in shared if chance(rng, 70)] or [shared[0]]
            right = cel.Cel(right, tuple(cel.Item(cel.Ref(name)) for name in kept))
            other = cel.schema_of(right, self.schemas)
        counts = chance(rng, 40)
        if counts:
            left = cel.Cel(left, (None, cel.Item(cel.Num(rng.choice(("0", "1"))), "z")))
            first = cel.schema_of(left, self.schemas)
        changed = tuple(other) + (("z",) if counts else ())
        maker = self._conditions(left, right, changed)
        sets = (cel.Item(self._counted(maker, other), "z"),) if counts else ()
        chooses = maker.condition() if chance(rng, 75) else None
        goes_on = maker.condition() if chance(rng, 55) else None
        return cel.Fold(left, chooses, goes_on, sets, right)

    def _counted(self, maker: ConditionMaker, other: cel.Schema) -> cel.Expr:
        """A new value for a counter: one more, or a sum."""
        exact = [name for name, kind in other.items() if kind == "number" and is_exact(name)]
        step: cel.Expr = cel.Num("1")
        if exact and chance(self._rng, 40):
            step = cel.Ref(self._rng.choice(exact), "$2")
            if chance(self._rng, 60):
                step = cel.Fn("coalesce", (step, cel.Num("0")))
        return cel.Op("+", cel.Ref("z", "$"), step)

    def _union(self, depth: int) -> cel.Stream:
        rng = self._rng
        left = self._stream(depth - 1)
        schema = cel.schema_of(left, self.schemas)
        same = [cel.Name(name) for name, other in self.schemas.items() if other == schema]
        if same and chance(rng, 50):
            return cel.Union(left, self._filter(rng.choice(same)))
        if chance(rng, 40):
            return cel.Union(self._filter(left), self._filter(left))
        right = self._stream(depth - 1)
        other = cel.schema_of(right, self.schemas)
        names = tuple(name for name, kind in schema.items() if other.get(name) == kind)
        if not names:
            raise cel.Malformed("nothing in common")
        picked = tuple(cel.Item(cel.Ref(name)) for name in names)
        return cel.Union(cel.Cel(left, picked), cel.Cel(right, picked))

    def _aggregate(self, depth: int) -> cel.Stream:
        rng = self._rng
        source = self._stream(depth - 1)
        schema = cel.schema_of(source, self.schemas)
        by = tuple(name for name in schema if chance(rng, 30))
        exact = [name for name, kind in schema.items() if kind == "number" and is_exact(name)]
        items = [cel.Item(cel.Fn("count"), "z")] if "z" not in by else []
        if exact:
            number = cel.Ref(rng.choice(exact))
            sized = rng.choice(list(schema))
            items += [
                cel.Item(expr, name)
                for expr, name in (
                    (cel.Fn("sum", (number,)), "s"),
                    (cel.Fn("avg", (number,)), "mean"),
                    (cel.Fn(rng.choice(("min", "max")), (number,)), "t"),
                    (cel.Fn(rng.choice(("count", DISTINCT)), (cel.Ref(sized),)), "k"),
                    (quantile(rng, number), "m_mid"),
                    (cel.Fn("argmax", (cel.Ref(sized), number)), "best" if schema[sized] == "string" else "m_best"),
                    (cel.Op("-", cel.Fn("max", (number,)), cel.Fn("min", (number,))), "u"),
                )
                if name not in by and chance(rng, 35)
            ]
        over = cel.Window(str(rng.choice((1, 2, 3, 5, 10)))) if chance(rng, 70) else None
        if not items:
            raise cel.Malformed("nothing to aggregate")
        return cel.Aggregate(tuple(items), by, over, source, over is not None and chance(rng, 40))

    # ------------------------------------------------------------ SELECT

    def _items(self, schema: cel.Schema) -> tuple[cel.Item | None, ...]:
        rng = self._rng
        names = [name for name in schema if chance(rng, 65)] or [next(iter(schema))]
        rng.shuffle(names)
        items: list[cel.Item | None] = [
            cel.Item(cel.Ref(name), f"{name}{rng.choice('pq')}" if chance(rng, 30) else None) for name in names
        ]
        if chance(rng, 15):
            items = [None]
        if chance(rng, 30):
            made, name = self._computed(schema)
            items.append(cel.Item(made, name))
        if chance(rng, 10):
            items.append(cel.Item(cel.Time("DUR"), "y_dur"))
        labels = [label for item in items for label in (schema if item is None else (item.label,))]
        if len(set(labels)) < len(labels):
            raise cel.Malformed("an attribute is there twice")
        return tuple(items)

    def _computed(self, schema: cel.Schema) -> tuple[cel.Expr, str]:
        rng = self._rng
        name = rng.choice(list(schema))
        ref = cel.Ref(name)
        if schema[name] == "string":
            return rng.choice(
                (
                    (cel.Fn("upper-case", (ref,)), "c"),
                    (cel.Fn("words", (ref,)), "c"),
                    (cel.Fn("substring-before", (ref, rng.choice(TEXTS))), "c"),
                    (cel.Fn("string-length", (ref,)), "x_len"),
                    (cel.Fn("coalesce", (ref, rng.choice(TEXTS))), "c"),
                    (cel.Fn("concat", (ref, rng.choice(TEXTS))), "c"),
                    (cel.Fn("number", (ref,)), "m_num"),
                )
            )
        mark = "y" if is_exact(name) else "m"
        return rng.choice(
            (
                (cel.Op(rng.choice(("+", "-")), ref, cel.Num(rng.choice(NUMBERS[1:]))), f"{mark}_sum"),
                (cel.Op("/", ref, cel.Num("3")), "m_third"),
                (cel.Op("%", ref, cel.Num("2")), f"{mark}_rest"),
                (cel.Op("*", cel.Num("80%"), ref), "m_most"),
                (cel.Fn("coalesce", (ref, cel.Num("0"))), f"{mark}_or"),
                (cel.Fn("abs", (ref,)), f"{mark}_abs"),
                (cel.Fn("concat", (ref, rng.choice(TEXTS))), "c"),
            )
        )


def quantile(rng: Random, number: cel.Expr) -> cel.Expr:
    share = rng.choice(("", *SHARES))
    return cel.Fn("percentile", (number, cel.Num(share))) if share else cel.Fn("median", (number,))


def is_exact(name: str) -> bool:
    """Whether sums of an attribute do not depend on their order."""
    return not name.startswith("m")


STRINGS = ("p",) * 10 + ("q",) * 4 + ("1", "1", "Q", "1.0", "")
SHARES = ("0", "25", "90", "99.9", "100")
NUMBERS = ("0", "1", "1", "1", "1", "1", "1", "2", "2", "2", "3", "0.5", "-1")
TEXTS = tuple(cel.Str(value) for value in STRINGS)

ORDERS: tuple[cel.Relation, ...] = ("<", "<=", ">", ">=")

_T = TypeVar("_T")


@dataclass(frozen=True)
class Sides:
    """The schemas that a condition may mention. `changed` are the names that FOLD gives new values; empty if the
    condition is none of FOLD."""

    left: cel.Schema
    right: cel.Schema | None = None
    changed: frozenset[str] = frozenset()

    def references(self) -> list[tuple[cel.Ref, cel.Kind]]:
        if self.right is None:
            return [(cel.Ref(name), kind) for name, kind in self.left.items()]
        found: list[tuple[cel.Ref, cel.Kind]] = []
        sides: list[tuple[cel.Side, cel.Schema]] = [("$1", self.left), ("$2", self.right)]
        if self.changed:
            sides.append(("$", self.left))
        for side, schema in sides:
            found += [(cel.Ref(name, side), kind) for name, kind in schema.items()]
        both = self.left.keys() & self.right.keys()
        for name, kind in {**self.left, **self.right}.items():
            if name not in both and name not in self.changed:
                found.append((cel.Ref(name), kind))
        return found


class ConditionMaker:
    def __init__(self, rng: Random, sides: Sides) -> None:
        self._rng = rng
        self._sides = sides
        self._all = sides.references()
        self._right = [(ref, kind) for ref, kind in self._all if ref.side == "$2"] or self._all
        self._left = [(ref, kind) for ref, kind in self._all if ref.side in ("$1", "$")] or self._all

    def condition(self, depth: int = 2) -> cel.Cond:
        """A condition: most often a conjunction of few atoms, of equalities above all."""
        rng = self._rng
        shape = rng.randrange(100)
        if depth == 0 or shape < 60:
            return self._atom()
        if shape < 80:
            return cel.Both("AND", tuple(self.condition(depth - 1) for _ in range(rng.choice((2, 2, 2, 3)))))
        if shape < 93:
            return cel.Both("OR", tuple(self.condition(depth - 1) for _ in range(2)))
        return cel.Not(self.condition(depth - 1))

    def _atom(self) -> cel.Cond:
        rng = self._rng
        shape = rng.randrange(100)
        if self._sides.right is not None and shape < 40:
            return self._across()
        if shape < 60:
            ref, kind = rng.choice(self._right)
            return cel.Cmp("=", ref, self._constant(kind))
        ref, kind = rng.choice(self._all)
        if shape < 68:
            return cel.Cmp("!=", ref, self._constant(kind))
        if shape < 84:
            return self._order(ref, kind)
        if shape < 88:
            return cel.IsNull(ref, chance(rng, 60))
        if shape < 93 and kind == "string":
            part = cel.Fn("upper-case", (ref,)) if chance(rng, 30) else ref
            name = rng.choice(("contains", "starts-with", "ends-with", "matches"))
            return cel.Test(
                name, (part, cel.Str(rng.choice(("p", "1", "Q", "[p-q]") if name == "matches" else ("p", "1", ""))))
            )
        time = cel.Time("GAP" if self._sides.right is not None and chance(rng, 40) else "DUR")
        if chance(rng, 75):
            return cel.Cmp(rng.choice(("<", "<=", "<=", "=")), time, cel.Window(str(rng.choice((1, 2, 3, 6, 10)))))
        return cel.Cmp(rng.choice((">", ">=")), time, cel.Num(rng.choice(("0", "1", "2"))))

    def _across(self) -> cel.Cond:
        rng = self._rng
        right, kind = rng.choice(self._right)
        alike = [ref for ref, other in self._left if other == kind] if chance(rng, 92) else []
        left = rng.choice(alike or [ref for ref, _ in self._left])
        one: cel.Expr = left
        if kind == "number" and chance(rng, 25):
            one = cel.Op(rng.choice(("+", "-", "*")), left, cel.Num(rng.choice(NUMBERS[1:])))
        op: cel.Relation = "=" if chance(rng, 60) else rng.choice(("!=", *ORDERS))
        return cel.Cmp(op, right, one) if chance(rng, 60) else cel.Cmp(op, one, right)

    def _order(self, ref: cel.Ref, kind: cel.Kind) -> cel.Cond:
        rng = self._rng
        number: cel.Expr = cel.Num(rng.choice(NUMBERS))
        if chance(rng, 10):
            number = cel.Num(rng.choice(("50%", "150%")))
        left: cel.Expr = ref
        if kind == "number" and chance(rng, 20):
            left = cel.Op(rng.choice(("+", "-", "*", "/", "%")), ref, cel.Num(rng.choice(NUMBERS[1:])))
        return cel.Cmp(rng.choice(ORDERS), *((left, number) if chance(rng, 80) else (number, left)))

    def _constant(self, kind: cel.Kind) -> cel.Expr:
        return self._rng.choice(TEXTS) if kind == "string" else cel.Num(self._rng.choice(NUMBERS))


def variant(rng: Random, node: _T, percent: int = 60) -> _T:
    """A statement of the same template: some of its constants are others of their kind."""
    made: _T = _rebuilt(rng, node, percent)
    return made


def _rebuilt(rng: Random, node: Any, percent: int) -> Any:
    match node:
        case cel.Num(written) if written in NUMBERS and chance(rng, percent):
            return cel.Num(rng.choice(NUMBERS))
        case cel.Str(value) if value in STRINGS and chance(rng, percent):
            return cel.Str(rng.choice(STRINGS))
        case cel.Window() if chance(rng, percent):
            return cel.Window(str(rng.choice((1, 2, 3, 5, 8, 12))))
        case cel.Fn("percentile", (value, _)) if chance(rng, percent):
            return cel.Fn("percentile", (_rebuilt(rng, value, percent), cel.Num(rng.choice(SHARES))))
        case cel.Test("matches") | cel.Fn("percentile"):
            return node
        case tuple():
            return tuple(_rebuilt(rng, one, percent) for one in node)
    if not is_dataclass(node) or isinstance(node, type):
        return node
    return replace(node, **{field.name: _rebuilt(rng, getattr(node, field.name), percent) for field in fields(node)})


def variants(rng: Random, nodes: Sequence[_T], count: int) -> list[_T]:
    """`count` statements of a few templates, some of them equal."""
    return [*nodes, *(variant(rng, rng.choice(nodes), rng.choice((0, 30, 60, 90))) for _ in range(count - len(nodes)))]


def world(seed: int, *, templates: int = 4, statements: int = 10, most: int = 16, depth: int = 3) -> World:
    """A world with three streams of at most `most` events each.

    The first two statements are published as P1 and P2, and the second may read the first.
    """
    rng = Random(seed)
    known = schemas(rng)
    given = {name: events(rng, name, schema, most) for name, schema in known.items()}
    maker = StatementMaker(rng, known)
    made = [maker.published("P1"), maker.published("P2")]
    made += [maker.statement(depth) for _ in range(templates - 2)]
    every = variants(rng, made, statements)
    rng.shuffle(every)
    return World(known, given, every)
