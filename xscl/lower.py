"""Lowers a checked query to its value-join normal form (thesis 6.2), which `xscl.algebra.normal` defines.

`normalize` resolves names, splits a chain into joins of two inputs, and brings each predicate into disjunctive normal
form. In each disjunct a path on a variable becomes a branch of the variable's pattern, and a comparison becomes a value
join, a condition of a pattern, or a residual predicate. A join that is an input of another becomes a `Hidden` stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Literal

from xscl.algebra.comparisons import canonical, is_number
from xscl.algebra.expressions import Call, Compare, ElementConstructor, Expr, Rel, String, VarPath, holes_of
from xscl.algebra.mirror import UNORDERED
from xscl.algebra.normal import (
    NEGATED,
    TUPLE_TEST,
    Absent,
    Branch,
    Conjunct,
    Hidden,
    NormalQuery,
    OncePer,
    SelectEntry,
    Side,
    Term,
    as_term,
    constant_text,
    hole_key,
    shared_term,
    variables_of,
)
from xscl.algebra.pattern import Condition, PatternNode, Test, attach, naming
from xscl.algebra.system_names import block_of, block_root, is_system_variable, path_end
from xscl.disjuncts import disjuncts
from xscl.join_trees import Leaf, Node, Scope, Tree, tree_blocks
from xscl.lower_paths import PatternBuilder
from xscl.lower_terms import constant_equality, expression, require
from xscl.near_joins import near_join
from xscl.syntax import Block, Input, Join, Query, SelectItems, SubQuery
from xscl.tuple_names import canonical_absent, canonical_names, with_canonical_names

_Attach = Callable[[str, PatternNode], None]
"""Takes a path on a variable: the variable, and the pattern below its node."""
_Roots = tuple[tuple[str | None, Term | str], ...]
"""What `SELECT *` selects: names, None for unnamed block roots, and what they stand for."""


def normalize(query: Query, namespaces: Mapping[str, str]) -> NormalQuery:
    """The normal form of a query that `xscl.check` found no fault with. `namespaces` are the URIs of prefixes."""
    return _Normalizer(namespaces).query(query)


def normalize_readably(query: Query, namespaces: Mapping[str, str]) -> tuple[NormalQuery, dict[str, VarPath]]:
    """The same, for people: patterns keep the names of all variables, and inner joins those of the query. Also returns
    the paths on variables that the query has, by the variables that stand for their ends."""
    normalizer = _Normalizer(namespaces, canonical=False)
    return normalizer.query(query), normalizer.paths


@lru_cache(maxsize=16)
def _builder(namespaces: tuple[tuple[str, str], ...]) -> PatternBuilder:
    """The builder of patterns, which remembers what it made of filters that many queries have."""
    return PatternBuilder(dict(namespaces))


class _Normalizer:
    """Lowers one query: `_patterns` are those of its blocks, and `_block_of` is the block of each variable. `paths` are
    the paths on variables, by their ends. If not `canonical`, inner joins keep the names of variables."""

    def __init__(self, namespaces: Mapping[str, str], *, canonical: bool = True) -> None:
        self._canonical = canonical
        self.paths: dict[str, VarPath] = {}
        self._namespaces = dict(namespaces)
        self._build = _builder(tuple(self._namespaces.items()))
        self._patterns: list[PatternNode] = []
        self._block_of: dict[str, int] = {}
        self._fresh = 0
        self._unseen: set[int] = set()
        """The blocks of what did not come."""

    def query(self, query: Query) -> NormalQuery:
        tree, scope, roots = self._input(query.source)
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
            entries = tuple(SelectEntry(name or self._root_name(value, 0), value) for name, value in roots)
        needed = frozenset(entry.value.var for entry in entries if isinstance(entry.value, Term))
        once = None
        if query.once is not None:
            keys = tuple(self._attached(operand, scope) for operand in query.once.keys)
            once = OncePer(keys, query.once.window.us if query.once.window else None)
            needed |= {var for key in keys for var in variables_of(key)}
        conjuncts, absent = self._parts(tree, tuple(self._patterns), needed)
        op, window = (tree.op, tree.window) if isinstance(tree, Node) else (None, None)
        namespaces = tuple(sorted(self._namespaces.items()))
        return NormalQuery(op, window, conjuncts, entries, star, constructor, holes, namespaces, once, absent)

    # ------------------------------------------------------------ names and blocks

    def _input(self, source: Input) -> tuple[Tree, Scope, _Roots]:
        """The join tree of a source, the names that can be used outside of it, and its block roots with their names."""
        match source:
            case Block():
                return self._block(source)
            case Join(op=op, left=left, right=right, pred=pred, window=window):
                left_tree, left_scope, left_roots = self._input(left)
                right_tree, right_scope, right_roots = self._input(right)
                both = {**left_scope, **right_scope}
                node = Node(op, window.us, pred, both, tuple(self._patterns), left_tree, right_tree)
                if op in NEGATED:
                    self._unseen.update(tree_blocks(right_tree))
                    return node, left_scope, left_roots
                return node, both, left_roots + right_roots
            case SubQuery(select=select, source=inner):
                first = len(self._patterns)
                tree, scope, roots = self._input(inner)
                if isinstance(select, SelectItems):
                    roots = tuple((item.name, self._select(item.operand, scope)) for item in select.items)
                else:
                    roots = tuple((name or self._root_name(value, first), value) for name, value in roots)
                return tree, {str(name): value for name, value in roots}, roots

    def _root_name(self, root: Term | str, first: int) -> str:
        """What an unnamed block root is called in the output, among the blocks from number `first` on."""
        assert isinstance(root, Term), "only block roots are unnamed"
        seen = [block for block in range(first, len(self._patterns)) if block not in self._unseen]
        index = seen.index(block_of(root.var))
        return ("left", "right")[index] if len(seen) <= 2 else f"b{index + 1}"

    def _block(self, block: Block) -> tuple[Leaf, Scope, _Roots]:
        index = len(self._patterns)
        pattern = self._build.path(block.steps, last_var=block_root(index))
        scope: dict[str, Term | str] = {}
        for var in pattern.variables():
            self._block_of[var] = index
            if not is_system_variable(var):
                scope[var] = shared_term(var)
        self._patterns.append(pattern)
        name = block.steps[-1].var
        return Leaf(index, block.stream), scope, ((name, shared_term(name or block_root(index))),)

    def _select(self, operand: Expr, scope: Scope) -> Term | str:
        """What an operand of SELECT stands for."""
        expr = self._attached(operand, scope)
        constant = constant_text(expr)
        if constant is not None:
            return constant
        term = as_term(expr)
        assert term is not None, "a SELECT operand is a term or a constant"
        return term

    def _attached(self, operand: Expr, scope: Scope) -> Expr:
        """An operand over variables of the patterns. A path on a variable becomes a branch that every match must
        have."""
        patterns = list(self._patterns)
        expr = self._resolve(operand, scope, self._attaching(patterns))
        self._patterns = patterns
        return expr

    def _attaching(self, patterns: list[PatternNode]) -> _Attach:
        """What attaches paths on variables to `patterns`."""

        def attach_path(var: str, path: PatternNode) -> None:
            block = self._block_of[var]
            patterns[block] = attach(patterns[block], var, path)

        return attach_path

    def _resolve(self, expr: Expr, scope: Scope, attach_path: _Attach) -> Expr:
        """The expression over variables of the patterns only. `attach_path` takes the paths on variables."""
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
        self, tree: Tree, patterns: tuple[PatternNode, ...], needed: frozenset[str]
    ) -> tuple[tuple[Conjunct, ...], tuple[Absent, ...]]:
        """The conjunctive queries of a join tree, and what must not be."""
        if not isinstance(tree, Node) or tree.op not in NEGATED:
            return _distinct(self._conjuncts(tree, patterns, needed)), ()
        absent = tuple(dict.fromkeys(self._absent(tree, patterns)))
        left_blocks = frozenset(tree_blocks(tree.left))
        used = needed.union(*(one.variables() for one in absent))
        left = self._side(tree.left, patterns, frozenset(v for v in used if self._block_of[v] in left_blocks), "left")
        return (Conjunct(left, None), *(Conjunct(one.right, None) for one in absent)), absent

    def _absent(self, tree: Node, patterns: tuple[PatternNode, ...]) -> Iterator[Absent]:
        """What must not be, a disjunct at a time."""
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

            joins: dict[tuple[Term, Term], None] = {}
            residual: dict[Expr, None] = {}
            for literal in literals:
                expr = self._resolve(literal, tree.scope, attach_path)
                pair = self._value_join(expr, left_blocks)
                pushed = None if pair else constant_equality(expr)
                if pair:
                    joins[pair] = None
                    self._require_value(pair[1], own)
                elif pushed and self._block_of[pushed[0]] not in left_blocks:
                    block = self._block_of[pushed[0]]
                    own[block] = require(own[block], pushed[0], Condition(literal=pushed[1]))
                else:
                    residual[expr] = None
            if not joins and (by_words := near_join(residual, lambda expr: self._value_join(expr, left_blocks))):
                joins[by_words] = None
            used = {term.var for pair in joins for term in pair}
            used |= {var for expr in residual for var in variables_of(expr)}
            right = self._side(tree.right, tuple(own), frozenset(used), "right")
            yield Absent(right, tuple(joins), tuple(residual), tuple(branches))

    def _conjuncts(self, tree: Tree, patterns: tuple[PatternNode, ...], needed: frozenset[str]) -> Iterator[Conjunct]:
        if isinstance(tree, Leaf):
            yield Conjunct(self._side(tree, patterns, needed, "left"), None)
            return
        left_blocks = frozenset(tree_blocks(tree.left))
        for literals in disjuncts(tree.pred):
            own = list(patterns)
            joins: dict[tuple[Term, Term], None] = {}
            residual: dict[Expr, None] = {}
            for literal in literals:
                expr = self._resolve(literal, tree.scope, self._attaching(own))
                pair = self._value_join(expr, left_blocks)
                pushed = None if pair else constant_equality(expr)
                if pair:
                    joins[pair] = None
                    for term in pair:
                        self._require_value(term, own)
                elif pushed:
                    var, text = pushed
                    block = self._block_of[var]
                    own[block] = require(own[block], var, Condition(literal=text))
                else:
                    residual[expr] = None
            if not joins and (by_words := near_join(residual, lambda expr: self._value_join(expr, left_blocks))):
                joins[by_words] = None
            used = needed | {term.var for pair in joins for term in pair}
            used |= {var for expr in residual for var in variables_of(expr)}
            left = self._side(tree.left, tuple(own), used, "left")
            right = self._side(tree.right, tuple(own), used, "right")
            yield Conjunct(left, right, tuple(joins), tuple(residual))

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
        """Requires the value of a join to be equal to itself: a text that is no time or no number is equal to none."""
        if term.functions and term.functions[-1] in ("date", "number"):
            value = expression(term, Rel())
            block = self._block_of[term.var]
            patterns[block] = require(patterns[block], term.var, self._build.condition(Compare("=", value, value)))

    def _side(
        self, tree: Tree, patterns: tuple[PatternNode, ...], used: frozenset[str], which: Literal["left", "right"]
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
        names = canonical_names(inner, absent)
        alone = with_canonical_names(self._alone(tree))
        variables = tuple(names[var] for var in carried)
        named, named_absent = with_canonical_names(inner, absent), canonical_absent(absent, names)
        hidden = Hidden(tree.op, tree.window, named, variables, which, alone, named_absent)
        return Side(hidden.stream, PatternNode("/", TUPLE_TEST, children=children), hidden)

    def _alone(self, tree: Node) -> tuple[Conjunct, ...]:
        """The conjunctive queries of a JOIN UNORDERED without what the outer query asks of its inputs."""
        if tree.op != UNORDERED:
            return ()
        return _distinct(self._conjuncts(tree, tree.patterns, frozenset()))


def _distinct(conjuncts: Iterator[Conjunct]) -> tuple[Conjunct, ...]:
    found = tuple(conjuncts)
    return found if len(found) == 1 else tuple(dict.fromkeys(found))  # it takes long to hash one
