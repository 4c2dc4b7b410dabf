"""Values and conditions of one operator in SQL, over the tables of its inputs and that of parameters.

What is about one input alone is asked of it as a column, and what is about parameters alone is a column of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from pattern_stage.formula import leaves, rewritten, rewritten_condition
from pattern_stage.predicates import kind_of
from xscl.algebra.events import (
    AllOf,
    AnyOf,
    Arithmetic,
    Attribute,
    Comparison,
    Condition,
    Duration,
    Function,
    Gap,
    Kind,
    NullTest,
    Parameter,
    TextTest,
    Value,
)

Place = int
"""The place of a node in a normal form."""

Shown = Literal["code", "number", "text", "truth"]
"""How SQL has a value: as the code of a string, as a number, or as the string itself; `truth` is that of a test."""

Derived = tuple[Value | TextTest, Shown]
"""What a column has, as a value of the event that is the left one, or of parameters."""

_CONTAINS = {
    "contains": "contains({}, {})",
    "starts-with": "substring({0}, 1, length({1})) = {1}",
    "ends-with": "right({0}, length({1})) = {1}",
}


class NotSql(Exception):
    """There is no question in SQL for this."""


class AsConstant(Exception):
    """These constants cannot be parameters: they have to be known for each question."""

    def __init__(self, slots: frozenset[int]) -> None:
        super().__init__(slots)
        self.slots = slots


class Scope:
    """The inputs of an operator: the left one is `l`, the right one `r`, and the parameters are `p`."""

    def __init__(
        self, inputs: Sequence[Place], column: Callable[[Place, Derived], str], parameter: Callable[[Derived], str]
    ) -> None:
        """`column` asks an input for a column, `parameter` the parameters; both return its name."""
        self._inputs, self._column, self._parameter = inputs, column, parameter
        self.uses_parameters = False

    def derived(self, derived: Derived) -> str:
        """Returns what a column of the left input, which has it, is called."""
        return f"l.{self._column(self._inputs[0], derived)}"

    def window(self, number: int) -> str:
        """Returns a window of the statement."""
        self.uses_parameters = True
        return f"p.w{number}"

    # ------------------------------------------------------------ conditions

    def condition(self, condition: Condition) -> str:
        """Returns a condition. One with a NULL is not true."""
        match condition:
            case AllOf(args=args):
                return _joined([self.condition(arg) for arg in args], "AND", "TRUE")
            case AnyOf(args=args):
                return _joined([self.condition(arg) for arg in args], "OR", "FALSE")
            case Comparison(op=op, left=left, right=right):
                are_texts = op in ("=", "!=") and kind_of(left) == kind_of(right) == "string"
                one, other = (self.value(side, "code" if are_texts else "number") for side in (left, right))
                return f"{one} {'<>' if op == '!=' else op} {other}"
            case NullTest(value=value, negated=negated):
                return f"{self.value(value, plain(kind_of(value)))} IS {'NOT ' if negated else ''}NULL"
            case TextTest():
                return self._test(condition)

    def _test(self, test: TextTest) -> str:
        side = self._side(test.args)
        if side is not None:
            return self._of_side(side, test, "truth")
        if test.name not in _CONTAINS:
            raise _lacking(test.args)
        written = _CONTAINS[test.name].format(*(self.value(arg, "text") for arg in test.args))
        return f"NOT ({written})" if test.negated else written

    # ------------------------------------------------------------ values

    def value(self, value: Value, form: Shown) -> str:
        """Returns a value."""
        side = self._side([value])
        if side is not None:
            return self._of_side(side, value, form)
        if not any(isinstance(leaf, Attribute | Duration | Gap) for leaf in leaves(value)):
            self.uses_parameters = True
            return f"p.{self._parameter((value, form))}"
        if form == "number":
            return self._number(value)
        match value:
            case Function(name="coalesce", args=args) if form == "code":
                return f"coalesce({', '.join(self.value(arg, 'code') for arg in args)})"
        raise _lacking([value])

    def _number(self, value: Value) -> str:
        match value:
            case Duration():
                return "CAST(r.t1 - l.t0 AS DOUBLE) / 1e6"
            case Gap():
                return "CAST(r.t0 - l.t1 AS DOUBLE) / 1e6"
            case Arithmetic(op=op, left=left, right=right):
                one, other = self.value(left, "number"), self.value(right, "number")
                if op in ("/", "%"):
                    other = f"nullif({other}, CAST(0 AS DOUBLE))"
                return _finite(f"({one} {op} {other})")
            case Function(name="coalesce", args=args, kind="number"):
                return f"coalesce({', '.join(self.value(arg, 'number') for arg in args)})"
            case Function(name="abs", args=(arg,)):
                return f"abs({self.value(arg, 'number')})"
            case Function(name="number", args=(arg,)) if kind_of(arg) == "number":
                return self.value(arg, "number")
        raise _lacking([value])

    def _side(self, values: Sequence[Value]) -> int | None:
        """Returns which input alone knows values: its place among the inputs; None if neither does."""
        sides = set[int]()
        for leaf in (leaf for value in values for leaf in leaves(value)):
            match leaf:
                case Parameter():
                    return None
                case Attribute(part=part):
                    sides.add(1 if part == "right" else 0)
                case Duration() | Gap():
                    sides.update(range(len(self._inputs)))
        return sides.pop() if len(sides) == 1 else None

    def _of_side(self, side: int, item: Value | TextTest, form: Shown) -> str:
        return f"{'lr'[side]}.{self._column(self._inputs[side], (on_left(item), form))}"


def plain(kind: Kind) -> Shown:
    """Returns how values of a kind are compared and returned."""
    return "code" if kind == "string" else "number"


def on_left(item: Value | TextTest) -> Value | TextTest:
    """Returns a value or a test of the right event as one of an event alone."""

    def leaf(one: Value) -> Value:
        return Attribute("left", one.name, one.kind) if isinstance(one, Attribute) else one

    if isinstance(item, TextTest):
        found = rewritten_condition(item, leaf)
        assert isinstance(found, TextTest)
        return found
    return rewritten(item, leaf)


def _finite(number: str) -> str:
    """NULL in place of a number that is not finite; SQL holds NaN to be greater than all others."""
    return f"CASE WHEN abs({number}) < CAST('Infinity' AS DOUBLE) THEN {number} END"


def _joined(parts: Sequence[str], word: str, none: str) -> str:
    if not parts:
        return none
    return parts[0] if len(parts) == 1 else f"({f' {word} '.join(parts)})"


def _lacking(values: Sequence[Value]) -> Exception:
    slots = frozenset(leaf.index for value in values for leaf in leaves(value) if isinstance(leaf, Parameter))
    return AsConstant(slots) if slots else NotSql("SQL computes no such value of several events")
