"""Values and conditions of `xscl.algebra.events`, evaluated as the oracle does what is written."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tests.oracle import event_syntax as written
from tests.oracle.event_values import Scope, evaluate
from tests.oracle.event_values import Value as Held
from tests.oracle.event_values import holds as _holds
from xscl.algebra import events as algebra
from xscl.algebra.values import split_function

_SIDES: dict[algebra.Part, written.Side] = {"left": "$1", "right": "$2", "latest": "$"}


@dataclass(frozen=True)
class Pair:
    """What attributes mean: of the left, the right and FOLD's latest event. Times in microseconds."""

    values: Mapping[algebra.Part, Mapping[str, Held]]
    duration: int
    gap: int = 0

    @property
    def scope(self) -> Scope:
        values = self.values
        return Scope(values["left"], self.duration, values.get("right"), values.get("latest"), self.gap)


def value_of(value: algebra.Value, pair: Pair) -> Held:
    return evaluate(_expr(value), pair.scope)


def holds(condition: algebra.EventCondition, pair: Pair) -> bool:
    return _holds(_cond(condition), pair.scope)


@cache
def _expr(value: algebra.Value) -> written.Expr:
    """A value in the oracle's syntax. A parameter is an attribute of the left event."""
    match value:
        case algebra.Constant(value=str(text)):
            return written.Str(text)
        case algebra.Constant(value=number):
            return written.Num(repr(number))
        case algebra.Parameter(index=index):
            return written.Ref(f"?{index}", "$1")
        case algebra.Attribute(part=part, name=name):
            return written.Ref(name, _SIDES[part])
        case algebra.Duration():
            return written.Time("DUR")
        case algebra.Gap():
            return written.Time("GAP")
        case algebra.Arithmetic(op=op, left=left, right=right):
            return written.Op(op, _expr(left), _expr(right))
        case algebra.Function(name=name, args=args):
            function, literal = split_function(name)
            return written.Fn(function, (*map(_expr, args), *(() if literal is None else (written.Str(literal),))))
    raise AssertionError(f"no value: {value}")


@cache
def _cond(condition: algebra.EventCondition) -> written.Cond:
    match condition:
        case algebra.AllOf(args=args):
            return written.Both("AND", tuple(map(_cond, args)))
        case algebra.AnyOf(args=args):
            return written.Both("OR", tuple(map(_cond, args)))
        case algebra.NullTest(value=value, negated=negated):
            return written.IsNull(_expr(value), negated)
        case algebra.TextTest(name=name, args=texts, negated=negated):
            test = written.Test(name, tuple(map(_expr, texts)))
            return written.Not(test) if negated else test
        case algebra.Comparison(op=op, left=left, right=right):
            return written.Cmp(op, _expr(left), _expr(right))
