"""The oracle's PATTERN statements in the algebra, by a way of their own: not through text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.oracle import event_syntax as written
from tests.oracle import pattern_conditions, pattern_syntax
from tests.oracle.event_schemas import Schema
from tests.oracle.event_values import AGGREGATES
from tests.oracle.pattern_world import each_of, items_of, pattern_schema
from xscl.algebra import events as seq
from xscl.algebra.events import (
    Aggregated,
    AllOf,
    AnyOf,
    Arithmetic,
    Attribute,
    Comparison,
    Constant,
    EventCondition,
    Events,
    Function,
    Kind,
    NullTest,
    TextTest,
    Value,
)

_STRATEGIES: dict[str | None, seq.Strategy] = {
    "strict_contiguity": "strict",
    "partition_contiguity": "partition",
    "skip_till_next_match": "next",
    "skip_till_any_match": "any",
    None: "any",
}
_OPPOSITE = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_PHASES: tuple[seq.Phase, ...] = ("first", "each", "complete")


def lowered_pattern(
    statement: pattern_syntax.Pattern | pattern_syntax.Near, schemas: Mapping[str, Schema]
) -> seq.Pattern | seq.NearPattern:
    """A statement in the algebra."""
    if isinstance(statement, pattern_syntax.Near):
        return _near(statement, schemas)
    return _Lowering(statement, schemas).pattern()


class _Lowering:
    def __init__(self, statement: pattern_syntax.Pattern, schemas: Mapping[str, Schema]) -> None:
        self._statement, self._schemas = statement, schemas
        self._variables: list[seq.Variable] = []
        self._places: dict[str, int] = {}
        group = 0
        for one in statement.components:
            members = one.members if isinstance(one, pattern_syntax.AnyOrder) else (one,)
            for member in members:
                self._places[member.variable] = len(self._variables)
                self._variables.append(
                    seq.Variable(
                        member.variable,
                        _source(member.stream, schemas),
                        group,
                        isinstance(member, pattern_syntax.Many),
                        isinstance(member, pattern_syntax.Absent),
                    )
                )
            group += not isinstance(one, pattern_syntax.Absent)
        self._names: dict[seq.Referent, str] = {}

    def pattern(self) -> seq.Pattern:
        statement = self._statement
        negated = {one.variable for _, one in statement.absent}
        order = [one.variable for one in statement.positive]
        conjuncts, kills = [], []
        for one in pattern_conditions.conjuncts(statement.cond):
            own = one.variables & negated
            if own:
                kills.append(self._conjunct(one, self._places[next(iter(own))], "complete"))
                continue
            at, phase = one.last(order) or (0, 0)
            variable = self._places[order[at]]
            if phase != 1:
                conjuncts.append(self._conjunct(one, variable, _PHASES[phase]))
                continue
            if not one.is_of_further(order[at]):
                conjuncts.append(self._conjunct(one, variable, "first", {(variable, "every"): "first"}))
            conjuncts.append(self._conjunct(one, variable, "each", {(variable, "every"): "each"}))
        conjuncts.sort(key=lambda one: (one.variable, _PHASES.index(one.phase)))
        self._begin({})
        having = AllOf(
            tuple(self._cond(one.cond, one.negated) for one in pattern_conditions.conjuncts(statement.having))
        )
        having_names = self._done()
        returned = None
        if statement.select is not None:
            returned = tuple(self._returned(item) for item in items_of(statement))
        schema = pattern_schema(statement, self._schemas)
        return seq.Pattern(
            tuple(self._variables),
            _STRATEGIES[statement.strategy],
            statement.keys,
            tuple(conjuncts),
            tuple(kills),
            having,
            having_names,
            statement.within.us if statement.within else None,
            statement.maximal,
            statement.apart,
            returned,
            tuple(schema.items()),
        )

    def _returned(self, item: written.Item) -> seq.Returned:
        each = each_of(item.expr)
        self._begin({})
        value = self._value(item.expr)
        return seq.Returned(item.label, value, self._done(), None if each is None else self._places[each])

    def _conjunct(
        self,
        one: pattern_conditions.Conjunct,
        variable: int,
        phase: seq.Phase,
        changed: Mapping[tuple[int, str], seq.ItemPosition] = {},
    ) -> seq.WhereConjunct:
        self._begin(changed)
        condition = self._cond(one.cond, one.negated)
        return seq.WhereConjunct(condition, self._done(), variable, phase)

    def _begin(self, changed: Mapping[tuple[int, str], seq.ItemPosition]) -> None:
        self._names, self._changed = {}, changed

    def _done(self) -> seq.Names:
        return tuple((name, of) for of, name in self._names.items())

    def _named(self, of: seq.Referent, kind: Kind) -> Attribute:
        return Attribute("left", self._names.setdefault(of, f"#{len(self._names)}"), kind)

    def _cond(self, cond: written.Cond, negated: bool) -> EventCondition:
        match cond:
            case written.Not():
                return self._cond(cond.arg, not negated)
            case written.Both():
                args = tuple(self._cond(arg, negated) for arg in cond.args)
                return AllOf(args) if (cond.word == "AND") is not negated else AnyOf(args)
            case written.Cmp():
                op = _OPPOSITE[cond.op] if negated else cond.op
                return Comparison(op, self._value(cond.left), self._value(cond.right))  # type: ignore[arg-type]
            case written.IsNull():
                return NullTest(self._value(cond.value), cond.negated is not negated)
            case written.Test():
                return TextTest(cond.name, tuple(map(self._value, cond.args)), negated)
        raise TypeError(cond)

    def _value(self, expr: written.Expr) -> Value:
        match expr:
            case written.Num():
                return Constant(expr.value())
            case written.Str():
                return Constant(expr.value)
            case written.Window():
                return Constant(expr.us / 10**6)
            case written.Of():
                variable = self._places[expr.variable]
                places: dict[str, seq.ItemPosition] = {
                    "": "only",
                    "1": "first",
                    "i": "each",
                    "i-1": "previous",
                    "LEN": "last",
                    "[]": "every",
                }
                place = places[expr.place]
                place = self._changed.get((variable, place), place)
                kind = dict(self._variables[variable].source.schema)[expr.name]
                return self._named(seq.OfItem(variable, place, expr.name), kind)
            case written.Len():
                return self._named(seq.Length(self._places[expr.variable]), "number")
            case written.Op():
                return Arithmetic(expr.op, self._value(expr.left), self._value(expr.right))
            case written.Fn() if expr.name in AGGREGATES:
                return self._aggregate(expr)
            case written.Fn():
                args = tuple(map(self._value, expr.args))
                numeric = expr.name in ("number", "string-length", "abs")
                return Function(expr.name, args, "number" if numeric else "string")
        raise TypeError(expr)

    def _aggregate(self, call: written.Fn) -> Attribute:
        (of,) = {(one.variable, one.place) for arg in call.args for one in _items(arg)}
        variable = self._places[of[0]]
        schema = dict(self._variables[variable].source.schema)
        args = tuple(
            Attribute("left", arg.name, schema[arg.name])
            for arg in call.args
            if isinstance(arg, written.Of) and arg.name
        )
        made = Aggregated(call.name, args)  # type: ignore[arg-type]
        kind: Kind = args[0].kind if call.name == "argmax" else "number"
        return self._named(seq.OfItems(variable, made, of[1] == "..i-1"), kind)


def _items(expr: written.Expr) -> list[written.Of]:
    assert isinstance(expr, written.Of)
    return [expr]


def _source(stream: str, schemas: Mapping[str, Schema]) -> Events:
    return Events(stream, tuple(schemas[stream].items()))


def _near(statement: pattern_syntax.Near, schemas: Mapping[str, Schema]) -> seq.NearPattern:
    def letters(part: pattern_syntax.Letters) -> seq.Letters:
        match part:
            case pattern_syntax.Letter():
                return seq.Letter(_source(part.stream, schemas), part.needed)
            case pattern_syntax.OneOf():
                return seq.OneOf(tuple(word(some) for some in part.words))
            case pattern_syntax.Times():
                return seq.Repeated(letters(part.part), part.least)
        raise TypeError(part)

    def word(parts: Sequence[pattern_syntax.Letters]) -> seq.Letters:
        return seq.Word(tuple(map(letters, parts)))

    returned = None
    if statement.select is not None:
        returned = tuple((item.label, _near_value(item.expr)) for item in statement.select)
    return seq.NearPattern(
        word(statement.word),
        statement.errors,
        statement.budget,
        statement.keys,
        statement.within.us if statement.within else None,
        statement.apart,
        returned,
        tuple(pattern_schema(statement, schemas).items()),
    )


def _near_value(expr: written.Expr) -> Value:
    if isinstance(expr, written.Str):
        return Constant(expr.value)
    assert isinstance(expr, written.Ref)
    return Attribute("left", expr.name, "number")
