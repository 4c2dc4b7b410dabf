"""Random PATTERN statements over the streams of `tests.generate.events`, made so that they often match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from tests.generate.documents import chance
from tests.generate.events import NUMBERS, ORDERS, TEXTS, is_exact
from tests.oracle.event_syntax import (
    Both,
    Cmp,
    Cond,
    Expr,
    Fn,
    IsNull,
    Item,
    Kind,
    Len,
    Not,
    Num,
    Of,
    Op,
    Place,
    Ref,
    Relation,
    Schema,
    Str,
    Test,
    Window,
)
from tests.oracle.pattern_syntax import (
    STRATEGIES,
    Absent,
    AnyOrder,
    Component,
    Letter,
    Letters,
    Many,
    Near,
    One,
    OneOf,
    Pattern,
    Strategy,
    Times,
)

_ITEMS: tuple[Place, ...] = ("1", "i", "i", "i-1", "LEN", "[]")
_WHOLE: tuple[Place, ...] = ("1", "LEN", "[]")


class PatternMaker:
    """Makes statements over streams, `schemas`, which others may add to."""

    def __init__(self, rng: Random, schemas: Mapping[str, Schema]) -> None:
        self._rng, self._schemas = rng, schemas

    def statement(self, publish: str | None = None) -> Pattern | Near:
        """A statement that the language takes."""
        return self.near(publish) if chance(self._rng, 20) else self.pattern(publish)

    # ------------------------------------------------------------ without ERRORS

    def pattern(self, publish: str | None = None) -> Pattern:
        """A statement without ERRORS."""
        rng = self._rng
        components = self._components()
        base = Pattern(components, Window(str(rng.choice((3, 5, 5, 8)))), publish=publish)
        kleene = any(isinstance(one, Many) for one in base.positive)
        has_sets = any(isinstance(one, AnyOrder) for one in components)
        maximal = chance(rng, 40 if has_sets else 12)
        keys = self._keys(base.streams) if chance(rng, 55) else ()
        strategy: Strategy | None = None
        if has_sets or maximal:
            strategy = "skip_till_any_match" if chance(rng, 30) else None
        elif kleene or chance(rng, 70):
            strategy = rng.choice((*STRATEGIES, "partition_contiguity"))
            if strategy == "partition_contiguity" and not keys:
                strategy = "skip_till_next_match"
        maker = _Conditions(rng, base, self._schemas)
        waits = isinstance(components[-1], Absent) or (maximal and any(isinstance(one, Many) for one in base.sets[-1]))
        return Pattern(
            components,
            None if chance(rng, 6) and not waits else base.within,
            strategy,
            keys,
            maker.where(),
            maker.having() if chance(rng, 25) else None,
            maker.items() if publish is not None or chance(rng, 50) else None,
            maximal,
            chance(rng, 20),
            publish,
        )

    def _components(self) -> tuple[Component, ...]:
        """Components, of which at most four are not negated, and at most two of these take several events."""
        rng = self._rng
        names = iter("abcdefghij")
        found: list[Component] = []
        left = rng.choice((1, 2, 2, 2, 3, 4))
        many = rng.choice((0, 1, 1, 2))
        while left:
            if chance(rng, 22) and not (found and isinstance(found[-1], Absent)):
                found.append(Absent(self._stream(), next(names)))
            count = rng.randint(1, left) if chance(rng, 30) else 1
            left -= count
            members: list[One | Many] = []
            for _ in range(count):
                is_many = many > 0 and chance(rng, 40)
                many -= is_many
                members.append((Many if is_many else One)(self._stream(), next(names)))
            found.append(AnyOrder(tuple(members)) if count > 1 or chance(rng, 5) else members[0])
        if chance(rng, 15):
            found.append(Absent(self._stream(), next(names)))
        return tuple(found)

    def _stream(self) -> str:
        names = [name for name, schema in self._schemas.items() if schema]
        return self._rng.choice([name for name in names if name.startswith("E")] if chance(self._rng, 80) else names)

    def _keys(self, streams: frozenset[str]) -> tuple[str, ...]:
        schemas = [self._schemas[name] for name in streams]
        shared = [name for name, kind in schemas[0].items() if all(schema.get(name) == kind for schema in schemas)]
        if not shared:
            return ()
        self._rng.shuffle(shared)
        return tuple(shared[: self._rng.choice((1, 1, 1, 1, 2))])

    # ------------------------------------------------------------ with ERRORS

    def near(self, publish: str | None = None) -> Near:
        """A statement with ERRORS."""
        rng = self._rng
        word: tuple[Letters, ...] = ()
        while _shortest(word) == 0:
            word = tuple(self._part(2) for _ in range(rng.choice((1, 2, 2, 3, 3))))
        base = Near(word, 0, None)
        select = rng.choice((None, None, (Item(Ref("errors")),), (Item(Str("p"), "c"),)))
        return Near(
            word,
            rng.randrange(min(_shortest(word), 3)),
            Window(str(rng.choice((3, 5, 8)))),
            self._keys(base.streams) if chance(rng, 50) else (),
            None,
            select,
            chance(rng, 25),
            publish,
        )

    def _part(self, depth: int) -> Letters:
        rng = self._rng
        if depth == 0 or chance(rng, 65):
            part: Letter | OneOf = Letter(self._stream(), chance(rng, 20))
        else:
            words = tuple(
                tuple(self._part(depth - 1) for _ in range(rng.choice((1, 1, 2)))) for _ in range(rng.choice((1, 2, 2)))
            )
            part = OneOf(words)
        least = rng.choice((0, 1, 1, 2)) if chance(rng, 20) else None
        # A part that may be empty is not repeated: then a word would have no length.
        return part if least is None or _shortest((part,)) == 0 else Times(part, least)


def _shortest(word: Sequence[Letters]) -> int:
    """The length of the shortest word."""
    total = 0
    for part in word:
        match part:
            case Letter():
                total += 1
            case Times():
                total += part.least * _shortest((part.part,))
            case OneOf():
                total += min(map(_shortest, part.words))
    return total


class _Conditions:
    """Makes the conditions and values of a pattern."""

    def __init__(self, rng: Random, pattern: Pattern, schemas: Mapping[str, Schema]) -> None:
        self._rng, self._schemas = rng, schemas
        self._positive = pattern.positive
        self._negated = [one for _, one in pattern.absent]

    def where(self) -> Cond | None:
        """The condition of WHERE besides [attr]."""
        rng = self._rng
        conds = [self._conjunct(rng.choice(self._positive)) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]
        conds += [self._about(one) for one in self._negated if chance(rng, 60)]
        rng.shuffle(conds)
        if len(conds) > 1:
            return Both("AND", tuple(conds))
        return conds[0] if conds else None

    def having(self) -> Cond:
        """The condition of HAVING."""
        return self._atom(self._rng.choice(self._positive), _WHOLE)

    def items(self) -> tuple[Item, ...]:
        """The items of RETURN. Names say what they are, as those of attributes do."""
        rng = self._rng
        found: dict[str, Item] = {}
        for _ in range(rng.choice((1, 2, 3))):
            one = rng.choice(self._positive)
            value, kind, name = self._value(one, _WHOLE)
            label = ("c" if kind == "string" else "x" if is_exact(name) else "m") + str(len(found) or "")
            found[label] = Item(value, label)
        return tuple(found.values())

    def _conjunct(self, one: One | Many) -> Cond:
        rng = self._rng
        shape = rng.randrange(100)
        if shape < 75:
            return self._atom(one, _ITEMS)
        if shape < 92:
            return Both("OR", (self._atom(one, _ITEMS), self._atom(one, ("1", "LEN"))))
        return Not(self._atom(one, _ITEMS))

    def _about(self, absent: Absent) -> Cond:
        """A condition on a negated component."""
        rng = self._rng
        name, kind = self._attribute(absent.stream)
        left: Expr = Of(absent.variable, name)
        if chance(rng, 40):
            return Cmp("=", left, self._constant(kind))
        other, other_kind, _ = self._value(rng.choice(self._positive), ("1", "i", "LEN", "[]"))
        op: Relation = "=" if other_kind == kind or chance(rng, 70) else rng.choice(ORDERS)
        return Cmp(op, left, other)

    def _atom(self, one: One | Many, places: tuple[Place, ...]) -> Cond:
        rng = self._rng
        value, kind, _ = self._value(one, places)
        shape = rng.randrange(100)
        if shape < 35:
            if kind == "string" and chance(rng, 60):
                return Cmp("!=", value, Str("q"))
            return Cmp("=" if kind == "string" or chance(rng, 40) else rng.choice(ORDERS), value, self._constant(kind))
        if shape < 40:
            return IsNull(value, chance(rng, 60))
        if shape < 45 and kind == "string":
            return Test(rng.choice(("contains", "starts-with")), (value, Str(rng.choice("pQ1"))))
        other, other_kind, _ = self._other(one, value, places)
        op: Relation = rng.choice(("=", "=", "!=", *ORDERS) if kind == "number" else ("=", "=", "!="))
        if kind != other_kind and chance(rng, 80):
            return Cmp(op, value, self._constant(kind))
        return Cmp(op, value, other)

    def _other(self, one: One | Many, value: Expr, places: tuple[Place, ...]) -> tuple[Expr, Kind, str]:
        """Another value to compare with: of the same variable often, if it has several events."""
        rng = self._rng
        if isinstance(one, Many) and isinstance(value, Of) and chance(rng, 60):
            name = value.name
            kind = self._schemas[one.stream][name]
            if value.place == "i":
                if kind == "number" and is_exact(name) and chance(rng, 40):
                    call = rng.choice(("avg", "min", "max", "sum"))
                    return Fn(call, (Of(one.variable, name, "..i-1"),)), "number", name
                return Of(one.variable, name, "i-1"), kind, name
            return Of(one.variable, name, rng.choice(("1", "LEN"))), kind, name
        other = rng.choice(self._positive)
        clash = other is one and isinstance(value, Of) and value.place in ("[]", "i", "i-1", "..i-1")
        return self._value(other, ("1", "LEN") if clash else places)

    def _value(self, one: One | Many, places: tuple[Place, ...]) -> tuple[Expr, Kind, str]:
        """A value of a variable: its expression, its kind, and the attribute that it is made of."""
        rng = self._rng
        name, kind = self._attribute(one.stream)
        if isinstance(one, One):
            return self._changed(Of(one.variable, name), kind, name)
        if chance(rng, 12):
            return Len(one.variable), "number", "x"
        if chance(rng, 12):
            if kind == "number" and is_exact(name):
                return Fn(rng.choice(("sum", "avg", "min", "max")), (Of(one.variable, name, "[]"),)), "number", name
            return Fn("count", (Of(one.variable, rng.choice(("", name)), "[]"),)), "number", "x"
        return self._changed(Of(one.variable, name, rng.choice(places)), kind, name)

    def _changed(self, value: Expr, kind: Kind, name: str) -> tuple[Expr, Kind, str]:
        rng = self._rng
        if chance(rng, 85):
            return value, kind, name
        if kind == "string":
            return Fn(rng.choice(("upper-case", "lower-case")), (value,)), kind, name
        return Op(rng.choice(("+", "-")), value, Num(rng.choice(("1", "2")))), kind, name

    def _attribute(self, stream: str) -> tuple[str, Kind]:
        return self._rng.choice(list(self._schemas[stream].items()))

    def _constant(self, kind: Kind) -> Expr:
        return self._rng.choice(TEXTS) if kind == "string" else Num(self._rng.choice(NUMBERS))
