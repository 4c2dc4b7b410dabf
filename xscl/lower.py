"""Lowers a checked query to its value-join normal form (thesis 6.2), defined in `xscl.algebra.joins`.

`normalize` resolves names, splits a chain into joins of two inputs, and brings each predicate into disjunctive normal
form. In each disjunct a path on a variable becomes a branch of the variable's pattern, and a comparison becomes a value
join, a condition of a pattern, or a residual predicate. A join inside another becomes a `Hidden` stream, with canonical
variable names, so that equal ones are shared. Of a filter's arms a path becomes a branch, `path = "literal"` a branch
whose last node carries the literal (XPath's existential comparison), and any other a condition in XPath 1.0."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any, Literal

from common.tools import Remembered, frozen
from xscl.algebra import joins as algebra
from xscl.algebra import values as exp
from xscl.algebra.values import canonical, is_number, is_of_times, is_time, map_operands
from xscl.check import disjuncts, near_join
from xscl.check_expressions import star_items, visible_names
from xscl.syntax import Block, Input, Join, Query, SelectItems, SubQuery


@frozen
class Leaf:
    """A block as an input of joins: its number, from 0, and its stream."""

    block: int
    stream: str


@frozen
class JoinNode:
    """A join of two inputs. `scope` has its predicate's names, and `patterns` the patterns of all blocks so far."""

    op: algebra.JoinOp
    window: int | None
    pred: exp.Expr
    scope: JoinNames
    patterns: _Patterns
    left: JoinTree
    right: JoinTree


JoinTree = Leaf | JoinNode

JoinNames = Mapping[str, algebra.Term | str]
"""The referents of visible names. A str is a constant's text."""

VariablePlace = tuple[int, str, tuple[exp.Step, ...]]  # a block, one of its variables, and a path on that


def tree_blocks(tree: JoinTree) -> Iterator[int]:
    if isinstance(tree, Leaf):
        yield tree.block
    else:
        yield from tree_blocks(tree.left)
        yield from tree_blocks(tree.right)


_STRING_ARGUMENTS = frozenset(
    ("contains", "starts-with", "normalize-space", "string-length", "string", "substring-before", "substring-after")
)
"""Functions of XPath 1.0 with string arguments that libxml2 implements correctly."""


class PatternBuilder:
    """Builds tree patterns from syntax. `namespaces` are the URIs of prefixes."""

    def __init__(self, namespaces: Mapping[str, str]) -> None:
        self._uris = dict(namespaces)
        self._filter = Remembered(self._lowered)  # the parser shares the trees of equal filters

    def path(
        self, steps: tuple[exp.Step, ...], last_var: str | None = None, literal: str | None = None
    ) -> algebra.PatternNode:
        """Builds the pattern of a path: a chain of its steps with their filters. The last node is bound to `last_var`
        unless its step has a variable. It must have the string value `literal`, if given."""
        last = steps[-1]
        node = self._step(last, (), last.var or last_var, literal)
        for step in reversed(steps[:-1]):
            node = self._step(step, (node,), step.var)
        return node

    def _step(
        self, step: exp.Step, below: tuple[algebra.PatternNode, ...], var: str | None, literal: str | None = None
    ) -> algebra.PatternNode:
        conditions: tuple[algebra.Condition, ...] = () if literal is None else (algebra.Condition(literal=literal),)
        branches: tuple[algebra.PatternNode, ...] = ()
        for condition in step.filters:
            more, paths = self._filter(condition)
            conditions += more
            branches += paths
        if len(conditions) > 1:
            conditions = tuple(dict.fromkeys(conditions))
        return algebra.PatternNode(step.axis, self.test(step.test), conditions, branches + below, var)

    def _lowered(self, condition: exp.Expr) -> tuple[tuple[algebra.Condition, ...], tuple[algebra.PatternNode, ...]]:
        conditions: list[algebra.Condition] = []
        branches: list[algebra.PatternNode] = []
        for arm in and_arms(condition):
            path, value = path_and_literal(arm)
            if path is None:
                conditions.append(self.condition(arm))
            elif path.steps:
                branches.append(self.path(path.steps, literal=value))
            elif value is not None:
                conditions.append(algebra.Condition(literal=value))
        return tuple(conditions), tuple(branches)

    def test(self, test: exp.NameTest) -> algebra.Test:
        if test.prefix is None:
            uri = "*" if test.local == "*" else ""
        elif test.prefix == "*":
            uri = "*"
        else:
            uri = "http://www.w3.org/XML/1998/namespace" if test.prefix == "xml" else self._uris[test.prefix]
        return algebra.shared_test(test.kind, uri, test.local)

    def part(self, path: exp.VarPath) -> exp.ConcatPart:
        """A path on a variable as a part of concat()."""
        return [self._xpath(exp.Rel(path.steps))]

    def condition(self, expr: exp.Expr) -> algebra.Condition:
        return algebra.Condition(xpath=self._xpath(expr))

    def _xpath(self, expr: exp.Expr) -> str:
        """A filter as XPath 1.0 text, without namespace prefixes except EXTENSION_PREFIX."""
        match expr:
            case exp.Rel(steps=steps):
                return "." + "".join(self._xpath_step(step) for step in steps)
            case exp.String(value=value):
                return algebra.xpath_literal(value)
            case exp.Number(text=text):
                return text
            case exp.Compare(op=op, left=left, right=right) if is_of_times(expr):
                one, two = self._xpath_time(left), self._xpath_time(right)
                return f'{algebra.EXTENSION_PREFIX}:compare-times({one}, "{op}", {two})'
            case exp.Compare(op=op, left=left, right=right):
                one, two = self._xpath(left), self._xpath(right)
                numeric = is_number(left) + is_number(right)
                if _values(left) or _values(right):
                    return f'{algebra.EXTENSION_PREFIX}:compare({one}, "{op}", {two})'
                if numeric == 2 or (numeric == 0 and op in ("=", "!=")):
                    return f"{one} {op} {two}"
                return f'{algebra.EXTENSION_PREFIX}:compare({one}, "{op}", {two})'
            case exp.Call(name=exp.PARTS, args=(node, exp.String(value=parts))):
                return f"{algebra.EXTENSION_PREFIX}:{exp.PARTS}({self._xpath(node)}, {algebra.xpath_literal(parts)})"
            case exp.Call() if values := _values(expr):
                chain = algebra.xpath_literal(json.dumps(values[0], ensure_ascii=False))
                return f"{algebra.EXTENSION_PREFIX}:values({chain}, {self._xpath_string(values[1])})"
            case exp.Call(name=name, args=args) if any(map(_values, args)):
                some = ", ".join(self._xpath(arg) if _values(arg) else self._xpath_string(arg) for arg in args)
                return f'{algebra.EXTENSION_PREFIX}:some("{name}", {some})'
            case exp.Call(name="count", args=(arg,)):
                return f"count({self._xpath(arg)})"
            case exp.Call(name=name, args=args) if name in _STRING_ARGUMENTS:
                return f"{name}({', '.join(self._xpath_string(a) if is_number(a) else self._xpath(a) for a in args)})"
            case exp.Call(name=name, args=args):
                return f"{algebra.EXTENSION_PREFIX}:{name}({', '.join(map(self._xpath_string, args))})"
            case exp.And(args=args):
                return " and ".join(f"({self._xpath(a)})" for a in args)
            case exp.Or(args=args):
                return " or ".join(f"({self._xpath(a)})" for a in args)
            case exp.Not(arg=arg):
                return f"not({self._xpath(arg)})"
        raise AssertionError(f"not a filter: {expr!r}")

    def _xpath_string(self, expr: exp.Expr) -> str:
        if isinstance(expr, exp.Number):
            return algebra.xpath_literal(exp.number_string(expr.text))
        text = self._xpath(expr)
        if is_number(expr):
            return f"{algebra.EXTENSION_PREFIX}:string({text})"
        return f"string({text})" if isinstance(expr, exp.Rel) else text

    def _xpath_time(self, expr: exp.Expr) -> str:
        if isinstance(expr, exp.String):
            return algebra.xpath_literal(exp.time_text(expr.value) or expr.value)
        if is_time(expr) and isinstance(expr, exp.Call):
            return self._xpath_string(expr.args[0])
        return self._xpath(expr)

    def _xpath_step(self, step: exp.Step) -> str:
        test = self.test(step.test)
        parts = []
        # libxml2 accepts only names of XML's fourth edition. Others are compared as text.
        plain = test.uri == "" and test.local.isascii()
        if test.local != "*" and not plain:
            parts.append(f"local-name() = {algebra.xpath_literal(test.local)}")
        if test.uri != "*" and not plain:
            parts.append(f"namespace-uri() = {algebra.xpath_literal(test.uri)}")
        at = "@" if test.kind == "attribute" else ""
        head = test.local if not parts else "*"
        names = f"[{' and '.join(parts)}]" if parts else ""
        filters = "".join(f"[boolean({self._xpath(f)})]" for f in step.filters)
        return f"{step.axis}{at}{head}{names}{filters}"


def _values(expr: exp.Expr) -> tuple[list[str], exp.Expr] | None:
    """The chain of functions of a multi-valued operand, and what it is applied to; None for other operands."""
    match expr:
        case exp.Call(args=(arg, *_)) if name := exp.derivation(expr):
            if exp.values_by(name) is not None:
                return [name], arg
            found = _values(arg)
            return found and ([*found[0], name], found[1])
    return None


def concat_parts(args: Iterable[exp.Expr], part_of: Callable[[exp.VarPath], exp.ConcatPart]) -> list[exp.ConcatPart]:
    """The parts of a concat(), given a function for the parts of its paths."""

    def part(expr: exp.Expr) -> exp.ConcatPart:
        match expr:
            case exp.VarPath():
                return part_of(expr)
            case exp.Call(name="concat", args=inner):
                return [concat_parts(inner, part_of)]
            case exp.Call(args=(arg, *_)) if name := exp.derivation(expr):
                found = part(arg)
                return exp.derive(name, found) if isinstance(found, str) else [*found, name]
        text = algebra.constant_operand_text(expr)
        assert text is not None, "a part of concat() is a path, perhaps in functions, or a constant"
        return text

    return list(map(part, args))


def and_arms(expr: exp.Expr) -> Iterator[exp.Expr]:
    """Yields the conditions that AND connects, from left to right."""
    if isinstance(expr, exp.And):
        for arg in expr.args:
            yield from and_arms(arg)
    else:
        yield expr


def compared_text(expr: exp.Expr) -> tuple[exp.Expr, str] | None:
    """Splits an equality with a text into the other operand and the text, or returns None."""
    match expr:
        case exp.Compare(op="=", left=operand, right=exp.String(value=text)):
            return operand, text
        case exp.Compare(op="=", left=exp.String(value=text), right=operand):
            return operand, text
    return None


def path_and_literal(arm: exp.Expr) -> tuple[exp.Rel | None, str | None]:
    """The path that a condition requires, and the text that it must equal, if any; None for another kind of
    condition."""
    path, text = compared_text(arm) or (arm, None)
    return (path, text) if isinstance(path, exp.Rel) else (None, None)


def expression(term: algebra.Term, of: exp.Expr | None = None) -> exp.Expr:
    expr: exp.Expr = of or exp.VarPath(term.var)
    for function in term.functions:
        name, literal = exp.split_function(function)
        literals = [] if literal is None else literal.split("\n") if name == "extract" else [literal]
        expr = exp.Call(name, (expr, *map(exp.String, literals)))
    return expr


def require(pattern: algebra.PatternNode, var: str, condition: algebra.Condition) -> algebra.PatternNode:
    def required(node: algebra.PatternNode) -> algebra.PatternNode:
        is_bound = node.var == var and condition not in node.conditions
        return replace(node, conditions=(*node.conditions, condition)) if is_bound else node

    return algebra.transform(pattern, required)


def canonical_names(conjuncts: tuple[algebra.Conjunct, ...], absent: tuple[algebra.Absent, ...] = ()) -> dict[str, str]:
    """Returns canonical names for an inner join's variables. `absent` is what must be absent."""
    found = [var for conjunct in conjuncts for side in conjunct.sides() for var in side.variables()]
    found += [var for one in absent for branch in one.branches for var in branch.path.variables()]
    return {var: f"v{number}" for number, var in enumerate(dict.fromkeys(found))}


def _renamed(part: Any, names: Mapping[str, str]) -> Any:
    """Renames the variables of a part of conjunctive queries."""
    match part:
        case algebra.Term():
            return algebra.Term(names[part.var], part.functions)
        case exp.VarPath():
            return exp.VarPath(names[part.var])
        case algebra.Branch():
            return algebra.Branch(names[part.var], algebra.rename_variables(part.path, names))
        case algebra.Side():
            return algebra.Side(part.stream, algebra.rename_variables(part.pattern, names), part.hidden)
        case algebra.Conjunct() | algebra.Absent():
            return type(part)(*[_renamed(getattr(part, one.name), names) for one in fields(part)])
        case tuple():
            return tuple([_renamed(one, names) for one in part])
        case None:
            return None
    return map_operands(part, lambda operand: _renamed(operand, names))


_Literals = tuple[exp.Expr, ...]
_Patterns = tuple[algebra.PatternNode, ...]
_Attach = Callable[[str, algebra.PatternNode], None]
"""Called for a path on a variable, with the variable and the pattern below its node."""
_Roots = tuple[algebra.Term | str, ...]  # referents of the items of `SELECT *`


def normalize(query: Query, namespaces: Mapping[str, str]) -> algebra.NormalQuery:
    """Returns the normal form of a checked query. `namespaces` are the URIs of prefixes."""
    return _Normalizer(namespaces).query(query)


def normalize_readably(
    query: Query, namespaces: Mapping[str, str]
) -> tuple[algebra.NormalQuery, dict[str, exp.VarPath]]:
    """Like `normalize`, for display: patterns keep the names of all variables, and inner joins use those of the query.
    Also returns the query's paths on variables, by the variables of their ends."""
    normalizer = _Normalizer(namespaces, canonical=False)
    return normalizer.query(query), normalizer.paths


def join_tree(query: Query, namespaces: Mapping[str, str]) -> tuple[JoinTree, Callable[[str], VariablePlace]]:
    """The inputs of a checked query as a tree, and a function that locates the variables of its scopes."""
    normalizer = _Normalizer(namespaces, canonical=False)
    tree, _, _ = normalizer.input(query.source)
    return tree, normalizer.located


_builder = lru_cache(maxsize=16)(lambda namespaces: PatternBuilder(dict(namespaces)))


class _Normalizer:
    """Lowers one query. If not `canonical`, inner joins keep the query's variable names."""

    def __init__(self, namespaces: Mapping[str, str], *, canonical: bool = True) -> None:
        self._canonical = canonical
        self.paths: dict[str, exp.VarPath] = {}
        self._ends: dict[str, tuple[str, tuple[exp.Step, ...]]] = {}
        self._namespaces = dict(namespaces)
        self._build = _builder(tuple(self._namespaces.items()))
        self._patterns: list[algebra.PatternNode] = []
        self._block_of: dict[str, int] = {}
        self._fresh = 0

    def query(self, query: Query) -> algebra.NormalQuery:
        tree, scope, roots = self.input(query.source)
        select = query.select
        holes: tuple[algebra.Term | str, ...] = ()
        constructor = None
        star = False
        if isinstance(select, SelectItems):
            entries = tuple(algebra.SelectEntry(item.name, self._select(item.operand, scope)) for item in select.items)
        elif isinstance(select, exp.ElementConstructor):
            constructor = select
            found = list(exp.holes_of(select))
            # Holes with the same text share a variable and a key in `nodes`.
            by_key: dict[str, algebra.Term | str] = {}
            for hole in found:
                if algebra.hole_key(hole) not in by_key:
                    by_key[algebra.hole_key(hole)] = self._select(hole.operand, scope)
            holes = tuple(by_key[algebra.hole_key(hole)] for hole in found)
            terms = ((key, value) for key, value in by_key.items() if isinstance(value, algebra.Term))
            entries = tuple(algebra.SelectEntry(key, value) for key, value in terms)
        else:
            star = True
            entries = tuple(map(algebra.SelectEntry, (name for name, _ in star_items(query.source)), roots))
        needed = frozenset(entry.value.var for entry in entries if isinstance(entry.value, algebra.Term))
        once = None
        if query.once is not None:
            keys = tuple(self._attached(operand, scope) for operand in query.once.keys)
            once = algebra.OncePer(keys, query.once.window.us if query.once.window else None)
            needed |= {var for key in keys for var in algebra.variables_of(key)}
        conjuncts, absent = self._parts(tree, tuple(self._patterns), needed)
        op, window = (tree.op, tree.window) if isinstance(tree, JoinNode) else (None, None)
        namespaces = tuple(sorted(self._namespaces.items()))
        return algebra.NormalQuery(op, window, conjuncts, entries, star, constructor, holes, namespaces, once, absent)

    # ------------------------------------------------------------ names and blocks

    def input(self, source: Input) -> tuple[JoinTree, JoinNames, _Roots]:
        match source:
            case Block():
                return self._block(source)
            case Join(op=op, left=left, right=right, pred=pred, window=window):
                left_tree, left_scope, left_roots = self.input(left)
                right_tree, right_scope, right_roots = self.input(right)
                both = {**left_scope, **right_scope}
                node = JoinNode(op, window.us, pred, both, tuple(self._patterns), left_tree, right_tree)
                visible = (left_scope, left_roots) if op in algebra.NEGATED else (both, left_roots + right_roots)
                return node, *visible
            case SubQuery(select=select, source=inner):
                tree, scope, roots = self.input(inner)
                if isinstance(select, SelectItems):
                    roots = tuple(self._select(item.operand, scope) for item in select.items)
                return tree, dict(zip(visible_names(source), roots, strict=True)), roots

    def _block(self, block: Block) -> tuple[Leaf, JoinNames, _Roots]:
        index = len(self._patterns)
        pattern = self._build.path(block.steps, last_var=algebra.block_root(index))
        scope: dict[str, algebra.Term | str] = {}
        for var in pattern.variables():
            self._block_of[var] = index
            if not algebra.is_system_variable(var):
                scope[var] = algebra.shared_term(var)
        self._patterns.append(pattern)
        root = algebra.shared_term(block.steps[-1].var or algebra.block_root(index))
        return Leaf(index, block.stream), scope, (root,)

    def _select(self, operand: exp.Expr, scope: JoinNames) -> algebra.Term | str:
        expr = self._attached(operand, scope)
        if (constant := algebra.constant_operand_text(expr)) is not None:
            return constant
        term = algebra.as_term(expr)
        assert term is not None, "a SELECT operand is a term or a constant"
        if exp.split_values(term.functions):
            self._require(term, "!=", exp.String(""), self._patterns)  # if there is no value, there is no output
        return term

    def located(self, var: str) -> VariablePlace:
        return self._block_of[var], *self._ends.get(var, (var, ()))

    def _attached(self, operand: exp.Expr, scope: JoinNames) -> exp.Expr:
        return self._resolve(operand, scope, partial(self._attach, self._patterns))

    def _attach(self, patterns: list[algebra.PatternNode], var: str, path: algebra.PatternNode) -> None:
        block = self._block_of[var]
        patterns[block] = algebra.attach_branch(patterns[block], var, path)

    def _resolve(self, expr: exp.Expr, scope: JoinNames, attach_path: _Attach) -> exp.Expr:
        match expr:
            case exp.VarPath(var=name, steps=steps):
                term = scope[name]
                if isinstance(term, str):
                    return exp.String(term)
                if not steps:
                    return expr if term.var == name and not term.functions else expression(term)
                self._fresh += 1
                fresh = algebra.path_end(self._fresh)
                if not self._canonical:
                    self.paths[fresh] = expr
                    base, above = self._ends.get(term.var, (term.var, ()))
                    self._ends[fresh] = base, (*above, *steps)
                self._block_of[fresh] = self._block_of[term.var]
                attach_path(term.var, self._build.path(steps, last_var=fresh))
                return exp.VarPath(fresh)
            case exp.Call(name="concat", args=args):
                return self._concat(args, scope)
            case exp.Call(name=name, args=args):
                found = tuple(self._resolve(a, scope, attach_path) for a in args)
                return found[0] if name == "number" and is_number(found[0]) else exp.Call(name, found)
            case exp.Compare(op=op, left=left, right=right):
                one, two = self._resolve(left, scope, attach_path), self._resolve(right, scope, attach_path)
                return canonical(expr if one is left and two is right else exp.Compare(op, one, two))
        return expr

    def _concat(self, args: tuple[exp.Expr, ...], scope: JoinNames) -> exp.Expr:
        """A concat() as a function of the node of the only variable that its paths begin at."""
        of = dict[str, None]()

        def part(path: exp.VarPath) -> exp.ConcatPart:
            term = scope[path.var]
            if isinstance(term, str):
                return term
            of[term.var] = None
            if path.steps or not term.functions:
                return self._build.part(path)
            inner, *functions = term.functions
            parts = exp.parts_of(inner)
            return [".", *term.functions] if parts is None else [list(parts), *functions]

        parts = concat_parts(args, part)
        if not of:
            return exp.String(exp.concat_text(parts, str))
        (var,) = of
        return exp.Call(exp.PARTS, (exp.VarPath(var), exp.String(exp.parts_text(parts))))

    # ------------------------------------------------------------ conjunctive queries

    def _parts(
        self, tree: JoinTree, patterns: _Patterns, needed: frozenset[str]
    ) -> tuple[tuple[algebra.Conjunct, ...], tuple[algebra.Absent, ...]]:
        if not isinstance(tree, JoinNode) or tree.op not in algebra.NEGATED:
            return _distinct(self._conjuncts(tree, patterns, needed)), ()
        absent = tuple(dict.fromkeys(self._absent(literals, tree, patterns) for literals in disjuncts(tree.pred)))
        left_blocks = frozenset(tree_blocks(tree.left))
        used = needed.union(*(one.variables() for one in absent))
        left = self._side(tree.left, patterns, frozenset(v for v in used if self._block_of[v] in left_blocks), "left")
        return (algebra.Conjunct(left, None), *(algebra.Conjunct(one.right, None) for one in absent)), absent

    def _absent(self, literals: _Literals, tree: JoinNode, patterns: _Patterns) -> algebra.Absent:
        left_blocks = frozenset(tree_blocks(tree.left))
        own, branches = list(patterns), dict[algebra.Branch, None]()

        def attach_path(var: str, path: algebra.PatternNode) -> None:
            if self._block_of[var] in left_blocks:
                branches[algebra.Branch(var, path)] = None
            else:
                self._attach(own, var, path)

        joins, residual, used = self._compared(literals, tree, own, attach_path, left_blocks)
        return algebra.Absent(self._side(tree.right, tuple(own), used, "right"), joins, residual, tuple(branches))

    def _conjuncts(self, tree: JoinTree, patterns: _Patterns, needed: frozenset[str]) -> Iterator[algebra.Conjunct]:
        if isinstance(tree, Leaf):
            yield algebra.Conjunct(self._side(tree, patterns, needed, "left"), None)
            return
        for literals in disjuncts(tree.pred):
            own = list(patterns)
            joins, residual, compared = self._compared(literals, tree, own, partial(self._attach, own), frozenset())
            used = needed | compared
            whole = frozenset(term.var for pair in joins for term in pair if exp.reads_tree(term.functions))
            left = self._side(tree.left, tuple(own), used, "left", whole)
            right = self._side(tree.right, tuple(own), used, "right", whole)
            yield algebra.Conjunct(left, right, joins, residual)

    def _compared(
        self, literals: _Literals, tree: JoinNode, own: list[algebra.PatternNode], attach: _Attach, fixed: Set[int]
    ) -> tuple[tuple[tuple[algebra.Term, algebra.Term], ...], _Literals, frozenset[str]]:
        """Returns the value joins and residual predicates of a disjunct, with their variables. Conditions on one block
        only are added to its pattern in `own`, unless that is `fixed`."""
        left_blocks = frozenset(tree_blocks(tree.left))
        joins: dict[tuple[algebra.Term, algebra.Term], None] = {}
        exactly: dict[tuple[algebra.Term, algebra.Term], None] = {}  # joins of possibly multi-valued operands
        residual: dict[exp.Expr, None] = {}
        for literal in literals:
            expr = self._resolve(literal, tree.scope, attach)
            pair = self._value_join(expr, left_blocks)
            path, text = compared_text(expr) or (None, "")
            if pair and any(exp.split_values(term.functions) for term in pair):
                exactly[pair] = None
                residual[expr] = None
            elif pair:
                joins[pair] = None
                for term in pair:
                    if self._block_of[term.var] not in fixed:
                        self._require_value(term, own)
            elif isinstance(path, exp.VarPath) and (block := self._block_of[path.var]) not in fixed:
                own[block] = require(own[block], path.var, algebra.Condition(literal=text))
            else:
                residual[expr] = None
        if not joins and exactly:
            left, right = (replace(one, functions=(*one.functions, exp.JOINED_EXACTLY)) for one in next(iter(exactly)))
            joins[left, right] = None
        elif not joins and (by_words := near_join(residual, lambda expr: self._value_join(expr, left_blocks))):
            joins[by_words] = None
        used = {term.var for pair in joins for term in pair}.union(*map(algebra.variables_of, residual))
        return tuple(joins), tuple(residual), frozenset(used)

    def _value_join(self, expr: exp.Expr, left_blocks: frozenset[int]) -> tuple[algebra.Term, algebra.Term] | None:
        if not isinstance(expr, exp.Compare) or expr.op != "=":
            return None
        one, two = algebra.as_term(expr.left), algebra.as_term(expr.right)
        if one is None or two is None:
            return None
        one_left, two_left = self._block_of[one.var] in left_blocks, self._block_of[two.var] in left_blocks
        if one_left == two_left:
            return None
        return (one, two) if one_left else (two, one)

    def _require_value(self, term: algebra.Term, patterns: list[algebra.PatternNode]) -> None:
        """Requires a join's value to equal itself: a text that is not a time or number equals nothing."""
        if term.functions and term.functions[-1] in ("date", "number"):
            self._require(term, "=", expression(term, exp.Rel()), patterns)

    def _require(self, term: algebra.Term, op: exp.CompareOp, other: exp.Expr, own: list[algebra.PatternNode]) -> None:
        condition = self._build.condition(exp.Compare(op, expression(term, exp.Rel()), other))
        block = self._block_of[term.var]
        own[block] = require(own[block], term.var, condition)

    def _side(
        self,
        tree: JoinTree,
        patterns: _Patterns,
        used: frozenset[str],
        which: Literal["left", "right"],
        whole: frozenset[str] = frozenset(),
    ) -> algebra.Side:
        if isinstance(tree, Leaf):
            pattern = patterns[tree.block]
            return algebra.Side(tree.stream, algebra.naming(pattern, used) if self._canonical else pattern)
        blocks = sorted(tree_blocks(tree))
        carried = tuple(var for b in blocks for var in patterns[b].variables() if var in used)
        inner, absent = self._parts(tree, patterns, frozenset(carried))
        tests = (algebra.Test("element", "", f"v{i}") for i in range(len(carried)))
        children = tuple(algebra.PatternNode("/", test, var=var) for test, var in zip(tests, carried, strict=True))
        alone = _distinct(self._conjuncts(tree, tree.patterns, frozenset())) if tree.op == algebra.UNORDERED else ()
        copied = tuple(var for var in carried if var in whole)
        if self._canonical:
            names = canonical_names(inner, absent)
            inner, absent = _renamed((inner, absent), names)
            alone = _renamed(alone, canonical_names(alone))
            carried, copied = (tuple(names[var] for var in some) for some in (carried, copied))
        hidden = algebra.Hidden(tree.op, tree.window, inner, carried, which, alone, absent, copied)
        return algebra.Side(hidden.stream, algebra.PatternNode("/", algebra.TUPLE_TEST, children=children), hidden)


def _distinct(conjuncts: Iterator[algebra.Conjunct]) -> tuple[algebra.Conjunct, ...]:
    found = tuple(conjuncts)
    return found if len(found) == 1 else tuple(dict.fromkeys(found))  # hashing one is slow
