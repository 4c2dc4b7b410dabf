"""Random PATTERN statements over the streams of `tests.generate.events`, made so that they often match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from tests.generate.documents import chance
from tests.generate.events import NUMBERS, ORDERS, TEXTS, StatementMaker, events, is_exact, quantile, schemas, variants
from tests.oracle import event_syntax as cel
from tests.oracle import pattern_syntax as sase
from tests.oracle.event_values import DISTINCT
from tests.oracle.pattern_world import PatternWorld, pattern_schema

_ITEMS: tuple[cel.Place, ...] = ("1", "i", "i", "i-1", "LEN", "[]")
_WHOLE: tuple[cel.Place, ...] = ("1", "LEN", "[]")

Made = tuple[cel.Expr, cel.Kind, str]
"""A value: its expression, its kind, and the attribute that it is made of."""


class PatternMaker:
    """Makes statements over streams, `schemas`, which others may add to."""

    def __init__(self, rng: Random, schemas: Mapping[str, cel.Schema]) -> None:
        self._rng, self._schemas = rng, schemas

    def statement(self, publish: str | None = None) -> sase.Pattern | sase.Near:
        if chance(self._rng, 15):
            return self.together(publish)
        return self.near(publish) if chance(self._rng, 20) else self.pattern(publish)

    # ------------------------------------------------------------ without ERRORS

    def pattern(self, publish: str | None = None) -> sase.Pattern:
        rng = self._rng
        components = self._components()
        base = sase.Pattern(components, cel.Window(str(rng.choice((3, 5, 5, 8)))), publish=publish)
        kleene = any(isinstance(one, sase.Many) for one in base.positive)
        has_sets = any(isinstance(one, sase.AnyOrder) for one in components)
        maximal = chance(rng, 40 if has_sets else 12)
        keys = self._keys(base.streams) if chance(rng, 55) else ()
        strategy: sase.Strategy | None = None
        if has_sets or maximal:
            strategy = "skip_till_any_match" if chance(rng, 30) else None
        elif kleene or chance(rng, 70):
            strategy = rng.choice((*sase.STRATEGIES, "partition_contiguity"))
            if strategy == "partition_contiguity" and not keys:
                strategy = "skip_till_next_match"
        maker = _Conditions(rng, base, self._schemas)
        waits = isinstance(components[-1], sase.Absent)
        waits |= maximal and any(isinstance(one, sase.Many) for one in base.sets[-1])
        return sase.Pattern(
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

    def together(self, publish: str | None = None) -> sase.Pattern:
        """A pattern with ALL MATCHES TOGETHER."""
        rng = self._rng
        kinds: list[type[sase.One | sase.Many]] = [
            rng.choice((sase.One, sase.Many)) for _ in range(rng.choice((1, 2, 3)))
        ]
        components = tuple(kind(self._stream(), name) for kind, name in zip(kinds, "abc", strict=False))
        base = sase.Pattern(components, None if chance(rng, 15) else cel.Window(str(rng.choice((2, 3, 5, 8)))))
        keys = self._keys(base.streams) if chance(rng, 40) else ()
        strategy: sase.Strategy | None = "skip_till_any_match" if chance(rng, 30) else None
        maker = _TogetherConditions(rng, base, self._schemas, keys)
        parts = maker.where(), maker.having() if chance(rng, 30) else None, maker.items()
        return sase.Pattern(components, base.within, strategy, keys, *parts, publish=publish, together=True)

    def _components(self) -> tuple[sase.Component, ...]:
        """Components, of which at most four are not negated, and at most two of these take several events."""
        rng = self._rng
        names = iter("abcdefghij")
        found: list[sase.Component] = []
        left = rng.choice((1, 2, 2, 2, 3, 4))
        many = rng.choice((0, 1, 1, 2))
        while left:
            if chance(rng, 22) and not (found and isinstance(found[-1], sase.Absent)):
                found.append(sase.Absent(self._stream(), next(names)))
            count = rng.randint(1, left) if chance(rng, 30) else 1
            left -= count
            members: list[sase.One | sase.Many] = []
            for _ in range(count):
                is_many = many > 0 and chance(rng, 40)
                many -= is_many
                members.append((sase.Many if is_many else sase.One)(self._stream(), next(names)))
            found.append(sase.AnyOrder(tuple(members)) if count > 1 or chance(rng, 5) else members[0])
        if chance(rng, 15):
            found.append(sase.Absent(self._stream(), next(names)))
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

    def near(self, publish: str | None = None) -> sase.Near:
        rng = self._rng
        word: tuple[sase.Letters, ...] = ()
        while _shortest(word) == 0:
            word = tuple(self._part(2) for _ in range(rng.choice((1, 2, 2, 3, 3))))
        base = sase.Near(word, 0, None)
        select = rng.choice((None, None, (cel.Item(cel.Ref("errors")),), (cel.Item(cel.Str("p"), "c"),)))
        return sase.Near(
            word,
            rng.randrange(min(_shortest(word), 3)),
            cel.Window(str(rng.choice((3, 5, 8)))),
            self._keys(base.streams) if chance(rng, 50) else (),
            None,
            select,
            chance(rng, 25),
            publish,
        )

    def _part(self, depth: int) -> sase.Letters:
        rng = self._rng
        if depth == 0 or chance(rng, 65):
            part: sase.Letter | sase.OneOf = sase.Letter(self._stream(), chance(rng, 20))
        else:
            words = tuple(
                tuple(self._part(depth - 1) for _ in range(rng.choice((1, 1, 2)))) for _ in range(rng.choice((1, 2, 2)))
            )
            part = sase.OneOf(words)
        least = rng.choice((0, 1, 1, 2)) if chance(rng, 20) else None
        # A part that may be empty is not repeated: then a word would have no length.
        return part if least is None or _shortest((part,)) == 0 else sase.Times(part, least)


def _shortest(word: Sequence[sase.Letters]) -> int:
    total = 0
    for part in word:
        match part:
            case sase.Letter():
                total += 1
            case sase.Times():
                total += part.least * _shortest((part.part,))
            case sase.OneOf():
                total += min(map(_shortest, part.words))
    return total


class _Conditions:
    def __init__(self, rng: Random, pattern: sase.Pattern, schemas: Mapping[str, cel.Schema]) -> None:
        self._rng, self._schemas = rng, schemas
        self._positive = pattern.positive
        self._negated = [one for _, one in pattern.absent]

    def where(self) -> cel.Cond | None:
        """The condition of WHERE besides [attr]."""
        rng = self._rng
        conds = [self._conjunct(rng.choice(self._positive)) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]
        conds += [self._about(one) for one in self._negated if chance(rng, 60)]
        rng.shuffle(conds)
        if len(conds) > 1:
            return cel.Both("AND", tuple(conds))
        return conds[0] if conds else None

    def having(self) -> cel.Cond:
        return self._atom(self._rng.choice(self._positive), _WHOLE)

    def items(self) -> tuple[cel.Item, ...]:
        """The items of RETURN. Names say what they are, as those of attributes do."""
        rng = self._rng
        found: dict[str, cel.Item] = {}
        for _ in range(rng.choice((1, 2, 3))):
            one = rng.choice(self._positive)
            value, kind, name = self._value(one, _WHOLE)
            label = ("c" if kind == "string" else "x" if is_exact(name) else "m") + str(len(found) or "")
            found[label] = cel.Item(value, label)
        return tuple(found.values())

    def _conjunct(self, one: sase.One | sase.Many) -> cel.Cond:
        rng = self._rng
        shape = rng.randrange(100)
        if shape < 75:
            return self._atom(one, _ITEMS)
        if shape < 92:
            return cel.Both("OR", (self._atom(one, _ITEMS), self._atom(one, ("1", "LEN"))))
        return cel.Not(self._atom(one, _ITEMS))

    def _about(self, absent: sase.Absent) -> cel.Cond:
        rng = self._rng
        name, kind = self._attribute(absent.stream)
        left: cel.Expr = cel.Of(absent.variable, name)
        if chance(rng, 40):
            return cel.Cmp("=", left, self._constant(kind))
        other, other_kind, _ = self._value(rng.choice(self._positive), ("1", "i", "LEN", "[]"))
        op: cel.Relation = "=" if other_kind == kind or chance(rng, 70) else rng.choice(ORDERS)
        return cel.Cmp(op, left, other)

    def _atom(self, one: sase.One | sase.Many, places: tuple[cel.Place, ...]) -> cel.Cond:
        rng = self._rng
        value, kind, _ = self._value(one, places)
        shape = rng.randrange(100)
        if shape < 35:
            if kind == "string" and chance(rng, 60):
                return cel.Cmp("!=", value, cel.Str("q"))
            return cel.Cmp(
                "=" if kind == "string" or chance(rng, 40) else rng.choice(ORDERS), value, self._constant(kind)
            )
        if shape < 40:
            return cel.IsNull(value, chance(rng, 60))
        if shape < 45 and kind == "string":
            return cel.Test(rng.choice(("contains", "starts-with")), (value, cel.Str(rng.choice("pQ1"))))
        other, other_kind, _ = self._other(one, value, places)
        op: cel.Relation = rng.choice(("=", "=", "!=", *ORDERS) if kind == "number" else ("=", "=", "!="))
        if kind != other_kind and chance(rng, 80):
            return cel.Cmp(op, value, self._constant(kind))
        return cel.Cmp(op, value, other)

    def _other(self, one: sase.One | sase.Many, value: cel.Expr, places: tuple[cel.Place, ...]) -> Made:
        """Another value to compare with: of the same variable often, if it has several events."""
        rng = self._rng
        if isinstance(one, sase.Many) and isinstance(value, cel.Of) and chance(rng, 60):
            name = value.name
            kind = self._schemas[one.stream][name]
            if value.place == "i":
                if kind == "number" and is_exact(name) and chance(rng, 40):
                    earlier = cel.Of(one.variable, name, "..i-1")
                    call = rng.choice(("avg", "min", "max", "sum", DISTINCT, ""))
                    return cel.Fn(call, (earlier,)) if call else quantile(rng, earlier), "number", name
                return cel.Of(one.variable, name, "i-1"), kind, name
            return cel.Of(one.variable, name, rng.choice(("1", "LEN"))), kind, name
        other = rng.choice(self._positive)
        clash = other is one and isinstance(value, cel.Of) and value.place in ("[]", "i", "i-1", "..i-1")
        return self._value(other, ("1", "LEN") if clash else places)

    def _value(self, one: sase.One | sase.Many, places: tuple[cel.Place, ...]) -> Made:
        """A value of a variable."""
        rng = self._rng
        name, kind = self._attribute(one.stream)
        if isinstance(one, sase.One):
            return self._changed(cel.Of(one.variable, name), kind, name)
        if chance(rng, 12):
            return cel.Len(one.variable), "number", "x"
        if chance(rng, 12):
            items = cel.Of(one.variable, name, "[]")
            if kind == "number" and is_exact(name):
                if chance(rng, 40):
                    return quantile(rng, items), "number", "m"
                return cel.Fn(rng.choice(("sum", "avg", "min", "max")), (items,)), "number", name
            if chance(rng, 30):
                return cel.Fn(DISTINCT, (items,)), "number", "x"
            return cel.Fn("count", (cel.Of(one.variable, rng.choice(("", name)), "[]"),)), "number", "x"
        return self._changed(cel.Of(one.variable, name, rng.choice(places)), kind, name)

    def _changed(self, value: cel.Expr, kind: cel.Kind, name: str) -> Made:
        rng = self._rng
        if chance(rng, 85):
            return value, kind, name
        if kind == "string":
            return cel.Fn(rng.choice(("upper-case", "lower-case")), (value,)), kind, name
        return cel.Op(rng.choice(("+", "-")), value, cel.Num(rng.choice(("1", "2")))), kind, name

    def _attribute(self, stream: str) -> tuple[str, cel.Kind]:
        return self._rng.choice(list(self._schemas[stream].items()))

    def _constant(self, kind: cel.Kind) -> cel.Expr:
        return self._rng.choice(TEXTS) if kind == "string" else cel.Num(self._rng.choice(NUMBERS))


class _TogetherConditions(_Conditions):
    """What ALL MATCHES TOGETHER takes: conditions on an event with the one before, and the first or last of others."""

    def __init__(
        self, rng: Random, pattern: sase.Pattern, schemas: Mapping[str, cel.Schema], keys: tuple[str, ...]
    ) -> None:
        super().__init__(rng, pattern, schemas)
        self._keys = keys

    def _conjunct(self, one: sase.One | sase.Many) -> cel.Cond:
        rng = self._rng
        places: tuple[cel.Place, ...] = ("1", "i", "i", "[]", "LEN") if isinstance(one, sase.Many) else ("",)
        place = rng.choice(places)
        conds = [self._compared(one, place) for _ in range(rng.choice((1, 1, 1, 2)))]
        cond = cel.Both("OR", tuple(conds)) if len(conds) > 1 else conds[0]
        return cel.Not(cond) if chance(rng, 8) else cond

    def _compared(self, one: sase.One | sase.Many, place: cel.Place) -> cel.Cond:
        rng = self._rng
        name, kind = self._attribute(one.stream)
        value: cel.Expr = cel.Of(one.variable, name, place)
        op: cel.Relation = rng.choice(("=", "!=", *ORDERS) if kind == "number" else ("=", "!="))
        earlier = self._positive[: self._positive.index(one)]
        if place == "i" and chance(rng, 70):
            return cel.Cmp(op, value, cel.Of(one.variable, name, rng.choice(("i-1", "i-1", "1"))))
        if earlier and chance(rng, 50):
            other = rng.choice(earlier)
            names = [name for name, of in self._schemas[other.stream].items() if of == kind]
            if names:
                where: cel.Place = rng.choice(("1", "LEN")) if isinstance(other, sase.Many) else ""
                return cel.Cmp(op, value, cel.Of(other.variable, rng.choice(names), where))
        if chance(rng, 15):
            return cel.IsNull(value, chance(rng, 60))
        return cel.Cmp("!=" if kind == "string" else op, value, self._constant(kind))

    def having(self) -> cel.Cond:
        rng = self._rng
        call, _ = self._call()
        left = call if chance(rng, 70) else cel.Op(rng.choice(("+", "-", "/")), call, self._call()[0])
        return cel.Cmp(rng.choice(ORDERS), left, cel.Num(rng.choice(("0", "1", "2", "4"))))

    def items(self) -> tuple[cel.Item, ...]:
        rng = self._rng
        found = [cel.Item(*self._call()) for _ in range(rng.choice((1, 2, 3)))]
        last = self._positive[-1]
        if chance(rng, 30):
            name, kind = self._attribute(last.stream)
            is_many = isinstance(last, sase.Many)
            found.append(
                cel.Item(cel.Of(last.variable, name, "LEN" if is_many else ""), "c" if kind == "string" else "m")
            )
        if self._keys and chance(rng, 50):
            one, name = rng.choice(self._positive), self._keys[0]
            kind = self._schemas[one.stream][name]
            value = cel.Of(one.variable, name, "1" if isinstance(one, sase.Many) else "")
            found.append(cel.Item(value, "c" if kind == "string" else "m"))
        labels = [f"{item.name}{place or ''}" for place, item in enumerate(found)]
        return tuple(cel.Item(item.expr, label) for item, label in zip(found, labels, strict=True))

    def _call(self) -> tuple[cel.Expr, str]:
        """An aggregate, and a name that says what it is."""
        rng = self._rng
        one = rng.choice(self._positive)
        place: cel.Place = "[]" if isinstance(one, sase.Many) else ""
        name, kind = self._attribute(one.stream)
        of = cel.Of(one.variable, name, place)
        if kind == "string" or chance(rng, 40):
            items = cel.Of(one.variable, "", "[]") if place and chance(rng, 50) else of
            return cel.Fn("count", () if chance(rng, 50) else (items,)), "k"
        call = rng.choice(("sum", "sum", "avg", "min", "max"))
        return cel.Fn(call, (of,)), "s" if call == "sum" else "m"


def pattern_world(seed: int, *, templates: int = 5, statements: int = 10, most: int = 8) -> PatternWorld:
    """A world with three streams of at most `most` events each. Most of its statements are patterns.

    P1 is published by CEL, P2 by a pattern that may read it. All others may read both.
    """
    rng = Random(seed)
    known = schemas(rng)
    given = {name: events(rng, name, schema, most) for name, schema in known.items()}
    cel = StatementMaker(rng, known)
    made: list[sase.Statement] = [cel.published("P1", 1)]
    maker = PatternMaker(rng, cel.schemas)
    made.append(maker.statement("P2"))
    cel.schemas["P2"] = pattern_schema(made[1], cel.schemas)
    made += [maker.statement() for _ in range(templates - 3)]
    if cel.schemas["P2"]:
        made.append(cel.statement(1))
    every = variants(rng, made, statements)
    rng.shuffle(every)
    return PatternWorld(known, given, every)
