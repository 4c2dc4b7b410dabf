"""Checks the meaning of a well-formed script: names, scopes, functions, joins and PUBLISH."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches

from common.progress import followed
from xscl.algebra.expressions import (
    And,
    Call,
    Compare,
    ElementConstructor,
    Expr,
    Hole,
    NodeKind,
    Not,
    Or,
    Rel,
    Span,
    Step,
    VarPath,
)
from xscl.algebra.normal import NEGATED, JoinOp
from xscl.check_comparisons import check_comparisons, check_constant
from xscl.check_expressions import FILTER, PREDICATE, SELECT, Place, check_condition, check_operand
from xscl.check_once import check_once
from xscl.check_publishing import check_publishing
from xscl.disjuncts import MAX_DISJUNCTS, TooManyDisjuncts, disjuncts
from xscl.equalities import has_near_join, in_each_arm, is_value_join, missing_equality
from xscl.foreign import dotted_hint
from xscl.problems import Lines, Problem
from xscl.scope import NameKind, blocks, operand_kind, star_items, variables_of_plain, visible_names
from xscl.script import Script
from xscl.syntax import Block, Input, Join, Query, SelectItem, SelectItems, SubQuery

MAX_VALUE_JOINS = 16
"""How many equalities between its two inputs one disjunct of a join predicate may have."""

MAX_INPUTS = 50
"""How many inputs one query may join."""

MAX_STEPS = 100
"""How many steps a path may have."""

_BINDS = re.compile(r"\s*(?:->|as\b)\s*", re.IGNORECASE)


def check_script(
    script: Script, lines: Lines, in_place: Callable[[int], Query], *, stored: bool = False
) -> list[Problem]:
    """Every mistake in the meaning of a script's queries. `lines` are the script's. `in_place` parses the query of a
    number, counted from 0, again: the spans inside those of the script may be those of other queries. With `stored` the
    script was checked when it was registered: comparisons that earlier versions took are none."""
    prefixes = {prefix for prefix, _ in script.namespaces} | {"xml"}
    problems: list[Problem] = []
    right: set[tuple[object, ...]] = set()
    for number, query in enumerate(followed("checking", script.queries)):
        parts = query.shared_parts()
        if parts in right:  # nothing is wrong with a name or a window by itself
            continue
        if query_problems(query, lines, prefixes, by_filter=True, stored=stored):
            problems += query_problems(in_place(number), lines, prefixes, stored=stored)
        else:
            right.add(parts)
    return problems + list(check_publishing(script, in_place, lines.text))


def query_problems(
    query: Query, lines: Lines, prefixes: set[str], *, by_filter: bool = False, stored: bool
) -> list[Problem]:
    """The mistakes of a query. With `by_filter`, filters that many queries have are looked at once, and the places of
    mistakes are not right."""
    checker = _QueryChecker(lines, prefixes, by_filter=by_filter, stored=stored)
    checker.query(query)
    return checker.problems


class _QueryChecker:
    """Checks one query, and collects its `problems`."""

    def __init__(self, lines: Lines, prefixes: set[str], *, by_filter: bool, stored: bool) -> None:
        self.by_filter, self.stored = by_filter, stored
        self.lines, self.prefixes = lines, prefixes
        self.problems: list[Problem] = []
        self.bound: dict[str, Span] = {}
        self.unseen: dict[str, JoinOp] = {}  # the variables of what did not come, with the operators

    def problem(self, message: str, span: Span, hint: str) -> None:
        self.problems.append(Problem(message, span, hint))

    # ------------------------------------------------------------ sources

    def query(self, query: Query) -> None:
        inputs = blocks(query.source)
        if len(inputs) > MAX_INPUTS:
            hint = "PUBLISH a part of it, and read that stream"
            self.problem(f"more than {MAX_INPUTS} inputs in one query", inputs[MAX_INPUTS].span, hint)
            return
        self.bind_all(query.source)
        names = self.source(query.source)
        match query.select:
            case SelectItems():
                self.items(query.select, names)
            case ElementConstructor():
                self.element(query.select, names)
            case _ if not self.problems:
                self.star(query.source, query.span)
        self.once(query, names)

    def bind_all(self, source: Input) -> None:
        """Checks the blocks and collects all variables. A name may be used left of where it is bound."""
        match source:
            case Join():
                self.bind_all(source.left)
                self.bind_all(source.right)
            case SubQuery():
                self.bind_all(source.source)
            case Block():
                self.steps(source.steps, None, binds=True)

    def source(self, source: Input) -> dict[str, NameKind]:
        """Checks the joins and the SELECTs in parentheses. Returns the names that can be used outside of the source."""
        match source:
            case Join():
                left, right = self.source(source.left), self.source(source.right)
                self.predicate(source, left, right)
                if source.op in NEGATED:
                    self.unseen |= dict.fromkeys(right, source.op)
            case SubQuery():
                names = self.source(source.source)
                if isinstance(source.select, SelectItems):
                    self.items(source.select, names)
                    for item in source.select.items:
                        if item.operand != VarPath(item.name):
                            self.bind(item.name, _end(item.span, item.name))
                else:
                    self.star(source.source, source.select.span)
                    for name in visible_names(source).keys() - names.keys():
                        self.bind(name, source.select.span)
        return visible_names(source)

    def star(self, source: Input, span: Span) -> None:
        names = [name for name, _ in star_items(source)]
        for name in sorted({name for name in names if names.count(name) > 1}):
            hint = "bind the blocks' last steps to names of your own: FROM S//item->a ..."
            self.problem(f"two block roots are named {name}", self.bound.get(name, span), hint)

    # ------------------------------------------------------------ paths

    def bind(self, name: str, span: Span) -> None:
        if name in self.bound:
            line, column = self.lines.place(self.bound[name].start)
            message = f"variable {name} is already bound at {line}:{column}"
            self.problem(message, span, "use another name, and compare the two in a predicate")
        else:
            self.bound[name] = span

    def steps(self, steps: tuple[Step, ...], above: NodeKind | None, *, binds: bool, why: str = "") -> None:
        """Checks a path from a node of kind `above`, or from the document (None).

        If it cannot bind variables, `why` says so in words."""
        if len(steps) > MAX_STEPS:
            self.problem(
                f"a path of more than {MAX_STEPS} steps", steps[MAX_STEPS].span, "write // for the steps between"
            )
            return
        for step in steps:
            if above == "attribute":
                self.problem("an attribute has no steps below it", step.span, "end the path with the attribute")
                return
            above = step.test.kind
            if step.test.prefix is not None:
                self.prefix(step.test.prefix, step.test.span)
            if step.var is not None:
                span = step.span if self.by_filter else self.binding_span(step)
                if binds:
                    self.bind(step.var, span)
                else:
                    self.problem(f"a variable cannot be bound {why}", span, "bind it in a filter of its own: [./a->x]")
            for condition in step.filters:
                if self.by_filter and binds and above == "element":
                    names = variables_of_plain(condition)
                    if names is not None and self.bound.keys().isdisjoint(names):
                        self.bound.update(dict.fromkeys(names, condition.span))
                        continue
                self.condition(condition, FILTER, {}, "./timestamp")
                self.filter(condition, above, binds=binds, why=why)

    def condition(self, expr: Expr, place: Place, names: dict[str, NameKind], path: str) -> None:
        """Checks a condition. `path` is an example of one to a time."""
        found = list(check_condition(expr, place))
        if not found and not self.stored:
            found = list(check_comparisons(expr, names, path, self.text_of))
        self.problems += found

    def text_of(self, expr: Expr) -> str:
        return self.lines.text[expr.span.start : expr.span.end]

    def binding_span(self, step: Step) -> Span:
        """Where a step's variable stands: right behind the test, or at the end of the step."""
        var = step.var or ""
        found = _BINDS.match(self.lines.text, step.test.span.end)
        if found and self.lines.text.startswith(var, found.end()):
            return Span(found.end(), found.end() + len(var))
        return _end(step.span, var)

    def prefix(self, prefix: str | None, span: Span) -> None:
        if prefix not in self.prefixes and prefix not in (None, "*"):
            close = get_close_matches(prefix or "", self.prefixes - {"xml"}, n=1)
            hint = f'put DECLARE NAMESPACE {prefix} = "..."; before the queries'
            self.problem(f"prefix {prefix} is not declared", span, f"did you mean {close[0]}?" if close else hint)

    def filter(self, expr: Expr, context: NodeKind, *, binds: bool, why: str = "") -> None:
        match expr:
            case Rel():
                self.steps(expr.steps, context, binds=binds, why=why)
            case And():
                for arg in expr.args:
                    self.filter(arg, context, binds=binds, why=why)
            case Or():
                for arg in expr.args:
                    self.filter(arg, context, binds=False, why=why or "in an arm of an or")
            case Not():
                self.filter(expr.arg, context, binds=False, why=why or "under not()")
            case Compare():
                for side in (expr.left, expr.right):
                    self.filter(side, context, binds=False, why=why or "inside a comparison")
            case Call():
                for arg in expr.args:
                    self.filter(arg, context, binds=False, why=why or f"inside {expr.name}()")

    # ------------------------------------------------------------ predicates

    def predicate(self, join: Join, left: dict[str, NameKind], right: dict[str, NameKind]) -> None:
        before, both = len(self.problems), left | right
        self.condition(join.pred, PREDICATE, both, f"{next(iter(both), 'x')}/timestamp")
        self.variables(join.pred, both, "in a predicate")
        if len(self.problems) > before:
            return
        try:
            conjunctions = disjuncts(join.pred)
        except TooManyDisjuncts:
            hint = "split the query, and PUBLISH the parts under one name"
            self.problem(f"the predicate has more than {MAX_DISJUNCTS} disjuncts", join.pred.span, hint)
            return
        for conjunction in conjunctions:
            count = sum(is_value_join(literal, left, right, both) for literal in conjunction)
            if count > MAX_VALUE_JOINS:
                message = f"more than {MAX_VALUE_JOINS} value joins in one disjunct"
                self.problem(message, join.pred.span, "join on fewer pairs of nodes")
            elif not count and not has_near_join(conjunction, left, right, both):
                hint = missing_equality(conjunction, left, self.text_of)
                if len(conjunctions) == 1:
                    self.problem("the predicate has no equality between the two inputs", join.pred.span, hint)
                else:
                    message = "this disjunct of the predicate has no equality between the two inputs"
                    self.problem(message, conjunction[0].span, in_each_arm(hint))

    def variables(self, expr: Expr, names: dict[str, NameKind], where: str) -> None:
        """Checks the variables of a predicate or a SELECT, and the paths on them."""
        match expr:
            case VarPath():
                self.var_path(expr, names, where)
            case And() | Or() | Call():
                for arg in expr.args:
                    self.variables(arg, names, where)
            case Compare():
                self.variables(expr.left, names, where)
                self.variables(expr.right, names, where)
            case Not():
                self.variables(expr.arg, names, where)

    def var_path(self, path: VarPath, names: dict[str, NameKind], where: str) -> None:
        kind = names.get(path.var)
        if kind is not None and not path.steps:
            return
        if kind is None:
            self.unknown_variable(path.var, names, Span(path.span.start, path.span.start + len(path.var)))
        elif kind not in ("element", "attribute") and path.steps:
            hint = "take the path inside the inner SELECT"
            self.problem(f"{path.var} is a value of the inner SELECT, not a node: it has no paths", path.span, hint)
            return
        above: NodeKind = "attribute" if kind == "attribute" else "element"
        self.steps(path.steps, above, binds=False, why=where)

    def unknown_variable(self, var: str, names: Iterable[str], span: Span) -> None:
        close = get_close_matches(var, names, n=1)
        if var in self.unseen:
            message = f"variable {var} has no value here: it is of what did not come"
            hint = f"the variables on the right of {self.unseen[var]} can be used in its braces only"
        elif var in self.bound:
            message = f"variable {var} is bound, but cannot be seen here"
            hint = "add it to the inner SELECT, or move this behind the block that binds it"
        elif var.lower() in ("true", "false"):
            message, hint = f"{var} is no value", 'there are no booleans: compare with a string, as in x = "true"'
        else:
            message = f"variable {var} is not bound"
            known = f"did you mean {close[0]}?" if close else f"bind it in a block, as in //title->{var}"
            hint = dotted_hint(var, self.bound) or known
        self.problem(message, span, hint)

    # ------------------------------------------------------------ SELECT

    def items(self, select: SelectItems, names: dict[str, NameKind]) -> None:
        seen: set[str] = set()
        for item in select.items:
            self.operand(item, names)
            if item.name in seen:
                message = f"two SELECT items are named {item.name}"
                self.problem(message, _end(item.span, item.name), "give one another name with AS")
            seen.add(item.name)

    def operand(self, part: SelectItem | Hole, names: dict[str, NameKind]) -> None:
        self.problems += check_operand(part.operand, SELECT)
        self.problems += check_constant(part.operand, operand_kind(part.operand, names))
        self.variables(part.operand, names, "in SELECT")

    def once(self, query: Query, names: dict[str, NameKind]) -> None:
        problems = list(check_once(query, names))
        self.problems += problems
        for key in query.once.keys if query.once and not problems else ():
            self.variables(key, names, "in ONCE PER")

    def element(self, node: ElementConstructor, names: dict[str, NameKind]) -> None:
        for name, parts in [(node.name, ()), *node.attributes]:
            prefix, colon, local = name.rpartition(":")
            if colon and prefix != "xmlns":
                self.prefix(prefix, self.name_span(node, name))
            elif prefix == "xmlns" or (local == "xmlns" and name is not node.name):
                hint = 'put DECLARE NAMESPACE p = "..."; before the queries, and use the prefix'
                self.problem("a constructor cannot declare namespaces", self.name_span(node, name), hint)
            for part in parts:
                if isinstance(part, Hole):
                    self.operand(part, names)
        for child in node.children:
            if isinstance(child, ElementConstructor):
                self.element(child, names)
            elif isinstance(child, Hole):
                self.operand(child, names)

    def name_span(self, node: ElementConstructor, name: str) -> Span:
        start = self.lines.text.find(name, node.span.start, node.span.end)
        return Span(start, start + len(name)) if start >= 0 else node.span


def _end(span: Span, name: str) -> Span:
    """The span of a name at the end of another span."""
    return Span(span.end - len(name), span.end)
