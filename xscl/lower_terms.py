"""Terms as expressions, and constants as conditions of patterns."""

from __future__ import annotations

from dataclasses import replace

from xscl.algebra.expressions import Call, Compare, Expr, String, VarPath
from xscl.algebra.functions import parted
from xscl.algebra.normal import Term
from xscl.algebra.pattern import Condition, PatternNode, transform


def expression(term: Term, of: Expr | None = None) -> Expr:
    """The term as an expression of its variable, or of another operand."""
    expr: Expr = of or VarPath(term.var)
    for function in term.functions:
        name, literal = parted(function)
        expr = Call(name, (expr,) if literal is None else (expr, String(literal)))
    return expr


def constant_equality(expr: Expr) -> tuple[str, str] | None:
    """The variable and the text of a comparison that says that a variable is equal to a text; else None."""
    match expr:
        case Compare(op="=", left=VarPath(var=var), right=String(value=text)):
            return var, text
        case Compare(op="=", left=String(value=text), right=VarPath(var=var)):
            return var, text
    return None


def require(pattern: PatternNode, var: str, condition: Condition) -> PatternNode:
    """The pattern, in which the node of a variable has a condition, too."""
    return transform(
        pattern,
        lambda n: (
            replace(n, conditions=(*n.conditions, condition)) if n.var == var and condition not in n.conditions else n
        ),
    )
