"""Lowers a checked query to its value-join normal form (thesis 6.2), defined in `xscl.algebra.joins`.

`normalize` resolves names, splits a chain into joins of two inputs, and brings each predicate into disjunctive normal
form. In each disjunct a path on a variable becomes a branch of the variable's pattern, and a comparison becomes a value
join, a condition of a pattern, or a residual predicate. A join inside another becomes a `Hidden` stream, with canonical
variable names so that equal ones are shared. Of a filter's arms a path becomes a branch, `path = "literal"` a branch
whose last node carries the literal (XPath's existential comparison), and any other a condition in XPath 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, Literal

from common.tools import Remembered, frozen
from xscl.algebra.joins import (
    NEGATED,
    TUPLE_TEST,
    UNORDERED,
    Absent,
    Branch,
    Conjunct,
    Hidden,
    JoinOp,
    NormalQuery,
    OncePer,
    SelectEntry,
    Side,
    Term,
    as_term,
    constant_operand_text,
    hole_key,
    shared_term,
    variables_of,
)
from xscl.algebra.trees import (
    EXTENSION_PREFIX,
    Condition,
    PatternNode,
    Test,
    attach_branch,
    block_root,
    is_system_variable,
    naming,
    path_end,
    rename_variables,
    shared_test,
    transform,
    xpath_literal,
)
from xscl.algebra.values import (
    And,
    Call,
    Compare,
    ElementConstructor,
    Expr,
    NameTest,
    Not,
    Number,
    Or,
    Rel,
    Step,
    String,
    VarPath,
    canonical,
    holes_of,
    is_number,
    is_of_times,
    is_time,
    map_operands,
    number_string,
    split_function,
    time_text,
)
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
    """A join of two inputs. `scope` has its predicate's names, and `patterns` those of all blocks so far."""

    op: JoinOp
    window: int | None
    pred: Expr
    scope: JoinNames
    patterns: tuple[PatternNode, ...]
    left: JoinTree
    right: JoinTree


JoinTree = Leaf | JoinNode

JoinNames = Mapping[str, Term | str]
"""The referents of visible names. A str is a constant's text."""

VariablePlace = tuple[int, str, tuple[Step, ...]]
"""A block, one of its own variables, and a path on it."""


def tree_blocks(tree: JoinTree) -> Iterator[int]:
    if isinstance(tree, Leaf):
        yield tree.block
    else:
        yield from tree_blocks(tree.left)
        yield from tree_blocks(tree.right)


_STRING_ARGUMENTS = (
    "contains",
    "starts-with",
    "normalize-space",
    "string-length",
    "string",
    "substring-before",
    "substring-after",
)
"""Functions of XPath 1.0 with string arguments, which libxml2 gets right."""


class PatternBuilder:
    """Builds tree patterns from syntax. `namespaces` are the URIs of prefixes."""

    def __init__(self, namespaces: Mapping[str, str]) -> None:
        self._uris = dict(namespaces)
        self._filter = Remembered(self._lowered)  # the parser gives equal filters one tree

    def path(self, steps: tuple[Step, ...], last_var: str | None = None, literal: str | None = None) -> PatternNode:
        """The pattern of a path: a chain of its steps with their filters. The last node is bound to `last_var` unless
        its step has a variable; `literal` is its string value, if given."""
        last = steps[-1]
        node = self._step(last, (), last.var or last_var, literal)
        for step in reversed(steps[:-1]):
            node = self._step(step, (node,), step.var)
        return node

    def _step(
        self, step: Step, below: tuple[PatternNode, ...], var: str | None, literal: str | None = None
    ) -> PatternNode:
        conditions: tuple[Condition, ...] = () if literal is None else (Condition(literal=literal),)
        branches: tuple[PatternNode, ...] = ()
        for condition in step.filters:
            more, paths = self._filter(condition)
            conditions += more
            branches += paths
        if len(conditions) > 1:
            conditions = tuple(dict.fromkeys(conditions))
        return PatternNode(step.axis, self.test(step.test), conditions, branches + below, var)

    def _lowered(self, condition: Expr) -> tuple[tuple[Condition, ...], tuple[PatternNode, ...]]:
        conditions: list[Condition] = []
        branches: list[PatternNode] = []
        for arm in and_arms(condition):
            path, value = path_and_literal(arm)
            if path is None:
                conditions.append(self.condition(arm))
            elif path.steps:
                branches.append(self.path(path.steps, literal=value))
            elif value is not None:
                conditions.append(Condition(literal=value))
        return tuple(conditions), tuple(branches)

    def test(self, test: NameTest) -> Test:
        if test.prefix is None:
            uri = "*" if test.local == "*" else ""
        elif test.prefix == "*":
            uri = "*"
        else:
            uri = "http://www.w3.org/XML/1998/namespace" if test.prefix == "xml" else self._uris[test.prefix]
        return shared_test(test.kind, uri, test.local)

    def condition(self, expr: Expr) -> Condition:
        return Condition(xpath=self._xpath(expr))

    def _xpath(self, expr: Expr) -> str:
        """A filter as XPath 1.0 text, without namespace prefixes except EXTENSION_PREFIX."""
        match expr:
            case Rel(steps=steps):
                return "." + "".join(self._xpath_step(step) for step in steps)
            case String(value=value):
                return xpath_literal(value)
            case Number(text=text):
                return text
            case Compare(op=op, left=left, right=right) if is_of_times(expr):
                return f'{EXTENSION_PREFIX}:compare-times({self._xpath_time(left)}, "{op}", {self._xpath_time(right)})'
            case Compare(op=op, left=left, right=right):
                one, two = self._xpath(left), self._xpath(right)
                numeric = is_number(left) + is_number(right)
                if numeric == 2 or (numeric == 0 and op in ("=", "!=")):
                    return f"{one} {op} {two}"
                return f'{EXTENSION_PREFIX}:compare({one}, "{op}", {two})'
            case Call(name="count", args=(arg,)):
                return f"count({self._xpath(arg)})"
            case Call(name=name, args=args) if name in _STRING_ARGUMENTS:
                return f"{name}({', '.join(self._xpath_string(a) if is_number(a) else self._xpath(a) for a in args)})"
            case Call(name=name, args=args):
                return f"{EXTENSION_PREFIX}:{name}({', '.join(map(self._xpath_string, args))})"
            case And(args=args):
                return " and ".join(f"({self._xpath(a)})" for a in args)
            case Or(args=args):
                return " or ".join(f"({self._xpath(a)})" for a in args)
            case Not(arg=arg):
                return f"not({self._xpath(arg)})"
        raise AssertionError(f"not a filter: {expr!r}")

    def _xpath_string(self, expr: Expr) -> str:
        if isinstance(expr, Number):
            return xpath_literal(number_string(expr.text))
        text = self._xpath(expr)
        if is_number(expr):
            return f"{EXTENSION_PREFIX}:string({text})"
        return f"string({text})" if isinstance(expr, Rel) else text

    def _xpath_time(self, expr: Expr) -> str:
        if isinstance(expr, String):
            return xpath_literal(time_text(expr.value) or expr.value)
        if is_time(expr) and isinstance(expr, Call):
            return self._xpath_string(expr.args[0])
        return self._xpath(expr)

    def _xpath_step(self, step: Step) -> str:
        test = self.test(step.test)
        parts = []
        # libxml2 takes only the names of XML's fourth edition. Other names are compared as text.
        plain = test.uri == "" and test.local.isascii()
        if test.local != "*" and not plain:
            parts.append(f"local-name() = {xpath_literal(test.local)}")
        if test.uri != "*" and not plain:
            parts.append(f"namespace-uri() = {xpath_literal(test.uri)}")
        at = "@" if test.kind == "attribute" else ""
        head = test.local if not parts else "*"
        names = f"[{' and '.join(parts)}]" if parts else ""
        filters = "".join(f"[boolean({self._xpath(f)})]" for f in step.filters)
        return f"{step.axis}{at}{head}{names}{filters}"


def and_arms(expr: Expr) -> Iterator[Expr]:
    """Yields the conditions that AND connects, from left to right."""
    if isinstance(expr, And):
        for arg in expr.args:
            yield from and_arms(arg)
    else:
        yield expr


def compared_text(expr: Expr) -> tuple[Expr, str] | None:
    """The other operand, and the text, of an equality with a text."""
    match expr:
        case Compare(op="=", left=operand, right=String(value=text)):
            return operand, text
        case Compare(op="=", left=String(value=text), right=operand):
            return operand, text
    return None


def path_and_literal(arm: Expr) -> tuple[Rel | None, str | None]:
    """The path that a condition asks for, and the text that it compares it with, if it does nothing else."""
    path, text = compared_text(arm) or (arm, None)
    return (path, text) if isinstance(path, Rel) else (None, None)


def expression(term: Term, of: Expr | None = None) -> Expr:
    expr: Expr = of or VarPath(term.var)
    for function in term.functions:
        name, literal = split_function(function)
        expr = Call(name, (expr,) if literal is None else (expr, String(literal)))
    return expr


def require(pattern: PatternNode, var: str, condition: Condition) -> PatternNode:
    return transform(
        pattern,
        lambda n: (
            replace(n, conditions=(*n.conditions, condition)) if n.var == var and condition not in n.conditions else n
        ),
    )


def canonical_names(conjuncts: tuple[Conjunct, ...], absent: tuple[Absent, ...] = ()) -> dict[str, str]:
    """Canonical names for an inner join's variables. `absent` is what must be absent."""
    found = [var for conjunct in conjuncts for side in conjunct.sides() for var in side.variables()]
    found += [var for one in absent for branch in one.branches for var in branch.path.variables()]
    return {var: f"v{number}" for number, var in enumerate(dict.fromkeys(found))}


def _renamed(part: Any, names: Mapping[str, str]) -> Any:
    """A part of conjunctive queries with other names of variables."""
    match part:
        case Term():
            return Term(names[part.var], part.functions)
        case VarPath():
            return VarPath(names[part.var])
        case Branch():
            return Branch(names[part.var], rename_variables(part.path, names))
        case Side():
            return Side(part.stream, rename_variables(part.pattern, names), part.hidden)
        case Conjunct() | Absent():
            return type(part)(*[_renamed(getattr(part, one.name), names) for one in fields(part)])
        case tuple():
            return tuple([_renamed(one, names) for one in part])
        case None:
            return None
    return map_operands(part, lambda operand: _renamed(operand, names))


_Attach = Callable[[str, PatternNode], None]
"""Called with a path on a variable: the variable, and the pattern below its node."""
_Roots = tuple[Term | str, ...]
"""The referents of the items of `SELECT *`."""


def normalize(query: Query, namespaces: Mapping[str, str]) -> NormalQuery:
    """The normal form of a checked query. `namespaces` are the URIs of prefixes."""
    return _Normalizer(namespaces).query(query)


def normalize_readably(query: Query, namespaces: Mapping[str, str]) -> tuple[NormalQuery, dict[str, VarPath]]:
    """`normalize` for people: patterns keep the names of all variables, and inner joins those of the query. Also
    returns the query's paths on variables, by the variables that stand for their ends."""
    normalizer = _Normalizer(namespaces, canonical=False)
    return normalizer.query(query), normalizer.paths


def join_tree(query: Query, namespaces: Mapping[str, str]) -> tuple[JoinTree, Callable[[str], VariablePlace]]:
    """The inputs of a checked query as a tree, and a function that locates the variables of its scopes."""
    normalizer = _Normalizer(namespaces, canonical=False)
    tree, _, _ = normalizer.input(query.source)
    return tree, normalizer.located


@lru_cache(maxsize=16)
def _builder(namespaces: tuple[tuple[str, str], ...]) -> PatternBuilder:
    return PatternBuilder(dict(namespaces))


class _Normalizer:
    """Lowers one query. If not `canonical`, inner joins keep the query's variable names."""

    def __init__(self, namespaces: Mapping[str, str], *, canonical: bool = True) -> None:
        self._canonical = canonical
        self.paths: dict[str, VarPath] = {}
        self._ends: dict[str, tuple[str, tuple[Step, ...]]] = {}
        self._namespaces = dict(namespaces)
        self._build = _builder(tuple(self._namespaces.items()))
        self._patterns: list[PatternNode] = []
        self._block_of: dict[str, int] = {}
        self._fresh = 0

    def query(self, query: Query) -> NormalQuery:
        tree, scope, roots = self.input(query.source)
        select = query.select
        holes: tuple[Term | str, ...] = ()
        constructor = None
        star = False
        if isinstance(select, SelectItems):
            entries = tuple(SelectEntry(item.name, self._select(item.operand, scope)) for item in select.items)
        elif isinstance(select, ElementConstructor):
            constructor = select
            found = list(holes_of(select))
            # Holes with the same text are one variable, with one key in `nodes`.
            by_key: dict[str, Term | str] = {}
            for hole in found:
                if hole_key(hole) not in by_key:
                    by_key[hole_key(hole)] = self._select(hole.operand, scope)
            holes = tuple(by_key[hole_key(hole)] for hole in found)
            entries = tuple(SelectEntry(key, value) for key, value in by_key.items() if isinstance(value, Term))
        else:
            star = True
            names = [name for name, _ in star_items(query.source)]
            entries = tuple(map(SelectEntry, names, roots))
        needed = frozenset(entry.value.var for entry in entries if isinstance(entry.value, Term))
        once = None
        if query.once is not None:
            keys = tuple(self._attached(operand, scope) for operand in query.once.keys)
            once = OncePer(keys, query.once.window.us if query.once.window else None)
            needed |= {var for key in keys for var in variables_of(key)}
        conjuncts, absent = self._parts(tree, tuple(self._patterns), needed)
        op, window = (tree.op, tree.window) if isinstance(tree, JoinNode) else (None, None)
        namespaces = tuple(sorted(self._namespaces.items()))
        return NormalQuery(op, window, conjuncts, entries, star, constructor, holes, namespaces, once, absent)

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
                return (node, left_scope, left_roots) if op in NEGATED else (node, both, left_roots + right_roots)
            case SubQuery(select=select, source=inner):
                tree, scope, roots = self.input(inner)
                if isinstance(select, SelectItems):
                    roots = tuple(self._select(item.operand, scope) for item in select.items)
                return tree, dict(zip(visible_names(source), roots, strict=True)), roots

    def _block(self, block: Block) -> tuple[Leaf, JoinNames, _Roots]:
        index = len(self._patterns)
        pattern = self._build.path(block.steps, last_var=block_root(index))
        scope: dict[str, Term | str] = {}
        for var in pattern.variables():
            self._block_of[var] = index
            if not is_system_variable(var):
                scope[var] = shared_term(var)
        self._patterns.append(pattern)
        return Leaf(index, block.stream), scope, (shared_term(block.steps[-1].var or block_root(index)),)

    def _select(self, operand: Expr, scope: JoinNames) -> Term | str:
        expr = self._attached(operand, scope)
        constant = constant_operand_text(expr)
        if constant is not None:
            return constant
        term = as_term(expr)
        assert term is not None, "a SELECT operand is a term or a constant"
        return term

    def located(self, var: str) -> VariablePlace:
        return self._block_of[var], *self._ends.get(var, (var, ()))

    def _attached(self, operand: Expr, scope: JoinNames) -> Expr:
        patterns = list(self._patterns)
        expr = self._resolve(operand, scope, self._attaching(patterns))
        self._patterns = patterns
        return expr

    def _attaching(self, patterns: list[PatternNode]) -> _Attach:
        def attach_path(var: str, path: PatternNode) -> None:
            block = self._block_of[var]
            patterns[block] = attach_branch(patterns[block], var, path)

        return attach_path

    def _resolve(self, expr: Expr, scope: JoinNames, attach_path: _Attach) -> Expr:
        match expr:
            case VarPath(var=name, steps=steps):
                term = scope[name]
                if isinstance(term, str):
                    return String(term)
                if not steps:
                    return expr if term.var == name and not term.functions else expression(term)
                self._fresh += 1
                fresh = path_end(self._fresh)
                if not self._canonical:
                    self.paths[fresh] = expr
                    base, above = self._ends.get(term.var, (term.var, ()))
                    self._ends[fresh] = base, (*above, *steps)
                self._block_of[fresh] = self._block_of[term.var]
                attach_path(term.var, self._build.path(steps, last_var=fresh))
                return VarPath(fresh)
            case Call(name=name, args=args):
                found = tuple(self._resolve(a, scope, attach_path) for a in args)
                return found[0] if name == "number" and is_number(found[0]) else Call(name, found)
            case Compare(op=op, left=left, right=right):
                one, two = self._resolve(left, scope, attach_path), self._resolve(right, scope, attach_path)
                return canonical(expr if one is left and two is right else Compare(op, one, two))
        return expr

    # ------------------------------------------------------------ conjunctive queries

    def _parts(
        self, tree: JoinTree, patterns: tuple[PatternNode, ...], needed: frozenset[str]
    ) -> tuple[tuple[Conjunct, ...], tuple[Absent, ...]]:
        if not isinstance(tree, JoinNode) or tree.op not in NEGATED:
            return _distinct(self._conjuncts(tree, patterns, needed)), ()
        absent = tuple(dict.fromkeys(self._absent(tree, patterns)))
        left_blocks = frozenset(tree_blocks(tree.left))
        used = needed.union(*(one.variables() for one in absent))
        left = self._side(tree.left, patterns, frozenset(v for v in used if self._block_of[v] in left_blocks), "left")
        return (Conjunct(left, None), *(Conjunct(one.right, None) for one in absent)), absent

    def _absent(self, tree: JoinNode, patterns: tuple[PatternNode, ...]) -> Iterator[Absent]:
        left_blocks = frozenset(tree_blocks(tree.left))
        for literals in disjuncts(tree.pred):
            own, branches = list(patterns), dict[Branch, None]()
            attach_right = self._attaching(own)

            def attach_path(
                var: str,
                path: PatternNode,
                attach_right: _Attach = attach_right,
                branches: dict[Branch, None] = branches,
            ) -> None:
                if self._block_of[var] in left_blocks:
                    branches[Branch(var, path)] = None
                else:
                    attach_right(var, path)

            joins, residual, used = self._compared(literals, tree, own, attach_path, fixed=left_blocks)
            right = self._side(tree.right, tuple(own), used, "right")
            yield Absent(right, joins, residual, tuple(branches))

    def _conjuncts(
        self, tree: JoinTree, patterns: tuple[PatternNode, ...], needed: frozenset[str]
    ) -> Iterator[Conjunct]:
        if isinstance(tree, Leaf):
            yield Conjunct(self._side(tree, patterns, needed, "left"), None)
            return
        for literals in disjuncts(tree.pred):
            own = list(patterns)
            joins, residual, compared = self._compared(literals, tree, own, self._attaching(own))
            used = needed | compared
            left = self._side(tree.left, tuple(own), used, "left")
            right = self._side(tree.right, tuple(own), used, "right")
            yield Conjunct(left, right, joins, residual)

    def _compared(
        self,
        literals: tuple[Expr, ...],
        tree: JoinNode,
        own: list[PatternNode],
        attach_path: _Attach,
        fixed: frozenset[int] = frozenset(),
    ) -> tuple[tuple[tuple[Term, Term], ...], tuple[Expr, ...], frozenset[str]]:
        """The value joins and residual predicates of a disjunct, with their variables. What only restricts one block
        goes to its pattern in `own`, unless that is `fixed`."""
        left_blocks = frozenset(tree_blocks(tree.left))
        joins: dict[tuple[Term, Term], None] = {}
        residual: dict[Expr, None] = {}
        for literal in literals:
            expr = self._resolve(literal, tree.scope, attach_path)
            pair = self._value_join(expr, left_blocks)
            path, text = compared_text(expr) or (None, "")
            if pair:
                joins[pair] = None
                for term in pair:
                    if self._block_of[term.var] not in fixed:
                        self._require_value(term, own)
            elif isinstance(path, VarPath) and (block := self._block_of[path.var]) not in fixed:
                own[block] = require(own[block], path.var, Condition(literal=text))
            else:
                residual[expr] = None
        if not joins and (by_words := near_join(residual, lambda expr: self._value_join(expr, left_blocks))):
            joins[by_words] = None
        used = {term.var for pair in joins for term in pair}.union(*map(variables_of, residual))
        return tuple(joins), tuple(residual), frozenset(used)

    def _value_join(self, expr: Expr, left_blocks: frozenset[int]) -> tuple[Term, Term] | None:
        if not isinstance(expr, Compare) or expr.op != "=":
            return None
        one, two = as_term(expr.left), as_term(expr.right)
        if one is None or two is None:
            return None
        one_left, two_left = self._block_of[one.var] in left_blocks, self._block_of[two.var] in left_blocks
        if one_left == two_left:
            return None
        return (one, two) if one_left else (two, one)

    def _require_value(self, term: Term, patterns: list[PatternNode]) -> None:
        """Requires a join's value to equal itself: a text that is not a time or number equals none."""
        if term.functions and term.functions[-1] in ("date", "number"):
            value = expression(term, Rel())
            block = self._block_of[term.var]
            patterns[block] = require(patterns[block], term.var, self._build.condition(Compare("=", value, value)))

    def _side(
        self, tree: JoinTree, patterns: tuple[PatternNode, ...], used: frozenset[str], which: Literal["left", "right"]
    ) -> Side:
        if isinstance(tree, Leaf):
            pattern = patterns[tree.block]
            return Side(tree.stream, naming(pattern, used) if self._canonical else pattern)
        blocks = sorted(tree_blocks(tree))
        carried = tuple(var for b in blocks for var in patterns[b].variables() if var in used)
        inner, absent = self._parts(tree, patterns, frozenset(carried))
        children = tuple(PatternNode("/", Test("element", "", f"v{i}"), var=var) for i, var in enumerate(carried))
        if not self._canonical:
            hidden = Hidden(tree.op, tree.window, inner, carried, which, self._alone(tree), absent)
            return Side(hidden.stream, PatternNode("/", TUPLE_TEST, children=children), hidden)
        names, alone = canonical_names(inner, absent), self._alone(tree)
        variables = tuple(names[var] for var in carried)
        hidden = Hidden(
            tree.op,
            tree.window,
            _renamed(inner, names),
            variables,
            which,
            _renamed(alone, canonical_names(alone)),
            _renamed(absent, names),
        )
        return Side(hidden.stream, PatternNode("/", TUPLE_TEST, children=children), hidden)

    def _alone(self, tree: JoinNode) -> tuple[Conjunct, ...]:
        if tree.op != UNORDERED:
            return ()
        return _distinct(self._conjuncts(tree, tree.patterns, frozenset()))


def _distinct(conjuncts: Iterator[Conjunct]) -> tuple[Conjunct, ...]:
    found = tuple(conjuncts)
    return found if len(found) == 1 else tuple(dict.fromkeys(found))  # it takes long to hash one
