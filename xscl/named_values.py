"""Values with names: `[extract(./content, "CVE-[0-9]+")->cve]` in a filter. The node gets a variable, the name with a
prime, and the name stands for the function of that node. If it has several values, each use of the name chooses one.
The filter holds if there is a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from xscl import syntax
from xscl.algebra import values as exp
from xscl.algebra.joins import NEGATED
from xscl.check_expressions import SIGNATURES, ExprContext, blocks, check_operand, of_several, visible_names
from xscl.text import Problem

_Names = Mapping[str, exp.Call]  # expressions that names stand for


def with_values(query: syntax.Query) -> syntax.Query:
    """Replaces names of values in a query by what they stand for. Raises Problem."""
    return _Replacing({name for block in blocks(query.source) for name in visible_names(block)}).query(query)


class _Replacing:
    """`taken` are the variables of a query."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._named = set[str]()  # all names so far, including those of values that are only visible in their context

    def query(self, query: syntax.Query) -> syntax.Query:
        source, names = self._source(query.source)
        if not names and source == query.source:
            return query
        once = query.once and replace(query.once, keys=tuple([self._put(key, names) for key in query.once.keys]))
        return replace(query, source=source, select=self._selected(query.select, names), once=once)

    def _source(self, source: syntax.Input) -> tuple[syntax.Input, _Names]:
        """Returns an input without named values, and the named values that are visible outside it."""
        match source:
            case syntax.Block():
                found: dict[str, exp.Call] = {}
                return replace(source, steps=self._steps(source.steps, found)), found
            case syntax.Join():
                (left, of_left), (right, of_right) = self._source(source.left), self._source(source.right)
                both = {**of_left, **of_right}
                joined = replace(source, left=left, right=right, pred=self._put(source.pred, both))
                return joined, of_left if source.op in NEGATED else both
            case syntax.SubQuery():
                inner, names = self._source(source.source)
                select = self._selected(source.select, names)
                if isinstance(select, syntax.SelectItems):
                    self._named.difference_update(item.name for item in select.items)
                return replace(source, select=select, source=inner), {}

    def _steps(self, steps: tuple[exp.Step, ...], found: dict[str, exp.Call]) -> tuple[exp.Step, ...]:
        return tuple([replace(step, filters=self._filters(step, found)) if step.filters else step for step in steps])

    def _filters(self, step: exp.Step, found: dict[str, exp.Call]) -> tuple[exp.Expr, ...]:
        filters = [self._filter(one, step, found) for one in step.filters]
        return tuple([one for one in filters if one is not None])

    def _filter(self, condition: exp.Expr, step: exp.Step, found: dict[str, exp.Call]) -> exp.Expr | None:
        """Removes the names of values from a filter. None if nothing is left."""
        match condition:
            case exp.And(args=args):
                some = [one for one in (self._filter(arg, step, found) for arg in args) if one is not None]
                return replace(condition, args=tuple(some)) if len(some) > 1 else some[0] if some else None
            case exp.Rel(steps=steps):
                return replace(condition, steps=self._steps(steps, found))
            case exp.Bound():
                return self._bound(condition, step, found)
        _refuse(condition)
        return condition

    def _bound(self, bound: exp.Bound, step: exp.Step, found: dict[str, exp.Call]) -> exp.Expr | None:
        value, var, span = bound.value, bound.var, bound.span
        for problem in check_operand(value, _NAMED):
            raise problem
        if value.name in exp.TESTS:
            raise Problem(f"{value.name}() is a condition, and has no value", value.span, "leave out its name")
        if var in self._taken:
            raise Problem(f"variable {var} is already bound", span, "use another name, and compare the two")
        self._taken.add(var)
        self._named.add(var)
        if not (paths := _paths(value)):
            raise Problem("a value of constants has no name", span, "write the value where it is used")
        node = exp.Rel((), span)
        exists = exp.Compare("!=", _of(value, node), exp.String("", span), span) if of_several(value) else None
        if len(paths) == 1 and paths[0].steps:
            *above, last = paths[0].steps
            name = last.var or self._fresh(var)
            filters = last.filters if exists is None else (*last.filters, exists)
            found[var] = _of(value, exp.VarPath(name, (), span))
            return replace(paths[0], steps=(*above, replace(last, var=name, filters=filters)))
        if step.var is None:
            hint = f"write such as S//item->a[...->{var}]"
            raise Problem(f"{var} needs a variable for the node that its paths begin at", span, hint)
        found[var] = _replaced(value, lambda leaf: _on(step.var or "", leaf))
        return exists

    def _put(self, expr: Any, names: _Names) -> Any:
        def of_name(leaf: exp.Expr) -> exp.Expr:
            if not isinstance(leaf, exp.VarPath) or leaf.var not in self._named:
                return leaf
            if leaf.var not in names:
                hint = "write it in the braces behind its block, or add it to the inner SELECT"
                raise Problem(f"variable {leaf.var} is bound, but cannot be seen here", leaf.span, hint)
            if leaf.steps:
                raise Problem(f"{leaf.var} is a value, and has nothing below it", leaf.span, f"write {leaf.var} alone")
            return replace(names[leaf.var], span=leaf.span)

        return _replaced(expr, of_name) if self._named else expr

    def _selected(self, select: Any, names: _Names) -> Any:
        def each(parts: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple([self._selected(one, names) for one in parts])

        match select:
            case syntax.SelectItems(items=items):
                return replace(select, items=each(items))
            case syntax.SelectItem(operand=operand) | exp.Hole(operand=operand):
                return replace(select, operand=self._put(operand, names))
            case exp.ElementConstructor(attributes=attributes, children=children):
                some = tuple([(name, each(parts)) for name, parts in attributes])
                return replace(select, attributes=some, children=each(children))
        return select

    def _fresh(self, name: str) -> str:
        while name in self._taken:
            name += "'"
        self._taken.add(name)
        return name


_NAMED = ExprContext("a value with a name", SIGNATURES)


def _refuse(condition: exp.Expr) -> None:
    for one in exp.operands_of(condition):
        if isinstance(one, exp.Bound):
            raise Problem(
                "a value has a name in a filter of its own only", one.span, "write [...->x] beside the others"
            )
        _refuse(one)


def _paths(value: exp.Expr) -> list[exp.Rel]:
    if isinstance(value, exp.Rel):
        return [value]
    return [path for one in exp.operands_of(value) for path in _paths(one)]


def _of(value: exp.Call, node: exp.Expr) -> Any:
    """Replaces the path of a value by a node, if it uses one path only, or one node repeatedly."""
    return _replaced(value, lambda leaf: node if isinstance(leaf, exp.Rel) else leaf)


def _on(var: str, leaf: exp.Expr) -> exp.Expr:
    return exp.VarPath(var, leaf.steps, leaf.span) if isinstance(leaf, exp.Rel) else leaf


def _replaced(expr: Any, leaf: Callable[[exp.Expr], exp.Expr]) -> Any:
    match expr:
        case exp.Call() | exp.And() | exp.Or():
            return replace(expr, args=tuple([_replaced(one, leaf) for one in expr.args]))
        case exp.Not():
            return replace(expr, arg=_replaced(expr.arg, leaf))
        case exp.Compare():
            return replace(expr, left=_replaced(expr.left, leaf), right=_replaced(expr.right, leaf))
    return leaf(expr)
