"""Value-join normal form (thesis 6.2): conjunctive queries of tree patterns, value joins and residual predicates.

Also decides, for JOIN UNORDERED, which matches have a mirror: a match of the same two documents the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

from common.bounds import deadline
from common.tools import frozen
from xscl.algebra import values as exp
from xscl.algebra.trees import PatternNode, Test, hidden_stream, naming, rename_variables
from xscl.algebra.values import derivation, derive, many_valued, map_operands, number_string, operands_of

JoinOp = Literal["FOLLOWED BY", "JOIN", "JOIN UNORDERED", "NOT FOLLOWED BY", "NOT JOIN", "NOT PRECEDED BY"]

NEGATED: Mapping[JoinOp | None, JoinOp] = {
    "NOT FOLLOWED BY": "FOLLOWED BY",
    "NOT JOIN": "JOIN",
    "NOT PRECEDED BY": "FOLLOWED BY",
}
"""The operators of absences, which select what has no partner, each with the operator that joins partners; NOT PRECEDED
BY with the right input before the left one."""

TUPLE_TEST = Test("element", "", "tuple")
"""The root of a hidden stream's documents. Its children are v0, v1, ..., one for each variable."""


@frozen
class Term:
    """A variable's string value, with functions applied, innermost first."""

    var: str
    functions: tuple[str, ...] = ()


@frozen
class Side:
    """One input of a conjunctive query: a tree pattern over a stream. Only needed variables have names. The pattern
    over a hidden stream is that of its tuples."""

    stream: str
    pattern: PatternNode
    hidden: Hidden | None = None

    def variables(self) -> tuple[str, ...]:
        return tuple(self.pattern.variables())


@frozen
class Conjunct:
    """A conjunctive query. A filter has no `right`. Each of `joins` pairs a left term with a right one."""

    left: Side
    right: Side | None
    joins: tuple[tuple[Term, Term], ...] = ()
    residual: tuple[exp.Expr, ...] = ()

    def sides(self) -> tuple[Side, ...]:
        return (self.left,) if self.right is None else (self.left, self.right)

    def equalities(self) -> tuple[tuple[Term, Term], ...]:
        """The joins by equality; those by words are near(), in `residual`."""
        return tuple(pair for pair in self.joins if many_valued(pair[0].functions) is None)


@frozen
class Branch:
    """A path of a predicate on a variable of an absence's left input: the pattern below the variable's node. It is part
    of what must be absent, and does not restrict the left input itself."""

    var: str
    path: PatternNode


@frozen
class Absent:
    """One disjunct of what must be absent: a match of `right` that has all `joins`, pairs of a left and a right term,
    and satisfies `residual`. `branches` are their paths on the left input."""

    right: Side
    joins: tuple[tuple[Term, Term], ...]
    residual: tuple[exp.Expr, ...] = ()
    branches: tuple[Branch, ...] = ()

    def variables(self) -> set[str]:
        """The variables of both inputs that it needs, including those with a path on them, without the paths' ends."""
        joined = {term.var for pair in self.joins for term in pair}
        used = joined.union(*map(variables_of, self.residual), (branch.var for branch in self.branches))
        return used.difference(*(branch.path.variables() for branch in self.branches))


@frozen
class Hidden:
    """An inner join, as a stream of tuples: one for each set of documents and each joint binding of `variables`. `side`
    is the input of the outer join that it is. Two equal inputs have different documents as tuples. `alone` has the
    conjunctive queries of a JOIN UNORDERED without the outer query's restrictions. `absent` is that of `NormalQuery`.
    """

    op: JoinOp
    window: int | None
    conjuncts: tuple[Conjunct, ...]
    variables: tuple[str, ...]
    side: Literal["left", "right"]
    alone: tuple[Conjunct, ...] = field(default=(), repr=False)
    absent: tuple[Absent, ...] = field(default=(), repr=False)

    @property
    def stream(self) -> str:
        """A name that equal inner joins share, whatever their variables' names. It is stored, and derives from `repr`:
        no class or field inside a Hidden can be renamed."""
        beside = "".join(repr(part) for part in (self.alone, self.absent) if part)
        return hidden_stream(repr(self) + beside)


@frozen
class SelectEntry:
    """A SELECT item: its key in `nodes`, also its element's name, and its value, or a constant's text."""

    key: str
    value: Term | str


@frozen
class OncePer:
    """ONCE PER: report values of `keys` (operands over variables) once in this many microseconds, or ever (None)."""

    keys: tuple[exp.Expr, ...]
    window: int | None


@frozen
class NormalQuery:
    """A query in normal form.

    `op` is None for a filter. `window` is in microseconds, None for INF. With `star` the output is that of `SELECT *`,
    in which roots keep their own names. `holes` fill those of `constructor`, in order. An absence (see NEGATED) has
    `absent`, and its `conjuncts` are filters: the first finds its left input, the others the right one, one per
    disjunct of `absent`.
    """

    op: JoinOp | None
    window: int | None
    conjuncts: tuple[Conjunct, ...]
    entries: tuple[SelectEntry, ...]
    star: bool
    constructor: exp.ElementConstructor | None = None
    holes: tuple[Term | str, ...] = ()
    namespaces: tuple[tuple[str, str], ...] = ()
    once: OncePer | None = field(default=None, repr=False)  # stores keep what was made of `repr` before there was one
    absent: tuple[Absent, ...] = field(default=(), repr=False)


shared_term = lru_cache(maxsize=10_000)(Term)
"""A cached Term: very many queries have the same ones."""


def as_term(expr: exp.Expr) -> Term | None:
    """An expression as a term, if it is a variable with functions applied; else None."""
    if isinstance(expr, exp.VarPath):
        return None if expr.steps else shared_term(expr.var)
    match expr:
        case exp.Call(args=(arg, *_)) if name := derivation(expr):
            term = as_term(arg)
            return term and shared_term(term.var, (*term.functions, name))
    return None


def constant_operand_text(expr: exp.Expr) -> str | None:
    """The text of a constant operand; None for one with a variable."""
    match expr:
        case exp.String(value=value):
            return value
        case exp.Call(args=(arg, *_)) if name := derivation(expr):
            inner = constant_operand_text(arg)
            return None if inner is None else derive(name, inner)
        case exp.Number(text=text):
            return number_string(text)
    return None


def variables_of(expr: exp.Expr) -> Iterator[str]:
    """The variables of a residual predicate or an operand, with repetitions."""
    if isinstance(expr, exp.VarPath):
        yield expr.var
    for operand in operands_of(expr):
        yield from variables_of(operand)


def hole_key(hole: exp.Hole) -> str:
    """The key of a constructor's hole in `nodes`: the name of a variable, else the text between the braces."""
    return hole.operand.var if isinstance(hole.operand, exp.VarPath) and not hole.operand.steps else hole.text


UNORDERED: JoinOp = "JOIN UNORDERED"

_TURNED: dict[exp.CompareOp, exp.CompareOp] = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


@dataclass(frozen=True, eq=False)
class Mirror:
    """Decides whether a match of a join has a mirror: its documents satisfy one of `conjuncts` the other way round."""

    conjuncts: tuple[Conjunct, ...]

    @cached_property
    def always(self) -> bool:
        exchanged = []
        for one in self.conjuncts:
            assert one.right is not None, "a join has two inputs"
            joins = tuple((right, left) for left, right in one.joins)
            exchanged.append(Conjunct(one.right, one.left, joins, one.residual))
        return set(map(_shape, self.conjuncts)) == set(map(_shape, exchanged))


def mirror_of(conjuncts: tuple[Conjunct, ...]) -> Mirror | None:
    """Decides whether matches have mirrors; None if none has: the inputs have no document in common."""
    left, right = conjuncts[0].left, conjuncts[0].right
    if right is None or left.stream != right.stream or left.hidden or right.hidden:
        return None
    return Mirror(conjuncts)


def needed(conjunct: Conjunct) -> frozenset[str]:
    """The variables that decide whether two documents satisfy a conjunctive query."""
    joined = {term.var for pair in conjunct.joins for term in pair}
    return frozenset(joined.union(*map(variables_of, conjunct.residual)))


def _shape(conjunct: Conjunct) -> object:
    """The same for equal conjunctive queries, whatever their variables' names. It may differ for equivalent ones."""
    used, names, patterns = needed(conjunct), dict[str, str](), []
    for place, side in enumerate(conjunct.sides()):
        pattern = naming(side.pattern, used)
        names |= {var: f"{place} {number}" for number, var in enumerate(pattern.variables())}
        patterns.append(rename_variables(pattern, names))
    joins = [tuple(Term(names[term.var], term.functions) for term in pair) for pair in conjunct.joins]
    return *patterns, frozenset(joins), frozenset(repr(_named(expr, names)) for expr in conjunct.residual)


def _named(expr: exp.Expr, names: dict[str, str]) -> exp.Expr:
    match expr:
        case exp.VarPath(var=var):
            return exp.VarPath(names[var])
        case exp.Call(name="near", args=(one, other, threshold)):
            pair = sorted((_named(one, names), _named(other, names)), key=repr)
            return exp.Call("near", (*pair, threshold))
        case exp.Compare(op=op, left=left, right=right):
            one, other = _named(left, names), _named(right, names)
            return exp.Compare(op, one, other) if repr(one) <= repr(other) else exp.Compare(_TURNED[op], other, one)
    return map_operands(expr, lambda operand: _named(operand, names))


def over_at(op: JoinOp, window: int, t0: int, t1: int) -> int:
    """Returns when the time is over in which an absence's left document may have a partner, in microseconds."""
    return t1 if op == "NOT PRECEDED BY" else max(t1, deadline(t0, window))
