"""The names of variables by which equal inner joins are one hidden stream."""

from __future__ import annotations

from collections.abc import Mapping

from xscl.algebra.expressions import Call, Compare, Expr, VarPath
from xscl.algebra.normal import Conjunct, Side, Term
from xscl.algebra.pattern import renamed


def canonical_names(conjuncts: tuple[Conjunct, ...]) -> dict[str, str]:
    """A name for each variable of an inner join, whatever the query calls it."""
    names: dict[str, str] = {}
    for conjunct in conjuncts:
        for side in conjunct.sides():
            for var in side.variables():
                names.setdefault(var, f"v{len(names)}")
    return names


def with_canonical_names(conjuncts: tuple[Conjunct, ...]) -> tuple[Conjunct, ...]:
    """The conjunctive queries of an inner join with these names."""
    names = canonical_names(conjuncts)
    return tuple(_rename(conjunct, names) for conjunct in conjuncts)


def _rename(conjunct: Conjunct, names: Mapping[str, str]) -> Conjunct:
    def side(old: Side) -> Side:
        return Side(old.stream, renamed(old.pattern, names), old.hidden)

    return Conjunct(
        side(conjunct.left),
        conjunct.right and side(conjunct.right),
        tuple((Term(names[a.var], a.functions), Term(names[b.var], b.functions)) for a, b in conjunct.joins),
        tuple(_rename_expr(expr, names) for expr in conjunct.residual),
    )


def _rename_expr(expr: Expr, names: Mapping[str, str]) -> Expr:
    match expr:
        case VarPath(var=var):
            return VarPath(names[var])
        case Call(name=name, args=args):
            return Call(name, tuple(_rename_expr(a, names) for a in args))
        case Compare(op=op, left=left, right=right):
            return Compare(op, _rename_expr(left, names), _rename_expr(right, names))
    return expr
