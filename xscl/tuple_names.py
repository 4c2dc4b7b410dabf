"""The names of variables by which equal inner joins are one hidden stream."""

from __future__ import annotations

from collections.abc import Mapping

from xscl.algebra.expressions import Call, Compare, Expr, VarPath
from xscl.algebra.normal import Absent, Branch, Conjunct, Side, Term
from xscl.algebra.pattern import renamed


def canonical_names(conjuncts: tuple[Conjunct, ...], absent: tuple[Absent, ...] = ()) -> dict[str, str]:
    """A name for each variable of an inner join, whatever the query calls it. `absent` is what must not be."""
    names: dict[str, str] = {}
    for conjunct in conjuncts:
        for side in conjunct.sides():
            for var in side.variables():
                names.setdefault(var, f"v{len(names)}")
    for one in absent:
        for branch in one.branches:
            for var in branch.path.variables():
                names.setdefault(var, f"v{len(names)}")
    return names


def with_canonical_names(conjuncts: tuple[Conjunct, ...], absent: tuple[Absent, ...] = ()) -> tuple[Conjunct, ...]:
    """The conjunctive queries of an inner join with these names."""
    names = canonical_names(conjuncts, absent)
    return tuple(_rename(conjunct, names) for conjunct in conjuncts)


def canonical_absent(absent: tuple[Absent, ...], names: Mapping[str, str]) -> tuple[Absent, ...]:
    """What must not be of an inner absence, with these names."""
    return tuple(
        Absent(
            _rename_side(one.right, names),
            _rename_joins(one.joins, names),
            tuple(_rename_expr(expr, names) for expr in one.residual),
            tuple(Branch(names[branch.var], renamed(branch.path, names)) for branch in one.branches),
        )
        for one in absent
    )


def _rename(conjunct: Conjunct, names: Mapping[str, str]) -> Conjunct:
    return Conjunct(
        _rename_side(conjunct.left, names),
        conjunct.right and _rename_side(conjunct.right, names),
        _rename_joins(conjunct.joins, names),
        tuple(_rename_expr(expr, names) for expr in conjunct.residual),
    )


def _rename_side(side: Side, names: Mapping[str, str]) -> Side:
    return Side(side.stream, renamed(side.pattern, names), side.hidden)


def _rename_joins(joins: tuple[tuple[Term, Term], ...], names: Mapping[str, str]) -> tuple[tuple[Term, Term], ...]:
    return tuple((Term(names[a.var], a.functions), Term(names[b.var], b.functions)) for a, b in joins)


def _rename_expr(expr: Expr, names: Mapping[str, str]) -> Expr:
    match expr:
        case VarPath(var=var):
            return VarPath(names[var])
        case Call(name=name, args=args):
            return Call(name, tuple(_rename_expr(a, names) for a in args))
        case Compare(op=op, left=left, right=right):
            return Compare(op, _rename_expr(left, names), _rename_expr(right, names))
    return expr
