"""JOIN UNORDERED: which matches of a join have a mirror, a match of the same two documents the other way round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from xscl.algebra.expressions import Call, Compare, CompareOp, Expr, VarPath
from xscl.algebra.normal import Conjunct, JoinOp, Term, variables_of
from xscl.algebra.pattern import naming, renamed

UNORDERED: JoinOp = "JOIN UNORDERED"

_TURNED: dict[CompareOp, CompareOp] = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


@dataclass(frozen=True, eq=False)
class Mirror:
    """What decides whether a match of a join has a mirror: one whose documents satisfy one of `conjuncts` the other way
    round does."""

    conjuncts: tuple[Conjunct, ...]

    @cached_property
    def always(self) -> bool:
        """Whether each match has a mirror."""
        return {_shape(c) for c in self.conjuncts} == {_shape(_exchanged(c)) for c in self.conjuncts}


def mirror_of(conjuncts: tuple[Conjunct, ...]) -> Mirror | None:
    """What decides whether the matches of a join have mirrors; None if none has one: its inputs have no document in
    common."""
    left, right = conjuncts[0].left, conjuncts[0].right
    if right is None or left.stream != right.stream or left.hidden or right.hidden:
        return None
    return Mirror(conjuncts)


def needed(conjunct: Conjunct) -> frozenset[str]:
    """The variables that decide whether two documents satisfy a conjunctive query."""
    joined = {term.var for pair in conjunct.joins for term in pair}
    return frozenset(joined.union(*map(variables_of, conjunct.residual)))


def _exchanged(conjunct: Conjunct) -> Conjunct:
    assert conjunct.right is not None, "a join has two inputs"
    joins = tuple((right, left) for left, right in conjunct.joins)
    return Conjunct(conjunct.right, conjunct.left, joins, conjunct.residual)


def _shape(conjunct: Conjunct) -> object:
    """What equal conjunctive queries have in common, whatever their variables are called. Others may be told apart
    although they mean the same."""
    used, names, patterns = needed(conjunct), dict[str, str](), []
    for place, side in enumerate(conjunct.sides()):
        pattern = naming(side.pattern, used)
        names |= {var: f"{place} {number}" for number, var in enumerate(pattern.variables())}
        patterns.append(renamed(pattern, names))
    joins = [tuple(Term(names[term.var], term.functions) for term in pair) for pair in conjunct.joins]
    return *patterns, frozenset(joins), frozenset(repr(_named(expr, names)) for expr in conjunct.residual)


def _named(expr: Expr, names: dict[str, str]) -> Expr:
    match expr:
        case VarPath(var=var):
            return VarPath(names[var])
        case Call(name="near", args=(one, other, threshold)):
            pair = sorted((_named(one, names), _named(other, names)), key=repr)
            return Call("near", (*pair, threshold))
        case Call(name=name, args=args):
            return Call(name, tuple(_named(arg, names) for arg in args))
        case Compare(op=op, left=left, right=right):
            one, other = _named(left, names), _named(right, names)
            return Compare(op, one, other) if repr(one) <= repr(other) else Compare(_TURNED[op], other, one)
    return expr
