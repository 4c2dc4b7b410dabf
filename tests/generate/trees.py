"""Random syntax trees of statements: all that a parser can return, whether it means anything or not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.generate.blocks import OPERATORS as COMPARED
from tests.generate.blocks import flat_and, flat_or
from tests.generate.documents import chance
from xscl import syntax
from xscl.algebra import values

STRINGS = ("", "u", 'a "quoted" text', "it's", "a; b", "-- no comment", "(: nor this :)", "{x}", "50% RETURN", "é\t東")
NUMBERS = ("0", "7", "7.", ".5", "1.50", "007")
WINDOWS = (0, 1, 1_500, 1_500_000, 3_600_000_000, 7 * 86_400_000_000, 2**62 - 1)
NAMES = ("a", "b", "x1", "_y", "i", "s", "h", "number", "count", "true", "inf", "len")
CLAUSES = (
    *("seq", "where", "having", "return", "errors", "budget", "all", "matches", "earliest", "maximal", "non", "set"),
)
"""Keywords of a PATTERN alone: attributes may be called so."""
KEYWORDS = ("from", "by", "AS", "next", "null", "not", "dur", "within")
"""Names behind a dot only."""
FUNCTIONS = ("count", "sum", "argmax", "abs", "lower-case", "contains", "matches", "coalesce", "host", "unknown")
_SIDES: tuple[Any, ...] = ("$1", "$2", "$")
_PLACES: tuple[Any, ...] = ("", "1", "i", "i-1", "LEN", "[]", "..i-1")


def _several(rng: Random, most: int, make: Callable[[], Any]) -> tuple[Any, ...]:
    return tuple(make() for _ in range(rng.randint(1, most)))


class EventTrees:
    """Trees of event queries and of PATTERN."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def statement(self, depth: int) -> syntax.EventQuery:
        rng = self.rng
        publish = rng.choice((None, "p", *NAMES, *CLAUSES))
        if chance(rng, 50):
            within = rng.choice((None, syntax.Window(rng.choice((None, *WINDOWS)))))
            return syntax.EventQuery(self.pattern(depth), self._select(depth), within, publish)
        return syntax.EventQuery(self.stream(depth), self._select(depth), self._window(), publish)

    def _window(self) -> syntax.Window | None:
        return syntax.Window(self.rng.choice((None, *WINDOWS))) if chance(self.rng, 40) else None

    def _name(self) -> str:
        return self.rng.choice((*NAMES, *NAMES, *CLAUSES))

    # ------------------------------------------------------------ streams

    def _select(self, depth: int) -> tuple[syntax.Named | syntax.SelectStar, ...] | None:
        if chance(self.rng, 40):
            return None
        return _several(self.rng, 3, lambda: syntax.SelectStar() if chance(self.rng, 15) else self._named(depth))

    def _named(self, depth: int) -> syntax.Named:
        expr = self.expr(depth)
        if isinstance(expr, syntax.Reference | syntax.ItemReference) and chance(self.rng, 50):
            return syntax.Named(expr, expr.name)
        return syntax.Named(expr, "" if isinstance(expr, values.Call) and chance(self.rng, 20) else self._name())

    def stream(self, depth: int) -> syntax.EventStream:
        rng = self.rng
        if depth <= 0 or chance(rng, 15):
            return syntax.StreamName(self._name())
        kind, less = rng.randrange(6), depth - 1
        match kind:
            case 0:
                return syntax.Filtered(self.expr(less), self.stream(less))
            case 1:
                by = _several(rng, 2, lambda: syntax.Reference("", self._name())) if chance(rng, 50) else ()
                items = _several(rng, 2, lambda: self._named(less))
                return syntax.Grouped(items, by, self._window(), self.stream(less))
            case 2:
                return syntax.NextStream(self.stream(less), self.stream(less), self._maybe(less))
            case 3:
                sets = _several(rng, 2, lambda: self._named(less)) if chance(rng, 50) else ()
                return syntax.Iteration(
                    self.stream(less), self.stream(less), self._maybe(less), self._maybe(less), sets
                )
            case 4:
                return syntax.UnionStream(self.stream(less), self.stream(less))
        select, within = self._select(less), self._window()
        stream = self.stream(less)
        return stream if select is None and within is None else syntax.Inner(select, stream, within)

    def _maybe(self, depth: int) -> syntax.EventExpr | None:
        return None if chance(self.rng, 40) else self.expr(depth)

    # ------------------------------------------------------------ patterns

    def pattern(self, depth: int) -> syntax.Sequenced:
        rng = self.rng
        strategy = None
        if chance(rng, 40):
            listed = _several(rng, 2, lambda: syntax.ListedVariable(rng.choice(NAMES), chance(rng, 50)))
            strategy = syntax.StrategyName(
                rng.choice(("skip_till_next_match", "other")), listed if chance(rng, 40) else ()
            )
        errors = syntax.Errors(rng.randrange(4), rng.choice((None, 1, 100))) if chance(rng, 25) else None
        mode = syntax.Mode(chance(rng, 30), chance(rng, 30))
        return syntax.Sequenced(
            self._components(depth), strategy, self._maybe(depth), errors, self._maybe(depth), mode
        )  # fmt: skip

    def _components(self, depth: int) -> tuple[syntax.Component, ...]:
        return _several(self.rng, 3, lambda: self._component(depth))

    def _component(self, depth: int) -> syntax.Component:
        rng = self.rng
        stream = syntax.StreamName(rng.choice(("A", *NAMES)))
        letter = syntax.LetterOf(stream, chance(rng, 30))
        match rng.randrange(6 if depth > 0 else 3):
            case 0:
                return syntax.OneEvent(stream, rng.choice(NAMES), chance(rng, 40))
            case 1:
                return letter
            case 2:
                return syntax.Repetition(letter, rng.choice((0, 1, 2, 30)))
            case 3:
                return syntax.NoEvent(self._component(depth - 1))
            case 4:
                return syntax.AnyOrder(self._components(depth - 1))
        words = syntax.Alternatives(_several(rng, 3, lambda: self._components(depth - 1)))
        return syntax.Repetition(words, rng.choice((0, 1, 2))) if chance(rng, 50) else words

    # ------------------------------------------------------------ expressions

    def expr(self, depth: int) -> Any:
        rng, less = self.rng, depth - 1
        if depth <= 0 or chance(rng, 15):
            return self._leaf()
        match rng.randrange(8):
            case 0:
                return flat_and(*(self.expr(less) for _ in range(rng.randint(2, 3))))
            case 1:
                return flat_or(*(self.expr(less) for _ in range(rng.randint(2, 3))))
            case 2:
                return values.Not(self.expr(less))
            case 3:
                return values.Compare(rng.choice(COMPARED), self.expr(less), self.expr(less))
            case 4:
                return syntax.IsNull(self.expr(less), chance(rng, 50))
            case 5:
                return syntax.Minus(self.expr(less))
            case 6:
                args = tuple(self.expr(less) for _ in range(rng.randrange(4)))
                return values.Call(rng.choice(FUNCTIONS), args)
        return syntax.ArithmeticExpr(rng.choice("+-*/%"), self.expr(less), self.expr(less))  # type: ignore[arg-type]  # rng.choice has any str

    def _leaf(self) -> syntax.EventExpr:
        rng = self.rng
        match rng.randrange(11):
            case 0:
                return syntax.Reference("", self._name())
            case 1:
                return syntax.Reference(rng.choice(_SIDES), rng.choice((*NAMES, *KEYWORDS)))
            case 2 | 3:
                place = rng.choice(_PLACES)
                name = rng.choice((*NAMES, *KEYWORDS, *(("",) if place in ("[]", "..i-1") else ())))
                return syntax.ItemReference(rng.choice(NAMES), place, name)
            case 4:
                return syntax.EquivalenceTest(_several(rng, 2, lambda: syntax.Reference("", self._name())))
            case 5:
                return syntax.TimeMeasure(rng.choice(("DUR", "GAP")))
            case 6:
                return values.String(rng.choice(STRINGS))
            case 7 | 8:
                return values.Number(rng.choice(NUMBERS))
            case 9:
                return syntax.Percentage(rng.choice(NUMBERS))
        return rng.choice((syntax.Null(), syntax.Window(rng.choice(WINDOWS))))


XML_NAMES = ("a", "item", "x-", "a--b", "a.b", "é", "from", "by", "not", "next", "union", "fold", "text", "xml", "i1")
WORDS = (
    *("S", "a", "b-", "x.y", "é", "selected", "next", "union", "filter", "fold", "within", "once", "per", "event"),
    "in",
)
VARIABLES = (*WORDS, "x'", "y''")
STRING_VALUED = ("host", "lower-case", "string", "substring-after", "words")
OTHER_CALLS = ("contains", "count", "number", "date", "and", "unknown", "near")
OPERATORS: tuple[Any, ...] = (
    *("FOLLOWED BY", "JOIN", "JOIN UNORDERED"),
    *("NOT PRECEDED BY", "NOT FOLLOWED BY", "NOT JOIN"),
)
TEXTS = ("text", " ", "<b>", "{{x}}", "a & b", "&amp;", "\n\t\r", "\"'", "; (: no :) --", "}", "東")


class DocumentTrees:
    """Trees of XSCL's queries and of DEFINE EVENT."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def query(self, depth: int) -> syntax.Query:
        rng = self.rng
        selects: tuple[Any, ...] = (None, syntax.SelectStar(), self._items(depth), self._element(depth))
        publish = rng.choice((None, *WORDS))
        once = None
        if publish is not None and chance(rng, 40):
            once = syntax.Once(
                _several(rng, 2, lambda: self.operand(1)), rng.choice((None, self._window(None, *WINDOWS)))
            )
        return syntax.Query(self.source(depth), rng.choice(selects), publish, once=once)

    def definition(self, depth: int) -> syntax.EventDefinition:
        attributes = _several(self.rng, 3, lambda: self._attribute(depth))
        return syntax.EventDefinition(self.rng.choice(("A", "b-", "x.y")), self._block(depth), attributes)

    def _attribute(self, depth: int) -> syntax.DefinedAttribute:
        operand = self.operand(depth)
        if chance(self.rng, 30):
            return syntax.DefinedAttribute(self.rng.choice(WORDS), operand, False, True)
        is_numeric = values.is_number(operand)
        if isinstance(operand, values.Call) and operand.name == "number" and len(operand.args) == 1:
            operand = operand.args[0]
        return syntax.DefinedAttribute(self.rng.choice(WORDS), operand, is_numeric, False)

    def _window(self, *lengths: int | None) -> syntax.Window:
        return syntax.Window(self.rng.choice(lengths))

    # ------------------------------------------------------------ inputs

    def source(self, depth: int) -> syntax.Input:
        rng, less = self.rng, depth - 1
        if depth <= 0 or chance(rng, 30):
            return self._block(depth)
        if chance(rng, 25):
            return syntax.SubQuery(syntax.SelectStar() if chance(rng, 30) else self._items(less), self.source(less))
        op = rng.choice(OPERATORS)
        ends = () if op in ("NOT FOLLOWED BY", "NOT JOIN") else (None,)
        return syntax.Join(
            op, self.source(less), self.source(less), self._predicate(less), self._window(*ends, *WINDOWS)
        )

    def _block(self, depth: int) -> syntax.Block:
        return syntax.Block(self.rng.choice(WORDS), _several(self.rng, 3, lambda: self._step(depth - 1, bound=True)))

    def _step(self, depth: int, *, bound: bool) -> values.Step:
        rng = self.rng
        kind: Any = rng.choice(("element", "element", "attribute"))
        prefix = rng.choice((None, None, "*", *XML_NAMES[:4]))
        local = rng.choice(XML_NAMES)
        if kind == "element" and prefix != "*" and chance(rng, 20):
            local = "*"
        elif kind == "attribute" and (prefix == "*" or chance(rng, 10)):
            prefix, local = None, "*"
        filters = _several(rng, 2, lambda: self._condition(depth)) if chance(rng, 30) else ()
        var = rng.choice(VARIABLES) if bound and chance(rng, 40) else None
        return values.Step(rng.choice(("/", "//")), values.NameTest(kind, local, prefix), filters, var)

    # ------------------------------------------------------------ filters

    def _condition(self, depth: int) -> values.Expr:
        rng, less = self.rng, depth - 1
        if depth <= 0 or chance(rng, 20):
            return self._path(0)
        match rng.randrange(5):
            case 0:
                return flat_and(*(self._condition(less) for _ in range(rng.randint(2, 3))))
            case 1:
                return flat_or(*(self._condition(less) for _ in range(rng.randint(2, 3))))
            case 2:
                return values.Not(self._condition(less))
            case 3:
                return values.Compare(rng.choice(COMPARED), self._value(less), self._value(less))
        return rng.choice((values.Number("1"), values.String("u"), self._call(less, OTHER_CALLS)))

    def _path(self, depth: int) -> values.Rel:
        if chance(self.rng, 20):
            return values.Rel(())
        return values.Rel(_several(self.rng, 2, lambda: self._step(depth - 1, bound=True)))

    def _value(self, depth: int) -> values.Expr:
        rng = self.rng
        if depth > 0 and chance(rng, 40):
            return rng.choice((self._call(depth, OTHER_CALLS + STRING_VALUED), values.Not(self._condition(depth - 1))))
        return rng.choice((self._path(depth), values.String(rng.choice(STRINGS)), self._number()))

    def _number(self) -> values.Number:
        return values.Number(self.rng.choice(("", "-")) + self.rng.choice(NUMBERS))

    def _call(self, depth: int, names: tuple[str, ...]) -> values.Call:
        rng = self.rng
        args = _several(rng, 3, lambda: rng.choice((self._value, self._condition))(depth - 1))
        return values.Call(rng.choice(names), args)

    # ------------------------------------------------------------ predicates and SELECT

    def _predicate(self, depth: int) -> values.Expr:
        rng, less = self.rng, depth - 1
        if depth <= 0 or chance(rng, 20):
            return self.operand(depth)
        match rng.randrange(4):
            case 0:
                return flat_and(*(self._predicate(less) for _ in range(rng.randint(2, 3))))
            case 1:
                return flat_or(*(self._predicate(less) for _ in range(rng.randint(2, 3))))
            case 2:
                return values.Compare(rng.choice(COMPARED), self.operand(less), self.operand(less))
        return values.Not(self.operand(0))

    def operand(self, depth: int) -> values.Expr:
        rng = self.rng
        if depth > 0 and chance(rng, 40):
            args = _several(rng, 3, lambda: rng.choice((self.operand, self._predicate))(depth - 1))
            return values.Call(rng.choice(OTHER_CALLS + STRING_VALUED), args)
        steps = _several(rng, 2, lambda: self._step(depth - 1, bound=False)) if chance(rng, 40) else ()
        return rng.choice(
            (values.VarPath(rng.choice(VARIABLES), steps), values.String(rng.choice(STRINGS)), self._number())
        )

    def _items(self, depth: int) -> syntax.SelectItems:
        return syntax.SelectItems(_several(self.rng, 3, lambda: self._item(depth)))

    def _item(self, depth: int) -> syntax.SelectItem:
        operand = self.operand(depth)
        if isinstance(operand, values.VarPath) and not operand.steps and chance(self.rng, 60):
            return syntax.SelectItem(operand, operand.var)
        return syntax.SelectItem(operand, self.rng.choice(WORDS))

    def _element(self, depth: int) -> values.ElementConstructor:
        rng = self.rng
        names = dict.fromkeys(rng.choice(("a", "p:b", "x-")) for _ in range(rng.randrange(3)))
        attributes = tuple((name, self._parts(depth, rng.randrange(3), 0)) for name in names)
        return values.ElementConstructor(rng.choice(XML_NAMES), attributes, self._parts(depth, rng.randrange(4), depth))

    def _parts(self, depth: int, count: int, nested: int) -> tuple[Any, ...]:
        found: list[Any] = []
        for _ in range(count):
            if chance(self.rng, 40) and not (found and isinstance(found[-1], str)):
                found.append(self.rng.choice(TEXTS))
            elif nested > 0 and chance(self.rng, 40):
                found.append(self._element(nested - 1))
            else:
                found.append(values.Hole(self.operand(depth - 1)))
        return tuple(found)
